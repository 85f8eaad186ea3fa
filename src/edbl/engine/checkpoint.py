"""Checkpoints: tensors and values, trusted only if their checksum is right.

``task-2`` is the state after task 2 (net and memory), ``task-3-phase-0`` the net after that phase of task 3, and
``task-3-phase-1-epoch-17`` the net and the optimiser after 17 epochs of the next one. A run goes on from the newest
state whose whole chain is intact.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from edbl import store

CHECKPOINTS = "checkpoints"  # in the folder of a run


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds: tensors, and values that JSON can hold."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose name starts with ``prefix``, without it."""
        return {k.removeprefix(prefix): v for k, v in self.tensors.items() if k.startswith(prefix)}


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, name: str, saved: Saved) -> None:
        """Write a checkpoint."""
        self.folder.mkdir(exist_ok=True)
        store.save(self.folder, name, saved.values, saved.tensors)

    def load(self, name: str) -> Saved | None:
        """Return a checkpoint, or None if it is missing, truncated or altered."""
        found = store.find(self.folder, name, dict[str, object])
        return Saved(found[1], found[0]) if found else None

    def newest_task(self, below: int) -> tuple[int, Saved] | None:
        """Return the newest intact state after a task before ``below``."""
        return self._newest("task-{}", below)

    def newest_epoch(self, task: int, phase: int) -> Saved | None:
        """Return the newest intact state inside a phase."""
        found = self._newest(f"task-{task}-phase-{phase}-epoch-{{}}", None)
        return found[1] if found else None

    def names(self) -> list[str]:
        """Return the names of all checkpoints, intact or not."""
        return sorted({path.name.partition(".")[0] for path in self.folder.glob("task-*.*")})

    def forget(self, names: Iterable[str]) -> None:
        """Delete checkpoints."""
        for name in names:
            store.remove(self.folder, name)

    def epochs(self, task: int, phase: int) -> list[int]:
        """Return the epochs of a phase that have a checkpoint, in order."""
        return self._numbers(f"task-{task}-phase-{phase}-epoch-{{}}")

    def _numbers(self, pattern: str) -> list[int]:
        numbers = re.compile(pattern.format(r"(\d+)"))
        stems = (numbers.fullmatch(path.stem) for path in self.folder.glob("*.json"))
        return sorted(int(match[1]) for match in stems if match)

    def _newest(self, pattern: str, below: int | None) -> tuple[int, Saved] | None:
        for number in reversed(self._numbers(pattern)):
            if below is None or number < below:
                saved = self.load(pattern.format(number))
                if saved is not None:
                    return number, saved
        return None
