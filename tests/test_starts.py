"""First tasks that runs share: only where they are the same, and nobody can tell the difference."""

import json
import typing
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from torch import Tensor

from edbl import EdblError, Recipe, Record, records, resume, run
from edbl.config import Leaf
from edbl.data import datasets
from edbl.data.stream import Stream
from edbl.engine.checkpoint import Checkpoints
from edbl.fleet import starts
from edbl.fleet.jobs import Job
from edbl.fleet.many import run_many
from tests.test_contract import CPU, METHODS, Killed, Killer, last_state, learner_of
from tests.vectors import same

QUIET = Console(quiet=True)
FIRST_LIKE = [name for name, like in starts.FIRST_TASKS.items() if like.method != name]


def recipe(method: str, **given: object) -> Recipe:
    small = {"net.backbone": "mlp", "schedule.epochs": 2, "memory": "total=40", "optim.warmup": 1}
    return Recipe.of({"method": method, "data.name": "digits", "preset": "quick", **small, **given})


def trained(recipe: Recipe, folder: Path) -> dict[str, Tensor]:
    """Return the net after the first phase of the first task."""
    stream = Stream(datasets.load("digits"), range(10), [2], CPU)
    learner_of(recipe).learn(stream[0], Checkpoints(folder))
    saved = Checkpoints(folder).load(starts.FIRST)
    assert saved is not None
    return saved.tensors


def others(leaf: Leaf, value: object) -> Iterator[object]:
    """Yield other values for an option."""
    if typing.get_origin(leaf.kind) is typing.Literal:
        yield from (other for other in typing.get_args(leaf.kind) if other != value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, float):
        yield value / 2 if value else 0.5


@pytest.mark.parametrize("method", METHODS)
def test_what_a_key_leaves_out_changes_nothing(method: str, tmp_path: Path) -> None:
    base = recipe(method)
    right = trained(base, tmp_path / "base")
    left_out = []
    for name, leaf in Recipe.keys(method).items():
        for value in ["total=20"] if name == "memory" else others(leaf, base.values()[name]):
            if name in ("device", "checkpoint_seconds", "preset") or name.startswith("evaluation."):
                continue  # where, how often, whence, and how it is judged
            if name in base.stream.idle or value == "tasks":  # the protocol, which needs a list of them
                continue
            other = recipe(method, **{name: value})
            if starts.key(other) == starts.key(base):
                left_out.append(name)
                assert same(trained(other, tmp_path / f"{name}-{value}"), right), f"{name}={value}"
    assert "memory" in left_out
    assert not {"seed", "optim.batch", "schedule.lr", "stream.tasks", "data.holdout"} & {*left_out}


@pytest.mark.parametrize("method", FIRST_LIKE)
def test_a_method_that_starts_like_another_does(method: str, tmp_path: Path) -> None:
    like = starts.FIRST_TASKS[method].method
    assert starts.key(recipe(method)) == starts.key(recipe(like))
    assert same(trained(recipe(method), tmp_path / method), trained(recipe(like), tmp_path / like))


def test_the_table_names_methods_and_options_that_there_are() -> None:
    for name, like in starts.FIRST_TASKS.items():
        for one in (name, like.method):
            assert like.options <= {key.removeprefix("options.") for key in Recipe.keys(one)}
        assert starts.FIRST_TASKS[like.method] == like


@pytest.mark.parametrize("method", sorted(set(METHODS) - set(starts.FIRST_TASKS)))
def test_a_method_that_the_table_lacks_shares_with_its_own_kind_and_options_alone(method: str) -> None:
    base = recipe(method)
    own = starts.key(base)
    assert own is not None
    assert json.loads(own)["method"] == method
    for name, leaf in Recipe.keys(method).items():
        for value in others(leaf, base.values()[name]) if name.startswith("options.") else ():
            assert starts.key(recipe(method, **{name: value})) != own, name


def test_keys() -> None:
    def keys(*recipes: Recipe) -> int:
        return len({starts.key(one) for one in recipes})

    assert keys(recipe("rkd"), recipe("edbl"), recipe("icarl"), recipe("rkd", seed=1)) == 4
    assert keys(recipe("iib-kd"), recipe("iib-kd", alpha=1.0), recipe("rkd", memory="per_class=3")) == 1
    assert keys(recipe("edbl"), recipe("edbl", first_task="plain"), recipe("edbl", beta=0.5)) == 3
    later = {"schedule.epochs": 4, "schedule.milestones": (3,)}
    assert keys(recipe("rkd", **later), recipe("rkd", **{"first.task_epochs": 4, "first.task_milestones": (3,)})) == 1
    half = [recipe("rkd", **{"stream.protocol": "base-half", "stream.tasks": tasks}) for tasks in (1, 5)]
    assert keys(*half) == 1
    assert keys(half[0], recipe("rkd", **{"stream.tasks": 1})) == 2


def test_who_writes_a_subclass_of_a_method_shares_nothing(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text('from edbl.methods.rkd import RKD\n\nclass Own(RKD):\n    name = "own"\n')
    assert starts.key(recipe(str(tmp_path / "own.py"))) is None


def check(found: Record, folder: Path, right: Record, alone: Path) -> None:
    """Compare a run with one that was made alone."""
    assert found.status == "done"
    assert found.losses == right.losses
    for readout in records.READOUTS:
        for mine, theirs in zip(found.confusions[readout], right.confusions[readout], strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert same(last_state(folder, found).tensors, last_state(alone, right).tensors)


def test_runs_with_the_same_first_task_train_it_once(tmp_path: Path) -> None:
    recipes = {
        "first": recipe("rkd"),
        "few": recipe("rkd", memory="total=20"),
        "balanced": recipe("iib-kd", alpha=1.0),
        "another": recipe("rkd", seed=1),
    }
    jobs = [Job(one, tmp_path / name) for name, one in recipes.items()]
    for job, found in zip(jobs, run_many(jobs, 2, QUIET), strict=True):
        name = job.folder.name
        shared = ["first task shared with first"] if name in ("few", "balanced") else []
        assert found.notes == shared
        check(found, job.folder, run(job.recipe, tmp_path / f"{name}-alone"), tmp_path / f"{name}-alone")


def test_a_record_tells_which_run_trained_its_first_task_where_runs_are_named_alike(tmp_path: Path) -> None:
    jobs = [Job(recipe("rkd", memory=f"total={k}"), tmp_path / f"total{k}" / "rkd-seed0") for k in (40, 20)]
    assert run_many(jobs, 2, QUIET)[1].notes == ["first task shared with total40/rkd-seed0"]


def test_where_the_first_fails_the_others_try_for_themselves(tmp_path: Path) -> None:
    jobs = [Job(recipe("rkd", memory=f"total={k}", **{"schedule.lr": 1e30}), tmp_path / str(k)) for k in (20, 40)]
    with pytest.raises(EdblError, match="2 of 2 runs failed"):
        run_many(jobs, 2, QUIET)
    assert records.read(tmp_path / "40").notes == []


def start_of(recipe: Recipe, folder: Path) -> starts.Start:
    """Make a run, and return what was kept of its first task."""
    start = starts.Start(folder / "kept", "leader")
    assert run(recipe, folder / "run", start=start).notes == []
    assert start.is_kept()
    return start


def test_a_shared_start_can_be_killed_and_resumed(tmp_path: Path) -> None:
    mine = recipe("iib-kd", alpha=1.0)
    start = start_of(recipe("rkd"), tmp_path / "leader")
    with pytest.raises(Killed):
        run(mine, tmp_path / "run", progress=Killer(5), start=start)
    found = resume(tmp_path / "run")
    assert found.notes == ["first task shared with leader"]
    check(found, tmp_path / "run", run(mine, tmp_path / "alone"), tmp_path / "alone")


def test_a_start_that_cannot_be_kept_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    start = starts.Start(tmp_path / "file" / "start", "leader")
    assert run(recipe("rkd"), tmp_path / "run", start=start).status == "done"
    assert not start.is_kept()


def test_a_damaged_start_is_not_taken(tmp_path: Path) -> None:
    start = start_of(recipe("rkd"), tmp_path / "leader")
    (start.folder / f"{starts.FIRST}.safetensors").write_bytes(b"cut")
    found = run(recipe("iib-kd"), tmp_path / "run", start=start)
    assert found.notes == []
    check(found, tmp_path / "run", run(recipe("iib-kd"), tmp_path / "alone"), tmp_path / "alone")
