"""Logs for Weights & Biases, offline unless ``WANDB_MODE`` says otherwise: ``wandb sync`` sends them later.

They are kept beside the run's folder, in ``wandb/``, for several runs together: `wandb` makes links, which a run's own
folder must not hold. Each process of a run has a folder there, all under the one identity of the run. What a process
that is killed has told, `wandb` may not have written: rows are in a file of the run's own too, until it is done.
"""

import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from edbl.config import Unfit, fit
from edbl.engine.callbacks import End, Facts
from edbl.logs.base import Log, identity, title
from edbl.store import MOST_VALUES, read_file

FOLDER = "wandb"  # beside the folder of a run
LINKED = "logs"  # in that of a process, where `wandb` makes a link all the same
ROWS = "wandb.jsonl"  # in it
PROJECT = "edbl"
MOST_ROWS = 2**31  # more than there are epochs and tasks
BLOCK, HEADER = 32 * 1024, 7  # bytes of a block of a log file, and of what stands before a record or the first block
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4  # parts of a record


class WeightsAndBiases(Log):
    """A run of Weights & Biases: a row for each epoch and each task."""

    name = "wandb"
    package = "wandb"
    run: Any

    def open(self, run: Facts) -> None:
        """Begin a run, or go on with it."""
        mode = os.environ.get("WANDB_MODE", "offline")
        if mode != "online":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # which would go out
        place = Path(os.environ.get("WANDB_DIR") or run.folder.resolve().parent)
        own = identity(run)
        rows = [row for path in sorted(place.glob(f"{FOLDER}/*run-*-{own}*/run-{own}.wandb")) for row in steps(path)]
        self._rows = run.folder / ROWS
        before = list(told(self._rows))  # a file that cannot be read ends it before `wandb` has begun
        self.run = self.module.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=str(place),
            id=own,
            name=os.environ.get("WANDB_NAME") or title(run),
            resume="allow",
            config={key: list(value) if isinstance(value, tuple) else value for key, value in run.recipe.items()},
            settings=self.module.Settings(mode=mode, console="off", silent=True, symlink=False, reinit="create_new"),
        )
        self._last = max([self.run.step - 1, *rows])  # the latter of offline runs, the former of others
        for axis, names in (("epoch", ("loss/*", "rate/*", "within/*")), ("task", ("accuracy/*", "average/*"))):
            self.run.define_metric(axis)
            for name in (*names, *(("classes", "seconds") if axis == "task" else ())):
                self.run.define_metric(name, step_metric=axis)
        for order, row in before:
            self._log(order, row)

    def write(self, points: Mapping[str, float], axis: str, at: int, order: int) -> None:
        """Write a row; its number is its place among all rows of the run."""
        if order > self._last:
            row = {**points, axis: at}
            with open(self._rows, "a", encoding="utf-8") as file:
                file.write(json.dumps([order, row]) + "\n")
            self._log(order, row)

    def _log(self, order: int, row: Mapping[str, float]) -> None:
        if order > self._last:
            self.run.log(dict(row), step=order, commit=True)
            self._last = order

    def close(self, end: End) -> None:
        """End the run, with the averages as its summary; one that stopped or failed is told from one that is done."""
        self.run.summary.update({f"average/{name}": share for name, share in end.average.items()})
        self.run.summary["status"] = end.status
        self.run.finish(exit_code=0 if end.status == "done" else 1)
        if end.status == "done":
            self._rows.unlink(missing_ok=True)


def told(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the rows that a run has told, by number; what is not whole any more ends them."""
    with suppress(FileNotFoundError, ValueError, TypeError, RecursionError, Unfit):
        for line in read_file(path, MOST_VALUES, own=True).decode().splitlines():
            order, row = json.loads(line)
            if not 0 <= fit(int, order, "row") < MOST_ROWS:
                return
            yield fit(int, order, "row"), fit(dict[str, float], row, "row")


def steps(path: Path) -> Iterator[int]:
    """Yield the numbers of the rows that a log file has; what is not whole any more ends it."""
    kinds = import_module("wandb.proto.wandb_internal_pb2")
    for data in records(read_file(path, MOST_VALUES)):
        try:
            record = kinds.Record.FromString(data)
        except Exception:  # of the package that reads it, which `wandb` brings
            return
        if record.WhichOneof("record_type") == "history":
            yield int(record.history.step.num)


def records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log file: blocks of parts, each with checksum, length and kind, as LevelDB has them."""
    at, parts = HEADER, b""
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:  # the rest of a block is empty
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        part = data[at + HEADER : at + HEADER + length]
        if not FULL <= kind <= LAST or len(part) < length:
            return
        parts = part if kind in (FULL, FIRST) else parts + part
        if kind in (FULL, LAST):
            yield parts
        at += HEADER + length
