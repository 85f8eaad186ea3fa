"""Rehearsal with knowledge distillation: the paper's baseline."""

from dataclasses import dataclass

from torch import Tensor

from edbl.data.mixing import Batch
from edbl.data.stream import KINDS
from edbl.losses import cross_entropy, distillation, grown
from edbl.methods.base import Method
from edbl.methods.options import Distilling


class RKD(Method):
    """Basic RKD (Castro et al., ECCV 2018, without its other strategies): cross-entropy plus distillation.

    The paper prints neither temperature, weight nor scale of the distillation loss (A4).
    """

    name = "rkd"
    title = "Basic rehearsal with knowledge distillation (the paper's Baseline)"
    source = "Castro et al. 2018, as in Table 3"
    year = 2018
    distils = True
    streams = KINDS

    @dataclass(frozen=True)
    class Config(Distilling):
        """Settings."""

    config: Distilling

    def loss(self, batch: Batch) -> Tensor:
        """Eq. 2 plus gamma_1 times Eq. 3; in the first task Eq. 2 alone."""
        logits, c = self.net(batch.x).logits, self.config
        loss = cross_entropy(logits, batch.y)
        if self.teacher is not None:
            teacher = self.teach(batch.x).logits
            weight = grown(c.kd_weight, teacher.shape[1], logits.shape[1], c.kd_growth)
            loss = loss + weight * distillation(logits, teacher, c.temperature, c.kd_scale)
        return loss.mean()
