"""One run by several processes: two of them on this CPU, by gloo, compared with one."""

import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from edbl import records, resume, run
from edbl.engine.checkpoint import Checkpoints
from edbl.methods import methods
from edbl.recipe import Recipe
from tests.conftest import Cli
from tests.digests import short
from tests.together import ROOT, environment, gradients, together

STREAM = ("base0", 2, "total=25")
# A loss that is a mean, one over pairs, other gradients between, pixels that learn, blocks that are watched, several
# backbones, no training at all.
METHODS = ("edbl", "ewc", "gem", "mnemonics", "podnet", "der-net", "lda")
OTHERS = tuple(sorted(methods().keys() - set(METHODS)))
STEPS: Mapping[str, object] = {"optim.batch": 241, "schedule.lr": 0.01}


def recipe(method: str, **given: object) -> Recipe:
    return short(method, "small", STREAM, {**STEPS, **given})


def state(folder: Path, task: int = 1) -> dict[str, Tensor]:
    saved = Checkpoints(folder / "checkpoints").load(f"task-{task}")
    assert saved is not None
    return saved.tensors


def apart(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return by how much two nets differ, as a share of what they are."""
    assert one.keys() == other.keys()
    names = [k for k in one if k.startswith("net.") and one[k].is_floating_point() and one[k].numel()]
    difference = sum(float((one[k] - other[k]).square().sum()) for k in names)
    return math.sqrt(difference / sum(float(one[k].square().sum()) for k in names))


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs by two processes, one of them twice, one stopped after its first task, one begun by a single process."""
    folder = tmp_path_factory.mktemp("two")
    stopped = recipe("edbl")
    begun = folder / "begun"
    together(1, begun, {"edbl": stopped.values()}, stop=["edbl"])
    runs = {name: recipe(name).values() for name in METHODS} | {"again": recipe("edbl").values()}
    together(2, folder / "runs", {**runs, "stopped": stopped.values()}, stop=["stopped"], resumed=[begun / "edbl"])
    return folder


def test_every_kind_of_gradient_is_that_of_one_process(tmp_path: Path) -> None:
    together(2, tmp_path / "two", {}, gradients=True)
    found = [torch.load(tmp_path / "two" / f"gradients-{rank}.pt") for rank in range(2)]
    wanted = gradients()
    assert found[0].keys() == found[1].keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[0][name], found[1][name]), name
        torch.testing.assert_close(found[0][name], value, rtol=1e-9, atol=1e-11, msg=name)
        assert value.abs().sum() > 0, name


@pytest.mark.parametrize("method", METHODS)
def test_methods_learn_the_same_as_by_one(method: str, by_two: Path, tmp_path: Path) -> None:
    record = run(recipe(method), tmp_path / "one")
    shared = records.read(by_two / "runs" / method)
    assert shared.status == "done"
    assert "2 processes" in shared.device
    assert apart(state(tmp_path / "one"), state(by_two / "runs" / method)) < 1e-3
    for classifier, average in record.average_incremental_accuracy.items():
        assert abs(average - shared.average_incremental_accuracy[classifier]) < 0.05


@pytest.mark.timeout(1200)
def test_all_other_methods_do_too(tmp_path: Path) -> None:
    together(2, tmp_path / "two", {name: recipe(name).values() for name in OTHERS}, seconds=900)
    for name in OTHERS:
        run(recipe(name), tmp_path / name)
        assert apart(state(tmp_path / name), state(tmp_path / "two" / name)) < 1e-3, name


def test_the_same_seed_has_the_same_bits(by_two: Path) -> None:
    one, other = (state(by_two / "runs" / name) for name in ("edbl", "again"))
    assert all(torch.equal(one[k], other[k]) for k in one)
    first, second = (records.read(by_two / "runs" / name) for name in ("edbl", "again"))
    assert first.losses == second.losses


def test_it_goes_on_by_another_number_of_processes(by_two: Path) -> None:
    stopped = by_two / "runs" / "stopped"
    assert len(records.read(stopped).seconds) == 1
    record = resume(stopped)
    assert record.status == "done"
    assert any(re.match(r"from task 2 on with CPU \((?!.*processes)", note) for note in record.notes)
    more = records.read(by_two / "begun" / "edbl")
    assert more.status == "done"
    assert any(re.match(r"from task 2 on with CPU .*, 2 processes", note) for note in more.notes)
    whole = state(by_two / "runs" / "edbl")
    assert apart(whole, state(stopped)) < 1e-3
    assert apart(whole, state(by_two / "begun" / "edbl")) < 1e-3


QUICK = ("--data", "digits", "--device", "cpu", "--preset", "quick", "--set", "net.backbone=mlp", "--tasks", "2")


def started(*words: object, **more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "edbl", *map(str, words)]
    given = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **more}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=given)


def test_a_command_starts_them_and_the_first_one_tells(tmp_path: Path) -> None:
    with started("run", "icarl", *QUICK, "--gpus", 2, "--out", tmp_path / "run") as process:
        out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (0, "")
    assert out.count("task 2/2") == 1
    assert out.count("report:") == 1
    assert "2 processes" in records.read(tmp_path / "run").device
    assert not list((tmp_path / "run").glob(".*.tmp"))


def children(pid: int) -> list[int]:
    """Return the processes that one has started, first ones first."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    if not listed.exists():
        pytest.skip("only Linux lists the children of a process")
    return [int(word) for word in listed.read_text().split()]


@pytest.mark.parametrize(("victim", "how"), [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_one_that_is_gone_ends_all_with_one_message(victim: int, how: signal.Signals, tmp_path: Path) -> None:
    long = ("--set", "schedule.epochs=4000", "--set", "checkpoint_seconds=0", "--gpus", 2, "--out", tmp_path / "run")
    with started("run", "finetune", *QUICK, *long, EDBL_PATIENCE="6") as process:
        try:
            until = time.monotonic() + 100
            while not list((tmp_path / "run").glob("checkpoints/*.json")) and time.monotonic() < until:
                time.sleep(0.2)
            both = children(process.pid)
            os.kill(both[victim], how)
            out, err = process.communicate(timeout=100)
        finally:
            process.kill()
    assert process.returncode == 2, (out, err)
    assert err.count("error:") == 1
    assert "Traceback" not in err
    assert re.search("another process of the run has ended, or does not answer|was killed by SIGKILL", err)
    assert not any(Path(f"/proc/{pid}").exists() for pid in both)
    if victim:
        assert records.read(tmp_path / "run").status == "failed"


def test_what_is_wrong_is_said_once(tmp_path: Path) -> None:
    with started("run", "icarl", *QUICK, "--gpus", 2, "--memory", "total=3", "--out", tmp_path / "run") as process:
        out, err = process.communicate(timeout=100)
    assert process.returncode == 2
    assert (out, err.count("error:")) == ("", 1)
    assert "smaller than one image for each of 10 classes" in err


def test_torchrun_starts_them_too(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "edbl", "run", "finetune", *QUICK, "--out", str(tmp_path / "run")]
    given = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, env=given, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("task 2/2") == 1
    assert "2 processes" in records.read(tmp_path / "run").device


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["icarl", "er", "--gpus", 2], "several processes make one run"),
        (["icarl", "--seeds", 2, "--gpus", 2], "several processes make one run"),
    ],
)
def test_more_than_one_run_is_refused(words: list[object], message: str, cli: Cli) -> None:
    found = cli("run", *words, "--data", "digits")
    assert found.code == 2
    assert message in found.err


def test_another_number_than_was_started_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**environment(2), "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert "2 processes were started together, so --gpus 3" in cli("run", "icarl", "--gpus", 3).err
    assert "not on mps" in cli("run", "icarl", "--device", "mps").err
    assert "several processes make one run" in cli("list", "data").err
    monkeypatch.setenv("EDBL_PATIENCE", "long")
    assert "EDBL_PATIENCE is 'long'; it is a number of seconds" in cli("run", "icarl").err
    assert ROOT.is_dir()
