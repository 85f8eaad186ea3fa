import random

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edbl.data.images import Images
from edbl.errors import EdblError
from edbl.memory import Budget, Memory, herd
from tests.vectors import images_of

Vectors = list[list[float]]


def random_vectors(n: int, d: int, seed: int, unit: bool) -> Tensor:
    vectors = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.3
    return F.normalize(vectors) if unit else vectors * torch.linspace(0.2, 3, n, dtype=torch.float64).unsqueeze(1)


def mean_of(vectors: Vectors) -> list[float]:
    return [sum(v[i] for v in vectors) / len(vectors) for i in range(len(vectors[0]))]


def brute_force(vectors: Vectors, count: int) -> list[int]:
    """iCaRL's Algorithm 4: pick k is the argmin of || mu - (phi(x) + sum of earlier picks) / k ||."""
    mu = mean_of(vectors)
    picks: list[int] = []
    for k in range(1, min(count, len(vectors)) + 1):
        distances = {}
        for x in range(len(vectors)):
            if x in picks:
                continue
            total = 0.0
            for i in range(len(mu)):
                average = (vectors[x][i] + sum(vectors[p][i] for p in picks)) / k
                total += (mu[i] - average) ** 2
            distances[x] = total**0.5
        picks.append(min(distances, key=lambda x: distances[x]))
    return picks


def w_rule(vectors: Vectors, count: int) -> list[int]:
    """iCaRL's released code: argmax <w, phi(x)>, then w += mu - phi(x); picked images are passed over."""
    mu = mean_of(vectors)
    w = list(mu)
    picks: list[int] = []
    for _ in range(min(count, len(vectors))):
        products = {x: sum(w[i] * vectors[x][i] for i in range(len(mu))) for x in range(len(vectors)) if x not in picks}
        pick = max(products, key=lambda x: products[x])
        picks.append(pick)
        w = [w[i] + mu[i] - vectors[pick][i] for i in range(len(mu))]
    return picks


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize(("n", "d", "count"), [(1, 3, 1), (12, 2, 12), (25, 5, 10), (40, 16, 20), (8, 4, 100)])
def test_herding_is_icarls_rule(n: int, d: int, count: int, unit: bool) -> None:
    for seed in range(4):
        vectors = random_vectors(n, d, seed, unit)
        picks = herd(vectors, count).tolist()
        assert picks == brute_force(vectors.tolist(), count)
        assert len(set(picks)) == len(picks) == min(n, count)


@pytest.mark.parametrize(("n", "d", "count"), [(12, 2, 12), (25, 5, 10), (40, 16, 20)])
def test_herding_of_unit_vectors_is_icarls_code(n: int, d: int, count: int) -> None:
    for seed in range(4):
        vectors = random_vectors(n, d, seed, unit=True)
        assert herd(vectors, count).tolist() == w_rule(vectors.tolist(), count)


def test_herding_is_ordered_best_first() -> None:
    vectors = random_vectors(30, 6, 0, unit=True)
    assert herd(vectors, 5).tolist() == herd(vectors, 25).tolist()[:5]


def test_herding_of_equal_vectors_picks_each_once() -> None:
    assert sorted(herd(torch.ones(6, 3), 6).tolist()) == list(range(6))


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("total=2000", Budget("total", 2000)),
        ("per_class=20", Budget("per_class", 20)),
        ("  total = 7 ", Budget("total", 7)),
        ("per_class=0", Budget("per_class", 0)),
    ],
)
def test_parse(text: str, budget: Budget) -> None:
    assert Budget.parse(text) == budget


@pytest.mark.parametrize(
    "text",
    ["", "2000", "total", "total=", "total=-5", "total=2.5", "each=20", "total=20 images", "total=" + "9" * 5000],
)
def test_parse_errors(text: str) -> None:
    with pytest.raises(EdblError) as caught:
        Budget.parse(text)
    assert str(caught.value) == f"memory '{text}' is not understood: write total=2000, per_class=20 or none"


@pytest.mark.parametrize(
    ("total", "seen", "quotas"),
    [(10, 5, [2] * 5), (10, 4, [3, 3, 2, 2]), (2000, 60, [34] * 20 + [33] * 40), (3, 3, [1, 1, 1]), (7, 1, [7])],
)
def test_quotas_of_a_total(total: int, seen: int, quotas: list[int]) -> None:
    assert Budget("total", total).quotas(seen) == quotas


def test_quotas_per_class() -> None:
    assert Budget("per_class", 20).quotas(3) == [20, 20, 20]


def test_quotas_always_sum_to_the_total() -> None:
    draw = random.Random(0)
    for _ in range(300):
        total, seen = draw.randint(1, 3000), draw.randint(1, 200)
        quotas = Budget("total", total).quotas(seen)
        assert sum(quotas) == total
        assert max(quotas) - min(quotas) <= 1
        assert quotas == sorted(quotas, reverse=True)


@pytest.mark.parametrize("budget", [Budget("total", 10), Budget("total", 11), Budget("per_class", 1)])
def test_check_passes(budget: Budget) -> None:
    budget.check(10)


@pytest.mark.parametrize(
    ("budget", "given", "least"),
    [
        (Budget("total", 9), "total=9", "total=10"),
        (Budget("total", 0), "total=0", "total=10"),
        (Budget("per_class", 0), "per_class=0", "per_class=1"),
    ],
)
def test_check_errors(budget: Budget, given: str, least: str) -> None:
    message = f"memory {given} is smaller than one image for each of 10 classes; use at least {least}, or none"
    with pytest.raises(EdblError) as caught:
        budget.check(10)
    assert str(caught.value) == message


def new_images(first: int, counts: list[int], seed: int) -> Images:
    """Return random vectors of classes ``first`` and up, shuffled."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.tensor([first + k for k, count in enumerate(counts) for _ in range(count)])
    y = y[torch.randperm(len(y), generator=generator)]
    return Images(torch.randn(len(y), 5, generator=generator) + 0.2 * y.unsqueeze(1), y)


class Recorder:
    """Features that are the images themselves, and a note of what they were asked for."""

    def __init__(self) -> None:
        self.asked: list[Images] = []

    def __call__(self, images: Images) -> Tensor:
        self.asked.append(images)
        return images.x * 3


def test_update_herds_normalised_features_of_the_new_classes() -> None:
    memory, features, images = Memory(Budget("per_class", 6)), Recorder(), new_images(0, [9, 14, 6], 0)
    memory.update(images, features)
    assert len(memory.classes) == 3
    for k, exemplars in enumerate(memory.classes):
        members = images.x[images.y == k]
        picks = brute_force(F.normalize(members.double()).tolist(), 6)
        assert torch.equal(exemplars.x, members[picks])
        assert exemplars.y.tolist() == [k] * 6


def test_update_trims_old_classes_to_prefixes_and_never_selects_them_again() -> None:
    memory, features = Memory(Budget("total", 24)), Recorder()
    memory.update(new_images(0, [30, 30], 1), features)
    before = list(memory.classes)
    assert [len(c) for c in before] == [12, 12]
    second = new_images(2, [30, 30, 30], 2)
    memory.update(second, features)
    assert [len(c) for c in memory.classes] == [5, 5, 5, 5, 4]
    for old, now in zip(before, memory.classes[:2], strict=True):
        assert torch.equal(now.x, old.x[:5])
        assert torch.equal(now.y, old.y[:5])
    assert len(features.asked) == 2
    assert features.asked[1] is second


def test_classes_that_come_back_are_herded_from_what_is_kept_and_what_came() -> None:
    memory, features = Memory(Budget("total", 24)), Recorder()
    memory.update(new_images(0, [30, 30, 30], 1), features)
    before = list(memory.classes)
    came = Images.cat([new_images(1, [20], 2), new_images(3, [20], 3)])
    memory.update(came, features)
    assert [len(c) for c in memory.classes] == [6, 6, 6, 6]
    for k in (0, 2):
        assert torch.equal(memory.classes[k].x, before[k].x[:6])
    pool = torch.cat([before[1].x, came.x[came.y == 1]])
    assert torch.equal(memory.classes[1].x, pool[brute_force(F.normalize(pool.double()).tolist(), 6)])
    assert [images.y.unique().tolist() for images in memory.classes] == [[0], [1], [2], [3]]
    nothing_new = new_images(0, [9], 4)
    memory.update(nothing_new, features)
    assert [len(c) for c in memory.classes] == [6, 6, 6, 6]
    assert len(features.asked[-1]) == 6 + 9, "of the classes that came alone"


def test_a_reservoir_takes_images_of_known_classes() -> None:
    memory, generator = Memory(Budget("total", 20)), torch.Generator().manual_seed(0)
    memory.reservoir(new_images(0, [30, 30], 1), 0, generator)
    memory.reservoir(new_images(0, [0, 200], 2), 60, generator)
    assert len(memory.classes[0]) < 10, "three in four came later"
    assert (len(memory), len(memory.classes)) == (20, 2)


def test_per_class_keeps_all_old_exemplars() -> None:
    memory, features = Memory(Budget("per_class", 4)), Recorder()
    memory.update(new_images(0, [10, 10], 1), features)
    before = list(memory.classes)
    memory.update(new_images(2, [10], 2), features)
    assert [len(c) for c in memory.classes] == [4, 4, 4]
    assert all(torch.equal(a.x, b.x) for a, b in zip(before, memory.classes[:2], strict=True))


def test_small_classes_give_what_they_have() -> None:
    memory, features = Memory(Budget("total", 30)), Recorder()
    memory.update(new_images(0, [3, 40, 1], 1), features)
    assert [len(c) for c in memory.classes] == [3, 10, 1]
    assert len(memory) == 14


def test_a_large_class_does_not_make_small_ones_large(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def watched(vectors: Tensor, count: int, there: Tensor) -> Tensor:
        sizes.append(there.numel())
        return herd(vectors, count, there)

    monkeypatch.setattr("edbl.memory.herd", watched)
    counts = [3, 400, 5, 2, 390, 7, 1, 6]
    images = new_images(0, counts, 0)
    memory = Memory(Budget("per_class", 4))
    memory.update(images, Recorder())
    assert sum(sizes) <= 2 * sum(counts)
    assert [len(c) for c in memory.classes] == [min(4, count) for count in counts]
    for k, exemplars in enumerate(memory.classes):
        members = images.x[images.y == k]
        picks = brute_force(F.normalize(members.double()).tolist(), len(exemplars))
        assert torch.equal(exemplars.x, members[picks])
        assert set(exemplars.y.tolist()) == {k}


@pytest.mark.parametrize("seed", range(10))
def test_total_is_kept_and_used(seed: int) -> None:
    draw = random.Random(seed)
    budget = draw.randint(12, 60)
    memory, first, enough = Memory(Budget("total", budget)), 0, True
    for task in range(4):
        counts = [draw.choice([70, 80, draw.randint(1, 6)]) for _ in range(draw.randint(1, 3))]
        memory.update(new_images(first, counts, task), Recorder())
        first += len(counts)
        enough = enough and min(counts) >= 70
        assert len(memory) <= budget
        assert len(memory) == sum(len(c) for c in memory.classes)
        if enough:
            assert len(memory) == budget
        assert [int(c.y[0]) for c in memory.classes] == list(range(first))


def test_total_is_used_up_when_classes_are_large() -> None:
    memory = Memory(Budget("total", 23))
    for task in range(5):
        memory.update(new_images(2 * task, [25, 25], task), Recorder())
        assert len(memory) == 23


def test_images_are_class_by_class_and_replace_is_the_inverse() -> None:
    memory = Memory(Budget("total", 17))
    memory.update(new_images(0, [20, 2, 20], 3), Recorder())
    memory.update(new_images(3, [20], 4), Recorder())
    images = memory.images
    assert images.y.tolist() == sorted(images.y.tolist())
    assert len(images) == len(memory) == 5 + 2 + 4 + 4
    other = Memory(memory.budget)
    other.replace(images)
    assert len(other.classes) == len(memory.classes) == 4
    for mine, theirs in zip(memory.classes, other.classes, strict=True):
        assert torch.equal(mine.x, theirs.x)
        assert torch.equal(mine.y, theirs.y)
    assert torch.equal(other.images.x, images.x)


def test_memory_starts_empty() -> None:
    assert len(Memory(Budget("total", 5))) == 0


def three_classes(budget: Budget) -> Memory:
    """Return a memory of 2, 1 and 4 images, each with its number as its pixel."""
    memory = Memory(budget)
    x = torch.arange(7, dtype=torch.uint8).view(7, 1, 1, 1)
    memory.replace(Images(x, torch.tensor([0, 0, 1, 2, 2, 2, 2])))
    return memory


@pytest.mark.parametrize(
    ("number", "labels", "pixels"),
    [(0, [0, 1, 1, 1, 1], [2, 3, 4, 5, 6]), (1, [0, 0, 1, 1, 1, 1], [0, 1, 3, 4, 5, 6]), (2, [0, 0, 1], [0, 1, 2])],
)
def test_classes_after_a_removed_one_move_up(number: int, labels: list[int], pixels: list[int]) -> None:
    memory = three_classes(Budget("per_class", 4))
    memory.remove(number)
    assert memory.images.y.tolist() == labels
    assert memory.images.x.flatten().tolist() == pixels
    assert [len(images) for images in memory.classes] == [labels.count(k) for k in range(2)]


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize(
    ("budget", "kept"), [(Budget("total", 4), 2), (Budget("total", 3), 1), (Budget("per_class", 1), 1)]
)
def test_choosing_again_keeps_the_quota_among_all_classes(budget: Budget, kept: int, number: int) -> None:
    memory = three_classes(budget)
    own = set(memory.classes[number].x.flatten().tolist())
    memory.choose_again({number}, lambda images: torch.stack([images.x.flatten().float(), torch.ones(len(images))], 1))
    assert [len(images) for images in memory.classes] == [kept, 1, 1]
    assert set(memory.classes[number].x.flatten().tolist()) <= own


def test_exemplars_keep_what_is_noted_first_and_lose_a_class_of_it() -> None:
    memory = Memory(Budget("total", 9))
    memory.replace(images_of([2, 1]), 2)
    memory.note("logits", torch.arange(6.0).view(3, 2))
    memory.replace(Images.cat([memory.images, images_of([0, 0, 1])]), 3)
    memory.note("logits", 10 + torch.arange(12.0).view(4, 3))
    kept = memory.images.extra["logits"]
    assert kept[:3, :2].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert kept[:3, 2].isnan().all()
    assert kept[3].tolist() == [19, 20, 21]
    memory.remove(1, (("log*", 1),))
    left = memory.images
    assert left.y.tolist() == [0, 0, 1]
    assert left.extra["logits"].nan_to_num(-1).tolist() == [[0, -1], [2, -1], [19, 21]]
    memory.remove(0)  # no name has an axis of classes
    assert memory.images.extra["logits"].shape == (1, 2)
