"""What logs of runs have in common: which numbers they have, under which names, and which they have already."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from edbl.engine.callbacks import Callback, End, Epoch, Facts, TaskEnd
from edbl.errors import EdblError
from edbl.logs import quiet


class Log(Callback):
    """A log of one run. One that goes on has the points that it had, and gets those that it lacks."""

    name: str  # of the log, and of the extra that it needs
    package: str

    def __init__(self) -> None:
        try:
            with quiet():
                self.module: Any = import_module(self.package)
        except ImportError as error:
            raise EdblError(f"log {self.name} needs a package: `pip install 'edbl[{self.name}]'`") from error
        self._open = False

    def on_epoch(self, epoch: Epoch) -> None:
        """Log the losses of an epoch, against the epochs of the run."""
        points = {f"loss/{epoch.phase}": epoch.loss, f"rate/{epoch.phase}": epoch.rate}
        points |= {f"loss/{epoch.phase}.{name}": mean for name, mean in epoch.logged.items()}
        points |= {f"within/{name}": share for name, share in epoch.accuracy.items()}
        self._write(epoch.run, points, "epoch", epoch.total, epoch.total + epoch.task)

    def on_task(self, task: TaskEnd) -> None:
        """Log the accuracies after a task, against tasks."""
        points = {f"accuracy/{name}": share for name, share in task.accuracy.items()}
        points |= {f"average/{name}": share for name, share in task.average.items()}
        points |= {"classes": float(task.classes), "seconds": task.seconds}
        self._write(task.run, points, "task", task.task + 1, task.total + task.task + 1)

    def on_end(self, end: End) -> None:
        """Close the log."""
        if self._open:
            self._open = False
            with self._told():
                self.close(end)

    def _write(self, run: Facts, points: Mapping[str, float], axis: str, at: int, order: int) -> None:
        with self._told():
            if not self._open:
                self.open(run)
                self._open = True
            self.write({name: number for name, number in points.items() if number == number}, axis, at, order)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say in one message what a package makes of a log that is damaged, forged or out of reach."""
        try:
            with quiet():
                yield
        except (EdblError, MemoryError):
            raise
        except Exception as error:
            what = f"'{error.filename}': {error.strerror}" if isinstance(error, OSError) and error.filename else error
            why = f"{type(error).__name__}: {what}".partition("\n")[0]
            raise EdblError(f"log {self.name} cannot be written ({why})\nmove it elsewhere, or leave it out") from error

    def open(self, run: Facts) -> None:
        """Begin the log of a run, or go on with it."""
        raise NotImplementedError

    def write(self, points: Mapping[str, float], axis: str, at: int, order: int) -> None:
        """Write points that the log does not have yet, at an epoch or task; no others have the same ``order``."""
        raise NotImplementedError

    def close(self, end: End) -> None:
        """End the log."""
        raise NotImplementedError


def identity(run: Facts) -> str:
    """Return what tells a run from all others, also when it goes on."""
    told = f"{title(run)} {run.started} {run.method} {run.data} {sorted(run.recipe.items())}"
    return hashlib.sha256(told.encode(errors="backslashreplace")).hexdigest()[:16]


def title(run: Facts) -> str:
    """Return the name of a run for people."""
    return run.folder.resolve().name
