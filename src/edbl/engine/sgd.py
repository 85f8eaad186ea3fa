"""Stochastic gradient descent, by PyTorch's fused update.

`torch.optim.SGD` calls the same function, but the class loads PyTorch's compiler, which takes as long as PyTorch.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from edbl.schedule import Optim


class SGD:
    """Updates parameters by their gradients; those of the backbone ``optim.backbone_lr`` times as fast as others."""

    def __init__(self, params: Sequence[nn.Parameter], backbone: Sequence[nn.Parameter], optim: Optim) -> None:
        self.params = params
        self.optim = optim
        self.momenta: list[Tensor | None] = [None] * len(params)
        slow = set(backbone)
        self.groups: dict[float, list[int]] = {}  # numbers of parameters by the factor of their learning rate
        for number, parameter in enumerate(params):
            self.groups.setdefault(optim.backbone_lr if parameter in slow else 1.0, []).append(number)
        self.rates = {factor: torch.zeros((), device=params[0].device) for factor in self.groups}

    def set_rate(self, rate: float) -> None:
        """Set the learning rate; a step that a CUDA graph has captured follows it."""
        for factor, tensor in self.rates.items():
            tensor.fill_(factor * rate)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.params:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters that have a gradient."""
        for factor, numbers in self.groups.items():
            used = [number for number in numbers if self.params[number].grad is not None]
            momenta = [self.momenta[number] for number in used]
            sgd(
                [self.params[number] for number in used],
                [grad for number in used if (grad := self.params[number].grad) is not None],
                momenta,
                fused=True,
                weight_decay=self.optim.weight_decay,
                momentum=self.optim.momentum,
                lr=self.rates[factor],  # type: ignore[arg-type]  # a tensor, as `torch.optim.SGD` gives it
                dampening=0.0,
                nesterov=self.optim.nesterov and self.optim.momentum > 0,
                maximize=False,
            )
            for number, momentum in zip(used, momenta, strict=True):
                self.momenta[number] = momentum

    def momentum(self) -> dict[int, Tensor]:
        """Return the momentum of each parameter that has one, by its number, for a checkpoint."""
        return {number: momentum for number, momentum in enumerate(self.momenta) if momentum is not None}

    def load(self, momentum: Mapping[int, Tensor]) -> None:
        """Take over what `momentum` gave."""
        for number, value in momentum.items():
            self.momenta[number] = value.to(self.params[number].device)
