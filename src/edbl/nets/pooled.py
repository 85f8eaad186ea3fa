"""Classes as sums alone, with one scatter for all: nothing is left of single samples.

Samples may come in any order and split. A class that goes takes its mean along, not its part of the scatter.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self

import torch
from torch import Tensor

from edbl.nets.closed import Classes
from edbl.nets.kept import pack, unpack


class Pooled(NamedTuple):
    """Counts, means and the scatter about them, of all samples."""

    counts: Tensor  # [classes]
    means: Tensor  # [classes, width]
    scatter: Tensor  # [width, width]

    @classmethod
    def none(cls, width: int) -> Self:
        """Return the sums of nothing."""
        return cls(torch.zeros(0).double(), torch.zeros(0, width).double(), torch.zeros(width, width).double())

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Return what `tensors` gave."""
        means = tensors["means"]
        return cls(tensors["counts"], means, unpack(tensors["scatter"], means.shape[1]))

    def tensors(self) -> dict[str, Tensor]:
        """Return all as named tensors."""
        return {"counts": self.counts, "means": self.means, "scatter": pack(self.scatter)}

    @property
    def classes(self) -> Classes:
        """All that a classifier is made of."""
        return Classes(*self)

    def add(self, x: Tensor, labels: Tensor) -> "Pooled":
        """Return them with more samples, of known classes or new ones."""
        return self._merged(x, labels, 1)

    def drop(self, x: Tensor, labels: Tensor) -> "Pooled":
        """Return them without some samples, which were added before."""
        return self._merged(x, labels, -1)

    def _merged(self, x: Tensor, labels: Tensor, sign: int) -> "Pooled":
        number = max(len(self.counts), int(labels.max()) + 1)
        counts, means = x.new_zeros(number), x.new_zeros(number, x.shape[1])
        counts[: len(self.counts)], means[: len(self.means)] = self.counts, self.means
        more = torch.bincount(labels, minlength=number).to(x)
        mean = torch.zeros_like(means).index_add(0, labels, x) / more.clamp(min=1).unsqueeze(1)
        total = counts + sign * more
        away, spread = (mean - means) * (more > 0).unsqueeze(1), x - mean[labels]
        weight = counts * more / total.clamp(min=1)
        scatter = self.scatter + sign * (spread.T @ spread + (away * weight.unsqueeze(1)).T @ away)
        return Pooled(total, means + sign * (more / total.clamp(min=1)).unsqueeze(1) * away, scatter)

    def forget(self, label: int) -> "Pooled":
        """Return them without a class; those after it move up, and the covariance stays as it is."""
        stay = torch.arange(len(self.counts)) != label
        free = self.counts.sum() - len(self.counts)
        left = self.counts[stay].sum() - stay.sum()
        return Pooled(self.counts[stay], self.means[stay], self.scatter * (left / free.clamp(min=1)))

    def merge(self, label: int, into: int) -> "Pooled":
        """Return them with a class's samples as those of another one; classes after the first move up."""
        one, other = self.counts[label], self.counts[into]
        away, total = self.means[label] - self.means[into], one + other
        counts, means = self.counts.clone(), self.means.clone()
        counts[into], means[into] = total, self.means[into] + one / total * away
        stay = torch.arange(len(counts)) != label
        return Pooled(counts[stay], means[stay], self.scatter + one * other / total * torch.outer(away, away))
