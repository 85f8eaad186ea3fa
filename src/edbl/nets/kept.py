"""What classifiers in closed form keep of samples: their features in half precision; of a class of many, sums alone.

Nothing here hangs on the order of samples, or on how they were split into updates, but for the last digits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from edbl.nets.closed import Classes

MANY = 1000  # samples of a class, of more of which sums are kept and the features of half as many
JUDGES = 2000  # samples that are left out one by one, shared by the classes
LEAST_JUDGES = 20  # of a class
CHOOSING = 4  # part of `MANY`: so many of a class choose the classifier, half of what is left of a class of many
ODD = -7046029254386353131  # 2**64 over the golden ratio: its multiples look random
STATE = ("features", "labels", "ids", "counts", "means", "scatter", "summed", "scatters")


Part = Mapping[str, Tensor]  # what is kept of a class, by name


@dataclass(frozen=True)
class Kept:
    """What is kept of all samples of all classes.

    Counts, means and scatters are of all samples, as ``vectors`` makes them of features. A class of many has its own
    scatter, and among ``features`` those of some of its samples, to leave out one by one: all whose number by `_odd`
    is at most some bound, whatever was added and dropped.
    """

    features: Tensor  # [n, width], in half precision
    labels: Tensor  # [n]
    ids: Tensor  # [n, k], what else names each of them: k numbers, or none
    counts: Tensor  # [classes]
    means: Tensor  # [classes, width]
    scatter: Tensor  # [width, width], the sum over classes
    summed: Tensor  # [k], classes of many
    scatters: Tensor  # [k, width * (width + 1) / 2], the lower triangle of theirs
    vectors: Callable[[Tensor], Tensor]
    balanced: bool  # whether a class's part of ``scatter`` is that over its number of samples

    @classmethod
    def none(
        cls, width: int, device: torch.device, vectors: Callable[[Tensor], Tensor], balanced: bool, ids: int = 0
    ) -> Self:
        """Return what is kept of nothing; samples are named by so many numbers."""
        rows, square = torch.zeros(0, width, device=device), torch.zeros(width, width, device=device).double()
        labels = rows[:, 0].long()
        return cls(
            features=rows.half(),
            labels=labels,
            ids=labels.new_zeros(0, ids),
            counts=rows[:, 0].double(),
            means=rows.double(),
            scatter=square,
            summed=labels,
            scatters=pack(square).unsqueeze(0)[:0],
            vectors=vectors,
            balanced=balanced,
        )

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], vectors: Callable[[Tensor], Tensor], balanced: bool) -> Self:
        """Return what `tensors` gave."""
        found = {name: tensors[name] for name in STATE}
        found["scatter"] = unpack(found["scatter"], found["means"].shape[1])
        return cls(**found, vectors=vectors, balanced=balanced)

    def tensors(self) -> dict[str, Tensor]:
        """Return all as named tensors."""
        return {name: getattr(self, name) for name in STATE} | {"scatter": pack(self.scatter)}

    @classmethod
    def joined(cls, parts: Sequence[Part], none: "Kept", sums: Mapping[str, Tensor] | None = None) -> "Kept":
        """Return what is kept of classes of which `part` gave each; ``sums``, if there are any, save the work."""
        many = torch.tensor([k for k, part in enumerate(parts) if "scatter" in part], dtype=torch.int64)
        sizes = torch.tensor([len(part["ids"]) for part in parts])
        found = replace(
            none,
            features=torch.cat([none.features, *(part["features"] for part in parts)]),
            labels=torch.arange(len(parts)).repeat_interleave(sizes),
            ids=torch.cat([none.ids, *(part["ids"] for part in parts)]),
            counts=torch.zeros(len(parts)).double(),
            means=torch.zeros(len(parts), none.means.shape[1]).double(),
            summed=many,
            scatters=torch.cat([none.scatters, *(parts[k]["scatter"].unsqueeze(0) for k in many.tolist())]),
        )
        if sums is not None:
            return replace(
                found,
                counts=sums["counts"],
                means=sums["means"],
                scatter=unpack(sums["scatter"], none.means.shape[1]),
            )
        for k in many.tolist():
            found.counts[k], found.means[k] = parts[k]["count"], parts[k]["mean"]
        return found._settled(none, torch.arange(len(parts)))

    def part(self, label: int) -> Part:
        """Return what is kept of a class, whatever the others are."""
        rows = self.labels == label
        own: dict[str, Tensor] = {"features": self.features[rows], "ids": self.ids[rows]}
        if (here := self.summed == label).any():
            own |= {"count": self.counts[label], "mean": self.means[label], "scatter": self.scatters[here][0]}
        return own

    @property
    def sums(self) -> Part:
        """What could be worked out from the parts again."""
        return {"counts": self.counts, "means": self.means, "scatter": pack(self.scatter)}

    @property
    def classes(self) -> Classes:
        """All that a classifier is made of, but for samples to leave out."""
        return Classes(self.counts, self.means, self.scatter)

    @property
    def _most(self) -> int:
        """How many samples of a class are left out one by one."""
        return max(LEAST_JUDGES, JUDGES // max(len(self.counts), 1))

    def judges(self) -> tuple[Tensor, Tensor]:
        """Return samples by which a classifier is chosen, of each class as many, and their labels.

        They are the same however a class came to be, and whatever of it was dropped, as long as none is `worn`.
        """
        return self.samples(self.choosing)

    def samples(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return samples and their labels."""
        return self.vectors(self.features[chosen].double()), self.labels[chosen]

    @cached_property
    def choosing(self) -> Tensor:
        """Tell by which samples a classifier is chosen, ``[n]``."""
        return self._shared(min(self._most, MANY // CHOOSING))

    @cached_property
    def judging(self) -> Tensor:
        """Tell which samples are left out one by one, ``[n]``: those of `choosing`, and more of few classes."""
        return self._shared(self._most) if self._most > MANY // CHOOSING else self.choosing

    def _shared(self, most: int) -> Tensor:
        return self._first(torch.bincount(self.labels, minlength=len(self.counts)) > most, most)

    @property
    def worn(self) -> list[int]:
        """Classes of many of whose samples so many were dropped that too few are left to choose a classifier by."""
        there = torch.bincount(self.labels, minlength=len(self.counts))
        return (there < self.counts.clamp(max=min(self._most, MANY // CHOOSING))).nonzero().squeeze(1).tolist()

    def add(self, features: Tensor, labels: Tensor, ids: Tensor | None = None) -> "Kept":
        """Return it with more samples, of known classes or new ones."""
        classes = max(len(self.counts), int(labels.max()) + 1)
        empty = self.counts.new_zeros(classes - len(self.counts))
        ids = labels.new_zeros(len(labels), 0) if ids is None else ids
        near = self._within(features.half(), labels)
        more = replace(
            self,
            features=torch.cat([self.features, features.half()[near]]),
            labels=torch.cat([self.labels, labels[near]]),
            ids=torch.cat([self.ids, ids[near]]),
            counts=torch.cat([self.counts, empty]),
            means=torch.cat([self.means, empty.unsqueeze(1).expand(-1, self.means.shape[1])]),
        )
        for label in self.summed[torch.isin(self.summed, labels)].tolist():
            more = more._merged(label, features[labels == label], 1)
        return more._settled(self, labels)

    def _within(self, features: Tensor, labels: Tensor) -> Tensor:
        """Tell which samples may be kept, ``[n]``: of a class of many those below the last of what is kept of it."""
        stay = torch.ones_like(labels, dtype=torch.bool)
        for label in self.summed[torch.isin(self.summed, labels)].tolist():
            last = _last(_odd(self.features[self.labels == label]))
            stay &= (labels != label) | (_odd(features) < last)
        return stay

    def drop(self, features: Tensor, labels: Tensor, ids: Tensor | None = None) -> "Kept":
        """Return it without some samples, which were added before."""
        stay, fewer = torch.ones_like(self.labels, dtype=torch.bool), self
        ids = labels.new_zeros(len(labels), 0) if ids is None else ids
        for row, label, id in zip(features.half(), labels.tolist(), ids, strict=True):
            own = stay & (self.labels == label) & (self.ids == id).all(1)
            same = (own & (self.features == row).all(1)).nonzero()
            stay[same[:1]] = False
            if label in self.summed.tolist():
                fewer = fewer._merged(label, row.unsqueeze(0), -1)
            elif not len(same):
                raise ValueError(f"a sample of class {label} that is to be dropped was never added")
        fewer = replace(fewer, features=self.features[stay], labels=self.labels[stay], ids=self.ids[stay])
        return fewer._settled(self, labels)

    def forget(self, label: int) -> "Kept":
        """Return it without a class; those after it move up."""
        stay, other = self.labels != label, torch.arange(len(self.counts), device=self.labels.device) != label
        others = self.summed != label
        return replace(
            self,
            features=self.features[stay],
            labels=_moved_up(self.labels[stay], label),
            ids=self.ids[stay],
            counts=self.counts[other],
            means=self.means[other],
            scatter=self.scatter - self._scatter_of(~other),
            summed=_moved_up(self.summed[others], label),
            scatters=self.scatters[others],
        )

    def _settled(self, before: "Kept", labels: Tensor) -> "Kept":
        """Return it with counts, means and scatter as they are since samples of ``labels`` came or went."""
        changed = torch.zeros_like(self.counts, dtype=torch.bool)
        changed[labels] = True
        alone = changed.index_fill(0, self.summed, False)
        rows = alone[self.labels]
        x, y = self.vectors(self.features[rows].double()), self.labels[rows]
        counts = torch.bincount(y, minlength=len(alone)).double()
        means = torch.zeros_like(self.means).index_add(0, y, x) / counts.clamp(min=1).unsqueeze(1)
        now = replace(
            self,
            counts=counts.where(alone, self.counts),
            means=means.where(alone.unsqueeze(1), self.means),
        )
        gone = before._scatter_of(changed[: len(before.counts)])
        scatter = before.scatter - gone + now._scatter_of(changed, (x, y))
        return replace(now, scatter=scatter)._summed_up()

    def _summed_up(self) -> "Kept":
        """Return it with sums instead of most features of classes that have many by now."""
        many = (torch.bincount(self.labels, minlength=len(self.counts)) > MANY).nonzero().squeeze(1)
        new = many[~torch.isin(many, self.summed)]
        scatters = [self.scatters]
        for label in new.tolist():
            away = self.vectors(self.features[self.labels == label].double()) - self.means[label]
            scatters.append(pack(away.T @ away).unsqueeze(0))
        summed = torch.cat([self.summed, new])
        stay = self._first(torch.isin(torch.arange(len(self.counts), device=summed.device), summed), MANY // 2)
        return replace(
            self,
            features=self.features[stay],
            labels=self.labels[stay],
            ids=self.ids[stay],
            summed=summed,
            scatters=torch.cat(scatters),
        )

    def _merged(self, label: int, features: Tensor, sign: int) -> "Kept":
        """Return it with the sums of a class of many that has more samples, or with ``sign`` -1 fewer."""
        x = self.vectors(features.half().double())
        mean = x.mean(0)
        count, total = float(self.counts[label]), float(self.counts[label]) + sign * len(x)
        away, spread = mean - self.means[label], x - mean
        change = spread.T @ spread + count * len(x) / total * torch.outer(away, away)
        here = self.summed == label
        return replace(
            self,
            counts=self.counts.index_fill(0, self.summed[here], total),
            means=self.means.index_add(0, self.summed[here], (sign * len(x) / total * away).unsqueeze(0)),
            scatters=self.scatters + here.unsqueeze(1) * sign * pack(change),
        )

    def _scatter_of(self, chosen: Tensor, samples: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Return the part of some classes in ``scatter``; ``samples`` are theirs, with their classes."""
        weights = 1 / self.counts.clamp(min=1) if self.balanced else torch.ones_like(self.counts)
        if samples is None:
            rows = chosen.index_fill(0, self.summed, False)[self.labels]
            samples = self.vectors(self.features[rows].double()), self.labels[rows]
        x, y = samples
        away = x - self.means[y]
        scatter = (away * weights[y].unsqueeze(1)).T @ away
        if not len(self.summed):
            return scatter
        of_many = self.scatters * (weights * chosen)[self.summed].unsqueeze(1)
        return scatter + unpack(of_many.sum(0), len(self.scatter))

    def _first(self, chosen: Tensor, most: int) -> Tensor:
        """Tell which samples stay if some classes keep ``most``: by an order that hangs on values and looks random."""
        stay = torch.ones_like(self.labels, dtype=torch.bool)
        for label in chosen.nonzero().squeeze(1).tolist():
            rows = (self.labels == label).nonzero().squeeze(1)
            stay[rows[_odd(self.features[rows]).argsort(stable=True)[most:]]] = False
        return stay


def united(one: Part, other: Part, vectors: Callable[[Tensor], Tensor]) -> Part:
    """Return what is kept of two classes as one; samples of both count once, where each is kept of one at least."""
    both = (other["ids"].unsqueeze(1) == one["ids"].unsqueeze(0)).all(2)
    if "scatter" not in one and "scatter" not in other:
        new = ~both.any(1)
        return {name: torch.cat([one[name], other[name][new]]) for name in ("features", "ids")}
    if both.any():
        raise ValueError("samples of both are in sums alone")
    last = min(_last(_odd(part["features"])) for part in (one, other) if "scatter" in part)
    one, other = (_up_to(last, part if "scatter" in part else _as_sums(part, vectors)) for part in (one, other))
    counts = one["count"], other["count"]
    total, away = counts[0] + counts[1], other["mean"] - one["mean"]
    between = pack(counts[0] * counts[1] / total * torch.outer(away, away))
    return {
        "features": torch.cat([one["features"], other["features"]]),
        "ids": torch.cat([one["ids"], other["ids"]]),
        "count": total,
        "mean": one["mean"] + counts[1] / total * away,
        "scatter": one["scatter"] + other["scatter"] + between,
    }


def _odd(features: Tensor) -> Tensor:
    """Return a number of each sample that hangs on its values alone, and looks random."""
    bits = features.contiguous().view(torch.int16).long()
    return (bits * (ODD * (2 * torch.arange(bits.shape[1], device=bits.device) + 1))).sum(1)


def _last(numbers: Tensor) -> int:
    return int(numbers.max()) if len(numbers) else torch.iinfo(torch.int64).min


def _up_to(last: int, part: Part) -> Part:
    """Return a part without samples of which others of the same number are not kept."""
    stay = _odd(part["features"]) <= last
    return {**part, "features": part["features"][stay], "ids": part["ids"][stay]}


def _as_sums(part: Part, vectors: Callable[[Tensor], Tensor]) -> Part:
    x = vectors(part["features"].double())
    away = x - x.mean(0)
    sums = {"count": torch.tensor(len(x)).double(), "mean": x.mean(0), "scatter": pack(away.T @ away)}
    return {**part, **sums}


def _moved_up(labels: Tensor, forgotten: int) -> Tensor:
    return labels - (labels > forgotten).long()


def pack(matrix: Tensor) -> Tensor:
    """Return the lower triangle of a symmetric matrix as a vector."""
    rows, columns = torch.tril_indices(*matrix.shape, device=matrix.device)
    return matrix[rows, columns]


def unpack(packed: Tensor, width: int) -> Tensor:
    """Return what `pack` made a vector of."""
    rows, columns = torch.tril_indices(width, width, device=packed.device)
    matrix = packed.new_zeros(width, width)
    matrix[rows, columns] = packed
    return matrix + matrix.tril(-1).T
