"""How much of a run is left: planned from the recipe's schedules, mended by the phases that methods yield."""

import io

import pytest
import torch
from rich.console import Console

from edbl import Recipe
from edbl.engine.progress import Bars, Count
from tests.test_contract import learner_of


def train(count: Count, task: int, name: str, epochs: int, done: int = 0) -> None:
    """Announce a phase and make its steps, two an epoch."""
    count.phase(task, name, epochs, done)
    for epoch in range(done, epochs):
        count.epoch(epoch, 2)
        for number in range(2):
            count.step(torch.zeros(2), number, 8)


def test_a_plan_that_is_right() -> None:
    count = Count()
    count.run("rkd on digits", [4, 6, 6], 0)
    assert (count.left, count.share) == (16, 0)
    train(count, 0, "train", 4)
    count.learnt(0)
    assert (count.left, count.share) == (12, 0.25)
    train(count, 1, "train", 5)
    count.phase(1, "tune", 1, 0)
    count.epoch(0, 2)
    count.step(torch.zeros(2), 0, 8)
    assert count.left == 6.5
    count.step(torch.zeros(2), 1, 8)
    count.learnt(1)
    train(count, 2, "train", 6)
    assert (count.left, count.share) == (0, 1)


def test_a_run_that_goes_on_has_what_it_had() -> None:
    count = Count()
    count.run("rkd on digits", [4, 6, 6], 1)
    assert (count.left, count.share) == (12, 0.25)
    train(count, 1, "train", 5, done=5)
    train(count, 1, "tune", 1)
    assert (count.left, count.share) == (6, 0.625)


@pytest.mark.parametrize("taken", [3, 9])
def test_later_tasks_are_taken_to_be_like_the_first_of_them(taken: int) -> None:
    """Where a method yields fewer or more epochs than the schedules of its recipe have."""
    count = Count()
    count.run("joint on digits", [4, 6, 6, 6], 0)
    train(count, 0, "train", 4)
    train(count, 0, "more", 2)
    count.learnt(0)
    assert count.left == 18
    train(count, 1, "train", taken)
    count.learnt(1)
    count.phase(2, "train", taken, 0)
    assert count.plan == [6, taken, taken, taken]
    assert count.left == 2 * taken


@pytest.mark.parametrize(
    ("method", "first", "later"), [("rkd", 3, 5), ("edbl", 3, 5 + 2), ("mnemonics", 3, 5 + 2), ("joint", 3, 5)]
)
def test_a_plan_has_each_schedule_of_the_recipe(method: str, first: int, later: int) -> None:
    given: dict[str, object] = {"net.backbone": "mlp", "schedule.epochs": 5, "first.task_epochs": 3}
    for key in ("options.balance.epochs", "options.exemplars.epochs"):
        if key in Recipe.keys(method):
            given[key] = 2
    learner = learner_of(Recipe.build(method, data="digits", preset="quick", **given))
    assert learner.epochs(new=True, first=True) == learner.epochs(new=False, first=False) == first
    assert learner.epochs(new=True, first=False) == later


def test_bars_tell_the_task_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr("edbl.engine.progress.time.monotonic", lambda: float(next(clock)))
    console = Console(file=io.StringIO(), width=150)
    bars = Bars(console)
    bars.run("rkd on digits", [2, 2, 2], 0)
    bars.phase(0, "train", 2, 0)
    bars.epoch(0, 1)
    bars.step(torch.zeros(1), 0, 8)
    console.print(bars._render())
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "task 1/3" in said
    assert "time left 1:40" in said  # one epoch took 20 s, and five are left
    assert "epoch 2/2" in said


def test_a_loss_that_is_not_known_yet_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 0.0, 0.1, 0.2, 0.3, 5.0, 5.1, 5.2, 5.3, 5.4, 5.5])
    monkeypatch.setattr("edbl.engine.progress.time.monotonic", lambda: next(now))

    def shown() -> str:
        console.print(bars._render())
        return str(console.file.getvalue())  # type: ignore[attr-defined]

    console = Console(file=io.StringIO(), width=150)
    bars = Bars(console)
    bars.run("rkd on digits", [2], 0)
    bars.phase(0, "train", 2, 0)
    bars.epoch(0, 2)
    bars.step(torch.ones(2), 0, 8)
    assert "loss" not in shown()
    assert "images/s" in shown()
    bars.step(torch.ones(2), 1, 8)
    assert "loss 1.0000" in shown()
    bars.phase(0, "balance", 1, 0)
    assert shown().splitlines()[-1].count("loss") == 0
