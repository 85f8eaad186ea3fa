"""Classifiers in closed form: against refits without each sample, scikit-learn, and other orders of samples."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge as Reference
from torch import Tensor

from edbl.metrics import calibration_error
from edbl.nets import kept
from edbl.nets.closed import (
    BENDS,
    SHRINKAGES,
    Classes,
    Closed,
    Discriminant,
    Form,
    Ridge,
    calibrated,
    fitted,
    linked,
    rooted,
)
from edbl.nets.kept import Kept
from tests.vectors import seeded

CPU = torch.device("cpu")
WIDTH = 12
COUNTS = ([6, 6, 6], [9, 2, 5, 3], [1, 4, 2], [30, 20], [2, 2])
FORMS = (Discriminant, Ridge)


def samples(counts: list[int], seed: int = 0, width: int = WIDTH, apart: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return features that are 0 or more, as those of a backbone, of classes that overlap."""
    y = torch.tensor([k for k, count in enumerate(counts) for _ in range(count)])
    means = apart * torch.randn(len(counts), width, generator=seeded(seed))
    return (means[y] + torch.randn(len(y), width, generator=seeded(seed + 1))).clamp(min=0), y


def vectors(features: Tensor) -> Tensor:
    return rooted(features, unit=True)


def of(features: Tensor, y: Tensor, kind: type[Form]) -> Classes:
    """Return counts, means and scatter, class by class."""
    x = vectors(features.double())
    groups = [x[y == k] for k in range(int(y.max()) + 1)]
    parts = [(group - group.mean(0)).T @ (group - group.mean(0)) for group in groups]
    scatter = sum(part / len(group) if kind.balanced else part for part, group in zip(parts, groups, strict=True))
    assert isinstance(scatter, Tensor)
    return Classes(
        torch.tensor([float(len(g)) for g in groups]).double(), torch.stack([g.mean(0) for g in groups]), scatter
    )


def probabilities(found: Closed, features: Tensor) -> Tensor:
    return (vectors(features.double()) @ found.weight.T + found.bias).softmax(1)


def solved(kind: type[Form], state: Kept) -> Closed:
    return fitted(kind, state.classes, *state.judges())


def keep(features: Tensor, y: Tensor, kind: type[Form]) -> Kept:
    return Kept.none(features.shape[1], CPU, vectors, kind.balanced).add(features, y)


def test_roots_keep_their_sign_and_may_have_length_1() -> None:
    x = torch.tensor([[4.0, -9.0], [0.0, 0.0]])
    assert rooted(x, unit=False).tolist() == [[2, -3], [0, 0]]
    torch.testing.assert_close(rooted(x, unit=True), torch.tensor([[2.0, -3.0], [0, 0]]) / 13**0.5)


@pytest.mark.parametrize("shrinkage", [0.01, 0.4, 0.98])
def test_the_discriminant_is_that_of_scikit_learn_where_classes_are_of_one_size(shrinkage: float) -> None:
    features, y = samples([8, 8, 8])
    x = vectors(features.double())
    weight, bias = Discriminant(of(features, y, Discriminant), x[:0], y[:0]).solve(shrinkage)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage, priors=np.full(3, 1 / 3)).fit(x.numpy(), y)
    scale = (24 - 3) / 24  # its covariance is over the number of samples
    np.testing.assert_allclose(weight.numpy(), theirs.coef_ * scale, rtol=1e-9, atol=1e-12)
    offset = bias.numpy() - theirs.intercept_ * scale
    np.testing.assert_allclose(offset, offset.mean(), rtol=1e-9)


def literal_discriminant(x: Tensor, groups: list[Tensor], shrinkage: float, ridge: float) -> list[float]:
    """Return the scores of a sample, one class at a time; ``ridge`` is what the diagonal gets."""
    total, width = sum(map(len, groups)), len(x)
    covariance = torch.zeros(width, width).double()
    for group in groups:
        for row in group:
            covariance += torch.outer(row - group.mean(0), row - group.mean(0)) / max(total - len(groups), 1)
    inverse = torch.linalg.inv((1 - shrinkage) * covariance + ridge * torch.eye(width))
    scores = []
    for group in groups:
        away = x - group.mean(0)
        noise = float((inverse @ covariance).trace()) / (2 * len(group))
        scores.append(noise - float(away @ inverse @ away) / 2)
    return scores


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("shrinkage", [0.01, 0.6, 0.98])
def test_leaving_a_sample_out_of_the_discriminant_equals_a_fit_without_it(counts: list[int], shrinkage: float) -> None:
    features, y = samples(counts)
    x = vectors(features.double())
    classes = of(features, y, Discriminant)
    several = classes.counts[y] > 1
    form = Discriminant(classes, x[several], y[several])
    ridge = shrinkage * float(classes.scatter.trace()) / (len(x) - len(counts)) / WIDTH
    found = form.left_out(shrinkage)
    for row, sample in zip(found, several.nonzero().squeeze(1).tolist(), strict=True):
        rest = torch.arange(len(x)) != sample
        groups = [x[rest & (y == k)] for k in range(len(counts))]
        wanted = torch.tensor(literal_discriminant(x[sample], groups, shrinkage, ridge)).double()
        torch.testing.assert_close(row, wanted, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("gone", [1, 2, 4, 5])
@pytest.mark.parametrize("shrinkage", [0.01, 0.6])
def test_leaving_several_samples_of_a_class_out_equals_a_fit_without_them(gone: int, shrinkage: float) -> None:
    features, y = samples([5, 3, 6])
    x = vectors(features.double())
    classes = of(features, y, Discriminant)
    form = Discriminant(classes, x, y)
    found = form.without(0, x[:5], torch.arange(5) < gone, shrinkage)
    ridge = shrinkage * float(classes.scatter.trace()) / (len(x) - 3) / WIDTH
    groups = [group for group in (x[gone:5], x[5:8], x[8:]) if len(group)]
    rows = [literal_discriminant(one, groups, shrinkage, ridge) for one in x[:gone]]
    wanted = torch.tensor(rows, dtype=torch.float64)
    found = found[:, -len(groups) :]
    assert (gone < 5) == bool(form.without(0, x[:5], torch.arange(5) < gone, shrinkage)[:, 0].isfinite().all())
    torch.testing.assert_close(found - found[:, :1], wanted - wanted[:, :1], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("gone", [1, 2, 4, 5])
@pytest.mark.parametrize("shrinkage", [0.01, 0.6])
def test_leaving_several_samples_of_a_class_out_of_ridge_equals_a_fit_without_them(gone: int, shrinkage: float) -> None:
    features, y = samples([5, 3, 6])
    x = vectors(features.double())
    form = Ridge(of(features, y, Ridge), x, y)
    found = form.without(0, x[:5], torch.arange(5) < gone, shrinkage)
    left = y[gone:] - int(gone == 5)
    fit = Ridge(of(features[gone:], left, Ridge), x[gone:], left)
    fit.mean_value = form.mean_value  # which is not estimated again
    weight, bias = fit.solve(shrinkage)
    assert (gone < 5) == bool(found[:, 0].isfinite().all())
    torch.testing.assert_close(found[:, -len(bias) :], x[:gone] @ weight.T + bias, rtol=1e-5, atol=1e-6)


def test_where_nothing_scatters_the_nearest_of_the_other_means_are_left() -> None:
    x = torch.eye(3).double().repeat_interleave(2, 0)
    classes = Classes(torch.full((3,), 2.0).double(), torch.eye(3).double(), torch.zeros(3, 3).double())
    form = Discriminant(classes, x, torch.arange(3).repeat_interleave(2))
    assert form.without(1, x[2:4], torch.tensor([True, False]), 0.5)[0].argmax() == 1
    lonely = form.without(1, x[2:4], torch.tensor([True, True]), 0.5)
    torch.testing.assert_close(lonely[:, 0], lonely[:, 2])
    assert lonely[:, 1].isneginf().all()


def reference(x: Tensor, y: Tensor, counts: Tensor, penalty: float) -> Reference:
    """Return scikit-learn's ridge regression; classes weigh alike."""
    labels = torch.nn.functional.one_hot(y, len(counts)).double()
    return Reference(alpha=penalty).fit(x.numpy(), labels.numpy(), sample_weight=(1 / counts[y]).numpy())


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("shrinkage", [0.01, 0.6, 0.98])
def test_ridge_regression_and_its_leaving_out_are_those_of_scikit_learn(counts: list[int], shrinkage: float) -> None:
    features, y = samples(counts)
    x = vectors(features.double())
    classes = of(features, y, Ridge)
    several = classes.counts[y] > 1
    form = Ridge(classes, x[several], y[several])
    away = classes.means - classes.means.mean(0)
    penalty = shrinkage / (1 - shrinkage) * float((classes.scatter + away.T @ away).trace()) / WIDTH
    weight, bias = form.solve(shrinkage)
    whole = reference(x, y, classes.counts, penalty)
    np.testing.assert_allclose(weight.numpy(), whole.coef_, atol=1e-9)
    np.testing.assert_allclose(bias.numpy(), whole.intercept_, atol=1e-9)
    found = form.left_out(shrinkage)
    for row, sample in zip(found, several.nonzero().squeeze(1).tolist(), strict=True):
        rest = torch.arange(len(x)) != sample
        without = reference(x[rest], y[rest], classes.counts, penalty)
        np.testing.assert_allclose(row.numpy(), without.predict(x[sample : sample + 1].numpy())[0], atol=1e-7)


def literal_loss(factor: float, scores: Tensor, y: Tensor) -> float:
    """Return the log loss of each sample, averaged by class, then over classes; one sample's labels are spread."""
    doubt = 1 / (len(y) + 1)
    by_class: dict[int, list[float]] = {}
    for row, label in zip((factor * scores).tolist(), y.tolist(), strict=True):
        log_sum = max(row) + math.log(sum(math.exp(value - max(row)) for value in row))
        loss = (1 - doubt) * (log_sum - row[label]) + doubt * sum(log_sum - value for value in row) / len(row)
        by_class.setdefault(label, []).append(loss)
    return sum(sum(losses) / len(losses) for losses in by_class.values()) / len(by_class)


@pytest.mark.parametrize("noise", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_scores_get_the_factor_of_the_least_loss(noise: float, scale: float) -> None:
    y = torch.tensor([0] * 9 + [1] * 4 + [3] * 2)
    scores = scale * (torch.eye(4)[y] + noise * torch.randn(15, 4, generator=seeded(2))).double()
    loss, factor = calibrated(scores, y)
    assert loss == pytest.approx(literal_loss(factor, scores, y))
    best = minimize_scalar(lambda log: literal_loss(math.exp(log) / scale, scores, y), (-5, 5), method="brent")
    assert loss == pytest.approx(best.fun, rel=1e-9)
    assert factor * scale == pytest.approx(math.exp(best.x), rel=1e-4)


def test_scores_that_are_all_right_all_wrong_or_all_alike_get_a_factor_too() -> None:
    y = torch.tensor([0, 1, 1])
    right = torch.eye(2)[y].double()
    for scores in (right, 1 - right, torch.zeros(3, 2).double()):
        loss, factor = calibrated(scores, y)
        assert 0 < factor < math.inf
        assert 0 < loss <= math.log(2) + 1e-3


def test_responses_are_bent_until_they_are_probabilities() -> None:
    features, y = samples([230] * 12, width=16, apart=0.7)
    first = torch.arange(len(y)) % 230 < 30
    x = vectors(features.double())
    for kind in FORMS:
        found = fitted(kind, of(features[first], y[first], kind), x[first], y[first])
        logits = x[~first] @ found.weight.T + found.bias
        told = linked(logits, found.link)
        assert torch.equal(told.argmax(1), logits.argmax(1))
        hits = (told.argmax(1) == y[~first]).numpy()
        error, before = (calibration_error(one.softmax(1).amax(1).numpy(), hits) for one in (told, logits))
        if kind is Discriminant:
            assert found.link is None
            assert torch.equal(told, logits)
            continue
        assert found.link is not None
        bend, gain = found.link.tolist()
        torch.testing.assert_close(told, gain * torch.asinh(bend * logits))
        # By the samples that it was learnt from, left out one by one.
        losses = {one: calibrated((one / found.factor * found.left_out).asinh(), y[first])[0] for one in BENDS}
        assert bend == pytest.approx(min(losses, key=losses.__getitem__) / found.factor)
        assert min(losses.values()) <= calibrated(found.left_out, y[first])[0] + 1e-3
        assert error < before + 0.005
        assert error < 0.04


@pytest.mark.parametrize("kind", FORMS)
def test_the_shrinkage_is_the_one_of_the_least_loss(kind: type[Form]) -> None:
    chosen = set()
    for seed, counts in enumerate([[3] * 6, [60] * 3, [400] * 2]):
        features, y = samples(counts, seed)
        classes, x = of(features, y, kind), vectors(features.double())
        found = fitted(kind, classes, x, y)
        form = kind(classes, x, y)
        losses = {shrinkage: calibrated(form.left_out(shrinkage), y)[0] for shrinkage in SHRINKAGES}
        assert found.loss == pytest.approx(min(losses.values()))
        assert found.shrinkage == min(losses, key=losses.__getitem__)
        chosen.add(found.shrinkage)
    assert len(chosen) > 1, "few samples want more of it than many"


def test_a_class_of_few_is_not_taken_for_less_likely() -> None:
    features, y = samples([300] * 6, 3, width=60, apart=0.3)
    few = torch.cat([torch.arange(k * 300, k * 300 + (200 if k < 3 else 5)) for k in range(6)])
    rest = torch.cat([torch.arange(k * 300 + 200, k * 300 + 300) for k in range(6)])
    balanced = solved(Discriminant, keep(features[few], y[few], Discriminant))
    answers = probabilities(balanced, features[rest]).argmax(1)
    plain = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=balanced.shrinkage, priors=np.full(6, 1 / 6))
    plain.fit(vectors(features[few].double()).numpy(), y[few])
    theirs = torch.from_numpy(plain.predict(vectors(features[rest].double()).numpy()))
    small = y[rest] >= 3
    assert (answers[small] == y[rest][small]).float().mean() > (theirs[small] == y[rest][small]).float().mean() + 0.05
    assert (answers == y[rest]).float().mean() > (theirs == y[rest]).float().mean()


@pytest.mark.parametrize("kind", FORMS)
def test_one_sample_a_class_is_enough_for_nearest_means(kind: type[Form]) -> None:
    features, y = samples([1, 1, 1, 1])
    found = solved(kind, keep(features, y, kind))
    asked = samples([5, 5, 5, 5], 7)[0]
    cosines = vectors(asked.double()) @ vectors(features.double()).T
    torch.testing.assert_close(probabilities(found, features).argmax(1), y)
    if kind is Discriminant:
        torch.testing.assert_close(probabilities(found, asked).argmax(1), cosines.argmax(1))


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("counts", [[1], [4], [1, 2], [2, 2]])
def test_little_is_enough_for_answers(kind: type[Form], counts: list[int]) -> None:
    features, y = samples(counts)
    for rows in (features, torch.zeros_like(features), features[:1].expand_as(features)):
        found = solved(kind, keep(rows, y, kind))
        assert probabilities(found, features).isfinite().all()


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("many", [1000, 25])
@pytest.mark.parametrize("seed", range(5))
def test_any_order_and_any_split_of_the_same_samples_give_the_same_answers(
    kind: type[Form], many: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MANY", many)  # some classes are sums then
    monkeypatch.setattr(kept, "JUDGES", 60)
    features, y = samples([40, 3, 30, 1, 24, 12], seed)
    whole = solved(kind, keep(features, y, kind))
    asked = samples([20] * 6, seed + 50)[0]
    generator = np.random.default_rng(seed)
    order = torch.from_numpy(generator.permutation(len(y)))
    cuts = sorted(generator.choice(np.arange(1, len(y)), 5, replace=False).tolist())
    state = Kept.none(WIDTH, CPU, vectors, kind.balanced)
    for part in torch.tensor_split(order, cuts):
        state = state.add(features[part], y[part])
        state = Kept.of({k: v.clone() for k, v in state.tensors().items()}, vectors, kind.balanced)  # as from a file
    assert set(state.summed.tolist()) == ({0, 2} if many == 25 else set())
    found = solved(kind, state)
    assert found.shrinkage == whole.shrinkage
    torch.testing.assert_close(probabilities(found, asked), probabilities(whole, asked), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("many", [1000, 25])
@pytest.mark.parametrize("forgotten", [0, 1, 4, 5])
def test_a_forgotten_class_might_never_have_been_there(
    kind: type[Form], many: int, forgotten: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MANY", many)
    features, y = samples([40, 3, 30, 1, 24, 12])
    stay = y != forgotten
    never = solved(kind, keep(features[stay], y[stay] - (y[stay] > forgotten).long(), kind))
    state = keep(features, y, kind).forget(forgotten)
    found = solved(kind, state)
    assert len(state.counts) == len(state.means) == 5
    asked = samples([20] * 5, 60)[0]
    torch.testing.assert_close(probabilities(found, asked), probabilities(never, asked), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("many", [1000, 25])
@pytest.mark.parametrize("order", range(3))
def test_dropped_samples_might_never_have_been_there(
    kind: type[Form], many: int, order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of classes of many too, half of what is kept of them included, and whatever is added after that."""
    monkeypatch.setattr(kept, "MANY", many)
    features, y = samples([40, 5, 30, 12])
    state = keep(features, y, kind)
    held = [bool((state.features == features[row].half()).all(1).any()) for row in range(40)]
    assert sum(held) == (12 if many == 25 else 40)
    inside, outside = ([row for row in range(40) if held[row] == own] for own in (True, False))
    gone = torch.tensor([*inside[order :: 2 if many == 25 else 7], *outside[:3], 42, 80])
    more, asked = samples([20, 3, 10], 9), samples([20] * 4, 60)[0]
    found = probabilities(solved(kind, state.drop(features[gone], y[gone]).add(*more)), asked)
    stay = torch.ones_like(y, dtype=torch.bool).index_fill(0, gone, False)
    never = keep(torch.cat([features[stay], more[0]]), torch.cat([y[stay], more[1]]), kind)
    torch.testing.assert_close(found, probabilities(solved(kind, never), asked), rtol=0, atol=1e-9)
    with pytest.raises(ValueError, match="never added"):
        state.drop(features[:1] + 1, torch.tensor([1]))


@pytest.mark.parametrize("counts", [[1200, 900, 50], [1001, 400, 40]])
def test_dropping_is_exact_at_the_numbers_in_use(counts: list[int]) -> None:
    features, y = samples(counts)
    state = keep(features, y, Discriminant)
    own = state.features[state.labels == 0]
    assert len(own) == 500
    gone = own[torch.arange(0, 500, 2)]
    stay = ~((features.half().unsqueeze(1) == gone).all(2).any(1) & (y == 0))
    found = state.drop(gone, torch.zeros(len(gone), dtype=torch.int64))
    never = keep(features[stay], y[stay], Discriminant)
    assert not found.worn
    asked = samples([20] * 3, 60)[0]
    ours, theirs = solved(Discriminant, found), solved(Discriminant, never)
    torch.testing.assert_close(probabilities(ours, asked), probabilities(theirs, asked), rtol=0, atol=1e-9)
    further = state.drop(own[:251], torch.zeros(251, dtype=torch.int64))
    assert further.worn == [0]
    assert not further.add(*samples([30], 8)).worn


def test_of_samples_alike_the_one_that_is_named_is_dropped() -> None:
    rows, labels = torch.ones(3, WIDTH), torch.zeros(3, dtype=torch.int64)
    state = Kept.none(WIDTH, CPU, vectors, False, ids=1).add(rows, labels, torch.tensor([[5], [6], [7]]))
    assert state.drop(rows[:1], labels[:1], torch.tensor([[6]])).ids.tolist() == [[5], [7]]


def test_nothing_is_left_of_the_scatter_of_a_class_that_was_forgotten() -> None:
    features, y = samples([1, 7, 1, 1])
    stay = y != 1
    found = solved(Discriminant, keep(features, y, Discriminant).forget(1))
    never = solved(Discriminant, keep(features[stay], torch.arange(3), Discriminant))
    torch.testing.assert_close(probabilities(found, features), probabilities(never, features), rtol=0, atol=1e-9)


def test_what_is_kept_of_a_class_of_many_does_not_grow() -> None:
    features, y = samples([1001, 1000])
    state = keep(features, y, Discriminant)
    assert torch.bincount(state.labels).tolist() == [500, 1000]
    assert state.features.dtype == torch.float16
    more = state.add(*samples([50]))
    assert torch.bincount(more.labels).tolist() == [500, 1000]
    assert more.counts.tolist() == [1051, 1000]
    few = more.judges()[1]
    assert torch.bincount(few).tolist() == [250, 250]
    assert torch.bincount(more.labels[more.judging]).tolist() == [500, 1000]
    assert len(keep(*samples([30] * 100), Discriminant).judges()[1]) == 2000
