"""Whether a photo still shows its class when it is mirrored: letters and digits do not, most things do."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edbl.app.photos import Array
from edbl.methods.closed import one_thread
from edbl.nets.closed import Classes, Discriminant, fitted
from edbl.text import bar

SIDE = 16  # pixels of a photo as it is looked at
MOST, LEAST = 2000, 20  # photos that are looked at; of fewer nothing can be said
PARTS = 4  # of the photos, each of which is held out once
SURELY = 2.0  # standard deviations of chance, from which on mirroring harms


class Found(NamedTuple):
    """Of photos that were held out, how many are told right by one of two classifiers alone."""

    photos: int
    plain: int  # by what learnt from the others
    mirrored: int  # by what learnt from them and their mirror images

    @property
    def harms(self) -> bool:
        """Whether mirror images do harm, beyond chance."""
        return self.plain - self.mirrored > SURELY * math.sqrt(self.plain + self.mirrored)


def look(pixels: Array, rows: Sequence[int], labels: Sequence[int]) -> Found:
    """Compare a linear discriminant of small pixels with the same that has seen mirror images too."""
    chosen = rows if len(rows) <= MOST else [rows[k * len(rows) // MOST] for k in range(MOST)]
    _, numbers = np.unique([labels[row] for row in chosen], return_inverse=True)
    y = torch.from_numpy(numbers)
    if len(chosen) < LEAST or int(y.max()) < 1:
        return Found(len(chosen), 0, 0)
    small = torch.cat([_small(torch.from_numpy(pixels[chosen[k : k + 256]])) for k in range(0, len(chosen), 256)])
    part = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)) % PARTS
    plain = mirrored = 0
    with one_thread(), bar("looking at mirror images", PARTS) as say:
        for k in range(PARTS):
            one, both = _told(small, y, part == k)
            plain, mirrored = plain + int((one & ~both).sum()), mirrored + int((both & ~one).sum())
            say(k + 1)
    return Found(len(y), plain, mirrored)


def _small(x: Tensor) -> Tensor:
    side = min(SIDE, x.shape[-1])
    return F.adaptive_avg_pool2d(x.float() / 255, side).double()


def _told(small: Tensor, y: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    """Return which of the photos that are ``held`` out are told right without mirror images, and with them."""
    x, flipped = small.flatten(1), small.flip(3).flatten(1)
    learnt, names = x[~held], y[~held]
    first = fitted(Discriminant, _classes(learnt, names, int(y.max()) + 1), learnt, names)
    twice = torch.cat([learnt, flipped[~held]]), names.repeat(2)
    second = fitted(Discriminant, _classes(*twice, int(y.max()) + 1), *twice, shrinkages=[first.shrinkage])
    one, both = ((x[held] @ found.weight.T + found.bias).argmax(1) == y[held] for found in (first, second))
    return one, both


def _classes(x: Tensor, y: Tensor, number: int) -> Classes:
    counts = torch.bincount(y, minlength=number).double()
    means = torch.zeros(number, x.shape[1]).double().index_add(0, y, x) / counts.clamp(min=1).unsqueeze(1)
    away = x - means[y]
    return Classes(counts, means, away.T @ away)
