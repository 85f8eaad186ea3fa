"""EDBL: the paper's method."""

from dataclasses import dataclass

from edbl.config import option
from edbl.methods.iib_kd import IIBKD
from edbl.methods.re_mkd import ReMKD


class EDBL(IIBKD, ReMKD):
    """Effective Decision Boundary Learning (Li, Wan, Yu): Re-MKD, then IIB-KD on the same mixed images (Algorithm 1).

    Exemplars are chosen with the final net, after both phases.
    """

    name = "edbl"
    title = "Effective decision boundary learning: Re-MKD, then IIB-KD"
    source = "EDBL paper, Section 4.3"
    year = 2023
    first_options = frozenset({"beta", "ratio_per", "first_task"})
    first_like = "vanilla-mkd"

    @dataclass(frozen=True)
    class Config(IIBKD.Config, ReMKD.Config):
        """Settings of both phases: with mixed labels an attached factor has a pole at the target (A10)."""

        detach: bool = option(True, "treat the influence factor as a constant in the gradient (A10)")

    config: Config
