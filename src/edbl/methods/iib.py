"""IIB: influence-balanced fine-tuning without distillation, without mixing."""

from dataclasses import dataclass

from edbl.config import option
from edbl.methods.iib_kd import IIBKD


class IIB(IIBKD):
    """Basic RKD, then balancing by the incremental influence factor alone."""

    name = "iib"
    title = "RKD, then IIB without distillation"
    source = "EDBL paper, Table 3"
    year = 2023
    first_options = frozenset()
    first_like = "rkd"

    @dataclass(frozen=True)
    class Config(IIBKD.Config):
        """Settings: no distillation in the balancing phase (A19)."""

        balance_kd_weight: float = option(0.0, "weight gamma_2 of distillation in the balancing phase (A4)", least=0)

    config: Config
