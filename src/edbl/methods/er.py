"""Experience replay with a reservoir."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Generator

from edbl.data.samplers import OldNew
from edbl.data.stream import KINDS, Task
from edbl.methods.base import Draw, Method


class ER(Method):
    """Cross-entropy on as many images of the memory as new ones; the memory is an even sample of all images seen."""

    name = "er"
    title = "Experience replay with a reservoir"
    source = "Chaudhry et al. 2019"
    year = 2019
    keeps = "reservoir"
    streams = KINDS
    paper: ClassVar[Mapping[str, object]] = {
        "schedule.epochs": 1,
        "schedule.lr": 0.1,
        "schedule.milestones": (),
        "optim.batch": 10,
        "optim.momentum": 0.0,
        "optim.weight_decay": 0.0,
        "data.augment": "none",
    }

    seed = 0  # of the reservoir, drawn anew in each task

    def begin(self, task: Task, generator: Generator) -> None:
        """Let the head grow, and draw what `end` will choose images by."""
        super().begin(task, generator)
        self.seed = int(torch.randint(2**62, (), generator=generator))

    def draw(self, task: Task) -> Draw:
        """Return images of the memory and as many new ones."""
        plain = super().draw(task)
        sampler = OldNew.halves(len(self.memory), len(task.train), self.optim.batch)
        return Draw(plain.data, sampler) if task.old else plain

    def end(self, task: Task) -> None:
        """Refresh the reservoir."""
        self.memory.reservoir(task.train, task.before, Generator().manual_seed(self.seed))
