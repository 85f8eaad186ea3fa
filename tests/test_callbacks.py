"""Callbacks and the pulse of a run: what they are told, that nothing changes by them, kills included."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from edbl import EdblError, Recipe, Record, pulse, resume, run
from edbl.engine.callbacks import Callback, End, Epoch, Stop, TaskEnd
from edbl.engine.progress import Progress
from edbl.pulse import Pulse
from tests.conftest import Cli
from tests.test_contract import Killed, Killer, last_state

SMALL: dict[str, object] = {"net.backbone": "mlp", "schedule.epochs": 3, "stream.tasks": 3, "checkpoint_seconds": 0}


def recipe(method: str = "rkd", **given: object) -> Recipe:
    return Recipe.build(method, "digits", preset="quick", **{**SMALL, **given})


class Notes(Callback):
    """Note all that is told."""

    def __init__(self) -> None:
        self.epochs: list[Epoch] = []
        self.tasks: list[TaskEnd] = []
        self.ends: list[End] = []

    def on_epoch(self, epoch: Epoch) -> None:
        self.epochs.append(epoch)

    def on_task(self, task: TaskEnd) -> None:
        self.tasks.append(task)

    def on_end(self, end: End) -> None:
        self.ends.append(end)


class StopAfter(Callback):
    """Stop a run after a task."""

    def __init__(self, task: int) -> None:
        self.task = task

    def on_task(self, task: TaskEnd) -> None:
        if task.task == self.task:
            raise Stop


def same_bits(one: Record, other: Record, *folders: Path) -> bool:
    states = [last_state(folder, one).tensors for folder in folders]
    return one.losses == other.losses and all(torch.equal(v, states[1][k]) for k, v in states[0].items())


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, Path]:
    """A run without callbacks."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    return run(recipe(), folder), folder


def test_they_are_told_what_the_record_has_and_change_no_bit(plain: tuple[Record, Path], tmp_path: Path) -> None:
    notes = Notes()
    record = run(recipe(), tmp_path / "run", callbacks=[notes])
    assert same_bits(record, plain[0], tmp_path / "run", plain[1])
    assert [epoch.total for epoch in notes.epochs] == list(range(1, 10))
    assert [(epoch.task, epoch.phase, epoch.epoch, epoch.epochs) for epoch in notes.epochs] == [
        (task, "train", epoch, 3) for task in range(3) for epoch in (1, 2, 3)
    ]
    assert [epoch.loss for epoch in notes.epochs] == [loss for task in record.losses for loss in task["train"]]
    assert all(type(epoch.loss) is float and type(epoch.rate) is float for epoch in notes.epochs)  # on the host
    assert [task.accuracy["cnn"] for task in notes.tasks] == record.accuracy["cnn"]
    assert [(task.task, task.total, task.classes) for task in notes.tasks] == [(0, 3, 4), (1, 6, 7), (2, 9, 10)]
    assert notes.tasks[-1].average == record.average_incremental_accuracy == notes.ends[0].average
    assert [(end.status, end.message) for end in notes.ends] == [("done", "")]
    facts = notes.ends[0].run
    assert (facts.folder, facts.method, facts.data, facts.seed, facts.tasks) == (
        tmp_path / "run",
        "rkd",
        "digits",
        0,
        3,
    )
    assert facts.recipe == recipe().values()
    assert facts.started == record.started


def test_accuracy_within_and_what_losses_log_are_told(tmp_path: Path) -> None:
    notes = Notes()
    record = run(recipe("ewc", **{"evaluation.every": 2}), tmp_path / "run", callbacks=[notes])
    measured = [epoch for epoch in notes.epochs if epoch.accuracy]
    assert [(epoch.task, epoch.epoch) for epoch in measured] == [(task, epoch) for task in range(3) for epoch in (2, 3)]
    assert [epoch.accuracy["all"] for epoch in measured] == [row[1] for t in record.within for row in t["train"]]


@pytest.mark.parametrize("at", [40, 75, *(pytest.param(at, marks=pytest.mark.slow) for at in (7, 100))])
def test_a_run_that_goes_on_tells_the_same(at: int, tmp_path: Path) -> None:
    whole, parts = Notes(), Notes()
    run(recipe("edbl", **{"schedule.epochs": 2}), tmp_path / "whole", callbacks=[whole])
    with suppress(Killed):
        run(recipe("edbl", **{"schedule.epochs": 2}), tmp_path / "parts", callbacks=[parts], progress=Killer(at))
    assert [end.status for end in parts.ends] == ["stopped"]
    resume(tmp_path / "parts", callbacks=[parts])
    assert [end.status for end in parts.ends] == ["stopped", "done"]
    told = {(epoch.task, epoch.phase, epoch.epoch): (epoch.total, epoch.loss) for epoch in whole.epochs}
    again = {(epoch.task, epoch.phase, epoch.epoch): (epoch.total, epoch.loss) for epoch in parts.epochs}
    assert again == told
    assert {task.task: task.accuracy for task in parts.tasks} == {task.task: task.accuracy for task in whole.tasks}


def test_one_may_stop_a_run_which_goes_on_with_the_same_bits(plain: tuple[Record, Path], tmp_path: Path) -> None:
    notes = Notes()
    stopped = run(recipe(), tmp_path / "run", callbacks=[StopAfter(1), notes])
    assert (stopped.status, stopped.finished) == ("running", 2)
    assert [end.status for end in notes.ends] == ["stopped"]
    record = resume(tmp_path / "run")
    assert same_bits(record, plain[0], tmp_path / "run", plain[1])


def test_after_the_last_task_there_is_nothing_to_stop(tmp_path: Path) -> None:
    assert run(recipe(), tmp_path / "run", callbacks=[StopAfter(2)]).status == "done"


def test_the_end_of_one_that_fails_is_told(tmp_path: Path) -> None:
    notes = Notes()
    with pytest.raises(EdblError, match="learning rate"):
        run(recipe("rkd", **{"schedule.lr": 1e20}), tmp_path / "run", callbacks=[notes])
    assert [end.status for end in notes.ends] == ["failed"]
    assert "schedule.lr" in notes.ends[0].message
    assert not (tmp_path / "run" / pulse.PULSE).exists()


def test_one_that_crashes_ends_the_run_which_can_go_on(plain: tuple[Record, Path], tmp_path: Path) -> None:
    class Broken(Callback):
        def on_epoch(self, epoch: Epoch) -> None:
            if epoch.total == 4:
                raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        run(recipe(), tmp_path / "run", callbacks=[Broken()])
    record = resume(tmp_path / "run")
    assert same_bits(record, plain[0], tmp_path / "run", plain[1])


class Looks(Progress):
    """Read the pulse of a run while it goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[Pulse] = []

    def trained(self, *_: object) -> None:
        time.sleep(0.05)
        found = pulse.read(self.folder)
        if found is not None:
            self.seen.append(found)


def test_a_run_has_a_pulse_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "EVERY", 0.01)
    looks = Looks(tmp_path / "run")
    run(recipe(), tmp_path / "run", progress=looks)
    assert {(one.task, one.epoch) for one in looks.seen} >= {(1, 2), (2, 1)}
    last = looks.seen[-1]
    assert (last.state, last.title, last.tasks, last.epochs, last.pid) == (
        "running",
        "rkd on digits",
        3,
        3,
        os.getpid(),
    )
    assert last.beats
    assert last.speed > 0
    assert last.share > 0.6
    assert len(last.losses) <= 3
    assert not (tmp_path / "run" / pulse.PULSE).exists()
    assert not list((tmp_path / "run").glob(".*.tmp"))


@pytest.mark.slow
def test_one_that_is_killed_leaves_its_pulse_which_beats_no_more(tmp_path: Path) -> None:
    code = "import sys; from tests.test_callbacks import *; run(recipe(**{'schedule.epochs': 10_000}), sys.argv[1])"
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")])
    try:
        for _ in range(1200):
            found = pulse.read(tmp_path / "run")
            if found is not None and found.beats and found.epochs:
                break
            time.sleep(0.05)
        assert found is not None
        assert found.pid == process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    left = pulse.read(tmp_path / "run")
    assert left is not None
    assert not left.beats


def test_pulses_from_elsewhere_beat_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    there = Pulse("running", "rkd on digits", host="elsewhere", pid=2**40, at=now - 5)
    assert there.beats
    assert not Pulse("running", "rkd on digits", host="elsewhere", at=now - pulse.SILENT - 1).beats
    assert not Pulse("running", "rkd on digits", pid=2**40, at=now).beats


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"format": 1}', '{"format": 2, "state": "running"}', '{"format": "x"}', "\x00", "{" * 10_000],
)
def test_a_forged_pulse_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / pulse.PULSE).write_text(text)
    assert pulse.read(tmp_path) is None


def test_a_pulse_with_odd_values_is_none(tmp_path: Path) -> None:
    pulse.write(tmp_path, Pulse("running", "rkd on digits"))
    stored = json.loads((tmp_path / pulse.PULSE).read_text())
    assert pulse.read(tmp_path) is not None
    for key, value in (("task", "x"), ("state", "gone"), ("losses", 3), ("pid", 1.5), ("at", None)):
        (tmp_path / pulse.PULSE).write_text(json.dumps({**stored, key: value}))
        assert pulse.read(tmp_path) is None, key


def test_a_pulse_that_cannot_be_written_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("full")

    monkeypatch.setattr(pulse, "write_quickly", full)
    assert run(recipe(), tmp_path / "run").status == "done"


def test_runs_that_wait_show_it_and_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    folders = [(tmp_path / name, "rkd on digits") for name in ("there", "a", "b")]
    with pulse.waiting(folders):
        assert pulse.read(tmp_path / "there") is None
        found = pulse.read(tmp_path / "a")
        assert found is not None
        assert (found.state, found.beats) == ("waiting", True)
        assert run(recipe(), tmp_path / "b").status == "done"
    assert not (tmp_path / "a").exists()
    assert (tmp_path / "b" / "record.json").exists()
    assert not (tmp_path / "b" / pulse.PULSE).exists()


@pytest.mark.slow
def test_several_runs_wait_for_their_turn(tmp_path: Path, cli: Cli) -> None:
    given = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    done = cli(
        "run", "rkd", "finetune", "--data", "digits", "--preset", "quick", *given, "--at-once", 1, "--out", tmp_path
    )
    assert done.code == 0, done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["finetune-seed0", "report.html", "rkd-seed0"]
    assert not list(tmp_path.rglob(pulse.PULSE))
