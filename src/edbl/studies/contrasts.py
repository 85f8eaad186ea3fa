"""Differences between two systems over replicates: paired, with the interval of Student's t, and what they say."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from scipy.special import stdtrit  # quantiles of Student's t


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences and half of its 95% interval, which is endless for a single pair."""

    mean: float
    half: float

    @classmethod
    def of(cls, one: Sequence[float], other: Sequence[float]) -> "Difference":
        """Return ``one`` minus ``other``, replicate by replicate."""
        differences = [a - b for a, b in zip(one, other, strict=True)]
        count = len(differences)
        half = math.inf if count == 1 else float(stdtrit(count - 1, 0.975)) * stdev(differences) / math.sqrt(count)
        return cls(fmean(differences), half)

    @property
    def sign(self) -> int:
        """1 or -1 where the whole interval is above or below 0, else 0."""
        return (self.mean > self.half) - (self.mean < -self.half)


def verdict(difference: Difference, expected: Literal["higher", "open"]) -> str:
    """Return what a difference says about the expectation that it is above 0; ``open`` is none."""
    words = {"higher": ("refuted", "confirmed"), "open": ("lower", "higher")}[expected]
    return {-1: words[0], 0: "cannot be told", 1: words[1]}[difference.sign]
