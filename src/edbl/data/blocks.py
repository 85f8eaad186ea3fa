"""CIFAR at 16x16 in disjoint pieces, so that a CPU can repeat an experiment on other images: see studies/small."""

import torch

from edbl.data.images import Dataset, Images
from edbl.data.stream import class_order
from edbl.errors import EdblError

BLOCKS = 5  # of classes, as many in each
ORDER = "1993"  # of the classes that are cut into blocks
PARTS = 3  # of the training images of each class
PER_CLASS = 1000  # training images of each class in a part


def block(data: Dataset, number: int, name: str) -> Dataset:
    """Return one of `BLOCKS` blocks of a data set's classes in order 1993, all of their images at half the side."""
    size = len(data.classes) // BLOCKS
    chosen = class_order(ORDER, data.classes)[number * size : (number + 1) * size]
    arrival = torch.full((len(data.classes),), -1)
    arrival[torch.tensor(chosen)] = torch.arange(size)
    train, test = (_halved(Images(images.x, arrival[images.y]).of(range(size))) for images in (data.train, data.test))
    return Dataset(name, train, test, tuple(data.classes[k] for k in chosen), data.notes)


def part(data: Dataset, number: int, name: str) -> Dataset:
    """Return a data set at half the side with a part of its training images: the next `PER_CLASS` of each class."""
    members = [(data.train.y == k).nonzero().squeeze(1) for k in range(len(data.classes))]
    if min(map(len, members)) < PARTS * PER_CLASS:
        raise EdblError(f"{name} needs {PARTS * PER_CLASS:,} training images of each class, and {data.name} has fewer")
    start = number * PER_CLASS
    chosen = torch.cat([places[start : start + PER_CLASS] for places in members]).sort().values
    return Dataset(name, _halved(data.train[chosen]), _halved(data.test), data.classes, data.notes)


def _halved(images: Images) -> Images:
    """Return images of half the side: each pixel is the mean of 2x2, halves rounded up."""
    x = images.x.short()
    sums = x[..., ::2, ::2] + x[..., 1::2, ::2] + x[..., ::2, 1::2] + x[..., 1::2, 1::2]
    return Images(((sums + 2) // 4).byte(), images.y)
