"""Logs for TensorBoard, Weights & Biases and MLflow, offline: what they hold, also after kills; nothing changes.

Each is read back by its own package, or by the format that this one documents.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from edbl import EdblError, Recipe, Record, resume, run
from edbl.logs import LOGS, logs, quiet
from edbl.logs.wandb import records as parts_of
from tests.conftest import Cli
from tests.test_contract import Killed, Killer

Points = dict[str, list[tuple[int, float]]]  # step and value by name

SMALL: dict[str, object] = {
    "net.backbone": "mlp",
    "schedule.epochs": 2,
    "options.balance.epochs": 1,
    "stream.tasks": 3,
    "checkpoint_seconds": 0,
}


def recipe() -> Recipe:
    return Recipe.build("edbl", "digits", preset="quick", **SMALL)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's settings, and no network."""
    for name in [*os.environ]:
        if name.startswith(("WANDB_", "MLFLOW_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture(scope="module", autouse=True)
def services() -> Iterator[None]:
    """End the process that wandb has beside this one."""
    yield
    if "wandb" in sys.modules:
        with quiet():
            import_module("wandb").teardown()


def of_tensorboard(folder: Path) -> Points:
    loader: Any = import_module("tensorboard.backend.event_processing.event_file_loader")
    points: Points = {}
    for path in sorted((folder / "tensorboard").glob("events.out.tfevents.*")):
        for event in loader.EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                points.setdefault(value.tag, []).append((event.step, value.tensor.float_val[0]))
    return points


def rows_of_wandb(folder: Path) -> list[tuple[int, dict[str, float]]]:
    kinds: Any = import_module("wandb.proto.wandb_internal_pb2")
    rows = []
    for path in sorted((folder.parent / "wandb").glob("offline-run-*/run-*.wandb")):
        for data in parts_of(path.read_bytes()):
            record = kinds.Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                items = {"".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                rows.append((record.history.step.num, items))
    return sorted(rows, key=lambda row: row[0])


def of_wandb(folder: Path) -> Points:
    rows = rows_of_wandb(folder)
    assert len({step for step, _ in rows}) == len(rows)
    points: Points = {}
    for _, items in rows:
        for name, value in items.items():
            if name[0] != "_" and name not in ("epoch", "task"):
                points.setdefault(name, []).append((int(items.get("epoch", items.get("task", 0))), value))
    return points


def of_mlflow(folder: Path) -> Points:
    module: Any = import_module("mlflow")
    client = module.MlflowClient(tracking_uri=f"sqlite:///{folder.parent / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("edbl").experiment_id])
    (found,) = [one for one in runs if one.info.run_name == folder.name]
    names = found.data.metrics
    return {k: [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, k)] for k in names}


READERS: Mapping[str, Callable[[Path], Points]] = {
    "tensorboard": of_tensorboard,
    "wandb": of_wandb,
    "mlflow": of_mlflow,
}


def read(name: str, folder: Path) -> Points:
    with quiet():
        found = READERS[name](folder)
    return {k: v for k, v in sorted(found.items()) if k != "seconds"}


def of_record(record: Record) -> Points:
    """Return the points that a log must have of a run."""
    points: Points = {}
    epoch = 0
    for task, losses in enumerate(record.losses):
        for phase in losses:
            for loss in losses[phase]:
                epoch += 1
                points.setdefault(f"loss/{phase}", []).append((epoch, loss))
        for readout, accuracy in record.accuracy.items():
            points.setdefault(f"accuracy/{readout}", []).append((task + 1, accuracy[task]))
    return points


def agrees(found: Points, record: Record) -> None:
    wanted = of_record(record)
    assert len(wanted) >= 4
    for name, points in wanted.items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in points], rel=1e-6), name
    others = {"rate/train", "rate/balance", "average/cnn", "average/nme", "classes"}
    assert found.keys() == wanted.keys() | others


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A run without logs."""
    return run(recipe(), tmp_path_factory.mktemp("plain") / "run")


@pytest.mark.parametrize("name", LOGS)
def test_a_log_has_what_the_record_has_once_also_after_kills(name: str, plain: Record, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with suppress(Killed):
        run(recipe(), folder, callbacks=logs([name]), progress=Killer(30))
    for at in (25, 40):
        with suppress(Killed):
            resume(folder, callbacks=logs([name]), progress=Killer(at))
    record = resume(folder, callbacks=logs([name]))
    assert record.losses == plain.losses
    assert record.accuracy == plain.accuracy
    agrees(read(name, folder), record)


KILLED = """
import os, signal, sys
from edbl.engine.callbacks import Callback
from edbl.engine.progress import Progress
from edbl.logs import logs
from edbl import resume, run
from pathlib import Path
from tests.test_logs import recipe

class Kill(Callback):
    def on_epoch(self, epoch):
        if epoch.total == int(sys.argv[3]):
            os.kill(os.getpid(), 9)

    def on_task(self, task):
        if task.total == -int(sys.argv[3]):
            os.kill(os.getpid(), 9)

if __name__ == "__main__":
    folder, callbacks = Path(sys.argv[2]), [*logs([sys.argv[1]]), Kill()]
    (resume(folder, callbacks=callbacks) if folder.exists() else run(recipe(), folder, callbacks=callbacks))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGS)
def test_a_process_that_is_killed_leaves_no_gap_and_no_point_twice(name: str, tmp_path: Path) -> None:
    folder, script = tmp_path / "run", tmp_path / "killed.py"
    script.write_text(KILLED)
    for at in (1, 4, -5):  # after an epoch, or a task
        command = [sys.executable, "-W", "error", str(script), name, str(folder), str(at)]
        process = subprocess.run(command, check=False, env=os.environ | {"PYTHONPATH": os.getcwd()})
        assert process.returncode == -signal.SIGKILL
        time.sleep(1)  # what wandb has beside it writes what it was told
    record = resume(folder, callbacks=logs([name]))
    agrees(read(name, folder), record)


def test_rows_of_wandb_are_whole_blocks_apart() -> None:
    """A record that does not fit a block is in parts, and the rest of a block may be too small for one."""
    import struct

    def part(kind: int, data: bytes) -> bytes:
        return struct.pack("<IHB", 0, len(data), kind) + data

    block = 32 * 1024
    first = b"a" * (block - 7 - 7 - 7 - 3)  # leaves 10 bytes of the first block: a header and 3 bytes
    data = b":W&B\xe1\xbe\x00" + part(1, first) + part(2, b"bbb") + part(3, b"c" * (block - 7)) + part(4, b"d")
    assert list(parts_of(data)) == [first, b"bbb" + b"c" * (block - 7) + b"d"]
    short = b"a" * (block - 7 - 7 - 5)  # leaves 5 bytes, which nothing fits into
    data = b":W&B\xe1\xbe\x00" + part(1, short) + bytes(5) + part(1, b"e")
    assert list(parts_of(data)) == [short, b"e"]
    assert list(parts_of(data[:-1])) == [short]
    assert list(parts_of(b"")) == []


@pytest.mark.parametrize("name", LOGS)
def test_what_is_missing_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Cli) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, f"{name}.summary", None)
    done = cli("run", "finetune", "--data", "digits", "--preset", "quick", "--log", name, "--out", tmp_path / "run")
    assert done.code == 2
    assert f"pip install 'edbl[{name}]'" in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "run").exists()


def test_unknown_logs_are_refused(tmp_path: Path, cli: Cli) -> None:
    done = cli("run", "finetune", "--data", "digits", "--log", "tensorbord", "--out", tmp_path / "run")
    assert (done.code, "did you mean 'tensorboard'?" in done.err) == (2, True)
    done = cli("resume", tmp_path, "--log", "x")
    assert (done.code, "unknown log 'x': known: mlflow, tensorboard, wandb" in done.err) == (2, True)
    with pytest.raises(EdblError, match="named twice"):
        logs(["tensorboard", "tensorboard"])


def test_commands_log(plain: Record, tmp_path: Path, cli: Cli) -> None:
    given = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    folder = tmp_path / "run"
    done = cli("run", "edbl", "--data", "digits", "--preset", "quick", *given, "--log", "tensorboard", "--out", folder)
    assert done.code == 0, done.err
    agrees(read("tensorboard", folder), plain)
    assert cli("resume", folder, "--log", "tensorboard").code == 0
    agrees(read("tensorboard", folder), plain)


@pytest.mark.slow
def test_several_runs_log(plain: Record, tmp_path: Path, cli: Cli) -> None:
    given = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    done = cli(
        *("run", "edbl", "--data", "digits", "--preset", "quick", *given, "--seeds", 2, "--out", tmp_path),
        *("--log", "tensorboard", "--log", "mlflow", "--at-once", 2),
    )
    assert done.code == 0, done.err
    agrees(read("tensorboard", tmp_path / "edbl-seed0"), plain)
    agrees(read("mlflow", tmp_path / "edbl-seed0"), plain)
    assert read("mlflow", tmp_path / "edbl-seed1").keys() == read("mlflow", tmp_path / "edbl-seed0").keys()
