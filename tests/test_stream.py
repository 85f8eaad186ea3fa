import random
from typing import Any

import pytest
import torch

from edbl.data.datasets import load
from edbl.data.images import Dataset, Images
from edbl.data.stream import Stream, class_order, even, find_classes, hold_out, task_sizes
from edbl.engine.prepare import plan
from edbl.errors import EdblError
from edbl.recipe import StreamSettings

CPU = torch.device("cpu")
# The order of LUCIR, Mnemonics, PyCIL and FACIL on CIFAR-100.
ORDER_1993 = [
    68, 56, 78, 8, 23, 84, 90, 65, 74, 76, 40, 89, 3, 92, 55, 9, 26, 80, 43, 38, 58, 70, 77, 1, 85, 19, 17, 50, 28, 53,
    13, 81, 45, 82, 6, 59, 83, 16, 15, 44, 91, 41, 72, 60, 79, 52, 20, 10, 31, 54, 37, 95, 14, 71, 96, 98, 97, 2, 64,
    66, 42, 22, 35, 86, 24, 34, 87, 21, 99, 0, 88, 27, 18, 94, 11, 12, 47, 25, 30, 46, 62, 69, 36, 61, 7, 63, 75, 5, 32,
    4, 51, 48, 73, 93, 39, 67, 29, 49, 57, 33,
]  # fmt: skip
NINES = "9" * 5000  # more digits than Python reads as a number
PETS = ("cat", "dog", "horse", "zebra", "fox")


def numbers(count: int) -> list[str]:
    return [str(k) for k in range(count)]


def numbered(counts: list[int], start: int) -> Images:
    """Return vectors that hold their own number, class by class but shuffled."""
    y = torch.tensor([k for k, count in enumerate(counts) for _ in range(count)])
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(start))]
    return Images(torch.arange(start, start + len(y)).float().view(-1, 1), y)


def dataset(counts: list[int], names: tuple[str, ...] = PETS) -> Dataset:
    """Return a data set whose training images are numbered from 0 and whose test images from 1000."""
    return Dataset("pets", numbered(counts, 0), numbered([3] * len(counts), 1000), names, ("a note",))


def ids(images: Images) -> list[int]:
    return [int(v) for v in images.x[:, 0]]


@pytest.mark.parametrize(
    ("classes", "tasks", "sizes"),
    [(10, 3, [4, 3, 3]), (100, 5, [20] * 5), (10, 10, [1] * 10), (7, 1, [7]), (11, 4, [3, 3, 3, 2]), (1, 1, [1])],
)
def test_base0(classes: int, tasks: int, sizes: list[int]) -> None:
    assert task_sizes(classes, "base0", tasks, base=0, step=1) == sizes
    assert even(classes, tasks) == sizes


@pytest.mark.parametrize(
    ("classes", "tasks", "sizes"),
    [
        (100, 5, [50, 10, 10, 10, 10, 10]),
        (100, 10, [50, *[5] * 10]),
        (200, 10, [100, *[10] * 10]),
        (10, 2, [5, 3, 2]),
        (11, 2, [6, 3, 2]),
        (3, 1, [2, 1]),
        (2, 1, [1, 1]),
    ],
)
def test_base_half(classes: int, tasks: int, sizes: list[int]) -> None:
    assert task_sizes(classes, "base-half", tasks, base=0, step=1) == sizes


@pytest.mark.parametrize(
    ("classes", "base", "step", "sizes"),
    [
        (10, 4, 4, [4, 4, 2]),
        (10, 0, 3, [3, 3, 3, 1]),
        (10, 4, 3, [4, 3, 3]),
        (10, 10, 1, [10]),
        (10, 0, 20, [10]),
        (10, 9, 5, [9, 1]),
        (3, 1, 1, [1, 1, 1]),
    ],
)
def test_base_step(classes: int, base: int, step: int, sizes: list[int]) -> None:
    assert task_sizes(classes, "base-step", 5, base, step) == sizes


@pytest.mark.parametrize(
    ("classes", "protocol", "tasks", "most"),
    [(10, "base0", 11, 10), (10, "base-half", 6, 5), (11, "base-half", 6, 5), (10, "base0", 0, 10)],
)
def test_more_phases_than_classes(classes: int, protocol: str, tasks: int, most: int) -> None:
    with pytest.raises(EdblError, match=rf"{tasks} tasks do not fit.*{most} classes.*stream\.tasks of 1 to {most}"):
        task_sizes(classes, protocol, tasks, base=0, step=1)
    assert sum(task_sizes(classes, protocol, most, base=0, step=1)) == classes


@pytest.mark.parametrize(("base", "step"), [(11, 1), (0, 0), (-1, 2)])
def test_base_step_out_of_range(base: int, step: int) -> None:
    with pytest.raises(EdblError, match=r"stream\.step of at least 1 and stream\.base of 0 to 10"):
        task_sizes(10, "base-step", 5, base, step)


def test_no_class_is_ever_dropped() -> None:
    draw = random.Random(0)
    built = 0
    for _ in range(3000):
        classes, tasks = draw.randint(1, 210), draw.randint(1, 60)
        protocol = draw.choice(["base0", "base-half", "base-step"])
        base, step = draw.randint(0, 30), draw.randint(1, 30)
        try:
            sizes = task_sizes(classes, protocol, tasks, base, step)
        except EdblError:
            fits = {"base0": tasks <= classes, "base-half": tasks <= classes // 2, "base-step": base <= classes}
            assert not fits[protocol]
            continue
        built += 1
        assert sum(sizes) == classes
        assert min(sizes) >= 1
        if protocol != "base-step":
            shared = sizes[1:] if protocol == "base-half" else sizes
            assert len(shared) == tasks
            assert max(shared) - min(shared) <= 1
            assert shared == sorted(shared, reverse=True)
        if protocol == "base-half":
            assert sizes[0] == sum(sizes[1:]) + classes % 2
    assert built > 1500


def test_natural_order() -> None:
    assert class_order("natural", numbers(7)) == [0, 1, 2, 3, 4, 5, 6]


def test_order_1993_is_the_customary_one() -> None:
    assert class_order("1993", numbers(100)) == ORDER_1993
    assert class_order("1993", numbers(10)) == [4, 2, 7, 6, 0, 3, 5, 8, 9, 1]
    tiny = class_order("1993", numbers(200))
    assert tiny[:10] == [168, 136, 51, 9, 183, 101, 171, 99, 42, 159]
    assert sorted(tiny) == list(range(200))


def test_another_seed_gives_another_order() -> None:
    orders = [class_order(seed, numbers(50)) for seed in ("0", "1", "2", "1993")]
    assert len({tuple(o) for o in orders}) == 4
    assert all(sorted(o) == list(range(50)) for o in orders)


def test_order_by_names_and_numbers() -> None:
    assert class_order(["fox", "cat", "zebra", "dog", "horse"], PETS) == [4, 0, 3, 1, 2]
    assert class_order(["4", "0", "3", "1", "2"], PETS) == [4, 0, 3, 1, 2]
    assert class_order(("fox", "0", "zebra", "1", "horse"), PETS) == [4, 0, 3, 1, 2]


def test_a_name_wins_over_a_number() -> None:
    assert find_classes(["2", "0", "1"], ["0", "2", "1"]) == [1, 0, 2]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (
            ["cat", "dgo", "horse", "zebra", "fox"],
            "unknown class 'dgo': did you mean 'dog'? known: cat, dog, fox, horse, zebra",
        ),
        (["cat", "dog", "horse", "zebra", "5"], "unknown class '5': known: cat, dog, fox, horse, zebra"),
        (["cat", "dog", "horse", "zebra", NINES], f"unknown class '{NINES}': known: cat, dog, fox, horse, zebra"),
        (["cat", "dog", "horse", "zebra", "-1"], "unknown class '-1': known: cat, dog, fox, horse, zebra"),
        (["cat", "dog", "horse", "zebra", "cat"], "the class order names 'cat' more than once"),
        (["cat", "dog", "horse", "zebra", "0", "fox"], "the class order names 'cat' more than once"),
        (["fox", "cat", "zebra"], "the class order leaves out 2 of 5 classes, 'dog' first; name all"),
        ([], "the class order leaves out 5 of 5 classes, 'cat' first; name all"),
        ("naturel", "unknown class order 'naturel': did you mean 'natural'? known: 1993, natural, seed"),
        ("-3", "unknown class order '-3': known: 1993, natural, seed"),
    ],
)
def test_wrong_orders(order: str | list[str], message: str) -> None:
    with pytest.raises(EdblError) as caught:
        class_order(order, PETS)
    assert str(caught.value) == message


def test_stream_remaps_labels_to_arrival() -> None:
    data = dataset([5, 6, 7, 8, 9])
    order = [3, 0, 4, 1, 2]
    stream = Stream(data, order, [2, 2, 1], CPU)
    assert stream.classes == ("zebra", "cat", "fox", "dog", "horse")
    assert stream.sizes == (2, 2, 1)
    assert len(stream) == 3
    name_of = {int(i): PETS[int(k)] for i, k in zip(data.train.x[:, 0], data.train.y, strict=True)}
    name_of |= {int(i): PETS[int(k)] for i, k in zip(data.test.x[:, 0], data.test.y, strict=True)}
    trained: list[int] = []
    for t, task in enumerate(stream):
        old, new = [(0, 2), (2, 2), (4, 1)][t]
        assert (task.index, task.old, task.new, task.seen) == (t, old, new, old + new)
        assert set(task.train.y.tolist()) == set(range(old, old + new))
        test = stream.test(t)
        assert set(test.y.tolist()) == set(range(old + new))
        for images in (task.train, test, task.joint()):
            assert [stream.classes[int(k)] for k in images.y] == [name_of[i] for i in ids(images)]
        assert len(task.train) == sum(5 + order[k] for k in range(old, old + new))
        assert len(test) == 3 * task.seen
        assert min(ids(test)) >= 1000
        trained += ids(task.train)
        assert sorted(ids(task.joint())) == sorted(trained)  # all that was seen, nothing of the future
    assert sorted(trained) == list(range(35))


def test_stream_leaves_the_dataset_alone() -> None:
    data = dataset([4, 4, 4, 4, 4])
    before = data.train.y.clone()
    list(Stream(data, [4, 3, 2, 1, 0], [1, 4], CPU))
    assert torch.equal(data.train.y, before)


def test_stream_is_a_sequence() -> None:
    stream = Stream(dataset([2] * 5), range(5), [1, 1, 3], CPU)
    assert [task.index for task in stream[1:]] == [1, 2]
    assert [task.index for task in stream[:]] == [0, 1, 2]
    with pytest.raises(IndexError):
        stream[3]


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9])
def test_hold_out_takes_a_share_of_each_class(share: float) -> None:
    counts = [10, 20, 40, 8, 100]
    data = dataset(counts)
    part = hold_out(data, share, seed=3)
    for k, count in enumerate(counts):
        held = int((part.test.y == k).sum())
        assert held == pytest.approx(share * count, abs=0.5)
        assert int((part.train.y == k).sum()) == count - held
    kept, held_out = set(ids(part.train)), set(ids(part.test))
    assert not kept & held_out
    assert kept | held_out == set(range(sum(counts)))  # numbers from 1000 are test images: none is looked at
    labels = dict(zip(ids(data.train), data.train.y.tolist(), strict=True))
    for images in (part.train, part.test):
        assert [labels[i] for i in ids(images)] == images.y.tolist()


def test_hold_out_says_so_and_changes_nothing_else() -> None:
    data = dataset([10] * 5)
    part = hold_out(data, 0.2, seed=0)
    assert (part.name, part.classes) == (data.name, data.classes)
    assert part.notes == ("a note", "20% of the training images, held out, stand in for the test images")
    assert ids(data.train) == list(range(50))
    assert ids(data.test) == list(range(1000, 1015))


def test_hold_out_by_seed() -> None:
    data = dataset([20] * 5)
    first, again, other = (set(ids(hold_out(data, 0.3, seed).test)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_hold_out_leaves_something_on_either_side() -> None:
    small = hold_out(dataset([2] * 5), 0.01, seed=0)
    assert small.test.counts(5).tolist() == small.train.counts(5).tolist() == [1] * 5
    large = hold_out(dataset([2, 3, 2, 3, 2]), 0.9, seed=0)
    assert large.train.counts(5).tolist() == [1] * 5


def test_hold_out_needs_two_images() -> None:
    with pytest.raises(EdblError, match="class 'horse' has too few training images"):
        hold_out(dataset([5, 5, 1, 5, 5]), 0.2, seed=0)


def test_images_of_counts_and_cat() -> None:
    images = numbered([3, 0, 4, 1], 0)
    assert images.counts(6).tolist() == [3, 0, 4, 1, 0, 0]
    chosen = images.of([3, 0])
    expected = [(i, k) for i, k in zip(ids(images), images.y.tolist(), strict=True) if k in (0, 3)]
    assert list(zip(ids(chosen), chosen.y.tolist(), strict=True)) == expected
    both = Images.cat([chosen, images])
    assert ids(both) == ids(chosen) + ids(images)
    assert both.y.tolist() == chosen.y.tolist() + images.y.tolist()
    assert len(images.of([])) == 0


def test_classes_that_no_task_names_never_arrive() -> None:
    dataset = load("digits")
    order, sizes, parts = plan(StreamSettings(protocol="tasks", tasks=(("7", "1"), ("4",))), dataset, 0)
    stream = Stream(dataset, order, sizes, torch.device("cpu"), parts)
    assert (stream.classes, stream.sizes) == (("7", "1", "4"), (2, 1))
    assert len(stream.test(1)) == sum(int((dataset.test.y == k).sum()) for k in (1, 4, 7))
    assert stream[1].train.y.unique().tolist() == [2]
    assert stream[1].before == int(((dataset.train.y == 7) | (dataset.train.y == 1)).sum())
    assert torch.equal(stream[1].train.x, dataset.train.of([4]).x)


def fine(**changes: object) -> Dataset:
    """Return a data set of four images, with some parts changed."""
    x = torch.zeros(4, 3, 2, 2, dtype=torch.uint8)
    parts: dict[str, Any] = {"x": x, "y": torch.tensor([0, 1, 0, 1]), "classes": ("a", "b"), **changes}
    images = Images(parts["x"], parts["y"])
    return Dataset("mine", images, images, parts["classes"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.zeros(4, 3, 2, 2)}, r"training images of mine are float32 of shape \[4, 3, 2, 2\]; give .* uint8"),
        ({"x": torch.zeros(4, 2, 2, dtype=torch.uint8)}, "are uint8 of shape"),
        ({"x": torch.zeros(4, 5, dtype=torch.float64)}, "vectors as float32"),
        ({"x": torch.full((4, 5), torch.nan)}, "not finite"),
        ({"y": torch.tensor([1, 2, 1, 2])}, "labels 1 to 2, but 2 classes have labels 0 to 1"),
        ({"y": torch.tensor([-1, 0, 1, 0])}, "labels -1 to 1"),
        ({"y": torch.tensor([0, 1, 0])}, "one int64 for each image"),
        ({"y": torch.tensor([0.0, 1.0, 0.0, 1.0])}, "labels of type"),
        ({"classes": ("a", "b", "c")}, "class 'c' of mine has no training image"),
        ({"x": torch.zeros(0, 3, 2, 2, dtype=torch.uint8), "y": torch.zeros(0, dtype=torch.int64)}, "are none"),
    ],
)
def test_data_that_would_be_learnt_wrongly_are_refused(changes: dict[str, object], message: str) -> None:
    fine().check()
    fine(x=torch.zeros(4, 7)).check()
    with pytest.raises(EdblError, match=message):
        fine(**changes).check()
