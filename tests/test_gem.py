"""GEM: the quadratic programme against a reference, whose gradients are compared, and what a step does."""

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, nnls
from torch import Tensor, nn

from edbl import Recipe
from edbl.data.mixing import Batch, unmixed
from edbl.data.samplers import Parts
from edbl.data.stream import Task
from edbl.methods.base import Phase
from edbl.methods.gem import GEM, minimise, project
from tests.test_methods_unit import a_batch, images_of, make, task_of
from tests.vectors import seeded

Gradients = tuple[np.ndarray, np.ndarray]  # g [parameters], G [tasks, parameters]


def even(random: np.random.Generator, tasks: int) -> Gradients:
    return random.normal(size=200), random.normal(size=(tasks, 200))


def alike(random: np.random.Generator, tasks: int) -> Gradients:
    shared = random.normal(size=200)
    return random.normal(size=200) - 2 * shared, shared + 0.03 * random.normal(size=(tasks, 200))


def repeated(random: np.random.Generator, tasks: int) -> Gradients:
    past = random.normal(size=(tasks, 200))
    return random.normal(size=200) - past.sum(0), past[random.integers((tasks + 1) // 2, size=tasks)] + 1e-6 * past


def unequal(random: np.random.Generator, tasks: int) -> Gradients:
    past = random.normal(size=(tasks, 200)) * 10 ** random.uniform(-4, 3, size=(tasks, 1))
    return random.normal(size=200) - past.mean(0), past


def opposed(random: np.random.Generator, tasks: int) -> Gradients:
    sides = random.choice([-1, 1], size=(tasks, 1))
    return 10 * random.normal(size=200), random.normal(size=200) * sides + 0.1 * random.normal(size=(tasks, 200))


def few_dimensions(random: np.random.Generator, tasks: int) -> Gradients:
    past = random.normal(size=(tasks, tasks // 2 + 1)) + random.normal(size=tasks // 2 + 1)
    return -30 * past.mean(0) + 100 * random.normal(size=tasks // 2 + 1), past


KINDS = [even, alike, repeated, unequal, opposed, few_dimensions]


def programme(g: np.ndarray, past: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return past @ past.T + 1e-3 * np.eye(len(past)), past @ g


def reference(matrix: np.ndarray, linear: np.ndarray, margin: float) -> np.ndarray:
    """Return argmin 1/2 v'Mv + c'v over v >= margin by non-negative least squares of M's Cholesky factor."""
    factor = np.linalg.cholesky(matrix)
    target = -np.linalg.solve(factor, linear + margin * matrix.sum(1))
    return margin + np.asarray(nnls(factor.T, target, maxiter=10_000)[0])


def solved(matrix: np.ndarray, linear: np.ndarray, exchanges: int) -> np.ndarray:
    return minimise(torch.tensor(matrix), torch.tensor(linear), exchanges).numpy()


def objective(matrix: np.ndarray, linear: np.ndarray, v: np.ndarray) -> float:
    return float(0.5 * v @ matrix @ v + linear @ v)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tasks", [1, 2, 5, 20, 60])
def test_minimise_is_the_reference(kind: Callable[[np.random.Generator, int], Gradients], tasks: int) -> None:
    random = np.random.default_rng(tasks)
    for trial in range(8):
        matrix, linear = programme(*kind(random, tasks))
        linear = linear + 0.5 * (trial % 2) * matrix.sum(1)
        scale = 1 / np.sqrt(np.diag(matrix))
        ours = scale * solved(scale[:, None] * matrix * scale, scale * linear, 3 * tasks)
        theirs = reference(matrix, linear, 0.0)
        assert (ours >= -1e-9 * abs(ours).max()).all()
        best = objective(matrix, linear, theirs)
        assert objective(matrix, linear, ours) <= best + 1e-9 * abs(best) + 1e-12
        assert abs(ours - theirs).max() <= 1e-6 * abs(theirs).max() + 1e-9


def test_minimise_fulfils_the_conditions_of_a_minimum() -> None:
    random = np.random.default_rng(0)
    inner, outer = 0, 0
    for _ in range(50):
        matrix, linear = programme(*few_dimensions(random, 9))
        w = solved(matrix, linear, 27).tolist()
        for i in range(9):
            slope = linear[i] + sum(matrix[i][j] * w[j] for j in range(9))
            assert w[i] >= -1e-9
            assert slope >= -1e-7
            assert abs(w[i] * slope) < 1e-5
            inner, outer = inner + (w[i] > 1e-6), outer + (slope > 1e-6)
    assert inner > 50
    assert outer > 50


@pytest.mark.parametrize("kind", [alike, few_dimensions])
def test_what_is_found_before_the_end_is_the_minimum_with_a_penalty(
    kind: Callable[[np.random.Generator, int], Gradients],
) -> None:
    matrix, linear = programme(*kind(np.random.default_rng(3), 12))
    values = []
    for exchanges in (1, 2, 3, 4, 6, 36):
        w = solved(matrix, linear, exchanges)
        slope = matrix @ w + linear
        penalty = -slope[w > 0].mean()
        assert (w >= 0).all()
        assert penalty >= -1e-7
        assert abs(slope[w > 0] + penalty).max() < 1e-7
        assert (slope[w == 0] > -penalty - 1e-7).all()
        values.append(objective(matrix, linear, w))
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1] == pytest.approx(objective(matrix, linear, reference(matrix, linear, 0.0)))


def test_more_exchanges_than_tasks_are_made_where_needed() -> None:
    random = np.random.default_rng(7)
    needed = 0
    for _ in range(200):
        g, past = few_dimensions(random, 9)
        matrix, linear = programme(g, past)
        scale = 1 / np.sqrt(np.diag(matrix))
        scaled = scale[:, None] * matrix * scale, scale * linear
        if np.allclose(solved(*scaled, 9), solved(*scaled, 27)):
            continue
        needed += 1
        ours = project(torch.tensor(g), torch.tensor(past), 0.0).numpy()
        np.testing.assert_allclose(ours, g + reference(matrix, linear, 0.0) @ past, atol=1e-7 * abs(g).max())
    assert needed


@pytest.mark.parametrize("margin", [0.0, 0.5])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tasks", [1, 3, 20])
def test_project_is_the_reference(
    kind: Callable[[np.random.Generator, int], Gradients], tasks: int, margin: float
) -> None:
    random = np.random.default_rng(tasks + 100)
    violated = 0
    for _ in range(10):
        g, past = (values.astype(np.float32) for values in kind(random, tasks))
        ours = project(torch.tensor(g), torch.tensor(past), margin).double().numpy()
        wide, rows = g.astype(np.float64), past.astype(np.float64)
        if (rows @ wide >= 0).all():
            assert (ours == g).all()
            continue
        violated += 1
        v = reference(*programme(wide, rows), margin)
        expected = wide + v @ rows
        assert abs(ours - expected).max() <= 1e-7 * abs(expected).max() + 1e-9 * abs(v @ rows).max()
        if not margin:  # but for the ridge and rounding to float32
            allowed = 1e-3 * v + 1e-6 * np.linalg.norm(rows, axis=1) * np.linalg.norm(expected) + 1e-9
            assert (rows @ ours >= -allowed).all(), "no past task's loss rises"
    assert violated


def test_project_is_the_nearest_allowed_gradient() -> None:
    random = np.random.default_rng(5)
    for _ in range(10):
        g, past = -5 * random.normal(size=6), 10 * random.normal(size=(3, 6))
        if (past @ g >= 0).all():
            continue
        found = minimize(
            lambda x, g=g: ((x - g) ** 2).sum() / 2, g, jac=lambda x, g=g: x - g, method="SLSQP",
            constraints={"type": "ineq", "fun": lambda x, past=past: past @ x, "jac": lambda x, past=past: past},
            options={"ftol": 1e-14},
        )  # fmt: skip
        ours = project(torch.tensor(g), torch.tensor(past), 0.0).numpy()
        np.testing.assert_allclose(ours, found.x, atol=2e-3)  # the ridge is ours alone


def test_a_gradient_that_harms_nobody_is_left_alone() -> None:
    past = torch.randn(4, 50, generator=seeded())
    gradient = torch.linalg.pinv(past) @ torch.tensor([1.0, 2.0, 0.1, 3.0])
    assert torch.equal(project(gradient, past, 0.5), gradient)
    assert torch.equal(project(gradient, torch.zeros(4, 50), 0.5), gradient), "no exemplar taught anything"


def test_autocast_does_not_touch_the_projection() -> None:
    gradient, past = torch.randn(50, generator=seeded(1)), torch.randn(4, 50, generator=seeded(2))
    plain = project(gradient, past, 0.5)
    assert not torch.equal(plain, gradient)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(project(gradient, past, 0.5), plain)


def gem_of(sizes: list[int], exemplars: list[int], batch: int = 8, **options: object) -> GEM:
    """Return the method after tasks of these sizes, with these exemplars of each class."""
    method = make("gem", batch, **options)  # type: ignore[arg-type]
    assert isinstance(method, GEM)
    for size in sizes:
        method.net.grow(size, seeded(size))
    method.memory.replace(images_of(exemplars, seed=5), sum(sizes))
    return method


def phase_of(method: GEM, new_counts: list[int]) -> Phase:
    task = task_of(method.net.head.classes, new_counts)
    method.begin(task, seeded(6))
    (phase,) = method.phases(task)
    return phase


def test_exemplars_belong_to_the_task_that_brought_their_class() -> None:
    method = gem_of([3, 1, 2], [2, 3, 2, 1, 4, 5], memory_batch=4)  # tasks of 7, 1 and 9 exemplars
    phase = phase_of(method, [9, 9])
    assert phase.draw.sampler == Parts((7, 1, 9, 18), (4, 2, 4, 8), steps=2)
    assert phase.draw.mixing is unmixed
    labels = phase.draw.data.y[phase.draw.sampler(seeded())]
    for row in labels.tolist():
        assert set(row[:4]) <= {0, 1, 2}
        assert row[4:6] == [3, 3]
        assert set(row[6:10]) <= {4, 5}
        assert set(row[10:]) <= {6, 7}


def test_all_exemplars_on_demand() -> None:
    method = gem_of([2, 2], [5, 6, 7, 8], memory_batch=0)
    phase = phase_of(method, [9, 9])
    assert phase.draw.sampler == Parts((11, 15, 18), (11, 15, 8), steps=2)
    rows = phase.draw.sampler(seeded())
    assert [sorted(row[:26]) for row in rows.tolist()] == [list(range(26))] * 2
    new = rows[:, 26:].flatten().tolist()
    assert len(set(new)) == 16


def literal(logits: Tensor, y: Tensor, classes: range) -> float:
    """Return the mean cross-entropy over these classes alone."""
    total = 0.0
    for z, share in zip(logits.tolist(), y.tolist(), strict=True):
        normal = math.log(sum(math.exp(z[c]) for c in classes))
        total += sum(share[c] * (normal - z[c]) for c in classes)
    return total / len(logits)


def batch_of(phase: Phase, classes: int) -> Batch:
    images = phase.draw.data[phase.draw.sampler(seeded(9))[0]]
    return Batch(images.x.float() / 255, torch.eye(classes)[images.y])


def test_there_is_no_mask_where_all_classes_are_learnt_again() -> None:
    method = gem_of([2, 3], [4] * 5, masked=True)
    images = method.memory.images
    (phase,) = method.phases(Task(2, 0, 5, images))
    method.net.eval()
    batch = Batch(images.x.float() / 255, torch.eye(5)[images.y])
    expected = literal(method.net(batch.x).logits, batch.y, range(5))
    assert phase.loss(batch).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_is_that_of_new_images(masked: bool) -> None:
    method = gem_of([2, 3], [4] * 5, masked=masked)
    phase = phase_of(method, [9, 9])
    method.net.eval()
    batch = batch_of(phase, 7)
    old = sum(method.each)
    new = Batch(batch.x[old:], batch.y[old:])
    loss = phase.loss(batch)
    expected = literal(method.net(new.x).logits, new.y, range(5, 7) if masked else range(7))
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    (rows,) = torch.autograd.grad(loss, [method.net.head.weight])
    assert (rows[:5] == 0).all() == masked, "masked, old classes are not pushed down"
    assert (rows[5:] != 0).any()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_adjust_projects_by_the_gradient_of_each_task(masked: bool, margin: float) -> None:
    method = gem_of([2, 3, 1], [4] * 6, masked=masked, margin=margin, memory_batch=6)
    phase = phase_of(method, [9, 9])
    method.net.train()
    twin = copy.deepcopy(method.net)
    batch = batch_of(phase, 8)
    parts = batch.x.split([*method.each, 8]), batch.y.split([*method.each, 8])
    ranges = [range(2), range(2, 5), range(5, 6), range(6, 8)] if masked else [range(8)] * 4
    rows = []
    for x, y, classes in zip(*parts, ranges, strict=True):
        logits = twin(x).logits[:, list(classes)]
        loss = torch.nn.functional.cross_entropy(logits, y[:, list(classes)])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(twin.parameters()))]))
    expected = project(rows[-1], torch.stack(rows[:-1]), margin)
    phase.loss(batch).backward()
    before = torch.cat([p.grad.flatten() for p in phase.params if p.grad is not None])
    torch.testing.assert_close(before, rows[-1])
    assert phase.adjust is not None
    phase.adjust(seeded())
    after = torch.cat([p.grad.flatten() for p in phase.params if p.grad is not None])
    torch.testing.assert_close(after, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(after, before), "this case must violate a constraint"
    tracked = [int(b) for name, b in method.net.named_buffers() if "tracked" in name]
    assert set(tracked) == {4}, "exemplars go through batch normalisation like other images"


def test_parameters_that_a_net_does_not_use_are_left_alone() -> None:
    method = gem_of([2, 3], [4] * 5)
    idle = nn.Parameter(torch.zeros(3))
    method.net.backbone.register_parameter("idle", idle)
    phase = phase_of(method, [9, 9])
    phase.loss(batch_of(phase, 7)).backward()
    assert phase.adjust is not None
    phase.adjust(seeded())
    assert any(p is idle for p in phase.params)
    assert idle.grad is None


def test_a_step_does_not_raise_the_loss_of_past_tasks() -> None:
    method = gem_of([2, 2], [8] * 4, margin=0.0, memory_batch=0)
    phase = phase_of(method, [9, 9])
    method.net.train()
    batch = batch_of(phase, 6)
    rises = []
    for adjust in (None, phase.adjust):
        trial = copy.deepcopy(method.net.state_dict())
        phase.loss(batch).backward()
        before = [method.task_loss(part, k).item() for k, part in enumerate(method.past)]
        if adjust is not None:
            adjust(seeded())
        with torch.no_grad():
            for parameter in phase.params:
                assert parameter.grad is not None
                parameter.sub_(1e-3 * parameter.grad)
                parameter.grad = None
        after = [method.task_loss(part, k).item() for k, part in enumerate(method.past)]
        rises.append(max(b - a for a, b in zip(before, after, strict=True)))
        method.net.load_state_dict(trial)
    assert rises[0] > 1e-4, "the case must be one in which plain descent forgets"
    assert rises[1] < rises[0] / 20


def test_the_first_task_is_not_adjusted() -> None:
    method = make("gem")
    task = task_of(0, [9, 9])
    method.begin(task, seeded())
    (phase,) = method.phases(task)
    assert phase.adjust is None
    method.net.eval()
    batch = a_batch(2)
    assert phase.loss(batch).item() == pytest.approx(literal(method.net(batch.x).logits, batch.y, range(2)), rel=1e-5)


def test_tasks_of_one_class() -> None:
    method = gem_of([1], [3])
    phase = phase_of(method, [4])
    assert phase.draw.sampler == Parts((3, 4), (3, 4), steps=1)


def test_paper_is_one_pass_of_plain_descent_with_all_exemplars() -> None:
    recipe = Recipe.build("gem", data="cifar100", preset="paper")
    assert (recipe.schedule.epochs, recipe.schedule.lr, recipe.schedule.milestones) == (1, 0.1, ())
    assert (recipe.optim.batch, recipe.optim.momentum, recipe.optim.weight_decay) == (10, 0, 0)
    assert recipe.data.augment == "none"
    assert recipe.options == GEM.Config(margin=0.5, memory_batch=0, masked=False)


def test_learning_again_as_in_a_first_task_is_plain() -> None:
    method = gem_of([2, 2], [5, 6, 7, 8])
    phase_of(method, [9, 9])
    (phase,) = method.phases(task_of(0, [4] * 6))
    method.net.eval()
    batch = batch_of(phase, 6)
    assert phase.loss(batch).item() == pytest.approx(literal(method.net(batch.x).logits, batch.y, range(6)), rel=1e-5)
    assert phase.adjust is None
