"""Moments: commands that are killed, interrupted, or let down by disk and memory, and many at once on one folder."""

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from edbl import store
from edbl.cli import LATER, terminal
from tests.campaign import bases
from tests.campaign.child import Action, Child, End, Watch, command, die, fail, interrupt, nothing
from tests.campaign.inputs import faults, say_nothing

PROMPT = 2.0  # seconds in which Ctrl-C ends a command, on a machine that has a core for it
OURS = f'File "{Path(store.__file__).parent}{os.sep}'  # in a traceback


@dataclass(frozen=True)
class Work:
    """Something that is stopped and begun again: where, what, and the folder whose end must be the same."""

    name: str
    base: str
    words: Sequence[object] | Callable[[], object]
    own: str
    codes: Sequence[int] = (0,)  # how the same command may end, given again after it ended

    def action(self, place: Path) -> Action:
        return bases.in_place(place, self.words if callable(self.words) else command(*self.words))


WORKS = {
    work.name: work
    for work in (
        Work("run", "nothing", bases.RUN, "run"),
        Work("resume", "stopped", ["resume", "run"], "run"),
        Work("learn first", "nothing", bases.LEARN, "model"),
        Work("learn more", "model", bases.MORE, "model"),
        Work("learn on", "begun", ["learn", "model"], "model", codes=(0, 2)),
        Work("forget", "model", ["forget", "model", "digit 1"], "model", codes=(0, 2)),
        Work("rename", "model", ["rename", "model", "digit 1", "one"], "model", codes=(0, 2)),
        Work("undo", "changed", ["undo", "model", "--to", 1], "model", codes=(0, 2)),
        Work("save", "estimator", partial(bases.fit_and_save, 2), "saved"),
    )
}
LONG = {
    work.name: work
    for work in (
        Work("several runs", "nothing", bases.MANY, "runs"),
        Work("sweep", "asked", bases.SWEEP, "results"),
        Work("search", "space", bases.TUNE, "search"),
        Work("export", "model", ["export", "model", "model.onnx"], "model"),
        Work("table", "done", ["report", "run", "--out", "run/run.csv"], "run"),
        Work("page", "done", ["report", "run"], "run"),
    )
}
ALL = {**WORKS, **LONG}


def results(place: Path, work: Work) -> Any:
    """Return what a work has come to."""
    own = place / work.own
    if work.own in ("runs", "results", "search"):
        return [bases.result(record.parent) for record in sorted(own.rglob("record.json"))]
    return bases.result(own)


class Wanted:
    """What each work comes to if nothing stops it, and how many file operations it takes: found once."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.found: dict[str, tuple[int, float, Any]] = {}

    def __call__(self, work: Work) -> tuple[int, float, Any]:
        if work.name not in self.found:
            place = copy(self.out, work)
            count = place / "tmp" / "count"
            end = give(place, work, Watch(0, nothing, count))
            assert end.code == 0, end
            operations = int(count.read_text())
            count.unlink()
            assert not bases.left_behind(place), bases.left_behind(place)
            self.found[work.name] = operations, end.seconds, results(place, work)
        return self.found[work.name]


def copy(out: Path, work: Work) -> Path:
    """Return a fresh place for a work."""
    place = out / f"case-{os.getpid()}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(out / "bases" / work.base, place, symlinks=True)
    return place


def give(place: Path, work: Work, first: Action = nothing) -> End:
    """Do a work in a process of its own, after something."""
    return begin(place, work, first).wait()


def begin(place: Path, work: Work, first: Action = nothing) -> Child:
    """Begin a work in a process of its own, after something."""
    return Child(work.action(place), place.with_name(f"{place.name}.log"), partial(_first, work, first))


def _first(work: Work, first: Action) -> None:
    if work.own == "run" and work.name not in LONG:  # the page takes seconds, and is a work of its own
        terminal.show_runs = say_nothing
    first()


def _after(place: Path, work: Work, wanted: Any) -> list[str]:
    """Give the command again that was stopped, and return what is wrong with where that leads."""
    log = place.with_name(f"{place.name}.log")
    log.unlink(missing_ok=True)
    end = give(place, work, _later)
    wrong = [f"then {fault}" for fault in faults(end.code, end.out, (0, *work.codes))]
    if results(place, work) != wanted:
        wrong.append("another result")
    if left := bases.left_behind(place):
        wrong.append(f"left behind: {left[0]}")
    return [*wrong, end.out[-2000:]] if wrong else []


def _later() -> None:
    """Let what killed processes left be as old as it must be to go."""
    store.ABANDONED = 0


def _ended(place: Path, kind: str, what: str, wrong: Sequence[str], out: str) -> dict[str, Any]:
    log = place.with_name(f"{place.name}.log")
    log.unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    faults_of = [one for one in wrong if "\n" not in one and len(one) < 100]
    return {"kind": kind, "what": what, "wrong": faults_of, "out": "\n".join([out, *wrong])[-4000:] if wrong else ""}


def _work(draw: random.Random) -> Work:
    return draw.choice(list(LONG.values()) if draw.random() < 0.03 else list(WORKS.values()))


def _moment(draw: random.Random, number: int, wanted: Wanted, work: Work, what: Action) -> tuple[str, Action, float]:
    """Return when something happens to a work: before which file operation, or after how many seconds."""
    operations, seconds, _ = wanted(work)
    if number % 3:
        at = draw.randint(1, operations)
        return f"{work.name}, at a file operation", Watch(at, what), 0.0
    return f"{work.name}, at a random moment", nothing, draw.uniform(0, seconds)


def kill(number: int, seed: int, out: Path, wanted: Wanted) -> dict[str, Any]:
    """Kill a work, once or twice; the same command then leads to the same end."""
    draw = random.Random(f"kill {seed} {number}")
    work = _work(draw)
    place, whole = copy(out, work), wanted(work)[2]
    place = copy(out, work)
    for round in range(draw.choice([1, 1, 2])):
        told, first, delay = _moment(draw, number + round, wanted, work, die)
        place = place if round else copy(out, work)
        child = begin(place, work, first)
        if delay:
            time.sleep(delay)
            child.signal(signal.SIGKILL)
        end = child.wait()
        allowed = (-9, 0, *work.codes)
        if end.code not in allowed:
            return _ended(place, "kill", told, [f"exit code {end.code}"], end.out)
    return _ended(place, "kill", told, _after(place, work, whole), "")


def ctrl_c(number: int, seed: int, out: Path, wanted: Wanted) -> dict[str, Any]:
    """Press Ctrl-C: one word, exit code 130, within two seconds; the same command then leads to the same end."""
    draw = random.Random(f"Ctrl-C {seed} {number}")
    if number % 10 == 9:
        return _ctrl_c_from_the_start(draw, out)
    work = draw.choice([work for work in WORKS.values() if not callable(work.words)])
    whole = wanted(work)[2]
    told, first, delay = _moment(draw, number, wanted, work, interrupt)
    place = copy(out, work)
    child = begin(place, work, first)
    pressed = 0.0
    if delay:
        time.sleep(delay)
        pressed = time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGINT)
    end = child.wait()
    wrong = [] if is_pythons(end.code, end.out) else faults(end.code, end.out, (130, 0, *work.codes))
    wrong += _late(child.began + end.seconds - pressed) if delay and end.code == 130 else []
    if end.code == 130 and end.out.count("interrupted") != 1:
        wrong.append("no word, or more than one")
    return _ended(place, "Ctrl-C", told, [*wrong, *_after(place, work, whole)], end.out)


def _ctrl_c_from_the_start(draw: random.Random, out: Path) -> dict[str, Any]:
    """Press it in the first seconds of a process of its own, most of which are imports."""
    work = draw.choice([WORKS["run"], WORKS["learn first"], WORKS["resume"], WORKS["forget"], LONG["several runs"]])
    place = copy(out, work)
    assert not callable(work.words)
    line = [sys.executable, "-m", "edbl", *map(str, work.words)]
    with open(place / "log", "wb") as log:
        process = subprocess.Popen(
            line, stdout=log, stderr=log, cwd=place, env={**os.environ, "TMPDIR": f"{place}/tmp"}
        )
        time.sleep(draw.choice([draw.uniform(0, 0.3), draw.uniform(0, 4)]))
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        code = process.wait(60)
    seconds, text = time.monotonic() - began, (place / "log").read_text(errors="replace")
    wrong = [] if is_pythons(code, text) else faults(code, text, (130, 0))
    wrong += ["no word"] if code == 130 and "interrupted" not in text else []
    wrong += _late(seconds)
    return _ended(place, "Ctrl-C", f"{work.name}, in the first seconds", wrong, text)


def is_pythons(code: int, text: str) -> bool:
    """Tell whether Python itself answered Ctrl-C, before the first line of ours ran: no frame is one of ours."""
    return code in (-signal.SIGINT, 1) and "KeyboardInterrupt" in text and OURS not in text


def _late(seconds: float) -> list[str]:
    """Return that a command took too long to end; where others want the cores too, it has as many times as long."""
    slack = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    return [f"{seconds:.1f} s after Ctrl-C"] if seconds > PROMPT * slack else []


ERRORS = {"full disk": errno.ENOSPC, "read-only": errno.EROFS, "no permission": errno.EACCES, "bad disk": errno.EIO}


class Failing(Watch):
    """Let every file operation fail from one on."""

    def _heard(self, event: str, about: tuple[object, ...]) -> None:
        super()._heard(event, about)
        if not self.busy and self.number >= self.at and event in ("open", "os.rename", "os.mkdir", "fsync"):
            self.at = self.number + 1


def surroundings(number: int, seed: int, out: Path, wanted: Wanted) -> dict[str, Any]:
    """Let disk, memory, streams or terminal be other than usual; what was kept from its end then comes to it."""
    draw = random.Random(f"surroundings {seed} {number}")
    work = _work(draw)
    operations, _, whole = wanted(work)
    place = copy(out, work)
    kind = draw.choice([*ERRORS, "memory", "file size", "streams", "terminal"])
    first: Action
    codes: Sequence[int] = (0, 2)
    if kind in ERRORS:
        code = ERRORS[kind]
        first = Failing(draw.randint(1, operations), fail(OSError, code, os.strerror(code), "x"))
    elif kind == "memory":
        first = partial(_little_memory, draw.choice([8, 32, 64, 128, 256]) << 20)
    elif kind == "file size":
        first = partial(_small_files, draw.choice([0, 100, 5000, 50_000]))
    elif kind == "streams":
        first = partial(_odd_streams, draw.choice(["stdout", "stderr", "both", "full", "broken"]))
    else:
        first = partial(_odd_terminal, draw.choice(["ascii", "latin-1", "utf-16"]), draw.choice([1, 20, 68, 10_000]))
    end = give(place, work, first)
    wrong = faults(end.code, end.out.replace("\r", "").replace("\x00", ""), codes)
    return _ended(place, "surroundings", f"{kind}, {work.name}", [*wrong, *_after(place, work, whole)], end.out)


def _little_memory(more: int) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))


def _small_files(most: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def _odd_streams(which: str) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        if which in (name, "both"):
            os.close(number)
            setattr(sys, name, None)
    if which in ("full", "broken"):
        if which == "full":
            end = os.open("/dev/full", os.O_WRONLY)
        else:
            start, end = os.pipe()
            os.close(start)
        os.dup2(end, 1)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _odd_terminal(encoding: str, columns: int) -> None:
    os.environ.update(TERM="dumb", COLUMNS=str(columns), LC_ALL="C")
    sys.stdout, sys.stderr = (open(k, "w", encoding=encoding, closefd=False) for k in (1, 2))  # noqa: SIM115


READ = (["info", "model"], ["predict", "model", "photos"], ["info", "model", "--json"])


def writers(number: int, seed: int, out: Path, wanted: Wanted) -> dict[str, Any]:
    """Let two to eight commands work on one folder at once: each ends well, and what they leave is whole."""
    draw = random.Random(f"writers {seed} {number}")
    of_run = draw.random() < 0.4
    work = WORKS[draw.choice(["run", "resume"]) if of_run else "learn more"]
    whole = wanted(work)[2]
    place = copy(out, work)
    own = [work.words] if of_run else [bases.MORE, ["forget", "model", "digit 1"], ["rename", "model", "digit 2", "x"]]
    lines = [draw.choice([*own, work.words]) for _ in range(draw.randint(1, 4))]
    lines += [draw.choice([["report", "run", "--out", "a.csv"]] if of_run else READ) for _ in range(draw.randint(1, 4))]
    logs = [place.with_name(f"{place.name}.{k}") for k in range(len(lines))]
    children = [Child(bases.in_place(place, command(*line)), log) for line, log in zip(lines, logs, strict=True)]
    ends = [child.wait() for child in children]
    wrong = [fault for end in ends for fault in faults(end.code, end.out, (0, 2, LATER))]
    out_of = "\n".join(end.out for end in ends)
    for log in logs:
        log.unlink()
    if of_run:
        wrong += _after(place, work, whole)
    else:
        for line in READ[:2]:
            end = Child(bases.in_place(place, command(*line)), place.with_name(f"{place.name}.log")).wait()
            wrong += [f"then {fault}" for fault in faults(end.code, end.out, (0,))]
        wrong += bases.left_behind(place)
    return _ended(place, "writers", "of a run" if of_run else "of a model", wrong, out_of)
