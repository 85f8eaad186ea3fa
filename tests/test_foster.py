"""FOSTER: what each phase trains, by which loss, and that both nets are measured."""

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from edbl import Recipe, run
from edbl.data.images import Images
from edbl.data.stream import Task
from edbl.memory import Budget, Memory
from edbl.methods.base import Tools
from edbl.methods.foster import FOSTER, balanced_distillation, class_weights
from edbl.nets.expanding import Boosted, FosterNet
from edbl.nets.net import Net, Output
from edbl.schedule import Optim, Schedule
from tests.vectors import Vector, a_batch, images_of, literal_ce, same, seeded, small, softmax, state


@torch.no_grad()
def outputs(net: Net, images: Images) -> Output:
    return net.eval()(images.x)


def foster(**options: object) -> tuple[FOSTER, Task]:
    """Return the method in its second task, of two new classes beside three old ones."""
    net = FosterNet(small, seeded())
    net.grow(3, seeded(1))
    for parameter in net.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=seeded(2))
    config = FOSTER.Config(**options)  # type: ignore[arg-type]
    optim = Optim(batch=4, weight_decay=1e-3)
    method = FOSTER(net, Memory(Budget("total", 6)), config, Schedule(2, 0.1, ()), optim, Tools(outputs))
    method.memory.replace(images_of([2, 1, 3]), 3)
    return method, Task(1, 3, 2, images_of([7, 9], 3, seed=4))


def boosted_of(method: FOSTER) -> Boosted:
    assert method.net.boosted is not None
    return method.net.boosted


def slow_weights(counts: list[int], beta: float) -> Vector:
    raw = [(1 - beta) / (1 - beta**n) for n in counts]
    return [v * len(raw) / sum(raw) for v in raw]


@pytest.mark.parametrize("beta", [0.94, 0.0, 0.999])
def test_class_weights_number_by_number(beta: float) -> None:
    counts = [2, 1, 3, 500]
    torch.testing.assert_close(class_weights(torch.tensor(counts), beta), torch.tensor(slow_weights(counts, beta)))


def test_balanced_distillation_number_by_number() -> None:
    logits, teacher = (3 * torch.randn(4, 3, generator=seeded(k), dtype=torch.float64) for k in (1, 2))
    weights = torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64)
    expected = []
    for z, then in zip(logits.tolist(), teacher.tolist(), strict=True):
        p = [share * w for share, w in zip(softmax([v / 2 for v in then]), weights.tolist(), strict=True)]
        own = softmax([v / 2 for v in z])
        expected.append(-sum(share / sum(p) * math.log(q) for share, q in zip(p, own, strict=True)))
    found = balanced_distillation(logits, teacher, weights, 2.0)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_the_boosted_net_starts_as_the_old_one() -> None:
    method, task = foster()
    old = copy.deepcopy(method.net)
    method.begin(task, seeded(5))
    boosted = boosted_of(method)
    for part in (boosted.old[0], boosted.backbone, method.net.backbone):
        assert same(state(part), state(old.backbone))
    assert torch.equal(boosted.head.weight[:3, :8], old.head.weight)
    assert torch.equal(method.net.head.weight[:3], old.head.weight)
    assert boosted.head.weight.shape == (5, 16)
    assert boosted.aux is not None
    assert boosted.aux.weight.shape == (5, 8)


@pytest.mark.parametrize("options", [{}, {"kd_weight": 0.3, "temperature": 3.0, "boost_betas": (0.5,)}])
def test_boosting_number_by_number(options: dict[str, object]) -> None:
    method, task = foster(**options)
    old = copy.deepcopy(method.net).eval()
    method.begin(task, seeded(5))
    boost = next(iter(method.phases(task)))
    boosted = boosted_of(method).eval()
    for parameter in boost.params:
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=seeded(6))
    batch = a_batch(5)
    t, kd_weight = float(str(options.get("temperature", 2.0))), float(str(options.get("kd_weight", 1.0)))
    weights = slow_weights([2, 1, 3, 7, 9], 0.5 if options else 0.94)
    features = boosted(batch.x).features
    assert boosted.aux is not None
    rows = zip(
        boosted.head(features).tolist(),
        boosted.aux(boosted.backbone(batch.x)).tolist(),
        old(batch.x).logits.tolist(),
        batch.y.tolist(),
        strict=True,
    )
    total = 0.0
    for z, alone, then, y in rows:
        total += literal_ce([v / w for v, w in zip(z, weights, strict=True)], y) + literal_ce(alone, y)
        total += kd_weight * literal_ce([v / t for v in z[:3]], softmax([v / t for v in then]))
    assert boost.loss(batch).item() == pytest.approx(total / len(batch.y), rel=1e-4)


def test_compression_number_by_number_and_what_each_phase_trains() -> None:
    method, task = foster()
    method.begin(task, seeded(5))
    boosted, phases = boosted_of(method), method.phases(task)
    boost = next(phases)
    learning = {id(p) for p in boost.params}
    assert boosted.aux is not None
    assert learning == {id(p) for m in (boosted.backbone, boosted.head, boosted.aux) for p in m.parameters()}
    for parameter in boost.params:  # stands for training
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=seeded(6))
    compress = next(phases)
    assert (boost.name, compress.name, compress.optim.weight_decay) == ("boost", "compress", 0.0)
    assert boost.optim.weight_decay == 1e-3
    single = [*method.net.backbone.parameters(), *method.net.head.parameters()]
    assert {id(p) for p in compress.params} == {id(p) for p in single}
    batch = a_batch(5)
    before = state(boosted)
    method.net.train()
    compress.loss(batch)
    assert same(state(boosted), before), "the pair answers as it is used"
    method.net.eval()
    weights = torch.tensor(slow_weights([2, 1, 3, 7, 9], 0.97))
    target = balanced_distillation(method.net(batch.x).logits, boosted(batch.x).logits, weights, 2.0)
    torch.testing.assert_close(compress.loss(batch), target.mean())
    assert next(phases, None) is None


@pytest.mark.parametrize(("index", "beta"), [(1, 0.9), (2, 0.5), (7, 0.5)])
def test_betas_of_later_tasks(index: int, beta: float) -> None:
    method, task = foster(boost_betas=(0.9, 0.5))
    method.begin(task, seeded(5))
    next(iter(method.phases(Task(index, 3, 2, task.train))))
    torch.testing.assert_close(method.weights, torch.tensor(slow_weights([2, 1, 3, 7, 9], beta)))


def test_both_nets_are_classifiers() -> None:
    method, task = foster()
    alone = method.outputs(task.train)
    assert torch.equal(method.classifiers(alone)["boosted"], method.scores(alone))
    method.begin(task, seeded(5))
    output = method.outputs(task.train)
    boosted = boosted_of(method).eval()
    assert torch.equal(method.classifiers(output)["boosted"], boosted(task.train.x).logits)
    assert torch.equal(method.scores(output), method.net(task.train.x).logits)
    assert output.features.shape[1] == 8


def test_a_class_is_forgotten_by_both_and_the_net_loads_again() -> None:
    method, task = foster()
    method.begin(task, seeded(5))
    x = task.train.x
    before: list[Tensor] = [net.eval()(x).logits for net in (method.net, boosted_of(method))]
    method.forget(3)
    for net, logits in zip((method.net, boosted_of(method)), before, strict=True):
        torch.testing.assert_close(net.eval()(x).logits, torch.cat([logits[:, :3], logits[:, 4:]], 1))
    other = FosterNet(small, seeded(7))
    for size in method.net.head.sizes:
        other.grow(size, seeded(8))
    other.load_state_dict(method.net.state_dict())
    method.forget(3)  # the last class of its task
    assert method.net.head.sizes == [3]
    assert method.net.boosted is None


def test_the_record_has_both(tmp_path: Path) -> None:
    given = {"memory": "total=50", "net.backbone": "mlp", "schedule.epochs": 4, "stream.tasks": 3}
    record = run(Recipe.of({"method": "foster", "data.name": "digits", "preset": "quick", **given}), tmp_path / "run")
    assert record.accuracy.keys() == {"cnn", "nme", "boosted"}
    assert record.accuracy["boosted"][0] == record.accuracy["cnn"][0]
    assert record.accuracy["boosted"][1:] != record.accuracy["cnn"][1:]
    assert [sorted(losses) for losses in record.losses] == [["train"], *[["boost", "compress"]] * 2]
    first, second, third = (kept["net"] for kept in record.kept)
    assert 3 * first < second < third < 3.5 * first


def test_accuracy_while_boosting_is_that_of_the_boosted_net(tmp_path: Path) -> None:
    given = {"memory": "total=50", "net.backbone": "mlp", "schedule.epochs": 6, "stream.tasks": 2}
    values = {"method": "foster", "data.name": "digits", "preset": "quick", "evaluation.every": 6, **given}
    record = run(Recipe.of(values), tmp_path / "run")
    boost, compress = (record.within[1][name][-1] for name in ("boost", "compress"))
    assert boost[1] == pytest.approx(record.accuracy["boosted"][1])
    assert compress[1] == pytest.approx(record.accuracy["cnn"][1])
    assert boost[3] > 0.5  # on new classes, which the compressed net's head has not learnt yet


def test_paper_is_what_its_authors_release() -> None:
    recipe = Recipe.build("foster", data="cifar100", preset="paper")
    assert (recipe.schedule.epochs, recipe.schedule.shape, recipe.first.task_epochs) == (170, "cosine", 200)
    assert (recipe.optim.weight_decay, recipe.optim.batch, recipe.data.cutout) == (5e-4, 128, 16)
    assert recipe.values()["options.compress.epochs"] == 130
