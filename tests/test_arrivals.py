"""Which training images come in which task: long tails, few shots, classes that come back, blurry boundaries."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from edbl.data.arrivals import arrivals, long_tail, share_out
from edbl.data.datasets import load
from edbl.data.images import Dataset, Images
from edbl.data.stream import Stream
from edbl.engine.prepare import plan
from edbl.errors import EdblError
from edbl.recipe import Recipe, StreamSettings

CPU = torch.device("cpu")
PAIRS = [[0, 1], [2, 3], [4, 5]]


def shuffled(counts: Sequence[int]) -> Tensor:
    """Return labels, so many of each class, in random order."""
    y = torch.tensor([k for k, count in enumerate(counts) for _ in range(count)])
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]


def counted(labels: Tensor, parts: Sequence[Tensor]) -> list[list[int]]:
    """Return how many images of each class each task has."""
    return [torch.bincount(labels[part], minlength=int(labels.max()) + 1).tolist() for part in parts]


def test_a_plain_stream_has_all_images_of_its_classes_in_their_order() -> None:
    labels = shuffled([9, 8, 7, 6, 5, 4])
    parts = share_out(labels, [[4, 0], [1], [5, 3]], 0)
    for part, classes in zip(parts, ([4, 0], [1], [5, 3]), strict=True):
        assert part.tolist() == [i for i, k in enumerate(labels.tolist()) if k in classes]
    assert arrivals(labels, parts, [[4, 0], [1], [5, 3]])[:2] == ([4, 0, 1, 5, 3], [2, 1, 2])


def test_few_shots_spare_the_first_task() -> None:
    labels = shuffled([9, 8, 7, 6, 2, 9])
    parts = share_out(labels, PAIRS, 0, shots=3)
    assert counted(labels, parts) == [[9, 8, 0, 0, 0, 0], [0, 0, 3, 3, 0, 0], [0, 0, 0, 0, 2, 3]]


def test_a_long_tail_is_that_of_cifar_lt() -> None:
    # CIFAR-100-LT and CIFAR-10-LT of 100:1 have 10,847 and 12,406 images.
    assert [long_tail(500, rank, 100, 0.01) for rank in (0, 1, 2, 49, 98, 99)] == [500, 477, 455, 51, 5, 5]
    assert sum(long_tail(500, rank, 100, 0.01) for rank in range(100)) == 10847
    assert sum(long_tail(5000, rank, 10, 0.01) for rank in range(10)) == 12406
    assert long_tail(50, 9, 10, 1e-6) == 1, "no class is ever empty"
    assert long_tail(50, 0, 1, 0.5) == 50, "a lone class is the first"


def test_classes_get_rarer_as_they_arrive_or_in_an_order_by_the_seed() -> None:
    labels, tasks = shuffled([100] * 6), [[3, 1], [5, 0], [2, 4]]
    profile = [long_tail(100, rank, 6, 0.05) for rank in range(6)]
    ordered = [
        sum(column) for column in zip(*counted(labels, share_out(labels, tasks, 0, imbalance=0.05)), strict=True)
    ]
    assert [ordered[k] for k in (3, 1, 5, 0, 2, 4)] == profile
    found = []
    for seed in range(5):
        parts = share_out(labels, tasks, seed, imbalance=0.05, tail="shuffled")
        found.append([sum(column) for column in zip(*counted(labels, parts), strict=True)])
        assert sorted(found[-1], reverse=True) == profile
    assert len({tuple(counts) for counts in found}) > 1


def test_classes_that_come_back_are_split_among_their_appearances() -> None:
    labels = shuffled([11, 8, 7, 6])
    tasks = [[0, 1], [2, 0], [3, 1, 0]]
    parts = share_out(labels, tasks, 0)
    assert counted(labels, parts) == [[4, 4, 0, 0], [4, 0, 7, 0], [3, 4, 0, 6]]
    assert sorted(torch.cat(parts).tolist()) == list(range(len(labels))), "each image comes once"
    assert arrivals(labels, parts, tasks)[:2] == ([0, 1, 2, 3], [2, 1, 1])
    assert [p.tolist() for p in share_out(labels, tasks, 0)] == [p.tolist() for p in parts]
    assert [p.tolist() for p in share_out(labels, tasks, 1)] != [p.tolist() for p in parts]


def test_a_class_with_fewer_images_than_appearances_comes_in_the_first_ones() -> None:
    labels = shuffled([2, 9])
    tasks = [[0, 1], [0, 1], [1, 0]]
    assert counted(labels, share_out(labels, tasks, 0)) == [[1, 3], [1, 3], [0, 3]]


def test_a_task_without_images_is_refused() -> None:
    labels = shuffled([1, 9])
    with pytest.raises(EdblError, match="task 2 of the stream has no training image"):
        arrivals(labels, share_out(labels, [[0], [0], [1]], 0))


def test_blurry_boundaries_share_images_of_each_class_among_other_tasks() -> None:
    labels = shuffled([40] * 6)
    parts = share_out(labels, PAIRS, 0, blur=0.2)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(labels))), "each image comes once"
    for number, task in enumerate(counted(labels, parts)):
        assert task == [32 if k in PAIRS[number] else 4 for k in range(6)]
    # All classes are in the first task, its own before those that come over: nothing is new later.
    assert arrivals(labels, parts, PAIRS)[:2] == ([0, 1, 2, 3, 4, 5], [6, 0, 0])
    other = [[4, 5], [2, 3], [0, 1]]
    assert arrivals(labels, share_out(labels, other, 0, blur=0.2), other).order == [4, 5, 2, 3, 0, 1]


def test_a_share_of_the_classes_may_stay_out_of_the_blur() -> None:
    labels = shuffled([40] * 6)
    chosen = set()
    for seed in range(8):
        parts = share_out(labels, PAIRS, seed, blur=0.2, disjoint=0.5)
        columns = list(zip(*counted(labels, parts), strict=True))
        whole = {k for k, column in enumerate(columns) if sorted(column) == [0, 0, 40]}
        assert all(len(whole & set(pair)) == 1 for pair in PAIRS), "as many of each task"
        assert arrivals(labels, parts, PAIRS).sizes == [4, 1, 1]
        chosen.add(frozenset(whole))
    assert len(chosen) > 1, "which, the seed says"
    assert counted(labels, share_out(labels, PAIRS, 0, blur=0.2, disjoint=1.0)) == counted(
        labels, share_out(labels, PAIRS, 0)
    )


@pytest.mark.parametrize("blur", [0.5, 1.0])
def test_of_each_class_an_image_stays_in_its_own_task(blur: float) -> None:
    labels = shuffled([1, 2, 3, 4, 5, 6])
    counts = counted(labels, share_out(labels, PAIRS, 0, blur=blur))
    assert all(counts[k // 2][k] >= 1 for k in range(6))
    assert [sum(column) for column in zip(*counts, strict=True)] == [1, 2, 3, 4, 5, 6]


def test_a_single_task_has_nothing_to_blur_with() -> None:
    labels = shuffled([5, 5])
    assert counted(labels, share_out(labels, [[0, 1]], 0, blur=0.5)) == [[5, 5]]


def vectors(labels: Tensor) -> Dataset:
    """Return a data set whose images hold their own number."""
    images = Images(torch.arange(len(labels)).float().view(-1, 1), labels)
    return Dataset("vectors", images, images, tuple("abcdef"[: int(labels.max()) + 1]))


def test_labels_are_those_of_first_arrival_and_tasks_tell_what_they_hold() -> None:
    labels = shuffled([10, 10, 10, 10])
    tasks = [[2, 0], [3, 2], [0, 2], [1]]
    order, sizes, parts = arrivals(labels, share_out(labels, tasks, 0), tasks)
    stream = Stream(vectors(labels), order, sizes, CPU, parts)
    assert stream.classes == ("c", "a", "d", "b")
    assert stream.sizes == (2, 1, 0, 1)
    assert stream.returning == [[], [0], [0, 1], []]
    assert stream.kinds == {"returning", "nothing new"}
    assert [(task.old, task.new, task.classes) for task in stream] == [
        (0, 2, [0, 1]),
        (2, 1, [0, 2]),
        (3, 0, [0, 1]),
        (3, 1, [3]),
    ]
    came: list[int] = []
    for task in stream:
        assert task.before == len(came)
        numbers = task.train.x[:, 0].int().tolist()
        assert [order[int(k)] for k in task.train.y] == labels[numbers].tolist()
        came += numbers
        assert sorted(task.joint().x[:, 0].int().tolist()) == sorted(came), "what came, and nothing that is to come"
        assert stream.test(task.index).y.unique().tolist() == list(range(task.seen))


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        ({}, set()),
        ({"shots": 5, "imbalance": 0.1}, set()),
        ({"protocol": "tasks", "tasks": (("0", "1"), ("2", "0"))}, {"returning"}),
        ({"protocol": "tasks", "tasks": (("0", "1"), ("0",))}, {"returning", "nothing new"}),
        ({"blur": 0.2}, {"returning", "nothing new"}),
        ({"blur": 0.2, "disjoint": 0.5}, {"returning"}),
    ],
)
def test_what_a_stream_has_beside_new_classes(given: dict[str, Any], kinds: set[str]) -> None:
    dataset = load("digits")
    order, sizes, parts = plan(StreamSettings(**given), dataset, 0)
    assert Stream(dataset, order, sizes, CPU, parts).kinds == kinds


def test_the_class_order_may_follow_the_seed() -> None:
    dataset = load("digits")
    orders = [plan(StreamSettings(order="seed"), dataset, seed).order for seed in (0, 1, 2, 1993)]
    assert len({tuple(order) for order in orders}) == 4
    assert orders[-1] == plan(StreamSettings(order="1993"), dataset, 5).order
    with pytest.raises(EdblError, match="class order 4294967296 is too large for a seed"):
        plan(StreamSettings(order="seed"), dataset, 2**32)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shots": -1}, "stream.shots = -1 is too small: at least 0"),
        ({"shots": 0.5}, "stream.shots = 0.5 is not a whole number"),
        ({"imbalance": 0}, "stream.imbalance = 0.0 is too small: at least 1e-06"),
        ({"imbalance": 100}, "stream.imbalance = 100.0 is too large: at most 1"),
        ({"blur": 1.5}, "stream.blur = 1.5 is too large: at most 1"),
        ({"blur": "much"}, "stream.blur = 'much' is not a finite number"),
        ({"tail": "long", "imbalance": 0.1}, "unknown value of stream.tail 'long': known: ordered, shuffled"),
        ({"tail": "shuffled"}, "stream.tail does not apply without stream.imbalance; leave it out"),
        ({"disjoint": 0.5}, "stream.disjoint does not apply without stream.blur; leave it out"),
    ],
)
def test_wrong_settings(given: dict[str, Any], message: str) -> None:
    with pytest.raises(EdblError) as caught:
        Recipe.build("rkd", **{f"stream.{key}": value for key, value in given.items()})
    assert str(caught.value) == message


def test_a_task_names_a_class_once() -> None:
    settings = StreamSettings(protocol="tasks", tasks=(("0", "1"), ("2", "2")))
    with pytest.raises(EdblError, match=r"^task 2 of stream\.tasks names '2' more than once$"):
        plan(settings, load("digits"), 0)
