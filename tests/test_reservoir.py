"""The reservoir: an even sample of everything seen, never larger than the budget."""

import math
import random
from collections import Counter
from itertools import accumulate

import pytest
import torch

from edbl.data.images import Images
from edbl.memory import Budget, Memory

TRIALS = 3000


def stream(sizes: list[int], per_task: int) -> list[Images]:
    """Return tasks of these sizes whose images are their own number and have ``per_task`` classes, all of them."""
    ends = list(accumulate(sizes))
    tasks = []
    for number, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        x = torch.arange(end - size, end).view(-1, 1)
        tasks.append(Images(x, number * per_task + torch.arange(size) % per_task))
    return tasks


def sampled(tasks: list[Images], budget: Budget, seed: int) -> Memory:
    memory, before = Memory(budget), 0
    generator = torch.Generator().manual_seed(seed)
    for task in tasks:
        memory.reservoir(task, before, generator)
        before += len(task)
    return memory


def one_by_one(count: int, size: int, generator: random.Random) -> list[int]:
    """The textbook's reservoir: image i (from 1) enters with probability size / i in place of a random one."""
    kept: list[int] = []
    for image in range(count):
        if len(kept) < size:
            kept.append(image)
        elif (place := generator.randrange(image + 1)) < size:
            kept[place] = image
    return kept


def chi_square(counts: Counter[int], images: int, share: float) -> float:
    """Return Pearson's statistic of inclusions; a sample of fixed size has ``images - 1`` degrees of freedom."""
    expected = TRIALS * share
    total = sum((counts[i] - expected) ** 2 for i in range(images)) / (expected * (1 - share))
    return total * (images - 1) / images


def limit(freedom: int) -> float:
    return freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize(("sizes", "size"), [([8, 6, 10, 6], 7), ([3, 4, 20], 9), ([20, 2, 2, 2], 6), ([5, 5, 5], 12)])
def test_every_image_is_kept_with_the_same_probability(sizes: list[int], size: int) -> None:
    tasks, images = stream(sizes, per_task=2), sum(sizes)
    ours, theirs, generator = Counter[int](), Counter[int](), random.Random(0)
    for trial in range(TRIALS):
        ours.update(sampled(tasks, Budget("total", size), trial).images.x.flatten().tolist())
        theirs.update(one_by_one(images, size, generator))
    assert chi_square(theirs, images, size / images) < limit(images - 1)
    assert chi_square(ours, images, size / images) < limit(images - 1)


def test_every_pair_is_kept_with_the_same_probability() -> None:
    sizes, size = [4, 3, 5], 5
    tasks, images = stream(sizes, per_task=1), sum(sizes)
    pairs = Counter[tuple[int, int]]()
    for trial in range(TRIALS):
        kept = sorted(sampled(tasks, Budget("total", size), trial).images.x.flatten().tolist())
        pairs.update((a, b) for i, a in enumerate(kept) for b in kept[i + 1 :])
    expected = TRIALS * size * (size - 1) / (images * (images - 1))
    spread = 5 * math.sqrt(expected)
    assert len(pairs) == images * (images - 1) // 2
    assert all(abs(count - expected) < spread for count in pairs.values())


@pytest.mark.parametrize("budget", [Budget("total", 9), Budget("total", 40), Budget("per_class", 3)])
def test_the_budget_is_used_and_kept(budget: Budget) -> None:
    tasks = stream([10, 7, 9], per_task=2)
    for trial in range(200):
        memory, before = Memory(budget), 0
        generator = torch.Generator().manual_seed(trial)
        for number, task in enumerate(tasks):
            memory.reservoir(task, before, generator)
            before += len(task)
            seen = 2 * (number + 1)
            assert len(memory) == min(sum(budget.quotas(seen)), before)
            assert len(memory.classes) == seen
            kept = memory.images
            assert len(set(kept.x.flatten().tolist())) == len(kept), "no image twice"
            assert kept.y.tolist() == sorted(kept.y.tolist()), "class by class"
            everything = Images.cat(tasks)
            assert torch.equal(everything.y[kept.x.flatten()], kept.y), "images keep their labels"


def test_a_growing_budget_is_still_nearly_even() -> None:
    tasks = stream([12, 12, 12], per_task=2)
    counts = Counter[int]()
    for trial in range(TRIALS):
        counts.update(sampled(tasks, Budget("per_class", 2), trial).images.x.flatten().tolist())
    share = 12 / 36
    for start in (0, 12, 24):
        assert sum(counts[i] for i in range(start, start + 12)) / 12 / TRIALS == pytest.approx(share, rel=0.2)


def test_a_class_may_be_left_without_exemplars() -> None:
    empty = 0
    for seed in range(20):
        memory = sampled(stream([10, 10, 10], per_task=2), Budget("total", 6), seed)
        assert len(memory.classes) == 6
        empty += any(not len(images) for images in memory.classes)
    assert empty
