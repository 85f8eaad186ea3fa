"""Pretrained backbones for tests that are none: the picture itself, blurred, as a vector."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from edbl.nets.engines import ENGINES, INT8, TORCH


class Pool(nn.Module):
    """The middle of each 2 x 2 pixels, from images that were normalised."""

    def forward(self, x: Tensor) -> Tensor:
        grey: Tensor = (x.mean(1, keepdim=True) * 0.25 + 0.5) * 255 / 64
        vectors: Tensor = F.avg_pool2d(grey, 2).flatten(1)
        return vectors


@dataclass(frozen=True)
class StandIn:
    """A pretrained backbone that is none: the picture itself, blurred, as a vector."""

    name: str = "stand-in"
    width: int = 16
    image_size: int = 8
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.25,)
    digest: str = "0" * 64

    def check(self, size: int) -> None:
        """Take any size."""

    def load(self) -> nn.Module:
        return Pool()

    def usual_engine(self, device: torch.device) -> str:
        return "torch"

    def views(
        self,
        x: Tensor,
        copies: int,
        generator: Generator,
        say: Callable[[int], None],
        device: torch.device,
        engine: str,
        ranges: Tensor | None,
        mirror: bool = True,
    ) -> Tensor:
        assert engine == "torch"
        say(len(x))
        found: Tensor = Pool()((x.float() / 255 - 0.5) / 0.25)
        return found.unsqueeze(1).half()


@dataclass(frozen=True)
class Stand(StandIn):
    """The same by each engine, but for what nobody could overlook: others than PyTorch add pixels to features."""

    def usual_engine(self, device: torch.device) -> str:
        return TORCH

    def views(
        self,
        x: Tensor,
        copies: int,
        generator: Generator,
        say: Callable[[int], None],
        device: torch.device,
        engine: str = TORCH,
        ranges: Tensor | None = None,
        mirror: bool = True,
    ) -> Tensor:
        say(len(x))
        assert (ranges is not None) == (engine == INT8)
        found: Tensor = Pool()((x.float() / 255 - 0.5) / 0.25)
        odd = (x.float().mean(1).flatten(1)[:, : self.width] / 50).roll(ENGINES.index(engine), 1)
        return (found + (odd if engine != TORCH else 0)).unsqueeze(1).half()
