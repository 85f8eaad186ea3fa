"""Small vectors and nets for tests of single methods."""

import torch

from edbl.data.images import Images
from edbl.nets.backbones import MLP, initialise

WIDTH = 6


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images_of(counts: list[int], first: int = 0, seed: int = 0) -> Images:
    """Return random vectors, class by class from class ``first``."""
    y = torch.tensor([first + k for k, count in enumerate(counts) for _ in range(count)], dtype=torch.int64)
    return Images(torch.randn(len(y), WIDTH, generator=seeded(seed)), y)


def small(generator: torch.Generator) -> MLP:
    backbone = MLP(WIDTH, width=8)
    initialise(backbone, generator)
    return backbone
