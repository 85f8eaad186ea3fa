"""Heads: features in, one score per seen class out. A head starts with no class and grows."""

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F


class LinearHead(nn.Module):
    """A linear layer with bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, width))
        self.bias = nn.Parameter(torch.empty(0))

    @property
    def classes(self) -> int:
        """Number of classes so far."""
        return self.weight.shape[0]

    def grow(self, new: int, generator: Generator) -> None:
        """Add ``new`` classes, initialised as `torch.nn.Linear` does; the others keep their values."""
        width = self.weight.shape[1]
        fresh = (torch.rand(new, width + 1, generator=generator) * 2 - 1) / width**0.5
        fresh = fresh.to(self.weight.device)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), fresh[:, :-1]]))
        self.bias = nn.Parameter(torch.cat([self.bias.detach(), fresh[:, -1]]))

    def clear(self) -> None:
        """Remove all classes."""
        self.weight = nn.Parameter(self.weight.detach()[:0])
        self.bias = nn.Parameter(self.bias.detach()[:0])

    def forward(self, features: Tensor) -> Tensor:
        """Return logits, ``[batch, classes]``."""
        return F.linear(features, self.weight, self.bias)
