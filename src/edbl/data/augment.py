"""Augmentation on the device, a batch at a time: random crop, flip, brightness, normalisation."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Generator, Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Transform:
    """What happens to images between memory and network. Vectors (``[n, d]``) pass unchanged."""

    mean: Tensor  # [c, 1, 1], in units of 0..255
    std: Tensor  # [c, 1, 1]
    crop: bool
    flip: bool
    pad: int
    brightness: float = 0.0

    @staticmethod
    def of(
        augment: str,
        pad: int,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device,
        brightness: float = 0.0,
    ) -> "Transform":
        """Build from recipe values; ``augment`` is ``crop-flip``, ``crop``, ``flip`` or ``none``."""
        mean_level, std_level = (torch.tensor(v, device=device).view(-1, 1, 1) * 255 for v in (mean, std))
        return Transform(mean_level, std_level, "crop" in augment, "flip" in augment, pad, brightness)

    def normalise(self, x: Tensor) -> Tensor:
        """Return images as the network takes them, without augmentation."""
        return x if x.ndim == 2 else (x.float() - self.mean) / self.std

    def augment(self, x: Tensor, generator: Generator) -> Tensor:
        """Return images at random places, mirrored, brighter or darker, as the network takes them."""
        if x.ndim == 2:
            return x
        n, device = len(x), x.device
        flipped = torch.rand(n, 1, generator=generator, device=device) < 0.5 if self.flip else None
        shift = torch.randint(2 * self.pad + 1, (2, n, 1), generator=generator, device=device) if self.crop else None
        if x.is_cuda and not self.brightness and find_spec("triton"):
            from edbl.data.kernels import move

            return move(x, shift, flipped, self.mean, self.std, self.pad)
        x = self._moved(x, shift, flipped)
        if self.brightness:
            factor = torch.rand(n, 1, 1, 1, generator=generator, device=device) * 2 - 1
            x = (x * (1 + self.brightness * factor)).clamp(0, 255)
        return self.normalise(x)

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
