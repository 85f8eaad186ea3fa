"""The rule: how fast, how long and with how much of the past a task after the first is learnt, from what it is alone.

What the held-out measurements on CIFAR (docs/calibration.md) have in common is the share of exemplars among a task's
images. One number of it, between 0 and 1, carries all values. docs/rule.md has the values that it gives, what it was
fitted to, and what it has not been tried on.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

LEAST_SHARE = 0.004  # half of the least share that was measured: below it, and without exemplars, as with it
MOST_RATIO = 40  # one new class beside hundreds of old ones is learnt as beside 40


class TaskFacts(NamedTuple):
    """What the rule asks about a task."""

    new_images: int
    exemplars: int
    old_classes: int
    new_classes: int
    size: int = 32  # pixels of a side

    @property
    def share(self) -> float:
        """The share of exemplars among the images of the task."""
        return max(self.exemplars / (self.exemplars + self.new_images), LEAST_SHARE)

    @property
    def hold(self) -> float:
        """How far exemplars hold against new images, 0 to 1."""
        return self.share / (self.share + 0.03)


def rate(task: TaskFacts) -> float:
    """Return the learning rate."""
    return 0.03 * math.sqrt(task.hold)


def epochs(task: TaskFacts) -> int:
    """Return the number of epochs: fewer where exemplars are few, more where all images are few, or large."""
    few = 1 + 500 / (task.exemplars + task.new_images)
    return max(1, round(120 * math.pow(task.hold, 0.75) * few * math.sqrt(task.size / 32)))


def distillation(task: TaskFacts) -> float:
    """Return the weight of distillation: a smooth max(1, old over new classes), and up to twice that."""
    ratio = task.old_classes / max(1, task.new_classes)
    ratio /= math.hypot(1, ratio / MOST_RATIO)
    return (2 - task.hold) * math.pow(1 + ratio**4, 0.25)


def old_in_batch(task: TaskFacts, batch: int) -> int:
    """Return how many images of a batch are old: 1 to 1.6 times as many as chance gives."""
    return max(1, round(batch * task.share * (1 + 0.6 * task.hold**2)))


# Settings that the rule gives, by dotted key: what `by_rule` of a recipe may name.
RULED: Mapping[str, Callable[[TaskFacts, int], float]] = {
    "schedule.lr": lambda task, _: rate(task),
    "schedule.epochs": lambda task, _: epochs(task),
    "options.kd_weight": lambda task, _: distillation(task),
    "options.min_old": old_in_batch,
}
