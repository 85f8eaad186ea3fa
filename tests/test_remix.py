"""Remix: whose label a mixed image gets, and that nothing else is unlike plain mixup."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from edbl import Recipe
from edbl.data.images import Images
from edbl.data.mixing import Batch, Ratio, RebalancedMixup, VanillaMixup
from edbl.data.samplers import Uniform
from edbl.data.stream import Task
from edbl.memory import Budget, Memory
from edbl.methods.remix import Remix
from edbl.nets.backbones import Maker, build
from edbl.schedule import Optim, Schedule
from tests.vectors import seeded, tools

COUNTS = [1, 2, 3, 5, 6, 9, 10, 30, 99]
RATIOS = [0.0, 0.1, 0.25, 0.375, 0.5, 0.625, 0.75, 0.9, 1.0]


def literal(lam: float, n_i: int, n_j: int, kappa: float, tau: float) -> float:
    """Return the weight of the anchor's label, as the paper's cases are written."""
    if n_i / n_j >= kappa and lam < tau:
        return 0.0
    if n_i / n_j <= 1 / kappa and 1 - lam < tau:
        return 1.0
    return lam


def rebalanced(counts: list[int], kappa: float = 3.0, tau: float = 0.5, per: str = "pass") -> RebalancedMixup:
    return RebalancedMixup(
        Ratio(1.0, "sample" if per == "sample" else "pass"), torch.tensor(counts).float(), kappa, tau
    )


def shares(mixing: RebalancedMixup, lam: float, n_i: int, n_j: int) -> float:
    return mixing.of_label(torch.tensor([lam]), torch.tensor([float(n_i)]), torch.tensor([float(n_j)])).item()


@pytest.mark.parametrize(("kappa", "tau"), [(3.0, 0.5), (3.0, 0.25), (2.0, 0.75), (1.0, 0.5), (1.0, 1.0), (5.0, 0.0)])
def test_the_rule_is_the_printed_one(kappa: float, tau: float) -> None:
    cases = list(itertools.product(RATIOS, COUNTS, COUNTS))
    lam, anchor, partner = (torch.tensor(column, dtype=torch.float32) for column in zip(*cases, strict=True))
    found = rebalanced(COUNTS, kappa, tau).of_label(lam, anchor, partner).tolist()
    assert found == pytest.approx([literal(*case, kappa, tau) for case in cases])


def test_the_edges_of_the_rule() -> None:
    mixing = rebalanced([1])
    # Three times as many are many; half of the image is not too little.
    assert shares(mixing, 0.4, 30, 10) == 0.0
    assert shares(mixing, 0.4, 29, 10) == pytest.approx(0.4)
    assert shares(mixing, 0.5, 30, 10) == 0.5
    assert shares(mixing, 0.6, 10, 30) == 1.0
    assert shares(mixing, 0.6, 10, 29) == pytest.approx(0.6)
    assert shares(mixing, 0.5, 10, 30) == 0.5
    # The rarer class never loses.
    assert shares(mixing, 0.4, 10, 30) == pytest.approx(0.4)
    assert shares(mixing, 0.6, 30, 10) == pytest.approx(0.6)


@pytest.mark.parametrize("per", ["pass", "sample"])
def test_a_batch_literally(per: str) -> None:
    counts = [40, 10, 13, 120]
    labels = [k % 4 for k in range(24)]
    batch = Batch(torch.eye(24).view(24, 1, 1, 24), torch.eye(4)[labels])
    seen = set()
    for seed in range(20):
        mixing = rebalanced(counts, per=per)
        mixed = mixing(batch, seeded(seed))
        generator = seeded(seed)
        partners = torch.rand(24, generator=generator).argsort().tolist()
        lams = mixing.ratio.draw(1, 24, generator).tolist()
        assert len(set(lams)) == (24 if per == "sample" else 1)
        for i, (j, lam) in enumerate(zip(partners, lams, strict=True)):
            image, label = [0.0] * 24, [0.0] * 4
            image[i] += lam
            image[j] += 1 - lam
            share = literal(lam, counts[labels[i]], counts[labels[j]], 3.0, 0.5)
            label[labels[i]] += share
            label[labels[j]] += 1 - share
            assert mixed.x[i].flatten().tolist() == pytest.approx(image, abs=1e-6)
            assert mixed.y[i].tolist() == pytest.approx(label, abs=1e-6)
            assert sum(mixed.y[i].tolist()) == pytest.approx(1)
            if labels[i] != labels[j]:
                seen.add((share == 0, share == 1))
    assert len(seen) == 3  # the partner's label alone, the anchor's alone, and both


def test_the_rarer_class_gets_more_label_than_image_and_others_do_not() -> None:
    counts = [100, 90, 10]  # two common classes, one rare
    labels = torch.tensor([k % 3 for k in range(90)])
    batch = Batch(torch.eye(3)[labels].view(90, 1, 1, 3), torch.eye(3)[labels])  # the image shows its classes
    image, label = torch.zeros(3), torch.zeros(3)
    for seed in range(40):
        mixed = rebalanced(counts)(batch, seeded(seed))
        image += mixed.x.flatten(1).mean(0) / 40
        label += mixed.y.mean(0) / 40
        common = mixed.x.flatten(1)[:, 2] == 0
        torch.testing.assert_close(mixed.y[common], mixed.x.flatten(1)[common])  # plain mixup of common classes
        assert common.any()
        assert (mixed.y[:, 2] >= mixed.x.flatten(1)[:, 2] - 1e-6).all()
    # A rare image meets a common one in 4 of 9 pairs, in half of them the common one has less than half: of a share
    # below a half, which is a quarter in the mean, nothing is left.
    assert label[2].item() == pytest.approx(1 / 3 + 4 / 9 * 0.5 * 0.25, abs=0.02)
    torch.testing.assert_close(image, torch.full((3,), 1 / 3))


@pytest.mark.parametrize("counts", [[7, 7, 7], [9, 10, 27]])  # 27 is not three times 10; of class 0 there is none
@pytest.mark.parametrize("ratio", [Ratio(1.0, "pass"), Ratio(0.4, "sample")])
def test_without_imbalance_it_is_vanilla_mixup_to_the_bit(counts: list[int], ratio: Ratio) -> None:
    labels = [1 + k % 2 for k in range(12)]
    batch = Batch(torch.randn(12, 1, 3, 3, generator=seeded(9)), torch.eye(3)[labels])
    ours = RebalancedMixup(ratio, torch.tensor(counts).float(), 3.0, 0.5)(batch, seeded(1))
    plain = VanillaMixup(ratio)(batch, seeded(1))
    assert torch.equal(ours.x, plain.x)
    assert torch.equal(ours.y, plain.y)


def test_mixing_leaves_its_input_alone() -> None:
    batch = Batch(torch.randn(8, 2, generator=seeded()), torch.eye(2)[[0, 1] * 4])
    before = Batch(batch.x.clone(), batch.y.clone())
    mixing = rebalanced([30, 2])
    mixing(batch, seeded())
    assert torch.equal(batch.x, before.x)
    assert torch.equal(batch.y, before.y)
    assert mixing.counts.tolist() == [30, 2]


def images_of(counts: list[int], first: int = 0) -> Images:
    y = torch.tensor([first + k for k, count in enumerate(counts) for _ in range(count)])
    return Images(torch.randint(256, (len(y), 1, 1, 1), generator=seeded(first), dtype=torch.uint8), y)


def a_task(old: int, new: list[int]) -> Task:
    train = images_of(new, old)
    return Task(int(old > 0), old, len(new), train)


def a_method(kind: type[Remix], exemplars: list[int], **options: object) -> Remix:
    """Return a method that knows a class for each number of exemplars."""
    net = kind.build(Maker((1, 1, 1), lambda generator, width: build("mlp", (1, 1, 1), generator)), seeded())
    memory = Memory(Budget("total", 12))
    if exemplars:
        net.grow(len(exemplars), seeded(1))
        memory.replace(images_of(exemplars))
    config = kind.Config(**options)  # type: ignore[arg-type]
    return kind(net, memory, config, Schedule(4, 0.1, (2,)), Optim(batch=8), tools(lambda images: images.x))


def test_new_images_and_exemplars_are_drawn_alike_and_counted_as_they_are() -> None:
    method = a_method(Remix, [3, 2], beta=0.4, kappa=4.0, tau=0.3)
    task = a_task(2, [9, 20])
    method.begin(task, seeded(2))
    (phase,) = method.phases(task)
    assert phase.draw.sampler == Uniform(34, 8)
    mixing = phase.draw.mixing
    assert isinstance(mixing, RebalancedMixup)
    assert mixing.counts.tolist() == [3, 2, 9, 20]
    assert (mixing.ratio, mixing.kappa, mixing.tau) == (Ratio(0.4, "pass"), 4.0, 0.3)


def test_the_first_task_is_mixed_too() -> None:
    method = a_method(Remix, [])
    task = a_task(0, [9, 9])
    method.begin(task, seeded())
    mixing = method.draw(task).mixing
    assert isinstance(mixing, RebalancedMixup)
    batch = Batch(torch.randn(8, 1, 1, 1, generator=seeded()), torch.eye(2)[[0, 1] * 4])
    plain = VanillaMixup(Ratio(1.0, "pass"))(batch, seeded(3))
    ours = mixing(batch, seeded(3))
    assert torch.equal(ours.x, plain.x)
    assert torch.equal(ours.y, plain.y)


def test_no_teacher_and_cross_entropy_alone() -> None:
    method = a_method(Remix, [3, 3])
    task = a_task(2, [9, 9])
    method.begin(task, seeded(2))
    assert method.teacher is None
    (phase,) = method.phases(task)
    assert phase.teacher is None
    y = torch.tensor([[0.0, 0.3, 0.7, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]])
    x = torch.randn(3, 1, 1, 1, generator=seeded(4))
    probabilities = method.net.eval()(x).logits.softmax(1).tolist()
    assert phase.loss(Batch(x, y)).item() == pytest.approx(cross_entropy(probabilities, y), rel=1e-5)


def cross_entropy(probabilities: list[list[float]], y: Tensor) -> float:
    total = 0.0
    for row, target in zip(probabilities, y.tolist(), strict=True):
        total -= sum(t * math.log(p) for t, p in zip(target, row, strict=True))
    return total / len(probabilities)


def test_options_have_nothing_of_distillation() -> None:
    own = {key for key in Recipe.keys("remix") if key.startswith("options.")}
    assert own == {"options.beta", "options.kappa", "options.tau"}
    assert Remix.our_reading
    assert not Remix.distils
