"""All numbers of runs in long form, a row for each: as CSV, and as a data frame of pandas."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edbl import metrics
from edbl.errors import EdblError
from edbl.records import Record
from edbl.report.runs import Run, data_name, read_runs
from edbl.report.tables import groups
from edbl.text import shown

COLUMNS = (
    "run", "experiment", "method", "data", "protocol", "phases", "memory", "order", "seed", "status", "readout",
    "metric", "task", "seen", "value",
)  # fmt: skip
FORMULAS = ("=", "+", "-", "@")  # with which a cell begins that a spreadsheet computes


def rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return each accuracy after a task and each summary metric of each run; what does not exist is None.

    Experiments are those of the tables, so that a mean over one is the table's.
    """
    names = {id(run.record): run.name for run in runs}
    found = []
    for group in groups([run.record for run in runs]):
        for record in group.records:
            about = {
                "run": names[id(record)],
                "experiment": group.label,
                "method": record.method,
                "data": data_name(record),
                **{key: getattr(record, key) for key in ("protocol", "phases", "memory", "order", "seed", "status")},
            }
            found += [about | number for readout in group.readouts for number in _numbers(record, readout, group.seen)]
            found += [about | number for number in _kept(record, group.seen)]
    return found


def _numbers(record: Record, readout: str, seen: Sequence[int]) -> Iterator[dict[str, Any]]:
    matrices = record.confusions[readout]
    after = zip(seen, metrics.accuracies(matrices), strict=False)
    tasks = [("accuracy", number + 1, classes, value) for number, (classes, value) in enumerate(after)]
    whole = [(name, None, None, value) for name, value in metrics.summary(matrices, record.task_sizes).items()]
    for metric, task, classes, value in [*tasks, *whole]:
        there = None if math.isnan(value) else value
        yield {"readout": readout, "metric": metric, "task": task, "seen": classes, "value": there}


def _kept(record: Record, seen: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield what was kept after each task, which is of no classifier: exemplars, and all bytes together."""
    for number, (classes, kept) in enumerate(zip(seen, record.kept, strict=False)):
        for metric, value in (("kept_exemplars", kept.get("exemplars", 0)), ("kept_bytes", record.kept_bytes(number))):
            yield {"readout": "", "metric": metric, "task": number + 1, "seen": classes, "value": value}


def as_csv(runs: Sequence[Run]) -> str:
    """Return the rows as CSV; a name that a spreadsheet would compute gets an apostrophe in front."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(COLUMNS)
    lines.writerows([_cell(row[column]) for column in COLUMNS] for row in rows(runs))
    return out.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    name = shown(value)
    return f"'{name}" if name.startswith(FORMULAS) else name


def frame(folder: Path | str) -> Any:
    """Return all numbers of the runs below a folder, or of the run in it, as a ``pandas.DataFrame`` in long form."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise EdblError("a data frame needs pandas: run `pip install 'edbl[pandas]'`") from error
    table = pandas.DataFrame(rows(read_runs([Path(folder)])), columns=list(COLUMNS))
    return table.astype({"task": "Int64", "seen": "Int64", "value": "float64"})  # whole numbers, and none
