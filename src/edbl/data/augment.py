"""Augmentation on the device, a batch at a time: crops, flip, Trivial- or AutoAugment, brightness, cutout, levels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from edbl.data import auto, pixels, trivial
from edbl.data.devices import usable
from edbl.data.far import near


class Changes(NamedTuple):
    """What chance does to each of ``n`` images; None for what is not done."""

    shift: Tensor | None  # rows and columns by which the padded image is cropped, [2, n, 1]
    flipped: Tensor | None  # [n, 1]
    bright: Tensor | None  # a factor, [n, 1, 1, 1]
    hole: Tensor | None  # row and column of the centre of what is blanked, [2, n, 1]
    op: Tensor | None  # number of a change of TrivialAugment, or of a pair of AutoAugment, [n]
    strength: Tensor | None  # its strength, -1 to 1, [n]; of a pair what else it takes, 0 to 1, [4, n]
    box: Tensor | None = None  # left, top, width and height, in pixels, of the part that is scaled, [4, n]


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
    view: int = 0  # side of what the network sees of an image: its centre, or in training a part that is scaled
    resize: bool = False
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
        view: int = 0,
    ) -> "Transform":
        """Build from recipe values; ``augment`` names what is done, as in ``crop-flip-auto``."""
        mean_level, std_level = (torch.tensor(v, device=device).view(-1, 1, 1) * 255 for v in (mean, std))
        crop, flip, some, resize = (word in augment for word in ("crop", "flip", "trivial", "resize"))
        policy = auto.policy(device) if "auto" in augment else None
        return Transform(mean_level, std_level, crop, flip, pad, brightness, cutout, some, view, resize, policy)

    def seen(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of what the network sees of images of a shape."""
        return (shape[0], self.view, self.view) if self.view and len(shape) == 3 else tuple(shape)

    def normalise(self, x: Tensor) -> Tensor:
        """Return images as the network takes them, without augmentation."""
        if x.ndim == 2:
            return x
        levels = self._centre(near(x)).to(torch.float32, copy=True)  # changed in place: less memory is touched
        return levels.sub_(self.mean).div_(self.std)

    def _centre(self, x: Tensor) -> Tensor:
        top, left = ((side - self.view) // 2 if self.view else 0 for side in x.shape[2:])
        return x[:, :, top : top + self.view, left : left + self.view] if self.view else x

    def augment(self, x: Tensor, generator: Generator) -> Tensor:
        """Return images changed at random, as the network takes them."""
        if x.ndim == 2:
            return x
        x = near(x)
        changes = self.draw(x, generator)
        plain = not self.view and not self.resize and self.policy is None
        if x.is_cuda and plain and usable("augmentation", x.device):
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
        box = draw_boxes(x.shape, generator) if self.resize else None
        return Changes(shift, flipped, bright, hole, op, strength, box)

    def change(self, x: Tensor, changes: Changes) -> Tensor:
        """Return images with these changes, as the network takes them."""
        if changes.box is not None:
            x = scaled(x, changes.box, changes.flipped, self.view or x.shape[2])
        elif x.device.type == "cpu" and x.dtype == torch.uint8 and self.policy is None:
            return self._changed_on_cpu(x, changes)
        else:
            x = self._moved(x, changes.shift, changes.flipped)
        if changes.op is not None and changes.strength is not None:
            if self.policy is None:
                x = trivial.change(x, changes.op, changes.strength)
            else:
                x = auto.change(x, changes.op, changes.strength, self.policy)
        return self._lit(x, changes)

    def _changed_on_cpu(self, x: Tensor, changes: Changes) -> Tensor:
        """Return the same bits, in the same layout, on which those of convolutions hang."""
        shift, flipped, bright, hole, op, strength, _ = changes
        x = pixels.moved(x, shift, flipped, self.pad)
        if op is not None and strength is not None:
            x = pixels.changed(x, op, strength)
        x = self._lit(x, changes)
        still = shift is None and flipped is None and op is None
        grey = x.shape[1] == 1 and not (bright is None and op is None)
        if still or grey or hole is not None:
            return x
        last = x.permute(0, 2, 3, 1)
        return torch.empty(last.shape).copy_(last).permute(0, 3, 1, 2)

    def _lit(self, x: Tensor, changes: Changes) -> Tensor:
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


AREA, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # of `torchvision.transforms.RandomResizedCrop`


def draw_boxes(shape: Sequence[int], generator: Generator) -> Tensor:
    """Return a part of each image: left, top, width and height in pixels, ``[4, n]``.

    Its share of the area is even, and its width to its height even in logarithms; of ten tries, the first that fits.
    """
    n, _, height, width = shape
    size, form, across, down = torch.rand(4, TRIES, n, generator=generator, device=generator.device)
    area = height * width * (AREA[0] + (AREA[1] - AREA[0]) * size)
    ratio = (math.log(RATIO[0]) + (math.log(RATIO[1]) - math.log(RATIO[0])) * form).exp()
    wide, high = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (wide <= width) & (high <= height)  # [tries, n]
    first = fits.float().argmax(0, keepdim=True)
    wide, high, across, down = (one.gather(0, first).squeeze(0) for one in (wide, high, across, down))
    there = fits.any(0)
    wide, high = wide.where(there, float(width)), high.where(there, float(height))
    return torch.stack([(across * (width - wide + 1)).floor(), (down * (height - high + 1)).floor(), wide, high])


def scaled(x: Tensor, box: Tensor, flipped: Tensor | None, side: int) -> Tensor:
    """Return a part of each image, scaled to a square by linear interpolation, and some of them mirrored."""
    left, top, wide, high = (one.view(-1, 1) for one in box)
    place = (torch.arange(side, device=x.device) + 0.5) / side  # [side]
    columns = (1 - place).where(flipped, place) if flipped is not None else place.expand(len(x), -1)
    # `grid_sample` takes places from -1 to 1, from one edge of the image to the other.
    columns, rows = 2 * (left + wide * columns) / x.shape[3] - 1, 2 * (top + high * place) / x.shape[2] - 1
    grid = torch.stack([columns.unsqueeze(1).expand(-1, side, -1), rows.unsqueeze(2).expand(-1, -1, side)], 3)
    return F.grid_sample(x.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)


class Views:
    """Each image as several vectors, ``[n, views, d]``: features of the image itself, then of changed copies."""

    def normalise(self, x: Tensor) -> Tensor:
        """Return the vectors of the images themselves."""
        return x[:, 0].float()

    def augment(self, x: Tensor, generator: Generator) -> Tensor:
        """Return one vector of each image, at random."""
        images = torch.arange(len(x), device=x.device)
        return x[images, torch.randint(x.shape[1], (len(x),), generator=generator, device=x.device)].float()
