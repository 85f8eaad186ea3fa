"""Vanilla-MKD: distillation on plainly mixed images."""

from dataclasses import dataclass, replace
from typing import Literal

from edbl.config import option
from edbl.data.mixing import Mixing, Ratio, VanillaMixup, unmixed
from edbl.data.samplers import OldNew
from edbl.data.stream import Task
from edbl.methods.base import Draw
from edbl.methods.rkd import RKD


class VanillaMKD(RKD):
    """Basic RKD whose batches are mixed by ordinary mixup, old and new in natural proportions."""

    name = "vanilla-mkd"
    title = "RKD with vanilla mixup"
    source = "EDBL paper, Table 3"
    year = 2023
    first_options = frozenset({"beta", "ratio_per", "first_task"})

    @dataclass(frozen=True)
    class Config(RKD.Config):
        """Settings."""

        beta: float = option(1.0, "mixing ratio lambda ~ Beta(beta, beta)", least=1e-3)
        ratio_per: Literal["pass", "sample"] = option("pass", "one lambda for each pass over a batch, or sample (A3)")
        first_task: Literal["mixup", "plain"] = option("mixup", "the first task with vanilla mixup or without (A12)")
        clean_norm: bool = option(False, "use a learnt net with statistics of unmixed images in batch normalisation")
        norm_share: Literal["drawn", "classes"] = option(
            "drawn", "clean_norm: share of old images as they are drawn, or as many as there are old classes"
        )

    config: Config

    @property
    def ratio(self) -> Ratio:
        """How the mixing ratio is drawn."""
        return Ratio(self.config.beta, self.config.ratio_per)

    def draw(self, task: Task) -> Draw:
        """Return new images and exemplars, mixed at random."""
        mixing: Mixing = VanillaMixup(self.ratio)
        if not task.old and self.config.first_task == "plain":
            mixing = unmixed
        return replace(super().draw(task), mixing=mixing)

    def clean(self, task: Task, draw: Draw) -> Draw | None:
        """Return the images of the task, not mixed, if that is asked for."""
        if not self.config.clean_norm or self.optim.fixed_norm:
            return None
        drawn = replace(draw, mixing=unmixed)
        if self.config.norm_share == "drawn" or not task.old:
            return drawn
        new = len(task.train)
        shared = OldNew.shared(len(draw.data) - new, new, self.optim.batch, task.old / task.seen)
        return replace(drawn, sampler=shared)
