"""What runs do right now, for a terminal, from their records and pulses: they begin, end and are killed meanwhile."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Column, Table
from rich.text import Text

from edbl import records
from edbl.errors import EdblError
from edbl.pulse import PULSE, Pulse
from edbl.pulse import read as pulse_of
from edbl.records import RECORD, Record
from edbl.report import sparks
from edbl.text import count, duration, shown

State = Literal["running", "waiting", "failed", "stopped", "done", "unreadable"]
STYLES: dict[State, str] = {
    "running": "green",
    "waiting": "cyan",
    "failed": "red",
    "unreadable": "red",
    "stopped": "yellow",
    "done": "bold",
}
DEEPEST = 8  # folders below one that is watched
CURVE = 12  # characters
PLOTTED, TALL = 6, 8  # runs whose curves are drawn, in so many lines
WIDE, MIDDLE, NARROW = 120, 88, 60  # columns of a terminal, from which on there is room for more of them


@dataclass(frozen=True)
class Seen:
    """A run as it is right now."""

    name: str
    state: State
    what: str  # method and data
    record: Record | None = None
    pulse: Pulse | None = None
    message: str = ""

    @property
    def tasks(self) -> str:
        """How many tasks are learnt, of how many."""
        if self.record is not None:
            return f"{self.record.finished}/{len(self.record.task_sizes)}"
        return ""

    @property
    def accuracies(self) -> dict[str, list[float]]:
        """The accuracy after each task, by classifier."""
        return {k: v for k, v in self.record.accuracy.items() if v} if self.record is not None else {}

    @property
    def phase(self) -> str:
        """What it does, or where it stopped, or why it failed."""
        if self.message:
            return self.message.partition("\n")[0]
        p = self.pulse
        if p is None or self.state not in ("running", "stopped") or not p.phase:
            return ""
        within = f" {min(p.epoch, p.epochs)}/{p.epochs}" if p.epochs else ""
        return f"task {min(p.task + 1, p.tasks)}: {p.phase}{within}"

    @property
    def time(self) -> str:
        """How long it takes still, or took."""
        if self.state == "running" and self.pulse is not None and self.pulse.left >= 0:
            return f"{duration(self.pulse.left)} left"
        took = sum(self.record.seconds) if self.record is not None else 0.0
        return duration(took) if took else ""


@dataclass
class Watcher:
    """Looks at runs in folders, again and again; of records, only at those that have changed."""

    places: Sequence[Path]
    _known: dict[Path, tuple[tuple[int, int], Record]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for place in self.places:
            if not place.is_dir():
                raise EdblError(f"no such folder: '{place}'; name folders of runs, or with runs below them")

    def look(self) -> "View":
        """Return all runs as they are."""
        found: dict[Path, Seen] = {}
        for place in self.places:
            for folder in _below(place):
                name = folder.relative_to(place).as_posix() if folder != place else place.resolve().name
                seen = self._seen(folder, shown(name))
                if seen is not None:
                    found.setdefault(folder.resolve(), seen)
        return View(list(found.values()))

    def _seen(self, folder: Path, name: str) -> Seen | None:
        """Return a run as it is; None if there is none, or no longer."""
        pulse = pulse_of(folder)
        beats = pulse is not None and pulse.beats
        try:
            record = self._record(folder)
        except FileNotFoundError:
            if pulse is None or not beats:
                return None  # of one that was to come, or is gone
            return Seen(name, pulse.state, shown(pulse.title), pulse=pulse)
        except (EdblError, OSError) as error:
            return Seen(name, "unreadable", "", message=str(error))
        what = shown(f"{record.method} on {Path(record.data).name}")
        if record.status == "done":
            return Seen(name, "done", what, record)
        if beats:
            return Seen(name, "running", what, record, pulse)
        if record.status == "failed":
            return Seen(name, "failed", what, record, message=shown(record.message))
        return Seen(name, "stopped", what, record, pulse)

    def _record(self, folder: Path) -> Record:
        now = os.stat(folder / RECORD)
        stamp = now.st_mtime_ns, now.st_size
        known = self._known.get(folder)
        if known is None or known[0] != stamp:
            self._known[folder] = known = stamp, records.read(folder)
        return known[1]


def _below(place: Path, depth: int = DEEPEST) -> Iterator[Path]:
    """Yield the folders of runs in a folder, by name; those of others may come and go meanwhile."""
    try:
        entries = sorted(os.scandir(place), key=lambda entry: entry.name)
    except OSError:
        return
    if any(entry.name in (RECORD, PULSE) for entry in entries):
        yield place
    elif depth:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from _below(place / entry.name, depth - 1)


@dataclass(frozen=True)
class View:
    """Runs as a table, and their accuracy as curves; how much of it depends on the terminal."""

    runs: Sequence[Seen]
    whole: bool = False  # all runs, however many lines there are

    @property
    def summary(self) -> str:
        """How many runs there are in which state."""
        if not self.runs:
            return "no runs yet"
        states = Counter(run.state for run in self.runs)
        return f"{count(len(self.runs), 'run')}: {', '.join(f'{states[s]} {s}' for s in STYLES if states[s])}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw as much as there is room for."""
        width, height = options.max_width, console.size.height if console.is_terminal and not self.whole else 10**6
        lines = 1 if width >= NARROW else 2  # for each run
        most = max(1, (height - 4) // lines)
        runs = self._first(most)
        yield Text(self.summary, "bold")
        if not runs:
            return
        yield self._table(runs, width, options.ascii_only)
        if len(runs) < len(self.runs):
            yield Text(f"and {len(self.runs) - len(runs)} more", "dim")
        curves = [next(iter(run.accuracies.values())) for run in runs if run.accuracies]
        room = height - 5 - len(runs) * lines
        if max(map(len, curves), default=0) > 1 and len(runs) <= PLOTTED and room >= TALL and width >= NARROW:
            yield self._plot(runs, min(width - 6, 72), options.ascii_only)

    def _first(self, most: int) -> list[Seen]:
        """Return as many runs as there is room for, those first of which there is most to tell."""
        order = list(STYLES)
        ranked = sorted(range(len(self.runs)), key=lambda k: (order.index(self.runs[k].state), k))
        return [self.runs[k] for k in sorted(ranked[:most])]

    def _table(self, runs: Sequence[Seen], width: int, ascii_only: bool) -> Table:
        if width < NARROW:
            table = Table(box=None, pad_edge=False, show_header=False)
            for run in runs:
                told = (run.tasks and f"task {run.tasks}", _percent(run, 1), run.time)
                second = (
                    Text("  ").append(run.state, STYLES[run.state]).append(" ").append(" ".join(filter(None, told)))
                )
                table.add_row(Group(Text(run.name, overflow="ellipsis", no_wrap=True), second))
            return table
        columns = {
            "run": Column("run", overflow="fold"),
            "state": Column("state", no_wrap=True),
            "method and data": Column("method and data", overflow="fold"),
            "tasks": Column("tasks", justify="right", no_wrap=True),
            "accuracy, %": Column("accuracy, %", no_wrap=True),
            "by task": Column("by task", no_wrap=True),
            "now": Column("now", overflow="fold"),
            "loss": Column("loss", no_wrap=True),
            "images/s": Column("images/s", justify="right", no_wrap=True),
            "time": Column("time", justify="right", no_wrap=True),
        }
        left_out = {"method and data", "loss", "images/s"} if width < WIDE else set()
        left_out |= {"by task"} if width < MIDDLE else set()
        table = Table(
            *(column for name, column in columns.items() if name not in left_out),
            box=None,
            pad_edge=False,
            expand=False,
        )
        for run in runs:
            cells = _cells(run, ascii_only)
            table.add_row(*(cell for name, cell in cells.items() if name not in left_out))
        return table

    def _plot(self, runs: Sequence[Seen], width: int, ascii_only: bool) -> Group | Text:
        if ascii_only:
            return Text("")
        drawn = [run for run in runs if run.accuracies]
        curves = [next(iter(run.accuracies.values())) for run in drawn]
        low = max(0.0, min(min(curve) for curve in curves) - 0.05)
        names = Text()
        for number, run in enumerate(drawn):
            names.append("  " * bool(number)).append(run.name, sparks.COLOURS[number % len(sparks.COLOURS)])
        classifier = next(iter(drawn[0].accuracies)).upper()
        title = Text(f"\naccuracy after each task, %, by {classifier}: ").append_text(names)
        return Group(title, sparks.plot(curves, width, TALL - 2, low, 1.0))


def _cells(run: Seen, ascii_only: bool) -> dict[str, Text]:
    """Return what stands in the columns of a run: text, as names may hold anything."""

    def curve(values: Sequence[float], low: float | None = None, high: float | None = None) -> str:
        line = sparks.spark(values, CURVE, low, high)
        return sparks.plain(line) if ascii_only else line

    running = run.pulse if run.state == "running" else None
    first = next(iter(run.accuracies.values()), [])
    return {
        "run": Text(run.name),
        "state": Text(run.state, STYLES[run.state]),
        "method and data": Text(run.what),
        "tasks": Text(run.tasks),
        "accuracy, %": Text(_percent(run)),
        "by task": Text(curve(first, 0.0, 1.0)),
        "now": Text(run.phase),
        "loss": Text(curve(running.losses) if running else ""),
        "images/s": Text(f"{running.speed:,.0f}" if running and running.speed else ""),
        "time": Text(run.time),
    }


def _percent(run: Seen, most: int | None = None) -> str:
    """Return the accuracy after the last task, by classifier."""
    found = list(run.accuracies.items())[:most]
    return "  ".join(f"{name} {100 * values[-1]:.1f}" for name, values in found)
