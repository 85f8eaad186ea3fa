"""Heads that differ from a linear layer: what grows, what is frozen, what is saved, and what they compute."""

import copy
import math

import pytest
import torch
from torch import Tensor

from edbl.nets.heads import CorrectedHead, CosineHead, FrozenHead, ProxyHead
from edbl.nets.net import Head, LinearHead
from tests.vectors import cosine, dot, seeded

HEADS = (LinearHead, CorrectedHead, CosineHead, ProxyHead)
FROZEN = (CosineHead, ProxyHead)
WIDTH = 6


def grown(kind: type[Head], *sizes: int, seed: int = 0) -> Head:
    head, generator = kind(WIDTH), seeded(seed)
    for size in sizes:
        head.grow(size, generator)
    return head


def frozen(kind: type[FrozenHead], *sizes: int) -> FrozenHead:
    head = grown(kind, *sizes)
    assert isinstance(head, FrozenHead)
    return head


def features(n: int = 5, seed: int = 1) -> Tensor:
    return torch.randn(n, WIDTH, generator=seeded(seed))


def rows(head: Head) -> Tensor:
    """Return all rows, of the oldest class first."""
    return torch.cat([head.old, head.weight]).detach() if isinstance(head, FrozenHead) else head.weight.detach()


def length(a: list[float]) -> float:
    return math.sqrt(dot(a, a))


@pytest.mark.parametrize("kind", HEADS)
def test_growth_keeps_what_is_there(kind: type[Head]) -> None:
    head, generator = kind(WIDTH), seeded()
    for number, size in enumerate((3, 2, 4)):
        before, classes = rows(head), head.classes
        head.grow(size, generator)
        after = rows(head)
        assert torch.equal(after[: len(before)], before)
        assert after.shape == ((classes + size) * kind.rows, WIDTH)
        assert head.sizes == [3, 2, 4][: number + 1]
        assert head.classes == classes + size
        assert head(features()).shape == (5, classes + size)
        fresh = after[len(before) :]
        assert fresh.abs().max() <= WIDTH**-0.5
        assert len(fresh.unique(dim=0)) == len(fresh)


@pytest.mark.parametrize("kind", HEADS)
def test_growth_leaves_the_logits_of_old_classes(kind: type[Head]) -> None:
    head = grown(kind, 3, 2)
    before = head.train()(features())
    head.grow(4, seeded(3))
    torch.testing.assert_close(head(features())[:, :5], before)


@pytest.mark.parametrize("kind", HEADS)
def test_a_saved_head_can_be_restored(kind: type[Head]) -> None:
    head = grown(kind, 3, 2, 4)
    for parameter in head.parameters():
        parameter.data += torch.randn(parameter.shape, generator=seeded(4))
    restored = grown(kind, 3, 2, 4, seed=9)
    assert not torch.equal(restored(features()), head(features()))
    restored.load_state_dict(copy.deepcopy(head.state_dict()))
    for mode in (True, False):
        assert torch.equal(restored.train(mode)(features()), head.train(mode)(features()))
    head.grow(2, seeded(5))
    restored.grow(2, seeded(5))
    assert torch.equal(rows(restored), rows(head))


@pytest.mark.parametrize("kind", HEADS)
def test_a_cleared_head_is_as_new(kind: type[Head]) -> None:
    head = grown(kind, 3, 2)
    for parameter in head.parameters():
        parameter.data += 1
    head.clear()
    assert head.classes == 0
    assert head.sizes == []
    again, new = seeded(6), seeded(6)
    fresh = kind(WIDTH)
    for size in (2, 2):
        head.grow(size, again)
        fresh.grow(size, new)
    for name, value in fresh.state_dict().items():
        assert torch.equal(head.state_dict()[name], value), name


@pytest.mark.parametrize("kind", FROZEN)
def test_old_rows_get_no_gradient(kind: type[FrozenHead]) -> None:
    head = frozen(kind, 3, 2)
    assert len(head.old) == 3 * kind.rows
    inputs = features().requires_grad_()
    head(inputs).square().sum().backward()
    assert head.old.grad is None
    assert not head.old.requires_grad
    assert head.weight.grad is not None
    assert (head.weight.grad.norm(dim=1) > 0).all()
    assert inputs.grad is not None  # also by way of the old rows
    only_old = torch.autograd.grad(head(inputs)[:, :3].square().sum(), inputs)[0]
    assert (only_old.norm(dim=1) > 0).all()


@pytest.mark.parametrize("kind", FROZEN)
def test_thawed_rows_learn_until_the_head_grows(kind: type[FrozenHead]) -> None:
    head = frozen(kind, 3, 2)
    head.thaw()
    head(features()).square().sum().backward()
    assert head.old.grad is not None
    assert (head.old.grad.norm(dim=1) > 0).all()
    head.grow(2, seeded())
    assert not head.old.requires_grad
    assert len(head.old) == 5 * kind.rows


@pytest.mark.parametrize("kind", FROZEN)
def test_the_scale_begins_at_one_and_is_carried_over(kind: type[FrozenHead]) -> None:
    head = frozen(kind, 3)
    assert head.scale.item() == 1
    head.scale.data.fill_(7.5)
    head.grow(2, seeded())
    assert head.scale.item() == 7.5
    assert head.scale.requires_grad


def test_cosine_scores() -> None:
    head = frozen(CosineHead, 3, 2)
    head.scale.data.fill_(2.5)
    logits, cosines = head(features()), head.cosines(features())
    for i, h in enumerate(features().tolist()):
        for c, w in enumerate(rows(head).tolist()):
            assert cosines[i, c].item() == pytest.approx(cosine(h, w), abs=1e-6)
            assert logits[i, c].item() == pytest.approx(2.5 * cosine(h, w), abs=1e-6)


def test_proxy_scores() -> None:
    head = frozen(ProxyHead, 2, 1)
    head.scale.data.fill_(3.0)  # which the scores have not
    scores = head(features())
    proxies = rows(head).tolist()
    for i, h in enumerate(features().tolist()):
        unit = [x / length(h) for x in h]
        for c in range(3):
            own = [[x / length(p) for x in p] for p in proxies[10 * c : 10 * c + 10]]
            near = [-sum((a - b) ** 2 for a, b in zip(unit, p, strict=True)) for p in own]
            total = sum(math.exp(s) for s in near)
            expected = sum(math.exp(s) / total * s for s in near)
            assert scores[i, c].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", FROZEN)
def test_scores_are_exact_where_products_are_bf16(kind: type[FrozenHead]) -> None:
    head = frozen(kind, 3, 2)
    expected = head(features())
    with torch.autocast("cpu", torch.bfloat16):
        found = head(features())
        assert head(features().bfloat16()).dtype == torch.float32
    assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", FROZEN)
def test_imprinted_rows_are_as_long_as_the_old_ones(kind: type[FrozenHead]) -> None:
    head = frozen(kind, 3, 2)
    head.old.data *= torch.linspace(1, 4, len(head.old)).unsqueeze(1)
    old = head.old.clone()
    targets = torch.randn(len(head.weight), WIDTH, generator=seeded(8)) * 9
    head.imprint(targets)
    mean = sum(length(w) for w in old.tolist()) / len(old)
    for w, target in zip(head.weight.tolist(), targets.tolist(), strict=True):
        assert length(w) == pytest.approx(mean, rel=1e-5)
        assert cosine(w, target) == pytest.approx(1, abs=1e-6)
    assert torch.equal(head.old, old)
    assert head.weight.requires_grad


@pytest.mark.parametrize("kind", FROZEN)
def test_imprinted_rows_of_the_first_task_have_length_one(kind: type[FrozenHead]) -> None:
    head = frozen(kind, 2)
    head.imprint(torch.randn(len(head.weight), WIDTH, generator=seeded(8)) * 9)
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(2 * kind.rows))


def corrected(*sizes: int, beta: float = 0.5, gamma: float = -2.0) -> CorrectedHead:
    head = grown(CorrectedHead, *sizes)
    assert isinstance(head, CorrectedHead)
    head.correction.data = torch.tensor([beta, gamma])
    return head


def test_correction_is_of_the_newest_logits_in_evaluation_mode() -> None:
    head = corrected(3, 2)
    raw, found = head.train()(features()), head.eval()(features())
    weight, bias = head.weight.tolist(), head.bias.tolist()
    for i, h in enumerate(features().tolist()):
        for c in range(5):
            z = dot(weight[c], h) + bias[c]
            assert raw[i, c].item() == pytest.approx(z, abs=1e-5)
            assert found[i, c].item() == pytest.approx(0.5 * z - 2 if c >= 3 else z, abs=1e-5)


def test_the_first_task_is_not_corrected() -> None:
    head = corrected(3)
    assert torch.equal(head.eval()(features()), head.train()(features()))


def test_growth_forgets_the_correction() -> None:
    head = corrected(3, 2)
    head.grow(2, seeded())
    assert head.correction.tolist() == [1, 0]
    assert torch.equal(head.eval()(features()), head.train()(features()))


@pytest.mark.parametrize(("gone", "kept"), [((4, 3), False), ((4,), True), ((0, 0), True), ((0,), True)])
def test_forgetting_the_newest_task_forgets_the_correction(gone: tuple[int, ...], kept: bool) -> None:
    """The others were not corrected, and are not from then on."""
    head = corrected(2, 1, 2).eval()
    before = head(features()).detach()
    left = list(range(5))
    for number in gone:
        head.remove(number)
        del left[number]
    assert head.correction.tolist() == ([0.5, -2] if kept else [1, 0])
    torch.testing.assert_close(head(features()), before[:, left])


def test_correction_learns_in_evaluation_mode_alone() -> None:
    head = corrected(3, 2)
    head.train()(features()).sum().backward()
    assert head.correction.grad is None
    newest = head(features())[:, 3:]
    (gradient,) = torch.autograd.grad(head.eval()(features()).sum(), head.correction)
    torch.testing.assert_close(gradient, torch.stack([newest.sum(), torch.tensor(10.0)]))
