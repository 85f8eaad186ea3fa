"""Arrivals: which training images come in which task. Each class is shuffled once by the seed, and then cut."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from edbl.data.stream import even
from edbl.errors import EdblError
from edbl.seeds import Seeds

MOST_TASKS, MOST_IMAGES = 10_000, 100_000_000  # of a stream that is given, which may have no end
CPU = torch.device("cpu")
Tail = Literal["ordered", "shuffled"]


class Arrivals(NamedTuple):
    """What a `Stream` is made of."""

    order: list[int]  # classes by their first arrival
    sizes: list[int]  # new classes of each task
    parts: list[Tensor]  # training images of each task, by number


def arrivals(labels: Tensor, parts: Sequence[Tensor], tasks: Sequence[Sequence[int]] = ()) -> Arrivals:
    """Return when classes arrive, from the training images of each task; those that ``tasks`` lists come as listed."""
    listed = [k for task in tasks for k in task]
    order: list[int] = []
    sizes = []
    for number, part in enumerate(parts):
        if not len(part):
            raise EdblError(f"task {number + 1} of the stream has no training image")
        if int(part.min()) < 0 or int(part.max()) >= len(labels):
            most = len(labels) - 1
            raise EdblError(f"task {number + 1} of the stream has numbers that are no training images': 0 to {most}")
        present = set(labels[part].unique().tolist()) - set(order)
        first = tasks[number] if tasks else ()
        new = [k for k in dict.fromkeys([*first, *listed, *sorted(present)]) if k in present]
        order += new
        sizes.append(len(new))
    return Arrivals(order, sizes, list(parts))


def share_out(
    labels: Tensor,
    tasks: Sequence[Sequence[int]],
    seed: int,
    *,
    shots: int = 0,
    imbalance: float = 1.0,
    tail: Tail = "ordered",
    blur: float = 0.0,
    disjoint: float = 0.0,
) -> list[Tensor]:
    """Return the training images of each task, by number; ``tasks`` lists the classes of each, some perhaps again.

    In this order: the long tail leaves images out; a share ``blur`` of those of a class goes to tasks that do not list
    it, evenly; the others are split evenly among the tasks that do; later tasks keep ``shots`` of each class.
    """
    seeds = Seeds(seed)
    classes = list(dict.fromkeys(k for task in tasks for k in task))
    ranks = _shuffled(classes, seeds, "tail") if tail == "shuffled" else classes
    whole = _whole(tasks, disjoint, seeds)
    found: list[list[Tensor]] = [[] for _ in tasks]
    for k in classes:
        images = (labels == k).nonzero().squeeze(1)
        images = images[torch.randperm(len(images), generator=seeds.generator(CPU, "stream", "class", k))]
        images = images[: long_tail(len(images), ranks.index(k), len(ranks), imbalance)]
        home = [t for t, task in enumerate(tasks) if k in task]
        others = _shuffled([t for t in range(len(tasks)) if t not in home], seeds, "others", k)
        away = 0 if k in whole or not others else min(round(blur * len(images)), len(images) - 1)
        counts = [*even(away, len(others)), *even(len(images) - away, len(home))]
        for t, part in zip([*others, *home], images.split(counts), strict=True):
            found[t].append(part[: shots or None] if t else part)
    return [torch.cat([torch.zeros(0, dtype=torch.int64), *task]).sort().values for task in found]


def own_parts(stream: object) -> list[Tensor]:
    """Return a stream that a user gives: for each task the numbers of its training images, which may come again."""
    if isinstance(stream, str | bytes) or not isinstance(stream, Iterable):
        raise EdblError("a stream is a list with the numbers of each task's training images")
    parts: list[Tensor] = []
    images = 0
    for number, task in enumerate(stream):
        if number == MOST_TASKS or images > MOST_IMAGES:
            raise EdblError(f"the stream has more than {MOST_TASKS:,} tasks, or {MOST_IMAGES:,} images, or no end")
        try:
            part = np.asarray(task.cpu() if isinstance(task, Tensor) else task)
        except ValueError:  # lists of unequal lengths
            part = np.empty((0, 0))
        if part.ndim != 1 or (len(part) and part.dtype.kind not in "iu"):
            raise EdblError(f"task {number + 1} of the stream is not a list of whole numbers, those of training images")
        images += len(part)
        parts.append(torch.from_numpy(part.astype(np.int64)))
    if not parts:
        raise EdblError("the stream has no task")
    return parts


def long_tail(images: int, rank: int, classes: int, factor: float) -> int:
    """Return how many images the class of a rank has: all those of rank 0, and ``factor`` of those of the last."""
    return max(1, int(images * factor ** (rank / max(1.0, classes - 1.0))))


def _whole(tasks: Iterable[Sequence[int]], share: float, seeds: Seeds) -> set[int]:
    """Return the classes, a share of those of each task, that no other task gets images of."""
    return {
        k
        for number, task in enumerate(tasks)
        for k in _shuffled(task, seeds, "whole", number)[: round(share * len(task))]
    }


def _shuffled(numbers: Sequence[int], seeds: Seeds, *place: int | str) -> list[int]:
    order = torch.randperm(len(numbers), generator=seeds.generator(CPU, "stream", *place))
    return [numbers[int(i)] for i in order]
