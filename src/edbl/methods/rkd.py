"""Rehearsal with knowledge distillation: the paper's baseline."""

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from edbl.config import option
from edbl.data.mixing import Batch
from edbl.losses import cross_entropy, distillation
from edbl.methods.base import Method


class RKD(Method):
    """Basic RKD (Castro et al., ECCV 2018, without its other strategies): cross-entropy plus distillation.

    The paper prints neither temperature, weight nor scale of the distillation loss (A4).
    """

    name = "rkd"
    title = "Basic rehearsal with knowledge distillation (the paper's Baseline)"
    source = "Castro et al. 2018, as in Table 3"
    year = 2018
    distils = True
    first_options = frozenset()

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        temperature: float = option(2.0, "temperature of distillation (A4)", least=1e-3)
        kd_weight: float = option(1.0, "weight gamma_1 of distillation (A4)", least=0)
        kd_growth: float = option(0.0, "kd_weight grows as old over new classes to this power", least=0, most=1)
        kd_scale: Literal["t2", "none"] = option("t2", "multiply distillation by the squared temperature or not (A4)")

    config: Config

    def distill(self, logits: Tensor, teacher: Tensor) -> Tensor:
        """Eq. 3 of each sample."""
        return distillation(logits, teacher, self.config.temperature, self.config.kd_scale)

    def loss(self, batch: Batch) -> Tensor:
        """Eq. 2 plus gamma_1 times Eq. 3; in the first task Eq. 2 alone."""
        logits = self.net(batch.x).logits
        loss = cross_entropy(logits, batch.y)
        if self.teacher is not None:
            teacher = self.teach(batch.x).logits
            loss = loss + self.kd_weight(teacher.shape[1], logits.shape[1]) * self.distill(logits, teacher)
        return loss.mean()

    def kd_weight(self, old: int, seen: int) -> float:
        """Return gamma_1 for a task."""
        return self.config.kd_weight * math.pow(old / (seen - old), self.config.kd_growth)
