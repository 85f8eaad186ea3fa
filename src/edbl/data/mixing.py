"""Mixing: a batch in, a batch of interpolated images and labels out (Eq. 1)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor


@dataclass(frozen=True)
class Batch:
    """Images with soft labels: a hard label is a one-hot row."""

    x: Tensor  # images as the network takes them, `[batch, ...]`
    y: Tensor  # labels as distributions, `[batch, seen]`: a hard label is a row with a single 1
    drawn: Tensor | None = None  # random numbers for the loss, where the mixing draws some
    index: Tensor | None = None  # where each image is in the phase's `draw.data`, `[batch]`; None if mixed


Mixing = Callable[[Batch, Generator], Batch]


def unmixed(batch: Batch, generator: Generator) -> Batch:
    """Return the batch as it is."""
    return batch


@dataclass(frozen=True)
class Ratio:
    """The mixing ratio ``lambda ~ Beta(beta, beta)``: one for each pass over a batch, or one for each sample."""

    beta: float
    per: Literal["pass", "sample"]

    def draw(self, passes: int, size: int, generator: Generator) -> Tensor:
        """Return the ratios of ``passes`` passes of ``size`` samples each, ``[passes * size]``."""
        device, shape = generator.device, (passes, 1) if self.per == "pass" else (passes, size)
        if self.beta == 1:
            ratio = torch.rand(shape, generator=generator, device=device)
        else:
            # Two gamma variates by their logarithms: themselves they would be 0 where beta is small.
            larger = torch._standard_gamma(torch.full((2, *shape), self.beta + 1, device=device), generator=generator)
            uniform = 1 - torch.rand(2, *shape, generator=generator, device=device)  # never 0
            first, second = larger.log() + uniform.log() / self.beta
            ratio = torch.sigmoid(first - second)
        return ratio.expand(passes, size).flatten()


def mix(batch: Batch, anchors: Tensor, partners: Tensor, ratio: Tensor, of_label: Tensor | None = None) -> Batch:
    """Eq. 1 for many pairs at once: ``ratio`` of each anchor and the rest of its partner.

    ``of_label`` is the anchors' share of the labels, where it is not that of the images.
    """
    of_image = ratio.view(-1, *[1] * (batch.x.ndim - 1))
    x = torch.lerp(batch.x[partners], batch.x[anchors], of_image)
    y = torch.lerp(batch.y[partners], batch.y[anchors], (ratio if of_label is None else of_label).unsqueeze(1))
    return Batch(x, y)


@dataclass(frozen=True)
class VanillaMixup:
    """Mix each image with a random one of its batch, whatever their classes."""

    ratio: Ratio

    def __call__(self, batch: Batch, generator: Generator) -> Batch:
        """Mix one batch."""
        size = len(batch.x)
        anchors = torch.arange(size, device=batch.x.device)
        partners = torch.rand(size, generator=generator, device=batch.x.device).argsort()
        return mix(batch, anchors, partners, self.ratio.draw(1, size, generator))


@dataclass(frozen=True)
class ResamplingMixup:
    """``rounds`` passes of old with old, ``rounds`` of old with new, one of new with new.

    The first ``old`` images of a batch are old ones. The mixed batch holds ``2 * rounds * old + new`` images.
    """

    old: int
    rounds: int
    ratio: Ratio

    def __call__(self, batch: Batch, generator: Generator) -> Batch:
        """Mix one batch."""
        device, old, rounds = batch.x.device, self.old, self.rounds
        new = len(batch.x) - old
        olds = torch.arange(old, device=device).repeat(2 * rounds)
        news = old + torch.arange(new, device=device)
        partners = [
            torch.rand(rounds, old, generator=generator, device=device).argsort(1).flatten(),
            old + torch.randint(new, (rounds * old,), generator=generator, device=device),
            old + torch.rand(new, generator=generator, device=device).argsort(),
        ]
        ratio = [self.ratio.draw(2 * rounds, old, generator), self.ratio.draw(1, new, generator)]
        return mix(batch, torch.cat([olds, news]), torch.cat(partners), torch.cat(ratio))


@dataclass(frozen=True)
class PairMixup:
    """Mix the first half of a batch (anchors) with the second (partners), one by one."""

    ratio: Ratio

    def __call__(self, batch: Batch, generator: Generator) -> Batch:
        """Mix one batch."""
        anchors = torch.arange(len(batch.x) // 2, device=batch.x.device)
        return mix(batch, anchors, anchors + len(anchors), self.ratio.draw(1, len(anchors), generator))


@dataclass(frozen=True, eq=False)
class RebalancedMixup:
    """Mix as `VanillaMixup` does, but label in favour of the rarer class (Remix, Chou et al. 2020).

    Where one class of a pair has at least ``kappa`` times as many images as the other, and its share of the mixed image
    is below ``tau``, the label is that of the other class alone.
    """

    ratio: Ratio
    counts: Tensor  # images of each class, [seen]
    kappa: float
    tau: float

    def __call__(self, batch: Batch, generator: Generator) -> Batch:
        """Mix one batch."""
        size = len(batch.x)
        anchors = torch.arange(size, device=batch.x.device)
        partners = torch.rand(size, generator=generator, device=batch.x.device).argsort()
        ratio = self.ratio.draw(1, size, generator)
        counts = self.counts[batch.y.argmax(1)]
        return mix(batch, anchors, partners, ratio, self.of_label(ratio, counts, counts[partners]))

    def of_label(self, ratio: Tensor, anchor: Tensor, partner: Tensor) -> Tensor:
        """Return the anchors' share of the label, given that of the image and the images of either's class."""
        partner_alone = (anchor >= self.kappa * partner) & (ratio < self.tau)
        anchor_alone = (partner >= self.kappa * anchor) & (1 - ratio < self.tau)
        return ratio.masked_fill(anchor_alone, 1.0).masked_fill(partner_alone, 0.0)
