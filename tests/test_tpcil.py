"""TPCIL: its loss against literal sums, its graph on points whose neighbours are known, what goes through the net."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edbl import Recipe
from edbl.data.images import Images
from edbl.data.mixing import Batch
from edbl.data.stream import Task
from edbl.memory import Budget, Memory
from edbl.methods.tpcil import TPCIL, hebbian_edges, neural_gas, similarities, topology_loss
from edbl.nets.backbones import build
from edbl.nets.heads import CosineHead
from edbl.nets.net import Net
from edbl.schedule import Optim, Schedule
from tests.test_contract import learnt
from tests.vectors import cosine, seeded, tools

SHAPE = (1, 4, 4)


def normalise(x: Tensor) -> Tensor:
    return x if x.ndim == 2 else (x.float() - 100) / 50


def images_of(counts: list[int], first: int, seed: int, shape: tuple[int, ...] = SHAPE) -> Images:
    y = torch.tensor([first + k for k, count in enumerate(counts) for _ in range(count)])
    if len(shape) == 1:
        return Images(torch.randn(len(y), *shape, generator=seeded(seed)), y)
    return Images(torch.randint(256, (len(y), *shape), generator=seeded(seed), dtype=torch.uint8), y)


def task_of(old: int, counts: list[int], shape: tuple[int, ...] = SHAPE) -> Task:
    train = images_of(counts, old, 20 + old, shape)
    return Task(int(old > 0), old, len(counts), train)


def tpcil(backbone: str = "small", shape: tuple[int, ...] = SHAPE, **options: object) -> TPCIL:
    """Return the method with a small net that knows no class yet."""
    body = build(backbone, shape, seeded(), last_relu=False)
    net = Net(body, CosineHead(body.width)).eval()

    def features(images: Images) -> Tensor:
        with torch.no_grad():
            return net.eval()(normalise(images.x)).features

    config = TPCIL.Config(**options)  # type: ignore[arg-type]
    memory = Memory(Budget("total", 40))
    return TPCIL(net, memory, config, Schedule(2, 0.1, ()), Optim(batch=8), tools(features, normalise))


def second_task(method: TPCIL, exemplars: list[int], shape: tuple[int, ...] = SHAPE) -> Task:
    """Let the method know the old classes and begin the next task."""
    method.begin(task_of(0, [4] * len(exemplars), shape), seeded(1))
    method.memory.replace(images_of(exemplars, 0, 2, shape))
    task = task_of(len(exemplars), [5, 5], shape)
    method.begin(task, seeded(3))
    return task


def batch_of(seen: int, shape: tuple[int, ...] = SHAPE) -> Batch:
    y = torch.rand(6, seen, generator=seeded(8))
    return Batch(torch.randn(6, *shape, generator=seeded(7)), y / y.sum(1, keepdim=True))


# The loss, written out.


def pearson(a: list[float], b: list[float]) -> float:
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    together = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    alone = sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)
    return together / math.sqrt(alone)


def test_topology_loss() -> None:
    before, now = torch.randn(2, 9, generator=seeded(), dtype=torch.float64)
    assert topology_loss(before, now).item() == pytest.approx(-pearson(before.tolist(), now.tolist()))


def test_topology_loss_has_its_minimum_at_no_change_up_to_scale_and_shift() -> None:
    before = torch.rand(9, generator=seeded(), dtype=torch.float64)
    for now in (before, 3 * before - 2, 0.01 * before + 5):
        now = now.clone().requires_grad_()
        loss = topology_loss(before, now)
        assert loss.item() == pytest.approx(-1)
        assert torch.autograd.grad(loss, now)[0].abs().max() < 1e-6
    assert topology_loss(before, -before).item() == pytest.approx(1)
    assert topology_loss(before, before.flip(0)) > -0.99


def test_similarities() -> None:
    features, edges = torch.randn(5, 3, generator=seeded()), torch.tensor([[0, 1], [1, 4], [2, 3]])
    expected = [cosine(features[i].tolist(), features[j].tolist()) for i, j in edges.tolist()]
    torch.testing.assert_close(similarities(features, edges), torch.tensor(expected))


def test_constant_similarities_have_no_correlation_and_a_finite_gradient() -> None:
    features = torch.ones(3, 4).requires_grad_()
    loss = topology_loss(torch.tensor([0.2, 0.7]), similarities(features, torch.tensor([[0, 1], [1, 2]])))
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert torch.autograd.grad(loss, features)[0].isfinite().all()


# The graph.


def circle(count: int, shift: float = 0.0) -> Tensor:
    angles = (torch.arange(count) + shift) * 2 * math.pi / count
    return torch.stack([angles.cos(), angles.sin()], 1)


def test_edges_of_vertices_on_a_circle_are_the_circle() -> None:
    edges = hebbian_edges(circle(400, 0.3), circle(8))
    assert sorted(map(tuple, edges.tolist())) == sorted([(k, k + 1) for k in range(7)] + [(0, 7)])


def test_edges_of_vertices_on_a_line_are_the_line() -> None:
    line = torch.stack([torch.linspace(0, 5, 301), torch.zeros(301)], 1)
    edges = hebbian_edges(line, torch.tensor([[0.0, 0], [2.0, 0], [5.0, 0], [1.0, 0]]))
    assert sorted(map(tuple, edges.tolist())) == [(0, 3), (1, 2), (1, 3)]


def test_there_is_no_edge_where_no_point_is() -> None:
    """Vertices 0 and 1 lie at one arc, 2 and 3 at another; the gaps between the arcs hold no points."""
    arcs = torch.cat([circle(400)[:50], circle(400)[200:250]])
    edges = hebbian_edges(arcs, torch.stack([arcs[10], arcs[40], arcs[60], arcs[90]]))
    assert edges.tolist() == [[0, 1], [2, 3]]


def test_edges_one_point_at_a_time() -> None:
    points, vertices = torch.randn(60, 3, generator=seeded()), torch.randn(9, 3, generator=seeded(1))
    expected = set()
    for point in points.tolist():
        far = sorted((math.dist(point, vertex), k) for k, vertex in enumerate(vertices.tolist()))
        expected.add((min(far[0][1], far[1][1]), max(far[0][1], far[1][1])))
    assert hebbian_edges(points, vertices).tolist() == sorted(map(list, expected))


def test_vertices_spread_as_the_points_do() -> None:
    """Three heaps, one of them with half of the points."""
    heaps = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    members = torch.tensor([0] * 80 + [1] * 40 + [2] * 40)
    points = heaps[members] + 0.5 * torch.randn(160, 2, generator=seeded())
    for seed in range(5):
        vertices = neural_gas(points, 16, seeded(seed))
        assert (torch.cdist(vertices, points).min(1).values > 1).sum() <= 1, "one vertex may be left between heaps"
        near = torch.cdist(vertices, heaps).argmin(1)
        # In two dimensions the density of the vertices goes as the square root of that of the points.
        assert near.bincount(minlength=3).tolist() == pytest.approx([6.6, 4.7, 4.7], abs=1)
    assert torch.equal(neural_gas(points, 16, seeded(1)), neural_gas(points, 16, seeded(1)))
    assert not torch.equal(neural_gas(points, 16, seeded(1)), neural_gas(points, 16, seeded(2)))


def test_as_many_vertices_as_points_are_the_points() -> None:
    points = torch.randn(7, 3, generator=seeded())
    vertices = neural_gas(points, 7, seeded(1))
    assert torch.cdist(vertices, points).min(1).values.max() < 1e-3
    assert torch.cdist(points, vertices).min(1).values.max() < 1e-3


# The method.


def test_first_task_is_plain() -> None:
    method = tpcil()
    method.begin(task_of(0, [4, 4]), seeded())
    batch = batch_of(2)
    expected = -(batch.y * method.net(batch.x).logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(method.loss(batch), expected)


def test_learning_again_as_in_a_first_task_is_plain() -> None:
    method = tpcil()
    second_task(method, [6, 5, 7])
    batch = batch_of(5)
    plain = F.cross_entropy(method.net(batch.x).logits, batch.y)
    assert not torch.isclose(method.loss(batch), plain)
    (phase,) = method.phases(task_of(0, [4, 4, 4, 4, 4]))
    torch.testing.assert_close(phase.loss(batch), plain)
    restored = tpcil()  # with no task begun
    restored.net.grow(5, seeded())
    (phase,) = restored.phases(task_of(0, [4, 4, 4, 4, 4]))
    assert phase.loss(batch).isfinite()


@pytest.mark.parametrize(("backbone", "shape"), [("small", SHAPE), ("mlp", (6,))])
def test_loss(backbone: str, shape: tuple[int, ...]) -> None:
    method = tpcil(backbone, shape, topology_weight=3.0, vertices=8)
    second_task(method, [6, 5, 7], shape)
    assert method.anchors is not None
    assert method.anchors.dtype == torch.float32
    old = method.net.frozen()(method.anchors).features.tolist()
    for parameter in method.net.backbone.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=seeded(4))
    now = method.net.eval()(method.anchors).features.tolist()
    edges = method.edges.tolist()
    assert len(edges) > 3
    correlation = pearson([cosine(old[i], old[j]) for i, j in edges], [cosine(now[i], now[j]) for i, j in edges])
    assert correlation < 0.999
    batch = batch_of(5, shape)
    plain = -(batch.y * method.net(batch.x).logits.log_softmax(1)).sum(1).mean().item()
    assert method.loss(batch).item() == pytest.approx(plain - 3 * correlation, rel=1e-4)


def test_the_unchanged_net_has_the_least_topology_loss() -> None:
    method = tpcil(topology_weight=10.0, vertices=8)
    second_task(method, [6, 5, 7])
    batch = batch_of(5)
    plain = F.cross_entropy(method.net(batch.x).logits, batch.y)
    assert (method.loss(batch) - plain).item() == pytest.approx(-10, abs=1e-3)


def test_anchors_are_exemplars_each_but_once() -> None:
    for most in (2, 8, 500):
        method = tpcil(vertices=most)
        second_task(method, [6, 5, 7])
        assert method.anchors is not None
        assert 2 <= len(method.anchors) <= most
        exemplars = normalise(method.memory.images.x).flatten(1)
        near = torch.cdist(method.anchors.flatten(1), exemplars)
        assert near.min(1).values.max() == 0
        assert len(near.argmin(1).unique()) == len(method.anchors)
        assert int(method.edges.max()) < len(method.anchors)
        if most == 500:
            assert len(method.anchors) == 18


def test_vertices_at_the_same_image_are_one() -> None:
    method = tpcil(vertices=500)
    method.begin(task_of(0, [4, 4]), seeded(1))
    twice = torch.arange(8).repeat_interleave(2)
    method.memory.replace(images_of([4, 4], 0, 2)[twice])
    method.begin(task_of(2, [5, 5]), seeded(3))
    assert method.anchors is not None
    assert len(method.anchors) == len(method.anchors.unique(dim=0)) <= 8


def test_graph_is_that_of_the_old_net_and_drawn_from_the_generator_alone() -> None:
    found: list[tuple[Tensor, ...]] = []
    for _ in range(2):
        method = tpcil(vertices=5)
        second_task(method, [6, 5, 7])
        torch.manual_seed(len(found))
        assert method.anchors is not None
        found.append((method.anchors, method.edges, method.before))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_one_exemplar_has_no_topology() -> None:
    method = tpcil()
    second_task(method, [1])
    batch = batch_of(3)
    loss = method.loss(batch)
    torch.testing.assert_close(loss, F.cross_entropy(method.net(batch.x).logits, batch.y))
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.net.parameters())


def test_anchors_share_the_statistics_of_the_batch_and_have_no_label() -> None:
    method = tpcil(topology_weight=0.0, vertices=8)
    second_task(method, [6, 5, 7])
    method.net.train()
    batch = batch_of(5)
    assert method.anchors is not None
    logits = method.net(torch.cat([batch.x, method.anchors])).logits[:6]
    torch.testing.assert_close(method.loss(batch), F.cross_entropy(logits, batch.y))
    assert not torch.isclose(method.loss(batch), F.cross_entropy(method.net(batch.x).logits, batch.y))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_of_similarities_is_kept_by_the_topology_loss_and_not_without_it(seed: int, tmp_path: Path) -> None:
    """The anchors are shown either way, so that the weight is all that differs."""
    kept = []
    for weight in (0.0, 1.0):
        learner = learnt("tpcil", tmp_path / str(weight), seed=seed, **{"options.topology_weight": weight}).learner
        method = learner.method
        assert isinstance(method, TPCIL)
        assert method.anchors is not None
        now = similarities(learner.net(method.anchors).features, method.edges)
        kept.append(pearson(method.before.tolist(), now.tolist()))
    without, with_it = kept
    assert without < 0.92
    assert with_it > 0.98


def test_presets() -> None:
    theirs = Recipe.build("tpcil", data="cifar100", preset="paper")
    assert (theirs.schedule.epochs, theirs.schedule.milestones, theirs.optim.weight_decay) == (160, (80, 120), 5e-4)


def test_all_exemplars_draw_edges_not_the_anchors_alone() -> None:
    method = tpcil(vertices=6)
    second_task(method, [12, 12, 12])
    assert method.anchors is not None
    points = F.normalize(method.features(method.memory.images))
    own = F.normalize(method.net(method.anchors).features.detach())
    assert torch.equal(method.edges, hebbian_edges(points, own))
    assert len(method.edges) > len(hebbian_edges(own, own))
