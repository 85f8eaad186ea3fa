"""Several runs side by side: each as it would be alone, none harmed by another."""

import os
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from edbl import EdblError, Recipe, records, run
from edbl.engine.many import MPS, TRIES, Job, _work, run_many, shared_gpu
from tests.conftest import Cli
from tests.test_contract import Killed, Killer

QUIET = Console(quiet=True)


def recipe(method: str = "rkd", seed: int = 0, memory: str = "total=40", lr: float = 0.1) -> Recipe:
    small = {"net.backbone": "mlp", "schedule.epochs": 2, "stream.phases": 2, "schedule.lr": lr, "memory": memory}
    return Recipe.build(method, data="digits", preset="quick", seed=seed, **small)


def test_each_run_is_as_it_would_be_alone_and_one_begun_goes_on(tmp_path: Path) -> None:
    jobs = [Job(recipe(seed=seed), tmp_path / f"seed{seed}") for seed in (0, 1)]
    alone = run(recipe(seed=1), tmp_path / "alone")
    with pytest.raises(Killed):
        run(recipe(seed=0), tmp_path / "seed0", progress=Killer(5))
    found = run_many(jobs, 2, QUIET)
    assert [record.seed for record in found] == [0, 1]
    assert [record.status for record in found] == ["done", "done"]
    for mine, right in zip(found[1].confusions["cnn"], alone.confusions["cnn"], strict=True):
        np.testing.assert_array_equal(mine, right)


def test_one_that_fails_takes_no_other_with_it(tmp_path: Path) -> None:
    jobs = [Job(recipe(lr=1e30), tmp_path / "bad"), Job(recipe("finetune"), tmp_path / "good")]
    with pytest.raises(EdblError, match="1 of 2 runs failed: bad"):
        run_many(jobs, 1, QUIET)
    assert records.read(tmp_path / "good").status == "done"
    assert "loss became" in records.read(tmp_path / "bad").message


FRAGILE = """
import os, signal
from pathlib import Path
from edbl.methods.rkd import RKD

class Fragile(RKD):
    name = "fragile"

    def phases(self, task):
        marks = Path(__file__).parent / "marks"
        if task.old and len(list(marks.iterdir())) < TIMES:
            (marks / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().phases(task)
"""


@pytest.mark.parametrize("times", [1, 9])
def test_a_killed_process_ends_no_run(times: int, tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    method = tmp_path / "fragile.py"
    method.write_text(FRAGILE.replace("TIMES", str(times)))
    jobs = [Job(recipe(str(method)), tmp_path / "killed"), Job(recipe("finetune"), tmp_path / "beside")]
    if times == 1:
        assert [record.status for record in run_many(jobs, 2, QUIET)] == ["done", "done"]
    else:
        with pytest.raises(EdblError, match=r"runs failed: .*killed"):
            run_many(jobs, 2, QUIET)
        assert len(list((tmp_path / "marks").iterdir())) == TRIES


def test_a_run_does_not_go_to_the_cpu_where_others_have_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="sees the GPU no more"):
        _work(0, Job(recipe(), tmp_path / "run"), None, gpu=True)
    assert not (tmp_path / "run").exists()


def test_a_folder_with_another_run_is_refused_before_anything_starts(tmp_path: Path) -> None:
    run(recipe(), tmp_path / "rkd-seed0")
    jobs = [Job(recipe("finetune"), tmp_path / "new"), Job(recipe(memory="total=30"), tmp_path / "rkd-seed0")]
    with pytest.raises(EdblError, match="holds another run, of rkd"):
        run_many(jobs, 1, QUIET)
    assert not (tmp_path / "new").exists()


def test_methods_and_seeds_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    quick = ["--data", "digits", "--preset", "quick", "--set", "net.backbone=mlp", "--set", "epochs=1"]
    done = cli("run", "rkd", "finetune", "--seeds", 2, "--seed", 3, *quick, "--at-once", 2, "--out", tmp_path / "all")
    assert done.code == 0, done.err
    names = {path.name for path in (tmp_path / "all").iterdir()}
    assert names == {"rkd-seed3", "rkd-seed4", "finetune-seed3", "finetune-seed4", "report.html"}
    twice = cli("run", "rkd", "rkd", *quick, "--out", tmp_path / "twice")
    assert twice.code == 2
    assert "named twice" in twice.err


def service(folder: Path, code: int) -> None:
    script = folder / MPS
    script.write_text(f'#!/bin/sh\necho "$CUDA_MPS_PIPE_DIRECTORY" "$@" $(cat) >> {folder}/log\nexit {code}\n')
    script.chmod(0o755)


def test_the_service_lives_as_long_as_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service(tmp_path, 0)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with shared_gpu():
        place = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
        assert Path(place).is_dir()
        with shared_gpu():  # one that is running is used
            assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == place
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    assert (tmp_path / "log").read_text().splitlines() == [f"{place} -d", f"{place} quit"]


def test_no_service_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service(tmp_path, 1)
    for path in (str(tmp_path) + os.pathsep + os.environ["PATH"], ""):
        monkeypatch.setenv("PATH", path)
        with shared_gpu():
            assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
