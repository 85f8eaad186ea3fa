"""Callbacks: what a run tells, while it goes on, to logs, to searches and to code of one's own.

They are called between steps, with numbers that are on the host anyway, so they neither hold up a device nor change a
bit. An epoch that a kill took back is trained again when the run goes on, and told again, with the same numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from edbl.engine.progress import LOSS, Beat, Progress, Several
from edbl.records import Record

T = TypeVar("T")


@dataclass(frozen=True)
class Facts:
    """What does not change while a run goes on."""

    folder: Path
    started: str  # ISO 8601, as in the record
    method: str
    data: str
    seed: int
    tasks: int  # how many there are
    recipe: Mapping[str, object] = field(repr=False)  # every value by dotted key


@dataclass(frozen=True)
class Epoch:
    """An epoch that was trained."""

    run: Facts
    task: int  # from 0
    phase: str
    epoch: int  # of the phase, from 1
    epochs: int  # of the phase
    total: int  # epochs of the run up to this one, from 1
    loss: float  # mean over its steps
    logged: Mapping[str, float]  # the means of what the loss logs, by name
    rate: float  # learning rate, as the epoch begins
    accuracy: Mapping[str, float]  # over all, old and new classes, where `evaluation.every` asks for it; else empty


@dataclass(frozen=True)
class TaskEnd:
    """A task that was learnt and measured."""

    run: Facts
    task: int  # from 0
    total: int  # epochs of the run so far
    classes: int  # seen so far
    accuracy: Mapping[str, float]  # over all of them, by classifier
    average: Mapping[str, float]  # of the accuracies after each task so far, by classifier
    seconds: float  # that the task took


@dataclass(frozen=True)
class End:
    """The end of a run, or of what one process did of it."""

    run: Facts
    status: Literal["done", "failed", "stopped"]
    message: str  # why it failed
    average: Mapping[str, float]  # as of the last task, by classifier; empty before the first


class Callback:
    """What is told how a run goes; derive from it what needs to be told."""

    def on_epoch(self, epoch: Epoch) -> None:
        """Take note of an epoch."""

    def on_task(self, task: TaskEnd) -> None:
        """Take note of a task."""

    def on_end(self, end: End) -> None:
        """Take note of the end of the run in this process."""


class Stop(Exception):
    """Raised by a callback: the run stops after the present task, and can go on."""


class Teller(Progress):
    """Tells callbacks what the engine tells."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = callbacks
        self.stopped = False  # by a callback
        self._total = self._epochs = 0  # epochs of earlier phases, and of the present one
        self._task, self._phase = 0, ""
        self._facts: Facts

    def begin(self, facts: Facts, record: Record) -> None:
        """Begin, or go on after the tasks that a record has."""
        self._facts = facts
        parts = zip(record.losses, record.timings, strict=False)  # older records have no losses
        self._total = sum(len(losses[k]) for losses, seconds in parts for k in losses.keys() & seconds.keys())

    def phase(self, task: int, name: str, epochs: int, done: int) -> None:
        """Announce a phase."""
        self._total += self._epochs
        self._task, self._phase, self._epochs = task, name, epochs

    def learnt(self, task: int) -> None:
        """Announce that a task is learnt."""
        self._total += self._epochs
        self._epochs = 0

    def trained(self, epoch: int, means: Mapping[str, float], rate: float, within: Sequence[float]) -> None:
        """Announce the end of an epoch."""
        accuracy = dict(zip(("all", "old", "new"), within, strict=False))
        logged = {name: mean for name, mean in means.items() if name != LOSS}
        place = self._facts, self._task, self._phase, epoch, self._epochs, self._total + epoch
        told = Epoch(*place, means[LOSS], logged, rate, accuracy)
        for one in self.callbacks:
            self._tell(one.on_epoch, told)

    def task_end(self, record: Record, classes: int) -> None:
        """Tell of a task that a record has."""
        accuracy = {readout: found[-1] for readout, found in record.accuracy.items()}
        average = record.average_incremental_accuracy
        place = self._facts, len(record.seconds) - 1, self._total, classes
        told = TaskEnd(*place, accuracy, average, record.seconds[-1])
        for one in self.callbacks:
            self._tell(one.on_task, told)

    def end(self, record: Record) -> None:
        """Tell of the end."""
        status = record.status if record.status != "running" else "stopped"
        average = record.average_incremental_accuracy if record.finished else {}
        told = End(self._facts, status, record.message, average)
        for one in self.callbacks:
            self._tell(one.on_end, told)

    def _tell(self, call: Callable[[T], None], told: T) -> None:
        try:
            call(told)
        except Stop:
            self.stopped = True


class Listeners(Several):
    """All that listen to a run: who shows it, its callbacks, and its pulse."""

    def __init__(self, progress: Progress | None, callbacks: Sequence[Callback]) -> None:
        self.teller, self.beat = Teller(callbacks), Beat()
        super().__init__(progress or Progress(), self.beat, *([self.teller] if callbacks else []))

    @contextmanager
    def listening(self, facts: Facts, record: Record) -> Iterator[None]:
        """Listen to a run; at its end, however it ends, tell of that."""
        self.teller.begin(facts, record)
        with self.beat.beating(facts.folder):
            try:
                yield
            finally:
                self.teller.end(record)
