"""The net: a backbone and a head that grows."""

import copy
from typing import NamedTuple, Self, TypeVar

import torch
from torch import Generator, Tensor, nn

from edbl.nets.backbones import Backbone, Watch, initialise
from edbl.nets.heads import Head

H = TypeVar("H", bound=Head)


class Output(NamedTuple):
    """What a net returns for a batch."""

    logits: Tensor  # [batch, seen]
    features: Tensor  # [batch, width], the input of the head


class Net(nn.Module):
    """Everything learnable of a method, so that teacher, optimiser and checkpoint see it."""

    def __init__(self, backbone: Backbone, head: Head) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def __call__(self, x: Tensor, watch: Watch | None = None) -> Output:
        """Return logits and features (typed pass-through to `forward`)."""
        output: Output = super().__call__(x, watch)
        return output

    def forward(self, x: Tensor, watch: Watch | None = None) -> Output:
        """Return logits and features; ``watch`` sees, and may change, what each block of the backbone returns."""
        features = self.backbone(x, watch)
        return Output(self.head(features), features)

    def head_as(self, kind: type[H]) -> H:
        """Return the head, which must be of a kind that the method's own ``build`` gave it."""
        if not isinstance(self.head, kind):
            raise TypeError(f"the net needs a {kind.__name__}; make it by the method's `build`")
        return self.head

    def grow(self, new: int, generator: Generator) -> None:
        """Add ``new`` classes, those of a task."""
        self.head.grow(new, generator)

    def remove(self, number: int) -> None:
        """Forget a class; those after it move up."""
        self.head.remove(number)

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
        self._asked: tuple[Tensor, Output] | None = None
        self._stream: torch.cuda.Stream | None = None

    def ask(self, x: Tensor) -> None:
        """Begin to answer for ``x``, which `answer` will be called with."""
        if x.is_cuda:
            self._stream = self._stream or torch.cuda.Stream(x.device)
            self._stream.wait_stream(torch.cuda.current_stream(x.device))
            with torch.cuda.stream(self._stream):
                self._asked = x, self._output(x)

    def answer(self, x: Tensor) -> Output:
        """Return the output for ``x``; its logits are ``[batch, old]``."""
        if self._asked is None or self._asked[0] is not x:
            return self._output(x)
        output = self._asked[1]
        self.wait()
        return output

    def wait(self) -> None:
        """Wait for an answer that was asked for, whether or not it was used."""
        if self._asked is not None and self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
            self._asked = None

    @torch.no_grad()
    def _output(self, x: Tensor) -> Output:
        return self.net(x)
