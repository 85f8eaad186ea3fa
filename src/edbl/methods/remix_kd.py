"""RemixKD: distillation on images mixed by Remix."""

from dataclasses import dataclass

from edbl.methods.options import Distilling
from edbl.methods.remix import Remix
from edbl.methods.rkd import RKD


class RemixKD(Remix, RKD):
    """Basic RKD whose batches are mixed by Remix; teacher and student see the same mixed images."""

    name = "remix-kd"
    title = "RKD with rebalanced mixup (RemixKD)"
    source = "EDBL paper, Appendix D"
    year = 2023
    distils = True

    @dataclass(frozen=True)
    class Config(Remix.Config, Distilling):
        """Settings of both."""

    config: Config
