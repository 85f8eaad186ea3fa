"""Re-MKD: distillation on re-sampled, mixed images."""

from dataclasses import dataclass, replace
from typing import Literal

from edbl.config import option
from edbl.data.mixing import PairMixup, ResamplingMixup, VanillaMixup
from edbl.data.samplers import OldNew, Pairs
from edbl.data.stream import Task
from edbl.methods.base import Draw
from edbl.methods.vanilla_mkd import VanillaMKD


class ReMKD(VanillaMKD):
    """Phase 1 of EDBL: exemplars are over-sampled and mixed with each other and with new images.

    The paper mixes "N/2 times" old with old and old with new and once new with new, with at least 32 old samples in a
    batch. ``reading`` says whether that is done within each batch, over an epoch, or not at all (A2).
    """

    name = "re-mkd"
    title = "RKD with re-sampling mixup (phase 1 of EDBL)"
    source = "EDBL paper, Section 4.1"
    year = 2023
    first_options = frozenset({"beta", "ratio_per", "first_task"})
    first_like = "vanilla-mkd"

    @dataclass(frozen=True)
    class Config(VanillaMKD.Config):
        """Settings."""

        reading: Literal["batch", "epoch", "concat"] = option(
            "batch",
            "mix N/2 times within each batch (B), over the epoch (A), or mix old and new once together (C) (A2)",
        )
        min_old: int = option(32, "least number of old images in a batch", least=1)
        rounds: int = option(
            0, "passes over the old images; 0 means N/2, from images per new and old class (A1)", least=0
        )
        max_rounds: int = option(16, "most passes if rounds is 0; 0 means no limit (A2)", least=0)

    config: Config

    def rounds(self, task: Task) -> int:
        """Return ``N / 2``, N being images per new class over exemplars per old class (A1)."""
        if self.config.rounds:
            return self.config.rounds
        above, below = len(task.train) * task.old, len(self.memory) * task.new  # N = above / below
        rounds = max(1, (above + below) // (2 * below))  # N / 2, halves rounded up
        return min(rounds, self.config.max_rounds or rounds)

    def draw(self, task: Task) -> Draw:
        """Return new images and exemplars, the exemplars over-sampled by mixing them more often."""
        plain = super().draw(task)
        if not task.old:
            return plain
        old, new, batch = len(self.memory), len(task.train), self.optim.batch
        rounds = self.rounds(task)
        if self.config.reading == "epoch":
            return Draw(plain.data, Pairs(old, new, rounds, batch), PairMixup(self.ratio), old_share(old, new, rounds))
        natural = OldNew.natural(old, new, batch, self.config.min_old)
        if self.config.reading == "concat":
            joined = replace(natural, new_batch=min(batch, new), steps=max(1, new // batch))
            share = joined.old_batch / (joined.old_batch + joined.new_batch)
            return Draw(plain.data, joined, VanillaMixup(self.ratio), share)
        share = old_share(natural.old_batch, natural.new_batch, rounds)
        return Draw(plain.data, natural, ResamplingMixup(natural.old_batch, rounds, self.ratio), share)


def old_share(old: int, new: int, rounds: int) -> float:
    """Return the expected share of label mass on old classes: all of old-old pairs, half of old-new pairs."""
    mass = 1.5 * rounds * old
    return mass / (2 * rounds * old + new)
