"""SS-IL: which logits a sample's cross-entropy reaches, distillation task by task, what a batch is made of."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from edbl import Recipe
from edbl.data.mixing import Batch
from edbl.data.samplers import OldNew, Uniform
from edbl.data.stream import Task
from edbl.memory import Budget, Memory
from edbl.methods.ssil import SSIL, separated_cross_entropy
from edbl.schedule import FirstTask, Optim, Schedule
from tests.vectors import SMALL, WIDTH, Vector, images_of, seeded, softmax, tools


def make(
    sizes: list[int], exemplars: list[int], new: list[int], batch: int = 8, **options: object
) -> tuple[SSIL, Task]:
    """Return a method that has learnt tasks of these sizes, holds these exemplars and begins a task."""
    net = SSIL.build(SMALL, seeded())
    memory = Memory(Budget("total", 20))
    config = SSIL.Config(**options)  # type: ignore[arg-type]
    method = SSIL(net, memory, config, Schedule(4, 0.6, (2,)), Optim(batch=batch), tools(lambda images: images.x))
    for number, size in enumerate(sizes):
        net.grow(size, seeded(number))
    if exemplars:
        memory.replace(images_of(exemplars, seed=2))
    old = sum(sizes)
    train = images_of(new, old, seed=3)
    task = Task(len(sizes), old, len(new), train)
    method.begin(task, seeded(4))
    for parameter in net.parameters():  # away from the teacher
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=seeded(5))
    net.eval()  # no batch statistics, so that one sample's loss does not hang on the others
    return method, task


def a_batch(labels: list[int], seen: int) -> Batch:
    return Batch(torch.randn(len(labels), WIDTH, generator=seeded(6)), torch.eye(seen)[torch.tensor(labels)])


def literal_ce(z: Vector, label: int, old: int) -> float:
    """An exemplar's softmax runs over old classes, a new image's over new ones."""
    if label < old:
        return -math.log(softmax(z[:old])[label])
    return -math.log(softmax(z[old:])[label - old])


def literal_kd(z: Vector, teacher: Vector, sizes: list[int], temperature: float) -> float:
    """Kullback-Leibler divergences of all old tasks plus the teacher's entropies, which have no gradient."""
    loss, start = 0.0, 0
    for size in sizes:
        target = softmax([v / temperature for v in teacher[start : start + size]])
        student = softmax([v / temperature for v in z[start : start + size]])
        divergence = sum(p * math.log(p / q) for p, q in zip(target, student, strict=True))
        entropy = -sum(p * math.log(p) for p in target)
        loss += temperature**2 * (divergence + entropy)
        start += size
    return loss


@pytest.mark.parametrize(("old", "new"), [(3, 2), (1, 4), (2, 1), (1, 1)])
def test_separated_cross_entropy_by_hand(old: int, new: int) -> None:
    labels = [k for k in range(old + new) for _ in range(2)]
    logits = torch.randn(len(labels), old + new, generator=seeded(), dtype=torch.float64)
    y = torch.eye(old + new, dtype=torch.float64)[torch.tensor(labels)]
    expected = [literal_ce(z, label, old) for z, label in zip(logits.tolist(), labels, strict=True)]
    torch.testing.assert_close(separated_cross_entropy(logits, y, old), torch.tensor(expected, dtype=torch.float64))


def test_cross_entropy_stays_on_the_side_of_its_label() -> None:
    logits = torch.randn(4, 5, generator=seeded(), requires_grad=True)
    y = torch.eye(5)[torch.tensor([0, 2, 3, 4])]  # two exemplars, two new images
    (gradient,) = torch.autograd.grad(separated_cross_entropy(logits, y, 3).sum(), logits)
    reached = gradient != 0
    assert reached.tolist() == [[True] * 3 + [False] * 2] * 2 + [[False] * 3 + [True] * 2] * 2
    assert gradient[0, 0] < 0 < gradient[0, 1]
    assert gradient[3, 4] < 0 < gradient[3, 3]


@pytest.mark.parametrize("sizes", [[2], [3, 1, 2]])
@pytest.mark.parametrize("weight", [1.0, 0.3])
@pytest.mark.parametrize("temperature", [2.0, 1.5])
def test_loss_by_hand(sizes: list[int], weight: float, temperature: float) -> None:
    old = sum(sizes)
    method, task = make(sizes, [3] * old, [9, 9], kd_weight=weight, temperature=temperature)
    labels = [0, old - 1, old, old + 1, old + 1]
    batch = a_batch(labels, task.seen)
    logits, teacher = method.net(batch.x).logits.tolist(), method.teach(batch.x).logits.tolist()
    total = 0.0
    for z, t, label in zip(logits, teacher, labels, strict=True):
        total += literal_ce(z, label, old) + weight * literal_kd(z, t, sizes, temperature)
    assert method.loss(batch).item() == pytest.approx(total / 5, rel=1e-5)


def head_gradient(method: SSIL, batch: Batch) -> Tensor:
    """Return the gradient of the loss in the head's biases: the sum over samples of that in the logits."""
    found: tuple[Tensor, ...] = torch.autograd.grad(method.loss(batch), method.net.head.bias)  # type: ignore[arg-type]
    return found[0]


def test_new_images_reach_old_logits_by_distillation_alone() -> None:
    batch = a_batch([4, 5, 5], 6)
    method, _ = make([3, 1], [3] * 4, [9, 9], kd_weight=0.0)
    assert (head_gradient(method, batch) != 0).tolist() == [False] * 4 + [True] * 2
    method, _ = make([3, 1], [3] * 4, [9, 9])
    # The fourth class is alone in its task: its softmax is 1 whatever its logit.
    assert (head_gradient(method, batch) != 0).tolist() == [True] * 3 + [False] + [True] * 2


def test_exemplars_do_not_reach_new_logits() -> None:
    method, _ = make([3, 1], [3] * 4, [9, 9])
    assert (head_gradient(method, a_batch([0, 1, 3], 6)) != 0).tolist() == [True] * 4 + [False] * 2


def test_tasks_of_one_class() -> None:
    method, task = make([1, 1], [3, 3], [9])
    batch = a_batch([0, 1, 2], task.seen)
    logits = method.net(batch.x).logits.tolist()
    expected = sum(literal_ce(z, label, 2) for z, label in zip(logits, [0, 1, 2], strict=True)) / 3
    assert method.loss(batch).item() == pytest.approx(expected, rel=1e-5)


def test_first_task_is_plain() -> None:
    method, task = make([], [], [9, 9], lr_by_task=True)
    (phase,) = method.phases(task)
    assert phase.draw.sampler == Uniform(18, 8)
    assert phase.schedule == Schedule(4, 0.6, (2,))
    batch = a_batch([0, 1, 1], 2)
    logits = method.net(batch.x).logits.tolist()
    expected = -sum(math.log(softmax(z)[label]) for z, label in zip(logits, [0, 1, 1], strict=True)) / 3
    assert phase.loss(batch).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("batch", "replay", "new", "sampler"),
    [
        (128, 0, 300, OldNew(6, 600, 32, 128, steps=4)),
        (128, 20, 300, OldNew(6, 600, 20, 128, steps=4)),
        (32, 0, 50, OldNew(6, 100, 8, 32, steps=3)),
        (128, 0, 20, OldNew(6, 40, 10, 40, steps=1)),
        (2, 0, 1, OldNew(6, 2, 1, 2, steps=1)),
    ],
)
def test_batches_hold_new_images_and_exemplars(batch: int, replay: int, new: int, sampler: OldNew) -> None:
    method, task = make([2], [3, 3], [new, new], batch, replay=replay)
    (phase,) = method.phases(task)
    assert phase.draw.sampler == sampler
    drawn = phase.draw.sampler(seeded())
    labels = phase.draw.data.y[drawn]
    assert ((labels < 2).sum(1) == sampler.old_batch).all()
    fresh = drawn[:, sampler.old_batch :].flatten()
    assert len(fresh.unique()) == len(fresh), "one pass over the new images"


@pytest.mark.parametrize(("by_task", "lr"), [(False, 0.6), (True, 0.2)])
def test_the_rate_may_fall_from_task_to_task(by_task: bool, lr: float) -> None:
    method, task = make([2, 2], [3] * 4, [9, 9], lr_by_task=by_task)
    (phase,) = method.phases(task)
    assert phase.schedule.lr == pytest.approx(lr)
    assert replace(phase.schedule, lr=0.6) == method.schedule
    first, begun = make([], [], [9, 9], lr_by_task=by_task)
    first.first = FirstTask(task_epochs=9, task_milestones=(5,))
    (phase,) = first.phases(begun)
    assert phase.schedule == Schedule(9, 0.6, (5,))


def test_presets() -> None:
    paper = Recipe.build("ssil", data="cifar100", preset="paper").values()
    assert (paper["schedule.epochs"], paper["schedule.milestones"]) == (100, (40, 80))
    assert (paper["optim.weight_decay"], paper["options.replay"], paper["options.lr_by_task"]) == (1e-4, 32, True)
    aligned, common = (Recipe.build(name, data="cifar100", preset="tuned") for name in ("ssil", "rkd"))
    assert (aligned.schedule, aligned.first, aligned.optim) == (common.schedule, common.first, common.optim)
    assert (aligned.values()["options.replay"], aligned.values()["options.lr_by_task"]) == (0, False)
