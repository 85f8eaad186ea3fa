"""Several runs side by side: each as it would be alone, none harmed by another."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import edbl
from edbl import EdblError, Recipe, records, run
from edbl.data import datasets
from edbl.engine import environment
from edbl.fleet import many
from edbl.fleet.board import Board
from edbl.fleet.gpus import Gpus
from edbl.fleet.jobs import TRIES, Job
from edbl.fleet.many import _work, run_many
from edbl.fleet.mps import MPS, shared_gpu
from edbl.store import lock
from tests.conftest import Cli
from tests.test_contract import Killed, Killer

QUIET = Console(quiet=True)


def recipe(method: str = "rkd", seed: int = 0, memory: str = "total=40", lr: float = 0.1) -> Recipe:
    small = {"net.backbone": "mlp", "schedule.epochs": 2, "stream.tasks": 2, "schedule.lr": lr, "memory": memory}
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
    with pytest.raises(EdblError, match=r"1 of 2 runs failed: bad; the others are done$"):
        run_many(jobs, 1, QUIET)
    assert records.read(tmp_path / "good").status == "done"
    assert "loss became" in records.read(tmp_path / "bad").message


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a system with CPU affinity")
def test_only_the_cores_that_the_process_may_use_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usual)})
    try:
        monkeypatch.setattr(os, "cpu_count", lambda: 64)
        assert (environment.cores(), many.at_once("cpu")) == (1, 1)
    finally:
        os.sched_setaffinity(0, usual)


@pytest.mark.parametrize(
    ("asked", "gigabytes", "runs"),
    [
        ("", 64, 8),
        ("1", 64, 8),
        ("2", 64, 4),
        ("3,2", 64, 2),
        ("16", 64, 1),
        ("0", 64, 8),
        ("many", 64, 8),
        ("", 3, 3),
        ("", 0, 1),
    ],
)
def test_a_cpu_makes_a_run_for_each_core_or_each_of_the_threads_that_are_asked_for_as_memory_allows(
    asked: str, gigabytes: int, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setattr(environment, "MEMORY", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text(f"MemTotal:  9 kB\nMemAvailable:   {gigabytes * 2**20 + 9} kB\n")
    assert many.at_once("cpu") == runs


def test_a_container_may_have_less_memory_and_some_systems_do_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(environment, "ALLOWED", tmp_path / "max")
    assert environment.free() > 2**60
    (tmp_path / "meminfo").write_text("MemAvailable: 4194304 kB\n")
    (tmp_path / "max").write_text("max\n")
    assert environment.free() == 4 * 2**30
    (tmp_path / "max").write_text(f"{2**31}\n")
    assert environment.free() == 2**31


@pytest.mark.parametrize(("limit", "threads"), [(3, 3), (9, 4)])
def test_threads_of_a_run_are_its_share_of_the_cores_and_no_more_than_asked_for(
    limit: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: limit)  # as OMP_NUM_THREADS has it
    [record, _] = run_many([Job(recipe(seed=seed), tmp_path / f"seed{seed}") for seed in (0, 1)], 2, QUIET)
    assert f"{threads} threads" in record.device


def test_any_thread_may_start_them(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        [record] = threads.submit(run_many, [Job(recipe(), tmp_path / "run")], 1, QUIET).result()
    assert record.status == "done"


def test_runs_in_several_folders_are_named_with_these(tmp_path: Path) -> None:
    jobs = [Job(recipe(lr=1e30), tmp_path / name / "rkd-seed0") for name in ("one", "two")]
    with pytest.raises(EdblError, match=r"2 of 2 runs failed: one/rkd-seed0, two/rkd-seed0$"):
        run_many(jobs, 1, QUIET)


OWN = """
from dataclasses import dataclass
from edbl.config import option
from edbl.methods.rkd import RKD

class Own(RKD):
    name = "own"

    @dataclass(frozen=True)
    class Config(RKD.Config):
        share: float = option(0.1, "of something", least=0, most=1)
"""


def test_a_method_file_with_options_of_its_own_and_several_seeds(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    quick = ["--data", "digits", "--preset", "quick", "--set", "net.backbone=mlp", "--set", "schedule.epochs=1"]
    done = cli("run", tmp_path / "own.py", "--seeds", 2, *quick, "--set", "share=0.3", "--out", tmp_path / "runs")
    assert done.code == 0, done.out + done.err
    found = [records.read(tmp_path / "runs" / f"own-seed{seed}") for seed in (0, 1)]
    assert [(record.status, record.recipe["options.share"]) for record in found] == [("done", 0.3)] * 2


BROKEN = """
from edbl.methods.rkd import RKD

class Broken(RKD):
    name = "broken"

    def loss(self, batch):
        assert not batch
"""


def test_of_a_bug_all_is_told_that_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    method = tmp_path / "broken.py"
    method.write_text(BROKEN)
    with pytest.raises(EdblError, match="1 of 1 runs failed"):
        run_many([Job(recipe(str(method)), tmp_path / "run")], 1, Console())
    told = capsys.readouterr().out
    assert "assert not batch" in told
    assert "AssertionError" in told


def test_those_that_are_done_are_reported_though_one_failed(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    quick = ["--data", "digits", "--preset", "quick", "--set", "net.backbone=mlp", "--set", "schedule.epochs=1"]
    done = cli("run", tmp_path / "broken.py", "finetune", *quick, "--out", tmp_path / "runs")
    assert done.code == 2
    assert "1 of 2 runs failed: broken-seed0; the others are done" in done.err
    page = (tmp_path / "runs" / "report.html").read_text()
    assert "1 of 2 runs not finished" in page
    assert "broken (failed, 0 of 5 tasks)" in page
    assert "broken" in done.out


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
    jobs += [Job(recipe(memory=f"total={k}"), tmp_path / f"one of two that share a start, {k}") for k in (20, 40)]
    if times == 1:
        assert [record.status for record in run_many(jobs, 2, QUIET)] == ["done"] * 4
    else:
        with pytest.raises(EdblError, match=r"runs failed: .*killed"):
            run_many(jobs, 2, QUIET)
        assert len(list((tmp_path / "marks").iterdir())) == TRIES


def test_runs_leave_ctrl_c_to_the_process_that_started_them(tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    method = tmp_path / "fragile.py"
    method.write_text(FRAGILE.replace("TIMES", "1").replace("SIGKILL", "SIGINT"))
    assert run_many([Job(recipe(str(method)), tmp_path / "run")], 1, QUIET)[0].status == "done"
    assert list((tmp_path / "marks").iterdir())


def wait_for(what: str, seconds: float, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def is_left(folder: Path) -> bool:
    try:
        with lock(folder):
            return True
    except EdblError:
        return False


@pytest.mark.parametrize(
    "how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda how: how.name
)
def test_runs_end_with_the_process_that_started_them(how: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edbl", "run", "rkd", "finetune", "icarl", "--data", "digits", "--preset", "quick"]
    command += ["--set", "net.backbone=mlp", "--set", "epochs=100000", "--at-once", "2", "--out", str(tmp_path / "all")]
    begun = [tmp_path / "all" / f"{method}-seed0" for method in ("rkd", "finetune")]
    # Tests that a shell runs in the background, or nohup, are deaf to these.
    usual = {one: signal.signal(one, signal.SIG_DFL) for one in (signal.SIGINT, signal.SIGHUP)}
    (tmp_path / "temporary").mkdir()
    places = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(command, stdout=errors, stderr=errors, start_new_session=True, env=places)
    for one, handler in usual.items():
        signal.signal(one, handler)
    try:
        wait_for("both begin", 120, lambda: all((folder / "checkpoints").exists() for folder in begun))
        assert not any(is_left(folder) for folder in begun)
        process.send_signal(how)
        assert process.wait(60) == (-how if how is signal.SIGKILL else 128 + how)
        wait_for("both end", 30, lambda: all(is_left(folder) for folder in begun))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert not (tmp_path / "all" / "icarl-seed0" / records.RECORD).exists()  # it waited
    said = (tmp_path / "errors").read_text()
    assert "Traceback" not in said
    if how is not signal.SIGKILL:
        assert said == "interrupted; the same command continues from the last checkpoints\n"
        assert not list((tmp_path / "temporary").glob("edbl-*"))


def test_a_run_does_not_go_to_the_cpu_where_others_have_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="sees the GPU no more"):
        _work(0, recipe().values(), tmp_path / "run", None, gpu=True)
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_done_already_is_shown_as_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "_shares", [0.0], raising=False)
    run(recipe(), tmp_path / "run")
    _work(0, recipe().values(), tmp_path / "run", None, gpu=None)
    assert many._shares[0] == 1.0


def test_a_folder_with_another_run_is_refused_before_anything_starts(tmp_path: Path) -> None:
    run(recipe(), tmp_path / "rkd-seed0")
    jobs = [Job(recipe("finetune"), tmp_path / "new"), Job(recipe(memory="total=30"), tmp_path / "rkd-seed0")]
    with pytest.raises(EdblError, match="holds another run, of rkd"):
        run_many(jobs, 1, QUIET)
    assert not (tmp_path / "new").exists()


def test_reproduce_says_what_to_do_about_another_run(cli: Cli, tmp_path: Path) -> None:
    run(recipe(), tmp_path / "runs" / "cifar10-base0-5-total200" / "rkd-seed0")
    places = ["--runs", tmp_path / "runs", "--results", tmp_path / "results", "--data-dir", tmp_path]
    done = cli("reproduce", "table3", "--only", "rkd", "--data", "cifar10", *places)
    assert done.code == 2
    assert "rkd-seed0 holds another run, of rkd; use --no-resume to begin all anew, or another --runs" in done.err


def test_missing_data_are_said_once_before_anything_starts(cli: Cli, tmp_path: Path) -> None:
    places = ["--runs", tmp_path / "runs", "--results", tmp_path / "results", "--data-dir", tmp_path / "data"]
    done = cli("reproduce", "table1", *places)
    assert (done.code, done.out) == (2, "")
    assert [done.err.count(f"run `edbl data fetch {name} --data-dir") for name in ("cifar100", "tiny-imagenet")] == [
        1,
        1,
    ]
    assert not (tmp_path / "runs").exists()


def test_what_is_done_needs_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> None:
        raise EdblError("no data")

    run(recipe(), tmp_path / "run")
    monkeypatch.setattr(datasets, "load", load)
    assert run_many([Job(recipe(), tmp_path / "run")], 1, QUIET)[0].status == "done"
    with pytest.raises(EdblError, match="no data"):
        run_many([Job(recipe(), tmp_path / "run"), Job(recipe(seed=1), tmp_path / "other")], 1, QUIET)


def test_a_run_that_was_killed_before_its_record_begins_anew(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (".lock", "recipe.toml", f".record.json.{'0' * 32}.tmp"):
        (folder / name).touch()
    assert run_many([Job(recipe(), folder)], 1, QUIET)[0].status == "done"


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
        assert environment.PART not in os.environ
        with shared_gpu(50):  # one that is running is used as it is
            assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == place
            assert environment.PART not in os.environ
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    assert (tmp_path / "log").read_text().splitlines() == [f"{place} -d", f"{place} quit"]


@pytest.mark.parametrize(
    ("workers", "changed", "part"),
    [
        (6, {}, "33"),
        (4, {}, "50"),
        (8, {}, "33"),  # since there are six runs
        (2, {}, None),
        (6, {"net.backbone": "resnet18"}, None),
        (6, {"precision": "fp32"}, None),
        (6, {"fused": False}, None),
        (6, {"method": "cldr"}, None),
        (6, {"method": "mnemonics"}, None),
        (6, {"method": "podnet"}, None),
        (6, {"method": "tpcil"}, None),
        (6, {"method": "own.py"}, None),
    ],
)
def test_runs_get_parts_of_a_gpu_where_that_changes_no_bits(
    workers: int, changed: dict[str, object], part: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service(tmp_path, 0)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    seen = []

    class Pool:  # stands in for the processes, which would need a GPU
        def __init__(self, *given: object) -> None:
            seen.append(os.environ.get(environment.PART))

        def __enter__(self) -> "Pool":
            return self

        def __exit__(self, *given: object) -> None:
            pass

        def submit(self, *given: object) -> Future[None]:
            future: Future[None] = Future()
            future.set_result(None)
            return future

    monkeypatch.setattr(many, "ProcessPoolExecutor", Pool)
    usual = {"method": "rkd", "data.name": "cifar100", "net.backbone": "resnet32"}
    recipes = [Recipe.of({**usual, "seed": seed}) for seed in range(5)] + [Recipe.of({**usual, **changed, "seed": 5})]
    jobs = [Job(recipe, tmp_path / f"run{number}") for number, recipe in enumerate(recipes)]
    ended = many._ended(jobs, workers, None, Gpus([0]), Board(QUIET, ["run"] * 6), None, (), range(6))
    assert dict(ended) == dict.fromkeys(range(6))
    assert seen == [part]
    assert environment.PART not in os.environ


def test_runs_are_dealt_out_over_the_gpus() -> None:
    gpus = Gpus([0, 1])
    running: list[int] = []
    for place, right in enumerate((0, 1, 0, 1)):
        assert gpus.take(place, running) == right
        running.append(place)
    assert gpus.take(4, [0, 2, 3]) == 1, "where fewest are"
    assert Gpus([]).take(0, []) is None


def test_why_runs_take_turns_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    gpus = Gpus([0, 1], told.append)
    monkeypatch.setenv("PATH", str(tmp_path))
    with gpus.shared(2, divisible=True) as note:  # each has a GPU to itself
        assert not note
    with gpus.shared(3, divisible=True) as note:
        assert note == f"runs take turns on the GPU: {MPS} is not there"
    service(tmp_path, 3)
    with gpus.shared(3, divisible=True) as note:
        assert "did not start: it ended with code 3" in note
    service(tmp_path, 0)
    with gpus.shared(12, divisible=True) as note:
        assert not note
        assert os.environ[environment.PART] == "33"
    gpus.by_service = False
    with gpus.shared(12, divisible=True) as note:
        assert "let no run have the GPU" in note
        assert environment.PART not in os.environ
    assert len(told) == 3


def test_a_service_that_lets_no_run_have_the_gpu_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[bool] = []

    class Pool:  # stands in for the processes, which would need a GPU
        def __init__(self, *_: object) -> None:
            pass

        def __enter__(self) -> "Pool":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def submit(self, *_: object) -> Future[None]:
            tries.append(shared[0].by_service)
            future: Future[None] = Future()
            if tries[-1]:
                future.set_exception(many._NoGpu("gone"))
            else:
                future.set_result(None)
            return future

    shared: list[Gpus] = []

    def gpus(*given: Any) -> Gpus:
        shared.append(Gpus(*given))
        return shared[0]

    monkeypatch.setattr(many, "Gpus", gpus)
    monkeypatch.setattr(many, "ProcessPoolExecutor", Pool)
    run(recipe(), tmp_path / "run")
    assert len(run_many([Job(recipe(), tmp_path / "run")], 1, QUIET)) == 1
    assert tries == [True, False]


def test_no_service_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service(tmp_path, 1)
    for path in (str(tmp_path) + os.pathsep + os.environ["PATH"], ""):
        monkeypatch.setenv("PATH", path)
        with shared_gpu():
            assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_what_a_user_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service(tmp_path, 0)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for name, value in (("CUDA_MPS_LOG_DIRECTORY", str(tmp_path)), (environment.PART, "70")):
        monkeypatch.setenv(name, value)
        with shared_gpu(50):
            assert os.environ[name] == value
        assert os.environ[name] == value


def test_a_commit_is_that_of_the_package_and_not_of_what_encloses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        usual = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", "-C", tmp_path, *usual, *words], capture_output=True, text=True, check=True
        ).stdout

    monkeypatch.delenv("EDBL_COMMIT", raising=False)
    package = tmp_path / "edbl"
    (package / "methods").mkdir(parents=True)
    monkeypatch.setattr(edbl, "__file__", str(package / "__init__.py"))
    assert environment.commit() == ""
    git("init")
    git("commit", "--allow-empty", "-m", "of a user")
    for name in ("__init__.py", "methods/mine.py"):
        (package / name).touch()
    assert environment.commit() == ""
    git("add", "edbl")
    git("commit", "-m", "of the package")
    assert environment.commit() == git("rev-parse", "HEAD").strip()
    (tmp_path / "notes.txt").touch()
    assert environment.commit() == git("rev-parse", "HEAD").strip()
    (package / "methods" / "mine.py").write_text("changed")
    assert environment.commit().endswith("-dirty")


@pytest.mark.parametrize(("part", "name"), [(None, "GPU"), ("100", "GPU"), ("33", "GPU, 33% of it")])
def test_a_record_tells_the_part_of_the_gpu(part: str | None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU")
    monkeypatch.delenv(environment.PART, raising=False)
    if part:
        monkeypatch.setenv(environment.PART, part)
    assert environment.describe(torch.device("cuda")) == name
