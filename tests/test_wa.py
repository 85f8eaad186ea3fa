"""WA: the weighing of its loss, clipped weights, and the alignment after training."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from edbl import Recipe, resume, run
from edbl.data.stream import Task
from edbl.engine.progress import Progress
from edbl.methods.wa import WA, alignment
from tests.test_contract import Killed, last_state, recipe
from tests.test_icarl import a_batch
from tests.test_methods_unit import after_first_task, make, task_of
from tests.vectors import Vector, same, seeded, softmax


def slow_loss(z: Vector, label: int, teacher: Vector, t: float, two: bool = False) -> float:
    """Return the loss of one image, number by number; with ``two`` as PyCIL has it."""
    share = len(teacher) / len(z)
    loss = (1.0 if two else 1 - share) * -math.log(softmax(z)[label])
    share = 2.0 if two else share
    for c in range(len(teacher)):
        target, own = softmax([v / t for v in teacher])[c], softmax([v / t for v in z[: len(teacher)]])[c]
        loss += share * -target * math.log(own)
    return loss


def mean_norm(rows: Tensor) -> float:
    norms = [math.sqrt(sum(v * v for v in row)) for row in rows.tolist()]
    return sum(norms) / len(norms)


def wa(**options: object) -> WA:
    method = make("wa", **options)  # type: ignore[arg-type]
    assert isinstance(method, WA)
    return method


@pytest.mark.parametrize("exemplars", [[3], [3, 3, 3]])
@pytest.mark.parametrize(
    ("options", "t"),
    [
        ({}, 2.0),
        ({"temperature": 3.0}, 3.0),
        ({"clip": False}, 2.0),
        ({"weighting": "two"}, 2.0),
    ],
)
def test_loss_number_by_number(options: dict[str, object], t: float, exemplars: list[int]) -> None:
    method = wa(**options)
    after_first_task(method, exemplars, [9, 9])
    head = method.net.head.weight
    head.data += 0.3 * torch.randn(head.shape, generator=seeded(3))  # away from the teacher
    method.net.eval()
    old = len(exemplars)
    labels = [0, old, old + 1, 0, old + 1]
    batch = a_batch(labels, old + 2)
    found = method.loss(batch)
    rows = zip(method.net(batch.x).logits.tolist(), labels, method.teach(batch.x).logits.tolist(), strict=True)
    two = options.get("weighting") == "two"
    expected = [slow_loss(z, label, teacher, t, two) for z, label, teacher in rows]
    torch.testing.assert_close(found, torch.tensor(sum(expected) / len(expected)))


def test_first_task_is_plain_and_stays_unaligned() -> None:
    method = wa(clip=False)
    task = task_of(0, [9, 9])
    method.begin(task, seeded())
    before = method.net.head.weight.detach().clone()
    list(method.phases(task))
    assert torch.equal(method.net.head.weight, before)
    method.net.eval()
    batch = a_batch([0, 1, 1], 2)
    rows = zip(method.net(batch.x).logits.tolist(), [0, 1, 1], strict=True)
    expected = [-math.log(softmax(z)[label]) for z, label in rows]
    torch.testing.assert_close(method.loss(batch), torch.tensor(sum(expected) / 3))


@pytest.mark.parametrize(("old", "new"), [(1, 1), (3, 2), (2, 6)])
def test_alignment_number_by_number(old: int, new: int) -> None:
    weight = torch.randn(old + new, 7, generator=seeded(), dtype=torch.float64)
    expected = mean_norm(weight[:old]) / mean_norm(weight[old:])
    assert alignment(weight, old).item() == pytest.approx(expected)


def test_weights_of_zero_stay() -> None:
    weight = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert alignment(weight, 1).item() == 1


def train(method: WA, task: Task, bias: float) -> Tensor:
    """Go through the phases as the engine does; training plants a bias of norms. Return the weights it leaves."""
    for _ in method.phases(task):
        weight = method.net.head.weight.data
        weight.copy_(torch.rand(weight.shape, generator=seeded(5)) + 0.1)
        weight[task.old :] *= bias
        left = weight.clone()
    return left


@pytest.mark.parametrize("bias", [7.0, 0.2])
def test_a_planted_bias_of_norms_is_removed(bias: float) -> None:
    method = wa()
    task = after_first_task(method, [3, 3, 3], [9, 9])
    left = train(method, task, bias)
    weight = method.net.head.weight.detach()
    assert mean_norm(left[3:]) / mean_norm(left[:3]) == pytest.approx(bias, rel=0.2)
    assert mean_norm(weight[3:]) == pytest.approx(mean_norm(weight[:3]))
    assert torch.equal(weight[:3], left[:3])  # old classes keep their weights
    torch.testing.assert_close(weight[3:] / left[3:], (weight[3, 0] / left[3, 0]).expand(2, weight.shape[1]))


def test_predictions_get_fair() -> None:
    """Images whose old class would win at equal norms are taken for new ones, until the head is aligned."""
    method = wa()
    task = after_first_task(method, [3, 3], [9, 9])
    head = method.net.head
    features = torch.eye(4, head.weight.shape[1]) + 0.3  # the feature of class k
    for _ in method.phases(task):
        head.weight.data.copy_(torch.eye(4, head.weight.shape[1]))
        head.weight.data[2:] *= 5
        head.bias.data.zero_()  # type: ignore[operator]
        assert head(features).argmax(1).tolist() != [0, 1, 2, 3]
    assert head(features).argmax(1).tolist() == [0, 1, 2, 3]


def test_biases_are_not_aligned() -> None:
    method = wa()
    task = after_first_task(method, [3, 3], [9, 9])
    before = method.net.head.bias.detach().clone()  # type: ignore[operator]
    train(method, task, 7.0)
    assert torch.equal(method.net.head.bias, before)  # type: ignore[arg-type]


def test_the_next_teacher_is_aligned() -> None:
    method = wa()
    task = after_first_task(method, [3, 3], [9, 9])
    train(method, task, 7.0)
    method.end(task)
    method.begin(task_of(4, [9, 9]), seeded())
    assert method.teacher is not None
    weight = method.teacher.net.head.weight
    assert mean_norm(weight[2:4]) == pytest.approx(mean_norm(weight[:2]))


def test_clipping() -> None:
    for clip in (True, False):
        method = wa(clip=clip)
        task = after_first_task(method, [3, 3], [9, 9])
        weight = method.net.head.weight
        assert weight.min() < 0
        for phase in method.phases(task):
            phase.loss(a_batch([0, 2, 3], 4))
            assert bool(weight.min() >= 0) is clip
            weight.data -= 0.01  # the last update
            assert weight.min() < 0
            assert phase.finish is not None
            phase.finish()
        assert bool(weight.min() >= 0) is clip
        assert method.teacher is not None
        assert method.teacher.net.head.weight.min() < 0  # not the teacher, which is as it was


class AfterTraining(Progress):
    """End the process when a task's training is done, before its exemplars are chosen."""

    def __init__(self) -> None:
        self.tasks = 0

    def busy(self, what: str) -> None:
        self.tasks += what == "choosing exemplars"
        if self.tasks == 2:
            raise Killed


def test_aligned_once_when_killed_after_training(tmp_path: Path) -> None:
    whole = run(recipe("wa"), tmp_path / "whole")
    with pytest.raises(Killed):
        run(recipe("wa"), tmp_path / "killed", progress=AfterTraining())
    resumed = resume(tmp_path / "killed")
    assert same(last_state(tmp_path / "whole", whole).tensors, last_state(tmp_path / "killed", resumed).tensors)
    weight = last_state(tmp_path / "killed", resumed).tensors["net.head.weight"]
    assert mean_norm(weight[7:]) == pytest.approx(mean_norm(weight[:7]), rel=1e-4)
    assert weight.min() >= 0


def test_preset_paper() -> None:
    recipe = Recipe.build("wa", data="cifar100", preset="paper")
    assert (recipe.schedule.epochs, recipe.schedule.lr, recipe.schedule.decay) == (170, 0.1, 0.1)
    assert recipe.schedule.milestones == (60, 100, 140)
    first = recipe.first.schedule(recipe.schedule)
    assert (first.epochs, first.lr, first.milestones) == (200, 0.1, (60, 120, 170))
    assert (recipe.first.optim(recipe.optim).weight_decay, recipe.optim.weight_decay) == (5e-4, 2e-4)
    assert (recipe.optim.batch, recipe.optim.nesterov, recipe.optim.warmup) == (128, False, 0)
    assert recipe.data.brightness == pytest.approx(63 / 255)
    assert recipe.options == WA.Config(temperature=2.0, clip=True)


@pytest.mark.parametrize("preset", ["default", "tuned", "quick"])
def test_schedule_is_the_common_one_unless_paper(preset: str) -> None:
    ours, theirs = (Recipe.build(method, data="cifar100", preset=preset) for method in ("wa", "rkd"))
    assert (ours.schedule, ours.optim, ours.first, ours.data) == (
        theirs.schedule,
        theirs.optim,
        theirs.first,
        theirs.data,
    )
