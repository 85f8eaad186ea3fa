"""DER++: dark experience replay with labels."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Generator, Tensor

from edbl.config import Search, option
from edbl.data.images import Images
from edbl.data.mixing import Batch
from edbl.data.samplers import OldNew
from edbl.data.stream import Task
from edbl.losses import cross_entropy
from edbl.methods.base import Draw, Method
from edbl.methods.er import ER

LOGITS = "logits"  # of an exemplar, as they were when it was kept; NaN for classes that came later


class DERPP(ER):
    """Replay of a reservoir twice in each batch: to the logits that images had when they were kept, and to labels."""

    name, title, source, year = "der++", "Dark experience replay with labels", "Buzzega et al. 2020", 2020
    # Mammoth's, on CIFAR-100.
    paper: ClassVar[Mapping[str, object]] = {
        **{"schedule.epochs": 50, "schedule.lr": 0.03, "schedule.milestones": (35, 45), "schedule.decay": 0.2},
        **{"optim.batch": 32, "optim.momentum": 0.0, "optim.weight_decay": 0.0},
    }

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        logit_weight: float = option(
            0.3,
            "weight alpha of the squared distance to the logits that were kept",
            least=0,
            search=Search(0.03, 3, log=True),
        )
        label_weight: float = option(
            0.5, "weight beta of the cross-entropy of exemplars", least=0, search=Search(0.05, 5, log=True)
        )

    config: Config
    logits: Tensor | None = None  # that the images of the phase are known to have had, [n, old]

    def begin(self, task: Task, generator: Generator) -> None:
        """Give exemplars that have none yet the logits of the old net, which is the one that they were kept by."""
        if task.old:
            images = self.memory.images
            now = Images(images.x, images.y, {LOGITS: self.outputs(images).logits})
            then = Images.cat([images, now[:0]]).extra[LOGITS]  # as wide as they are now
            logits = torch.where(then.isnan().all(1, keepdim=True), now.extra[LOGITS], then)
            self.memory.replace(replace(images, extra={LOGITS: logits}), task.old)
        super().begin(task, generator)

    def draw(self, task: Task) -> Draw:
        """Return exemplars for their logits, as many for their labels, and as many new images."""
        plain = super().draw(task)
        self.logits = plain.data.extra.get(LOGITS) if task.old else None
        halves = plain.sampler
        twice = replace(halves, old_batch=2 * halves.old_batch) if isinstance(halves, OldNew) else halves
        return replace(plain, sampler=twice)

    def loss(self, batch: Batch) -> Tensor:
        """Return cross-entropy of new images plus both losses of exemplars; each part passes through the net alone."""
        if self.logits is None or batch.index is None:
            return super().loss(batch)
        by_logits, by_labels, new = (self.net(x).logits for x in batch.x.chunk(3))
        _, y_old, y_new = batch.y.chunk(3)
        kept = self.config.logit_weight * logit_distance(by_logits, self.logits[batch.index[: len(by_logits)]])
        return (cross_entropy(new, y_new) + kept + self.config.label_weight * cross_entropy(by_labels, y_old)).mean()

    def forget(self, number: int) -> None:
        """Forget a class, and what the logits of other images say of it."""
        super().forget(number)
        images = self.memory.images
        extra = {k: torch.cat([v[:, :number], v[:, number + 1 :]], 1) for k, v in images.extra.items()}
        self.memory.replace(replace(images, extra=extra), len(self.memory.classes))


def logit_distance(logits: Tensor, then: Tensor) -> Tensor:
    """Return the mean squared distance to the logits that are known, ``[batch]``; 0 where none is."""
    known = ~then.isnan()
    squares = (logits[:, : then.shape[1]] - then.nan_to_num()).square() * known
    return squares.sum(1) / known.sum(1).clamp(min=1)
