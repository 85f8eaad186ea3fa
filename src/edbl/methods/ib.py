"""IB: influence-balanced fine-tuning as in long-tailed classification."""

from dataclasses import dataclass

from edbl.config import option
from edbl.methods.balancing import Balancing


class IB(Balancing):
    """Basic RKD, then balancing by the influence of cross-entropy alone (Eq. 6 and 7; Park et al., ICCV 2021)."""

    name = "ib"
    title = "RKD, then the influence-balanced loss (IB)"
    source = "Park et al. 2021, as in Section 3"
    year = 2021
    first_options = frozenset()
    first_like = "rkd"

    @dataclass(frozen=True)
    class Config(Balancing.Config):
        """Settings: as released, the factor is not detached (A10); no distillation in the balancing phase."""

        balance_kd_weight: float = option(0.0, "weight gamma_2 of distillation in the balancing phase (A4)", least=0)

    config: Config
