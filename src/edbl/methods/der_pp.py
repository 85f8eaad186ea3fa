"""DER++: dark experience replay with labels."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Generator, Tensor

from edbl.config import magnitude
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
    class_axes = ((LOGITS, 1),)
    # Mammoth's, on CIFAR-100.
    paper: ClassVar[Mapping[str, object]] = {
        **{"schedule.epochs": 50, "schedule.lr": 0.03, "schedule.milestones": (35, 45), "schedule.decay": 0.2},
        **{"optim.batch": 32, "optim.momentum": 0.0, "optim.weight_decay": 0.0},
    }

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        logit_weight: float = magnitude(
            0.3, "weight alpha of the squared distance to the logits that were kept", 0.03, 3
        )
        label_weight: float = magnitude(0.5, "weight beta of the cross-entropy of exemplars", 0.05, 5)

    config: Config
    logits: Tensor | None = None  # that the images of the phase are known to have had, [n, old]

    def begin(self, task: Task, generator: Generator) -> None:
        """Give exemplars that have none yet the logits of the old net, which is the one that they were kept by."""
        if task.old:
            self.memory.note(LOGITS, self.outputs(self.memory.images).logits)
        super().begin(task, generator)

    def draw(self, task: Task) -> Draw:
        """Return exemplars for their logits, as many for their labels, and as many new images."""
        plain = super().draw(task)
        if isinstance(plain.sampler, OldNew):
            self.logits = plain.data.extra[LOGITS]
            plain = replace(plain, sampler=replace(plain.sampler, old_batch=2 * plain.sampler.old_batch))
        return plain

    def loss(self, batch: Batch) -> Tensor:
        """Return cross-entropy of new images plus both losses of exemplars; each part passes through the net alone."""
        if self.logits is None or batch.index is None:
            return super().loss(batch)
        by_logits, by_labels, new = (self.net(x).logits for x in batch.x.chunk(3))
        _, y_old, y_new = batch.y.chunk(3)
        kept = self.config.logit_weight * logit_distance(by_logits, self.logits[batch.index[: len(by_logits)]])
        return (cross_entropy(new, y_new) + kept + self.config.label_weight * cross_entropy(by_labels, y_old)).mean()


def logit_distance(logits: Tensor, then: Tensor) -> Tensor:
    """Return the mean squared distance to the logits that are known, ``[batch]``; 0 where none is."""
    known = ~then.isnan()
    squares = (logits[:, : then.shape[1]] - then.nan_to_num()).square() * known
    return squares.sum(1) / known.sum(1).clamp(min=1)
