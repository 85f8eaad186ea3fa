"""LUCIR: its losses against literal sums, its imprinting, and what does not move while it learns."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edbl import Recipe, run
from edbl.data.images import Images
from edbl.data.mixing import Batch
from edbl.data.stream import Task
from edbl.losses import less_forget
from edbl.memory import Budget, Memory
from edbl.methods.base import Phase
from edbl.methods.lucir import LUCIR, margin_ranking
from edbl.nets.backbones import build
from edbl.nets.heads import CosineHead, FrozenHead, class_sums
from edbl.nets.net import Net
from edbl.schedule import Optim, Schedule
from tests.vectors import cosine, seeded, tools

SHAPE = (1, 4, 4)


def images_of(counts: list[int], first: int, seed: int) -> Images:
    y = torch.tensor([first + k for k, count in enumerate(counts) for _ in range(count)])
    return Images(torch.randint(256, (len(y), *SHAPE), generator=seeded(seed), dtype=torch.uint8), y)


def task_of(index: int, old: int, counts: list[int]) -> Task:
    train = images_of(counts, old, seed=20 + old)
    return Task(index, old, len(counts), train)


def lucir(**options: object) -> LUCIR:
    """Return the method with a small net that knows no class yet."""
    backbone = build("small", SHAPE, seeded(), last_relu=False)
    net = Net(backbone, CosineHead(backbone.width)).eval()
    config = LUCIR.Config(**options)  # type: ignore[arg-type]
    memory = Memory(Budget("total", 12))
    return LUCIR(
        net, memory, config, Schedule(2, 0.1, ()), Optim(batch=8), tools(lambda i: net.eval()(i.x.float()).features)
    )


def second_task(method: LUCIR, counts: tuple[int, ...] = (5, 6)) -> Task:
    """Let the method know three classes, move it a little, and begin the next task."""
    method.begin(task_of(0, 0, [4, 4, 4]), seeded(1))
    method.memory.replace(images_of([4, 4, 4], 0, seed=2))
    method.net.head_as(CosineHead).scale.data.fill_(3.0)
    task = task_of(1, 3, list(counts))
    method.begin(task, seeded(3))
    for parameter in method.net.backbone.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=seeded(4))
    return task


def a_batch(labels: list[int], seen: int) -> Batch:
    x = torch.randn(len(labels), *SHAPE, generator=seeded(5)) * 60 + 128
    return Batch(x, torch.eye(seen)[labels])


def literal_ranking(cosines: list[list[float]], labels: list[int], old: int, margin: float, rivals: int) -> float:
    terms = []
    for row, label in zip(cosines, labels, strict=True):
        if label < old:
            highest = sorted(row[old:], reverse=True)[:rivals]
            terms += [max(0.0, margin - row[label] + rival) for rival in highest]
    return sum(terms) / len(terms) if terms else 0.0


RANKED = torch.rand(6, 7, generator=seeded(6)) * 2 - 1
LABELS = [0, 6, 2, 3, 1, 5]


@pytest.mark.parametrize(("old", "rivals"), [(3, 2), (3, 1), (3, 4), (4, 2), (6, 2), (6, 1), (5, 9)])
@pytest.mark.parametrize("margin", [0.0, 0.5, 1.7])
def test_margin_ranking(old: int, rivals: int, margin: float) -> None:
    found = margin_ranking(RANKED, torch.eye(7)[LABELS], old, margin, rivals)
    expected = literal_ranking(RANKED.tolist(), LABELS, old, margin, rivals)
    assert expected > 0
    assert found.item() == pytest.approx(expected, abs=1e-6)


def test_margin_ranking_is_of_old_images_alone() -> None:
    cosines = RANKED.clone().requires_grad_()
    margin_ranking(cosines, torch.eye(7)[LABELS], 3, 2.0, 2).backward()  # a margin that none reaches
    assert cosines.grad is not None
    for row, label in zip(cosines.grad, LABELS, strict=True):
        assert bool(row.any()) is (label < 3)
        if label < 3:
            assert row[label] < 0  # its own cosine grows
            assert (row[3:] > 0).sum() == 2
            assert not row[[k for k in range(3) if k != label]].any()


def test_margin_ranking_of_no_old_image_is_nothing() -> None:
    cosines = RANKED.clone().requires_grad_()
    loss = margin_ranking(cosines, torch.eye(7)[[3, 4, 5, 6, 3, 4]], 3, 0.5, 2)
    assert loss.item() == 0
    loss.backward()
    assert cosines.grad is not None
    assert not cosines.grad.any()


def test_margin_ranking_beyond_the_margin_is_nothing() -> None:
    cosines = torch.tensor([[0.9, 0.0, 0.3, 0.4], [0.0, 0.95, 0.2, 0.1]])
    assert margin_ranking(cosines, torch.eye(4)[[0, 1]], 2, 0.4, 2).item() == 0
    assert margin_ranking(cosines, torch.eye(4)[[0, 1]], 2, 0.6, 2).item() == pytest.approx(0.1 / 4, abs=1e-6)


def test_less_forget() -> None:
    a, b = torch.randn(4, 5, generator=seeded(7)), torch.randn(4, 5, generator=seeded(8))
    expected = [1 - cosine(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    torch.testing.assert_close(less_forget(a, b), torch.tensor(expected))
    torch.testing.assert_close(less_forget(a, 3 * a), torch.zeros(4), atol=1e-6, rtol=0)  # directions alone count


def test_class_sums() -> None:
    vectors, labels = torch.randn(6, 3, generator=seeded(9)), [2, 0, 2, 2, 0, 1]
    found = class_sums(vectors, torch.tensor(labels), 3)
    expected = [[0.0] * 3 for _ in range(3)]
    for vector, label in zip(vectors.tolist(), labels, strict=True):
        norm = math.sqrt(sum(v * v for v in vector))
        expected[label] = [e + v / norm for e, v in zip(expected[label], vector, strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_new_weights_are_imprinted() -> None:
    method = lucir()
    method.begin(task_of(0, 0, [4, 4, 4]), seeded(1))
    head = method.net.head_as(CosineHead)
    head.weight.data *= torch.tensor([[1.0], [2.0], [6.0]])
    before = head.weight.detach().clone()
    task = task_of(1, 3, [5, 6])
    method.begin(task, seeded(3))
    assert torch.equal(head.old, before)
    mean_length = before.norm(dim=1).mean().item()
    for k, weight in enumerate(head.weight):
        own = F.normalize(method.features(task.train)[task.train.y == 3 + k])
        assert weight.norm().item() == pytest.approx(mean_length, rel=1e-5)
        assert cosine(weight.tolist(), own.mean(0).tolist()) == pytest.approx(1, abs=1e-5)


def test_the_first_task_is_plain() -> None:
    method = lucir()
    task = task_of(0, 0, [4, 4, 4])
    method.begin(task, seeded(1))
    fresh = CosineHead(method.net.backbone.width)
    fresh.grow(3, seeded(1))
    assert torch.equal(method.net.head.weight, fresh.weight)  # not imprinted
    assert method.teacher is None
    batch = a_batch([0, 1, 2, 0], 3)
    logits = method.net(batch.x).logits
    torch.testing.assert_close(method.loss(batch), F.cross_entropy(logits, torch.tensor([0, 1, 2, 0])))


@pytest.mark.parametrize("counts", [(5, 6), (5, 6, 5, 5), (7,)])
@pytest.mark.parametrize("options", [{}, {"lam_base": 0.7, "mr_weight": 2.5, "margin": 0.9, "rivals": 3}])
def test_the_loss_is_the_sum_of_three(counts: tuple[int, ...], options: dict[str, object]) -> None:
    method = lucir(**options)
    task = second_task(method, counts)
    labels = [0, 3, 2, 1, task.seen - 1, 0]
    batch = a_batch(labels, task.seen)
    output, teacher = method.net(batch.x), method.teach(batch.x)
    weights = torch.cat([method.net.head_as(CosineHead).old, method.net.head_as(CosineHead).weight]).tolist()
    cosines = [[cosine(h, w) for w in weights] for h in output.features.tolist()]
    entropy, kept = 0.0, 0.0
    for row, label, h, h_old in zip(cosines, labels, output.features.tolist(), teacher.features.tolist(), strict=True):
        exponentials = [math.exp(3.0 * c) for c in row]
        entropy -= math.log(exponentials[label] / sum(exponentials)) / len(labels)
        kept += (1 - cosine(h, h_old)) / len(labels)
    assert kept > 1e-3
    config = method.config
    ranking = literal_ranking(cosines, labels, 3, config.margin, config.rivals)
    assert ranking > 1e-3
    expected = entropy + config.lam_base * math.sqrt(3 / len(counts)) * kept + config.mr_weight * ranking
    assert method.loss(batch).item() == pytest.approx(expected, rel=1e-4)


def test_the_loss_asks_the_teacher_once(monkeypatch: pytest.MonkeyPatch) -> None:
    method = lucir()
    second_task(method)
    asked: list[Tensor] = []
    teach = method.teach

    def spy(x: Tensor) -> object:
        asked.append(x)
        return teach(x)

    monkeypatch.setattr(method, "teach", spy)
    batch = a_batch([0, 3, 2], 5)
    method.loss(batch).backward()
    assert len(asked) == 1
    assert asked[0] is batch.x
    assert method.teacher is not None
    assert all(p.grad is None for p in method.teacher.net.parameters())


def test_old_weights_are_no_part_of_the_phase() -> None:
    method = lucir()
    task = second_task(method)
    (phase,) = method.phases(task)
    learning = {id(p) for p in phase.params}
    head = method.net.head_as(CosineHead)
    assert id(head.old) not in learning
    assert {id(head.weight), id(head.scale)} <= learning
    assert {id(p) for p in method.net.backbone.parameters()} <= learning
    assert phase.teacher is method.teacher


def test_old_weights_do_not_move_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    phases = LUCIR.phases
    seen: list[tuple[bool, bool]] = []

    def spy(self: LUCIR, task: Task) -> Iterator[Phase]:
        head = self.net.head
        assert isinstance(head, FrozenHead)
        old, new = head.old.clone(), head.weight.detach().clone()
        for phase in phases(self, task):
            yield phase
            seen.append((torch.equal(head.old, old), torch.equal(head.weight, new)))

    monkeypatch.setattr(LUCIR, "phases", spy)
    small = {"net.backbone": "mlp", "stream.tasks": 3, "schedule.epochs": 2}
    run(Recipe.build("lucir", data="digits", preset="quick", **small), tmp_path / "run")
    assert seen == [(True, False)] * 3


def test_preset_paper() -> None:
    recipe = Recipe.build("lucir", data="cifar100", preset="paper")
    assert recipe.schedule == Schedule(160, 0.1, (80, 120))
    assert recipe.optim == Optim(batch=128, momentum=0.9, nesterov=False, weight_decay=5e-4, warmup=0)
    assert recipe.options == LUCIR.Config()
