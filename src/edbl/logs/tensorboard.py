"""Logs for TensorBoard: event files in ``tensorboard/`` of the run's folder, written to the disk after each epoch."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from edbl.engine.callbacks import End, Facts
from edbl.logs.base import Log

FOLDER = "tensorboard"  # in the folder of a run
EVENTS = "events.out.tfevents.*"


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
    loader = import_module("tensorboard.backend.event_processing.event_file_loader")
    last: dict[str, int] = {}
    for path in sorted(folder.glob(EVENTS)):
        for event in loader.EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                last[value.tag] = max(last.get(value.tag, 0), event.step)
    return last
