"""BiC: weighed losses, images held out, and a correction that undoes a planted bias."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from edbl import Recipe
from edbl.data.augment import Transform
from edbl.data.images import Images
from edbl.data.stream import Task
from edbl.engine.checkpoint import State
from edbl.engine.fit import Loop
from edbl.engine.progress import Progress
from edbl.memory import Budget, Memory
from edbl.methods.base import Phase
from edbl.methods.bic import BiC, hold_out
from edbl.nets.backbones import MLP, Maker, Watch
from edbl.nets.heads import CorrectedHead
from edbl.nets.net import LinearHead, Net
from edbl.schedule import Optim, Schedule
from edbl.seeds import Seeds
from tests.vectors import WIDTH, Vector, a_batch, images_of, literal_ce, seeded, small, softmax, tools


class Straight(MLP):
    """A backbone whose features are the vectors that it is given."""

    def __init__(self) -> None:
        super().__init__(WIDTH, width=WIDTH)

    def forward(self, x: Tensor, watch: Watch | None = None) -> Tensor:
        return x.flatten(1)


def make(
    sizes: list[int],
    memory: Images | None,
    train: Images,
    backbone: MLP | None = None,
    seed: int = 4,
    **options: Any,
) -> tuple[BiC, Task]:
    """Return a method that has learnt tasks of these sizes, holds these exemplars and begins a task."""
    net = BiC.build(Maker((WIDTH,), lambda generator, width: backbone or small(generator)), seeded())
    kept = Memory(Budget("total", 20))
    options = {"bias": Schedule(3, 0.02, (1,)), **options}
    config = BiC.Config(**options)
    method = BiC(net, kept, config, Schedule(4, 0.2, (2,)), Optim(batch=4), tools(lambda images: images.x))
    for number, size in enumerate(sizes):
        net.grow(size, seeded(number))
    if memory is not None:
        kept.replace(memory)
    old = sum(sizes)
    task = Task(len(sizes), old, int(train.y.max()) + 1 - old, train)
    if sizes:
        correction(method).data = torch.tensor([0.5, -0.7])  # what the last task has learnt
    method.begin(task, seeded(seed))
    return method, task


def correction(method: BiC) -> Tensor:
    assert isinstance(method.net.head, CorrectedHead)
    return method.net.head.correction


def second_task(**options: Any) -> tuple[BiC, Task]:
    return make([2, 1], images_of([10, 10, 10], seed=2), images_of([30, 25], 3, seed=3), **options)


def literal_kd(z: Vector, teacher: Vector, temperature: float) -> float:
    target = softmax([v / temperature for v in teacher])
    student = softmax([z[i] / temperature for i in range(len(teacher))])
    return -sum(target[i] * math.log(student[i]) for i in range(len(teacher)))


@pytest.mark.parametrize(("scale", "factor"), [("none", 1.0), ("t2", 4.0)])
def test_training_loss_by_hand(scale: str, factor: float) -> None:
    method, task = second_task(kd_scale=scale)
    method.net.head.weight.data += 0.3 * torch.randn(5, 8, generator=seeded(7))
    batch = a_batch(task.seen)
    features = method.net.eval()(batch.x).features
    method.net.train()
    method.net.backbone.eval()  # no batch statistics: the sum must be over single samples
    head = method.net.head
    assert isinstance(head, LinearHead)
    raw = features @ head.weight.T + head.bias
    assert method.teacher is not None
    teacher_head = method.teacher.net.head
    assert isinstance(teacher_head, LinearHead)
    taught = method.teacher.net(batch.x).features @ teacher_head.weight.T + teacher_head.bias
    total = 0.0
    for z, y, t in zip(raw.tolist(), batch.y.tolist(), taught.tolist(), strict=True):
        corrected = [t[0], t[1], 0.5 * t[2] - 0.7]  # the newest task of the teacher has one class
        total += 3 / 5 * factor * literal_kd(z, corrected, 2.0) + 2 / 5 * literal_ce(z, y)
    assert method.loss(batch).item() == pytest.approx(total / 7, rel=1e-5)


def test_first_task_is_plain() -> None:
    method, task = make([], None, images_of([9, 9]))
    (phase,) = method.phases(task)
    assert phase.draw.data is task.train
    assert phase.schedule.epochs == 4
    assert correction(method).tolist() == [1.0, 0.0]
    batch = a_batch(2)
    logits = method.net.eval()(batch.x).logits
    expected = sum(literal_ce(z, y) for z, y in zip(logits.tolist(), batch.y.tolist(), strict=True)) / 7
    assert phase.loss(batch).item() == pytest.approx(expected, rel=1e-5)


def test_bias_loss_by_hand() -> None:
    method, task = second_task(bias_penalty=0.3)
    correction(method).data = torch.tensor([0.8, -1.5])
    batch = a_batch(task.seen)
    features = method.net.eval()(batch.x).features
    head = method.net.head
    assert isinstance(head, LinearHead)
    total = 0.0
    for z, y in zip((features @ head.weight.T + head.bias).tolist(), batch.y.tolist(), strict=True):
        total += literal_ce([*z[:3], 0.8 * z[3] - 1.5, 0.8 * z[4] - 1.5], y)
    assert method.bias_loss(batch).item() == pytest.approx(total / 7 + 0.3 * 1.5**2 / 2, rel=1e-5)


def test_a_new_task_starts_uncorrected_and_the_teacher_corrected() -> None:
    method, _ = second_task()
    assert correction(method).tolist() == [1.0, 0.0]
    assert method.teacher is not None
    assert isinstance(method.teacher.net.head, CorrectedHead)
    assert method.teacher.net.head.correction.tolist() == [0.5, pytest.approx(-0.7)]
    assert not method.teacher.net.training


def test_read_out_is_corrected_and_the_net_that_learns_is_not() -> None:
    method, task = second_task()
    correction(method).data = torch.tensor([0.5, -2.0])
    features = torch.randn(3, 8, generator=seeded(8))
    head = method.net.head
    raw, read = head.train()(features), head.eval()(features)
    torch.testing.assert_close(read[:, : task.old], raw[:, : task.old])
    torch.testing.assert_close(read[:, task.old :], 0.5 * raw[:, task.old :] - 2)


def test_phases() -> None:
    method, task = second_task()
    method.optim = replace(method.optim, weight_decay=0.1)
    train, bias = method.phases(task)
    assert [p.name for p in (train, bias)] == ["train", "bias"]
    assert [p.schedule.epochs for p in (train, bias)] == [4, 3]
    own = correction(method)
    assert {id(p) for p in train.params} == {id(p) for p in method.net.parameters()} - {id(own)}
    assert [id(p) for p in bias.params] == [id(own)]
    assert train.train_mode
    assert not bias.train_mode
    assert train.teacher is method.teacher
    assert bias.teacher is None
    assert (train.optim.weight_decay, bias.optim.weight_decay) == (0.1, 0.0)


def rows(images: Images) -> set[Vector]:
    return {tuple(row) for row in images.x.tolist()}  # type: ignore[misc]


def test_held_out_images_are_balanced_and_never_learnt_from() -> None:
    method, task = make([2, 1], images_of([20, 20, 20], seed=2), images_of([60, 50], 3, seed=3))
    train, bias = method.phases(task)
    learnt, held = train.draw.data, bias.draw.data
    assert held.counts(5).tolist() == [2] * 5
    assert learnt.counts(5).tolist() == [18, 18, 18, 58, 48]
    assert not rows(learnt) & rows(held)
    assert rows(learnt) | rows(held) == rows(method.memory.images) | rows(task.train)
    assert learnt.y.tolist() == sorted(learnt.y.tolist()), "exemplars come first"
    method.end(task)
    assert len(method.memory) == 20
    assert rows(Images.cat(method.memory.classes[3:])) <= rows(task.train)


def test_the_same_seed_holds_the_same_images_out() -> None:
    found = [rows(second_task(seed=seed)[0].held) for seed in (4, 4, 5)]
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_one_image_is_held_out_where_there_are_two() -> None:
    kept, held = hold_out(images_of([1, 2, 3, 40, 8]), 5, 4, seeded())
    assert held.counts(5).tolist() == [0, 1, 1, 4, 4]
    assert kept.counts(5).tolist() == [1, 1, 2, 36, 4]
    nothing = hold_out(images_of([5, 5]), 2, 0, seeded())
    assert [len(images) for images in nothing] == [10, 0]
    method, _ = make([2], images_of([2, 2]), images_of([9, 9], 2))
    assert method.held.counts(4).tolist() == [1] * 4


def test_any_image_of_a_class_may_be_held_out() -> None:
    images = images_of([10])
    drawn = set()
    for seed in range(60):
        drawn |= rows(hold_out(images, 1, 1, seeded(seed))[1])
    assert drawn == rows(images)


@pytest.mark.parametrize(("exemplars", "share"), [([1, 1], 0.1), ([10, 10], 0.0)])
def test_without_held_out_images_of_old_classes_nothing_is_corrected(exemplars: list[int], share: float) -> None:
    method, task = make([2], images_of(exemplars), images_of([20, 20], 2), val_share=share)
    (train,) = method.phases(task)
    assert train.draw.data.counts(4).tolist()[:2] == exemplars


def fit(net: Net, phase: Phase) -> None:
    transform = Transform.of("none", 0, (0.5,), (0.5,), torch.device("cpu"))
    loop = Loop(transform, Seeds(0), Progress(), bf16=False, graph=False)
    loop.fit(net, phase, ("test",), State())


MEANS = 1.2 * torch.randn(5, WIDTH, generator=seeded(40))


def blobs(each: int, classes: range, seed: int) -> Images:
    """Return normal vectors around each class's mean: linear logits give their true probabilities."""
    y = torch.tensor(list(classes)).repeat_interleave(each)
    return Images(MEANS[y] + torch.randn(len(y), WIDTH, generator=seeded(seed)), y)


def planted(beta: float, gamma: float, **options: Any) -> tuple[BiC, Task]:
    """Return a net that would be right, were its new logits z not ``(z - gamma) / beta``."""
    method, task = make(
        [2, 1], blobs(1000, range(3), 41), blobs(3000, range(3, 5), 42), Straight(), val_share=0.5, **options
    )
    method.optim = Optim(batch=128)
    head = method.net.head
    assert isinstance(head, LinearHead)
    head.weight.data.copy_(MEANS)
    head.bias.data.copy_(-MEANS.square().sum(1) / 2)
    head.weight.data[3:] /= beta
    head.bias.data[3:] = (head.bias.data[3:] - gamma) / beta
    return method, task


def accuracy(net: Net) -> float:
    test = blobs(1000, range(5), 43)
    return (net.eval()(test.x).logits.argmax(1) == test.y).float().mean().item()


@pytest.mark.parametrize(("beta", "gamma"), [(0.4, -1.0), (0.6, -2.0), (1.5, 2.0)])
def test_the_correction_undoes_a_planted_bias(beta: float, gamma: float) -> None:
    schedule = Schedule(40, 0.05, (30, 36))
    best = accuracy(planted(1.0, 0.0)[0].net)
    method, task = planted(beta, gamma, bias=schedule, bias_penalty=0.0)
    biased = accuracy(method.net)
    assert biased < best - 0.03
    before = {name: value.clone() for name, value in method.net.state_dict().items()}
    *_, phase = method.phases(task)
    fit(method.net, phase)
    assert correction(method).tolist() == [pytest.approx(beta, abs=0.1), pytest.approx(gamma, abs=0.25)]
    assert accuracy(method.net) > best - 0.01
    after = method.net.state_dict()
    assert [name for name in after if not torch.equal(after[name], before[name])] == ["head.correction"]


def test_the_penalty_holds_gamma_back_and_not_beta() -> None:
    found = []
    for penalty in (0.0, 0.1, 10.0):
        method, task = planted(0.6, -2.0, bias=Schedule(20, 0.02, (15,)), bias_penalty=penalty)
        *_, phase = method.phases(task)
        fit(method.net, phase)
        found.append(correction(method).tolist())
    assert found[0][1] < found[1][1] - 0.05 < found[2][1]
    assert abs(found[2][1]) < 0.05
    assert abs(found[2][0] - 1) > 0.1


def test_the_correction_does_not_learn_with_the_net_and_the_net_not_with_it() -> None:
    method, task = second_task()
    train, bias = method.phases(task)
    correction(method).data = torch.tensor([0.9, 0.1])
    weight = method.net.head.weight.detach().clone()
    fit(method.net, train)
    assert correction(method).tolist() == [pytest.approx(0.9), pytest.approx(0.1)]
    assert not torch.equal(method.net.head.weight, weight)
    before = {name: value.clone() for name, value in method.net.state_dict().items()}
    fit(method.net, bias)
    after = method.net.state_dict()
    # Not even the running statistics of batch normalisation.
    assert [name for name in after if not torch.equal(after[name], before[name])] == ["head.correction"]


def test_it_needs_a_head_that_corrects() -> None:
    net = Net(MLP(WIDTH, width=8), LinearHead(8))
    method = BiC(net, Memory(Budget("total", 20)), BiC.Config(), Schedule(), Optim(), tools(lambda images: images.x))
    with pytest.raises(TypeError, match="needs a CorrectedHead"):
        assert method.correction


def test_presets() -> None:
    paper = Recipe.build("bic", data="cifar100", preset="paper").values()
    assert (paper["schedule.epochs"], paper["schedule.milestones"]) == (250, (100, 150, 200))
    assert (paper["optim.weight_decay"], paper["options.kd_scale"]) == (2e-4, "none")
    assert (paper["options.bias.epochs"], paper["options.bias.milestones"]) == (200, (60, 120, 160, 180))
    aligned, common = (Recipe.build(name, data="cifar100", preset="tuned") for name in ("bic", "rkd"))
    assert (aligned.schedule, aligned.first, aligned.optim) == (common.schedule, common.first, common.optim)
    assert aligned.values()["options.kd_scale"] == "none"
