"""CLDR: manifold mixup of new images with the memory, and outputs held to those of the old network. Reconstructed."""

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from edbl.config import Search, magnitude, option
from edbl.data.mixing import Batch, Ratio
from edbl.data.samplers import OldNew
from edbl.data.stream import KINDS, Task
from edbl.losses import cross_entropy, distillation
from edbl.methods.base import Draw, Method


class CLDR(Method):
    """Continual learning with dual regularisations (Han and Guo, ECML-PKDD 2021), as we read its abstract.

    Representations are regularised by mixing each memory image with a new one at a random depth, outputs by the old
    net's on memory images.
    """

    name = "cldr"
    title = "Continual learning with dual regularisations"
    source = "Han and Guo 2021"
    year = 2021
    distils = True
    our_reading = True
    streams = KINDS

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        beta: float = option(
            1.0, "mixing ratio is drawn from Beta(beta, beta)", least=1e-3, search=Search(0.1, 4, log=True)
        )
        mix_weight: float = magnitude(1.0, "weight of the mixed images' cross-entropy", 0.1, 10)
        output_weight: float = magnitude(1.0, "weight of holding outputs on exemplars to the old network's", 0.1, 10)
        temperature: float = option(2.0, "temperature at which outputs are compared", least=1e-3, search=Search(1, 8))

    config: Config

    def draw(self, task: Task) -> Draw:
        """Return exemplars and as many new images, and where to mix them."""
        plain = super().draw(task)
        if not task.old:
            return plain
        sampler = OldNew.halves(len(self.memory), len(task.train), self.optim.batch)
        depths = 1 + len(self.net.backbone.ends)
        return Draw(plain.data, sampler, Depth(depths, Ratio(self.config.beta, "pass")))

    def loss(self, batch: Batch) -> Tensor:
        """Return the cross-entropy of plain and mixed images and the change of outputs on memory images."""
        logits = self.net(batch.x).logits
        loss = cross_entropy(logits, batch.y).mean()
        if batch.drawn is None or self.teacher is None:
            return loss
        memory = len(batch.x) // 2
        change = distillation(logits[:memory], self.teach(batch.x).logits[:memory], self.config.temperature, "t2")
        mixed = cross_entropy(self.mixed(batch.x, batch.drawn), swapped(batch.y, batch.drawn.amin()))
        return loss + self.config.mix_weight * mixed.mean() + self.config.output_weight * change.mean()

    def mixed(self, x: Tensor, ratios: Tensor) -> Tensor:
        """Return the logits where images are mixed by ``ratios[0]`` and the ends of stages by the others."""
        ends = self.net.backbone.ends

        def watch(block: int, out: Tensor) -> Tensor:
            return swapped(out, ratios[1 + ends.index(block)]) if block in ends else out

        return self.net(swapped(x, ratios[0]), watch).logits


@dataclass(frozen=True)
class Depth:
    """Leave a batch as it is and draw the ratio of each of ``depths``: that of one at random, and 1 of the others."""

    depths: int
    ratio: Ratio

    def __call__(self, batch: Batch, generator: Generator) -> Batch:
        """Draw for one batch."""
        device = generator.device
        ratio = self.ratio.draw(1, 1, generator)
        chosen = torch.randint(self.depths, (1,), generator=generator, device=device)
        here = torch.arange(self.depths, device=device) == chosen
        return replace(batch, drawn=torch.where(here, ratio, 1.0))


def swapped(x: Tensor, ratio: Tensor) -> Tensor:
    """Return ``ratio`` of each row and the rest of its partner, the row of the same place in the other half."""
    return torch.lerp(x.roll(len(x) // 2, 0), x, ratio.to(x.dtype))
