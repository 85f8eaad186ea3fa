"""Samplers: which images make up each batch of an epoch.

A sampler is called once per epoch and returns index batches ``[steps, batch]`` on the generator's device. Every batch
of a phase has the same size, so images that do not fill a batch wait for the next epoch's shuffle. Old images
(exemplars) come first in a phase's data: index ``i`` is old if ``i < old``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Generator, Tensor

Sampler = Callable[[Generator], Tensor]


def cycle(count: int, need: int, generator: Generator) -> Tensor:
    """Return ``need`` of the numbers below ``count``: whole shuffles one after the other, so all come up evenly."""
    rounds = -(-need // count)
    keys = torch.rand(rounds, count, generator=generator, device=generator.device)
    return keys.argsort(1).flatten()[:need]


@dataclass(frozen=True)
class Uniform:
    """Shuffle everything and cut it into batches."""

    count: int
    batch: int

    def __call__(self, generator: Generator) -> Tensor:
        """Draw one epoch."""
        batch = max(2, min(self.batch, self.count))  # a lone image comes twice: batch normalisation needs two
        steps = max(1, self.count // batch)
        return cycle(self.count, steps * batch, generator).view(steps, batch)


@dataclass(frozen=True)
class Parts:
    """Batches of ``sizes[i]`` images of part i; the parts follow each other in the data and have ``counts`` images."""

    counts: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: int

    def __call__(self, generator: Generator) -> Tensor:
        """Draw one epoch."""
        starts = accumulate(self.counts, initial=0)
        return torch.cat(
            [
                start + cycle(count, self.steps * size, generator).view(self.steps, size)
                for start, count, size in zip(starts, self.counts, self.sizes, strict=False)
            ],
            dim=1,
        )


@dataclass(frozen=True)
class OldNew:
    """Batches of ``old_batch`` old images, then ``new_batch`` new ones."""

    old: int
    new: int
    old_batch: int
    new_batch: int
    steps: int

    def __call__(self, generator: Generator) -> Tensor:
        """Draw one epoch."""
        return Parts((self.old, self.new), (self.old_batch, self.new_batch), self.steps)(generator)

    @staticmethod
    def natural(old: int, new: int, batch: int, min_old: int) -> "OldNew":
        """Draw ``batch`` images in natural proportions, then fill the old ones up to ``min_old``."""
        natural = OldNew.shared(old, new, batch, old / (old + new))
        return replace(natural, old_batch=max(natural.old_batch, min_old))

    @staticmethod
    def shared(old: int, new: int, batch: int, share: float) -> "OldNew":
        """Draw ``batch`` images, or all if they are fewer, of which ``share`` are old, and one at least of both."""
        batch = min(batch, old + new)
        old_batch = min(max(round(batch * share), 1), batch - 1)
        return OldNew(old, new, old_batch, batch - old_batch, steps=(old + new) // batch)

    @staticmethod
    def halves(old: int, new: int, batch: int) -> "OldNew":
        """Draw ``batch`` new images and as many old ones; an epoch is a pass over the new ones."""
        size = max(2, min(batch, new))
        return OldNew(old, new, size, size, steps=max(1, new // size))


@dataclass(frozen=True)
class Pairs:
    """Batches of anchors, then their partners, for mixing anchor ``i`` with partner ``i``.

    One epoch holds ``rounds`` old-old and ``rounds`` old-new pairs for each old image, and one new-new pair for each
    new image.
    """

    old: int
    new: int
    rounds: int
    batch: int

    def __call__(self, generator: Generator) -> Tensor:
        """Draw one epoch."""
        many = self.rounds * self.old
        olds = torch.arange(self.old, device=generator.device).repeat(2 * self.rounds)
        news = self.old + torch.arange(self.new, device=generator.device)
        anchors = torch.cat([olds, news])
        partners = torch.cat(
            [
                cycle(self.old, many, generator),
                self.old + cycle(self.new, many, generator),
                self.old + cycle(self.new, self.new, generator),
            ]
        )
        chosen = Uniform(len(anchors), self.batch)(generator)
        return torch.cat([anchors[chosen], partners[chosen]], dim=1)
