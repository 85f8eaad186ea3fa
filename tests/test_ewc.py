"""EWC: how stiff each spring is, what it holds, and that rows of new classes are free."""

import pytest
import torch
from torch.nn import functional as F

from edbl import Recipe
from edbl.data.stream import Task
from edbl.memory import Budget, Memory
from edbl.methods.ewc import ANCHOR, EWC, FISHER
from edbl.nets.net import LinearHead, Net
from edbl.schedule import Optim, Schedule
from tests.vectors import a_batch, images_of, literal_ce, seeded, small, tools


def ewc(**options: float) -> EWC:
    backbone = small(seeded())
    net = Net(backbone, LinearHead(backbone.width))
    net.grow(2, seeded(1))
    lent = tools(lambda images: images.x)
    config = EWC.Config(**options)  # type: ignore[arg-type]
    return EWC(net, Memory(Budget("total", 6)), config, Schedule(2, 0.1, ()), Optim(batch=4), lent)


def first_task() -> Task:
    return Task(0, 0, 2, images_of([4, 3]))


def second_task() -> Task:
    return Task(1, 2, 1, images_of([5], 2, seed=3))


def slow_fisher(method: EWC, task: Task) -> dict[str, torch.Tensor]:
    """Return the squared gradient of each image's log-likelihood, image by image, and take the mean."""
    method.net.eval()
    found = {k: torch.zeros_like(p) for k, p in method.net.named_parameters()}
    for x, y in zip(task.train.x, task.train.y, strict=True):
        method.net.zero_grad()
        torch.log(torch.softmax(method.net(x.unsqueeze(0)).logits[0], 0)[y]).backward()
        for k, p in method.net.named_parameters():
            assert p.grad is not None
            found[k] += p.grad**2 / len(task.train)
    return found


@pytest.mark.parametrize("stiffest", [100.0, 1e-3])
def test_fisher_is_the_mean_of_squared_gradients_of_single_images(stiffest: float) -> None:
    method = ewc(stiffest=stiffest, fisher_images=0)
    expected = slow_fisher(method, first_task())
    method.end(first_task())
    for k, p in method.net.named_parameters():
        torch.testing.assert_close(method.state[FISHER + k], expected[k].clamp(max=stiffest))
        assert torch.equal(method.state[ANCHOR + k], p)
    of_batch = F.cross_entropy(method.net(first_task().train.x).logits, first_task().train.y)
    (mean_first,) = torch.autograd.grad(of_batch, [method.net.head.weight])
    assert not torch.allclose(mean_first.square(), expected["head.weight"], rtol=0.1), "not that of their mean"


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_springs_of_tasks_add_up_and_hold_the_newest_values(decay: float) -> None:
    method = ewc(decay=decay, stiffest=100.0, fisher_images=0)
    method.end(first_task())
    before = {k: v.clone() for k, v in method.state.items()}
    method.begin(second_task(), seeded(4))
    method.net.head.weight.data += 0.1
    expected = slow_fisher(method, second_task())
    method.end(second_task())
    for k, p in method.net.named_parameters():
        expected[k][: len(before[FISHER + k])] += decay * before[FISHER + k]
        torch.testing.assert_close(method.state[FISHER + k], expected[k])
        assert torch.equal(method.state[ANCHOR + k], p)


def test_loss_number_by_number() -> None:
    method = ewc(weight=7.0, stiffest=1.0)
    method.end(first_task())
    method.begin(second_task(), seeded(4))
    for number, p in enumerate(method.net.parameters()):
        p.data += 0.1 * torch.randn(p.shape, generator=seeded(number))
    batch = a_batch(3)
    method.net.eval()
    logits = method.net(batch.x).logits.tolist()
    expected = sum(literal_ce(z, y) for z, y in zip(logits, batch.y.tolist(), strict=True)) / len(batch.y)
    for k, p in method.net.named_parameters():
        anchor, fisher = method.state[ANCHOR + k].flatten().tolist(), method.state[FISHER + k].flatten().tolist()
        for now, then, stiff in zip(p.flatten().tolist(), anchor, fisher, strict=False):  # new rows come last
            expected += 7 / 2 * stiff * (now - then) ** 2
    assert method.loss(batch).item() == pytest.approx(expected, rel=1e-5)


def test_the_first_task_is_plain_and_learns_from_new_images_alone() -> None:
    method = ewc()
    batch = a_batch(2)
    method.net.eval()
    torch.testing.assert_close(method.loss(batch), F.cross_entropy(method.net(batch.x).logits, batch.y))
    assert method.draw(second_task()).data.y.tolist() == [2] * 5


def test_few_images_are_enough_and_they_are_drawn_by_the_seed() -> None:
    found = []
    for count in (3, 3, 0):
        method = ewc(fisher_images=count, stiffest=1.0)
        method.end(first_task())
        found.append(method.state[FISHER + "head.bias"])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_class_that_is_forgotten_takes_its_springs_along() -> None:
    method = ewc()
    method.end(first_task())
    rows = method.state[ANCHOR + "head.weight"].clone()
    method.forget(0)
    assert torch.equal(method.state[ANCHOR + "head.weight"], rows[1:])
    assert len(method.state[FISHER + "head.bias"]) == 1
    assert method.loss(a_batch(1)).isfinite()


def test_paper_is_pycils() -> None:
    recipe = Recipe.build("ewc", data="cifar100", preset="paper")
    assert (recipe.schedule.epochs, recipe.schedule.milestones, recipe.optim.weight_decay) == (
        180,
        (70, 120, 150),
        2e-4,
    )
    assert (recipe.first.task_epochs, recipe.first.task_milestones) == (200, (60, 120, 170))
