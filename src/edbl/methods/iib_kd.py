"""IIB-KD: fine-tuning balanced by incremental influence, with distillation, without mixing."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from edbl.config import option
from edbl.losses import coupled_influence, incremental_influence
from edbl.methods.balancing import Balancing
from edbl.nets.net import Output


class IIBKD(Balancing):
    """Basic RKD, then balancing by the incremental influence factor with distillation, on unmixed images."""

    name = "iib-kd"
    title = "RKD, then IIB with distillation"
    source = "EDBL paper, Tables 3 and 5"
    year = 2023
    factor_asks = True
    first_options = frozenset()
    first_like = "rkd"

    @dataclass(frozen=True)
    class Config(Balancing.Config):
        """Settings: on unmixed images the factor's gradient does no harm, and released code keeps it (A10)."""

        alpha: float = option(5e-6, "weight of the distillation factor in Eq. 13 and 15 (Table 6, A11)", least=0)
        factor: Literal["decomposed", "coupled"] = option("decomposed", "influence factor of Eq. 13 or of Eq. 11")
        factor_over: Literal["old", "all"] = option(
            "old", "old part of f^t in the factor: softmax over old or all (A8)"
        )

    config: Config

    def influence(self, output: Output, y: Tensor, teacher: Tensor | None) -> Tensor:
        """Return Eq. 13 (15 for mixed labels), or Eq. 11."""
        assert teacher is not None
        logits, features = output
        if self.config.factor == "coupled":
            return coupled_influence(logits, y, teacher, features, self.config.factor_over)
        return incremental_influence(logits, y, teacher, features, self.config.alpha, self.config.factor_over)
