"""The pulse of a run: a small file in its folder that says how far it is, for whoever watches.

It is replaced every few seconds and removed when the run ends; one that was killed leaves it behind. Records alone say
what a run did: nothing goes on from a pulse, and one that cannot be written or read is done without.
"""

import json
import os
import socket
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from edbl.config import Unfit, fit
from edbl.errors import EdblError
from edbl.store import delete, read_json

PULSE = "pulse.json"  # in the folder of a run
EVERY = 2.0  # seconds between two of them
SILENT = 60.0  # seconds without one after which a run of another machine counts as stopped
LARGEST = 2**16  # bytes, many times what a run writes
MOST_LOSSES = 1000  # that are read
FORMAT = 1


@dataclass(frozen=True)
class Pulse:
    """How far a run is."""

    state: Literal["waiting", "running"]
    title: str  # method and data
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    at: float = field(default_factory=time.time)  # seconds since 1970
    task: int = 0  # from 0
    tasks: int = 0
    phase: str = ""  # or what it does beside training
    epoch: int = 0  # of the phase, those that are done
    epochs: int = 0
    share: float = 0.0  # of the run that is done
    left: float = -1.0  # seconds; below 0 if nothing tells
    speed: float = 0.0  # images/s
    losses: list[float] = field(default_factory=list)  # of the last epochs of the phase
    format: int = FORMAT

    @property
    def beats(self) -> bool:
        """Whether its process is there still, as far as can be told from here."""
        age = time.time() - self.at
        if self.host == socket.gethostname() and sys.platform != "win32":
            with suppress(PermissionError):  # somebody else's
                try:
                    os.kill(self.pid, 0)
                except (ProcessLookupError, OverflowError):
                    return False
        return age < SILENT


def write(folder: Path, pulse: Pulse) -> None:
    """Replace the pulse in a folder, if that can be done."""
    with suppress(OSError):
        write_quickly(folder / PULSE, json.dumps(asdict(pulse)).encode())


def write_quickly(path: Path, data: bytes) -> None:
    """Write what readers find whole, without waiting for the disk: a crash of the machine may leave anything."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")  # which `edbl.store.sweep` removes
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def read(folder: Path) -> Pulse | None:
    """Return the pulse in a folder, if there is one of this format: it may come from anywhere."""
    with suppress(OSError, EdblError, Unfit):
        stored = read_json(folder / PULSE, LARGEST)
        if stored.get("format") == FORMAT:
            found: Pulse = fit(Pulse, stored, "the pulse")
            return replace(found, losses=found.losses[-MOST_LOSSES:])
    return None


def remove(folder: Path) -> None:
    """Remove the pulse of a folder."""
    with suppress(OSError):
        delete(folder, [PULSE])


@contextmanager
def waiting(folders: Iterable[tuple[Path, str]]) -> Iterator[None]:
    """Show runs, by folder and title, that wait for their turn; a folder in which none began goes away again."""
    shown = []
    for folder, title in folders:
        with suppress(OSError):
            if not folder.exists():
                folder.mkdir(parents=True)
                write(folder, Pulse("waiting", title))
                shown.append(folder)
    try:
        yield
    finally:
        for folder in shown:
            found = read(folder)
            if found is not None and found.state == "waiting":
                remove(folder)
            with suppress(OSError):  # it holds more
                folder.rmdir()
