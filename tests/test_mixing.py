"""Mixing, made visible: image k of a batch is the k-th unit vector, so a mixed image shows what it was made of."""

from itertools import pairwise

import pytest
import torch
from torch import Generator, Tensor

from edbl.data.mixing import Batch, PairMixup, Ratio, ResamplingMixup, VanillaMixup, mix, unmixed
from tests.vectors import seeded

SHAPES = [(1, 1, 1), (4, 2, 3), (32, 10, 107), (5, 4, 1)]  # old images, rounds, new images


class ThreeQuarters(Ratio):
    """A ratio that tells anchor and partner apart."""

    def draw(self, passes: int, size: int, generator: Generator) -> Tensor:
        return torch.full((passes * size,), 0.75)


THREE_QUARTERS = ThreeQuarters(1.0, "pass")


def unit_batch(old: int, new: int, old_classes: int = 3, new_classes: int = 2) -> Batch:
    """Return images ``[size, 1, 1, size]`` whose labels go round the old and then the new classes."""
    labels = [k % old_classes for k in range(old)] + [old_classes + k % new_classes for k in range(new)]
    size = old + new
    return Batch(torch.eye(size).view(size, 1, 1, size), torch.eye(old_classes + new_classes)[labels])


def pairs(mixed: Batch) -> list[tuple[int, int]]:
    """Return anchor and partner of each image that was mixed three to one."""
    found = []
    for row in mixed.x.flatten(1):
        parts = {k: v for k, v in enumerate(row.tolist()) if v}
        if len(parts) == 1:
            assert list(parts.values()) == [1.0]  # mixed with itself
            anchor = partner = next(iter(parts))
        else:
            assert sorted(parts.values()) == [0.25, 0.75]
            (anchor,) = [k for k, v in parts.items() if v == 0.75]
            (partner,) = [k for k, v in parts.items() if v == 0.25]
        found.append((anchor, partner))
    return found


def labels_follow_images(mixed: Batch, batch: Batch) -> None:
    """Eq. 1 mixes labels as it mixes images: the label is the sum of the parts' labels."""
    for image, label in zip(mixed.x.flatten(1).tolist(), mixed.y, strict=True):
        expected = torch.zeros_like(label)
        for k, share in enumerate(image):
            for c in range(len(expected)):
                expected[c] += share * batch.y[k, c]
        torch.testing.assert_close(label, expected)
        assert label.sum().item() == pytest.approx(1)
        assert (label >= 0).all()


@pytest.mark.parametrize("shape", [(), (4,), (3, 5, 2)])
def test_mix_is_eq_1(shape: tuple[int, ...]) -> None:
    generator = seeded()
    batch = Batch(torch.randn(6, *shape or (1,), generator=generator), torch.rand(6, 4, generator=generator))
    anchors, partners = torch.tensor([0, 3, 3, 5, 1]), torch.tensor([1, 2, 0, 5, 0])
    ratio = torch.tensor([0.0, 1.0, 0.3, 0.6, 0.9])
    mixed = mix(batch, anchors, partners, ratio)
    assert len(mixed.x) == len(mixed.y) == 5
    for s in range(5):
        i, j, lam = int(anchors[s]), int(partners[s]), float(ratio[s])
        torch.testing.assert_close(mixed.x[s], lam * batch.x[i] + (1 - lam) * batch.x[j])
        torch.testing.assert_close(mixed.y[s], lam * batch.y[i] + (1 - lam) * batch.y[j])


def test_unmixed_is_the_same_batch() -> None:
    batch = unit_batch(3, 4)
    assert unmixed(batch, seeded()) is batch


@pytest.mark.parametrize(("beta", "variance"), [(1.0, 1 / 12), (0.4, 1 / 7.2), (3.0, 1 / 28)])
@pytest.mark.parametrize("passes", [True, False])
def test_ratio_has_the_moments_of_its_beta_distribution(beta: float, variance: float, passes: bool) -> None:
    count = 40_000
    draws = Ratio(beta, "pass").draw(count, 1, seeded()) if passes else Ratio(beta, "sample").draw(1, count, seeded())
    assert draws.shape == (count,)
    assert draws.min() >= 0
    assert draws.max() <= 1
    assert draws.mean().item() == pytest.approx(0.5, abs=5 * (variance / count) ** 0.5)
    assert draws.var().item() == pytest.approx(variance, rel=0.02)
    assert ((draws - 0.5) ** 3).mean().item() == pytest.approx(0, abs=2e-3)


def test_ratio_of_beta_1_is_uniform() -> None:
    draws = Ratio(1.0, "sample").draw(1, 40_000, seeded())
    for edge in (0.1, 0.25, 0.5, 0.9):
        assert (draws < edge).double().mean().item() == pytest.approx(edge, abs=0.012)


@pytest.mark.parametrize(("beta", "middle"), [(0.001, 0.0022), (0.01, 0.022), (0.05, 0.104)])
def test_ratio_of_a_small_beta_is_nearly_always_at_the_ends(beta: float, middle: float) -> None:
    """``middle`` is the share between 0.1 and 0.9: beta / 2 times the integral of 1 / (x (1 - x)), nearly."""
    draws = Ratio(beta, "sample").draw(1, 200_000, seeded())
    assert draws.isfinite().all()
    assert ((draws > 0.1) & (draws < 0.9)).double().mean().item() == pytest.approx(middle, rel=0.15)
    assert draws.mean().item() == pytest.approx(0.5, abs=0.01)


def test_ratio_of_beta_below_1_is_mostly_near_the_ends() -> None:
    draws = Ratio(0.4, "sample").draw(1, 40_000, seeded())
    grid = (torch.arange(2_000_000, dtype=torch.float64) + 0.5) / 2_000_000
    density = (grid * (1 - grid)) ** -0.6
    below = (density[grid < 0.1].sum() / density.sum()).item()
    assert (draws < 0.1).double().mean().item() == pytest.approx(below, abs=0.012)


@pytest.mark.parametrize("beta", [1.0, 0.4])
def test_ratio_is_drawn_per_pass_or_per_sample(beta: float) -> None:
    by_pass = Ratio(beta, "pass").draw(3, 5, seeded()).view(3, 5)
    assert len(set(by_pass[:, 0].tolist())) == 3
    assert torch.equal(by_pass, by_pass[:, :1].expand(3, 5))
    by_sample = Ratio(beta, "sample").draw(3, 5, seeded())
    assert by_sample.shape == (15,)
    assert len(set(by_sample.tolist())) == 15


@pytest.mark.parametrize(("old", "rounds", "new"), SHAPES)
def test_resampling_counts_by_label_mass(old: int, rounds: int, new: int) -> None:
    batch = unit_batch(old, new)
    mixed = ResamplingMixup(old, rounds, Ratio(1.0, "sample"))(batch, seeded())
    assert len(mixed.x) == len(mixed.y) == 2 * rounds * old + new
    mass = mixed.y[:, :3].sum(1)
    whole, none = mass > 1 - 1e-6, mass == 0
    assert int(whole.sum()) == rounds * old  # old with old
    assert int(none.sum()) == new  # new with new
    assert int((~whole & ~none).sum()) == rounds * old  # old with new


@pytest.mark.parametrize(("old", "rounds", "new"), SHAPES)
def test_resampling_pairs(old: int, rounds: int, new: int) -> None:
    mixed = ResamplingMixup(old, rounds, THREE_QUARTERS)(unit_batch(old, new), seeded(3))
    found = pairs(mixed)
    old_old = [(a, b) for a, b in found if a < old and b < old]
    old_new = [(a, b) for a, b in found if a < old <= b]
    new_new = [(a, b) for a, b in found if a >= old and b >= old]
    assert len(old_old) + len(old_new) + len(new_new) == len(found)  # a new image is never an old one's anchor
    anchors = [a for a, _ in found]
    assert [anchors.count(k) for k in range(old)] == [2 * rounds] * old
    assert [anchors.count(k) for k in range(old, old + new)] == [1] * new
    for kind in (old_old, old_new):
        assert [[a for a, _ in kind].count(k) for k in range(old)] == [rounds] * old
    for p in range(rounds):  # each pass of old with old pairs every old image once on either side
        this = old_old[p * old : (p + 1) * old]
        assert sorted(a for a, _ in this) == list(range(old))
        assert sorted(b for _, b in this) == list(range(old))
    assert sorted(b for _, b in new_new) == list(range(old, old + new))


def test_resampling_draws_partners_anew_in_each_pass() -> None:
    old, rounds, new = 20, 6, 30
    found = pairs(ResamplingMixup(old, rounds, THREE_QUARTERS)(unit_batch(old, new), seeded()))
    passes = [tuple(b for _, b in found[p * old : (p + 1) * old]) for p in range(2 * rounds)]
    assert len(set(passes)) == 2 * rounds
    assert passes[0] != tuple(range(old))
    partners = {b for a, b in found if a < old <= b}
    assert partners == set(range(old, old + new))  # 120 draws of 30


@pytest.mark.parametrize(("old", "rounds", "new"), [(4, 2, 3), (8, 3, 8)])
def test_resampling_labels_follow_images(old: int, rounds: int, new: int) -> None:
    batch = unit_batch(old, new)
    for ratio in (Ratio(1.0, "pass"), Ratio(0.4, "sample")):
        labels_follow_images(ResamplingMixup(old, rounds, ratio)(batch, seeded()), batch)


def recovered_ratios(mixed: Batch, old: int, rounds: int, new: int) -> list[list[float]]:
    """Return the anchor's share in each image, pass by pass, leaving out images mixed with themselves."""
    anchors = [*list(range(old)) * (2 * rounds), *range(old, old + new)]
    shares = [row[a].item() for row, a in zip(mixed.x.flatten(1), anchors, strict=True)]
    edges = [p * old for p in range(2 * rounds + 1)] + [2 * rounds * old + new]
    passes = [shares[start:end] for start, end in pairwise(edges)]
    return [[round(v, 5) for v in part if v < 1] for part in passes]


@pytest.mark.parametrize("beta", [1.0, 0.4])
def test_resampling_has_one_ratio_for_each_pass(beta: float) -> None:
    old, rounds, new = 12, 3, 15
    mixed = ResamplingMixup(old, rounds, Ratio(beta, "pass"))(unit_batch(old, new), seeded(1))
    ratios = recovered_ratios(mixed, old, rounds, new)
    assert all(len(set(part)) == 1 for part in ratios)
    assert len({part[0] for part in ratios}) == 2 * rounds + 1


def test_resampling_has_one_ratio_for_each_sample() -> None:
    old, rounds, new = 12, 3, 15
    mixed = ResamplingMixup(old, rounds, Ratio(1.0, "sample"))(unit_batch(old, new), seeded(1))
    ratios = [v for part in recovered_ratios(mixed, old, rounds, new) for v in part]
    assert len(ratios) > 70
    assert len(set(ratios)) == len(ratios)


@pytest.mark.parametrize("size", [1, 2, 9, 64])
def test_vanilla_mixup_is_a_permutation(size: int) -> None:
    batch = unit_batch(size, 0)
    found = pairs(VanillaMixup(THREE_QUARTERS)(batch, seeded()))
    assert [a for a, _ in found] == list(range(size))
    assert sorted(b for _, b in found) == list(range(size))
    if size > 2:
        assert any(a != b for a, b in found)


def test_vanilla_mixup_ratio_per_batch_or_sample() -> None:
    batch = unit_batch(20, 10)
    for ratio in (Ratio(1.0, "pass"), Ratio(1.0, "sample")):
        mixed = VanillaMixup(ratio)(batch, seeded())
        labels_follow_images(mixed, batch)
        shares = {round(v, 5) for v in mixed.x.flatten(1).diagonal().tolist() if v < 1}
        assert len(shares) > 20 if ratio.per == "sample" else len(shares) == 1


@pytest.mark.parametrize("half", [1, 5, 16])
def test_pair_mixup_mixes_the_halves_one_by_one(half: int) -> None:
    batch = unit_batch(half, half)
    mixed = PairMixup(THREE_QUARTERS)(batch, seeded())
    assert pairs(mixed) == [(k, k + half) for k in range(half)]
    for ratio in (Ratio(1.0, "pass"), Ratio(1.0, "sample")):
        mixed = PairMixup(ratio)(batch, seeded())
        labels_follow_images(mixed, batch)
        shares = mixed.x.flatten(1).diagonal().tolist()
        assert len(set(shares)) == (1 if ratio.per == "pass" else half)


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("beta", [1.0, 0.4])
def test_the_seed_decides(beta: float, per_sample: bool) -> None:
    ratio = Ratio(beta, "sample" if per_sample else "pass")
    batch = unit_batch(6, 6)
    for mixing in (VanillaMixup(ratio), ResamplingMixup(6, 2, ratio), PairMixup(ratio)):
        first, again, other = (mixing(batch, seeded(seed)) for seed in (4, 4, 5))
        assert torch.equal(first.x, again.x)
        assert torch.equal(first.y, again.y)
        assert not torch.equal(first.x, other.x)


def test_a_generator_moves_on() -> None:
    generator, batch = seeded(), unit_batch(6, 6)
    mixing = ResamplingMixup(6, 2, Ratio(1.0, "pass"))
    assert not torch.equal(mixing(batch, generator).x, mixing(batch, generator).x)


def test_mixing_leaves_its_input_alone() -> None:
    batch = unit_batch(4, 4)
    for mixing in (VanillaMixup(THREE_QUARTERS), ResamplingMixup(4, 2, THREE_QUARTERS), PairMixup(THREE_QUARTERS)):
        mixing(batch, seeded())
    fresh = unit_batch(4, 4)
    assert torch.equal(batch.x, fresh.x)
    assert torch.equal(batch.y, fresh.y)
