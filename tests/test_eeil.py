"""EEIL: distillation task by task, the balanced phase and its teachers, noise on gradients."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from edbl import Recipe, resume, run
from edbl.data.stream import Task
from edbl.losses import task_distillation
from edbl.memory import Budget, Memory
from edbl.methods.base import Phase
from edbl.methods.eeil import EEIL, add_noise
from edbl.nets.net import Net, Teacher
from edbl.schedule import Optim, Schedule
from tests.test_bic import blobs, fit
from tests.test_contract import Killed, Killer, last_state, recipe
from tests.vectors import SMALL, Vector, a_batch, images_of, literal_ce, same, seeded, softmax, tools


def move(net: Net, seed: int) -> None:
    """Change all parameters, as training would."""
    generator = seeded(seed)
    for parameter in net.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)


def make(
    sizes: list[int], exemplars: list[int], new: list[int], batch: int = 4, **options: object
) -> tuple[EEIL, Task]:
    """Return a method that has learnt tasks of these sizes, holds these exemplars and begins a task."""
    net = EEIL.build(SMALL, seeded())
    memory = Memory(Budget("total", 20))
    options = {"balance": Schedule(3, 0.02, (1,)), **options}
    config = EEIL.Config(**options)  # type: ignore[arg-type]
    method = EEIL(net, memory, config, Schedule(4, 0.2, (2,)), Optim(batch=batch), tools(lambda images: images.x))
    for number, size in enumerate(sizes):
        net.grow(size, seeded(number))
    move(net, 1)
    if exemplars:
        memory.replace(images_of(exemplars, seed=2))
    old = sum(sizes)
    train = images_of(new, old, seed=3)
    task = Task(len(sizes), old, len(new), train)
    method.begin(task, seeded(4))
    net.eval()  # no batch statistics, so that one sample's loss does not hang on the others
    return method, task


def literal_kd(z: Vector, teacher: Vector, sizes: list[int], temperature: float) -> float:
    """The sum over tasks of ``-sum_i p_i log q_i`` with p and q from a softmax over the task's own classes."""
    loss, start = 0.0, 0
    for size in sizes:
        target = softmax([teacher[i] / temperature for i in range(start, start + size)])
        student = softmax([z[i] / temperature for i in range(start, start + size)])
        for i in range(size):
            loss -= target[i] * math.log(student[i])
        start += size
    return loss


def literal_loss(logits: Tensor, y: Tensor, teacher: Tensor, sizes: list[int], weight: float) -> float:
    rows = list(zip(logits.tolist(), y.tolist(), teacher.tolist(), strict=True))
    return sum(literal_ce(z, label) + weight * literal_kd(z, t, sizes, 2.0) for z, label, t in rows) / len(rows)


@pytest.mark.parametrize("sizes", [[3], [2, 1, 4], [1, 1], [5, 2]])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_task_distillation_by_hand(sizes: list[int], temperature: float) -> None:
    old = sum(sizes)
    logits = torch.randn(6, old + 3, generator=seeded(), dtype=torch.float64)
    teacher = 2 * torch.randn(6, old, generator=seeded(1), dtype=torch.float64)
    pairs = zip(logits.tolist(), teacher.tolist(), strict=True)
    expected = torch.tensor([literal_kd(z, t, sizes, temperature) for z, t in pairs], dtype=torch.float64)
    torch.testing.assert_close(task_distillation(logits, teacher, sizes, temperature, "none"), expected)
    scaled = task_distillation(logits, teacher, sizes, temperature, "t2")
    torch.testing.assert_close(scaled, temperature**2 * expected)


def test_every_old_task_has_a_softmax_of_its_own() -> None:
    logits, teacher = torch.randn(4, 7, generator=seeded()), torch.randn(4, 5, generator=seeded(1))
    plain = task_distillation(logits, teacher, [2, 3], 2.0, "none")
    raised = teacher + torch.tensor([4.0, 4.0, 0.0, 0.0, 0.0])  # one task's logits against the other's
    torch.testing.assert_close(task_distillation(logits, raised, [2, 3], 2.0, "none"), plain)
    assert not torch.allclose(task_distillation(logits, raised, [5], 2.0, "none"), plain)


def test_tasks_of_one_class_distil_nothing() -> None:
    logits = torch.randn(4, 4, generator=seeded(), requires_grad=True)
    loss = task_distillation(logits, torch.randn(4, 3, generator=seeded(1)), [1, 1, 1], 2.0, "none")
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert loss.tolist() == [0.0] * 4
    assert gradient.abs().max() == 0


@pytest.mark.parametrize("sizes", [[2], [2, 1, 3]])
@pytest.mark.parametrize("weight", [1.0, 0.4])
def test_training_loss_by_hand(sizes: list[int], weight: float) -> None:
    method, task = make(sizes, [2] * sum(sizes), [6, 6], kd_weight=weight)
    move(method.net, 7)
    batch = a_batch(task.seen)
    expected = literal_loss(method.net(batch.x).logits, batch.y, method.teach(batch.x).logits, sizes, weight)
    assert method.loss(batch).item() == pytest.approx(expected, rel=1e-5)


def test_the_second_task_is_distilled() -> None:
    method, task = make([2], [4, 4], [6, 6])
    batch = a_batch(task.seen)
    before = method.loss(batch).item()
    assert method.teacher is not None
    move(method.teacher.net, 8)
    assert abs(method.loss(batch).item() - before) > 1e-2


@pytest.mark.parametrize("phase", ["train", "balance"])
def test_distillation_reaches_new_logits_in_the_balanced_phase_alone(phase: str) -> None:
    gradients = []
    for weight in (0.0, 1.0):
        method, task = make([2, 1], [4, 4, 4], [6, 6], kd_weight=weight)
        before = Teacher(method.net)
        move(method.net, 9)
        batch = a_batch(task.seen)
        loss = method.loss(batch) if phase == "train" else method.balance_loss(batch, before)
        (gradient,) = torch.autograd.grad(loss, method.net.head.bias)  # type: ignore[arg-type]
        gradients.append(gradient)
    reached = (gradients[1] - gradients[0]).abs() > 1e-6
    # The third class is alone in its task.
    assert reached.tolist() == [True, True, False, phase == "balance", phase == "balance"]


def walk(method: EEIL, task: Task) -> list[Phase]:
    """Go through the phases as the engine does, with something that stands for training."""
    phases = []
    for number, phase in enumerate(method.phases(task)):
        phases.append(phase)
        move(method.net, 20 + number)
    return phases


def test_balanced_loss_by_hand_and_its_teacher() -> None:
    method, task = make([2, 1], [4, 4, 4], [6, 6])
    old = method.teacher
    phases = method.phases(task)
    next(phases)
    move(method.net, 20)  # training
    left = method.net.frozen()
    balance = next(phases)
    move(method.net, 21)  # some fine-tuning
    batch = a_batch(task.seen)
    teacher = left(batch.x).logits
    expected = literal_loss(method.net(batch.x).logits, batch.y, teacher, [2, 1, 2], 1.0)
    assert balance.loss(batch).item() == pytest.approx(expected, rel=1e-5)
    assert balance.teacher is not None
    assert torch.equal(balance.teacher.net(batch.x).logits, left(batch.x).logits)
    assert method.teacher is old, "the old net stays the teacher of the method"


def test_phases() -> None:
    method, task = make([2], [4, 4], [9, 9])
    train, balance = walk(method, task)
    assert [p.name for p in (train, balance)] == ["train", "balance"]
    assert [p.schedule.epochs for p in (train, balance)] == [4, 3]
    assert len(train.draw.data) == 26
    assert train.adjust is None
    everything = {id(p) for p in method.net.parameters()}
    for phase in (train, balance):
        assert {id(p) for p in phase.params} == everything
        assert phase.train_mode


def test_first_task_is_plain() -> None:
    method, task = make([], [], [6, 6])
    (phase,) = walk(method, task)
    assert phase.schedule.epochs == 4
    assert phase.teacher is None
    batch = a_batch(2)
    rows = zip(method.net(batch.x).logits.tolist(), batch.y.tolist(), strict=True)
    expected = sum(literal_ce(z, y) for z, y in rows) / len(batch.x)
    assert phase.loss(batch).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("exemplars", "new", "expected"),
    [([5, 5], [9, 9, 9], [5] * 5), ([4, 4, 3], [9, 9], [3] * 5), ([5, 5], [9, 2], [5, 5, 5, 2]), ([1], [9], [1, 1])],
)
def test_the_fine_tuned_images_are_balanced(exemplars: list[int], new: list[int], expected: list[int]) -> None:
    method, task = make([len(exemplars)], exemplars, new)
    kept = [images.x.clone() for images in method.memory.classes]
    _, balance = walk(method, task)
    data = balance.draw.data
    assert data.counts(task.seen).tolist() == expected
    for k, images in enumerate(kept):
        assert torch.equal(data.x[data.y == k], images[: expected[k]]), "old images are those of the memory"
    everything = {tuple(row) for row in task.train.x.tolist()}
    assert all(tuple(row) in everything for row in data.x[data.y >= task.old].tolist())
    assert len(method.memory.classes) == len(exemplars), "the memory waits for the end of the task"


def test_new_images_to_fine_tune_on_are_herded() -> None:
    method, task = make([2], [3, 3], [9, 9])
    data = method.balanced(task)
    other = Memory(Budget("per_class", 3))
    other.classes = list(method.memory.classes)
    other.update(task.train, method.features)
    assert torch.equal(data.x, other.images.x)


def test_fine_tuning_on_balanced_images_takes_the_bias_towards_new_classes_away() -> None:
    """Three old classes with 20 exemplars each, then two new ones with 300 images."""
    net = EEIL.build(SMALL, seeded())
    config = EEIL.Config(balance=Schedule(10, 0.01, ()))
    schedule, optim = Schedule(10, 0.1, (8,)), Optim(batch=32, warmup=0)
    memory = Memory(Budget("total", 60))
    method = EEIL(net, memory, config, schedule, optim, tools(lambda images: net.eval()(images.x).features.detach()))
    test, answers = blobs(200, range(5), 9), []
    for index, classes in enumerate((range(3), range(3, 5))):
        train = blobs(300, classes, 50 + index)
        task = Task(index, classes[0], len(classes), train)
        method.begin(task, seeded(60 + index))
        for phase in method.phases(task):
            fit(net, phase)
            answers.append(net.eval()(test.x).logits.argmax(1))
        method.end(task)
    _, before, after = answers
    assert (before >= 3).float().mean().item() > 0.4 + 0.2, "two classes of five are new"
    assert (after >= 3).float().mean().item() == pytest.approx(0.4, abs=0.08)
    assert (after == test.y).float().mean() > (before == test.y).float().mean() + 0.05


def noise_of(phase: Phase, steps: int) -> list[Tensor]:
    """Return what the phase adds to zero gradients, step by step."""
    assert phase.adjust is not None
    found, generator = [], seeded(30)
    for _ in range(steps):
        for parameter in phase.params:
            parameter.grad = torch.zeros_like(parameter)
        phase.adjust(generator)
        found.append(torch.cat([p.grad.flatten() for p in phase.params if p.grad is not None]))
    return found


def test_noise_falls_with_the_epochs_of_a_task() -> None:
    method, task = make([2], [4, 4], [16, 16], noise=0.3, noise_decay=0.55)
    wide = torch.nn.Parameter(torch.zeros(200, 200))
    train, balance = method.phases(task)
    # 40 images in batches of 4: 10 steps an epoch, so 40 are an epoch of each of the first four.
    found = noise_of(replace_params(train, wide, method), 40)
    for step in (0, 10, 20, 39):
        expected = 0.3 / (2 + step / 10) ** 0.55 / 4
        assert found[step].std().item() == pytest.approx(expected, rel=0.02)
        assert abs(found[step].mean().item()) < 0.02 * expected
    assert not torch.equal(found[0], found[1])
    assert method.net.get_buffer("noisy_epochs").item() == pytest.approx(4)
    # 16 images: 4 steps an epoch; the epochs go on.
    found = noise_of(replace_params(balance, wide, method), 5)
    for step in (0, 4):
        assert found[step].std().item() == pytest.approx(0.3 / (6 + step / 4) ** 0.55 / 4, rel=0.02)
    again = replace(task, old=4, new=2)
    method.begin(again, seeded())
    next(method.phases(again))
    assert method.net.get_buffer("noisy_epochs").item() == 0


def replace_params(phase: Phase, wide: torch.nn.Parameter, method: EEIL) -> Phase:
    """Return the phase as it would be with one large parameter, whose noise can be measured."""
    return method.noisy(replace(phase, params=[wide]))


def test_noise_is_added_and_comes_from_the_generator() -> None:
    found = []
    for seed in (0, 0, 1):
        parameters = [torch.nn.Parameter(torch.zeros(3, 2)), torch.nn.Parameter(torch.zeros(5))]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 7.0)
        add_noise(parameters, torch.tensor(0.1), seeded(seed))
        found.append(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert (found[0] - 7).abs().max() < 0.6
    assert len(set(found[0].tolist())) == 11


@pytest.mark.parametrize("share", [0.3, 0.5, 0.93])
def test_killed_and_resumed_with_noise_equals_uninterrupted(share: float, tmp_path: Path) -> None:
    given: dict[str, Any] = {"options.noise": 0.3}
    noisy = recipe("eeil", **given)
    counter = Killer()
    whole = run(noisy, tmp_path / "whole", progress=counter)
    with pytest.raises(Killed):
        run(noisy, tmp_path / "killed", progress=Killer(round(counter.steps * share)))
    resumed = resume(tmp_path / "killed")
    state = last_state(tmp_path / "whole", whole).tensors
    assert same(state, last_state(tmp_path / "killed", resumed).tensors)
    assert state["net.noisy_epochs"].item() == pytest.approx(7, rel=1e-4)  # 4 of the first phase, 3 of the second


def test_presets() -> None:
    paper = Recipe.build("eeil", data="cifar100", preset="paper").values()
    assert paper["schedule.epochs"] == 40
    assert paper["schedule.milestones"] == (10, 20, 30)
    assert paper["optim.weight_decay"] == 1e-4
    assert (paper["options.balance.epochs"], paper["options.balance.lr"]) == (30, 0.01)
    assert paper["options.balance.milestones"] == (10, 20)
    assert paper["options.noise"] == 0.3
    aligned, common = (Recipe.build(name, data="cifar100", preset="tuned") for name in ("eeil", "edbl"))
    assert (aligned.schedule, aligned.first, aligned.optim) == (common.schedule, common.first, common.optim)
    balance = {key: value for key, value in common.values().items() if key.startswith("options.balance.")}
    assert {key: aligned.values()[key] for key in balance} == balance
    assert aligned.values()["options.noise"] == 0.0
