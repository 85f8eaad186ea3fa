"""Schedules: how long a phase trains, at which learning rate, by which optimiser."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from edbl.config import Search, magnitude, option

LONGEST = 100_000  # epochs: a run that never ends is of no use


@dataclass(frozen=True)
class Optim:
    """The optimiser: what the phases of a run share unless a method says otherwise."""

    kind: Literal["sgd", "adam", "adamw"] = option("sgd", "stochastic gradient descent, Adam or AdamW")
    batch: int = option(128, "images per batch, before mixing", least=2, most=2**16)
    momentum: float = option(0.9, "sgd: momentum", least=0, most=1)
    nesterov: bool = option(True, "sgd: Nesterov momentum (A16)")
    weight_decay: float = magnitude(2e-4, "L2 penalty on all parameters; adamw: decay of their values", 1e-5, 1e-2)
    clip: float = option(0.0, "largest norm of all gradients together; 0 means no limit", least=0)
    warmup: int = option(5, "epochs of linear warm-up from a third of the learning rate (A16)", least=0)
    by_step: bool = option(False, "the learning rate follows its schedule in every step, not once an epoch")
    backbone_lr: float = option(1.0, "learning rate of the backbone, as a part of that of the head", least=0)
    fixed_norm: bool = option(False, "batch normalisation keeps its statistics, such as those of a pretrained backbone")


@dataclass(frozen=True)
class Schedule:
    """Epochs and learning rate of one phase: the rate falls by ``decay`` at each milestone, or along a cosine.

    Every phase of every method has all of them, so that a phase needs no kind of schedule of its own.
    """

    epochs: int = option(150, "passes over the training images", least=1, most=LONGEST)
    lr: float = option(0.1, "learning rate", least=0, search=Search(0.03, 3, log=True, times=True))
    milestones: tuple[int, ...] = option((60, 100, 130), "epochs at which the learning rate falls", least=1)
    decay: float = option(0.1, "factor by which it falls", least=0, most=1)
    shape: Literal["steps", "cosine"] = option("steps", "fall at the milestones, or along half a cosine to 0")

    def rate(self, epoch: float, warmup: int) -> float:
        """Return the learning rate of an epoch, counted from 0; within an epoch, at a part of one."""
        if epoch < warmup:
            return self.lr * (1 + 2 * epoch / warmup) / 3
        if self.shape == "cosine":
            return self.lr * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        passed = sum(epoch >= m for m in self.milestones)
        return float(self.lr * self.decay**passed)

    def scaled(self, epochs: int) -> "Schedule":
        """Return the same schedule squeezed or stretched to ``epochs``."""
        milestones = tuple(max(1, round(m * epochs / self.epochs)) for m in self.milestones)
        return replace(self, epochs=epochs, milestones=milestones)


@dataclass(frozen=True)
class FirstTask:
    """What the first task does otherwise than the later ones; 0 means as they do."""

    task_epochs: int = option(0, "epochs of the first task; 0 means schedule.epochs", least=0, most=LONGEST)
    task_milestones: tuple[int, ...] = option((), "its milestones; none: those of later tasks, scaled", least=1)
    task_lr: float = magnitude(0.0, "its learning rate; 0 means schedule.lr", 0.01, 0.5)
    task_weight_decay: float = option(0.0, "its L2 penalty; 0 means optim.weight_decay", least=0)

    def schedule(self, later: Schedule) -> Schedule:
        """Return the schedule of the first task, given that of later ones."""
        scaled = later.scaled(self.task_epochs) if self.task_epochs else later
        return replace(scaled, lr=self.task_lr or later.lr, milestones=self.task_milestones or scaled.milestones)

    def optim(self, later: Optim) -> Optim:
        """Return the optimiser of the first task, given that of later ones."""
        return replace(later, weight_decay=self.task_weight_decay) if self.task_weight_decay else later
