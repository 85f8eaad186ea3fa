"""EWC: elastic weight consolidation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from edbl.config import Search, magnitude, option
from edbl.data.mixing import Batch
from edbl.data.stream import KINDS, Task
from edbl.losses import fisher
from edbl.methods.base import Method

FISHER, ANCHOR = "fisher.", "anchor."  # of each parameter, in the state


class EWC(Method):
    """Cross-entropy on new images plus a spring on each parameter, as stiff as old tasks needed it."""

    name, title, source, year = "ewc", "Elastic weight consolidation, online", "Kirkpatrick et al. 2017", 2017
    keeps, streams = "none", KINDS
    class_axes = (("*.head.*", 0),)
    # PyCIL's.
    paper: ClassVar[Mapping[str, object]] = {
        **{"schedule.epochs": 180, "schedule.milestones": (70, 120, 150), "data.brightness": 63 / 255},
        **{"first.task_epochs": 200, "first.task_milestones": (60, 120, 170), "first.task_weight_decay": 5e-4},
    }

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        weight: float = magnitude(1000.0, "weight lambda of the penalty", 10, 1e5)
        stiffest: float = magnitude(1e-4, "bound s of what a task adds to F, before its weight", 1e-6, 1e-2)
        decay: float = option(1.0, "factor gamma of the F of earlier tasks", least=0, most=1, search=Search(0.5, 1))
        fisher_images: int = option(1000, "images of a task by which F is estimated; 0 means all", least=0)

    config: Config

    def loss(self, batch: Batch) -> Tensor:
        """Return cross-entropy over all classes plus the springs; rows of new classes have none."""
        loss, kept = super().loss(batch), self.state
        held = [(p, kept[ANCHOR + k], kept[FISHER + k]) for k, p in self.net.named_parameters() if ANCHOR + k in kept]
        springs = [(stiff * (p[: len(then)] - then).square()).sum() for p, then, stiff in held]
        return loss + self.config.weight / 2 * torch.stack(springs).sum() if springs else loss

    def state_like(self) -> dict[str, Tensor]:
        """Return a stiffness and an anchor of each parameter."""
        return {part + k: p for part in (FISHER, ANCHOR) for k, p in self.net.named_parameters()}

    def end(self, task: Task) -> None:
        """Add what this task needs to what earlier ones did, and hold parameters where they are now."""
        order = torch.randperm(len(task.train), generator=self.generator("fisher")).to(task.train.y.device)
        images, named = task.train[order[: self.config.fisher_images or None]], dict(self.net.named_parameters())
        self.net.eval()
        found = fisher(lambda x: self.net(x).logits, named, self.normalise(images.x), images.y)
        for k, p in named.items():
            before = self.state.get(FISHER + k, torch.zeros_like(p[:0]))
            grown = torch.cat([before, torch.zeros_like(p[len(before) :])])
            stiff = self.config.decay * grown + found[k].clamp(max=self.config.stiffest)
            self.state |= {FISHER + k: stiff, ANCHOR + k: p.detach().clone()}
        super().end(task)
