"""Small vectors and nets for tests of single methods, and sums over them, number by number."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from edbl.data.images import Images
from edbl.data.mixing import Batch
from edbl.methods.base import Tools
from edbl.nets.backbones import MLP, Maker, initialise
from edbl.nets.net import Output

WIDTH = 6

Vector = list[float]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images_of(counts: list[int], first: int = 0, seed: int = 0) -> Images:
    """Return random vectors, class by class from class ``first``."""
    y = torch.tensor([first + k for k, count in enumerate(counts) for _ in range(count)], dtype=torch.int64)
    return Images(torch.randn(len(y), WIDTH, generator=seeded(seed)), y)


def a_batch(seen: int, n: int = 7) -> Batch:
    y = torch.eye(seen)[torch.randint(seen, (n,), generator=seeded(5))]
    return Batch(torch.randn(n, WIDTH, generator=seeded(6)), y)


def small(generator: torch.Generator) -> MLP:
    backbone = MLP(WIDTH, width=8)
    initialise(backbone, generator)
    return backbone


SMALL = Maker((WIDTH,), lambda generator, width: small(generator))


def state(module: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in module.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Tell whether all tensors are equal, NaN being equal to NaN."""
    equal = (
        torch.equal(v.isnan(), second[k].isnan()) and torch.equal(v[~v.isnan()], second[k][~v.isnan()])
        for k, v in first.items()
    )
    return first.keys() == second.keys() and all(equal)


def tools(features: Callable[[Images], Tensor], normalise: Callable[[Tensor], Tensor] = Tensor.float) -> Tools:
    """Return what the engine lends to a method, with features of a test's own."""
    return Tools(lambda net, images: Output(torch.empty(len(images), 0), features(images)), normalise)


def softmax(z: Vector) -> Vector:
    total = sum(math.exp(v) for v in z)
    return [math.exp(v) / total for v in z]


def literal_ce(z: Vector, y: Vector) -> float:
    return -sum(y[i] * math.log(softmax(z)[i]) for i in range(len(z)))


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def unit(v: Vector) -> Vector:
    length = math.sqrt(dot(v, v))
    return [a / length for a in v]


def cosine(a: Vector, b: Vector) -> float:
    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))
