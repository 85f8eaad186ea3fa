"""Samples of the estimator as a net takes them: vectors in standard deviations, images as bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

FAR = 4.0  # standard deviations; what a value lies further off counts by its logarithm
LARGEST = np.finfo(np.float64).max


@dataclass(frozen=True)
class Vectors:
    """Vectors, each feature in standard deviations from its mean, both of the samples that came first.

    A feature that has not varied yet has scale 0 and counts as 0. It gets its scale from the first samples in which it
    varies, which changes nothing for those that came before. Features of a net (``whole``) keep their proportions: they
    are over a power of 2, so that none of the first is above 1, and no digit changes.
    """

    mean: Array  # [d]
    scale: Array  # [d]

    @classmethod
    def first(cls, x: Array, whole: bool = False) -> Self:
        """Learn mean and scale from the first samples."""
        with np.errstate(over="ignore", invalid="ignore"):
            if whole:
                largest = np.abs(x).max()
                return cls._checked(np.zeros(x.shape[1]), np.full(x.shape[1], 2 ** np.ceil(np.log2(largest or 1.0))))
            varies = x.max(0) > x.min(0)
            return cls._checked(np.where(varies, x.mean(0), x[0]), np.where(varies, x.std(0), 0.0))

    def later(self, x: Array) -> Self:
        """Learn the scale of features that vary for the first time."""
        with np.errstate(over="ignore"):
            away = np.sqrt(np.square(x - self.mean).mean(0))
        return self._checked(self.mean, np.where(self.scale > 0, self.scale, away))

    @classmethod
    def _checked(cls, mean: Array, scale: Array) -> Self:
        if not np.isfinite(mean).all() or not np.isfinite(scale).all():
            raise ValueError("X has values that are too large to compute with; scale them down")
        return cls(mean, scale)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Return what `tensors` gave."""
        return cls(tensors["input.mean"].numpy(), tensors["input.scale"].numpy())

    def tensors(self) -> dict[str, Tensor]:
        """Return what is to be saved with a net."""
        return {"input.mean": torch.from_numpy(self.mean), "input.scale": torch.from_numpy(self.scale)}

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one vector."""
        return self.mean.shape

    def tensor(self, x: Array) -> Tensor:
        """Return vectors as the net takes them."""
        with np.errstate(over="ignore"):
            z = np.clip(x - self.mean, -LARGEST, LARGEST) / np.where(self.scale > 0, self.scale, np.inf)
        far = np.clip(np.abs(z), FAR, LARGEST)  # what is nearer stays as it is
        return torch.from_numpy(np.clip(z, -FAR, FAR) * (1 + np.log(far / FAR))).float()


@dataclass(frozen=True)
class Pictures:
    """Images as bytes, and the mean and standard deviation of each channel in the images that came first."""

    shape: tuple[int, ...]  # channels, height, width
    white: float  # the largest value: 1 or 255; 0 where only uint8 is taken
    mean: tuple[float, ...]  # 0 to 1
    std: tuple[float, ...]

    @classmethod
    def first(cls, x: Array) -> Self:
        """Learn shape, range of values, mean and standard deviation from the first images."""
        planes = _planes(x)
        white = 0.0 if x.dtype == np.uint8 else 1.0 if planes.max() <= 1 else 255.0
        blank = cls(planes.shape[1:], white, (), ())
        channels = blank.tensor(x).transpose(0, 1).flatten(1)
        share = torch.stack([channel.bincount(minlength=256) for channel in channels]) / channels.shape[1]
        levels = torch.arange(256) / 255
        mean = share @ levels
        std = (share * (levels - mean.unsqueeze(1)) ** 2).sum(1).sqrt().clamp(min=1 / 255)
        return replace(blank, mean=tuple(mean.tolist()), std=tuple(std.tolist()))

    def later(self, x: Array) -> Self:
        """Return the same: nothing is learnt from later images."""
        return self

    def tensors(self) -> dict[str, Tensor]:
        """Return nothing: the recipe has mean and standard deviation."""
        return {}

    def tensor(self, x: Array) -> Tensor:
        """Return images as bytes, ``[n, c, h, w]``."""
        planes = _planes(x)
        if planes.shape[1:] != self.shape:
            raise ValueError(
                f"X has images of {_size(planes.shape[1:])}, but EDBLClassifier was fitted with images of "
                f"{_size(self.shape)}"
            )
        if planes.dtype != np.uint8:
            if not self.white:
                raise ValueError(f"the first images were of type uint8, and these are {x.dtype}; convert them to uint8")
            if planes.min() < 0 or planes.max() > self.white:
                raise ValueError(
                    f"X has values from {planes.min():g} to {planes.max():g}; give images as uint8, or with values in "
                    + ("0..1, as the first ones were" if self.white == 1 else "0..1 or 0..255")
                )
            planes = np.rint(planes * (255 / self.white)).astype(np.uint8)
        return torch.from_numpy(np.array(planes, order="C"))


def _planes(x: Array) -> Array:
    """Return images ``[n, h, w]``, ``[n, h, w, c]`` or ``[n, c, h, w]`` as the last of these: channels are fewer."""
    if x.ndim > 4 or 0 in x.shape:
        raise ValueError(
            f"X of shape {x.shape} is neither vectors [n, d] nor images [n, h, w], [n, h, w, c], [n, c, h, w]"
        )
    if x.ndim == 3:
        return x[:, None]
    return x if x.shape[1] < x.shape[3] else np.moveaxis(x, 3, 1)


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} x {shape[1]} x {shape[2]} (channels, height, width)"
