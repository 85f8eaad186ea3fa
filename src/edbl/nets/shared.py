"""One batch, several processes: each passes its share of the images through the backbone, and all get all features.

Everything after the backbone, such as the head and the loss, is computed on the whole batch by every process, so any
loss is right, whatever it does with the images of a batch together. Gradients of the backbone's weights come back as
sums over the processes, and batch normalisation uses the statistics of the whole batch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from edbl import group
from edbl.errors import EdblError
from edbl.nets.backbones import Backbone, Watch

_passing: Literal["whole", "share", "apart"] = "whole"  # what the backbones of this process are given at present
_count = 0  # images of the whole batch, of which a share is passing


@contextmanager
def _as(what: Literal["share", "apart"], count: int = 0) -> Iterator[None]:
    global _passing, _count
    before = _passing, _count
    _passing, _count = what, count
    try:
        yield
    finally:
        _passing, _count = before


def apart() -> Any:
    """Let backbones of this process take all that they are given, whatever the other processes do."""
    return _as("apart")


class _Gather(Function):
    """Rows of this process to all rows. All processes do the same with them, so each has the whole gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int) -> Tensor:
        ctx.count = count
        return group.gathered(x, count)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][group.own(ctx.count)], None


class _Own(Function):
    """All rows to those of this process; each process has the gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.count = len(x)
        return x[group.own(len(x))].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return group.gathered(gradients[0], ctx.count)


class _Sum(Function):
    """A number of each process to their sum, with which each does something else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return group.summed(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return group.summed(gradients[0])


class _Weights(Function):
    """Weights as they are; what comes back is the sum of what the processes found, in one exchange."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(weight.view_as(weight) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        found = [gradient for gradient in gradients if gradient is not None]
        if not found:
            return gradients
        total = group.summed(torch.cat([gradient.flatten() for gradient in found]))
        parts = iter(total.split([gradient.numel() for gradient in found]))
        return tuple(None if gradient is None else next(parts).view_as(gradient) for gradient in gradients)


_gather: Callable[..., Tensor] = _Gather.apply
_own: Callable[..., Tensor] = _Own.apply
_sum: Callable[..., Tensor] = _Sum.apply
_weights: Callable[..., tuple[Tensor, ...]] = _Weights.apply


def share(backbone: Backbone) -> None:
    """Let a backbone, and copies of it, share batches out among the processes."""
    for name, module in backbone.named_modules():
        if isinstance(module, _BatchNorm):
            if type(module) not in (nn.BatchNorm1d, nn.BatchNorm2d):
                kind = type(module).__name__
                raise EdblError(f"layer '{name}' of the backbone is a {kind}, which several processes cannot share")
            module.__class__ = _Norm1d if isinstance(module, nn.BatchNorm1d) else _Norm2d
    backbone.forward = MethodType(_forward, backbone)  # type: ignore[method-assign]


def _forward(backbone: Backbone, x: Tensor, watch: Watch | None = None) -> Tensor:
    """Return features of all images; a few that are not enough for all processes are passed by each."""
    if _passing != "whole" or len(x) < group.size():
        features: Tensor = type(backbone).forward(backbone, x, watch)  # type: ignore[arg-type]
        return features
    count = len(x)
    weights = {name: p for name, p in backbone.named_parameters() if p.requires_grad and torch.is_grad_enabled()}
    passed = dict(zip(weights, _weights(*weights.values()), strict=True)) if weights else {}

    def watched(number: int, maps: Tensor) -> Tensor:
        assert watch is not None
        return _own(watch(number, _gather(maps, count)))

    with _as("share", count):
        mine = _own(x) if x.requires_grad else x[group.own(count)]
        features = functional_call(backbone, passed, (mine, watched if watch else None))
    return _gather(features, count)


class _Norm(_BatchNorm):
    """Batch normalisation by the statistics of the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        if _passing != "share" or not self.training:
            return super().forward(x)
        axes = [axis for axis in range(x.ndim) if axis != 1]
        shape = [-1 if axis == 1 else 1 for axis in range(x.ndim)]
        wide, values = x.to(torch.promote_types(x.dtype, torch.float32)), _count * x[0, 0].numel()
        mean = _sum(wide.sum(axes)) / values
        centred = wide - mean.view(shape)
        variance = _sum(centred.square().sum(axes)) / values
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.detach(), share)
            self.running_var.lerp_(variance.detach() * (values / (values - 1)), share)
        out = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out.to(x.dtype)


class _Norm1d(_Norm, nn.BatchNorm1d):
    pass


class _Norm2d(_Norm, nn.BatchNorm2d):
    pass
