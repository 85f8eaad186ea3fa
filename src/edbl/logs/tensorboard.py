"""Logs for TensorBoard: event files in ``tensorboard/`` of the run's folder, written to the disk after each epoch."""

import struct
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from edbl.engine.callbacks import End, Facts
from edbl.logs.base import Log
from edbl.store import MOST_VALUES, read_file

FOLDER = "tensorboard"  # in the folder of a run
EVENTS = "events.out.tfevents.*"
HEAD, FOOT = 12, 4  # bytes before and after an event: its length, and checksums


class TensorBoard(Log):
    """Scalars for TensorBoard."""

    name = "tensorboard"
    package = "tensorboard.summary"
    writer: Any

    def open(self, run: Facts) -> None:
        """Begin an event file; those of earlier processes stay as they are."""
        folder = run.folder / FOLDER
        self._last = last_steps(folder)
        self.writer = self.module.Writer(str(folder))

    def write(self, points: Mapping[str, float], axis: str, at: int, order: int) -> None:
        """Write scalars, each under its name; epochs and tasks are their steps."""
        for name, number in points.items():
            if at > self._last.get(name, 0):
                self.writer.add_scalar(name, number, at)
                self._last[name] = at
        self.writer.flush()

    def close(self, end: End) -> None:
        """Close the event file."""
        self.writer.close()


def last_steps(folder: Path) -> dict[str, int]:
    """Return the last step of each scalar that event files have; what is not whole any more ends a file."""
    kinds = import_module("tensorboard.compat.proto.event_pb2")
    last: dict[str, int] = {}
    for path in sorted(folder.glob(EVENTS)):
        for data in events(read_file(path, MOST_VALUES, own=True)):
            try:
                event = kinds.Event.FromString(data)
            except Exception:  # of the package that reads it, which TensorBoard brings
                break
            for value in event.summary.value:
                last[value.tag] = max(last.get(value.tag, 0), event.step)
    return last


def events(data: bytes) -> Iterator[bytes]:
    """Yield the events of a file: each with its length, which TensorBoard's own reader would believe."""
    at = 0
    while at + HEAD <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + HEAD + length
        if end + FOOT > len(data):
            return
        yield data[at + HEAD : end]
        at = end + FOOT
