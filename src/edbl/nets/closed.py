"""Linear classifiers in closed form, of class means and scatters alone; their shrinkage is chosen by leave-one-out.

All is float64: how samples were split into updates, and in which order they came, shows in the last digits alone.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

# The share of the covariance that is replaced by its mean on the diagonal, among which is chosen.
SHRINKAGES = (1e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
ROUNDING = 1e-12  # what is left of a scatter that was added and taken away again, as a share of what samples are
STEPS = 60  # most, in the search for a factor; 4 to 8 are usual
BENDS = (0.1, 1.0, 3.0, 10.0, 30.0)  # by which responses are multiplied before they are bent, from hardly to much
CLOSE = 1e-6  # a change of the factor after which, squared, nothing is left to change
LEAST_FACTOR = 1e-3  # of scores of standard deviation 1


def rooted(features: Tensor, unit: bool) -> Tensor:
    """Return the square root of each feature, with its sign; ``unit`` brings each sample to length 1."""
    roots = features.sign() * features.abs().sqrt()
    return F.normalize(roots) if unit else roots


class Classes(NamedTuple):
    """Samples as their classes: how many each has, their mean, and the scatter about the means of all classes."""

    counts: Tensor  # [classes]
    means: Tensor  # [classes, width]
    scatter: Tensor  # [width, width], the sum over classes, of each over its number where the form is balanced


class Form(Protocol):
    """A classifier of some classes, but for its shrinkage."""

    whole: bool  # whether it has decomposed the whole space, and so can take in `more`
    balanced: ClassVar[bool]  # whether it takes the scatter of each class over its number of samples
    bent: ClassVar[bool]  # whether its scores are responses, which one factor cannot make probabilities of

    @staticmethod
    def confidence(logits: Tensor) -> Tensor:
        """Return how much speaks for the likeliest class, ``[n]``, of logits ``[n, classes]``."""

    def __init__(self, classes: Classes, x: Tensor, y: Tensor) -> None:
        """Take classes, and samples to leave out."""

    def asking(self, x: Tensor, y: Tensor) -> Self:
        """Return the same with other samples to leave out, which were learnt and are of classes of two or more."""

    def solve(self, shrinkage: float) -> tuple[Tensor, Tensor]:
        """Return weight, ``[classes, width]``, and bias, ``[classes]``."""

    def left_out(self, shrinkage: float) -> Tensor:
        """Return the scores that each of some samples has by the others, ``[n, classes]``."""

    def without(self, label: int, x: Tensor, gone: Tensor, shrinkage: float) -> Tensor:
        """Return the scores that those ``gone`` of all samples of a class have by all others, ``[n, classes]``."""

    def seen(self, x: Tensor) -> Tensor:
        """Return samples as `more` takes them."""

    def more(self, counts: Tensor, changed: "Changed", shrinkage: float) -> tuple[Tensor, Tensor]:
        """Return what `solve` would of more samples, of which all classes have these counts by now."""


Fit = tuple[float, float, float]  # loss, factor and shrinkage


class Changed(NamedTuple):
    """Samples that came since a form was made, and all others of their classes if the form is balanced."""

    x: Tensor  # [n, width], as `Form.seen` returns them
    y: Tensor  # [n]
    new: Tensor  # [n], which of them came since

    def means(self, before: Tensor, counts: Tensor) -> Tensor:
        """Return the means of all classes, given those that they had."""
        before, x, y = _padded(before, len(counts)), self.x[self.new], self.y[self.new]
        return before.index_add(0, y, (x - before[y]) / counts[y].unsqueeze(1))


class Closed(NamedTuple):
    """A classifier: ``x @ weight.T + bias`` are logits; the softmax of these, `linked`, is a probability."""

    weight: Tensor  # [classes, width]
    bias: Tensor  # [classes]
    shrinkage: float
    loss: float  # by leave-one-out: the mean over classes of the mean log loss of their samples
    judged: Tensor  # [n], which samples were left out one by one: those of classes of two or more
    left_out: Tensor  # [judged, classes], the logits that each of them has by all others
    factor: float  # by which scores became logits
    form: Form
    link: Tensor | None  # [2], what `linked` makes calibrated logits by; None where they are

    def logits(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the logits that samples have by all others, ``[n, classes]``; they are of classes of two or more."""
        return _centred(self.factor * self.form.asking(x, y).left_out(self.shrinkage))

    def more(self, counts: Tensor, changed: Changed) -> tuple[Tensor, Tensor]:
        """Return weight and bias of more samples, with shrinkage and factor as they were chosen."""
        weight, bias = self.form.more(counts, changed, self.shrinkage)
        return self.factor * _centred(weight.T).T, self.factor * _centred(bias)


class Discriminant:
    """The linear discriminant, classes being equally likely, with a covariance that is shrunk towards the identity.

    With covariance ``S`` and ``A = (1 - a) S + a tr(S) / d I``, class k has the score ``-(x - m)' A^-1 (x - m) / 2 +
    tr(A^-1 S) / (2 n)`` of its mean m and number n: the last is by how much the noise of a mean lowers the rest.
    ``x`` and ``y`` are samples to leave out, all of classes of two or more; the ``a tr(S) / d`` of all samples is not
    estimated again without each.
    """

    balanced: ClassVar[bool] = False
    bent: ClassVar[bool] = False

    @staticmethod
    def confidence(logits: Tensor) -> Tensor:
        """Return the logarithm of its probability."""
        return logits.log_softmax(1).amax(1)

    def __init__(self, classes: Classes, x: Tensor, y: Tensor) -> None:
        self.counts = classes.counts
        self.free = max(int(classes.counts.sum()) - len(classes.counts), 1)
        self.values, self.axes = _eigen(classes.scatter, _span(classes, x, y))
        self.mean_value = float(self.values.sum()) / len(classes.scatter) / self.free
        self.scatters = self.mean_value > ROUNDING * float(classes.means.square().mean())
        self.means, self.centres = classes.means @ self.axes, classes.means
        self.whole = self.scatters and len(self.axes) == self.axes.shape[1]
        self._ask(x, y)

    def _ask(self, x: Tensor, y: Tensor) -> None:
        self.y, self.x = y, (x - self.centres[y]) @ self.axes
        self.squares = self.x.square()

    def asking(self, x: Tensor, y: Tensor) -> Self:
        """Return the same with other samples to leave out."""
        other = copy.copy(self)
        other._ask(x, y)
        return other

    def _inverse(self, shrinkage: float, free: int) -> Tensor:
        """Return the eigenvalues of ``A^-1``; where nothing scatters, nearest means are left."""
        if not self.scatters:
            return torch.ones_like(self.values)
        return ((1 - shrinkage) / free * self.values + shrinkage * self.mean_value).reciprocal()

    def solve(self, shrinkage: float) -> tuple[Tensor, Tensor]:
        """Return weight and bias."""
        inverse = self._inverse(shrinkage, self.free)
        weight = self.means * inverse
        noise = (inverse * self.values).sum() / self.free / (2 * self.counts)
        return weight @ self.axes.T, noise - (weight * self.means).sum(1) / 2

    def left_out(self, shrinkage: float) -> Tensor:
        """Return scores by a rank-one downdate: without x, ``A`` loses a multiple of ``r r'``, ``r = x - m``."""
        y, own = self.y, self.y.unsqueeze(1)
        free = max(self.free - 1, 1)
        inverse = self._inverse(shrinkage, free)
        number = self.counts[y]
        far = number / (number - 1)  # by how much x is further from the mean of the others
        to_means = self.x @ (self.means * inverse).T  # r' D m_k
        between = (self.means * inverse) @ self.means.T
        inner, spread = (self.squares @ torch.stack([inverse, inverse.square() * self.values], 1)).unbind(1)  # r' D r
        along = inner.unsqueeze(1) + to_means.gather(1, own) - to_means  # r' D (x - m_k)
        squares = between.diagonal()
        square = 2 * along - inner.unsqueeze(1) + squares[own] - 2 * between[y] + squares  # (x - m_k)' D (x - m_k)
        along = along.scatter(1, own, (far * inner).unsqueeze(1))
        square = square.scatter(1, own, (far.square() * inner).unsqueeze(1))
        lost = (1 - shrinkage) / free * far if self.scatters else torch.zeros_like(far)
        gain = lost / (1 - lost * inner)
        square = square + gain.unsqueeze(1) * along.square()
        trace = (inverse * self.values).sum() + gain * spread
        trace = (trace - far * (inner + gain * inner.square())) / free
        others = self.counts.expand_as(square).scatter(1, own, (number - 1).unsqueeze(1))
        return trace.unsqueeze(1) / (2 * others) - square / 2

    def without(self, label: int, x: Tensor, gone: Tensor, shrinkage: float) -> Tensor:
        """Return the scores, ``[n, classes]``, that some samples of a class have by all others.

        ``x`` are all samples of the class, ``gone`` tells which of them go: some, or all, whose score is then endlessly
        low. As `left_out`, it takes away what they add to the covariance, at once: a matrix of rank n.
        """
        gone = (x[gone] - self.centres[label]) @ self.axes
        number, total = len(gone), gone.sum(0)
        left = float(self.counts[label]) - number
        free = max(self.free - number + (left < 1), 1)
        inverse, lost = self._inverse(shrinkage, free), (1 - shrinkage) / free * self.scatters
        means, counts = self.means.clone(), self.counts.clone()
        asked, u = gone + means[label], gone
        if left >= 1:
            means[label] -= total / left
            u = gone + (math.sqrt(1 + number / left) - 1) / number * total  # u' u: what goes from the scatter
        counts[label] = left
        du = u * inverse
        gram = du @ u.T
        core: Tensor = torch.linalg.inv(torch.eye(number).to(gram) - lost * gram)
        of_x, of_means = asked @ du.T, means @ du.T
        product = (asked * inverse) @ means.T + lost * of_x @ core @ of_means.T
        square = (means.square() * inverse).sum(1) + lost * (of_means @ core * of_means).sum(1)
        trace = inverse @ self.values - gram.trace() + lost * (core * ((du * self.values) @ du.T - gram @ gram)).sum()
        scores: Tensor = product - square / 2 + trace / free / (2 * counts)
        if left < 1:
            scores[:, label] = -math.inf
        return scores

    def seen(self, x: Tensor) -> Tensor:
        """Return samples along the axes."""
        return x @ self.axes

    def more(self, counts: Tensor, changed: Changed, shrinkage: float) -> tuple[Tensor, Tensor]:
        """Return weight and bias of more samples.

        Seen from the mean that its class had, each is added to the scatter, and the way that the mean has moved is
        taken away: a change of low rank.
        """
        means, y = changed.means(self.means, counts), changed.y
        before, labels = torch.cat([self.means, means[len(self.means) :]]), y.unique()
        u = torch.cat([changed.x - before[y], means[labels] - before[labels]])
        signs = torch.cat([torch.ones_like(u[: len(y), 0]), -counts[labels]])
        free = max(int(counts.sum()) - len(counts), 1)
        width = len(self.axes)
        mean_value = float(self.values.sum() + signs @ u.square().sum(1)) / width / free
        inverse = ((1 - shrinkage) / free * self.values + shrinkage * mean_value).reciprocal()
        core = _core(inverse, u, (1 - shrinkage) / free * signs)
        weight = means * inverse
        weight = weight - weight @ u.T @ core @ (u * inverse)
        trace = inverse.sum() - (core * ((u * inverse.square()) @ u.T)).sum()  # of the inverse
        noise = (width - shrinkage * mean_value * trace) / (1 - shrinkage) / (2 * counts)
        return weight @ self.axes.T, noise - (weight * means).sum(1) / 2


class Ridge:
    """Ridge regression on labels of 0 and 1 with an intercept; classes weigh alike, however many samples they have.

    The penalty is ``a / (1 - a)`` times the mean eigenvalue of the covariance. A sample that is left out takes its
    weight with it.
    """

    balanced: ClassVar[bool] = True
    bent: ClassVar[bool] = True

    @staticmethod
    def confidence(logits: Tensor) -> Tensor:
        """Return its response."""
        return logits.amax(1)

    def __init__(self, classes: Classes, x: Tensor, y: Tensor) -> None:
        centre = classes.means.mean(0)
        away = classes.means - centre
        self.values, self.axes = _eigen(classes.scatter + away.T @ away, _span(classes, x, y))
        self.mean_value = self.values.sum() / len(classes.scatter)
        self.centre, self.means, self.counts = centre, away @ self.axes, classes.counts
        self.centres = classes.means
        self.whole = float(self.mean_value) > 0 and len(self.axes) == self.axes.shape[1]
        self._ask(x, y)

    def _ask(self, x: Tensor, y: Tensor) -> None:
        self.y, self.x = y, (x - self.centre) @ self.axes
        self.squares = self.x.square()
        self.share = 1 / self.counts[y]  # a sample's weight

    def asking(self, x: Tensor, y: Tensor) -> Self:
        """Return the same with other samples to leave out."""
        other = copy.copy(self)
        other._ask(x, y)
        return other

    def _inverse(self, shrinkage: float) -> Tensor:
        penalty = shrinkage / (1 - shrinkage) * self.mean_value
        return (self.values + penalty.where(penalty > 0, 1)).reciprocal()

    def solve(self, shrinkage: float) -> tuple[Tensor, Tensor]:
        """Return weight and bias."""
        weight = self.means * self._inverse(shrinkage) @ self.axes.T
        return weight, 1 / len(weight) - weight @ self.centre

    def left_out(self, shrinkage: float) -> Tensor:
        """Return scores by each sample's leverage: its error grows by one over what the others leave of it."""
        inverse, classes = self._inverse(shrinkage), len(self.means)
        fitted = self.x @ (self.means * inverse).T + 1 / classes
        leverage = self.share * (1 / classes + self.squares @ inverse)
        truth = F.one_hot(self.y, classes).to(fitted.dtype)
        return truth - (truth - fitted) / (1 - leverage).unsqueeze(1)

    def without(self, label: int, x: Tensor, gone: Tensor, shrinkage: float) -> Tensor:
        """Return the scores, ``[n, classes]``, that some samples of a class have by all others.

        ``x`` are all samples of the class, ``gone`` tells which of them go: some, or all, whose score is then endlessly
        low. Seen from the centre as it is, the samples of the class get other weights and the centre moves: a change of
        rank n + 1. The penalty is not estimated again.
        """
        classes, left = len(self.means), int((~gone).sum())
        means, others = self.centres.clone(), torch.arange(classes) != label
        means[label] = x[~gone].mean(0) if left else 0
        kept = classes if left else classes - 1
        centre = (means if left else means[others]).mean(0)
        changed = (torch.cat([x, centre.unsqueeze(0)]) - self.centre) @ self.axes
        share = torch.where(gone, 0.0, 1 / max(left, 1)) - 1 / len(x)
        weights = torch.cat([share.to(x), torch.tensor([-kept]).to(x)]).unsqueeze(1)
        inverse = self._inverse(shrinkage)
        to_changed = changed * inverse
        core = torch.linalg.solve(torch.eye(len(changed)).to(x) + weights * (to_changed @ changed.T), weights * changed)
        asked, towards = (x[gone] - centre) @ self.axes * inverse, (means - centre) @ self.axes
        product = asked @ towards.T - (asked @ changed.T) @ (core * inverse) @ towards.T
        scores: Tensor = product + 1 / kept
        if not left:
            scores[:, label] = -math.inf
        return scores

    def seen(self, x: Tensor) -> Tensor:
        """Return samples along the axes, from the centre as it is."""
        return (x - self.centre) @ self.axes

    def more(self, counts: Tensor, changed: Changed, shrinkage: float) -> tuple[Tensor, Tensor]:
        """Return weight and bias of more samples.

        As `without`, it gives all samples of a class other weights and moves the centre.
        """
        means = changed.means(self.means, counts)
        centre = means.mean(0)
        u = torch.cat([changed.x, centre.unsqueeze(0)])
        before = _padded(self.counts.unsqueeze(1), len(counts)).squeeze(1).clamp(min=1)
        shares = 1 / counts[changed.y] - (~changed.new) / before[changed.y]
        weights = torch.cat([shares, -torch.ones_like(shares[:1]) * len(counts)])
        penalty = shrinkage / (1 - shrinkage) * float(self.values.sum() + weights @ u.square().sum(1)) / len(self.axes)
        inverse = (self.values + penalty).reciprocal()
        weight = (means - centre) * inverse
        weight = weight - weight @ u.T @ _core(inverse, u, weights) @ (u * inverse)
        return weight @ self.axes.T, 1 / len(counts) - weight @ (centre + self.centre @ self.axes)


def _padded(rows: Tensor, number: int) -> Tensor:
    """Return rows, and more of zeros up to a number."""
    return F.pad(rows, (0, 0, 0, number - len(rows)))


def _core(inverse: Tensor, u: Tensor, weights: Tensor) -> Tensor:
    """Return ``C`` of ``(D^-1 + u' W u)^-1 = D - D u' C u D``, of the diagonals ``D``, the inverse, and ``W``."""
    gram = (u * inverse) @ u.T
    core: Tensor = torch.linalg.solve(torch.eye(len(u)).to(u) + weights.unsqueeze(1) * gram, weights.diag())
    return core


def _span(classes: Classes, x: Tensor, y: Tensor) -> Tensor | None:
    """Return an orthonormal basis, ``[width, few]``, of all samples, if these are few and all are there."""
    counts = torch.bincount(y, minlength=len(classes.counts))
    if len(x) + len(counts) > x.shape[1] // 2 or not ((counts == classes.counts) | (classes.counts < 2)).all():
        return None
    basis: Tensor = torch.linalg.qr(torch.cat([x, classes.means]).T)[0]
    return basis


def _eigen(scatter: Tensor, span: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues, none below 0, and the eigenvectors of a scatter; those of 0 may be left out.

    What has its ``span`` needs no others, and the time goes by the cube of how many there are.
    """
    matrix = scatter if span is None else span.T @ scatter @ span
    if matrix.device.type == "cpu":  # NumPy takes half the time of PyTorch
        values, axes = (torch.from_numpy(found) for found in np.linalg.eigh(matrix.numpy()))
    else:
        values, axes = torch.linalg.eigh(matrix)
    if span is not None:
        axes = span @ axes
    return values.clamp(min=0), axes


def _least(of: Callable[[float], Fit], shrinkages: Sequence[float]) -> Fit:
    """Return the best fit: of every fourth shrinkage, of those between it and its neighbours, of those between them."""
    tried = {k: of(shrinkages[k]) for k in range(len(shrinkages) - 1, -1, -4)}
    for step in (2, 1):
        at = min(tried, key=tried.__getitem__)
        tried |= {k: of(shrinkages[k]) for k in (at - step, at + step) if 0 <= k < len(shrinkages)}
    return min(tried.values())


def fitted(
    kind: type[Form],
    classes: Classes,
    x: Tensor,
    y: Tensor,
    shrinkages: Sequence[float] = SHRINKAGES,
    factor: float | None = None,
) -> Closed:
    """Return the classifier whose shrinkage has the least loss by leave-one-out over samples ``x`` of classes ``y``.

    Where no class has two samples, none can be left out: all is shrunk, and probabilities say little. A ``factor`` that
    is given stays.
    """
    judged = classes.counts[y] > 1
    x, y = x[judged], y[judged]
    form = kind(classes, x, y)
    best, found, least = shrinkages[-1], 1.0, float("nan")
    if len(y) and len(classes.counts) > 1:
        least, found, best = _least(lambda shrinkage: (*calibrated(form.left_out(shrinkage), y), shrinkage), shrinkages)
    factor = factor or found
    weight, bias = form.solve(best)
    left_out = factor * form.left_out(best)
    logits = (factor * _centred(weight.T).T, factor * _centred(bias), _centred(left_out))
    link = None
    if kind.bent:
        bends = [bend / factor for bend in BENDS] if len(y) and len(classes.counts) > 1 else []
        tried = [(*calibrated((bend * logits[2]).asinh(), y), bend) for bend in bends]
        link = torch.tensor(min(tried, default=(0.0, 1.0, 1.0))[:0:-1]).to(x)
    return Closed(logits[0], logits[1], best, least, judged, logits[2], factor, form, link)


def linked(logits: Tensor, link: Tensor | Sequence[float] | None) -> Tensor:
    """Return logits that are calibrated: large responses differ by less than they say."""
    return logits if link is None else link[1] * (link[0] * logits).asinh()


def _centred(logits: Tensor) -> Tensor:
    """Return logits without what all classes have in common: it changes no probability, and would cost digits."""
    return logits - logits.mean(-1, keepdim=True)


def calibrated(scores: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the least log loss that a multiple of scores has, and the factor; classes weigh alike.

    As much of the labels as one sample has is spread over all classes, or the factor would have no bound where all
    samples are right. The loss is convex in the factor: Newton's steps, within what brackets the least.
    """
    number = torch.bincount(y)
    share = 1 / (number[y] * (number > 0).sum()).to(scores.dtype)
    doubt = 1 / (len(y) + 1)
    s = scores - scores.amax(1, keepdim=True)
    aim = (1 - doubt) * s.gather(1, y.unsqueeze(1)).squeeze(1) + doubt * s.mean(1)
    unit = 1 / max(float(s.std()), 1e-12)
    low, high, factor = LEAST_FACTOR * unit, float("inf"), 3 * unit
    for _ in range(STEPS):
        p = (factor * s).softmax(1)
        mean = (p * s).sum(1)
        slope, curve = float(share @ (mean - aim)), float(share @ ((p * s.square()).sum(1) - mean.square()))
        low, high = (factor, high) if slope < 0 else (low, factor)
        change = -slope / curve if curve > 0 else -factor
        if abs(change) <= CLOSE * factor:
            factor += change
            break
        inside = low < factor + change < high
        factor = factor + change if inside else (low + high) / 2 if high < float("inf") else 2 * factor
    return float(share @ ((factor * s).logsumexp(1) - factor * aim)), factor
