"""DER++: what is replayed, to which logits, and that they stay with their images."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from edbl import Recipe, run
from edbl.data.images import Images
from edbl.data.mixing import Batch
from edbl.data.samplers import OldNew
from edbl.data.stream import Task
from edbl.memory import Budget, Memory
from edbl.methods.base import Tools
from edbl.methods.der_pp import DERPP, LOGITS, logit_distance
from edbl.nets.net import LinearHead, Net, Output
from edbl.schedule import Optim, Schedule
from tests.test_contract import last_state
from tests.vectors import Vector, a_batch, images_of, literal_ce, seeded, small

NAN = torch.nan


@torch.no_grad()
def outputs(net: Net, images: Images) -> Output:
    return net.eval()(images.x)


def der_pp(**options: float) -> DERPP:
    backbone = small(seeded())
    net = Net(backbone, LinearHead(backbone.width))
    net.grow(3, seeded(1))
    config = DERPP.Config(**options)
    return DERPP(net, Memory(Budget("total", 6)), config, Schedule(2, 0.1, ()), Optim(batch=4), Tools(outputs))


def task_of(old: int, counts: list[int], index: int = 1) -> Task:
    return Task(index, old, len(counts), images_of(counts, old, seed=9), before=12)


def distance(z: Vector, then: Vector) -> float:
    """Return the mean squared distance to the known logits of one image, number by number."""
    total, known = 0.0, 0
    for own, old in zip(z, then, strict=False):
        if not math.isnan(old):
            total += (own - old) ** 2
            known += 1
    return total / max(known, 1)


def test_distance_number_by_number() -> None:
    logits = torch.randn(4, 5, generator=seeded(), dtype=torch.float64)
    then = torch.randn(4, 3, generator=seeded(1), dtype=torch.float64)
    then[1, 1:], then[3] = NAN, NAN
    expected = [distance(z, old) for z, old in zip(logits.tolist(), then.tolist(), strict=True)]
    torch.testing.assert_close(logit_distance(logits, then), torch.tensor(expected, dtype=torch.float64))
    assert expected[3] == 0


def test_unknown_logits_have_no_gradient() -> None:
    logits = torch.randn(2, 3, generator=seeded(), requires_grad=True)
    logit_distance(logits, torch.tensor([[1.0, NAN], [NAN, NAN]])).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert (logits.grad != 0).tolist() == [[True, False, False], [False, False, False]]


@pytest.mark.parametrize("options", [{}, {"logit_weight": 2.0, "label_weight": 0.1}])
def test_loss_number_by_number(options: dict[str, float]) -> None:
    method = der_pp(**options)
    method.memory.replace(images_of([2, 1, 3]), 3)
    task = task_of(3, [5, 5])
    method.begin(task, seeded(2))
    draw = method.draw(task)
    assert draw.sampler == OldNew(6, 10, 8, 4, steps=2)
    method.net.head.weight.data += 0.3 * torch.randn(method.net.head.weight.shape, generator=seeded(3))
    index = draw.sampler(seeded(4))[0]
    images = draw.data[index]
    method.net.eval()
    found = method.loss(Batch(images.x, torch.eye(5)[images.y], index=index))
    alpha, beta = options.get("logit_weight", 0.3), options.get("label_weight", 0.5)
    logits, y = method.net(images.x).logits.tolist(), torch.eye(5)[images.y].tolist()
    total = 0.0
    for place in range(4):
        total += alpha * distance(logits[place], draw.data.extra[LOGITS][index[place]].tolist())
        total += beta * literal_ce(logits[4 + place], y[4 + place])
        total += literal_ce(logits[8 + place], y[8 + place])
    assert found.item() == pytest.approx(total / 4, rel=1e-5)


def test_parts_pass_through_the_net_one_by_one() -> None:
    method = der_pp(logit_weight=0.0, label_weight=0.0)
    method.memory.replace(images_of([2, 1, 3]), 3)
    task = task_of(3, [5, 5])
    method.begin(task, seeded(2))
    index = method.draw(task).sampler(seeded(4))[0]
    images = method.draw(task).data[index]
    method.net.train()
    found = method.loss(Batch(images.x, torch.eye(5)[images.y], index=index))
    alone = method.net(images.x[8:]).logits  # batch normalisation sees new images alone
    expected = torch.nn.functional.cross_entropy(alone, images.y[8:])
    torch.testing.assert_close(found, expected)


def test_the_first_task_is_plain() -> None:
    method = der_pp()
    task = task_of(0, [5, 5, 5], 0)
    assert method.draw(task).data is task.train
    batch = a_batch(3)
    method.net.eval()
    logits = method.net(batch.x).logits.tolist()
    expected = sum(literal_ce(z, y) for z, y in zip(logits, batch.y.tolist(), strict=True)) / len(batch.y)
    assert method.loss(batch).item() == pytest.approx(expected, rel=1e-5)


def test_exemplars_keep_the_logits_that_they_had_first() -> None:
    method = der_pp()
    method.memory.replace(images_of([2, 1, 3]), 3)
    before = method.net.eval()(method.memory.images.x).logits
    method.begin(task_of(3, [5, 5]), seeded(2))
    torch.testing.assert_close(method.memory.images.extra[LOGITS], before)
    method.net.head.weight.data += 1
    method.memory.replace(Images.cat([method.memory.images, images_of([2], 3)]), 4)
    method.begin(task_of(5, [4], 2), seeded(3))
    logits = method.memory.images.extra[LOGITS]
    torch.testing.assert_close(logits[:6, :3], before)
    assert logits[:6, 3:].isnan().all()
    torch.testing.assert_close(logits[6:], method.net.eval()(method.memory.images.x[6:]).logits[:, :5])


def test_a_class_that_is_forgotten_goes_from_the_logits_of_all() -> None:
    method = der_pp()
    method.memory.replace(images_of([2, 1, 3]), 3)
    method.forget(2)  # before there are any
    method.begin(task_of(2, [5, 5]), seeded(2))
    before = method.memory.images.extra[LOGITS]
    method.forget(0)
    images = method.memory.images
    assert images.y.tolist() == [0]
    torch.testing.assert_close(images.extra[LOGITS], before[2:, 1:])


def test_a_reservoir_within_its_budget_whose_logits_are_saved(tmp_path: Path) -> None:
    given = {"memory": "total=30", "net.backbone": "mlp", "schedule.epochs": 2, "stream.tasks": 3}
    made = Recipe.of({"method": "der++", "data.name": "digits", "preset": "quick", **given})
    record = run(made, tmp_path / "run")
    kept = last_state(tmp_path / "run", record).tensors
    assert kept["memory.extra.logits"].shape == (30, 7)  # those of the last task have none until the next one begins
    came = torch.tensor([4, 7, 10])
    known = torch.tensor([int(came[came > int(y)][0]) % 10 for y in kept["memory.y"]])
    assert torch.equal(~kept["memory.extra.logits"].isnan(), torch.arange(7) < known.unsqueeze(1))
    again = run(replace(made, seed=1), tmp_path / "other")
    assert not torch.equal(kept["memory.y"], last_state(tmp_path / "other", again).tensors["memory.y"])


def test_paper_is_what_its_authors_release() -> None:
    recipe = Recipe.build("der++", data="cifar100", preset="paper")
    assert (recipe.schedule.epochs, recipe.schedule.lr, recipe.schedule.milestones) == (50, 0.03, (35, 45))
    assert (recipe.optim.batch, recipe.optim.momentum, recipe.optim.weight_decay) == (32, 0.0, 0.0)
    assert recipe.schedule.decay == 0.2
