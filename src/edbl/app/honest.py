"""What leaving photos out tells of a model: what may be mislabelled, what it needs, what it takes for known.

All is worked out from what a closed form keeps of photos: no photo is given up to measure with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from edbl.app.description import Bundle
from edbl.app.exact import Answers, Exact, LeftOut
from edbl.app.measuring import Asked
from edbl.metrics import Z
from edbl.nets.closed import Closed
from edbl.nets.kept import Kept
from edbl.nets.sure import threshold

ALARMS = (0.01, 0.02, 0.05, 0.1, 0.2)  # shares of photos of known classes that may be called unknown
PARTS = 4  # of a class's photos, of which one, two or all are learnt
FEWEST, MOST = 4, 200  # photos of a class whose learning curve is worked out
LEAST_CURVES, CURVES = 5, 40  # classes; fewer say nothing, more would take long
# What doublings brought on CIFAR-10 and Fashion-MNIST (`benchmarks/honest.py needs`), as shares of mistakes, with the
# standard deviations between draws.
USUAL, STRAYS = 0.2, 0.1  # of those that are made now
FADES, BENDS = 0.75, 0.15  # of what the last doubling brought; how far the curve itself may bend, of those made now
LEAST = 0.5  # points
UNLIKELY = 0.003  # a probability of the class given, below which a photo looks like another
LIKELY = 0.5  # and that of the other, from which on it is named
FAR = -4.0  # standard deviations from how near photos are to the mean of their own class


@dataclass(frozen=True)
class Left:
    """Photos that were left out one by one, as a classifier takes them, and what it is made of."""

    x: Tensor  # [n, width]
    told: LeftOut
    found: Closed
    kept: Kept
    answers: Answers

    @property
    def y(self) -> Tensor:
        """Their classes."""
        return self.told.labels

    def asked(self, bundle: Bundle) -> Asked:
        """Return what all others say of them."""
        return Asked(self.told.scores.softmax(1), self.y, self.told.digests)

    @property
    def wrong(self) -> Tensor:
        """Whether all others say another class, ``[n]``."""
        return (self.told.scores.argmax(1) != self.y).double()

    def without(self, label: int, gone: Tensor) -> Tensor:
        """Return what all others say of some photos of a class, all of which were left out: logits, ``[n, classes]``.

        Their rows are ``gone``, in order.
        """
        own = (self.y == label).nonzero().squeeze(1)
        return self.found.factor * self.found.form.without(
            label, self.x[own], torch.isin(own, gone), self.found.shrinkage
        )


def left(exact: Exact, answers: Answers, told: LeftOut) -> Left | None:
    """Return the photos that a model has left out as it was solved; None where it keeps none, or could leave none."""
    if not isinstance(exact.kept, Kept) or exact.found is None or len(exact.names) < 2 or not len(told.labels):
        return None
    kept, judging = exact.kept, exact.kept.judging
    x, y = kept.samples(judging)
    return Left(x[kept.counts[y] > 1], told, exact.found, kept, answers)


class Suspect(NamedTuple):
    """A photo whose label may be wrong."""

    digest: str
    label: int
    other: int  # the class that it looks like
    probability: float  # of that class
    far: bool  # whether it looks like no photo of its own class, rather than like one of another


def suspects(left: Left, asked: LeftOut | None = None) -> list[Suspect]:
    """Return photos that look like another class than their own, or like no photo of it; the oddest first.

    They are among those ``asked`` about, or among those that were left out, by which is measured in any case how near
    photos are to their class.
    """
    told, middle, low = asked or left.told, left.told.near.median(), left.told.near.quantile(0.1)
    y = told.labels.unsqueeze(1)
    logs = told.scores.log_softmax(1)
    own = logs.gather(1, y).squeeze(1)
    best, other = logs.scatter(1, y, -torch.inf).max(1)
    unlike = (own.exp() < UNLIKELY) & (best.exp() > LIKELY)
    # Middle and spread are such as a few odd ones do not move.
    far = (told.near < middle + FAR * (middle - low).clamp(min=1e-6) / 1.2816) & (own.exp() < LIKELY)
    rows = [row for row in (own - best).argsort().tolist() if unlike[row] or far[row]]
    return [
        Suspect(told.digests[k], int(told.labels[k]), int(other[k]), float(best[k].exp()), not bool(unlike[k]))
        for k in rows
    ]


def looks(names: Sequence[str], one: Suspect) -> str:
    """Return what a photo looks like."""
    like = f"like '{names[one.other]}' ({one.probability:.0%})"
    return f"looks like no photo of its class; most {like}" if one.far else f"looks {like}"


class Need(NamedTuple):
    """What so many more photos of a class would bring, in points of accuracy, with the 95% interval of the mean."""

    label: int
    photos: int
    points: float
    low: float
    high: float


def needs(left: Left) -> list[Need]:
    """Return what twice the photos of a class would bring, the worst class first; nothing where that is in doubt.

    Parts of a class's photos are learnt beside all photos of the others, a quarter of them, a half and all, and those
    that are left out are asked. It is the mean over classes, above all of those with about as many photos: a single
    class's curve is noise, and told nothing of what its further photos brought where that was measured.
    """
    kept, wrong = left.kept, left.wrong
    mine = torch.bincount(left.y, minlength=len(kept.counts))
    labels = ((mine == kept.counts) & (mine >= FEWEST) & (mine <= MOST)).nonzero().squeeze(1)
    labels = labels[torch.linspace(0, len(labels) - 1, min(len(labels), CURVES)).long()]
    if len(labels) < LEAST_CURVES:
        return []
    rates = 100 * torch.tensor([_mistakes(left, label) for label in labels.tolist()]).double()  # [k, 3]
    found = []
    for label in left.y[wrong > 0].unique().tolist():
        weights = (-(kept.counts[labels] / kept.counts[label]).log2().square()).exp()
        points, error = foretold(rates, weights / weights.sum())
        most = 100 * float(wrong[left.y == label].mean())
        if points - Z * error > 0 and points <= most:
            found.append(Need(label, int(kept.counts[label]), points, points - Z * error, points + Z * error))
    return sorted(found, key=lambda need: float(-wrong[left.y == need.label].mean()))


def foretold(rates: Tensor, weights: Tensor) -> tuple[float, float]:
    """Return by how much the next doubling will lessen mistakes, and the standard deviation of what is not known of it.

    ``rates`` are the mistakes of each class with a quarter, a half and all, ``[k, 3]``, in percent. What the last
    doubling brought and what doublings usually bring are both taken for what they are worth.
    """
    now, gains = float(weights @ rates[:, 2]), rates[:, 1] - rates[:, 2]
    last = float(weights @ gains)
    error = float((weights * (gains - last)).square().sum().sqrt())
    curve, usual = FADES * last, USUAL * now
    of_curve = (FADES * error) ** 2 + (BENDS * now) ** 2 + LEAST**2
    of_usual = (STRAYS * now) ** 2 + LEAST**2
    both = 1 / of_curve + 1 / of_usual
    return (curve / of_curve + usual / of_usual) / both, both**-0.5


def _mistakes(left: Left, label: int) -> tuple[float, float, float]:
    """Return the share of mistakes on a class of which a quarter is learnt, a half, and all but the one asked."""
    rows = (left.y == label).nonzero().squeeze(1)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    part = torch.arange(len(rows)) * PARTS // len(rows)

    def rate(learnt: Sequence[Tensor]) -> float:
        asked = [left.without(label, rows[~stay]).argmax(1) != label for stay in learnt]
        return float(torch.cat(asked).double().mean())

    quarters = [part == k for k in range(PARTS)]
    return rate(quarters), rate([part < PARTS // 2, part >= PARTS // 2]), float(left.wrong[rows].mean())


class Unknown(NamedTuple):
    """What a threshold costs."""

    alarms: float  # share of photos of known classes that may be called unknown
    missed: float  # share of photos of a class that was left out whole that are not, the mean over classes
    worst: int  # the class of which most pass
    worst_missed: float


def unknowns(left: Left, alarms: Sequence[float] = ALARMS) -> list[Unknown]:
    """Return how many photos of unknown classes pass for known: each class is unknown once."""
    kept, sure = left.kept, left.answers.sure
    if len(kept.counts) < 3:
        return []
    strange: dict[int, Tensor] = {}
    for label in left.y.unique().tolist():
        rows = (left.y == label).nonzero().squeeze(1)
        if len(rows) < int(kept.counts[label]):
            continue  # the others would stay
        others = torch.arange(len(kept.counts)) != label
        logits = left.without(label, rows)[:, others]
        confidence = left.answers.confidence(logits - logits.mean(1, keepdim=True))
        strange[label] = sure._replace(means=sure.means[others])(confidence, left.x[rows])
    found = []
    for share in alarms if strange else ():
        least = threshold(sure.judged, share)
        missed = {label: float((values > least).double().mean()) for label, values in strange.items()}
        worst = max(missed, key=lambda label: missed[label])
        found.append(Unknown(share, sum(missed.values()) / len(missed), worst, missed[worst]))
    return found
