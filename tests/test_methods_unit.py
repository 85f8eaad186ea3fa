"""What each method trains on, with which phases, without training any."""

from dataclasses import dataclass, replace
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from edbl import losses
from edbl.data.images import Images
from edbl.data.mixing import Batch, PairMixup, Ratio, ResamplingMixup, VanillaMixup, unmixed
from edbl.data.samplers import OldNew, Pairs, Uniform
from edbl.data.stream import Task
from edbl.memory import Budget, Memory
from edbl.methods import find_method
from edbl.methods.base import Draw, Method, Tools
from edbl.methods.edbl import EDBL
from edbl.methods.options import Balancing
from edbl.nets.backbones import build
from edbl.nets.net import LinearHead, Net, Output, Teacher
from edbl.schedule import FirstTask, Optim, Schedule
from tests.vectors import seeded

METHODS = ["edbl", "finetune", "ib", "iib", "iib-kd", "joint", "re-mkd", "rkd", "vanilla-mkd"]  # the paper and bounds
BALANCING = ("ib", "iib", "iib-kd", "edbl")
MIXING = ("vanilla-mkd", "re-mkd", "edbl")
TEACHING = ("rkd", "vanilla-mkd", "re-mkd", *BALANCING)
TRAIN, BALANCE = Schedule(4, 0.2, (2,)), Schedule(3, 0.02, (1,))


def images_of(counts: list[int], first: int = 0, seed: int = 0) -> Images:
    """Return images of one pixel, class by class from class ``first``."""
    y = torch.tensor([first + k for k, count in enumerate(counts) for _ in range(count)], dtype=torch.int64)
    return Images(torch.randint(256, (len(y), 1, 1, 1), generator=seeded(seed), dtype=torch.uint8), y)


def task_of(old: int, new_counts: list[int]) -> Task:
    """Return a task with ``old`` old classes of 6 images each in the stream."""
    train = images_of(new_counts, old, seed=1)
    stream = Images.cat([images_of([6] * old, seed=2), train, images_of([5], old + len(new_counts), seed=3)])
    return Task(int(old > 0), old, len(new_counts), train, stream_train=stream)


@dataclass
class Calls:
    """Features of an image: its pixel and its square; notes which images it was asked for."""

    asked: list[Images]

    def __call__(self, net: Net, images: Images) -> Output:
        self.asked.append(images)
        pixel = images.x.flatten(1).float() / 255
        return Output(pixel, torch.cat([pixel, pixel.square() + 0.1], 1))


def make(name: str, batch: int = 8, budget: Budget | None = None, **options: object) -> Method:
    """Return a method with a small net that knows no class yet and an empty memory."""
    kind = find_method(name)
    backbone = build("mlp", (1, 1, 1), seeded())
    net = Net(backbone, LinearHead(backbone.width))
    memory = Memory(budget or Budget("total", 12))
    if issubclass(kind.Config, Balancing):
        options = {"balance": BALANCE, **options}
    return kind(net, memory, kind.Config(**options), TRAIN, Optim(batch=batch), Tools(Calls([])))


def after_first_task(method: Method, exemplars: list[int], new_counts: list[int]) -> Task:
    """Let a method know the old classes, hold these exemplars of them, and begin the next task."""
    method.net.grow(len(exemplars), seeded(4))
    method.memory.replace(images_of(exemplars, seed=5))
    task = task_of(len(exemplars), new_counts)
    method.begin(task, seeded(6))
    return task


def balancing(name: str, **options: object) -> EDBL:
    method = make(name, **options)  # type: ignore[arg-type]
    assert isinstance(method, EDBL)
    return method


def class_weights(method: EDBL, draw: Draw, task: Task) -> Tensor:
    assert isinstance(method.config, Balancing)
    return method.class_weights(method.config, draw, task)


def balance_loss(method: EDBL, batch: Batch, weights: Tensor) -> Tensor:
    assert isinstance(method.config, Balancing)
    return method.balance_loss(method.config, batch, weights, method.teacher)


def a_batch(seen: int, n: int = 10) -> Batch:
    x = torch.randn(n, 1, 1, 1, generator=seeded(7))
    y = torch.rand(n, seen, generator=seeded(8))
    return Batch(x, y / y.sum(1, keepdim=True))


def rounds_of(exemplars: list[int], new_counts: list[int], **options: object) -> int:
    """Return the passes over old images that a method mixes them in."""
    method = make("re-mkd", **options)  # type: ignore[arg-type]
    mixing = method.draw(after_first_task(method, exemplars, new_counts)).mixing
    assert isinstance(mixing, ResamplingMixup)
    return mixing.rounds


def test_explicit_rounds_and_the_cap() -> None:
    for options, rounds in (
        ({"rounds": 3}, 3),
        ({"rounds": 3, "max_rounds": 2}, 3),
        ({"rounds": 40, "max_rounds": 0}, 40),
        ({}, 10),
        ({"max_rounds": 7}, 7),
        ({"max_rounds": 0}, 10),
    ):
        assert rounds_of([2, 2], [40, 40], **options) == rounds


def test_rounds_take_unequal_classes_by_their_means() -> None:
    assert rounds_of([1, 3], [10, 30, 20]) == 5  # N = 20 / 2


def label_mass(draw: Draw, seen: int, epochs: int) -> Tensor:
    """Return the mean label of what the real sampler and mixing give, ``[seen]``."""
    generator = seeded(11)
    total, count = torch.zeros(seen, dtype=torch.float64), 0
    for _ in range(epochs):
        for index in draw.sampler(generator):
            labels = torch.eye(seen)[draw.data.y[index]]
            mixed = draw.mixing(Batch(torch.zeros(len(index), 1), labels), generator)
            total += mixed.y.double().sum(0)
            count += len(mixed.y)
    return total / count


SHAPES = [([10, 10], [60, 60], 16), ([3, 3, 3, 3], [30, 30], 16), ([8, 12], [10, 50, 30], 32), ([1], [2], 8)]


@pytest.mark.parametrize("reading", ["batch", "epoch", "concat"])
@pytest.mark.parametrize(("exemplars", "new_counts", "batch"), SHAPES)
def test_old_share_is_what_is_drawn(reading: str, exemplars: list[int], new_counts: list[int], batch: int) -> None:
    method = make("re-mkd", batch, reading=reading, min_old=6, ratio_per="sample")
    task = after_first_task(method, exemplars, new_counts)
    draw = method.draw(task)
    mass = label_mass(draw, task.seen, epochs=60 if sum(new_counts) > 50 else 800)
    assert draw.old_share is not None
    assert mass[: task.old].sum().item() == pytest.approx(draw.old_share, abs=0.012)


def lambdas(counts: list[float], gamma: float, classes: int) -> list[float]:
    """Eq. 7."""
    total = sum(1 / n for n in counts)
    return [classes * gamma * (1 / n) / total for n in counts]


@pytest.mark.parametrize("name", BALANCING)
def test_raw_class_weights(name: str) -> None:
    for weight_sum, factor in (("one", 1), ("classes", 4)):
        method = balancing(name, counts="raw", gamma=30.0, weight_sum=weight_sum)
        task = after_first_task(method, [2, 4], [20, 10])
        weights = class_weights(method, method.draw(task), task)
        torch.testing.assert_close(weights, torch.tensor(lambdas([2, 4, 20, 10], 30.0, factor)))


@pytest.mark.parametrize("reading", ["batch", "epoch", "concat"])
def test_effective_class_weights_are_those_of_the_label_mass(reading: str) -> None:
    method = balancing(
        "edbl", batch=16, gamma=30.0, counts="effective", weight_sum="one", reading=reading, min_old=6,
        ratio_per="sample",
    )  # fmt: skip
    task = after_first_task(method, [4, 8], [60, 30])
    draw = method.draw(task)
    weights = class_weights(method, draw, task)
    mass = label_mass(draw, 4, epochs=200)
    torch.testing.assert_close(weights, torch.tensor(lambdas(mass.tolist(), 30.0, 1)), rtol=0.05, atol=0)
    assert weights.sum().item() == pytest.approx(30)


def test_effective_counts_without_resampling_are_raw() -> None:
    found = []
    for counts in ("raw", "effective"):
        method = balancing("iib-kd", counts=counts)
        task = after_first_task(method, [2, 4], [20, 10])
        found.append(class_weights(method, method.draw(task), task))
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("name", METHODS)
def test_first_task(name: str) -> None:
    method = make(name)
    task = task_of(0, [9, 9])
    method.begin(task, seeded())
    assert method.teacher is None
    assert method.net.head.classes == 2
    phases = list(method.phases(task))
    assert [phase.name for phase in phases] == ["train"]
    (phase,) = phases
    assert phase.schedule == TRAIN
    assert phase.train_mode
    assert torch.equal(phase.draw.data.x, task.train.x)
    assert phase.draw.sampler == Uniform(18, 8)
    # A12: vanilla mixup where the method mixes at all.
    assert phase.draw.mixing == (VanillaMixup(Ratio(1.0, "pass")) if name in MIXING else unmixed)
    batch = a_batch(2)
    expected = -(batch.y * method.net.eval()(batch.x).logits.softmax(1).log()).sum(1).mean()
    torch.testing.assert_close(phase.loss(batch), expected)


@pytest.mark.parametrize("name", MIXING)
def test_first_task_without_mixup(name: str) -> None:
    method = make(name, first_task="plain")
    task = task_of(0, [9, 9])
    method.begin(task, seeded())
    (phase,) = method.phases(task)
    assert phase.draw.mixing is unmixed
    later = make(name, first_task="plain")
    assert later.draw(after_first_task(later, [3, 3], [9, 9])).mixing is not unmixed


def test_joint_trains_fresh_weights_as_those_of_a_first_task() -> None:
    method = make("joint")
    method.first = FirstTask(task_epochs=9, task_lr=0.3, task_weight_decay=0.5)
    (phase,) = method.phases(task_of(2, [9, 9]))
    told = phase.schedule.epochs, phase.schedule.lr, phase.optim.weight_decay
    assert told == (9, 0.3, 0.5)


def test_the_first_task_may_have_values_of_its_own() -> None:
    later, optim = Schedule(10, 0.1, (5,)), Optim(weight_decay=2e-4)
    assert FirstTask().schedule(later) == later
    assert FirstTask().optim(optim) == optim
    assert FirstTask(task_lr=0.3).schedule(later) == Schedule(10, 0.3, (5,))
    assert FirstTask(task_epochs=4, task_milestones=(2,)).schedule(later) == Schedule(4, 0.1, (2,))
    assert FirstTask(task_milestones=(2,)).schedule(later) == Schedule(10, 0.1, (2,))
    assert FirstTask(task_epochs=20).schedule(later) == Schedule(20, 0.1, (10,))
    assert FirstTask(task_weight_decay=1e-3).optim(optim) == Optim(weight_decay=1e-3)
    method = make("rkd")
    method.first = FirstTask(task_epochs=4, task_lr=0.3)
    (first,) = method.phases(task_of(0, [9, 9]))
    assert (first.schedule.epochs, first.schedule.lr) == (4, 0.3)
    (second,) = method.phases(after_first_task(method, [3, 3], [9, 9]))
    assert second.schedule == TRAIN


@pytest.mark.parametrize("name", MIXING)
def test_mixing_ratio_is_the_configured_one(name: str) -> None:
    method = make(name, beta=0.4, ratio_per="sample")
    task = after_first_task(method, [3, 3], [9, 9])
    mixing = method.draw(task).mixing
    assert isinstance(mixing, VanillaMixup | ResamplingMixup)
    assert mixing.ratio == Ratio(0.4, "sample")


@pytest.mark.parametrize("name", METHODS)
def test_phases_of_later_tasks(name: str) -> None:
    method = make(name)
    task = after_first_task(method, [3, 3], [9, 9])
    assert method.net.head.classes == 4
    phases = list(method.phases(task))
    two = name in BALANCING
    assert [phase.name for phase in phases] == (["train", "balance"] if two else ["train"])
    assert [phase.schedule for phase in phases] == ([TRAIN, BALANCE] if two else [TRAIN])
    everything = {id(p) for p in method.net.parameters()}
    for phase in phases:
        assert {id(p) for p in phase.params} == everything  # Algorithm 1 trains the whole model
        assert phase.train_mode
    if two:
        assert phases[0].draw is phases[1].draw  # A13: the same images, drawn alike


@pytest.mark.parametrize("name", TEACHING)
def test_the_old_net_is_the_teacher(name: str) -> None:
    method = make(name)
    method.net.grow(2, seeded())
    before = method.net.frozen()
    method.memory.replace(images_of([3, 3]))
    task = task_of(2, [9, 9])
    method.begin(task, seeded(6))
    assert method.teacher is not None
    assert method.teacher.net.head.classes == 2
    x = a_batch(4).x
    assert torch.equal(method.teach(x).logits, before(x).logits)
    assert not method.teach(x).logits.requires_grad


def test_no_teacher_no_lesson() -> None:
    method = make("rkd")
    method.begin(task_of(0, [3]), seeded())
    with pytest.raises(RuntimeError, match="no teacher"):
        method.teach(a_batch(1).x)


@pytest.mark.parametrize("name", ["rkd", "vanilla-mkd", *BALANCING[:3]])
def test_plain_methods_draw_new_images_and_exemplars_alike(name: str) -> None:
    method = make(name)
    task = after_first_task(method, [3, 2], [9, 9])
    draw = method.draw(task)
    assert torch.equal(draw.data.x, torch.cat([method.memory.images.x, task.train.x]))
    assert draw.data.y.tolist() == [0] * 3 + [1] * 2 + [2] * 9 + [3] * 9
    assert draw.sampler == Uniform(23, 8)
    assert draw.old_share is None
    assert draw.mixing == (VanillaMixup(Ratio(1.0, "pass")) if name == "vanilla-mkd" else unmixed)


@pytest.mark.parametrize("name", ["re-mkd", "edbl"])
def test_resampling_methods_by_reading(name: str) -> None:
    # 10 exemplars and 80 new images: N = 40 / 5 = 8, so 4 rounds; 16 of 90 are 14.2 new and 1.8 old by nature.
    ratio = Ratio(1.0, "pass")
    drawn = {}
    for reading in ("batch", "epoch", "concat"):
        method = make(name, batch=16, reading=reading, min_old=6)
        task = after_first_task(method, [5, 5], [40, 40])
        drawn[reading] = method.draw(task)
        assert torch.equal(drawn[reading].data.x, torch.cat([method.memory.images.x, task.train.x]))
    assert drawn["batch"].sampler == OldNew(10, 80, 6, 14, steps=5)
    assert drawn["batch"].mixing == ResamplingMixup(6, 4, ratio)
    assert drawn["epoch"].sampler == Pairs(10, 80, 4, 16)
    assert drawn["epoch"].mixing == PairMixup(ratio)
    assert drawn["concat"].sampler == OldNew(10, 80, 6, 16, steps=5)
    assert drawn["concat"].mixing == VanillaMixup(ratio)
    assert drawn["concat"].old_share == 6 / 22


def test_at_least_32_old_images_by_default() -> None:
    method = make("edbl", batch=128)
    task = after_first_task(method, [10] * 4, [300, 300])
    sampler = method.draw(task).sampler
    assert isinstance(sampler, OldNew)
    assert sampler.old_batch == 32


def test_finetune_draws_new_images_alone() -> None:
    method = make("finetune")
    task = after_first_task(method, [3, 3], [9, 7])
    draw = method.draw(task)
    assert torch.equal(draw.data.x, task.train.x)
    assert set(draw.data.y.tolist()) == {2, 3}
    index = draw.sampler(seeded())
    assert index.shape == (2, 8)
    assert int(index.max()) < 16


def test_joint_draws_all_images_of_all_seen_classes() -> None:
    method = make("joint")
    task = after_first_task(method, [3, 3], [9, 7])
    draw = method.draw(task)
    assert draw.data.counts(5).tolist() == [6, 6, 9, 7, 0]  # nothing of the class still to come
    assert draw.sampler == Uniform(28, 8)


def test_joint_starts_afresh() -> None:
    method = make("joint")
    method.net.grow(2, seeded())
    before = [p.detach().clone() for p in method.net.backbone.parameters()]
    head = method.net.head.weight.detach().clone()
    task = task_of(2, [5, 5])
    method.begin(task, seeded(3))
    assert method.net.head.classes == 4
    after = list(method.net.backbone.parameters())
    assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not torch.equal(method.net.head.weight[:2], head)


@pytest.mark.parametrize("name", ["finetune", "joint"])
def test_bounds_have_no_distillation(name: str) -> None:
    method = make(name)
    task = after_first_task(method, [3, 3], [9, 9])
    (phase,) = method.phases(task)
    batch = a_batch(4)
    expected = -(batch.y * method.net.eval()(batch.x).logits.softmax(1).log()).sum(1).mean()
    torch.testing.assert_close(phase.loss(batch), expected)


def losses_with_two_teachers(method: EDBL, which: int) -> tuple[float, float]:
    """Return a phase's loss with the old teacher and with one that knows other things."""
    task = after_first_task(method, [3, 3], [9, 9])
    phase = list(method.phases(task))[which]
    method.net.eval()
    batch = a_batch(4)
    first = phase.loss(batch).item()
    assert method.teacher is not None
    other = method.teacher
    for parameter in other.net.head.parameters():
        parameter.data = torch.randn(parameter.shape, generator=seeded(12))
    return first, phase.loss(batch).item()


@pytest.mark.parametrize("name", BALANCING)
def test_which_phases_distil(name: str) -> None:
    options: dict[str, object] = {} if name == "ib" else {"alpha": 0.0}  # alpha would let the factor see the teacher
    first, second = losses_with_two_teachers(balancing(name, **options), which=0)
    assert abs(first - second) > 1e-2
    first, second = losses_with_two_teachers(balancing(name, **options), which=1)
    assert (abs(first - second) > 1e-2) is (name in ("iib-kd", "edbl"))


@pytest.mark.parametrize("name", ["iib", "iib-kd", "edbl"])
def test_alpha_lets_the_factor_see_the_teacher(name: str) -> None:
    first, second = losses_with_two_teachers(balancing(name, alpha=1.0, balance_kd_weight=0.0), which=1)
    assert abs(first - second) > 1e-4


@pytest.mark.parametrize(("name", "times"), [("iib", 0), ("iib-kd", 1)])
def test_distillation_that_weighs_nothing_is_not_worked_out(
    name: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = balancing(name, alpha=1.0)
    phase = list(method.phases(after_first_task(method, [3, 3], [9, 9])))[1]
    asked = Mock(side_effect=losses.distillation)
    monkeypatch.setattr(losses, "distillation", asked)
    phase.loss(a_batch(4))
    assert asked.call_count == times


def test_factor_over_is_passed_on() -> None:
    found = []
    for over in ("old", "all"):
        method = balancing("iib-kd", alpha=1.0, factor_over=over)
        task = after_first_task(method, [3, 3], [9, 9])
        phase = list(method.phases(task))[1]
        method.net.eval()
        method.net.head.weight.data += torch.randn(4, 128, generator=seeded(13)) * 0.1  # away from the teacher
        found.append(phase.loss(a_batch(4)).item())
    assert len({round(v, 4) for v in found}) == 2


def test_weight_place_is_passed_on() -> None:
    found = []
    for place in ("inside", "outside"):
        method = balancing("edbl", weight_place=place)
        task = after_first_task(method, [3, 3], [9, 9])
        phase = list(method.phases(task))[1]
        method.net.eval()
        found.append(phase.loss(a_batch(4)).item())
    assert abs(found[0] - found[1]) > 1e-3


@pytest.mark.parametrize("name", BALANCING)
def test_balance_loss_uses_the_class_weights_of_its_draw(name: str) -> None:
    method = balancing(name, balance_kd_weight=0.0)
    task = after_first_task(method, [2, 4], [9, 20])
    phase = list(method.phases(task))[1]
    method.net.eval()
    batch = a_batch(4)
    expected = balance_loss(method, batch, class_weights(method, phase.draw, task))
    torch.testing.assert_close(phase.loss(batch), expected)
    assert not torch.isclose(expected, balance_loss(method, batch, torch.ones(4)))


@pytest.mark.parametrize("name", BALANCING)
def test_balance_layers_head_trains_the_head_alone(name: str) -> None:
    method = balancing(name, balance_layers="head")
    task = after_first_task(method, [3, 3], [9, 9])
    train, balance = method.phases(task)
    assert {id(p) for p in train.params} == {id(p) for p in method.net.parameters()}
    assert {id(p) for p in balance.params} == {id(method.net.head.weight), id(method.net.head.bias)}


@pytest.mark.parametrize("name", BALANCING)
def test_balance_norm_eval_keeps_running_statistics(name: str) -> None:
    method = balancing(name, balance_norm="eval")
    task = after_first_task(method, [3, 3], [9, 9])
    assert [phase.train_mode for phase in method.phases(task)] == [True, False]


def test_the_old_net_teaches_in_both_phases() -> None:
    method = balancing("edbl")
    task = after_first_task(method, [3, 3], [9, 9])
    old = method.teacher
    assert old is not None
    for phase in method.phases(task):
        assert phase.teacher is method.teacher is old
        for parameter in method.net.parameters():  # stands for the training of the phase
            parameter.data += 0.1
    assert method.teach(a_batch(4).x).logits.shape == (10, 2)


@pytest.mark.parametrize(("name", "kd", "asks"), [("ib", 0.0, False), ("ib", 0.5, True), ("iib", 0.0, True)])
def test_a_teacher_that_balancing_does_not_need_is_not_asked(
    name: str, kd: float, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = balancing(name, balance_kd_weight=kd)
    task = after_first_task(method, [3, 3], [9, 9])
    asked: list[Tensor] = []

    def answer(self: Teacher, x: Tensor) -> Output:
        asked.append(x)
        return self.net(x)

    monkeypatch.setattr(Teacher, "answer", answer)
    for phase in method.phases(task):
        asked.clear()
        phase.loss(a_batch(4))
        needed = asks or phase.name == "train"
        assert (phase.teacher is not None, len(asked)) == (needed, int(needed))


@pytest.mark.parametrize("name", ["edbl", "iib-kd"])
def test_exemplars_are_chosen_once_after_both_phases(name: str) -> None:
    method = balancing(name)
    task = after_first_task(method, [6, 6], [9, 9])
    features = method.tools.outputs
    assert isinstance(features, Calls)
    before = method.memory.images.x.clone()
    for phase in method.phases(task):
        assert torch.equal(phase.draw.data.x[:12], before)  # both phases train on the old exemplars
        assert len(phase.draw.data) == 30
    assert not features.asked
    assert len(method.memory.classes) == 2
    method.end(task)
    assert len(features.asked) == 1  # chosen once, never twice
    assert features.asked[0] is task.train
    assert [len(c) for c in method.memory.classes] == [3, 3, 3, 3]
    assert torch.equal(method.memory.classes[0].x, before[:3])


@pytest.mark.parametrize("name", BALANCING)
def test_first_task_chooses_exemplars_at_its_end(name: str) -> None:
    method = balancing(name)
    task = task_of(0, [9, 9])
    method.begin(task, seeded())
    list(method.phases(task))
    assert len(method.memory) == 0
    method.end(task)
    assert [len(c) for c in method.memory.classes] == [6, 6]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_a_memory(name: str) -> None:
    method = make(name)
    task = after_first_task(method, [6, 6], [9, 9])
    list(method.phases(task))
    method.end(task)
    assert [len(c) for c in method.memory.classes] == [3, 3, 3, 3]


@pytest.mark.parametrize("name", METHODS)
def test_learning_again_as_in_a_first_task_takes_the_given_images_alone(name: str) -> None:
    method = make(name)
    after_first_task(method, [3, 3], [9, 9])
    again = task_of(0, [5, 4, 5, 4])
    assert torch.equal(method.draw(again).data.x, again.train.x)
    assert method.draw(again).sampler == Uniform(18, 8)


@pytest.mark.parametrize("name", ["rkd", "edbl"])
def test_the_first_task_may_have_epochs_and_a_weight_decay_of_its_own(name: str) -> None:
    method = make(name)
    method.first = FirstTask(task_epochs=7, task_weight_decay=1e-3)
    (first,) = method.phases(task_of(0, [9, 9]))
    assert (first.schedule.epochs, first.optim) == (7, Optim(batch=8, weight_decay=1e-3))
    for phase in method.phases(after_first_task(method, [3, 3], [9, 9])):
        assert phase.optim == Optim(batch=8)


@pytest.mark.parametrize("name", ["iib-kd", "edbl"])
def test_distillation_grows_in_the_first_phase_alone(name: str) -> None:
    found = []
    for growth in (0.0, 1.0):
        method = balancing(name, kd_growth=growth)
        task = after_first_task(method, [3, 3, 3, 3], [9, 9])
        train, balance = method.phases(task)
        method.net.eval()
        found.append((train.loss(a_batch(6)).item(), balance.loss(a_batch(6)).item()))
    assert abs(found[0][0] - found[1][0]) > 1e-2
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize(
    ("batch", "old_batch", "new_batch", "steps"),
    [(10, 6, 10, 3), (16, 6, 16, 1), (25, 10, 25, 1), (64, 20, 30, 1)],  # 20 of 50 are old: 4, 6.4, 10, all
)
def test_an_epoch_of_reading_concat_is_a_pass_over_the_new_images(
    batch: int, old_batch: int, new_batch: int, steps: int
) -> None:
    method = make("re-mkd", batch, reading="concat", min_old=6)
    task = after_first_task(method, [10, 10], [15, 15])
    assert method.draw(task).sampler == OldNew(20, 30, old_batch, new_batch, steps=steps)


@pytest.mark.parametrize("name", MIXING)
def test_clean_images_are_drawn_alike_and_not_mixed(name: str) -> None:
    method = make(name, clean_norm=True)
    task = after_first_task(method, [3, 3], [9, 9])
    draw = method.draw(task)
    clean = method.norm_statistics(task, draw)
    assert clean is not None
    assert clean.mixing is unmixed
    assert clean.sampler == draw.sampler
    assert clean.data is draw.data
    assert make(name).norm_statistics(task, draw) is None
    method.optim = Optim(batch=8, fixed_norm=True)  # statistics that are never to change
    assert method.norm_statistics(task, draw) is None


@pytest.mark.parametrize("name", MIXING)
def test_clean_images_may_be_as_many_of_old_and_new_as_there_are_classes(name: str) -> None:
    method = make(name, clean_norm=True, norm_share="classes")
    task = after_first_task(method, [3, 3, 3], [20])
    clean = method.norm_statistics(task, method.draw(task))
    assert clean is not None
    assert clean.mixing is unmixed
    assert clean.sampler == OldNew(old=9, new=20, old_batch=6, new_batch=2, steps=3)
    first = replace(task, old=0)
    draw = method.draw(first)
    clean = method.norm_statistics(first, draw)
    assert clean is not None
    assert clean.sampler == draw.sampler
