"""Remix: mixup whose labels favour the rarer class."""

from dataclasses import dataclass, replace

from edbl.config import Search, option
from edbl.data.mixing import Ratio, RebalancedMixup
from edbl.data.stream import KINDS, Task
from edbl.methods.base import Draw, Method
from edbl.methods.options import Options


class Remix(Method):
    """Cross-entropy on images mixed by Remix (Chou et al. 2020), new images and exemplars in natural proportions.

    Remix was published for imbalanced data sets, not for tasks that follow each other. The EDBL paper employs it as it
    is, so there is no distillation.
    """

    name = "remix"
    title = "Rehearsal with rebalanced mixup (Remix)"
    source = "Chou et al. 2020, as the EDBL paper employs it"
    year = 2020
    our_reading = True
    streams = KINDS

    @dataclass(frozen=True)
    class Config(Options):
        """Settings."""

        beta: float = option(1.0, "mixing ratio lambda ~ Beta(beta, beta)", least=1e-3, search=Search(0.1, 4, log=True))
        kappa: float = option(
            3.0, "a class with kappa times the images of another is common beside it", least=1, search=Search(1, 6)
        )
        tau: float = option(
            0.5,
            "share of a mixed image below which the common class loses its label",
            least=0,
            most=1,
            search=Search(0, 1),
        )

    config: Config

    def draw(self, task: Task) -> Draw:
        """Return new images and exemplars, mixed at random, with labels in favour of the rarer class."""
        plain = super().draw(task)
        c, counts = self.config, plain.data.counts(task.seen).float()
        return replace(plain, mixing=RebalancedMixup(Ratio(c.beta, "pass"), counts, c.kappa, c.tau))
