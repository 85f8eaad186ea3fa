"""ACIL, DS-AL and RanPAC: task by task they have the solution of all images at once, and never train again."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor

from edbl import EDBLClassifier, Recipe
from edbl.data.images import Images
from edbl.data.stream import Task
from edbl.memory import Budget, Memory
from edbl.methods.acil import ACIL
from edbl.methods.analytic import PROJECTION, WEIGHT, Analytic, ridge
from edbl.methods.base import Tools
from edbl.methods.ranpac import PENALTIES, PENALTY, RanPAC, best_penalty
from edbl.nets.backbones import Given
from edbl.nets.net import LinearHead, Net, Output
from edbl.schedule import Optim, Schedule
from tests.test_contract import learnt
from tests.vectors import WIDTH, images_of, seeded

SIZE = 40


def outputs(net: Net, images: Images) -> Output:
    return Output(torch.zeros(len(images), net.head.classes), images.x)


def made(kind: type[Analytic], **options: float) -> Analytic:
    net, config = Net(Given(WIDTH), LinearHead(WIDTH)), kind.Config(size=SIZE, **options)
    return kind(net, Memory(Budget("none")), config, Schedule(2, 0.1, ()), Optim(batch=4), Tools(outputs))


def tasks() -> list[Task]:
    return [
        Task(0, 0, 3, images_of([30, 20, 25], seed=1)),
        Task(1, 3, 2, images_of([12, 30], 3, seed=2)),
        Task(2, 5, 1, images_of([9], 5, seed=3)),
    ]


def learn(method: Analytic, stream: list[Task]) -> Analytic:
    for task in stream:
        method.begin(task, seeded(task.index))
        assert list(method.phases(task)) == []
        method.end(task)
    return method


def everything() -> tuple[Tensor, Tensor]:
    images = Images.cat([task.train for task in tasks()])
    return images.x.double(), torch.nn.functional.one_hot(images.y, 6).double()


def recursion(x: list[Tensor], y: list[Tensor], gamma: float) -> Tensor:
    """Return ACIL's weight by the recursion of its paper: the inverse is updated task by task."""
    r, weight = torch.eye(SIZE, dtype=torch.float64) / gamma, torch.zeros(SIZE, 6, dtype=torch.float64)
    for one, labels in zip(x, y, strict=True):
        k = torch.linalg.inv(torch.eye(len(one), dtype=torch.float64) + one @ r @ one.T)
        r = r - r @ one.T @ k @ one @ r
        weight = weight + r @ one.T @ (labels - one @ weight)
    return weight


def test_acil_has_the_joint_solution_and_that_of_the_papers_recursion() -> None:
    method = learn(made(ACIL, penalty=0.3), tasks())
    x, y = everything()
    hidden = (x @ method.state[PROJECTION]).relu()
    joint = Ridge(alpha=0.3, fit_intercept=False, solver="svd").fit(hidden.numpy(), y.numpy())
    np.testing.assert_allclose(method.state[WEIGHT].T.numpy(), joint.coef_, rtol=1e-6, atol=1e-9)
    parts = [len(task.train) for task in tasks()]
    expected = recursion(list(hidden.split(parts)), list(y.split(parts)), 0.3)
    torch.testing.assert_close(method.state[WEIGHT], expected, rtol=1e-6, atol=1e-9)
    assert method.state[WEIGHT].dtype == torch.float64
    found = method.scores(Output(torch.empty(0), x.float()))
    torch.testing.assert_close(found, (hidden @ expected).float(), rtol=1e-4, atol=1e-5)


def test_compensation_is_ds_als() -> None:
    method = learn(made(ACIL, compensation=0.6, penalty_comp=0.2), tasks())
    hiddens, tanhs, labels, rests = [], [], [], []
    for task in tasks():  # the second stream fits what the first one leaves of this task's classes
        h = task.train.x.double() @ method.state[PROJECTION]
        hiddens.append(h.relu())
        tanhs.append(h.tanh())
        labels.append(torch.nn.functional.one_hot(task.train.y, 6).double())
        rest = labels[-1] - hiddens[-1] @ recursion(hiddens, labels, 0.1)
        rest[:, : task.old], rest[:, task.seen :] = 0, 0
        rests.append(rest)
    main, comp = recursion(hiddens, labels, 0.1), recursion(tanhs, rests, 0.2)
    torch.testing.assert_close(method.state["comp.weight"], comp, rtol=1e-6, atol=1e-9)
    x, _ = everything()
    h = x @ method.state[PROJECTION]
    found = method.scores(Output(torch.empty(0), x.float()))
    torch.testing.assert_close(found, (h.relu() @ main + 0.6 * h.tanh() @ comp).float(), rtol=1e-4, atol=1e-5)
    plain = learn(made(ACIL), tasks())
    assert "comp.weight" not in plain.state


def test_ranpac_has_the_joint_solution_with_the_penalty_of_the_last_task() -> None:
    method = learn(made(RanPAC), tasks())
    penalty = float(method.state[PENALTY])
    assert penalty in PENALTIES
    x, y = everything()
    hidden = (x @ method.state[PROJECTION]).relu()
    joint = Ridge(alpha=penalty, fit_intercept=False, solver="svd").fit(hidden.numpy(), y.numpy())
    np.testing.assert_allclose(method.state[WEIGHT].T.numpy(), joint.coef_, rtol=1e-6, atol=1e-9)


def test_the_penalty_is_that_of_least_error_on_the_last_fifth() -> None:
    x = torch.randn(60, SIZE, generator=seeded(1), dtype=torch.float64).relu()
    y = x[:, :3] + 3 * torch.randn(60, 3, generator=seeded(2), dtype=torch.float64)
    errors = {}
    for penalty in PENALTIES:
        weight = ridge(x[:48].T @ x[:48], x[:48].T @ y[:48], penalty)
        errors[penalty] = float((x[48:] @ weight - y[48:]).square().mean())
    best = min(errors, key=errors.__getitem__)
    assert best_penalty(x, y) == best
    assert 1e-2 < best < 1e8, "noise asks for a penalty"


@pytest.mark.parametrize("kind", [ACIL, RanPAC])
def test_more_images_of_known_classes_count_as_if_they_had_come_at_once(kind: type[Analytic]) -> None:
    method = learn(made(kind), tasks())
    more = images_of([4, 4], 1, seed=8)
    method.more(more)
    x, y = everything()
    x = torch.cat([x, more.x.double()])
    y = torch.cat([y, torch.nn.functional.one_hot(more.y, 6).double()])
    hidden = (x @ method.state[PROJECTION]).relu()
    penalty = float(method.state.get(PENALTY, torch.tensor(0.1)))
    expected = ridge(hidden.T @ hidden, hidden.T @ y, 0.1 if kind is ACIL else penalty)
    torch.testing.assert_close(method.state[WEIGHT], expected, rtol=1e-6, atol=1e-9)
    method.more(more[:1])  # a lone image
    assert method.state[WEIGHT].isfinite().all()


@pytest.mark.parametrize("kind", [ACIL, RanPAC])
def test_forgetting_a_class_changes_no_other(kind: type[Analytic]) -> None:
    method = learn(made(kind), tasks())
    x, _ = everything()
    output = Output(torch.empty(0), x.float())
    before = method.scores(output)
    method.forget(2)
    torch.testing.assert_close(method.scores(output), torch.cat([before[:, :2], before[:, 3:]], 1))


@pytest.mark.parametrize("method", ["acil", "ranpac"])
def test_the_backbone_learns_in_the_first_task_alone(method: str, tmp_path: Path) -> None:
    found = learnt(method, tmp_path, **{"options.size": 50})
    old, now = found.old.backbone.state_dict(), found.learner.net.backbone.state_dict()
    assert all(torch.equal(old[k], now[k]) for k in old)
    assert list(found.learner.method.refresh(Task(2, 0, 10, found.exemplars))) == []
    outputs = found.learner.method.outputs(found.test)
    assert (found.learner.method.scores(outputs).argmax(1) == found.test.y).float().mean() > 0.8


@pytest.mark.parametrize("method", ["acil", "ranpac"])
def test_known_classes_are_learnt_again_without_descent(method: str) -> None:
    x = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
    y = np.arange(60) % 3
    x[np.arange(60), y] += 3
    model = EDBLClassifier(method=method, epochs=2, options={"options.size": 50}).partial_fit(x[:30], y[:30])
    learner = model._learnt.model.learner
    before = {k: v.clone() for k, v in learner.net.state_dict().items()}
    weight = learner.state[WEIGHT].clone()
    model.partial_fit(x[30:], y[30:])
    after = model._learnt.model.learner
    assert all(torch.equal(v, after.net.state_dict()[k]) for k, v in before.items())
    assert not torch.equal(weight, after.state[WEIGHT])
    assert model.score(x, y) > 0.8


def test_paper() -> None:
    acil = Recipe.build("acil", data="cifar100", preset="paper", memory="none")
    assert (acil.schedule.epochs, acil.schedule.lr, acil.schedule.shape, acil.optim.batch) == (300, 0.5, "cosine", 256)
    assert (acil.values()["options.size"], acil.values()["options.penalty"]) == (8192, 0.1)
    assert acil.data.augment == "crop-flip-trivial"
    assert Recipe.build("ranpac", data="cifar100", preset="paper").values()["options.size"] == 10_000


@pytest.mark.parametrize("preset", ["default", "tuned", "paper", "quick"])
def test_who_learns_from_no_exemplars_keeps_none_unless_told_to(preset: str) -> None:
    for method in ("acil", "ranpac", "ewc", "lwf"):
        assert Recipe.build(method, "cifar100", preset=preset).memory == "none"
        assert Recipe.build(method, "cifar100", preset=preset, **{"stream.protocol": "base-half"}).memory == "none"
        assert Recipe.build(method, "cifar100", preset=preset, memory="total=50").memory == "total=50"
    assert Recipe.build("er", "cifar100", preset=preset).memory == "total=2000"
