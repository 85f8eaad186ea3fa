"""The network: a backbone and a head, which starts with no class and grows task by task; the teacher, a frozen one."""

import copy
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from edbl.data.devices import usable
from edbl.nets.backbones import Backbone, Watch, initialise

STAYS = "stays"  # an attribute of a backbone that does not learn at all


def stay(backbone: Backbone) -> None:
    """Let a backbone keep its weights and statistics."""
    setattr(backbone.requires_grad_(False), STAYS, True)


def _uniform(rows: int, columns: int, width: int, generator: Generator) -> Tensor:
    return (torch.rand(rows, columns, generator=generator) * 2 - 1).div(width**0.5)


class Head(nn.Module):
    """What all heads share: one row of ``weight`` per class, or several, and the number of classes of each task."""

    rows = 1  # rows of `weight` for each class

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, width))  # `rows` rows for each class
        self.sizes: list[int] = []  # the classes of each task

    @property
    def classes(self) -> int:
        """Number of classes so far."""
        return sum(self.sizes)

    def grow(self, new: int, generator: Generator) -> None:
        """Add ``new`` classes, initialised as `torch.nn.Linear` does; the others keep their values."""
        self._append(_uniform(new * self.rows, self.weight.shape[1], self.weight.shape[1], generator), new)

    def _append(self, rows: Tensor, new: int) -> None:
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), rows.to(self.weight.device)]))
        self.sizes = [*self.sizes, new]

    def thaw(self) -> None:
        """Let the old classes learn too, until the head grows, if they do not anyway."""

    def clear(self) -> None:
        """Remove all classes."""
        self.weight = nn.Parameter(self.weight.detach()[:0])
        self.sizes = []

    def remove(self, number: int) -> None:
        """Remove a class; the others keep their values and move up."""
        kept = torch.arange(self.classes * self.rows, device=self.weight.device) // self.rows != number
        self._keep(kept)
        ends = torch.tensor(self.sizes).cumsum(0)
        task = int(torch.searchsorted(ends, number, right=True))
        self.sizes = [size - (k == task) for k, size in enumerate(self.sizes) if size > (k == task)]

    def _keep(self, kept: Tensor) -> None:
        """Keep some of the rows."""
        self.weight = nn.Parameter(self.weight.detach()[kept])

    def forward(self, features: Tensor) -> Tensor:
        """Return logits, ``[batch, classes]``."""
        raise NotImplementedError


class LinearHead(Head):
    """A linear layer with bias, in full precision: it is small, and logits decide."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.bias = nn.Parameter(torch.empty(0))

    def grow(self, new: int, generator: Generator) -> None:
        """Add ``new`` classes."""
        width = self.weight.shape[1]
        fresh = _uniform(new, width + 1, width, generator)
        self._append(fresh[:, :-1], new)
        self.bias = nn.Parameter(torch.cat([self.bias.detach(), fresh[:, -1].to(self.bias.device)]))

    def clear(self) -> None:
        """Remove all classes."""
        super().clear()
        self.bias = nn.Parameter(self.bias.detach()[:0])

    def _keep(self, kept: Tensor) -> None:
        super()._keep(kept)
        self.bias = nn.Parameter(self.bias.detach()[kept])

    def forward(self, features: Tensor) -> Tensor:
        """Return logits, ``[batch, classes]``."""
        with torch.autocast(features.device.type, enabled=False):
            return linear(features.to(self.weight.dtype), self.weight, self.bias)


H = TypeVar("H", bound=Head)


class Output(NamedTuple):
    """What a network returns for a batch."""

    logits: Tensor  # `[batch, seen]`
    features: Tensor  # `[batch, width]`, the input of the head: what herding and NME use
    more: Mapping[str, Tensor] = MappingProxyType({})  # what else a network gives, by name, `[batch, ...]`


class Net(nn.Module):
    """Everything learnable of a method, so that teacher, optimiser and checkpoint see it."""

    def __init__(self, backbone: Backbone, head: Head) -> None:
        super().__init__()
        self.backbone = backbone  # images to features; has a `width`
        self.head = head  # a `Head`

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

    def train(self, mode: bool = True) -> Self:
        """Set the mode; a backbone that is to stay as it is stays in evaluation mode, with its statistics."""
        super().train(mode)
        if getattr(self.backbone, STAYS, False):
            self.backbone.eval()
        return self

    def frozen(self) -> Self:
        """Return a copy that does not learn."""
        return copy.deepcopy(self).eval().requires_grad_(False)


class Teacher:
    """A frozen network. On a GPU it can be asked ahead, and then answers beside the student's own pass."""

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
        """Wait for an answer that `ask` began, whether or not it is used."""
        if self._asked is not None and self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
            self._asked = None

    @torch.no_grad()
    def _output(self, x: Tensor) -> Output:
        return self.net(x)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias`` of ``[batch, width]`` and ``[rows, width]``.

    It is the same on a part of a GPU as on all of it. PyTorch's own products cut their sums up by the number of
    multiprocessors, and are slow for few rows.
    """
    if x.is_cuda and x.dtype == torch.float32 and x.numel() and weight.numel() and usable("linear", x.device):
        return _linear(x, weight, bias)
    return F.linear(x, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        from edbl.nets.kernels import product

        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        x, weight = ctx.saved_tensors
        to_x, to_weight, to_bias = ctx.needs_input_grad
        return (
            _linear(g, weight.T, None) if to_x else None,
            _linear(g.T, x.T, None) if to_weight else None,
            g.sum(0) if to_bias else None,
        )


_linear: Callable[..., Tensor] = _Linear.apply
