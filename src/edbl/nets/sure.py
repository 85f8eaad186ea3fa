"""How sure a classifier in closed form is that a sample is of a class that it knows, against samples left out.

Its scores tell near strangers, the nearest mean tells far ones. Both are measured in standard deviations of what
samples have that were left out one by one, and added.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from edbl.nets.closed import Classes, Closed


class Sure(NamedTuple):
    """What sureness is measured by."""

    means: Tensor  # [classes, width], of length 1
    middle: Tensor  # [2], of confidence and of the cosine with the nearest mean, over samples left out
    spread: Tensor  # [2], their standard deviations
    judged: Tensor  # [n], the sureness of each of these samples, ascending

    @classmethod
    def of(
        cls, confidence: Callable[[Tensor], Tensor], found: Closed, means: Tensor, x: Tensor, y: Tensor, near: Tensor
    ) -> Self:
        """Measure by samples ``x`` of classes ``y``, all of which ``found`` has left out one by one.

        ``near`` is their `nearness`; ``means`` are those of the classes.
        """
        means = F.normalize(means)
        if not len(y):
            return cls(means, means.new_zeros(2), means.new_ones(2), means.new_zeros(0))
        cosines = (F.normalize(x) @ means.T).scatter(1, y.unsqueeze(1), near.unsqueeze(1))
        both = torch.stack([confidence(found.left_out), cosines.amax(1)], 1)
        spread = both.std(0, correction=0)
        spread = spread.where(spread > 1e-9, 1)
        middle = both.mean(0)
        return cls(means, middle, spread, ((both - middle) / spread).sum(1).sort().values)

    def __call__(self, confidence: Tensor, x: Tensor) -> Tensor:
        """Return the sureness of samples, ``[n]``."""
        cosine = (F.normalize(x) @ self.means.T).amax(1)
        return ((torch.stack([confidence, cosine], 1) - self.middle) / self.spread).sum(1)


def nearness(classes: Classes, x: Tensor, y: Tensor) -> Tensor:
    """Return the cosine of each sample with the mean of all others of its class, ``[n]``."""
    own, number = classes.means[y], classes.counts[y].unsqueeze(1)
    others = F.normalize((number * own - x) / (number - 1))
    return (F.normalize(x) * others).sum(1)


def threshold(judged: Tensor, rate: float) -> float:
    """Return the sureness up to which a sample counts as unknown, if a ``rate`` of known ones may be taken for such.

    ``judged`` are those of known samples, ascending. Of as many again and one more, at most this share is as low.
    """
    number = int(rate * (len(judged) + 1))
    return float(judged[min(number, len(judged)) - 1]) if number and len(judged) else float("-inf")
