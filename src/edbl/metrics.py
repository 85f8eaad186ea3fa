"""Every number of a report, as a pure function of confusion matrices, and what two systems differ in.

A run leaves one confusion matrix per task: ``[seen, seen]`` counts of test images, rows are the truth, columns the
prediction, classes in arrival order. ``sizes`` is the number of new classes of each task. Tasks are always cut by
``sizes``, never by a fixed step. A value that does not exist (no image to judge, no such task) is NaN, and a mean
leaves NaN out. ``R[i][j]`` is the accuracy on the test images of task j's new classes after task i, where the
prediction may be any class seen by then.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

Confusion = NDArray[np.integer[Any]]  # [seen, seen]
Z = 1.959964  # standard deviations to either side that hold 95% of a normal distribution


def accuracy(confusion: Confusion) -> float:
    """Return the share of all test images that are predicted right (images pooled, not classes averaged)."""
    return _share(np.trace(confusion), confusion.sum())


def accuracies(confusions: Sequence[Confusion]) -> list[float]:
    """Return the accuracy over all classes seen, after each task."""
    return [accuracy(confusion) for confusion in confusions]


def average_incremental_accuracy(confusions: Sequence[Confusion]) -> float:
    """Return the mean of the accuracies after each task, the first task included."""
    return _mean(accuracies(confusions))


def average_without_first(confusions: Sequence[Confusion]) -> float:
    """Return the mean of the accuracies after each task from the second on; NaN when there is no second."""
    return _mean(accuracies(confusions[1:]))


def last_accuracy(confusions: Sequence[Confusion]) -> float:
    """Return the accuracy over all classes after the last task."""
    return accuracy(confusions[-1]) if confusions else math.nan


def task_matrix(confusions: Sequence[Confusion], sizes: Sequence[int]) -> NDArray[np.float64]:
    """Return R, ``[tasks, tasks]``: row i after task i, column j for task j's classes, NaN where j comes after i."""
    edges = np.cumsum([0, *sizes])
    if len(confusions) > len(sizes):
        raise ValueError(f"{len(confusions)} confusion matrices but only {len(sizes)} task sizes")
    matrix = np.full((len(confusions), len(confusions)), np.nan)
    for i, confusion in enumerate(confusions):
        if confusion.shape != (edges[i + 1], edges[i + 1]):
            raise ValueError(f"confusion matrix {i} has shape {confusion.shape}, its tasks hold {edges[i + 1]} classes")
        for j in range(i + 1):
            matrix[i, j] = _row_accuracy(confusion, slice(edges[j], edges[j + 1]))
    return matrix


def forgetting(confusions: Sequence[Confusion], sizes: Sequence[int]) -> float:
    """Return the mean, over tasks j before the last, of (best R[i][j] of any earlier i) - R[last][j].

    It is 0 for a single task, and negative when the old tasks are better at the end than they ever were before.
    """
    matrix = task_matrix(confusions, sizes)
    if len(matrix) < 2:
        return _nothing_before(matrix)
    before = matrix[:-1, :-1]  # [last, last]
    best = np.where(np.isnan(before), -np.inf, before).max(axis=0)
    best[np.isneginf(best)] = np.nan
    return _mean(best - matrix[-1, :-1])


def backward_transfer(confusions: Sequence[Confusion], sizes: Sequence[int]) -> float:
    """Return the mean, over tasks j before the last, of R[last][j] - R[j][j]; 0 for a single task."""
    matrix = task_matrix(confusions, sizes)
    if len(matrix) < 2:
        return _nothing_before(matrix)
    return _mean((matrix[-1] - np.diag(matrix))[:-1])


def old_accuracy(confusion: Confusion, old: int) -> float:
    """Return the accuracy on the test images of the first ``old`` classes, predictions over all classes."""
    return _row_accuracy(confusion, slice(0, old))


def new_accuracy(confusion: Confusion, old: int) -> float:
    """Return the accuracy on the test images of the classes after the first ``old``, predictions over all classes."""
    return _row_accuracy(confusion, slice(old, len(confusion)))


def share_predicted_new(confusion: Confusion, old: int) -> float:
    """Return the share of all test images, old and new, whose prediction is one of the new classes, if there are any.

    Without bias towards old or new classes it equals the share of test images that are of new classes.
    """
    return _share(confusion[:, old:].sum(), confusion.sum()) if old < len(confusion) else math.nan


def summary(confusions: Sequence[Confusion], sizes: Sequence[int]) -> dict[str, float]:
    """Return all metrics of a run by name; the last three are those of the last task."""
    if confusions:
        last, old = confusions[-1], sum(sizes[: len(confusions) - 1])
    else:
        last, old = np.zeros((0, 0), dtype=np.int64), 0
    return {
        "average_incremental_accuracy": average_incremental_accuracy(confusions),
        "average_without_first": average_without_first(confusions),
        "last_accuracy": last_accuracy(confusions),
        "forgetting": forgetting(confusions, sizes),
        "backward_transfer": backward_transfer(confusions, sizes),
        "old_accuracy": old_accuracy(last, old),
        "new_accuracy": new_accuracy(last, old),
        "share_predicted_new": share_predicted_new(last, old),
    }


def interval(right: float, images: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share, of which ``right`` of ``images`` are an example; all of it for none."""
    if not images:
        return 0.0, 1.0
    share, z = right / images, Z / images
    middle = (share + Z * z / 2) / (1 + Z * z)
    half = math.sqrt(z * Z * share * (1 - share) + z * z * Z * Z / 4) / (1 + Z * z)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def calibration_error(confidence: NDArray[np.floating[Any]], right: NDArray[np.bool_], bins: int = 15) -> float:
    """Return the expected calibration error: how far shares of right answers are from what is said of them.

    Answers are put into bins of equal width by their ``confidence``, 0 to 1, and bins weigh by their answers.
    """
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(place, weights=right - confidence, minlength=bins)
    return _share(np.abs(gaps).sum(), len(right))


@dataclass(frozen=True)
class Difference:
    """What one system has more than another, run by run of the same seed: at least one value."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, one: Sequence[float], other: Sequence[float]) -> "Difference":
        """Return ``one`` minus ``other``, pair by pair."""
        return cls(tuple(a - b for a, b in zip(one, other, strict=True)))

    @property
    def mean(self) -> float:
        """The mean of the differences."""
        return fmean(self.values)

    @property
    def half(self) -> float:
        """Half of the 95% interval of the mean, by Student's t; endless for a single pair."""
        from scipy.special import stdtrit  # quantiles; here, because records do without it

        count = len(self.values)
        return math.inf if count == 1 else float(stdtrit(count - 1, 0.975)) * self._error

    @property
    def sign(self) -> int:
        """1 or -1 where the whole interval is above or below 0, else 0."""
        return (self.mean > self.half) - (self.mean < -self.half)

    @property
    def t_test(self) -> float:
        """The two-sided p of the paired t-test; NaN for a single pair, and where nothing differs."""
        from scipy.special import stdtr

        if len(self.values) == 1 or not any(self.values):
            return math.nan
        t = abs(self.mean) / self._error if self._error else math.inf
        return float(2 * stdtr(len(self.values) - 1, -t))

    @property
    def wilcoxon(self) -> float:
        """The two-sided p of Wilcoxon's signed-rank test; NaN for a single pair, and where nothing differs."""
        from scipy.stats import wilcoxon

        ranked = [round(value, 12) for value in self.values]  # shares that are equal differ by what floats lose
        there = [value for value in ranked if value]
        return math.nan if len(self.values) == 1 or not there else float(wilcoxon(there).pvalue)

    @property
    def _error(self) -> float:
        return stdev(self.values) / math.sqrt(len(self.values))


def _row_accuracy(confusion: Confusion, rows: slice) -> float:
    return _share(np.diag(confusion)[rows].sum(), confusion[rows].sum())


def _share(part: Any, whole: Any) -> float:
    return float(part) / float(whole) if whole else math.nan


def _mean(values: Iterable[float]) -> float:
    there = [float(value) for value in values if not math.isnan(value)]
    return math.fsum(there) / len(there) if there else math.nan


def _nothing_before(matrix: NDArray[np.float64]) -> float:
    return 0.0 if len(matrix) else math.nan
