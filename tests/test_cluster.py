"""Runs on a cluster: the bits of one machine in the same folders, though nodes die, or whoever gave them there."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from rich.console import Console

from edbl import EdblError, Recipe, records, run, users
from edbl.data import datasets
from edbl.fleet import cluster as clusters
from edbl.fleet.afar import Versions
from edbl.fleet.board import Board
from edbl.fleet.cluster import Cluster, kind_of, ray_module, usual_kind
from edbl.fleet.jobs import Ended, Job
from edbl.fleet.many import Where, _Results, run_many
from edbl.fleet.parcels import Packer, Parcel, as_arrays, as_dataset, pack, unpack
from edbl.logs import LOGS, quiet
from edbl.records import Record
from edbl.store import lock
from edbl.studies import small
from edbl.studies.study import SHARED
from edbl.tuning.storage import optuna, storage
from tests.conftest import Cli
from tests.test_logs import agrees
from tests.test_logs import read as read_log
from tests.test_logs import recipe as logged_recipe
from tests.test_many import BROKEN, wait_for
from tests.test_queue import TABLE
from tests.test_studies import QUICK as QUICK_STUDY
from tests.test_studies import STUDY

QUIET = Console(quiet=True)
STORE = 100 * 2**20  # bytes of a node's store
QUICK = ["--data", "digits", "--preset", "quick", "--set", "net.backbone=mlp", "--set", "schedule.epochs=1"]


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Any]:
    """Two nodes with a core each, which only this machine can reach."""
    pytest.importorskip("ray")
    ray_module()
    from ray.cluster_utils import Cluster as Nodes

    clusters.stay_here()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("EDBL_COMMIT", "a" * 40)
        place = {"node_ip_address": "127.0.0.1", "object_store_memory": STORE}
        nodes: Any = Nodes(True, head_node_args={"num_cpus": 1, "include_dashboard": False, **place})
        nodes.add_node(num_cpus=1, **place)
        yield nodes
        nodes.shutdown()


def recipe(method: str = "rkd", seed: int = 0, memory: str = "total=40", backbone: str = "mlp") -> Recipe:
    small = {
        "net.backbone": backbone,
        "memory": memory,
        "schedule.epochs": 2,
        "checkpoint_seconds": 0.0,
    }
    return Recipe.build(method, data="digits", preset="quick", seed=seed, **small)


def said(record: Path) -> dict[str, object]:
    """Return what a record says but times and host, which has no place in it."""
    stored: dict[str, object] = json.loads(record.read_text())
    return {k: v for k, v in stored.items() if k not in ("started", "seconds", "timings", "sha256")}


def assert_same_files(one: Path, other: Path) -> None:
    """Compare two folders of runs byte by byte, but for the seconds in their JSON."""
    folders = one, other
    names = [
        {path.relative_to(top) for path in top.rglob("*") if path.is_file() and path.name != "report.html"}
        for top in folders
    ]
    assert names[0] == names[1]
    for name in names[0]:
        paths = [top / name for top in folders]
        if name.name == records.RECORD:
            assert said(paths[0]) == said(paths[1])
        elif name.suffix == ".json":
            tensors = [json.loads(path.read_text())["tensors"] for path in paths]
            assert tensors[0] == tensors[1]
        else:
            assert paths[0].read_bytes() == paths[1].read_bytes(), name


def test_records_have_the_bytes_of_one_machine(two_nodes: Any, tmp_path: Path) -> None:
    recipes = [
        *(recipe("edbl", memory=memory) for memory in ("total=20", "total=40")),  # with one first task
        *(recipe("icarl", seed, backbone="small") for seed in (0, 1)),
    ]
    for where in (Where(two_nodes.address), Where()):
        jobs = [Job(one, tmp_path / (where.on and "far") / f"run{k}") for k, one in enumerate(recipes)]
        made = run_many(jobs, 2, QUIET, where=where)
        assert [record.status for record in made] == ["done"] * 4
        assert made[1].notes == ["first task shared with run0"]
    (tmp_path / "near").mkdir()
    for k in range(4):
        (tmp_path / f"run{k}").rename(tmp_path / "near" / f"run{k}")
    assert_same_files(tmp_path / "far", tmp_path / "near")


SLOW = """
import time
from pathlib import Path
from edbl.methods.rkd import RKD

class Slow(RKD):
    name = "slow"

    def loss(self, batch):
        if (Path(__file__).parent / "slowly").exists():
            time.sleep(0.01)
        return super().loss(batch)
"""


def reached(folder: Path, tasks: str) -> bool:
    """Tell whether a run is in the middle of one of some tasks."""
    return any(folder.glob(f"checkpoints/task-{tasks}-phase-0-epoch-*.json"))


def test_neither_who_gave_runs_there_nor_a_node_that_dies_loses_any(
    two_nodes: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "slowly").touch()
    out, near = tmp_path / "far", tmp_path / "near"
    command = [sys.executable, "-m", "edbl", "run", str(tmp_path / "slow.py"), "--seeds", "2", "--data", "digits"]
    settings = ["net.backbone=mlp", "schedule.epochs=8", "checkpoint_seconds=0.0"]
    command += ["--preset", "quick", *(word for setting in settings for word in ("--set", setting))]
    folders = [out / f"slow-seed{seed}" for seed in (0, 1)]
    with (tmp_path / "said").open("w") as told:
        process = subprocess.Popen([*command, "--on", two_nodes.address, "--out", out], stdout=told, stderr=told)
        wait_for("both have begun", 120, lambda: all(reached(folder, "[0-9]") for folder in folders))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, (tmp_path / "said").read_text()
    began = [records.read(folder) for folder in folders]
    assert [record.status for record in began] == ["running"] * 2

    def kill() -> None:
        wait_for("both are in later tasks", 120, lambda: all(reached(folder, "[1-9]") for folder in folders))
        two_nodes.remove_node(two_nodes.worker_nodes.copy().pop(), allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    # What the same command would do, but for its report.
    users.trust({"method": str(tmp_path / "slow.py")})
    jobs = [Job(Recipe.read(folder / "recipe.toml"), folder) for folder in folders]
    made = run_many(jobs, 2, Console(), where=Where(two_nodes.address))
    killer.join()
    assert capsys.readouterr().out.count("its node died; it continues elsewhere") == 1
    assert [record.started for record in made] == [record.started for record in began], "none began anew"
    (tmp_path / "slowly").unlink()
    for job in jobs:
        run(job.recipe, near / job.folder.name)
    assert_same_files(out, near)


DATA = """
import os
from pathlib import Path
import torch

def make():
    (Path(__file__).parent / f"by-{os.getpid()}").touch()
    x = torch.arange(40 * 64, dtype=torch.uint8).reshape(40, 1, 8, 8)
    y = torch.arange(4).repeat(10)
    return x, y, x, y
"""
FATAL = """
import os
from edbl.methods.rkd import RKD

class Fatal(RKD):
    name = "fatal"

    def phases(self, task):
        os._exit(3)
"""
GREEDY = """
import os
import torch
from edbl.methods.rkd import RKD

class Greedy(RKD):
    name = "greedy"

    def phases(self, task):
        share = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // len(os.sched_getaffinity(0))
        torch.empty(max(share, 2**31) + 2**20, dtype=torch.uint8)
        yield from super().phases(task)
"""


def test_data_are_loaded_once_and_code_of_users_fails_as_at_home(
    two_nodes: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edbl.fleet.dispatch.TRIES", 2)
    for name, text in (("data", DATA), ("broken", BROKEN), ("fatal", FATAL), ("greedy", GREEDY)):
        (tmp_path / f"{name}.py").write_text(text)
    few = {"net.backbone": "mlp", "schedule.epochs": 1, "optim.batch": 8, "memory": "total=4"}
    few |= {"stream.protocol": "base-step", "stream.base": 2, "stream.step": 2}
    methods = ("finetune", *(str(tmp_path / f"{name}.py") for name in ("broken", "fatal", "greedy")))
    data = f"{tmp_path / 'data.py'}:make"
    jobs = [
        Job(Recipe.build(name, data=data, preset="quick", **few), tmp_path / "runs" / Path(name).stem)
        for name in methods
    ]
    with pytest.raises(EdblError, match="3 of 4 runs failed: broken, fatal, greedy; the others are done"):
        run_many(jobs, 4, Console(), logged=["tensorboard"], where=Where(two_nodes.address))
    assert [path.name for path in tmp_path.glob("by-*")] == [f"by-{os.getpid()}"]
    assert list((jobs[0].folder / "tensorboard").iterdir())
    told = capsys.readouterr().out
    assert "assert not batch" in told
    assert "fatal: The worker died unexpectedly" in told
    assert ", 2 times; it can continue" in told
    assert sys.platform != "linux" or "can't allocate memory" in told
    assert records.read(jobs[1].folder).status == "failed"
    with lock(jobs[2].folder):  # nobody has it any more
        assert not (jobs[2].folder / "pulse.json").exists()


def test_a_node_with_another_version_is_refused_or_noted(
    two_nodes: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Versions, "here", lambda: Versions("0.1.0 (bbbbbbbbbbbb)", torch.__version__))
    jobs = [Job(recipe(), tmp_path / "run")]
    odd = r"edbl 0\.1\.0 \(aaaaaaaaaaaa\), not 0\.1\.0 \(bbbbbbbbbbbb\)"
    none = f"no node is left: the last one has {odd}\nmake them alike, or set cluster.mixed"
    with pytest.raises(EdblError, match=none):
        run_many(jobs, 1, Console(), where=Where(two_nodes.address))
    assert capsys.readouterr().out.count("is refused, for it has edbl 0.1.0 (aaaaaaaaaaaa)") >= 1
    [record] = run_many(jobs, 1, QUIET, where=Where(two_nodes.address, mixed=True))
    assert [re.fullmatch(f"made with {odd}, as most of its list", note) is not None for note in record.notes] == [True]


def test_logs_are_written_where_the_command_runs(
    two_nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of runs at the same time too, and of wandb and MLflow, which write beside the folders of runs."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    jobs = [Job(replace(logged_recipe(), seed=seed), tmp_path / f"seed{seed}" / "run") for seed in (0, 1)]
    made = run_many(jobs, 2, QUIET, logged=list(LOGS), where=Where(two_nodes.address))
    for job, record in zip(jobs, made, strict=True):
        for name in LOGS:
            agrees(read_log(name, job.folder), record)
        assert not (job.folder / "wandb.jsonl").exists()
    with quiet():
        import_module("wandb").teardown()


SEARCH = """
sampler = "random"

[settings]
schedule.epochs = 2
checkpoint_seconds = 0.0

[space]
schedule.lr = { low = 1e-4, high = 0.3, log = true }
"""


def searched(folder: Path) -> list[tuple[object, ...]]:
    """Return what is in the storage of a search, trial by trial."""
    trials = optuna().load_study(study_name="edbl", storage=storage(folder, None)).trials
    return [(one.state.name, one.params, one.value, one.intermediate_values) for one in trials]


def test_a_search_has_the_trials_of_one_machine_though_its_process_is_killed(
    two_nodes: Any, tmp_path: Path, cli: Cli
) -> None:
    pytest.importorskip("optuna")
    (tmp_path / "search.toml").write_text(SEARCH)
    words = ["tune", "finetune", "--data", "digits", "--preset", "quick", "--tasks", "3", "--set", "net.backbone=mlp"]
    words += ["--search", str(tmp_path / "search.toml"), "--seed", "2", "--trials", "7"]
    far, near = tmp_path / "far", tmp_path / "near"
    elsewhere = ["--on", two_nodes.address, "--at-once", "1", "--log", "tensorboard", "--out", str(far)]
    with (tmp_path / "said").open("w") as told:
        process = subprocess.Popen([sys.executable, "-m", "edbl", *words, *elsewhere], stdout=told, stderr=told)
        wait_for("one trial is over", 120, (far / "trials" / "0001" / records.RECORD).exists)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, (tmp_path / "said").read_text()
    done = cli(*words, *elsewhere)
    assert done.code == 0, done.err
    assert "trial 0:" not in done.out
    assert "trial 6:" in done.out
    assert cli(*words, "--out", near).code == 0
    assert searched(far) == searched(near)
    assert {one[0] for one in searched(near)} == {"COMPLETE", "PRUNED"}
    assert (far / "best.toml").read_text().partition("# begun")[0] == (near / "best.toml").read_text().partition(
        "# begun"
    )[0]
    assert list((far / "trials" / "0000" / "tensorboard").iterdir())
    for path in (far / "trials").glob("*/tensorboard/*"):
        path.unlink()
    assert_same_files(far / "trials", near / "trials")
    assert not list((far / "workers").iterdir())


# With a cluster that the command starts.


def test_a_study_on_a_cluster_keeps_what_it_keeps_here(tmp_path: Path, cli: Cli) -> None:
    pytest.importorskip("ray")
    study = tmp_path / "temperature.toml"
    study.write_text(STUDY.partition("[candidates.mixed]")[0])
    (tmp_path / SHARED).write_text(QUICK_STUDY)
    for name, words in (("far", ["--on", "local"]), ("near", ["--at-once", "1"])):
        done = cli("study", study, *words, "--runs", tmp_path / f"runs-{name}", "--results", tmp_path / name)
        assert done.code == 0, done.err
        assert ("Ray cluster of 1 node" in done.out) == (name == "far")
        assert "rule: The best sum of both classifiers." in done.out
    assert len(list((tmp_path / "near").rglob(records.RECORD))) == 2
    assert_same_files(tmp_path / "far", tmp_path / "near")


def test_the_small_scale_on_a_cluster_keeps_what_it_keeps_here(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(small, "find", {TABLE.name: replace(TABLE, rows=TABLE.rows[:2])}.__getitem__)
    for name, words in (("far", ["--on", "local"]), ("near", ["--at-once", "1"])):
        places = ["--runs", tmp_path / f"runs-{name}", "--results", tmp_path / name]
        done = cli("reproduce", TABLE.name, "--scale", "small", *words, *places)
        assert done.code == 0, done.err
        assert ("Ray cluster of 1 node" in done.out) == (name == "far")
        assert done.out.count(": done") == 2
        assert TABLE.title in done.out
    notes = [records.read(path.parent).notes for path in sorted((tmp_path / "far").rglob(records.RECORD))]
    assert [any("first task shared with" in note for note in told) for told in notes] == [True, False]
    assert_same_files(tmp_path / "far", tmp_path / "near")


# Without a cluster.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "ray://head:10001"], "cluster.address (--on) = ray://head:10001: give auto, local, or HOST:PORT"),
        (["--on", "somewhere"], "cluster.address (--on) = somewhere: give auto, local, or HOST:PORT"),
        (["--on", " "], "--on is empty"),
        (["--mixed"], "--mixed is about the nodes of a cluster; give --on"),
    ],
)
def test_mistakes_are_explained(words: Sequence[str], message: str, cli: Cli, tmp_path: Path) -> None:
    done = cli("run", "rkd", *QUICK, "--out", tmp_path / "run", *words)
    assert (done.code, message in done.err) == (2, True), done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--at-once", "2"], "--at-once is about trials on a cluster; give --on"),
        (["--mixed"], "--mixed is about the nodes of a cluster; give --on"),
        (["--on", "somewhere"], "cluster.address (--on) = somewhere: give auto, local, or HOST:PORT"),
    ],
)
def test_mistakes_of_searches_are_explained(words: Sequence[str], message: str, cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    done = cli("tune", "rkd", "--preset", "quick", *words, "--out", tmp_path / "search")
    assert (done.code, message in done.err) == (2, True), done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "search").exists()


def test_a_cluster_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = cli("run", "rkd", *QUICK, "--out", tmp_path / "run", "--on", address)
    assert done.code == 2
    assert f"no Ray cluster at {address}: " in done.err
    assert "let cluster.address (--on) be local" in done.err


def test_ray_is_an_extra(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = cli("run", "rkd", *QUICK, "--out", tmp_path / "run", "--on", "local")
    assert (done.code, done.err) == (2, "error: runs on a cluster need Ray: run `pip install 'edbl[ray]'`\n")


def test_what_a_run_takes_and_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ray:
        there: ClassVar[list[dict[str, object]]] = []

        def nodes(self) -> list[dict[str, object]]:
            return self.there

    def node(name: str, **resources: float) -> dict[str, object]:
        return {"NodeID": name, "Alive": True, "Resources": {k.replace("__", ":"): v for k, v in resources.items()}}

    one = Cluster(Ray(), mixed=False, say=lambda text: None)
    Ray.there = [node("a", CPU=4)]
    assert one.demand("auto") == one.demand("cpu") == {"num_cpus": 1, "num_gpus": 0}
    assert one.demand("cuda") == {"num_cpus": 1, "num_gpus": 0.1666}, "of which six fit, in four digits"
    assert one.waits_for(one.options("auto")) == "for a CPU to be free"
    assert one.waits_for(one.options("cuda")) == "for a node with a GPU; there is none"
    assert str(one) == "Ray cluster of 1 node, 4 CPUs, 0 GPUs"
    Ray.there += [node("b", CPU=8, GPU=1, accelerator_type__T4=1), node("c", GPU=4, accelerator_type__H100=1)]
    assert one.demand("auto") == one.demand("cuda")
    assert one.waits_for(one.options("auto")) == "for 1/6 of a GPU to be free"
    assert one.unlike() == {"b": "a GPU of kind T4, not H100"}
    one.refused["b"] = "old"
    assert one.options("auto")["label_selector"] == {"ray.io/node-id": "!in(b)"}
    assert (kind_of({"CPU": 1.0}), usual_kind([])) == ("", "")
    assert (one.room("cpu"), one.room("auto")) == (12, 12), "30 shares of GPUs, and 12 cores"
    one.check_left()
    Ray.there = [node("b", CPU=8), node("head")]
    with pytest.raises(EdblError, match="no node is left: the last one has old\n"):
        one.check_left()
    one.refused.clear()
    assert one.room("cpu") == 8
    one.check_left()
    Ray.there = []
    assert one.room("auto") == 1
    with pytest.raises(EdblError, match="all of the cluster are gone"):
        one.check_left()


def test_versions_that_differ_are_named() -> None:
    mine = Versions("0.1.0 (aaaa)", "2.13.0")
    assert mine.odd(mine) == ""
    assert mine.odd(Versions("0.1.0 (aaaa)", "2.11.0")) == "PyTorch 2.11.0, not 2.13.0"
    assert mine.odd(Versions("0.2.0", "2.11.0")) == "edbl 0.2.0, not 0.1.0 (aaaa), PyTorch 2.11.0, not 2.13.0"


def test_what_is_packed_is_unpacked_and_only_what_is_new(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    run(recipe(), there)
    for name in (".lock", "pulse.json", f".record.json.{'0' * 32}.tmp"):
        (there / name).touch()
    packer = Packer(there)
    first = packer.pack()
    assert first is not None
    assert not {".lock", "pulse.json"} & first.names
    unpack(first, here)
    (here / ".lock").touch()
    (there / f".record.json.{'0' * 32}.tmp").unlink()
    (there / "pulse.json").unlink()
    assert_same_files(there, here)
    assert packer.pack() is None
    (there / "checkpoints" / "task-4.json").unlink()
    (there / "checkpoints" / "task-9.json").write_text("new")
    second = packer.pack()
    assert second is not None
    assert second.files == {"checkpoints/task-9.json": b"new"}
    unpack(second, here)
    assert {path.name for path in (here / "checkpoints").iterdir()} == {"task-9.json", "task-4.safetensors"}
    assert pack(tmp_path / "nowhere") == Parcel({}, frozenset())


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out", ".lock", "checkpoints/pulse.json", "a\\b"])
def test_files_that_no_run_has_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(EdblError, match="which no run has"):
        unpack(Parcel({name: b""}, frozenset([name])), tmp_path / "run")
    assert not (tmp_path / "out").exists()


def test_whatever_is_written_before_a_kill_a_run_goes_on_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    monkeypatch.setattr("edbl.fleet.parcels.write_atomic", lambda path, data: written.append(path.name))
    names = ["record.json", "checkpoints/task-0.json", "checkpoints/task-0.safetensors", "recipe.toml"]
    parcel = Parcel(dict.fromkeys(names, b""), frozenset(names))
    unpack(parcel, tmp_path)
    assert written[0] == "record.json", "a folder with anything else and no record could not go on"
    written.clear()
    (tmp_path / "record.json").touch()
    unpack(parcel, tmp_path)
    assert written == ["task-0.safetensors", "task-0.json", "recipe.toml", "record.json"]


def test_a_data_set_is_the_same_as_arrays() -> None:
    digits = datasets.load("digits")
    arrays = as_arrays(digits)
    for part in (arrays.train, arrays.test):
        for array in part.values():
            array.flags.writeable = False  # as it comes out of Ray's store
    again = as_dataset(arrays)
    assert (again.name, again.classes, again.notes) == (digits.name, digits.classes, digits.notes)
    assert (again.train.x == digits.train.x).all()
    assert (again.test.y == digits.test.y).all()
    with datasets.holding("elsewhere/photos", 0, False, again):
        assert datasets.load("elsewhere/photos") is again
    with pytest.raises(EdblError):
        datasets.load("elsewhere/photos")


def test_the_table_has_every_run_and_why_it_waits() -> None:
    console = Console(width=110, height=7, force_terminal=True, color_system=None, record=True, file=io.StringIO())
    board = Board(console, [f"run{k}" for k in range(6)])
    board.run(1, 0.25, "node-7", "task 1 of 2: train")
    board.wait(2, "for its first task, which run1 trains")
    board.end(3, "failed", "the loss became nan\nat home")
    for place in (4, 5):
        board.end(place, "done")
    console.print(board)
    told = console.export_text()
    assert "runs: 1 running, 2 waiting, 1 failed, 2 done" in told
    assert "for its first task, which run1 trains" in told
    assert "25%" in told
    assert "node-7" in told
    assert "at home" not in told
    assert "run4" not in told
    assert "and 2 more" in told


# A list without Ray: who comes takes what is left.


def test_a_run_that_another_process_has_is_left_to_it(cli: Cli, tmp_path: Path) -> None:
    command = ["run", "rkd", *QUICK, "--seeds", 2, "--out", tmp_path / "runs"]
    (tmp_path / "runs" / "rkd-seed0").mkdir(parents=True)
    with lock(tmp_path / "runs" / "rkd-seed0"):
        done = cli(*command)
    assert (done.code, "1 of 2 runs are with other processes; the others are done" in done.err) == (75, True)
    planned = cli(*command, "--dry-run")
    assert planned.code == 0
    assert "2 runs: 1 done, 0 unfinished, 1 missing" in planned.out
    assert not (tmp_path / "runs" / "rkd-seed0" / records.RECORD).exists()


@pytest.mark.parametrize("keep_going", [True, False])
def test_one_that_fails_stops_the_others_if_that_is_wanted(keep_going: bool, tmp_path: Path) -> None:
    jobs = [Job(recipe(seed=seed), tmp_path / f"run{seed}") for seed in (0, 1)]
    made: list[Job] = []
    results = _Results(jobs, QUIET, made.append, keep_going)
    stopped = []

    def ends(places: object) -> Ended:
        try:
            yield 0, EdblError("bad")
            yield 1, None
        except GeneratorExit:
            stopped.append(True)
            raise

    results.collect(ends)
    assert (len(made), len(stopped)) == (1, 0) if keep_going else (0, 1)
    with pytest.raises(EdblError, match="1 of 2 runs failed: run0" + ("; the others are done" if keep_going else "$")):
        results.records()


def test_a_dry_run_names_shared_first_tasks(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", "edbl", "re-mkd", *QUICK[:-2], "--out", tmp_path / "runs", "--dry-run")
    assert done.code == 0, done.err
    assert f"from {tmp_path / 'runs' / 'edbl-seed0'}" in done.out
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_two_processes_share_a_list(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edbl", "run", "rkd", "--seeds", "4", *QUICK, "--at-once", "1"]
    command += ["--out", str(tmp_path / "runs")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    told = [process.communicate(timeout=120)[0] for process in both]
    assert {process.returncode for process in both} <= {0, 75}, told
    made: list[Record] = [records.read(tmp_path / "runs" / f"rkd-seed{seed}") for seed in range(4)]
    assert {record.status for record in made} == {"done"}
