"""Re-sampling: how often old images are mixed, and what that comes to."""

import math

import pytest

from edbl.data.mixing import PairMixup, Ratio, ResamplingMixup, VanillaMixup
from edbl.data.resampling import half_of_n, old_share, resampled
from edbl.data.samplers import OldNew, Pairs

RATIO = Ratio(1.0, "pass")

# A1: images of each new class, exemplars of all old classes, old classes, N.
C100_BASE0_5 = [(500, 2000, old, n) for old, n in ((20, 5.0), (40, 10.0), (60, 15.0), (80, 20.0))]
C100_BASE0_10 = [(500, 2000, 10 * t, 2.5 * t) for t in range(1, 10)]
OTHERS = [(500, 2000, 50, 12.5), (500, 20 * 50, 50, 25.0), (500, 20 * 90, 90, 25.0), (500, 20 * 100, 100, 25.0)]
C10 = [(5000, 200, 5, 125.0), *((5000, 200, old, n) for old, n in ((2, 50.0), (4, 100.0), (6, 150.0), (8, 200.0)))]


@pytest.mark.parametrize(
    ("per_class", "exemplars", "old", "proportion"), [*C100_BASE0_5, *C100_BASE0_10, *OTHERS, *C10]
)
def test_rounds_are_half_of_the_proportion(per_class: int, exemplars: int, old: int, proportion: float) -> None:
    rounds = half_of_n((exemplars, old), (2 * per_class, 2), most=0)
    assert rounds == max(1, math.floor(proportion / 2 + 0.5))  # halves go up
    assert half_of_n((exemplars, old), (2 * per_class, 2), most=16) == min(rounds, 16)


def test_rounds_are_at_least_one() -> None:
    assert half_of_n((20, 2), (12, 3), most=16) == 1


@pytest.mark.parametrize(("old", "new", "rounds"), [(32, 107, 10), (4, 3, 2), (1, 1, 1)])
def test_old_share_by_counting_pairs(old: int, new: int, rounds: int) -> None:
    kinds = [1.0] * (rounds * old) + [0.5] * (rounds * old) + [0.0] * new
    assert old_share(old, new, rounds) == pytest.approx(sum(kinds) / len(kinds))


def test_readings() -> None:
    # 16 of 90 images are 14.2 new and 1.8 old ones by nature.
    assert resampled(10, 80, 16, 6, 4, "batch", RATIO) == (
        OldNew(10, 80, 6, 14, steps=5),
        ResamplingMixup(6, 4, RATIO),
        old_share(6, 14, 4),
    )
    assert resampled(10, 80, 16, 6, 4, "epoch", RATIO) == (
        Pairs(10, 80, 4, 16),
        PairMixup(RATIO),
        old_share(10, 80, 4),
    )
    assert resampled(10, 80, 16, 6, 4, "concat", RATIO) == (
        OldNew(10, 80, 6, 16, steps=5),
        VanillaMixup(RATIO),
        6 / 22,
    )
