"""PODNet: its losses against literal sums, its imprinting, its two phases, and what does not move while it learns."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edbl import Recipe, run
from edbl.data.samplers import Uniform
from edbl.data.stream import Task
from edbl.memory import Budget, Memory
from edbl.methods.base import Phase
from edbl.methods.podnet import PODNet, kmeans, nca, outputs_and_maps, pod_spatial, pooled, watched
from edbl.nets.backbones import build
from edbl.nets.heads import FrozenHead, ProxyHead
from edbl.nets.net import Net
from edbl.schedule import Optim, Schedule
from tests.test_contract import learnt
from tests.test_lucir import SHAPE, a_batch, images_of, task_of
from tests.vectors import seeded, tools

TRAIN, TUNE = Schedule(2, 0.1, ()), Schedule(3, 0.05, ())


def podnet(**options: object) -> PODNet:
    """Return the method with a small net that knows no class yet."""
    backbone = build("small", SHAPE, seeded(), last_relu=False)
    net = Net(backbone, ProxyHead(backbone.width)).eval()
    config = PODNet.Config(**{"tune": TUNE, **options})  # type: ignore[arg-type]
    memory = Memory(Budget("total", 10))
    return PODNet(net, memory, config, TRAIN, Optim(batch=8), tools(lambda i: net.eval()(i.x.float()).features))


def second_task(method: PODNet, counts: tuple[int, ...] = (12, 15)) -> Task:
    """Let the method know three classes, move it a little, and begin the next task."""
    method.begin(task_of(0, 0, [4, 4, 4]), seeded(1))
    method.memory.replace(images_of([4, 4, 4], 0, seed=2))
    method.net.head_as(ProxyHead).scale.data.fill_(2.0)
    task = task_of(1, 3, list(counts))
    method.begin(task, seeded(3))
    for parameter in method.net.backbone.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=seeded(4))
    return task


def released(similarities: list[float], label: int, eta: float, margin: float) -> float:
    """Return the loss step by step as the released code takes it."""
    scores = [eta * (s - margin) for s in similarities]
    highest = max(scores)
    shifted = [s - highest for s in scores]
    below = sum(math.exp(0.0 if j == label else s) for j, s in enumerate(shifted))
    return -(shifted[label] - math.log(below))


SIMILARITIES = -4 * torch.rand(8, 5, generator=seeded(6))
LABELS = [0, 1, 2, 3, 4, 0, 2, 4]


@pytest.mark.parametrize("margin", [0.6, 0.0, 3.0])  # which does nothing in the released code
@pytest.mark.parametrize("eta", [1.0, 7.3, 0.2])
def test_nca(eta: float, margin: float) -> None:
    found = nca(SIMILARITIES, torch.eye(5)[LABELS], torch.tensor(eta))
    expected = [released(s, y, eta, margin) for s, y in zip(SIMILARITIES.tolist(), LABELS, strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-4, rtol=1e-4)
    assert max(expected) > 0


def test_gradients_of_nca() -> None:
    similarities = SIMILARITIES.clone().requires_grad_()
    eta = torch.tensor(1.5, requires_grad=True)
    nca(similarities, torch.eye(5)[LABELS], eta).sum().backward()
    assert similarities.grad is not None
    assert eta.grad is not None
    step = 1e-5

    def slope(change: Callable[[float], float]) -> float:
        return (change(step) - change(-step)) / (2 * step)

    by_eta = 0.0
    for i, (row, label) in enumerate(zip(SIMILARITIES.tolist(), LABELS, strict=True)):
        by_eta += slope(lambda d, row=row, label=label: released(row, label, 1.5 + d, 0.6))  # type: ignore[misc]
        for c in range(5):

            def moved(d: float, row: list[float] = row, label: int = label, c: int = c) -> float:
                return released([s + d * (j == c) for j, s in enumerate(row)], label, 1.5, 0.6)

            assert similarities.grad[i, c].item() == pytest.approx(slope(moved), abs=1e-3)
    assert eta.grad.item() == pytest.approx(by_eta, abs=1e-3)


def test_nca_is_cross_entropy_where_the_net_is_right() -> None:
    right = SIMILARITIES.argmax(1)
    found = nca(SIMILARITIES, torch.eye(5)[right], torch.tensor(2.0))
    torch.testing.assert_close(found, F.cross_entropy(2 * SIMILARITIES, right, reduction="none"))


def test_nca_of_a_single_class() -> None:
    similarities = SIMILARITIES[:, :1].clone().requires_grad_()
    loss = nca(similarities, torch.ones(8, 1), torch.tensor(1.0)).sum()
    loss.backward()
    assert loss.item() == 0
    assert similarities.grad is not None
    assert not similarities.grad.any()


def literal_pool(image: list[list[list[float]]]) -> list[float]:
    """Return one image's squares, summed along width, then along height, over the length of all that."""
    sums = [sum(v * v for v in row) for channel in image for row in channel]
    for channel in image:
        sums += [sum(row[j] ** 2 for row in channel) for j in range(len(channel[0]))]
    length = math.sqrt(sum(s * s for s in sums))
    return [s / length for s in sums]


def literal_pod(a: Tensor, b: Tensor) -> list[float]:
    pairs = [(literal_pool(x), literal_pool(y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    return [math.sqrt(sum((p - q) ** 2 for p, q in zip(x, y, strict=True))) for x, y in pairs]


def test_pod_spatial() -> None:
    a, b = torch.randn(3, 2, 4, 5, generator=seeded(7)), torch.randn(3, 2, 4, 5, generator=seeded(8))
    assert pooled(a).shape == (3, 2 * (4 + 5))
    torch.testing.assert_close(pooled(a), torch.tensor([literal_pool(image) for image in a.tolist()]))
    torch.testing.assert_close(pod_spatial(a, b), torch.tensor(literal_pod(a, b)))


def test_pod_spatial_of_vectors_is_that_of_one_pixel() -> None:
    a, b = torch.randn(3, 6, generator=seeded(7)), torch.randn(3, 6, generator=seeded(8))
    expected = literal_pod(a.view(3, 6, 1, 1), b.view(3, 6, 1, 1))
    torch.testing.assert_close(pod_spatial(a, b), torch.tensor(expected))


def test_pod_spatial_of_the_same_maps() -> None:
    a = torch.randn(3, 2, 4, 5, generator=seeded(7), requires_grad=True)
    loss = pod_spatial(a, -2 * a.detach()).sum()  # neither sign nor scale counts
    loss.backward()
    assert loss.item() < 1e-5
    assert a.grad is not None
    assert a.grad.isfinite().all()


@pytest.mark.parametrize(
    ("name", "blocks"), [("resnet32", [4, 9, 13, 14]), ("resnet18", [1, 3, 5, 7]), ("small", [0, 1]), ("mlp", [0, 1])]
)
def test_watched_blocks(name: str, blocks: list[int]) -> None:
    assert watched(build(name, (3, 8, 8), seeded(), last_relu=False)) == blocks


def test_maps_are_those_before_the_relu() -> None:
    backbone = build("resnet32", (3, 8, 8), seeded(), last_relu=False)
    net = Net(backbone, ProxyHead(64)).eval()
    net.grow(2, seeded())
    output, maps = outputs_and_maps(net, torch.randn(2, 3, 8, 8, generator=seeded(1)))
    assert [tuple(m.shape) for m in maps] == [(2, 16, 8, 8), (2, 32, 4, 4), (2, 64, 2, 2), (2, 64, 2, 2)]
    assert all((m < 0).any() for m in maps)
    torch.testing.assert_close(maps[-1].mean((2, 3)), output.features)


def clumps(classes: int, centres: int, each: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return vectors in tight clumps, their classes, and the mean of each clump."""
    middle = F.normalize(torch.randn(classes * centres, 16, generator=seeded(9)))
    vectors = middle.repeat_interleave(each, 0)
    vectors = F.normalize(vectors + 0.01 * torch.randn(vectors.shape, generator=seeded(10)))
    labels = torch.arange(classes).repeat_interleave(centres * each)
    means = vectors.view(classes, centres, each, 16).mean(2)
    mixed = torch.randperm(len(vectors), generator=seeded(11))
    return vectors[mixed], labels[mixed], means


def test_kmeans_finds_clumps() -> None:
    vectors, labels, means = clumps(classes=3, centres=5, each=4)
    found = kmeans(vectors, labels, 3, 5, seeded(12)).view(3, 5, 16)
    for ours, theirs in zip(found, means, strict=True):
        assert torch.cdist(ours, theirs).min(1).values.max() < 1e-5
        assert torch.cdist(theirs, ours).min(1).values.max() < 1e-5


def test_kmeans_ends_where_it_stays() -> None:
    vectors = F.normalize(torch.randn(70, 4, generator=seeded(13)))
    labels = torch.arange(70) % 2
    found = kmeans(vectors, labels, 2, 3, seeded(14)).tolist()
    for k in (0, 1):
        groups: list[list[list[float]]] = [[], [], []]
        centres = found[3 * k : 3 * k + 3]
        for vector in vectors[labels == k].tolist():
            far = [sum((v - c) ** 2 for v, c in zip(vector, centre, strict=True)) for centre in centres]
            groups[far.index(min(far))].append(vector)
        for group, centre in zip(groups, centres, strict=True):
            means = [sum(column) / len(group) for column in zip(*group, strict=True)]
            assert means == pytest.approx(centre, abs=1e-5)


def test_kmeans_of_fewer_vectors_than_centres() -> None:
    vectors = F.normalize(torch.randn(5, 4, generator=seeded(15)))
    labels = torch.tensor([0, 1, 1, 0, 2])
    found = kmeans(vectors, labels, 3, 10, seeded(16)).view(3, 10, 4)
    for k in range(3):
        own = vectors[labels == k]
        assert torch.cdist(found[k], own).min(1).values.max() < 1e-5  # each is one of them
        assert torch.cdist(own, found[k]).min(1).values.max() < 1e-5  # and each of them is there


def test_kmeans_depends_on_its_generator_alone() -> None:
    vectors, labels = F.normalize(torch.randn(60, 4, generator=seeded(13))), torch.arange(60) % 2
    first, again, other = (kmeans(vectors, labels, 2, 10, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_kmeans_begins_with_spread_centres() -> None:
    # 97 vectors in one clump and 3 far ones: drawn evenly, the far ones would rarely be among the four centres.
    near, far = torch.eye(4)[:1].repeat(97, 1), torch.eye(4)[1:]
    vectors = torch.cat([near, far])
    for seed in range(10):
        found = kmeans(vectors, torch.zeros(100, dtype=torch.int64), 1, 4, seeded(seed))
        assert torch.cdist(torch.eye(4), found).min(1).values.max() < 1e-6


@pytest.mark.parametrize("counts", [(12, 15), (3, 40)])
def test_new_proxies_are_imprinted(counts: tuple[int, int]) -> None:
    method = podnet()
    method.begin(task_of(0, 0, [4, 4, 4]), seeded(1))
    head = method.net.head_as(ProxyHead)
    before = head.weight.detach().clone()
    task = task_of(1, 3, list(counts))
    method.begin(task, seeded(3))
    assert torch.equal(head.old, before)
    lengths = head.weight.detach().norm(dim=1)
    torch.testing.assert_close(lengths, before.norm(dim=1).mean().expand(20))
    vectors = F.normalize(method.features(task.train)).detach()
    for k in (0, 1):
        proxies = F.normalize(head.weight.detach()[10 * k : 10 * k + 10])
        own, others = vectors[task.train.y == 3 + k], vectors[task.train.y != 3 + k]
        assert (proxies @ own.T).max(1).values.min() > 0.9  # each proxy is near an image of its class
        assert (proxies @ own.T).max(0).values.mean() > (proxies @ others.T).max(0).values.mean()


def test_the_first_task_is_plain() -> None:
    method = podnet()
    task = task_of(0, 0, [4, 4, 4])
    method.begin(task, seeded(1))
    fresh = ProxyHead(method.net.backbone.width)
    fresh.grow(3, seeded(1))
    assert torch.equal(method.net.head.weight, fresh.weight)  # not imprinted
    assert method.teacher is None
    (phase,) = method.phases(task)
    assert phase.name == "train"
    assert phase.adjust is not None
    assert phase.schedule.epochs == 2
    labels = [0, 1, 2, 0]
    batch = a_batch(labels, 3)
    similarities = method.net(batch.x).logits.tolist()
    expected = sum(released(s, y, 1.0, 0.6) for s, y in zip(similarities, labels, strict=True)) / 4
    assert phase.loss(batch).item() == pytest.approx(expected, abs=1e-5)


OPTIONS: list[dict[str, object]] = [{}, {"spatial": 0.7, "flat": 2.5}]


@pytest.mark.parametrize("counts", [(12, 15), (12, 15, 12, 12), (12,)])
@pytest.mark.parametrize("options", OPTIONS)
def test_the_loss_is_the_sum_of_three(counts: tuple[int, ...], options: dict[str, object]) -> None:
    method = podnet(**options)
    task = second_task(method, counts)
    labels = [0, 3, 2, 1, task.seen - 1, 0]
    batch = a_batch(labels, task.seen)
    assert method.teacher is not None
    maps: dict[Net, list[Tensor]] = {method.net: [], method.teacher.net: []}
    outputs = {}
    for net, seen in maps.items():

        def watch(number: int, x: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen.append(x)
            return x

        outputs[net] = net(batch.x, watch)
    config, eta = method.config, 2.0
    similarities = outputs[method.net].logits.tolist()
    classify = sum(released(s, y, eta, 0.6) for s, y in zip(similarities, labels, strict=True)) / 6
    layers = [literal_pod(a, b) for a, b in zip(*maps.values(), strict=True)]
    spatial = sum(sum(layer) / 6 for layer in layers) / len(layers)
    assert len(layers) == 2
    assert spatial > 1e-2
    features = [outputs[net].features.tolist() for net in maps]
    flat = 0.0
    for a, b in zip(*features, strict=True):
        product = sum(x * y for x, y in zip(a, b, strict=True))
        flat += (1 - product / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))) / 6
    assert flat > 1e-3
    root = math.sqrt(task.seen / len(counts))
    expected = classify + config.spatial * root * spatial + config.flat * root * flat
    assert method.loss(batch).item() == pytest.approx(expected, rel=1e-4)


def test_the_teacher_does_not_learn() -> None:
    method = podnet()
    second_task(method)
    method.loss(a_batch([0, 3, 2], 5)).backward()
    assert method.teacher is not None
    assert all(p.grad is None for p in method.teacher.net.parameters())
    assert method.net.head_as(ProxyHead).old.grad is None
    assert method.net.head_as(ProxyHead).weight.grad is not None
    assert all(p.grad is not None for p in method.net.backbone.parameters())


def test_two_phases() -> None:
    method = podnet()
    task = second_task(method)
    head, memory = method.net.head_as(ProxyHead), method.memory.images
    phases = method.phases(task)
    train = next(phases)
    assert (train.name, train.schedule, train.train_mode) == ("train", TRAIN, True)
    assert train.teacher is None  # the loss asks it by itself
    learning = {id(p) for p in train.params}
    assert learning == {id(p) for p in method.net.parameters()} - {id(head.old)}
    assert torch.equal(train.draw.data.x, torch.cat([memory.x, task.train.x]))
    method.net.head.weight.data += 0.1  # the engine has trained
    tune = next(phases)
    assert (tune.name, tune.schedule, tune.train_mode) == ("tune", TUNE, True)
    assert tune.teacher is None
    assert tune.optim == Optim(batch=8, warmup=0)  # at a constant rate
    assert [id(p) for p in tune.params] == [id(head.old), id(head.weight)]
    assert tune.draw.data.counts(5).tolist() == [2, 2, 2, 2, 2]
    expected = method.memory.with_new(task.train, method.features).images
    assert torch.equal(tune.draw.data.x, expected.x)
    assert tune.draw.sampler == Uniform(10, 8)
    assert torch.equal(method.memory.images.x, memory.x)  # the memory itself is as it was
    assert next(phases, None) is None


def test_tuning_is_by_the_whole_loss() -> None:
    method = podnet()
    _, tune = method.phases(second_task(method))
    batch = a_batch([0, 3, 2, 4, 1], 5)
    method.net.train()
    whole = torch.autograd.grad(method.loss(batch), tune.params)
    alone = torch.autograd.grad(tune.loss(batch), tune.params)
    for ours, theirs in zip(alone, whole, strict=True):
        assert ours.abs().max() > 1e-3
        torch.testing.assert_close(ours, theirs)
    tune.loss(batch).backward()
    assert all(p.grad is None for p in method.net.backbone.parameters())


def test_gradients_are_clamped() -> None:
    for clamp in (5.0, 0.25):
        method = podnet(clamp=clamp)
        for phase in method.phases(second_task(method)):
            for parameter in phase.params:
                parameter.grad = torch.linspace(-9, 9, parameter.numel()).view(parameter.shape)
            before = [p.grad.clone() for p in phase.params if p.grad is not None]
            assert phase.adjust is not None
            phase.adjust(seeded())
            for parameter, old in zip(phase.params, before, strict=True):
                assert parameter.grad is not None
                expected = [min(max(g, -clamp), clamp) for g in old.flatten().tolist()]
                assert parameter.grad.flatten().tolist() == pytest.approx(expected)


def test_old_proxies_move_in_no_phase_but_the_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    phases = PODNet.phases
    still: list[tuple[str, bool, bool, bool, bool]] = []

    def spy(self: PODNet, task: Task) -> Iterator[Phase]:
        head, backbone = self.net.head, self.net.backbone
        assert isinstance(head, FrozenHead)
        for phase in phases(self, task):
            watched = (head.old, head.weight, head.scale, next(backbone.parameters()))
            before = [p.detach().clone() for p in watched]
            yield phase
            old, new, scale, first = (torch.equal(p, b) for p, b in zip(watched, before, strict=True))
            still.append((phase.name, old, new, scale, first))

    monkeypatch.setattr(PODNet, "phases", spy)
    small = {"net.backbone": "mlp", "stream.tasks": 3, "schedule.epochs": 2}
    run(Recipe.build("podnet", "digits", preset="quick", **small, **{"options.tune.epochs": 2}), tmp_path / "run")
    train, tuning = ("train", True, False, False, False), ("tune", False, False, True, True)
    assert still == [train, train, tuning, train, tuning]


def moved(folder: Path, **options: float) -> tuple[float, float]:
    """Return how far pooled maps, and directions of features, of test images are from the old net's after a task."""
    given: dict[str, object] = {f"options.{name}": value for name, value in options.items()}
    found = learnt("podnet", folder, **{"net.backbone": "small", "schedule.epochs": 2}, **given)
    x = found.learner.transform.normalise(found.test.x)
    with torch.no_grad():
        (now, maps), (old, old_maps) = outputs_and_maps(found.learner.net, x), outputs_and_maps(found.old, x)
    distances = [pod_spatial(a, b).mean().item() for a, b in zip(maps, old_maps, strict=True)]
    return sum(distances) / len(distances), 1 - F.cosine_similarity(now.features, old.features).mean().item()


def test_maps_stay_near_the_teachers_with_pod_spatial_and_features_with_pod_flat(tmp_path: Path) -> None:
    maps, features = moved(tmp_path / "neither", spatial=0.0, flat=0.0)
    assert moved(tmp_path / "spatial", spatial=3.0, flat=0.0)[0] < maps / 2
    assert moved(tmp_path / "flat", spatial=0.0, flat=1.0)[1] < features / 2


def test_preset_paper() -> None:
    recipe = Recipe.build("podnet", data="cifar100", preset="paper")
    assert recipe.schedule == Schedule(160, 0.1, (), shape="cosine")
    assert recipe.optim == Optim(batch=128, momentum=0.9, nesterov=False, weight_decay=5e-4, warmup=0)
    assert recipe.data.brightness == 63 / 255
    assert recipe.options == PODNet.Config()
    assert isinstance(recipe.options, PODNet.Config)
    assert recipe.options.tune == Schedule(20, 0.05, ())


def test_kmeans_begins_with_centres_by_their_squared_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 0, the vector 3 is drawn nine times as often as the vector 1."""
    monkeypatch.setattr("edbl.methods.podnet.ROUNDS", 0)
    vectors, labels = torch.tensor([[0.0], [1.0], [3.0]]).repeat(1000, 1), torch.arange(1000).repeat_interleave(3)
    first, second = kmeans(vectors, labels, 1000, 2, seeded()).view(1000, 2).T
    assert (first == 0).float().mean().item() == pytest.approx(1 / 3, abs=0.05)
    assert (second[first == 0] == 3).float().mean().item() == pytest.approx(0.9, abs=0.05)
