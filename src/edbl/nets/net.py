"""The net: a backbone and a head that grows."""

import copy
from typing import NamedTuple, Self

import torch
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
        """Return a copy that does not learn."""
        return copy.deepcopy(self).eval().requires_grad_(False)


class Teacher:
    """A frozen net. On a GPU it can be asked ahead, and then answers beside the student's own pass."""

    def __init__(self, net: Net) -> None:
        self.net = net.frozen()
        self._asked: tuple[Tensor, Tensor] | None = None
        self._stream: torch.cuda.Stream | None = None

    def ask(self, x: Tensor) -> None:
        """Begin to answer for ``x``, which `logits` will be called with."""
        if x.is_cuda:
            self._stream = self._stream or torch.cuda.Stream(x.device)
            self._stream.wait_stream(torch.cuda.current_stream(x.device))
            with torch.cuda.stream(self._stream):
                self._asked = x, self._answer(x)

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits for ``x``, ``[batch, old]``."""
        if self._asked is None or self._asked[0] is not x or self._stream is None:
            return self._answer(x)
        torch.cuda.current_stream(x.device).wait_stream(self._stream)
        answer, self._asked = self._asked[1], None
        return answer

    @torch.no_grad()
    def _answer(self, x: Tensor) -> Tensor:
        return self.net(x).logits
