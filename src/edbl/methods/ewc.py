"""EWC: elastic weight consolidation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from edbl.config import Search, option
from edbl.data.images import Images
from edbl.data.mixing import Batch
from edbl.data.stream import KINDS, Task
from edbl.methods.base import Method

FISHER, ANCHOR = "fisher.", "anchor."  # of each parameter, in the state


class EWC(Method):
    """Cross-entropy on new images plus a spring on each parameter, as stiff as old tasks needed it."""

    name, title, source, year = "ewc", "Elastic weight consolidation, online", "Kirkpatrick et al. 2017", 2017
    keeps = "none"
    streams = KINDS
    # PyCIL's.
    paper: ClassVar[Mapping[str, object]] = {
        **{"schedule.epochs": 180, "schedule.milestones": (70, 120, 150), "data.brightness": 63 / 255},
        **{"first.task_epochs": 200, "first.task_milestones": (60, 120, 170), "first.task_weight_decay": 5e-4},
    }

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        weight: float = option(1000.0, "weight lambda of the springs", least=0, search=Search(10, 1e5, log=True))
        stiffest: float = option(
            1e-4, "most that one task adds to a spring, before its weight", least=0, search=Search(1e-6, 1e-2, log=True)
        )
        decay: float = option(
            1.0,
            "factor gamma of what earlier tasks needed, at each further one",
            least=0,
            most=1,
            search=Search(0.5, 1),
        )
        fisher_images: int = option(1000, "images of a task by which stiffness is estimated; 0 means all", least=0)

    config: Config

    def loss(self, batch: Batch) -> Tensor:
        """Return cross-entropy over all classes plus the springs; rows of new classes have none."""
        loss = super().loss(batch)
        kept = self.state
        springs = [
            (kept[FISHER + k] * (p[: len(kept[ANCHOR + k])] - kept[ANCHOR + k]).square()).sum()
            for k, p in self.net.named_parameters()
            if ANCHOR + k in kept
        ]
        return loss + self.config.weight / 2 * torch.stack(springs).sum() if springs else loss

    def end(self, task: Task) -> None:
        """Add what this task needs to what earlier ones did, and hold parameters where they are now."""
        order = torch.randperm(len(task.train), generator=self.generator("fisher")).to(task.train.y.device)
        found = self.fisher(task.train[order[: self.config.fisher_images or None]])
        for k, p in self.net.named_parameters():
            before = self.state.get(FISHER + k, torch.zeros_like(p[:0]))
            grown = torch.cat([before, torch.zeros_like(p[len(before) :])])
            stiff = self.config.decay * grown + found[k].clamp(max=self.config.stiffest)
            self.state |= {FISHER + k: stiff, ANCHOR + k: p.detach().clone()}
        super().end(task)

    def fisher(self, images: Images) -> dict[str, Tensor]:
        """Return the mean over images of the squared gradient of their label's log-likelihood, by parameter."""
        self.net.eval()
        named = dict(self.net.named_parameters())
        total = {k: torch.zeros_like(p) for k, p in named.items()}
        for x, y in zip(self.normalise(images.x).split(1), images.y.split(1), strict=True):
            gradients = torch.autograd.grad(F.cross_entropy(self.net(x).logits, y), list(named.values()))
            for k, gradient in zip(named, gradients, strict=True):
                total[k] += gradient.square() / len(images)
        return total

    def forget(self, number: int) -> None:
        """Forget a class, and how stiff its row was."""
        super().forget(number)
        for k in [k for k in self.state if ".head." in k]:
            self.state[k] = torch.cat([self.state[k][:number], self.state[k][number + 1 :]])
