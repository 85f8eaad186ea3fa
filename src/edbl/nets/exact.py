"""Full precision inside a training step whose passes may have less of it."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def exactly(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function compute in float32 at least: bf16 keeps 8 bits of a cosine.

    One of its positional arguments is a tensor; gradients that it takes are as exact.
    """

    @wraps(function)
    def exact(*args: P.args, **kwargs: P.kwargs) -> R:
        device = next(arg.device for arg in args if isinstance(arg, Tensor))
        with torch.autocast(device.type, enabled=False):
            return function(*(_widened(arg) for arg in args), **kwargs)  # type: ignore[arg-type]

    return exact


def _widened(value: object) -> object:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value
