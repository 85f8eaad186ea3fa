"""Nets that expand: a backbone for each task (DER-Net), and a boosted net beside the one that stays (FOSTER)."""

import copy
from collections.abc import Callable
from typing import Self

import torch
from torch import Generator, Tensor, nn

from edbl.errors import EdblError
from edbl.nets.backbones import Backbone, Watch
from edbl.nets.net import LinearHead, Net, Output


class ExpandingNet(Net):
    """A net that gets a further backbone with each task; all but the newest are frozen, statistics included."""

    head: LinearHead
    aux: LinearHead | None  # on the newest backbone: all old classes as one, then each new one

    def __init__(self, make: Callable[[Generator], Backbone], generator: Generator) -> None:
        backbone = make(generator)
        super().__init__(backbone, LinearHead(backbone.width))
        self.make = make
        self.old = nn.ModuleList()
        self.register_module("aux", None)

    def forward(self, x: Tensor, watch: Watch | None = None) -> Output:
        """Return logits and the features of all backbones side by side, the newest one's last; that one is watched."""
        features = torch.cat([*(old(x) for old in self.old), self.backbone(x, watch)], 1)
        return Output(self.head(features), features)

    def grow(self, new: int, generator: Generator) -> None:
        """Add ``new`` classes and, unless they are the first, a backbone that starts as a copy of the last one."""
        if self.head.sizes:
            self.backbone.zero_grad()  # or it would keep its last gradients, and their memory
            self.old.append(self.backbone.eval().requires_grad_(False))
            self.backbone = self.make(generator).to(self.head.weight.device)
            self.backbone.load_state_dict(self.old[-1].state_dict())
            self._widen(generator)
            self.aux = LinearHead(self.backbone.width).to(self.head.weight.device)
            self.aux.grow(new + 1, generator)
        self.head.grow(new, generator)

    def _widen(self, generator: Generator) -> None:
        """Let the head take the newest features too; what it made of the others stays."""
        before, width = self.head, self.head.weight.shape[1]
        self.head = LinearHead(width + self.backbone.width).to(before.weight.device)
        for size in before.sizes:
            self.head.grow(size, generator)
        self.head.weight.data[:, :width] = before.weight.data
        self.head.bias.data.copy_(before.bias.data)

    def remove(self, number: int) -> None:
        """Refuse: a class's features would stay."""
        raise EdblError("`der-net` cannot forget a class: the backbone that learnt it would stay")

    def restart(self, generator: Generator) -> None:
        """Forget everything learnt: one backbone is left, and the head has no class."""
        super().restart(generator)
        self.head = LinearHead(self.backbone.width).to(self.head.weight.device)
        self.old = nn.ModuleList()
        self.aux = None

    def train(self, mode: bool = True) -> Self:
        """Set the mode; frozen backbones stay in evaluation mode."""
        super().train(mode)
        self.old.eval()
        return self


class Boosted(ExpandingNet):
    """Two backbones, both copies of a net's at first, of which the second learns; it has a head of its own too."""

    def __init__(self, net: "FosterNet", new: int, generator: Generator) -> None:
        super().__init__(net.make, generator)
        self.backbone.load_state_dict(net.backbone.state_dict())
        self.head = copy.deepcopy(net.head)
        self.grow(new, generator)
        self.aux = LinearHead(net.backbone.width)
        self.aux.grow(self.head.classes, generator)
        self.to(net.head.weight.device)


class FosterNet(Net):
    """The compressed net, which goes on; beside it, from the second task on, the boosted one, of two backbones."""

    head: LinearHead
    boosted: Boosted | None

    def __init__(self, make: Callable[[Generator], Backbone], generator: Generator) -> None:
        backbone = make(generator)
        super().__init__(backbone, LinearHead(backbone.width))
        self.make = make
        self.register_module("boosted", None)

    def grow(self, new: int, generator: Generator) -> None:
        """Add ``new`` classes and, unless they are the first, a boosted net that starts as this one."""
        if self.head.sizes:
            self.boosted = Boosted(self, new, generator)
        self.head.grow(new, generator)

    def remove(self, number: int) -> None:
        """Forget a class, in the boosted net too; with one task left there is none."""
        super().remove(number)
        if self.boosted is not None and self.boosted.aux is not None:
            self.boosted.head.remove(number)
            self.boosted.aux.remove(number)
            self.boosted = self.boosted if self.head.sizes[1:] else None
