"""Killed, damaged, out of space: a run goes on from the newest intact state, or stops with a clear word."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from edbl import EdblError, Recipe, Record, records, resume, run
from edbl.data import datasets
from edbl.data.images import Images
from edbl.engine.checkpoint import Checkpoints, Saved
from edbl.engine.fit import Step
from edbl.engine.prepare import fingerprint
from edbl.engine.progress import Progress
from edbl.recipe import RECIPE
from edbl.store import lock, write_atomic
from tests.conftest import Cli, full_disk
from tests.test_contract import Killed, last_state
from tests.vectors import same

SETTINGS = ["stream.tasks=3", "memory=total=25", "net.backbone=mlp", "checkpoint_seconds=0"]


def recipe() -> Recipe:
    given = {"stream.tasks": 3, "memory": "total=25", "net.backbone": "mlp", "checkpoint_seconds": 0}
    return Recipe.build("edbl", data="digits", preset="quick", **given)


class KillIn(Progress):
    """End the process in an epoch of a phase of a task."""

    def __init__(self, task: int, phase: str, epoch: int) -> None:
        self.where = (task, phase, epoch)
        self.at: tuple[int, str] = (0, "")

    def phase(self, task: int, name: str, epochs: int, done: int) -> None:
        self.at = (task, name)

    def epoch(self, epoch: int, steps: int) -> None:
        if (*self.at, epoch) == self.where:
            raise Killed


class Trained(Progress):
    """Note which epochs are trained."""

    def __init__(self) -> None:
        self.epochs: list[tuple[int, str, int]] = []
        self.at: tuple[int, str] = (0, "")

    def phase(self, task: int, name: str, epochs: int, done: int) -> None:
        self.at = (task, name)

    def epoch(self, epoch: int, steps: int) -> None:
        self.epochs.append((*self.at, epoch))


@pytest.fixture(scope="module")
def whole_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(recipe(), folder)
    return folder


@pytest.fixture(scope="module")
def whole(whole_folder: Path) -> Record:
    return records.read(whole_folder)


def assert_same(first: Record, second: Record) -> None:
    assert first.losses == second.losses
    assert len(first.seconds) == len(first.timings) == len(first.losses)
    for readout in ("cnn", "nme"):
        for ours, theirs in zip(first.confusions[readout], second.confusions[readout], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def killed(folder: Path, task: int, phase: str, epoch: int) -> Path:
    with pytest.raises(Killed):
        run(recipe(), folder, progress=KillIn(task, phase, epoch))
    return folder


def test_a_process_killed_for_real_resumes_to_the_same_bits(tmp_path: Path, whole: Record) -> None:
    folder = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "edbl",
        "run",
        "edbl",
        "--data",
        "digits",
        "--preset",
        "quick",
        "--out",
        str(folder),
    ]
    command += [word for setting in SETTINGS for word in ("--set", setting)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # as in this process: sums depend on how they are shared out
    process = subprocess.Popen(command, env=one_thread, stdout=subprocess.DEVNULL)
    balance = folder / "checkpoints" / "task-1-phase-1-epoch-2.json"
    deadline = time.monotonic() + 120
    while not balance.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was still running"
    stopped = records.read(folder)
    assert stopped.status == "running"
    assert len(stopped.seconds) < 3
    (folder / "checkpoints" / f".left.{'0' * 32}.tmp").write_bytes(b"half of a file")
    subprocess.run([sys.executable, "-m", "edbl", "resume", str(folder)], env=one_thread, check=True)
    resumed = records.read(folder)
    assert resumed.status == "done"
    assert_same(resumed, whole)
    assert not list(folder.rglob(".*.tmp"))
    assert (folder / "report.html").is_file()


def test_finished_epochs_are_not_trained_again(tmp_path: Path, whole: Record) -> None:
    folder = killed(tmp_path / "run", 1, "balance", 2)
    trained = Trained()
    assert_same(resume(folder, progress=trained), whole)
    assert trained.epochs[0] == (1, "balance", 2)


@pytest.mark.parametrize(("phase", "epoch"), [("balance", 0), ("train", 2)])
def test_the_time_before_a_kill_counts(phase: str, epoch: int, tmp_path: Path) -> None:
    folder = killed(tmp_path / "run", 1, phase, epoch)
    checkpoints = Checkpoints(folder / "checkpoints")
    for name in checkpoints.names():
        saved = checkpoints.load(name)
        if saved is not None and "seconds" in saved.values and name.startswith("task-1-phase-0"):
            saved.values["seconds"] += 1000
            checkpoints.save(name, saved)
    resumed = resume(folder)
    assert resumed.timings[1]["train"] > 1000 > resumed.timings[2]["train"]
    assert resumed.seconds[1] > 1000


def test_a_record_tells_of_two_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDBL_COMMIT", "a" * 40)
    folder = killed(tmp_path / "run", task=1, phase="train", epoch=2)
    monkeypatch.setenv("EDBL_COMMIT", "b" * 40)
    record = resume(folder)
    assert record.commit == "a" * 40
    assert record.notes[-1] == f"from task 2 on by commit {'b' * 40}"


def test_a_record_tells_of_two_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = killed(tmp_path / "run", task=1, phase="train", epoch=2)
    device = records.read(folder).device
    monkeypatch.setattr("edbl.engine.environment.describe", lambda device: "another")
    record = resume(folder)
    assert (record.device, record.notes[-1]) == (device, "from task 2 on with another")


def test_a_record_tells_who_had_it_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"edbl": "1", "torch": "2"}
    monkeypatch.setattr("edbl.engine.environment.versions", lambda: versions)
    monkeypatch.setenv("EDBL_COMMIT", "a")
    folder = killed(tmp_path / "run", task=1, phase="train", epoch=1)
    monkeypatch.setenv("EDBL_COMMIT", "b")
    for epoch in (2, 3):
        with pytest.raises(Killed):
            resume(folder, progress=KillIn(1, "train", epoch))
    monkeypatch.setenv("EDBL_COMMIT", "a")
    versions["torch"] = "3"
    with pytest.raises(Killed):
        resume(folder, progress=KillIn(2, "train", 0))
    notes = ["from task 2 on by commit b", "from task 2 on by commit a", "from task 2 on under edbl 1, torch 3"]
    assert resume(folder).notes == notes


@pytest.mark.parametrize("damage", ["truncate", "flip", "json", "json values", "delete"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_is_used(tmp_path: Path, whole: Record, damage: str) -> None:
    folder = killed(tmp_path / "run", 1, "train", 3)
    newest = folder / "checkpoints" / "task-1-phase-0-epoch-3.safetensors"
    described = newest.with_suffix(".json")
    if damage == "truncate":
        newest.write_bytes(newest.read_bytes()[:-100])
    elif damage == "flip":
        data = bytearray(newest.read_bytes())
        data[-1] ^= 1
        newest.write_bytes(data)
    elif damage == "json":
        described.write_text(described.read_text()[:-20])
    elif damage == "json values":
        described.write_text(described.read_text().replace('"epoch": 3', '"epoch": 4'))
    else:
        newest.unlink()
    trained = Trained()
    assert_same(resume(folder, progress=trained), whole)
    assert trained.epochs[0] == (1, "train", 2)


def test_a_damaged_state_after_a_task_costs_no_training_of_its_phases(tmp_path: Path, whole: Record) -> None:
    folder = killed(tmp_path / "run", 2, "train", 0)
    (folder / "checkpoints" / "task-1.safetensors").write_bytes(b"")
    trained = Trained()
    assert_same(resume(folder, progress=trained), whole)
    assert trained.epochs[0] == (2, "train", 0), "task 1 was put together again from its finished phases"


@pytest.mark.parametrize("lost", ["task-1", "task-1*"])
def test_a_damaged_state_after_a_task_changes_no_bits_of_the_last_one(
    tmp_path: Path, whole_folder: Path, whole: Record, lost: str
) -> None:
    folder = killed(tmp_path / "run", 2, "train", 3)
    for path in (folder / "checkpoints").glob(f"{lost}.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    trained = Trained()
    resumed = resume(folder, progress=trained)
    assert trained.epochs[0] == ((2, "train", 0) if lost == "task-1" else (1, "train", 0))
    assert_same(resumed, whole)
    assert same(last_state(folder, resumed).tensors, last_state(whole_folder, whole).tensors)


def test_older_checkpoints_go_while_a_run_goes_on(tmp_path: Path) -> None:
    folder = killed(tmp_path / "run", 2, "train", 3)
    before = ["task-0", "task-1", "task-1-phase-0", "task-1-phase-1"]
    epochs = ["task-2-phase-0-epoch-2", "task-2-phase-0-epoch-3"]
    assert Checkpoints(folder / "checkpoints").names() == [*before, *epochs]


def test_with_all_checkpoints_lost_a_run_begins_again(tmp_path: Path, whole: Record) -> None:
    folder = killed(tmp_path / "run", 2, "train", 0)
    for path in (folder / "checkpoints").iterdir():
        path.unlink()
    assert_same(resume(folder), whole)


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_killed_while_the_record_is_cut_to_the_state_that_is_left(
    writes: int, tmp_path: Path, whole: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = killed(tmp_path / "run", 2, "train", 0)
    for path in (folder / "checkpoints").glob("task-1.*"):
        path.unlink()
    left = iter(range(writes))

    def killing(path: Path, data: bytes) -> None:
        if next(left, None) is None:
            raise Killed
        write_atomic(path, data)

    with monkeypatch.context() as patch:
        patch.setattr("edbl.records.write_atomic", killing)
        with pytest.raises(Killed):
            resume(folder)
    assert_same(resume(folder), whole)


def test_a_finished_run_keeps_its_last_state_only_and_resumes_to_itself(tmp_path: Path, whole: Record) -> None:
    record = run(recipe(), tmp_path / "run")
    assert Checkpoints(tmp_path / "run" / "checkpoints").names() == ["task-2"]
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    checkpoints.save("task-1", Saved({}, {}))  # as if killed between the record and tidying up
    trained = Trained()
    assert_same(resume(tmp_path / "run", progress=trained), record)
    assert trained.epochs == []
    assert checkpoints.names() == ["task-2"]


def test_a_folder_of_images_that_is_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = replace(run(recipe(), tmp_path / "run"), status="running", data="photos")
    records.write(record, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EdblError, match="are in 'photos', which is not here; go on where it began"):
        resume("run")


@pytest.mark.parametrize("steps", [0, 3])
def test_a_run_that_began_before_a_setting_went_goes_on_if_it_had_the_default(
    steps: int, tmp_path: Path, whole: Record
) -> None:
    folder = killed(tmp_path / "run", 1, "train", 2)
    record = records.read(folder)
    records.write(replace(record, recipe=record.recipe | {"optim.steps": steps}), folder)
    text = (folder / RECIPE).read_text().replace("[optim]\n", f"[optim]\nsteps = {steps}\n")
    (folder / RECIPE).write_text(text)
    if steps == 0:
        assert_same(resume(folder), whole)
    else:
        with pytest.raises(EdblError, match=r"optim\.steps = 3 is no longer to be had"):
            resume(folder)


def test_checkpoints_inside_a_phase_wait_for_their_interval(tmp_path: Path) -> None:
    patient = Recipe.of(recipe().values() | {"checkpoint_seconds": 3600.0})
    with pytest.raises(Killed):
        run(patient, tmp_path / "run", progress=KillIn(1, "balance", 2))
    assert Checkpoints(tmp_path / "run" / "checkpoints").names() == ["task-0", "task-0-phase-0", "task-1-phase-0"]


class NanAt(Progress):
    """Turn a step's loss into NaN, as diverged training would."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, losses: Tensor, number: int, images: int) -> None:
        self.steps += 1
        if self.steps == 30:
            losses[number] = float("nan")


def test_a_nan_loss_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path: Path, whole: Record) -> None:
    folder = tmp_path / "run"
    with pytest.raises(EdblError, match=r"loss became nan in train epoch 2, step 12 of 18.*task 1 of 3"):
        run(recipe(), folder, progress=NanAt())
    record = records.read(folder)
    assert record.status == "failed"
    assert "nan" in record.message
    assert Checkpoints(folder / "checkpoints").epochs(0, 0) == [1]
    assert_same(resume(folder), whole)


def test_a_loss_that_really_diverges_is_reported(tmp_path: Path, cli: Cli) -> None:
    arguments = ["run", "rkd", "--data", "digits", "--preset", "quick", "--set", "lr=1e30", "--out", tmp_path / "run"]
    finished = cli(*arguments)
    assert finished.code == 2
    assert "the loss became" in finished.err
    assert "step" in finished.err
    assert "lower the learning rate (schedule.lr) or a weight of the loss, in a new run (run" in finished.err
    assert "checkpoint" not in finished.err
    assert "Traceback" not in finished.err


@pytest.mark.parametrize("epoch", [1, 6])  # of 6
def test_weights_that_diverge_in_the_last_step_of_an_epoch_are_reported_and_not_kept(
    epoch: int, tmp_path: Path, whole: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Step.__call__

    def diverge(self: Step) -> None:
        step(self)
        if self.calls == len(self.batches) * epoch:
            self.phase.params[0].data[0] = math.inf

    with monkeypatch.context() as patch:
        patch.setattr(Step, "__call__", diverge)
        with pytest.raises(EdblError, match=rf"weights became infinite in train epoch {epoch};.*task 1 of 3"):
            run(recipe(), tmp_path / "run")
    assert epoch not in Checkpoints(tmp_path / "run" / "checkpoints").epochs(0, 0)
    assert records.read(tmp_path / "run").seconds == []
    assert_same(resume(tmp_path / "run"), whole)


def test_a_full_disk_stops_the_run_with_a_message_and_it_resumes(tmp_path: Path, whole: Record) -> None:
    folder = tmp_path / "run"
    with full_disk(after=10), pytest.raises(EdblError, match="No space left"):
        run(recipe(), folder)
    assert not list(folder.rglob("*.tmp"))
    with pytest.raises(Killed):
        resume(folder, progress=KillIn(2, "train", 1))
    assert (records.read(folder).status, records.read(folder).message) == ("running", "")
    assert_same(resume(folder), whole)


def test_two_processes_cannot_work_on_one_run(tmp_path: Path) -> None:
    folder = killed(tmp_path / "run", 1, "train", 0)
    with lock(folder), pytest.raises(EdblError, match="another process"):
        resume(folder)


def test_a_run_that_another_process_finished_meanwhile_is_left_as_it_is(
    tmp_path: Path, whole: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = killed(tmp_path / "run", 1, "train", 0)
    old = (folder / "record.json").read_bytes()
    assert_same(resume(folder), whole)
    done = (folder / "record.json").read_bytes()
    (folder / "record.json").write_bytes(old)

    @contextmanager
    def late(path: Path) -> Iterator[None]:  # the other process ends while this one waits
        (folder / "record.json").write_bytes(done)
        yield

    monkeypatch.setattr("edbl.engine.run.lock", late)
    assert_same(resume(folder, progress=KillIn(0, "train", 0)), whole)


def test_a_folder_that_another_process_took_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def late(path: Path) -> Iterator[None]:
        (path / ".lock").touch()
        (path / "record.json").write_text("of another")
        yield

    monkeypatch.setattr("edbl.engine.run.lock", late)
    with pytest.raises(EdblError, match="exists already"):
        run(recipe(), tmp_path / "run")
    assert (tmp_path / "run" / "record.json").read_text() == "of another"


@pytest.mark.parametrize(
    ("change", "refused"),
    [(("seed = 0", "seed = 7"), True), (('"mlp"', '"small"'), True), (("graph = true", "graph = false"), False)],
)
def test_a_recipe_that_has_changed_is_noticed(
    tmp_path: Path, whole: Record, change: tuple[str, str], refused: bool
) -> None:
    folder = killed(tmp_path / "run", 1, "train", 0)
    text = (folder / "recipe.toml").read_text()
    assert change[0] in text
    (folder / "recipe.toml").write_text(text.replace(*change))
    if refused:
        with pytest.raises(EdblError, match=r"recipe\.toml has changed since the run began"):
            resume(folder)
    else:  # how it computes may change
        assert_same(resume(folder), whole)


def test_a_fingerprint_is_of_all_images_and_labels() -> None:
    digits = datasets.load("digits")
    found = {fingerprint(digits)}
    for part in ("train", "test"):
        images: Images = getattr(digits, part)
        for key in ("x", "y"):
            values = getattr(images, key).clone()
            values.view(-1)[-1] += 1
            changed: dict[str, Any] = {part: replace(images, **{key: values})}
            found.add(fingerprint(replace(digits, **changed)))
    assert len(found) == 5


def test_other_images_are_noticed(tmp_path: Path) -> None:
    folder = killed(tmp_path / "run", 1, "train", 0)
    path = folder / "record.json"
    stored = json.loads(path.read_text())
    stored["data_fingerprint"] = "0" * 32
    del stored["sha256"]
    path.write_text(json.dumps(stored))
    with pytest.raises(EdblError, match="not those that run"):
        resume(folder)
