"""Labelled images that live on one device, or far from it."""

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Generator, Tensor

from edbl.data import far
from edbl.errors import EdblError


@dataclass(frozen=True)
class Images:
    """Images (uint8, ``[n, c, h, w]``), vectors (float32, ``[n, d]``) or views of them (float16, ``[n, views, d]``).

    Images may be `Far`; the rest is on the device.
    """

    x: Tensor  # uint8 `[n, channels, height, width]`, or vectors, float32 `[n, width]`
    y: Tensor  # labels, int64 `[n]`
    extra: Mapping[str, Tensor] = field(default_factory=dict)  # more about each image, `[n, ...]`: floats or int64

    def __len__(self) -> int:
        return self.y.shape[0]

    def __getitem__(self, index: Tensor | slice) -> "Images":
        if (
            isinstance(self.x, Tensor)
            and self.x.is_cpu
            and isinstance(index, Tensor)
            and index.dtype == torch.int64
            and index.ndim == 1
        ):
            x = self.x.index_select(0, index)  # which copies whole images
        else:
            x = self.x[index]
        return Images(x, self.y[index], {k: v[index] for k, v in self.extra.items()})

    def to(self, device: torch.device) -> "Images":
        """Return the same images on ``device``."""
        return Images(self.x.to(device), self.y.to(device), {k: v.to(device) for k, v in self.extra.items()})

    def here(self) -> "Images":
        """Return the same images on the device."""
        return replace(self, x=far.near(self.x))

    def of(self, classes: Sequence[int]) -> "Images":
        """Return the images whose label is one of ``classes``, in their present order."""
        wanted = torch.tensor(list(classes), device=self.y.device, dtype=self.y.dtype)
        return self[torch.isin(self.y, wanted).nonzero().squeeze(1)]

    def counts(self, classes: int) -> Tensor:
        """Return how many images each of the first ``classes`` labels has."""
        return torch.bincount(self.y, minlength=classes)

    def shuffled(self, generator: Generator) -> Tensor:
        """Return where the images are, class by class, those of a class in random order."""
        order = torch.randperm(len(self), generator=generator).to(self.y.device)
        return order[self.y[order].argsort(stable=True)]

    @staticmethod
    def cat(parts: Sequence["Images"]) -> "Images":
        """Return all images of ``parts``, one part after the other; what a part lacks is NaN, of whole numbers -1."""
        names = dict.fromkeys(name for part in parts for name in part.extra)
        extra = {name: _filled(name, parts) for name in names}
        return Images(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]), extra)


def _filled(name: str, parts: Sequence[Images]) -> Tensor:
    """Return an extra of all images of some parts, as wide as the widest."""
    known = [part.extra[name] for part in parts if name in part.extra]
    widest = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in known), strict=True)]
    lacking = torch.nan if known[0].is_floating_point() else -1
    whole = known[0].new_full((sum(map(len, parts)), *widest), lacking)
    for part, rows in zip(parts, whole.split([len(part) for part in parts]), strict=True):
        if name in part.extra:
            rows[tuple(slice(size) for size in part.extra[name].shape)] = part.extra[name]
    return whole


def without(tensors: Mapping[str, Tensor], number: int, axes: Sequence[tuple[str, int]]) -> dict[str, Tensor]:
    """Return tensors by name without class ``number``, where ``axes`` says for a pattern of names which axis it has."""
    found = dict(tensors)
    for pattern, axis in axes:
        for name in fnmatch.filter(tensors, pattern):
            places = torch.arange(tensors[name].shape[axis], device=tensors[name].device)
            found[name] = tensors[name].index_select(axis, places[places != number])
    return found


def firsts(parts: Sequence[Images], counts: Sequence[int]) -> list[Images]:
    """Return the first images of each part."""
    return [part[:count] for part, count in zip(parts, counts, strict=True)]


@dataclass(frozen=True)
class Dataset:
    """Training and test images with the names of their classes (label ``k`` is ``classes[k]``)."""

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()  # what a user should know: files skipped, converted, split off

    def check(self) -> None:
        """Refuse what would be learnt wrongly without a word: other types or ranges, labels that are no class."""
        for part, images in (("training", self.train), ("test", self.test)):
            if fault := _fault(images, len(self.classes)):
                raise EdblError(f"the {part} images of {self.name} {fault}")
        empty = (self.train.counts(len(self.classes)) == 0).nonzero().flatten().tolist()
        if empty:
            raise EdblError(f"class '{self.classes[empty[0]]}' of {self.name} has no training image; leave it out")


def _fault(images: Images, classes: int) -> str:
    """Return what is wrong with images and their labels, or nothing."""
    x, y = images.x, images.y
    kinds = {4: torch.uint8, 2: torch.float32}
    if kinds.get(x.ndim) != x.dtype:
        have = f"are {str(x.dtype).removeprefix('torch.')} of shape {list(x.shape)}"
        return f"{have}; give images as uint8 [n, channels, height, width], 0 to 255, or vectors as float32 [n, width]"
    if y.dtype != torch.int64 or y.shape != x.shape[:1]:
        return f"have labels of type {y.dtype} and shape {list(y.shape)}; give one int64 for each image"
    if not len(y):
        return "are none"
    if x.ndim == 2 and not x.isfinite().all():
        return "have values that are not finite numbers"
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        return f"have labels {low} to {high}, but {classes} classes have labels 0 to {classes - 1}"
    return ""


def odd_counts(train: Images, test: Images, official_train: int, official_test: int) -> tuple[str, ...]:
    """Return a note if a data set is whole files of images but not all of them."""
    if (len(train), len(test)) == (official_train, official_test):
        return ()
    return (
        f"{len(train):,} training and {len(test):,} test images were found; "
        f"the official set has {official_train:,} and {official_test:,}",
    )
