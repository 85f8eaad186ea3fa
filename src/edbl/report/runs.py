"""The runs that a report is about: those in folders or below them, and which of them learnt the same stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edbl.errors import EdblError
from edbl.records import RECORD, Record, read
from edbl.report.tables import completed
from edbl.store import found_below
from edbl.text import count


@dataclass(frozen=True)
class Run:
    """A record, the folder it was read from, and its name there; where all of it lies is nobody's business."""

    folder: Path
    record: Record
    name: str


def read_runs(places: Sequence[Path]) -> list[Run]:
    """Return the runs in ``places`` and below them; each once."""
    folders = [place for place in places if not place.is_file()] or places  # a shell's * finds reports among runs
    once: dict[Path, tuple[Path, str]] = {}
    for place in folders:
        for folder in _below(place):
            name = folder.relative_to(place).as_posix() if folder != place else place.resolve().name
            once.setdefault(folder.resolve(), (folder, name))
    found = completed([read(folder) for folder, _ in once.values()])
    return [Run(folder, record, name) for (folder, name), record in zip(once.values(), found, strict=True)]


def _below(place: Path) -> list[Path]:
    if not place.is_dir():
        return [place]
    found = found_below(place, RECORD)
    if not found:
        raise EdblError(f"no run in '{place}' or below it: a run is a folder with {RECORD}, as `edbl run` makes it")
    return found


def by_stream(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs apart by data set, protocol and number of tasks."""
    together: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        together.setdefault((run.record.data, run.record.protocol, run.record.phases), []).append(run)
    return list(together.values())


def stream_name(record: Record) -> str:
    """Return what a run learnt, for people."""
    return f"{data_name(record)} · {record.protocol} · {_tasks(record)}"


def _tasks(record: Record) -> str:
    """Return how many tasks there are; of base-half, with the first apart, as papers count."""
    tasks = count(record.phases, "task")
    return f"1 + {tasks}" if record.protocol == "base-half" else tasks


def data_name(record: Record) -> str:
    """Return the name of a run's data set; an image folder, given by its path, goes by its own name."""
    return Path(record.data).name or record.data
