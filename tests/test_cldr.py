"""CLDR as we read it: where images are mixed, and the loss written out."""

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

from edbl.data.mixing import Batch, Ratio, unmixed
from edbl.data.samplers import OldNew
from edbl.methods.cldr import CLDR, Depth, swapped
from edbl.nets.backbones import MLP, Backbone, ResNet, initialise
from tests.test_contract import learnt
from tests.test_methods_unit import a_batch, after_first_task, make, task_of
from tests.vectors import seeded

Rows = list[list[float]]


def cldr(**options: object) -> CLDR:
    """Return the method in its second task: classes 0 and 1 are old, 2 and 3 new."""
    method = make("cldr", **options)  # type: ignore[arg-type]
    assert isinstance(method, CLDR)
    after_first_task(method, [3, 3], [9, 9])
    method.net.head.weight.data += 0.3 * torch.randn(4, 128, generator=seeded(3))  # away from the teacher
    method.net.eval()
    return method


def test_a_draw_mixes_at_one_depth_and_touches_nothing() -> None:
    batch, generator = a_batch(4), seeded(1)
    depths, ratios = Counter[int](), []
    for _ in range(3000):
        drawn = Depth(3, Ratio(1.0, "pass"))(batch, generator)
        assert drawn.x is batch.x
        assert drawn.y is batch.y
        assert drawn.drawn is not None
        values = drawn.drawn.tolist()
        (depth,) = [k for k, value in enumerate(values) if value != 1]
        depths[depth] += 1
        ratios.append(values[depth])
    assert all(abs(depths[k] - 1000) < 130 for k in range(3))  # 5 standard deviations
    assert 0 <= min(ratios) < 0.01
    assert 0.99 < max(ratios) < 1
    assert sum(ratios) / 3000 == pytest.approx(0.5, abs=0.03)


def test_a_batch_has_nothing_drawn_by_default() -> None:
    assert a_batch(4).drawn is None


@pytest.mark.parametrize("shape", [(6,), (6, 3), (6, 2, 4, 4)])
def test_partners_are_in_the_other_half(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=seeded())
    mixed = swapped(x, torch.tensor(0.3))
    for i, partner in enumerate([3, 4, 5, 0, 1, 2]):
        torch.testing.assert_close(mixed[i], 0.3 * x[i] + 0.7 * x[partner])
    assert torch.equal(swapped(x, torch.tensor(1.0)), x)
    half = x.bfloat16()
    assert swapped(half, torch.tensor(0.3)).dtype == torch.bfloat16
    assert torch.equal(swapped(half, torch.tensor(1.0)), half)


@pytest.mark.parametrize("backbone", [MLP(64), ResNet(1, (4, 8), blocks=2, project=False)])
def test_ratio_one_leaves_the_output_as_it_is(backbone: Backbone) -> None:
    method = cldr()
    initialise(backbone, seeded())
    method.net.backbone = backbone.eval()
    method.net.head.weight.data = torch.randn(4, method.net.backbone.width, generator=seeded(2))
    x = torch.randn(6, 1, 8, 8, generator=seeded(5))
    depths = 1 + len(method.net.backbone.ends)
    plain = method.net(x).logits
    assert torch.equal(method.mixed(x, torch.ones(depths)), plain)
    for depth in range(depths):
        ratios = torch.ones(depths)
        ratios[depth] = 0.4
        assert not torch.allclose(method.mixed(x, ratios), plain, atol=1e-3)


def mixed_rows(rows: Tensor, ratio: float) -> Tensor:
    half = len(rows) // 2
    partners = [*range(half, 2 * half), *range(half)]
    return torch.stack([ratio * rows[i] + (1 - ratio) * rows[k] for i, k in enumerate(partners)])


def logits_mixed_at(method: CLDR, x: Tensor, depth: int, ratio: float) -> Tensor:
    """Return the logits of the small net, layer by layer, mixed at one depth: the input, or what a layer gives."""
    net = method.net
    assert isinstance(net.backbone, MLP)
    hidden = mixed_rows(x, ratio).flatten(1) if depth == 0 else x.flatten(1)
    for number, layer in enumerate(net.backbone.layers):
        hidden = layer(hidden)
        hidden = (mixed_rows(hidden, ratio) if depth == number + 1 else hidden).relu()
    return net.head(hidden)  # type: ignore[no-any-return]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_images_are_mixed_at_the_depth_drawn_and_nowhere_else(depth: int) -> None:
    method = cldr()
    x = a_batch(4).x
    ratios = torch.ones(3)
    ratios[depth] = 0.3
    torch.testing.assert_close(method.mixed(x, ratios), logits_mixed_at(method, x, depth, 0.3))


def cross_entropy(logits: Rows, labels: Rows) -> float:
    total = 0.0
    for z, y in zip(logits, labels, strict=True):
        normal = math.log(sum(math.exp(value) for value in z))
        total += sum(share * (normal - value) for share, value in zip(y, z, strict=True))
    return total / len(logits)


def distance(logits: Rows, teacher: Rows, t: float) -> float:
    total = 0.0
    for z, old in zip(logits, teacher, strict=True):
        m = len(old)
        below, above = sum(math.exp(v / t) for v in old), sum(math.exp(z[c] / t) for c in range(m))
        total -= t**2 * sum(math.exp(old[c] / t) / below * math.log(math.exp(z[c] / t) / above) for c in range(m))
    return total / len(logits)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_loss_is_what_the_page_says(depth: int) -> None:
    method = cldr(mix_weight=0.7, output_weight=1.3, temperature=3.0)
    plain = a_batch(4)
    ratios = torch.ones(3)
    ratios[depth] = 0.6
    batch = Batch(plain.x, plain.y, ratios)
    logits, labels = method.net(batch.x).logits.tolist(), batch.y.tolist()
    mixed_labels = [
        [0.6 * own + 0.4 * other for own, other in zip(labels[i], labels[(i + 5) % 10], strict=True)] for i in range(10)
    ]
    expected = (
        cross_entropy(logits, labels)
        + 0.7 * cross_entropy(logits_mixed_at(method, batch.x, depth, 0.6).tolist(), mixed_labels)
        + 1.3 * distance(logits[:5], method.teach(batch.x).logits.tolist()[:5], 3.0)
    )
    assert method.loss(batch).item() == pytest.approx(expected, rel=1e-4)


def test_weights_of_zero_leave_plain_replay() -> None:
    method = cldr(mix_weight=0.0, output_weight=0.0)
    plain = a_batch(4)
    batch = Batch(plain.x, plain.y, torch.tensor([1.0, 0.2, 1.0]))
    expected = cross_entropy(method.net(plain.x).logits.tolist(), plain.y.tolist())
    assert method.loss(batch).item() == pytest.approx(expected, rel=1e-5)


def test_what_is_drawn() -> None:
    method = make("cldr", batch=8, beta=0.4)
    task = after_first_task(method, [3, 2], [9, 9])
    draw = method.draw(task)
    assert draw.sampler == OldNew(5, 18, 8, 8, steps=2)
    assert draw.data.y.tolist() == [0] * 3 + [1] * 2 + [2] * 9 + [3] * 9
    assert draw.mixing == Depth(3, Ratio(0.4, "pass"))


def test_the_first_task_is_plain() -> None:
    method = make("cldr")
    task = task_of(0, [9, 9])
    method.begin(task, seeded())
    assert method.draw(task).mixing is unmixed
    method.net.eval()
    batch = a_batch(2)
    expected = cross_entropy(method.net(batch.x).logits.tolist(), batch.y.tolist())
    assert method.loss(batch).item() == pytest.approx(expected, rel=1e-5)
    assert CLDR.our_reading


@pytest.mark.parametrize("seed", [0, 1])
def test_outputs_on_exemplars_stay_near_those_of_the_old_net_where_they_are_held(seed: int, tmp_path: Path) -> None:
    changes = []
    for weight in (0.0, 1.0):
        given = {"options.output_weight": weight, "options.mix_weight": 0.0}
        found = learnt("cldr", tmp_path / str(weight), seed=seed, **given)
        x = found.learner.transform.normalise(found.exemplars.x)
        now, before = found.learner.net(x).logits[:, :5].log_softmax(1), found.old(x).logits.log_softmax(1)
        changes.append((before.exp() * (before - now)).sum(1).mean().item())
    without, with_it = changes
    assert with_it < without / 3


@pytest.mark.parametrize("seed", [0, 1])
def test_representations_between_those_of_memory_and_new_images_mean_labels_between_theirs(
    seed: int, tmp_path: Path
) -> None:
    """At every depth, and of images that were never seen."""
    losses = []
    for weight in (0.0, 1.0):
        given = {"options.mix_weight": weight, "schedule.epochs": 8, "schedule.milestones": (7,)}
        found = learnt("cldr", tmp_path / str(weight), seed=seed, **given)
        method, x, y = found.learner.method, found.learner.transform.normalise(found.test.x), found.test.y
        assert isinstance(method, CLDR)
        pairs = torch.cat([(y < 5).nonzero()[:150, 0], (y >= 5).nonzero()[:150, 0]])
        labels = mixed_rows(torch.eye(10)[y[pairs]], 0.9).tolist()
        losses.append([cross_entropy(method.mixed(x[pairs], r).tolist(), labels) for r in 1 - 0.1 * torch.eye(3)])
    for without, with_it in zip(*losses, strict=True):
        assert with_it < 0.88 * without
