"""Mnemonics: its losses against literal sums, what its phases move and what they leave, and the images it keeps."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edbl import Recipe, resume, run
from edbl.data.augment import Transform, Views
from edbl.data.images import Images
from edbl.data.mixing import Batch
from edbl.data.stream import Task
from edbl.engine.checkpoint import State
from edbl.engine.fit import Loop
from edbl.engine.progress import LOSS, Progress
from edbl.errors import EdblError
from edbl.memory import Budget, Memory
from edbl.methods.base import Phase
from edbl.methods.mnemonics import Mnemonics, Scale, means_by_class
from edbl.nets.backbones import build
from edbl.nets.heads import CosineHead
from edbl.nets.net import Net
from edbl.schedule import Optim, Schedule
from edbl.seeds import Seeds
from tests.test_contract import Killed, Killer, last_state, recipe
from tests.vectors import dot, same, seeded, tools, unit

SHAPE = (3, 4, 4)
TRAIN, PIXELS = Schedule(2, 0.05, ()), Schedule(3, 20.0, ())
TRANSFORM = Transform.of("none", 0, (0.5, 0.4, 0.3), (0.2, 0.25, 0.3), torch.device("cpu"))


def images_of(counts: list[int], first: int = 0, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> Images:
    """Return images around one random image for each class, or vectors around one random vector."""
    y = torch.tensor([first + k for k, count in enumerate(counts) for _ in range(count)])
    centres = torch.rand(20, *shape, generator=seeded(99))
    x = centres[y] + 0.25 * torch.randn(len(y), *shape, generator=seeded(seed))
    return Images(x if len(shape) == 1 else (255 * x).clamp(0, 255).to(torch.uint8), y)


def task_of(old: int, counts: list[int], shape: tuple[int, ...] = SHAPE) -> Task:
    train = images_of(counts, old, seed=20 + old, shape=shape)
    return Task(int(old > 0), old, len(counts), train)


def mnemonics(
    backbone: str = "small", shape: tuple[int, ...] = SHAPE, budget: int = 24, **options: object
) -> Mnemonics:
    """Return the method with a small net that knows no class yet."""
    body = build(backbone, shape, seeded(), last_relu=False)
    net = Net(body, CosineHead(body.width)).eval()

    def features(images: Images) -> Tensor:
        with torch.no_grad():
            return net.eval()(TRANSFORM.normalise(images.x)).features

    config = Mnemonics.Config(**({"exemplars": PIXELS} | options))  # type: ignore[arg-type]
    memory = Memory(Budget("total", budget))
    return Mnemonics(net, memory, config, TRAIN, Optim(batch=8), tools(features, TRANSFORM.normalise))


def second_task(method: Mnemonics, exemplars: list[int], counts: list[int], shape: tuple[int, ...] = SHAPE) -> Task:
    """Let the method know the old classes and begin the next task."""
    method.begin(task_of(0, [4] * len(exemplars), shape), seeded(1))
    method.memory.replace(images_of(exemplars, seed=2, shape=shape))
    method.net.head_as(CosineHead).scale.data.fill_(3.0)
    task = task_of(len(exemplars), counts, shape)
    method.begin(task, seeded(3))
    return task


def fit(method: Mnemonics, phase: Phase) -> list[float]:
    """Train a phase as the engine does, and return the mean loss of its epochs."""
    state = State()
    loop = Loop(TRANSFORM, Seeds(0), Progress(), bf16=False, graph=False)
    loop.fit(method.net, phase, ("task", 1, phase.name), state)
    return state.losses[LOSS]


def state_of(net: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in net.state_dict().items() if k != "exemplars"}


# The losses, written out.


def literal_means(features: Tensor, y: Tensor, otherwise: Tensor) -> list[list[float]]:
    means = []
    for k in range(len(otherwise)):
        own = [unit(row) for row, label in zip(features.tolist(), y.tolist(), strict=True) if label == k]
        means.append(unit([sum(v) for v in zip(*own, strict=True)]) if own else otherwise[k].tolist())
    return means


def literal_cross_entropy(features: list[list[float]], y: list[int], rows: list[list[float]], scale: float) -> float:
    total = 0.0
    for feature, label in zip(features, y, strict=True):
        scores = [scale * dot(unit(feature), unit(row)) for row in rows]
        total += math.log(sum(math.exp(s) for s in scores)) - scores[label]
    return total / len(features)


def random_case() -> tuple[Tensor, Tensor, Tensor]:
    features, rows = (torch.randn(n, 5, generator=seeded(n), dtype=torch.float64) for n in (7, 4))
    return features, torch.tensor([1, 3, 1, 3, 3, 0, 0]), rows


def test_means_by_class() -> None:
    features, y, otherwise = random_case()
    found = means_by_class(features.float(), y, otherwise.float())
    torch.testing.assert_close(found, torch.tensor(literal_means(features, y, otherwise)))
    assert torch.equal(found[2], otherwise[2].float())  # a class without images
    assert found[1].norm().item() == pytest.approx(1)


def test_loss_of_the_pixels() -> None:
    method = mnemonics()
    task = second_task(method, [3, 3], [6, 5])
    phases = method.phases(task)
    next(phases)
    phase = next(phases)
    assert phase.name == "exemplars"
    herded = method.memory.with_new(task.train, method.features)
    x, y = task.train.x[:7], task.train.y[:7]
    means = literal_means(method.features(herded.images), herded.images.y, torch.zeros(4, 1))
    seen = method.features(Images(x, y))
    expected = literal_cross_entropy(seen.tolist(), y.tolist(), means, 1.0)
    batch = Batch(TRANSFORM.normalise(x), torch.eye(4)[y])
    assert phase.loss(batch).item() == pytest.approx(expected, rel=1e-4)


def test_loss_of_the_net() -> None:
    method = mnemonics()
    second_task(method, [3, 3], [6, 5])
    assert method.teacher is not None
    method.teacher.net.head.weight.data.normal_(generator=seeded(7))
    x, y = torch.randn(5, *SHAPE, generator=seeded(8)), [0, 1, 2, 3, 3]
    expected = 0.0
    for logits, old, label in zip(method.net(x).logits.tolist(), method.teach(x).logits.tolist(), y, strict=True):
        expected += math.log(sum(map(math.exp, logits))) - logits[label]
        soft = [math.exp(z / 2) for z in old]
        for target, z in zip(soft, logits[:2], strict=True):
            expected -= target / sum(soft) * (z / 2 - math.log(sum(math.exp(o / 2) for o in logits[:2])))
    assert method.loss(Batch(x, torch.eye(4)[y])).item() == pytest.approx(expected / 5, rel=1e-4)


# The phases.


def test_phases_of_the_first_task() -> None:
    method = mnemonics()
    task = task_of(0, [9, 9])
    method.begin(task, seeded())
    phases = list(method.phases(task))
    assert [phase.name for phase in phases] == ["train", "exemplars"]
    assert [phase.schedule for phase in phases] == [TRAIN, PIXELS]
    assert phases[1].draw.data is task.train


def test_phases_of_later_tasks() -> None:
    method = mnemonics()
    task = second_task(method, [5, 4], [9, 9])
    names, phases = [], []
    for phase in method.phases(task):
        names.append(phase.name)
        phases.append(phase)
        if phase.name != "train":
            assert phase.params == [method.net.exemplars]
            assert not phase.train_mode
            assert phase.optim.weight_decay == 0
            assert phase.teacher is None
    assert names == ["train", "exemplars", "old-first", "old-second"]
    assert [phase.schedule for phase in phases] == [TRAIN, *[PIXELS] * (len(phases) - 1)]
    assert "exemplars" not in dict(method.net.named_parameters())


def test_each_half_of_the_old_exemplars_is_judged_by_the_other() -> None:
    method = mnemonics(budget=40)
    task = second_task(method, [5, 4], [9, 9])
    old = method.memory.images.x
    moved = torch.full((), 7, dtype=torch.uint8)
    own = {}
    for phase in method.phases(task):
        if phase.name.startswith("old"):
            own[phase.name] = method.stored(phase.params[0].detach(), old)
            if phase.name == "old-first":
                assert torch.equal(phase.draw.data.x, old[[1, 3, 6, 8]])
                assert phase.draw.data.y.tolist() == [0, 0, 1, 1]
                phase.params[0].data = TRANSFORM.normalise(moved.expand_as(own[phase.name]))
            else:
                assert torch.equal(phase.draw.data.x, moved.expand(5, *SHAPE))  # as learnt just before
                assert phase.draw.data.y.tolist() == [0, 0, 0, 1, 1]
    assert torch.equal(own["old-first"], old[[0, 2, 4, 5, 7]])
    assert torch.equal(own["old-second"], old[[1, 3, 6, 8]])
    kept = method.memory.images.x[:9]
    assert torch.equal(kept[[0, 2, 4, 5, 7]], moved.expand(5, *SHAPE))
    assert torch.equal(kept[[1, 3, 6, 8]], old[[1, 3, 6, 8]])


def test_lone_old_exemplars_have_no_other_half() -> None:
    method = mnemonics()
    task = second_task(method, [3, 1], [9, 9])
    assert [phase.name for phase in method.phases(task)] == ["train", "exemplars"]


def test_old_halves_are_judged_among_all_classes() -> None:
    """Rows of the old classes come from the half that learns, those of the new ones from all their exemplars."""
    method = mnemonics()
    task = second_task(method, [4, 4], [9, 9])
    phase = next(phase for phase in method.phases(task) if phase.name == "old-first")
    images = method.memory.with_new(task.train, method.features).images
    half = images[torch.tensor([0, 2, 4, 6, *range(8, 20)])]
    rows = literal_means(method.features(half), half.y, torch.zeros(4, 1))
    other = images[torch.tensor([1, 3, 5, 7])]
    seen = method.features(other).tolist()
    batch = Batch(TRANSFORM.normalise(other.x), torch.eye(4)[other.y])
    assert phase.loss(batch).item() == pytest.approx(literal_cross_entropy(seen, other.y.tolist(), rows, 1.0), rel=1e-4)


@pytest.mark.parametrize("backbone", ["small", "mlp"])
def test_learnt_exemplars_serve_better_than_herded_ones(backbone: str) -> None:
    method = mnemonics(backbone, exemplars=replace(PIXELS, lr=20.0))
    task = second_task(method, [6, 6], [40, 40])
    for phase in method.phases(task):
        if phase.name == "train":
            continue
        everything = phase.draw.data
        batch = Batch(TRANSFORM.normalise(everything.x), torch.eye(4)[everything.y])
        before, net = phase.loss(batch).item(), state_of(method.net)
        fit(method, phase)
        after = phase.loss(batch).item()  # of the images as they are kept, in whole levels
        assert after < before - 1e-3
        assert same(net, state_of(method.net)), "the net stands still"
        assert all(p.grad is None for p in method.net.parameters() if p is not phase.params[0])


def test_what_is_kept_is_what_was_judged() -> None:
    method = mnemonics()
    task = second_task(method, [6, 6], [40, 40])
    herded = method.memory.with_new(task.train, method.features).images
    last = 0.0
    for phase in method.phases(task):
        if phase.name == "exemplars":
            fit(method, phase)
            last = phase.loss(Batch(TRANSFORM.normalise(task.train.x), torch.eye(4)[task.train.y])).item()
    method.end(task)
    kept = method.memory.images
    assert kept.x.dtype == torch.uint8
    assert [len(images) for images in method.memory.classes] == [6, 6, 6, 6]
    assert torch.equal(kept.y, herded.y)
    assert torch.equal(kept.x[:12], herded.x[:12])
    assert all(not torch.equal(a, b) for a, b in zip(kept.x[12:], herded.x[12:], strict=True))
    means = literal_means(method.features(kept), kept.y, torch.zeros(4, 1))
    seen = method.features(task.train).tolist()
    assert literal_cross_entropy(seen, task.train.y.tolist(), means, 1.0) == pytest.approx(last, rel=1e-4)


def test_pixels_beyond_the_range_count_as_its_ends() -> None:
    method = mnemonics()
    task = task_of(0, [9, 9])
    method.begin(task, seeded())
    phases = method.phases(task)
    next(phases)
    phase = next(phases)
    (pixels,) = phase.params
    batch = Batch(TRANSFORM.normalise(task.train.x), torch.eye(2)[task.train.y])
    pixels.data.uniform_(-9, 9, generator=seeded(4))
    loss = phase.loss(batch)
    loss.backward()
    assert pixels.grad is not None
    black, white = (TRANSFORM.normalise(torch.full((1, *SHAPE), level)) for level in (0, 255))
    outside = (pixels < black) | (pixels > white)
    assert outside.any()
    assert (pixels.grad[outside] != 0).any(), "a pixel can come back"
    kept = method.stored(pixels.detach(), task.train.x)
    assert kept.float().min() == 0
    assert kept.float().max() == 255
    pixels.data = TRANSFORM.normalise(kept)
    torch.testing.assert_close(phase.loss(batch), loss)


@pytest.mark.parametrize("shape", [SHAPE, (5,)])
def test_stored_undoes_normalise(shape: tuple[int, ...]) -> None:
    x = images_of([9, 9], shape=shape).x
    method = mnemonics("mlp", shape)
    assert torch.equal(method.stored(TRANSFORM.normalise(x), x), x)


def test_levels_are_rounded() -> None:
    x, method = images_of([9, 9]).x, mnemonics()
    level = TRANSFORM.normalise(torch.ones(1, *SHAPE)) - TRANSFORM.normalise(torch.zeros(1, *SHAPE))
    for part in (0.4, -0.4):
        assert torch.equal(method.stored(TRANSFORM.normalise(x) + part * level, x), x)


def test_vectors() -> None:
    method = mnemonics("mlp", (6,), exemplars=Schedule(3, 0.5, ()))
    task = second_task(method, [6, 6], [40, 40], (6,))
    before = method.memory.images.x.clone()
    for phase in method.phases(task):
        fit(method, phase)
    kept = method.memory.images
    assert kept.x.dtype == torch.float32
    assert kept.x.shape == (24, 6)
    assert not torch.equal(kept.x[:12], before)


def test_views_are_refused() -> None:
    method = mnemonics("mlp", (6,))
    method.tools = replace(method.tools, normalise=Views().normalise)
    task = task_of(0, [4, 4], (6,))
    views = Images(task.train.x.unsqueeze(1).expand(-1, 3, -1), task.train.y)
    with pytest.raises(EdblError, match="several views"):
        method.begin(replace(task, train=views), seeded())


# The net.


def test_new_rows_point_along_their_class() -> None:
    method = mnemonics()
    task = second_task(method, [3, 3], [6, 5])
    head = method.net.head_as(CosineHead)
    assert method.teacher is not None
    old = F.normalize(method.teacher.net(TRANSFORM.normalise(task.train.x)).features)
    for k in (2, 3):
        mean = old[task.train.y == k].mean(0)
        torch.testing.assert_close(head.weight[k - 2], mean / mean.norm() * head.old.norm(dim=1).mean())


def test_factors_of_kernels() -> None:
    scale = Scale(torch.zeros(4, 3, 2, 2))
    assert scale.factor.shape == (4, 3, 1, 1)
    scale.factor.data = torch.arange(12.0).view(4, 3, 1, 1)
    weight = torch.randn(4, 3, 2, 2, generator=seeded())
    for o in range(4):
        for i in range(3):
            assert torch.equal(scale(weight)[o, i], weight[o, i] * (3 * o + i))
    assert Scale(torch.zeros(4, 3)).factor.shape == (4, 3)


@pytest.mark.parametrize("backbone", ["small", "mlp"])
def test_with_scale_kernels_move_by_a_factor_each(backbone: str) -> None:
    method = mnemonics(backbone, transfer="scale")
    task = second_task(method, [6, 6], [9, 9])
    before = state_of(method.teacher.net) if method.teacher is not None else {}
    shown = method.net.eval()(TRANSFORM.normalise(task.train.x)).features
    torch.testing.assert_close(shown, method.features(task.train))
    trained: set[str] = set()
    for phase in method.phases(task):
        if phase.name == "train":
            ids = {id(p) for p in phase.params}
            trained = {name for name, p in method.net.named_parameters() if id(p) in ids}
            fit(method, phase)
        else:
            assert all(p.requires_grad for p in method.net.backbone.parameters())
    assert not any(name.endswith("original") for name in trained)
    assert any(name.endswith("factor") for name in trained)
    assert {"head.weight", "head.scale"} <= trained
    after = state_of(method.net)
    assert after.keys() == before.keys(), "the factors are folded into the weights"
    kernels = [k for k, v in after.items() if k.startswith("backbone") and v.ndim > 1]
    assert kernels
    for name in kernels:
        ratio = (after[name] / before[name]).flatten(2) if after[name].ndim > 2 else after[name] / before[name]
        assert not torch.allclose(after[name], before[name])
        if ratio.ndim == 3:
            torch.testing.assert_close(ratio, ratio[:, :, :1].expand_as(ratio), rtol=1e-3, atol=1e-3)
    assert method.net.head.weight.requires_grad


def test_with_all_every_weight_learns() -> None:
    method = mnemonics(transfer="all")
    task = second_task(method, [6, 6], [9, 9])
    phase = next(method.phases(task))
    assert {id(p) for p in method.net.backbone.parameters()} < {id(p) for p in phase.params}


def test_killed_and_resumed_with_scale(tmp_path: Path) -> None:
    counter = Killer()
    scaled = Recipe.of(recipe("mnemonics").values(), {"options.transfer": "scale"})
    whole = last_state(tmp_path / "whole", run(scaled, tmp_path / "whole", progress=counter))
    for share in (0.5, 0.98):
        folder = tmp_path / str(share)
        with pytest.raises(Killed):
            run(scaled, folder, progress=Killer(round(share * counter.steps)))
        assert same(whole.tensors, last_state(folder, resume(folder)).tensors)


def test_presets() -> None:
    ours, theirs = (Recipe.build("mnemonics", data="cifar100", preset=preset) for preset in ("default", "paper"))
    assert isinstance(ours.options, Mnemonics.Config)
    assert isinstance(theirs.options, Mnemonics.Config)
    assert (ours.options.transfer, theirs.options.transfer) == ("all", "scale")
    assert (ours.options.exemplars.lr, theirs.options.exemplars.lr) == (1.0, 1e-5)
    assert ours.options.kd_scale == theirs.options.kd_scale == "none"
    assert (theirs.schedule.epochs, theirs.schedule.milestones, theirs.optim.weight_decay) == (160, (80, 120), 5e-4)


def test_pixels_are_learnt_without_warmup() -> None:
    method = mnemonics()
    train, *pixels = method.phases(second_task(method, [5, 4], [9, 9]))
    assert train.optim.warmup == 5
    assert [phase.optim.warmup for phase in pixels] == [0, 0, 0]


def test_a_lone_new_image_does_not_keep_old_exemplars_from_learning() -> None:
    method = mnemonics()
    task = second_task(method, [4, 4], [9, 1])
    assert [phase.name for phase in method.phases(task)] == ["train", "exemplars", "old-first", "old-second"]
