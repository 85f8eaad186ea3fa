"""A linear layer in full precision, the same on a part of a GPU as on all of it."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias`` of ``[batch, width]`` and ``[rows, width]``.

    PyTorch's own products cut their sums up by the number of multiprocessors, and are slow for few rows.
    """
    if x.is_cuda and x.dtype == torch.float32 and x.numel() and weight.numel() and find_spec("triton"):
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
