"""The memory: a few images of each old class, within a budget; ordered by herding, or an even sample of all seen."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Generator, Tensor
from torch.nn.utils.rnn import pad_sequence

from edbl.data.images import Images, firsts, without
from edbl.errors import EdblError

Features = Callable[[Images], Tensor]


@dataclass(frozen=True)
class Budget:
    """``total=K``: K images shared by all seen classes. ``per_class=k``: k of each class, always. ``none``: nothing."""

    kind: Literal["total", "per_class", "none"]
    count: int = 0

    @staticmethod
    def parse(text: str) -> "Budget":
        """Read ``total=2000``, ``per_class=20`` or ``none``."""
        if text.strip() == "none":
            return Budget("none")
        match = re.fullmatch(r"\s*(total|per_class)\s*=\s*(\d{1,18})\s*", text)
        if not match:
            raise EdblError(f"memory '{text}' is not understood: write total=2000, per_class=20 or none")
        kind: Literal["total", "per_class"] = "total" if match[1] == "total" else "per_class"
        return Budget(kind, int(match[2]))

    def check(self, classes: int) -> None:
        """Refuse a budget that cannot hold one image of each class."""
        if self.kind != "none" and self.count < (classes if self.kind == "total" else 1):
            least = f"total={classes}" if self.kind == "total" else "per_class=1"
            raise EdblError(
                f"memory {self.kind}={self.count} is smaller than one image for each of {classes} classes; "
                f"use at least {least}, or none"
            )

    def quotas(self, seen: int) -> list[int]:
        """Return how many images each seen class may keep; a remainder goes to the first classes."""
        if self.kind != "total":
            return [self.count] * seen
        return [self.count // seen + (k < self.count % seen) for k in range(seen)]


class Memory:
    """Exemplars class by class, best first."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget  # `kind` and `count`; `quotas(seen)` is how many images each class may keep
        self.classes: list[Images] = []  # one for each class, best first

    def __len__(self) -> int:
        return sum(len(images.y) for images in self.classes)

    @property
    def images(self) -> Images:
        """All exemplars, class by class; `len(memory)` counts them."""
        return Images.cat(self.classes) if self.classes else Images(torch.empty(0), torch.empty(0, dtype=torch.int64))

    def update(self, new: Images, features: Features) -> None:
        """Herd exemplars of the classes that came, from what came and what is kept of them; trim the other lists.

        A class with fewer images than its quota gives what it has.
        """
        came = [int(k) for k in new.y.unique()]
        kept = [self.classes[k] for k in came if k < len(self.classes)]
        seen = max(len(self.classes), came[-1] + 1)
        self._choose(came, Images.cat([*kept, new]) if kept else new, seen, features)

    def choose_again(self, classes: Collection[int], features: Features) -> None:
        """Herd exemplars anew from what is kept of some classes, perhaps more than their quota; trim the others."""
        self._choose(sorted(classes), self.images.of(sorted(classes)), len(self.classes), features)

    def _choose(self, chosen: Sequence[int], pool: Images, seen: int, features: Features) -> None:
        """Herd exemplars of some classes from a pool; of the other seen ones keep the first."""
        quotas = self.budget.quotas(seen)
        best = _best(pool, chosen, [quotas[k] for k in chosen], features) if chosen else []
        found = dict(enumerate(firsts(self.classes, quotas[: len(self.classes)])))
        found |= zip(chosen, best, strict=True)
        self.classes = [found[k] for k in range(seen)]

    def with_new(self, new: Images, features: Features) -> "Memory":
        """Return a memory as `update` would make it; this one stays."""
        other = Memory(self.budget)
        other.classes = list(self.classes)
        other.update(new, features)
        return other

    def reservoir(self, new: Images, before: int, generator: Generator) -> None:
        """Keep an even sample of all images ever seen: ``before`` of them before the ``new`` ones.

        The outcome is distributed as if image i had entered with probability K / i in place of a random one. Where the
        budget grows with the classes, new images also take what places the kept ones leave empty.
        """
        seen = max(len(self.classes), int(new.y.max()) + 1)
        size = sum(self.budget.quotas(seen))
        shuffled = torch.randperm(before + len(new), generator=generator, device=generator.device)
        enter = int((shuffled[:size] >= before).sum())
        chosen = (shuffled[shuffled >= before] - before)[: max(enter, size - len(self))]
        stay = torch.randperm(len(self), generator=generator, device=generator.device)[: size - len(chosen)]
        came = new[chosen.to(new.y.device)]
        pooled = Images.cat([*self.classes, came]) if len(self) else came
        order = torch.cat([stay, torch.arange(len(self), len(pooled), device=stay.device)]).to(new.y.device)
        # Large images are brought here at once: each copy of all exemplars may fill much of a machine's memory.
        self.replace(pooled[order[pooled.y[order].argsort(stable=True)]].here(), seen)

    def check(self, budget: Budget, seen: int) -> None:
        """Refuse more exemplars than a budget has for all ``seen`` classes; called after `end`."""
        if len(self.classes) > seen:
            raise EdblError(f"the memory has {len(self.classes)} classes where {seen} were seen")
        most = sum(budget.quotas(seen))
        if len(self) > most:
            raise EdblError(f"the method keeps {len(self)} exemplars where the memory holds {most}")

    def remove(self, number: int, axes: Sequence[tuple[str, int]] = ()) -> None:
        """Forget a class; those after it move up, in extras too that ``axes`` has, by name and axis of classes."""
        left = self.classes[:number] + self.classes[number + 1 :]
        self.classes = [
            replace(images, y=torch.full_like(images.y, k), extra=without(images.extra, number, axes))
            for k, images in enumerate(left)
        ]

    def note(self, name: str, values: Tensor) -> None:
        """Keep each exemplar's row of ``values`` as its extra of that name, unless it has one already."""
        images = self.images
        now = replace(images, extra={name: values})
        then = Images.cat([images, now[:0]]).extra[name]  # as wide as they are now; NaN where there is none
        known = torch.where(then.isnan().all(1, keepdim=True), values, then)
        self.replace(replace(images, extra={**images.extra, name: known}), len(self.classes))

    def replace(self, images: Images, seen: int = 0) -> None:
        """Take over exemplars that are sorted by class, as `images` gives them; one of ``seen`` may have none."""
        ends = images.counts(seen).cumsum(0).tolist()
        self.classes = [images[first:last] for first, last in pairwise([0, *ends])]


def _best(images: Images, classes: Sequence[int], quotas: Sequence[int], features: Features) -> list[Images]:
    """Return the images of each class that herding picks first."""
    if not any(quotas):
        return [images[:0].here()] * len(classes)
    vectors = torch.nn.functional.normalize(features(images))
    members = [(images.y == k).nonzero().squeeze(1) for k in classes]
    best: dict[int, Images] = {}
    for size in {len(m).bit_length() for m in members}:  # those of about one size together, so that padding stays small
        alike = [k for k, m in enumerate(members) if len(m).bit_length() == size]
        index = pad_sequence([members[k] for k in alike], batch_first=True)  # [classes, images of the largest]
        there = pad_sequence([torch.ones_like(members[k], dtype=torch.bool) for k in alike], batch_first=True)
        order = index.take_along_dim(herd(vectors[index], max(quotas[k] for k in alike), there), 1)
        best |= {
            k: images[picks[: min(quotas[k], len(members[k]))]].here() for k, picks in zip(alike, order, strict=True)
        }
    return [best[k] for k in range(len(members))]


def herd(vectors: Tensor, count: int, there: Tensor | None = None) -> Tensor:
    """Return the numbers of ``count`` vectors in iCaRL's order: each pick brings the picks' mean nearest to the mean.

    Pick k minimises ``|| mean - (phi + sum of earlier picks) / k ||`` over the vectors not yet picked. Many sets are
    herded at once, ``[sets, n, width]`` to ``[sets, count]``; where they are of unequal size, ``there`` says which
    vectors count, and picks beyond a set's size mean nothing.
    """
    there = torch.ones(vectors.shape[:-1], dtype=torch.bool, device=vectors.device) if there is None else there
    # PyTorch cuts long sums and matrix products up by the multiprocessors that are there. So that picks do not depend
    # on them, the long sums are float64 and rounded, and the products are short sums.
    total = (vectors * there.unsqueeze(-1)).sum(-2, dtype=torch.float64)
    mean = (total / there.sum(-1, keepdim=True)).to(vectors.dtype)
    squares = vectors.square().sum(-1).where(there, torch.inf)
    missing = torch.zeros_like(mean)  # k * mean - sum of earlier picks
    picks = []
    for _ in range(min(count, vectors.shape[-2])):
        missing = missing + mean
        along = (vectors * missing.unsqueeze(-2)).sum(-1)
        pick = (squares - 2 * along).argmin(-1, keepdim=True)
        missing = missing - vectors.take_along_dim(pick.unsqueeze(-1), -2).squeeze(-2)
        squares = squares.scatter(-1, pick, torch.inf)
        picks.append(pick)
    return torch.cat(picks, -1)
