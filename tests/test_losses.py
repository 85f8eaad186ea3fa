"""Every loss against the paper's equation, written out one sample and one class at a time."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from torch import Tensor

from edbl.data.mixing import Batch
from edbl.losses import (
    SumTo,
    class_weights,
    cross_entropy,
    distillation,
    incremental_influence,
    influence,
    weighted_cross_entropy,
)
from edbl.memory import Budget, Memory
from edbl.methods import find_method
from edbl.methods.edbl import EDBL
from edbl.methods.options import Balancing, IncrementalInfluence
from edbl.nets.backbones import MLP
from edbl.nets.net import LinearHead, Net, Teacher
from edbl.schedule import Optim, Schedule
from tests.vectors import Vector, softmax, tools

Over = Literal["old", "all"]
OVERS: tuple[Over, ...] = ("old", "all")
SIZES = [(1, 1, 1, 1), (7, 3, 2, 5), (5, 1, 6, 4), (9, 12, 8, 16)]  # batch, m, n, width


@dataclass(frozen=True)
class Case:
    """Random inputs; sample s has the label ``ratio * y_i + (1 - ratio) * y_j`` with ``pairs[s] = (i, j, ratio)``."""

    m: int
    head: Tensor  # [m + n, width], the last layer's weights
    bias: Tensor
    features: Tensor
    teacher: Tensor  # [batch, m]
    pairs: list[tuple[int, int, float]]

    @property
    def seen(self) -> int:
        return len(self.head)

    @property
    def logits(self) -> Tensor:
        return self.features @ self.head.T + self.bias

    @property
    def y(self) -> Tensor:
        y = torch.zeros(len(self.pairs), self.seen, dtype=torch.float64)
        for s, (i, j, ratio) in enumerate(self.pairs):
            y[s, i] += ratio
            y[s, j] += 1 - ratio
        return y

    def rows(self) -> list[tuple[Vector, Vector, Vector, Vector]]:
        """Return logits, label, teacher's logits and features of each sample as plain numbers."""
        return list(
            zip(self.logits.tolist(), self.y.tolist(), self.teacher.tolist(), self.features.tolist(), strict=True)
        )


def make_case(size: tuple[int, int, int, int], mixed: bool) -> Case:
    batch, m, n, width = size
    generator = torch.Generator().manual_seed(sum(size) * 2 + mixed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    pairs = []
    for _ in range(batch):
        i, j = torch.randint(m + n, (2,), generator=generator).tolist()
        pairs.append((i, j, torch.rand(1, generator=generator).item()) if mixed else (i, i, 1.0))
    return Case(m, normal(m + n, width), normal(m + n), normal(batch, width), 2 * normal(batch, m), pairs)


@pytest.fixture(params=[(size, mixed) for size in SIZES for mixed in (False, True)], ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(*request.param)


def hard_cross_entropy(z: Vector, label: int) -> float:
    """Eq. 17, the term of one image."""
    loss = 0.0
    for i in range(len(z)):
        delta = 1 if i == label else 0
        loss += -delta * math.log(softmax(z)[i])
    return loss


def norm(v: Vector) -> float:
    return sum(abs(a) for a in v)


def equal(actual: Tensor, expected: Vector) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype))


def test_cross_entropy_is_eq_2(case: Case) -> None:
    expected = []
    for (z, _, _, _), (i, j, ratio) in zip(case.rows(), case.pairs, strict=True):
        expected.append(ratio * hard_cross_entropy(z, i) + (1 - ratio) * hard_cross_entropy(z, j))
    equal(cross_entropy(case.logits, case.y), expected)


def test_cross_entropy_stands_large_logits() -> None:
    loss = cross_entropy(torch.tensor([[1e4, 0.0], [0.0, 1e4]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    assert loss.tolist() == [0.0, 1e4]


def test_weighted_cross_entropy(case: Case) -> None:
    weights = [0.1 + k * k for k in range(case.seen)]
    inside, outside = [], []
    for (z, _, _, _), (i, j, ratio) in zip(case.rows(), case.pairs, strict=True):
        first, second = hard_cross_entropy(z, i), hard_cross_entropy(z, j)
        inside.append(ratio * weights[i] * first + (1 - ratio) * weights[j] * second)
        outside.append((ratio * weights[i] + (1 - ratio) * weights[j]) * (ratio * first + (1 - ratio) * second))
    tensor = torch.tensor(weights, dtype=torch.float64)
    equal(weighted_cross_entropy(case.logits, case.y, tensor, "inside"), inside)
    equal(weighted_cross_entropy(case.logits, case.y, tensor, "outside"), outside)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.5])
def test_distillation_is_eq_3(case: Case, temperature: float) -> None:
    expected = []
    for z, _, old, _ in case.rows():
        target = softmax([v / temperature for v in old])
        student = softmax([z[i] / temperature for i in range(case.m)])
        expected.append(sum(-target[i] * math.log(student[i]) for i in range(case.m)))
    equal(distillation(case.logits, case.teacher, temperature, "none"), expected)
    equal(distillation(case.logits, case.teacher, temperature, "t2"), [temperature**2 * v for v in expected])


def test_distillation_at_temperature_1_is_eq_18(case: Case) -> None:
    expected = []
    for z, _, old, _ in case.rows():
        expected.append(sum(-softmax(old)[i] * math.log(softmax(z[: case.m])[i]) for i in range(case.m)))
    equal(distillation(case.logits, case.teacher, 1.0, "none"), expected)
    equal(distillation(case.logits, case.teacher, 1.0, "t2"), expected)


def test_distillation_at_temperature_2_has_a_factor_of_4(case: Case) -> None:
    scaled = distillation(case.logits, case.teacher, 2.0, "t2")
    torch.testing.assert_close(scaled, 4 * distillation(case.logits, case.teacher, 2.0, "none"))


@pytest.mark.parametrize("counts", [[1], [5, 5], [20, 20, 500, 500, 500], [1, 2, 3, 4, 100, 7]])
@pytest.mark.parametrize("gamma", [1.0, 300.0])
def test_class_weights_are_those_of_eq_7(counts: list[int], gamma: float) -> None:
    total = 0.0
    for n in counts:
        total += n**-1
    printed = [gamma * n**-1 / total for n in counts]
    equal(class_weights(torch.tensor(counts), gamma, "one"), printed)
    equal(class_weights(torch.tensor(counts), gamma, "classes"), [len(counts) * v for v in printed])


@pytest.mark.parametrize(("sum_to", "total"), [("one", 300.0), ("classes", 1500.0)])
def test_class_weights_sum(sum_to: SumTo, total: float) -> None:
    weights = class_weights(torch.tensor([20, 25, 500, 500, 450]), 300.0, sum_to)
    assert weights.sum().item() == pytest.approx(total)
    assert weights[0] > weights[1] > weights[4] > weights[3]


def influence_of(z: Vector, y: Vector, h: Vector) -> float:
    """Eq. 6."""
    f = softmax(z)
    return norm([f[k] - y[k] for k in range(len(z))]) * norm(h)


def drift_of(z: Vector, old: Vector, over: Over) -> float:
    """The norm that alpha weighs in Eq. 13; where Eq. 10 is 0 there is nothing to add."""
    m = len(old)
    f = softmax(z[:m]) if over == "old" else softmax(z)
    return norm([f[k] - softmax(old)[k] for k in range(m)])


def test_influence_is_eq_6(case: Case) -> None:
    expected = [influence_of(z, y, h) for z, y, _, h in case.rows()]
    equal(influence(case.logits, case.y, case.features), expected)


@pytest.mark.parametrize("alpha", [0.0, 5e-6, 0.3, 1.0])
@pytest.mark.parametrize("over", OVERS)
def test_incremental_influence_is_eq_13_and_15(case: Case, alpha: float, over: Over) -> None:
    expected = []
    for (z, _, old, h), (i, j, ratio) in zip(case.rows(), case.pairs, strict=True):
        f = softmax(z)
        error = [f[k] - ratio * (k == i) - (1 - ratio) * (k == j) for k in range(case.seen)]
        expected.append((norm(error) + alpha * drift_of(z, old, over)) * norm(h))
    equal(incremental_influence(case.logits, case.y, case.teacher, case.features, alpha, over), expected)


def test_without_alpha_incremental_influence_is_influence(case: Case) -> None:
    plain = influence(case.logits, case.y, case.features)
    for over in OVERS:
        assert torch.equal(incremental_influence(case.logits, case.y, case.teacher, case.features, 0.0, over), plain)


def test_incremental_influence_is_no_less_than_eq_11(case: Case) -> None:
    """Eq. 11 is the factor before Eq. 12 and 13 take it apart; the triangle inequality bounds it."""
    decomposed = incremental_influence(case.logits, case.y, case.teacher, case.features, 1.0, "all")
    for (z, y, old, h), factor in zip(case.rows(), decomposed.tolist(), strict=True):
        f, f_old = softmax(z), softmax(old)
        first = norm([2 * f[k] - y[k] - f_old[k] for k in range(case.m)])
        second = norm([f[k] - y[k] for k in range(case.m, case.seen)])
        assert (first + second) * norm(h) <= factor * (1 + 1e-12)


def ce_of(z: Tensor, y: Tensor) -> Tensor:
    """Eq. 2 for one sample."""
    f = z.exp() / z.exp().sum()
    loss = torch.zeros((), dtype=z.dtype)
    for k in range(len(z)):
        loss = loss - y[k] * f[k].log()
    return loss


def kd_of(z: Tensor, old: Tensor, temperature: float = 1.0) -> Tensor:
    """Eq. 3 for one sample."""
    m = len(old)
    target, student = (old / temperature).exp(), (z[:m] / temperature).exp()
    loss = torch.zeros((), dtype=z.dtype)
    for k in range(m):
        loss = loss - target[k] / target.sum() * (student[k] / student.sum()).log()
    return loss


def gradient_norms(case: Case, loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Vector:
    """Return the L1 norm of the gradient in the last layer's weight matrix, by autograd, one sample at a time."""
    norms = []
    for h, y, old in zip(case.features, case.y, case.teacher, strict=True):
        head = case.head.clone().requires_grad_()
        loss(head @ h + case.bias, y, old).backward()
        assert head.grad is not None
        norms.append(head.grad.abs().sum().item())
    return norms


def test_influence_is_the_norm_of_the_gradient(case: Case) -> None:
    equal(influence(case.logits, case.y, case.features), gradient_norms(case, lambda z, y, old: ce_of(z, y)))


def test_incremental_influence_is_the_sum_of_both_gradients_norms(case: Case) -> None:
    ce = gradient_norms(case, lambda z, y, old: ce_of(z, y))
    kd = gradient_norms(case, lambda z, y, old: kd_of(z, old))
    for alpha in (1.0, 0.25):
        factor = incremental_influence(case.logits, case.y, case.teacher, case.features, alpha, "old")
        equal(factor, [a + alpha * b for a, b in zip(ce, kd, strict=True)])


def test_incremental_influence_is_no_less_than_the_norm_of_the_summed_gradient(case: Case) -> None:
    """Eq. 8, of which Eq. 11 is the last layer's part, with Eq. 9 and 10."""
    summed = gradient_norms(case, lambda z, y, old: ce_of(z, y) + kd_of(z, old))
    factor = incremental_influence(case.logits, case.y, case.teacher, case.features, 1.0, "old")
    assert all(one <= two * (1 + 1e-12) for one, two in zip(summed, factor.tolist(), strict=True))


def small_net(classes: int) -> Net:
    generator = torch.Generator().manual_seed(5)
    net = Net(MLP(6, width=8), LinearHead(8))
    net.grow(classes, generator)
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
    return net.double().eval()


def balancing_method(name: str, options: dict[str, object], m: int = 3, n: int = 2) -> EDBL:
    kind = find_method(name)
    net = small_net(m)
    memory = Memory(Budget("total", 10))
    method = kind(net, memory, kind.Config(**options), Schedule(), Optim(), tools(lambda images: images.x))
    assert isinstance(method, EDBL)
    method.teacher = Teacher(net)
    net.grow(n, torch.Generator().manual_seed(6))
    net.double()
    for parameter in net.parameters():  # the student has moved away from its teacher
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7))
    return method


def balance_batch(mixed: bool, classes: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(9, 6, generator=generator, dtype=torch.float64)
    y = torch.eye(classes, dtype=torch.float64)[torch.randint(classes, (2, 9), generator=generator)]
    ratio = torch.rand(9, 1, generator=generator, dtype=torch.float64) if mixed else torch.ones(9, 1)
    return Batch(x, ratio * y[0] + (1 - ratio) * y[1])


def balance_loss(method: EDBL, batch: Batch, weights: Tensor) -> Tensor:
    assert isinstance(method.config, Balancing)
    return method.balance_loss(method.config, batch, weights, method.teacher)


def manual_balance_loss(method: EDBL, batch: Batch, weights: Tensor) -> Tensor:
    """Eq. 16 over a batch, one sample at a time; class weights inside the sum, as by default."""
    config, teacher = method.config, method.teacher
    assert teacher is not None
    assert isinstance(config, Balancing)
    logits, features, _ = method.net(batch.x)
    olds = teacher.answer(batch.x).logits.detach()
    m = olds.shape[1]
    total = torch.zeros((), dtype=torch.float64)
    for z, h, old, y in zip(logits, features, olds, batch.y, strict=True):
        f = z.exp() / z.exp().sum()
        f_old, f_m = old.exp() / old.exp().sum(), z[:m].exp() / z[:m].exp().sum()
        factor = (f - y).abs().sum()
        if isinstance(config, IncrementalInfluence):
            factor = factor + config.alpha * (f_m - f_old).abs().sum()
        factor = factor * h.abs().sum()
        if config.detach:
            factor = factor.detach()
        loss = torch.zeros((), dtype=torch.float64)
        for k in range(len(z)):
            loss = loss - weights[k] * y[k] * f[k].log()
        kd = config.temperature**2 * kd_of(z, old, config.temperature)
        total = total + loss / (factor + config.epsilon) + config.balance_kd_weight * kd
    return total / len(batch.x)


def gradients(method: EDBL, loss: Tensor) -> Tensor:
    found = torch.autograd.grad(loss, list(method.net.parameters()))
    return torch.cat([g.flatten() for g in found])


BALANCING = [
    ("ib", {}),
    ("iib", {"alpha": 0.7}),
    ("iib-kd", {"alpha": 0.7}),
    ("iib-kd", {"alpha": 0.7, "balance_kd_weight": 0.4, "temperature": 1.5}),
    ("edbl", {"alpha": 0.7, "epsilon": 0.1}),
]


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize(("name", "options"), BALANCING)
def test_balance_loss_and_its_gradient(name: str, options: dict[str, object], detach: bool, mixed: bool) -> None:
    method = balancing_method(name, {**options, "detach": detach})
    batch = balance_batch(mixed)
    weights = torch.tensor([3.0, 2.5, 2.0, 0.5, 0.25], dtype=torch.float64)
    loss, expected = balance_loss(method, batch, weights), manual_balance_loss(method, batch, weights)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(method, loss), gradients(method, expected))


@pytest.mark.parametrize(("name", "options"), BALANCING)
def test_detaching_changes_the_gradient_but_not_the_loss(name: str, options: dict[str, object]) -> None:
    weights = torch.ones(5, dtype=torch.float64)
    batch = balance_batch(mixed=True)
    losses, found = [], []
    for detach in (False, True):
        method = balancing_method(name, {**options, "detach": detach})
        loss = balance_loss(method, batch, weights)
        losses.append(loss.item())
        found.append(gradients(method, loss))
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert (found[0] - found[1]).abs().max() > 1e-3


def test_no_gradient_reaches_the_teacher() -> None:
    method = balancing_method("edbl", {"detach": False})
    balance_loss(method, balance_batch(mixed=True), torch.ones(5, dtype=torch.float64)).backward()
    assert method.teacher is not None
    assert all(p.grad is None for p in method.teacher.net.parameters())


@pytest.mark.parametrize("kd_weight", [0.0, 1.0, 2.5])
@pytest.mark.parametrize(("scale", "growth"), [("t2", 0.0), ("none", 0.0), ("t2", 0.5), ("none", 1.0)])
def test_training_loss_is_eq_2_plus_weighted_eq_3(kd_weight: float, scale: str, growth: float) -> None:
    options = {"kd_weight": kd_weight, "kd_scale": scale, "kd_growth": growth, "temperature": 2.0}
    method = balancing_method("edbl", options)
    batch = balance_batch(mixed=True)
    assert method.teacher is not None
    logits, olds = method.net(batch.x).logits, method.teacher.answer(batch.x).logits
    assert (olds.shape[1], logits.shape[1]) == (3, 5)
    weight = kd_weight * (3 / 2) ** growth * (4 if scale == "t2" else 1)
    total = torch.zeros((), dtype=torch.float64)
    for z, old, y in zip(logits, olds, batch.y, strict=True):
        total = total + ce_of(z, y) + weight * kd_of(z, old, 2.0)
    torch.testing.assert_close(method.loss(batch), total / 9)
    method.teacher = None
    expected = sum(ce_of(z, y) for z, y in zip(logits, batch.y, strict=True)) / 9
    torch.testing.assert_close(method.loss(batch), expected)
