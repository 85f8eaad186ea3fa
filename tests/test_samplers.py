import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from edbl.data.samplers import OldNew, Pairs, Uniform, cycle
from tests.vectors import seeded


def even(counts: Counter[int], numbers: range) -> bool:
    """Tell whether all numbers come up equally often, give or take one."""
    found = [counts[k] for k in numbers]
    return sum(found) == counts.total() and max(found) - min(found) <= 1


@pytest.mark.parametrize(("count", "need"), [(1, 1), (1, 7), (5, 5), (5, 3), (5, 17), (7, 70), (50, 49), (3, 0)])
def test_cycle_is_whole_shuffles(count: int, need: int) -> None:
    numbers = cycle(count, need, seeded()).tolist()
    assert len(numbers) == need
    for start in range(0, need, count):
        part = numbers[start : start + count]
        assert len(set(part)) == len(part)
        assert set(part) <= set(range(count))
    assert even(Counter(numbers), range(count))


def test_cycle_shuffles_each_round_anew() -> None:
    rounds = cycle(20, 100, seeded()).view(5, 20)
    assert len({tuple(r.tolist()) for r in rounds}) == 5
    assert rounds[0].tolist() != list(range(20))


def test_cycle_puts_every_number_everywhere() -> None:
    firsts = Counter(cycle(4, 1, seeded(seed)).item() for seed in range(400))
    assert all(60 <= firsts[k] <= 140 for k in range(4))


@pytest.mark.parametrize(("count", "batch"), [(100, 10), (105, 10), (10, 10), (19, 10), (3, 10), (2, 128), (5, 2)])
def test_uniform(count: int, batch: int) -> None:
    batches = Uniform(count, batch)(seeded())
    assert batches.shape == (max(1, count // batch), min(batch, count))
    numbers = batches.flatten().tolist()
    assert len(set(numbers)) == len(numbers)
    assert set(numbers) <= set(range(count))


def test_uniform_never_draws_an_image_alone() -> None:
    # Batch normalisation needs two.
    assert Uniform(1, 128)(seeded()).tolist() == [[0, 0]]
    batches = Uniform(5, 1)(seeded())
    assert batches.shape == (2, 2)
    assert len(set(batches.flatten().tolist())) == 4


def test_uniform_leaves_out_others_in_each_epoch() -> None:
    sampler, generator = Uniform(19, 10), seeded()
    seen = [set(sampler(generator).flatten().tolist()) for _ in range(30)]
    assert set.union(*seen) == set(range(19))
    assert len({frozenset(s) for s in seen}) > 20


def test_natural_fills_up_to_32_old() -> None:
    # CIFAR-100 in 5 parts: 128 * 2000 / 12000 = 21.3 old images by nature (A2).
    assert OldNew.natural(2000, 10_000, 128, 32) == OldNew(2000, 10_000, 32, 107, steps=93)


@pytest.mark.parametrize(
    ("old", "new", "batch", "min_old", "old_batch", "new_batch"),
    [
        (6000, 6000, 128, 32, 64, 64),  # enough old ones: natural proportions
        (3000, 1000, 128, 32, 96, 32),
        (3000, 1000, 128, 1, 96, 32),
        (200, 10_000, 128, 32, 32, 125),  # 2.51 by nature
        (1, 10_000, 128, 32, 32, 127),  # at least one old image by nature
        (10_000, 1, 128, 32, 127, 1),  # and one new
        (40, 60, 128, 32, 40, 60),  # fewer images than a batch
        (1, 2, 128, 32, 32, 2),
        (1, 1, 128, 32, 32, 1),
        (1, 2, 128, 1, 1, 2),
    ],
)
def test_natural_proportions(old: int, new: int, batch: int, min_old: int, old_batch: int, new_batch: int) -> None:
    sampler = OldNew.natural(old, new, batch, min_old)
    assert (sampler.old_batch, sampler.new_batch) == (old_batch, new_batch)
    assert sampler.steps == max(1, (old + new) // batch)
    assert sampler(seeded()).shape == (sampler.steps, sampler.old_batch + sampler.new_batch)


@pytest.mark.parametrize(
    "sampler",
    [
        OldNew(old=10, new=100, old_batch=4, new_batch=9, steps=11),
        OldNew(old=7, new=30, old_batch=32, new_batch=3, steps=5),
        OldNew.natural(200, 1000, 64, 32),
        OldNew.natural(1, 2, 128, 32),
        OldNew.natural(1, 1, 2, 32),
    ],
)
def test_old_come_first_and_all_come_up_evenly(sampler: OldNew) -> None:
    batches = sampler(seeded())
    old, new = batches[:, : sampler.old_batch], batches[:, sampler.old_batch :]
    assert new.shape == (sampler.steps, sampler.new_batch)
    assert even(Counter(old.flatten().tolist()), range(sampler.old))
    assert even(Counter(new.flatten().tolist()), range(sampler.old, sampler.old + sampler.new))


def test_natural_epoch_covers_the_new_images_nearly_once() -> None:
    sampler = OldNew.natural(2000, 10_000, 128, 32)
    counts = Counter(sampler(seeded())[:, 32:].flatten().tolist())
    assert max(counts.values()) == 1
    assert counts.total() > 0.99 * 10_000 * 93 * 128 / 12_000


def split_pairs(batches: Tensor) -> list[tuple[int, int]]:
    """Return anchor and partner of each pair: a batch holds all anchors, then all partners."""
    half = batches.shape[1] // 2
    anchors, partners = batches[:, :half].flatten().tolist(), batches[:, half:].flatten().tolist()
    return list(zip(anchors, partners, strict=True))


@pytest.mark.parametrize(("old", "new", "rounds"), [(6, 20, 2), (1, 2, 1), (10, 3, 5), (8, 8, 1)])
def test_pairs_kinds_and_numbers(old: int, new: int, rounds: int) -> None:
    total = 2 * rounds * old + new
    batches = Pairs(old, new, rounds, batch=total)(seeded())
    assert batches.shape == (1, 2 * total)
    found = split_pairs(batches)
    old_old = [(a, b) for a, b in found if a < old and b < old]
    old_new = [(a, b) for a, b in found if a < old <= b]
    new_new = [(a, b) for a, b in found if a >= old and b >= old]
    assert (len(old_old), len(old_new), len(new_new)) == (rounds * old, rounds * old, new)
    for kind in (old_old, old_new):
        assert Counter(a for a, _ in kind) == dict.fromkeys(range(old), rounds)
    assert Counter(b for _, b in old_old) == dict.fromkeys(range(old), rounds)
    assert even(Counter(b for _, b in old_new), range(old, old + new))
    assert Counter(a for a, _ in new_new) == dict.fromkeys(range(old, old + new), 1)
    assert Counter(b for _, b in new_new) == dict.fromkeys(range(old, old + new), 1)


def test_pairs_balance_the_classes() -> None:
    # Reading (A) of A2: with r = N/2 every old class has as many anchors as a new one.
    labels = [0, 0, 1, 1, *[2] * 12, *[3] * 12]
    found = split_pairs(Pairs(old=4, new=24, rounds=3, batch=48)(seeded()))
    anchors = Counter(labels[a] for a, _ in found)
    assert anchors == {0: 12, 1: 12, 2: 12, 3: 12}


def test_pairs_are_shuffled_and_cut() -> None:
    sampler = Pairs(old=10, new=40, rounds=3, batch=16)
    batches = sampler(seeded())
    assert batches.shape == (100 // 16, 32)
    for batch in batches:  # 30 old-old, 30 old-new and 40 new-new pairs: a batch of 16 has some of each
        found = split_pairs(batch.unsqueeze(0))
        kinds = {(a < 10, b < 10) for a, b in found}
        assert kinds == {(True, True), (True, False), (False, False)}


@pytest.mark.parametrize("make", [lambda: Uniform(50, 8), lambda: OldNew(10, 40, 4, 8, 5), lambda: Pairs(5, 20, 2, 8)])
def test_the_seed_decides(make: Callable[[], Uniform | OldNew | Pairs]) -> None:
    sampler = make()
    first, again, other = (sampler(seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    generator = seeded(1)
    assert not torch.equal(sampler(generator), sampler(generator))
    assert first.dtype == torch.int64


def test_steps_of_an_epoch_are_whole_batches() -> None:
    for old in (1, 3, 20, 2000):
        for new in (1, 2, 500):
            for batch in (1, 2, 64, 128):
                sampler = OldNew.natural(old, new, batch, 1)
                assert sampler.steps == math.floor((old + new) / min(batch, old + new))
                assert sampler.new_batch >= 1
                assert sampler.old_batch >= 1


def test_pairs_seldom_hold_an_image_twice() -> None:
    """A shuffle leaves one image in its place in the mean."""
    found = split_pairs(Pairs(old=50, new=60, rounds=2, batch=260)(seeded()))
    assert sum(a == b < 50 for a, b in found) < 10
    assert sum(a == b >= 50 for a, b in found) < 10
