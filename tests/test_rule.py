"""The rule of preset `default`: one function of what a task is, the same for every stream, whatever its name."""

import math
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from edbl import EdblError, Recipe, rule
from edbl.data.images import Dataset, Images
from edbl.data.stream import Stream
from edbl.engine.learner import Learner
from edbl.engine.progress import Progress
from edbl.methods import methods
from edbl.methods.edbl import EDBL
from edbl.methods.options import Distilling
from edbl.rule import TaskFacts
from edbl.studies.paper import HALF

CPU = torch.device("cpu")
DOC = Path(__file__).parents[1] / "docs" / "rule.md"

# New images, exemplars, old and new classes, size: rate, epochs, weight of distillation, old images in a batch of 128.
VALUES = {
    "CIFAR-10, Base-0, 2 tasks": ((25000, 200, 5, 5), (0.014, 38, 2.1, 1)),
    "CIFAR-10, Base-0, 5 tasks, second task": ((10000, 200, 2, 2), (0.019, 63, 1.9, 3)),
    "CIFAR-10, Base-0, 5 tasks, last task": ((10000, 200, 8, 2), (0.019, 63, 6.4, 3)),
    "CIFAR-100, Base-0, 2 tasks": ((25000, 2000, 50, 50), (0.025, 95, 1.5, 12)),
    "CIFAR-100, Base-0, 5 tasks, second task": ((10000, 2000, 20, 20), (0.028, 110, 1.4, 31)),
    "CIFAR-100, Base-0, 5 tasks, last task": ((10000, 2000, 80, 20), (0.028, 110, 4.6, 31)),
    "CIFAR-100, Base-0, 10 tasks, last task": ((5000, 2000, 90, 10), (0.029, 119, 9.6, 55)),
    "CIFAR-100, Base-half, 5 tasks, second task": ((5000, 1000, 50, 10), (0.028, 115, 5.7, 31)),
    "CIFAR-100, Base-half, 10 tasks, last task": ((2500, 1900, 95, 5), (0.029, 127, 18.3, 84)),
    "Tiny-ImageNet, Base-half, 5 tasks, second task": ((10000, 2000, 100, 20, 64), (0.028, 156, 5.7, 31)),
    "CIFAR-100, Base-0, 5 tasks, 500 exemplars": ((10000, 500, 20, 20), (0.023, 87, 1.6, 7)),
    "100 photos of 5 classes, 20 kept of 10": ((500, 200, 10, 5), (0.029, 191, 2.2, 55)),
    "digits, 5 tasks": ((288, 50, 2, 2, 8), (0.027, 130, 1.4, 27)),
}


def given(task: TaskFacts) -> tuple[float, int, float, int]:
    return rule.rate(task), rule.epochs(task), rule.distillation(task), rule.old_in_batch(task, 128)


@pytest.mark.parametrize("name", VALUES)
def test_values_of_the_streams(name: str) -> None:
    facts, expected = VALUES[name]
    rate, epochs, weight, old = given(TaskFacts(*facts))
    assert (round(rate, 3), epochs, round(weight, 1), old) == expected


def test_the_docs_have_these_values() -> None:
    text = DOC.read_text().partition("## What it gives")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    assert lines == [[n, *map(str, TaskFacts(*facts)), *map(str, out)] for n, (facts, out) in VALUES.items()]


def some_tasks(number: int = 300) -> list[TaskFacts]:
    draw = random.Random(0)
    return [
        TaskFacts(
            round(math.exp(draw.uniform(0, 13))),
            round(math.exp(draw.uniform(0, 11))),
            draw.randint(1, 1000),
            draw.randint(1, 500),
            draw.choice([8, 16, 28, 32, 64, 224]),
        )
        for _ in range(number)
    ]


def test_values_are_within_sense_everywhere() -> None:
    for task in some_tasks():
        rate, epochs, weight, old = given(task)
        assert 0.009 < rate <= 0.03
        assert epochs >= 1
        assert 1 <= weight <= 2 * (rule.MOST_RATIO + 1)
        assert 1 <= old <= 128 * 1.6


def test_one_exemplar_more_or_less_changes_next_to_nothing() -> None:
    for task in some_tasks():
        if task.exemplars >= 100:
            fewer = given(task._replace(exemplars=task.exemplars - 1))
            for now, before in zip(given(task), fewer, strict=True):
                assert abs(now - before) <= max(1, 0.02 * now)


def test_more_exemplars_are_learnt_faster_longer_and_with_less_to_hold_them() -> None:
    for task in some_tasks():
        more = task._replace(exemplars=2 * task.exemplars)
        assert rule.rate(more) >= rule.rate(task)
        assert rule.distillation(more) <= rule.distillation(task)
        assert rule.old_in_batch(more, 128) >= rule.old_in_batch(task, 128)


def test_without_exemplars_as_with_the_fewest() -> None:
    none, few = TaskFacts(10000, 0, 5, 5), TaskFacts(10000, 20, 5, 5)
    assert none.share == few.share == rule.LEAST_SHARE


def stream(names: str) -> Stream:
    """Return two tasks of two classes of images, 20 of each, with classes of other names."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (80, 3, 8, 8), dtype=torch.uint8, generator=generator)
    images = Images(x, torch.arange(4).repeat_interleave(20))
    return Stream(Dataset(names, images, images, tuple(f"{names}{k}" for k in range(4))), range(4), [2, 2], CPU)


def learnt(data: str, changes: Mapping[str, object] | None = None) -> tuple[Learner, list[int]]:
    """Learn a stream as data set ``data`` is learnt, and return how long each phase of the second task took."""
    short = {"first.task_epochs": 1, "options.balance.epochs": 2, "net.backbone": "mlp", "memory": "total=10"}
    plain = {"data.mean": (0.5,), "data.std": (0.5,), "data.augment": "none"}
    recipe = Recipe.of({"data.name": data, **short, **plain}, changes or {})
    learner = Learner(recipe, (3, 8, 8), recipe.data.transform(CPU), CPU, Progress())
    tasks = stream(data)
    learner.learn(tasks[0])
    losses = learner.learn(tasks[1]).losses
    return learner, [len(of_phase) for of_phase in losses.values()]


def test_the_same_stream_by_another_name_is_learnt_alike(tmp_path: Path) -> None:
    expected = rule.epochs(TaskFacts(40, 10, 2, 2, 8))
    states = []
    for name in ("cifar10", "cifar100", "tiny-imagenet", "fashion-mnist", "digits", str(tmp_path)):
        learner, epochs = learnt(name)
        assert epochs == [expected, 2]
        states.append(learner.net.state_dict())
    for state in states[1:]:
        assert all(torch.equal(value, states[0][key]) for key, value in state.items())


def test_a_learner_asks_the_rule_for_each_task() -> None:
    learner, (train, _) = learnt("cifar100")
    facts = TaskFacts(40, 10, 2, 2, 8)
    assert train == rule.epochs(facts)
    assert learner.method.schedule.lr == rule.rate(facts)
    options = learner.method.config
    assert isinstance(options, EDBL.Config)
    assert (options.kd_weight, options.min_old) == (rule.distillation(facts), rule.old_in_batch(facts, 128))


def test_what_is_given_is_not_the_rules_to_say() -> None:
    learner, (train, _) = learnt("cifar100", {"schedule.epochs": 3, "options.kd_weight": 0.5})
    assert train == 3
    options = learner.method.config
    assert isinstance(options, Distilling)
    assert options.kd_weight == 0.5
    assert learner.method.schedule.lr == rule.rate(TaskFacts(40, 10, 2, 2, 8))
    recipe = learner.training
    assert recipe.by_rule == ("schedule.lr", "options.min_old")
    assert Recipe.of(recipe.values()) == recipe
    assert Recipe.of(recipe.values(), {"schedule.lr": 0.5}).by_rule == ("options.min_old",)


@pytest.mark.parametrize("method", sorted(methods()))
def test_every_method_has_its_rate_and_epochs_by_the_rule(method: str) -> None:
    recipe = Recipe.build(method, "cifar100")
    assert recipe.by_rule[:2] == ("schedule.lr", "schedule.epochs")
    assert ("options.kd_weight" in recipe.by_rule) == ("options.kd_growth" in recipe.values())
    for preset in ("tuned", "paper", "quick", "photos-scratch", "samples"):
        assert Recipe.build(method, "cifar100", preset=preset).by_rule == ()


def test_what_differs_between_data_sets_is_a_fact_of_theirs() -> None:
    """The rule gives two streams with the same numbers the same values; the rest is said on its page."""
    streams = [Recipe.of({"method": "edbl", "preset": "default", **HALF[n].settings}).values() for n in (0, 2)]
    cifar, tiny = streams
    assert {key for key in cifar if cifar[key] != tiny[key]} == {
        "data.name",
        "data.mean",
        "data.std",
        "data.pad",
        "net.backbone",
    }
    page = " ".join(DOC.read_text().split())
    assert f"is {cifar['data.pad']} pixels on CIFAR and {tiny['data.pad']} on Tiny-ImageNet" in page


def test_mistakes_are_explained() -> None:
    with pytest.raises(EdblError, match=r"did you mean 'schedule\.lr'"):
        Recipe.build("edbl", by_rule=("schedule.rl",))
    with pytest.raises(EdblError, match=r"by_rule names options\.min_old, which icarl does not have"):
        Recipe.build("icarl", by_rule=("options.min_old",))
