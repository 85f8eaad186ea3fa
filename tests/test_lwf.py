"""LwF: which logits each part of its loss reaches, and what it learns from."""

import math

import pytest
import torch
from torch import Tensor

from edbl import Recipe
from edbl.data.mixing import Batch
from edbl.methods.lwf import LwF, new_cross_entropy
from tests.test_methods_unit import after_first_task, images_of, make, task_of
from tests.vectors import Vector, seeded, softmax


def slow_loss(z: Vector, label: int, teacher: Vector, weight: float, t: float) -> float:
    """Return the loss of one image of a new class, number by number."""
    m = len(teacher)
    loss = 0.0
    for c in range(m, len(z)):
        loss += -(1.0 if c == label else 0.0) * math.log(softmax(z[m:])[c - m])
    target, own = softmax([v / t for v in teacher]), softmax([v / t for v in z[:m]])
    for c in range(m):
        loss += weight * -target[c] * math.log(own[c])
    return loss


def lwf(**options: object) -> LwF:
    method = make("lwf", **options)  # type: ignore[arg-type]
    assert isinstance(method, LwF)
    return method


def new_batch(old: int, new: int, count: int = 9) -> tuple[Batch, list[int]]:
    """Return images of new classes with one-hot labels, and the labels."""
    labels = torch.randint(old, old + new, (count,), generator=seeded(1))
    x = torch.randn(count, 1, 1, 1, generator=seeded(2))
    return Batch(x, torch.eye(old + new)[labels]), labels.tolist()


def move(method: LwF) -> None:
    """Bring the net away from its teacher, as training would."""
    method.net.head.weight.data += 0.3 * torch.randn(method.net.head.weight.shape, generator=seeded(3))
    method.net.eval()


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 2), (2, 5)])
def test_new_cross_entropy_number_by_number(m: int, n: int) -> None:
    logits = 3 * torch.randn(6, m + n, generator=seeded(), dtype=torch.float64)
    labels = torch.randint(m, m + n, (6,), generator=seeded(4)).tolist()
    y = torch.eye(m + n, dtype=torch.float64)[labels]
    expected = [-math.log(softmax(z[m:])[c - m]) for z, c in zip(logits.tolist(), labels, strict=True)]
    torch.testing.assert_close(new_cross_entropy(logits, y, m), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    ("options", "weight", "t"),
    [
        ({}, 3.0, 2.0),
        ({"kd_weight": 0.5, "temperature": 3.0}, 0.5, 3.0),
    ],
)
def test_loss_number_by_number(options: dict[str, object], weight: float, t: float) -> None:
    method = lwf(**options)
    after_first_task(method, [3, 3, 3], [9, 9])
    move(method)
    batch, labels = new_batch(3, 2)
    rows = zip(method.net(batch.x).logits.tolist(), labels, method.teach(batch.x).logits.tolist(), strict=True)
    expected = [slow_loss(z, label, teacher, weight, t) for z, label, teacher in rows]
    torch.testing.assert_close(method.loss(batch), torch.tensor(sum(expected) / len(expected)))


def head_gradients(method: LwF, batch: Batch) -> Tensor:
    """Return the size of the gradient of each class's weights."""
    method.loss(batch).backward()
    grad = method.net.head.weight.grad
    assert grad is not None
    return grad.abs().sum(1)


def test_cross_entropy_does_not_reach_old_logits() -> None:
    method = lwf(kd_weight=0.0)
    after_first_task(method, [3, 3], [9, 9, 9])
    move(method)
    gradients = head_gradients(method, new_batch(2, 3)[0])
    assert torch.equal(gradients[:2], torch.zeros(2))
    assert (gradients[2:] > 0).all()


def test_distillation_does_not_reach_new_logits() -> None:
    found = []
    for weight in (0.0, 5.0):
        method = lwf(kd_weight=weight)
        after_first_task(method, [3, 3], [9, 9, 9])
        move(method)
        found.append(head_gradients(method, new_batch(2, 3)[0]))
    torch.testing.assert_close(found[0][2:], found[1][2:])
    assert (found[1][:2] > 0).all()


def test_first_task_learns_all_its_classes() -> None:
    method = lwf()
    method.begin(task_of(0, [9, 9, 9]), seeded())
    method.net.eval()
    batch, labels = new_batch(0, 3)
    rows = zip(method.net(batch.x).logits.tolist(), labels, strict=True)
    expected = [-math.log(softmax(z)[label]) for z, label in rows]
    torch.testing.assert_close(method.loss(batch), torch.tensor(sum(expected) / len(expected)))


def test_exemplars_are_never_learnt_from() -> None:
    method = lwf()
    task = after_first_task(method, [4, 4], [9, 7])
    (phase,) = method.phases(task)
    assert torch.equal(phase.draw.data.x, task.train.x)
    assert set(phase.draw.data.y.tolist()) == {2, 3}
    method.memory.replace(images_of([1, 1], seed=9))
    (other,) = method.phases(task)
    assert torch.equal(other.draw.data.x, phase.draw.data.x)


@pytest.mark.parametrize("preset", ["default", "tuned", "quick"])
def test_schedule_is_the_common_one_unless_paper(preset: str) -> None:
    ours, theirs = (Recipe.build(method, data="cifar100", preset=preset) for method in ("lwf", "rkd"))
    assert (ours.schedule, ours.optim, ours.first, ours.data) == (
        theirs.schedule,
        theirs.optim,
        theirs.first,
        theirs.data,
    )


def test_preset_paper() -> None:
    recipe = Recipe.build("lwf", data="cifar100", preset="paper")
    assert (recipe.schedule.epochs, recipe.schedule.lr, recipe.schedule.decay) == (250, 0.1, 0.1)
    assert recipe.schedule.milestones == (60, 120, 180, 220)
    first = recipe.first.schedule(recipe.schedule)
    assert (first.epochs, first.lr, first.milestones) == (200, 0.1, (60, 120, 160))
    assert (recipe.first.optim(recipe.optim).weight_decay, recipe.optim.weight_decay) == (5e-4, 2e-4)
    assert (recipe.optim.batch, recipe.optim.nesterov, recipe.optim.warmup) == (128, False, 0)
    assert recipe.data.brightness == pytest.approx(63 / 255)
    assert recipe.options == LwF.Config(temperature=2.0, kd_weight=3.0)
