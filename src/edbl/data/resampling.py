"""Re-sampling (Section 4.1): old images are mixed N/2 times with old and N/2 times with new ones, new with new once.

N is "the proportion of the data between per tail and head class". What the N/2 times are counted over is open (A2).
"""

from dataclasses import replace
from typing import Literal, NamedTuple

from edbl.data.mixing import Mixing, PairMixup, Ratio, ResamplingMixup, VanillaMixup
from edbl.data.samplers import OldNew, Pairs, Sampler

Reading = Literal["batch", "epoch", "concat"]


class Resampled(NamedTuple):
    """How batches are drawn and mixed, and the share of the label mass that falls on old classes then."""

    sampler: Sampler
    mixing: Mixing
    old_share: float


def half_of_n(per_old: tuple[int, int], per_new: tuple[int, int], most: int) -> int:
    """Return ``N / 2``, N being images per new class over exemplars per old class (A1), at least 1.

    Both are given as images and classes. ``most`` is a limit, or 0.
    """
    above, below = per_new[0] * per_old[1], per_old[0] * per_new[1]  # N = above / below
    rounds = max(1, (above + below) // (2 * below))  # halves go up
    return min(rounds, most or rounds)


def resampled(old: int, new: int, batch: int, min_old: int, rounds: int, reading: Reading, ratio: Ratio) -> Resampled:
    """Return how ``old`` exemplars and ``new`` images, which follow them in the data, are drawn and mixed.

    ``min_old`` is the least number of old images in a batch, 32 in the paper; ``rounds`` is N/2.
    """
    if reading == "epoch":  # all pairs of an epoch, then batches of them
        return Resampled(Pairs(old, new, rounds, batch), PairMixup(ratio), old_share(old, new, rounds))
    drawn = OldNew.natural(old, new, batch, min_old)
    if reading == "concat":  # old images beside a whole batch of new ones, all mixed once: N plays no part
        drawn = replace(drawn, new_batch=min(batch, new), steps=max(1, new // batch))
        return Resampled(drawn, VanillaMixup(ratio), drawn.old_batch / (drawn.old_batch + drawn.new_batch))
    share = old_share(drawn.old_batch, drawn.new_batch, rounds)
    return Resampled(drawn, ResamplingMixup(drawn.old_batch, rounds, ratio), share)


def old_share(old: int, new: int, rounds: int) -> float:
    """Return the expected share of label mass on old classes: all of old-old pairs, half of old-new pairs."""
    mass = 1.5 * rounds * old
    return mass / (2 * rounds * old + new)
