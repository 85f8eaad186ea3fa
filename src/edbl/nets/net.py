"""The net: a backbone and a head that grows."""

import copy
from typing import NamedTuple, Self

from torch import Generator, Tensor, nn

from edbl.nets.backbones import Backbone, initialise
from edbl.nets.heads import LinearHead


class Output(NamedTuple):
    """What a net returns for a batch."""

    logits: Tensor  # [batch, seen]
    features: Tensor  # [batch, width], the input of the head


class Net(nn.Module):
    """Everything learnable of a method, so that teacher, optimiser and checkpoint see it."""

    def __init__(self, backbone: Backbone, head: LinearHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def __call__(self, x: Tensor) -> Output:
        """Return logits and features (typed pass-through to `forward`)."""
        output: Output = super().__call__(x)
        return output

    def forward(self, x: Tensor) -> Output:
        """Return logits and features."""
        features = self.backbone(x)
        return Output(self.head(features), features)

    def grow(self, new: int, generator: Generator) -> None:
        """Add ``new`` classes to the head."""
        self.head.grow(new, generator)

    def restart(self, generator: Generator) -> None:
        """Forget everything learnt; the head has no class again."""
        initialise(self.backbone, generator)
        self.head.clear()

    def frozen(self) -> Self:
        """Return a copy that does not learn: a teacher."""
        return copy.deepcopy(self).eval().requires_grad_(False)
