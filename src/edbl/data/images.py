"""Labelled images that live on one device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor


@dataclass(frozen=True)
class Images:
    """Images (uint8, ``[n, c, h, w]``), vectors (float32, ``[n, d]``) or views of them (float16, ``[n, views, d]``)."""

    x: Tensor
    y: Tensor  # [n] int64, their labels

    def __len__(self) -> int:
        return self.y.shape[0]

    def __getitem__(self, index: Tensor) -> "Images":
        return Images(self.x[index], self.y[index])

    def to(self, device: torch.device) -> "Images":
        """Return the same images on ``device``."""
        return Images(self.x.to(device), self.y.to(device))

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
        """Return all images of ``parts``, one part after the other."""
        return Images(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]))


@dataclass(frozen=True)
class Dataset:
    """Training and test images with the names of their classes (label ``k`` is ``classes[k]``)."""

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()  # what a user should know: files skipped, converted, split off


def odd_counts(train: Images, test: Images, official_train: int, official_test: int) -> tuple[str, ...]:
    """Return a note if a data set is whole files of images but not all of them."""
    if (len(train), len(test)) == (official_train, official_test):
        return ()
    return (
        f"{len(train):,} training and {len(test):,} test images were found; "
        f"the official set has {official_train:,} and {official_test:,}",
    )
