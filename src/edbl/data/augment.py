"""Augmentation on the device, a batch at a time: crop, flip, Trivial- or AutoAugment, brightness, cutout, levels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from edbl.data import auto, trivial
from edbl.data.devices import usable


class Changes(NamedTuple):
    """What chance does to each of ``n`` images; None for what is not done."""

    shift: Tensor | None  # rows and columns by which the padded image is cropped, [2, n, 1]
    flipped: Tensor | None  # [n, 1]
    bright: Tensor | None  # a factor, [n, 1, 1, 1]
    hole: Tensor | None  # row and column of the centre of what is blanked, [2, n, 1]
    op: Tensor | None  # number of a change of TrivialAugment, or of a pair of AutoAugment, [n]
    strength: Tensor | None  # its strength, -1 to 1, [n]; of a pair what else it takes, 0 to 1, [4, n]


@dataclass(frozen=True)
class Transform:
    """What happens to images between memory and network. Vectors (``[n, d]``) pass unchanged."""

    mean: Tensor  # [c, 1, 1], in units of 0..255
    std: Tensor  # [c, 1, 1]
    crop: bool
    flip: bool
    pad: int
    brightness: float = 0.0
    cutout: int = 0
    trivial: bool = False
    policy: Tensor | None = None  # of AutoAugment, where it is done

    @staticmethod
    def of(
        augment: str,
        pad: int,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device,
        brightness: float = 0.0,
        cutout: int = 0,
    ) -> "Transform":
        """Build from recipe values; ``augment`` names what is done of ``crop``, ``flip``, ``trivial`` and ``auto``."""
        mean_level, std_level = (torch.tensor(v, device=device).view(-1, 1, 1) * 255 for v in (mean, std))
        crop, flip, some = (word in augment for word in ("crop", "flip", "trivial"))
        policy = auto.policy(device) if "auto" in augment else None
        return Transform(mean_level, std_level, crop, flip, pad, brightness, cutout, some, policy)

    def normalise(self, x: Tensor) -> Tensor:
        """Return images as the network takes them, without augmentation."""
        return x if x.ndim == 2 else (x.float() - self.mean) / self.std

    def augment(self, x: Tensor, generator: Generator) -> Tensor:
        """Return images changed at random, as the network takes them."""
        if x.ndim == 2:
            return x
        changes = self.draw(x, generator)
        if x.is_cuda and self.policy is None and usable("augmentation", x.device):
            from edbl.data.kernels import move

            return move(x, changes, self.mean, self.std, self.pad, self.cutout)
        return self.change(x, changes)

    def draw(self, x: Tensor, generator: Generator) -> Changes:
        """Return what chance does to these images."""
        n, _, height, width = x.shape

        def uniform(*shape: int) -> Tensor:
            return torch.rand(shape, generator=generator, device=x.device)

        flipped = uniform(n, 1) < 0.5 if self.flip else None
        places = 2 * self.pad + 1
        shift = torch.randint(places, (2, n, 1), generator=generator, device=x.device) if self.crop else None
        bright = 1 + self.brightness * (uniform(n, 1, 1, 1) * 2 - 1) if self.brightness else None
        hole = None
        if self.cutout:
            hole = torch.stack([uniform(n, 1) * height, uniform(n, 1) * width]).long()
        op = torch.randint(len(trivial.OPS), (n,), generator=generator, device=x.device) if self.trivial else None
        strength = uniform(n) * 2 - 1 if self.trivial else None
        if self.policy is not None:
            op = torch.randint(len(self.policy), (n,), generator=generator, device=x.device)
            strength = uniform(4, n)
        return Changes(shift, flipped, bright, hole, op, strength)

    def change(self, x: Tensor, changes: Changes) -> Tensor:
        """Return images with these changes, as the network takes them."""
        x = self._moved(x, changes.shift, changes.flipped)
        if changes.op is not None and changes.strength is not None:
            if self.policy is None:
                x = trivial.change(x, changes.op, changes.strength)
            else:
                x = auto.change(x, changes.op, changes.strength, self.policy)
        if changes.bright is not None:
            x = (x * changes.bright).clamp(max=255)
        x = self.normalise(x)
        return x if changes.hole is None else self._blanked(x, changes.hole)

    def _blanked(self, x: Tensor, hole: Tensor) -> Tensor:
        """Return images with a square around the centre ``hole`` at their mean."""
        first = hole - self.cutout // 2  # [2, n, 1]
        rows, columns = (torch.arange(side, device=x.device) - at for side, at in zip(x.shape[2:], first, strict=True))
        down, right = ((place >= 0) & (place < self.cutout) for place in (rows, columns))
        return x.masked_fill((down.unsqueeze(2) & right.unsqueeze(1)).unsqueeze(1), 0.0)

    def _moved(self, x: Tensor, shift: Tensor | None, flipped: Tensor | None) -> Tensor:
        if shift is None and flipped is None:
            return x
        n, _, height, width = x.shape
        rows = torch.arange(height, device=x.device).expand(n, -1)  # [n, height]
        columns = torch.arange(width, device=x.device).expand(n, -1)  # [n, width]
        if flipped is not None:
            columns = torch.where(flipped, width - 1 - columns, columns)
        if shift is not None:
            x = F.pad(x, [self.pad] * 4)
            rows, columns = rows + shift[0], columns + shift[1]
        images = torch.arange(n, device=x.device).view(n, 1, 1)
        # Advanced indices around the channel slice move it last: [n, height, width, c].
        picked = x[images, :, rows.unsqueeze(2), columns.unsqueeze(1)]
        return picked.permute(0, 3, 1, 2)


class Views:
    """Each image as several vectors, ``[n, views, d]``: features of the image itself, then of changed copies."""

    def normalise(self, x: Tensor) -> Tensor:
        """Return the vectors of the images themselves."""
        return x[:, 0].float()

    def augment(self, x: Tensor, generator: Generator) -> Tensor:
        """Return one vector of each image, at random."""
        images = torch.arange(len(x), device=x.device)
        return x[images, torch.randint(x.shape[1], (len(x),), generator=generator, device=x.device)].float()
