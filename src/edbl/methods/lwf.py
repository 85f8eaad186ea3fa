"""LwF: learning without forgetting, without exemplars."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from edbl.config import Search, magnitude, option
from edbl.data.mixing import Batch
from edbl.losses import cross_entropy, distillation
from edbl.methods.base import Method


class LwF(Method):
    """Cross-entropy among the new classes plus distillation among the old ones, on new images alone.

    The publication knows the task of a test image; in this class-incremental form all logits compete. The memory is
    kept for the nearest-mean classifier and never trained on.
    """

    name = "lwf"
    title = "Learning without forgetting, class-incremental"
    source = "Li & Hoiem 2016"
    year = 2016
    distils = True
    keeps = "none"
    paper: ClassVar[Mapping[str, object]] = {  # PyCIL's
        "schedule.epochs": 250,
        "schedule.milestones": (60, 120, 180, 220),
        "first.task_epochs": 200,
        "first.task_milestones": (60, 120, 160),
        "first.task_weight_decay": 5e-4,
        "data.brightness": 63 / 255,
    }

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        temperature: float = option(2.0, "temperature of distillation", least=1e-3, search=Search(1, 8))
        kd_weight: float = magnitude(3.0, "weight of distillation", 0.3, 30)
        kd_scale: Literal["t2", "none"] = option("none", "t2: distillation times the squared temperature; none: not")

    config: Config

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean of both parts; in the first task all classes are new, and nothing is distilled."""
        logits = self.net(batch.x).logits
        if self.teacher is None:
            return cross_entropy(logits, batch.y).mean()
        teacher = self.teach(batch.x).logits
        kd = distillation(logits, teacher, self.config.temperature, self.config.kd_scale)
        return (new_cross_entropy(logits, batch.y, teacher.shape[1]) + self.config.kd_weight * kd).mean()


def new_cross_entropy(logits: Tensor, y: Tensor, m: int) -> Tensor:
    """Return the cross-entropy under a softmax over the new logits alone, ``[batch]``; ``m`` classes are old."""
    return cross_entropy(logits[:, m:], y[:, m:])
