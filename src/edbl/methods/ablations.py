"""The paper's ablations (Table 3), and IB: EDBL with some of its parts. `rkd`, the Baseline, has none of them."""

from dataclasses import dataclass

from edbl.config import option
from edbl.methods.edbl import EDBL
from edbl.methods.options import Balancing, Distilling, IncrementalInfluence, Mixing, NormStatistics, Resampling


class VanillaMKD(EDBL):
    """Basic RKD whose batches are mixed by ordinary mixup, old and new in natural proportions."""

    name = "vanilla-mkd"
    title = "RKD with vanilla mixup"
    source = "EDBL paper, Table 3"

    @dataclass(frozen=True)
    class Config(Distilling, Mixing, NormStatistics):
        """No re-sampling, no balancing phase."""


class ReMKD(EDBL):
    """Phase 1 of EDBL: exemplars are over-sampled and mixed with each other and with new images."""

    name = "re-mkd"
    title = "RKD with re-sampling mixup (phase 1 of EDBL)"
    source = "EDBL paper, Section 4.1"

    @dataclass(frozen=True)
    class Config(Distilling, Mixing, NormStatistics, Resampling):
        """No balancing phase."""


class IB(EDBL):
    """Basic RKD, then balancing by the influence of cross-entropy alone (Eq. 6 and 7; Park et al., ICCV 2021)."""

    name = "ib"
    title = "RKD, then the influence-balanced loss (IB)"
    source = "Park et al. 2021, as in Section 3"
    year = 2021

    @dataclass(frozen=True)
    class Config(Distilling, Balancing):
        """No mixing; the balancing phase without distillation. As released, the factor is not detached (A10)."""

        balance_kd_weight: float = option(0.0, "weight gamma_2 of distillation in the balancing phase (A4)", least=0)


class IIB(EDBL):
    """Basic RKD, then balancing by the incremental influence factor alone."""

    name = "iib"
    title = "RKD, then IIB without distillation"
    source = "EDBL paper, Table 3"

    @dataclass(frozen=True)
    class Config(Distilling, Balancing, IncrementalInfluence):
        """No mixing; the balancing phase without distillation (A19)."""

        balance_kd_weight: float = option(0.0, "weight gamma_2 of distillation in the balancing phase (A4)", least=0)


class IIBKD(EDBL):
    """Basic RKD, then balancing by the incremental influence factor with distillation, on unmixed images."""

    name = "iib-kd"
    title = "RKD, then IIB with distillation"
    source = "EDBL paper, Tables 3 and 5"

    @dataclass(frozen=True)
    class Config(Distilling, Balancing, IncrementalInfluence):
        """No mixing. On unmixed images the factor's gradient does no harm, and released code keeps it (A10)."""
