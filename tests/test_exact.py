"""Full precision inside a step of less."""

import torch
from torch import Tensor

from edbl.nets.exact import exactly


def product(left: Tensor, right: Tensor) -> Tensor:
    return left @ right


def test_what_must_be_exact_is_not_rounded() -> None:
    left, right = torch.randn(2, 5, 5, generator=torch.Generator().manual_seed(0))
    plain = product(left, right)
    with torch.autocast("cpu", torch.bfloat16):
        assert product(left, right).dtype == torch.bfloat16
        assert torch.equal(exactly(product)(left, right), plain)
        assert exactly(product)(left.bfloat16(), right).dtype == torch.float32
    assert exactly(product)(left.double(), right.double()).dtype == torch.float64


def test_gradients_in_it_are_exact() -> None:
    @exactly
    def gradient(x: Tensor, weight: Tensor) -> Tensor:
        return torch.autograd.grad((x @ weight).square().sum(), weight)[0]

    x, weight = torch.randn(2, 5, 5, generator=torch.Generator().manual_seed(0))
    weight.requires_grad_()
    plain = gradient(x, weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(gradient(x, weight), plain)
