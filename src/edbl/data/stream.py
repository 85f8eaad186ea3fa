"""The stream: which classes arrive when. Labels are remapped to the order of arrival."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal, overload

import numpy as np
import torch
from torch import Tensor

from edbl.data.images import Dataset, Images
from edbl.errors import EdblError, unknown
from edbl.seeds import Seeds

# What a stream may have beside new classes in each task: images of classes of earlier tasks, and tasks with no others.
Kind = Literal["returning", "nothing new"]
KINDS: frozenset[Kind] = frozenset(("returning", "nothing new"))


@dataclass(frozen=True)
class Task:
    """One task. Labels below ``old`` were learnt before; ``old`` to ``seen - 1`` are new."""

    index: int  # counted from 0
    old: int  # number of classes of earlier tasks
    new: int  # number of classes that arrive
    train: Images  # training images of the new classes, and of old ones that come back
    before: int = 0  # number of training images of earlier tasks
    stream_train: Images | None = None  # what `joint` takes them from; others are not given it

    @property
    def seen(self) -> int:
        """Number of classes seen so far, the new ones included."""
        return self.old + self.new

    @property
    def classes(self) -> list[int]:
        """The classes that `train` has images of."""
        return [int(k) for k in self.train.y.unique()]

    def joint(self) -> Images:
        """Return the training images of all seen classes, for `keeps = "all images"` alone."""
        if self.stream_train is None:
            raise RuntimeError('images of earlier tasks are for a method that says keeps = "all images" alone')
        return self.stream_train.of(range(self.seen))


class Stream(Sequence[Task]):
    """The tasks of a data set: classes in order of arrival, how many of them are new in each task, and its images.

    ``parts`` has the training images of each task, by number; without it they are all those of the new classes.
    """

    def __init__(
        self,
        dataset: Dataset,
        order: Sequence[int],
        sizes: Sequence[int],
        device: torch.device,
        parts: Sequence[Tensor] | None = None,
    ) -> None:
        arrival = torch.full((len(dataset.classes),), -1)  # classes that never arrive
        arrival[torch.tensor(list(order))] = torch.arange(len(order))
        y = arrival[dataset.train.y]
        self.classes = tuple(dataset.classes[k] for k in order)
        self.sizes = tuple(sizes)
        self._ends = list(accumulate(sizes))
        if parts is None:
            bounds = zip([0, *self._ends], self._ends, strict=False)
            parts = [((y >= old) & (y < end)).nonzero().squeeze(1) for old, end in bounds]
        used = torch.cat(list(parts)).unique()
        self._held = [[int(k) for k in y[part].unique()] for part in parts]  # classes that each task has images of
        self._parts = [torch.searchsorted(used, part).to(device) for part in parts]
        self._train = replace(dataset.train, y=y)[used].to(device)
        self._test = Images(dataset.test.x, arrival[dataset.test.y]).of(range(len(order))).to(device)

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        new = self.sizes[index]
        so_far = torch.cat(self._parts[: index + 1]).unique() if self.kinds else None
        return Task(
            index,
            self._ends[index] - new,
            new,
            train=self._train[self._parts[index]],
            before=sum(map(len, self._parts[:index])),
            stream_train=self._train if so_far is None else self._train[so_far],
        )

    @property
    def returning(self) -> list[list[int]]:
        """The old classes that each task has images of; empty where none ever has."""
        olds = [end - new for new, end in zip(self.sizes, self._ends, strict=True)]
        found = [[k for k in held if k < old] for held, old in zip(self._held, olds, strict=True)]
        return found if any(found) else []

    @property
    def kinds(self) -> frozenset[Kind]:
        """What it has beside new classes in each task."""
        kinds: set[Kind] = {"returning"} if self.returning else set()
        return frozenset(kinds | {"nothing new"} if 0 in self.sizes else kinds)

    def test(self, index: int) -> Images:
        """Return the test images of all classes that are seen after task ``index``; no method is given them."""
        return self._test.of(range(self._ends[index]))


def even(classes: int, parts: int) -> list[int]:
    """Split ``classes`` into ``parts`` sizes that differ by one at most, larger ones first."""
    return [classes // parts + (i < classes % parts) for i in range(parts)]


def task_sizes(classes: int, protocol: str, tasks: int, base: int, step: int) -> list[int]:
    """Return the number of classes of each task.

    ``base0``: all classes in ``tasks`` parts. ``base-half``: the first half (rounded up), then the rest in
    ``tasks`` parts. ``base-step``: ``base`` classes first (or ``step``, if ``base`` is 0), then ``step`` at a time;
    the last task takes what is left. No class is ever dropped.
    """
    if protocol == "base-step":
        if step < 1 or not 0 <= base <= classes:
            raise EdblError(f"base-step needs stream.step of at least 1 and stream.base of 0 to {classes} classes")
        first = min(base or step, classes)
        rest = classes - first
        return [first, *[step] * (rest // step), *([rest % step] if rest % step else [])]
    first = (classes + 1) // 2 if protocol == "base-half" else 0
    if not 1 <= tasks <= classes - first:
        raise EdblError(
            f"{tasks} tasks do not fit: {protocol} leaves {classes - first} classes for them; "
            f"use stream.tasks of 1 to {classes - first}"
        )
    return [first, *even(classes - first, tasks)] if first else even(classes, tasks)


def class_order(order: str | Sequence[str], names: Sequence[str], seed: int = 0) -> list[int]:
    """Return the classes in order of arrival.

    ``natural``; a seed such as ``1993``; ``seed``, the same by that of the run; or a list of class names.
    """
    if order == "natural":
        return list(range(len(names)))
    if isinstance(order, str):
        order = str(seed) if order == "seed" else order
        if not order.isdecimal():
            raise unknown("class order", order, ["natural", "seed", "1993"])
        if len(order) > 10 or int(order) >= 2**32:
            raise EdblError(f"class order {order} is too large for a seed: at most {2**32 - 1}")
        return [int(k) for k in np.random.RandomState(int(order)).permutation(len(names))]
    found = find_classes(order, names)
    if left := [name for k, name in enumerate(names) if k not in set(found)]:
        raise EdblError(f"the class order leaves out {len(left)} of {len(names)} classes, '{left[0]}' first; name all")
    return found


def find_classes(wanted: Sequence[str], names: Sequence[str], where: str = "the class order") -> list[int]:
    """Return the numbers of classes, each given once by name or, where no name matches, by number."""
    index = {name: k for k, name in enumerate(names)}
    found = []
    for word in wanted:
        if word in index:
            found.append(index[word])
        elif word.isdecimal() and len(word) < 10 and int(word) < len(names):
            found.append(int(word))
        else:
            raise unknown("class", word, names)
    if twice := sorted({names[k] for k in found if found.count(k) > 1}):
        raise EdblError(f"{where} names '{twice[0]}' more than once")
    return found


def hold_out(dataset: Dataset, share: float, seed: int) -> Dataset:
    """Return the data set with a share of each class's training images as its test images.

    For choosing among options without looking at the test images.
    """
    y = dataset.train.y
    held = torch.zeros(len(y), dtype=torch.bool)
    generator = Seeds(seed).generator(torch.device("cpu"), "holdout")
    for k in range(len(dataset.classes)):
        members = (y == k).nonzero().squeeze(1)
        if len(members) < 2:
            raise EdblError(f"class '{dataset.classes[k]}' has too few training images to hold any out")
        count = min(max(1, round(share * len(members))), len(members) - 1)
        held[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    note = f"{share:.0%} of the training images, held out, stand in for the test images"
    return Dataset(
        dataset.name,
        dataset.train[(~held).nonzero().squeeze(1)],
        dataset.train[held.nonzero().squeeze(1)],
        dataset.classes,
        (*dataset.notes, note),
    )
