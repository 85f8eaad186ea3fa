"""Commands in processes of their own, forked from one that has everything imported: most take a tenth of a second."""

import atexit
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

Action = Callable[[], object]

LONGEST = 60.0  # seconds, of a command that reads or trains a few epochs, on a machine that does other things too
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def nothing() -> None:
    """Do nothing."""


def command(*words: object) -> Action:
    """Return what gives an `edbl` command, as a process does whose whole life it is."""
    return partial(_command, [str(word) for word in words])


def _command(words: Sequence[str]) -> None:
    from edbl.__main__ import start

    sys.argv = ["edbl", *words]
    start()


@dataclass(frozen=True)
class End:
    """How a process ended."""

    code: int  # minus the signal, if one ended it
    out: str  # what it printed, to either stream
    seconds: float
    memory: int  # bytes that it took more than it began with
    hung: bool = False


class Child:
    """A process that was begun: it does ``first``, which may meddle with what follows, and then something."""

    def __init__(self, action: Action, log: Path, first: Action = nothing) -> None:
        self.log, self.began, self.before = log, time.monotonic(), _resident()
        self.pid = os.fork()
        if not self.pid:
            try:
                _be(action, log, first)
            finally:
                os._exit(99)  # which `_be` never comes to

    def signal(self, number: int) -> None:
        """Send a signal to the process and those that it began."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def wait(self, limit: float = LONGEST) -> End:
        """Wait for its end, or end it after so many seconds."""
        pause, hung = 0.002, False
        while True:
            pid, status, used = os.wait4(self.pid, os.WNOHANG)
            if pid:
                break
            if not hung and time.monotonic() - self.began > limit:
                hung = True
                self.signal(signal.SIGKILL)
            time.sleep(pause)
            pause = min(0.05, pause * 1.3)
        seconds = time.monotonic() - self.began
        self.signal(signal.SIGKILL)  # what it left behind
        code = os.waitstatus_to_exitcode(status)
        out = self.log.read_bytes().decode(errors="replace")
        return End(code, out, seconds, max(0, used.ru_maxrss * 1024 - self.before), hung)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _be(action: Action, log: Path, first: Action) -> None:
    """Be the process from its fork to its end."""
    os.setpgid(0, 0)
    stream, empty = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), os.open(os.devnull, os.O_RDONLY)
    for old, new in ((empty, 0), (stream, 1), (stream, 2)):
        os.dup2(old, new)
    sys.stdout, sys.stderr = (open(k, "w", encoding="utf-8", closefd=False) for k in (1, 2))  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code: object = 0
    try:
        first()
        action()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    with suppress(BaseException):
        atexit._run_exitfuncs()
    for stream_of in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or not there at all
            stream_of.flush()
    os._exit(code if isinstance(code, int) else int(bool(code)))


# What may happen to a process at one of its file operations.


class Watch:
    """Do something before the operation of a number that changes a file; 0 only counts them, into ``counted``."""

    def __init__(self, at: int, what: Action, counted: Path | None = None, wanted: str = "") -> None:
        self.at, self.what, self.counted, self.wanted = at, what, counted, wanted
        self.number, self.busy = 0, False

    def __call__(self) -> None:
        """Begin to watch, from now to the end of this process."""
        sys.addaudithook(self._heard)
        synced = os.fsync

        def fsync(fd: Any) -> None:
            self._heard("fsync", ())
            synced(fd)

        os.fsync = fsync

    def _heard(self, event: str, about: tuple[object, ...]) -> None:
        written = event == "open" and isinstance(about[2], int) and about[2] & WRITES
        place = str(about[0]) if about else ""
        if self.busy or not (event in (*CHANGES, "fsync") or written) or place.startswith(("/dev", "/proc")):
            return
        if self.wanted and not any(self.wanted in str(one) for one in about):
            return
        self.number += 1
        self.busy = True
        try:
            if self.counted is not None:
                self.counted.write_text(f"{self.number}")
            if self.number == self.at:
                self.what()
        finally:
            self.busy = False


def die() -> None:
    """End as if the power failed."""
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt() -> None:
    """Let Ctrl-C be pressed now."""
    os.kill(os.getpid(), signal.SIGINT)


def fail(error: type[BaseException], *about: object) -> Action:
    """Return what lets an operation fail."""

    def raised() -> None:
        raise error(*about)

    return raised
