"""Checkpoints: tensors and values, trusted only if their checksum is right.

``task-2`` is the state after task 2 (net and memory), ``task-3-phase-0`` the net after that phase of task 3, and
``task-3-phase-1-epoch-17`` the net and the optimiser after 17 epochs of the next one; both have what a phase changed in
the method's state. A run goes on from the newest
state whose whole chain is intact.
"""

import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edbl import group, store
from edbl.errors import EdblError
from edbl.methods.base import Phase
from edbl.nets.net import Net

CHECKPOINTS = "checkpoints"  # in the folder of a run


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds: tensors, and values that JSON can hold."""

    tensors: dict[str, Tensor]
    values: Any  # by key, or as a dataclass
    path: Path | None = None  # of its JSON, if it was read

    def unfit(self, why: object) -> EdblError:
        """Return the error for one that is whole and of something else than what goes on from it."""
        return EdblError(f"'{self.path}' does not fit: {why}\nremove it, to go on from the checkpoint before it")

    def parts(self, *prefixes: str) -> list[dict[str, Tensor]]:
        """Return for each prefix the tensors whose name starts with it, without it."""
        return [{k.removeprefix(p): v for k, v in self.tensors.items() if k.startswith(p)} for p in prefixes]


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, name: str, saved: Saved) -> None:
        """Write a checkpoint."""
        self.folder.mkdir(exist_ok=True)
        store.save(self.folder, name, saved.values, saved.tensors)

    def load(self, name: str, kind: type = dict[str, object]) -> Saved | None:
        """Return a checkpoint with values of some ``kind``, or None if it is missing, truncated or altered."""
        found: tuple[Any, dict[str, Tensor]] | None = store.find(self.folder, name, kind)
        return Saved(found[1], found[0], self._path(name)) if found else None

    def newest_task(self, below: int) -> tuple[int, Saved] | None:
        """Return the newest intact state after a task before ``below``."""
        for number in reversed(self._there("task-{}")):
            if number < below and (saved := self.load(f"task-{number}")) is not None:
                return number, saved
        return None

    def newest_of_phase(self, task: int, phase: int) -> Saved | None:
        """Return the newest intact state of a phase: after it, or inside it."""
        name = f"task-{task}-phase-{phase}"
        done = [name] if phase in self._there(f"task-{task}-phase-{{}}") else []
        for one in [*done, *(f"{name}-epoch-{epoch}" for epoch in reversed(self._there(f"{name}-epoch-{{}}")))]:
            if (saved := self.load(one, Reached)) is not None:
                return saved
        return None

    def names(self) -> list[str]:
        """Return the names of all checkpoints, intact or not."""
        return sorted({path.name.partition(".")[0] for path in self.folder.glob("task-*.*")})

    def forget(self, names: Iterable[str]) -> None:
        """Delete checkpoints."""
        for name in names:
            store.remove(self.folder, name)

    def save_task(self, task: int, tensors: dict[str, Tensor]) -> None:
        """Write the state after a task, and delete what nothing would go on from any more."""
        self.save(f"task-{task}", Saved(tensors, {}))
        # Should this state be damaged, the run goes on from the last task's state and this task's finished phases.
        kept = re.compile(rf"task-{task - 1}|task-{task}(-phase-\d+)?")
        self.forget(name for name in self.names() if not kept.fullmatch(name))

    def keep_last(self, tasks: int) -> None:
        """Of a run of so many tasks that is done, keep the state after the last one alone."""
        self.forget(set(self.names()) - {f"task-{tasks - 1}"})

    def epochs(self, task: int, phase: int) -> list[int]:
        """Return the epochs of a phase that have a checkpoint, in order."""
        return self._numbers(f"task-{task}-phase-{phase}-epoch-{{}}")

    def _numbers(self, pattern: str) -> list[int]:
        numbers = re.compile(pattern.format(r"(\d+)"))
        stems = (numbers.fullmatch(path.stem) for path in self.folder.glob("*.json"))
        return sorted(int(match[1]) for match in stems if match)

    def _there(self, pattern: str) -> list[int]:
        """Return the numbers of the checkpoints from which the newest is looked for."""
        return self._numbers(pattern)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"


class Shared(Checkpoints):
    """The checkpoints of several processes: the first one writes them, and says which of them all read."""

    def save(self, name: str, saved: Saved) -> None:
        """Write a checkpoint."""
        if group.leads():
            super().save(name, saved)

    def load(self, name: str, kind: type = dict[str, object]) -> Saved | None:
        """Return a checkpoint, or None if it is not there for the first process."""
        found = super().load(name, kind) if group.leads() else None
        if not group.told(found is not None):
            return None
        if found is None:
            loaded: tuple[Any, dict[str, Tensor]] = store.load(self.folder, name, kind)
            found = Saved(loaded[1], loaded[0], self._path(name))
        return found

    def forget(self, names: Iterable[str]) -> None:
        """Delete checkpoints."""
        if group.leads():
            super().forget(names)

    def _there(self, pattern: str) -> list[int]:
        found: list[int] = group.told(super()._there(pattern))
        return found


def _numbers(rows: list[list[float | None]]) -> list[list[float]]:
    """Return rows of numbers as they were before JSON, which has null for NaN."""
    return [[math.nan if number is None else number for number in row] for row in rows]


def net_tensors(net: Net) -> dict[str, Tensor]:
    """Return what a checkpoint holds of a net."""
    return {f"net.{k}": v for k, v in net.state_dict().items()}


@dataclass(frozen=True)
class Reached:
    """What the JSON of a checkpoint in or after a phase says."""

    epoch: int
    losses: dict[str, list[float]]
    within: list[list[float | None]]
    seconds: float


@dataclass
class State:
    """How far a phase has come: what a checkpoint inside a phase must hold beside the net."""

    epoch: int = 0  # epochs finished
    optimiser: dict[str, Tensor] = field(default_factory=dict)  # what it keeps of each parameter
    losses: dict[str, list[float]] = field(default_factory=dict)  # means of each finished epoch, by name
    within: list[list[float]] = field(default_factory=list)  # epochs, and accuracy over all, old and new classes then
    seconds: float = 0.0  # that they took
    saved: Saved | None = None  # where all that is from; what the optimiser keeps is for it to check


def _state(saved: Saved, net: Net, phase: Phase) -> State:
    """Return how far a phase had come, if that is what a checkpoint says: it may come from anywhere."""
    weights, kept = saved.parts("net.", "optimiser.")
    store.check_tensors(weights, net.state_dict())
    reached: Reached = saved.values
    losses = max(map(len, reached.losses.values()), default=0)
    if losses != reached.epoch or not 0 < reached.epoch <= phase.schedule.epochs:
        raise ValueError(f"{reached.epoch} epochs of {phase.schedule.epochs}, and {losses} losses")
    return State(reached.epoch, kept, reached.losses, _numbers(reached.within), reached.seconds, saved)


def _marks(kept: object) -> dict[str, tuple[int, int]]:
    """Return what changes when a tensor of a state does; what is no such thing is refused when the task ends."""
    held = kept if isinstance(kept, dict) else {}
    dense = {k: v for k, v in held.items() if isinstance(v, Tensor) and v.layout == torch.strided}
    return {name: (id(value), value._version) for name, value in dense.items()}


class Saver:
    """The checkpoints of one phase: the state that it goes on from, and those that it leaves while it trains.

    At most one is written in ``every`` seconds. Without ``checkpoints`` a phase begins anew and leaves none.
    """

    def __init__(
        self,
        net: Net,
        kept: dict[str, Tensor],
        phase: Phase,
        checkpoints: Checkpoints | None,
        task: int,
        number: int,
        every: float,
    ) -> None:
        self.net, self.checkpoints, self.every = net, checkpoints, every
        self.kept, self.marks = kept, _marks(kept)  # a method's state, of which what a step changes is saved
        self.task, self.phase, self.name = task, number, f"task-{task}-phase-{number}"
        self.state = self._resume(phase)
        self.saved_at = time.monotonic()
        self.began = self.saved_at - self.state.seconds

    def _resume(self, phase: Phase) -> State:
        """Take the net over from the newest checkpoint; a phase that is finished has the state after its last epoch."""
        if self.checkpoints is None:
            return State()
        saved = self.checkpoints.newest_of_phase(self.task, self.phase)
        if saved is None:
            return State()
        try:
            state = _state(saved, self.net, phase)
        except ValueError as error:
            raise saved.unfit(error) from error
        weights, kept = saved.parts("net.", "state.")
        self.net.load_state_dict(weights)
        for name, value in kept.items():  # into the tensors that are there: a loss may hold on to them
            there = self.kept.get(name)
            if isinstance(there, Tensor) and there.shape == value.shape and there.dtype == value.dtype:
                there.detach().copy_(value)
            else:
                self.kept[name] = value.to(next(self.net.parameters()).device)
        return state

    def after_epoch(self) -> None:
        """Save the state inside the phase, if it is time to."""
        if self.checkpoints is not None and time.monotonic() - self.saved_at >= self.every:
            self._save(f"{self.name}-epoch-{self.state.epoch}")
            # The one before is kept in case this one is damaged.
            older = self.checkpoints.epochs(self.task, self.phase)[:-2]
            self.checkpoints.forget(f"{self.name}-epoch-{epoch}" for epoch in older)
            self.saved_at = time.monotonic()

    def finish(self) -> None:
        """Save the state after the phase."""
        self._save(self.name)

    def _save(self, name: str) -> None:
        state = self.state
        state.seconds = time.monotonic() - self.began
        if self.checkpoints is not None:
            tensors = net_tensors(self.net) | {f"optimiser.{k}": v for k, v in state.optimiser.items()}
            changed = {k for k, mark in _marks(self.kept).items() if self.marks.get(k) != mark}
            tensors |= {f"state.{k}": self.kept[k].detach().clone() for k in changed}
            within = [[None if math.isnan(number) else number for number in row] for row in state.within]
            self.checkpoints.save(name, Saved(tensors, Reached(state.epoch, state.losses, within, state.seconds)))
