"""Streams whose classes come back: what a method says that it can learn it learns, and what not it refuses."""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from edbl import EdblError, Recipe, Record, records, resume, run, users
from edbl.data.datasets import load
from edbl.data.stream import KINDS, Kind
from edbl.engine.prepare import check_stream
from edbl.memory import Budget
from edbl.methods import find_method, methods
from edbl.methods.base import Method
from tests.conftest import Cli
from tests.test_contract import METHODS, Killed, Killer, last_state
from tests.vectors import same


class Tried(NamedTuple):
    """A stream, what it has beside new classes in each task, how many are new in each, and what each task holds."""

    settings: dict[str, Any]
    kinds: frozenset[Kind]
    sizes: list[int]
    tasks: list[list[int]]


def listed(*tasks: str) -> dict[str, Any]:
    return {"stream.protocol": "tasks", "stream.tasks": [list(task) for task in tasks]}


STREAMS = {
    "returning": Tried(
        listed("012", "340", "5613"), frozenset({"returning"}), [3, 2, 2], [[0, 1, 2], [0, 3, 4], [1, 3, 5, 6]]
    ),
    "nothing new": Tried(
        listed("0123", "456", "035", "16"), KINDS, [4, 3, 0, 0], [[0, 1, 2, 3], [4, 5, 6], [0, 3, 5], [1, 6]]
    ),
    "blurry": Tried(
        {"stream.tasks": 5, "stream.blur": 0.3}, KINDS, [10, 0, 0, 0, 0], [list(range(10)) for _ in range(5)]
    ),
    "i-blurry": Tried(
        {"stream.tasks": 5, "stream.blur": 0.3, "stream.disjoint": 0.5},
        frozenset({"returning"}),
        [6, 1, 1, 1, 1],
        [[*range(6)], [*range(7)], [*range(1, 6), 7], [*range(1, 6), 8], [*range(1, 6), 9]],
    ),
}
BUDGET = "total=50"


def recipe(method: str, stream: str, **given: Any) -> Recipe:
    quick = {"net.backbone": "mlp", "memory": BUDGET, "checkpoint_seconds": 0, **STREAMS[stream].settings}
    return Recipe.build(method, data="digits", preset="quick", **(quick | given))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that runs a method on a stream, once, and gives record, folder and number of steps."""

    @cache
    def of(method: str, stream: str) -> tuple[Record, Path, int]:
        folder, counter = tmp_path_factory.mktemp("run") / "out", Killer()
        return run(recipe(method, stream), folder, progress=counter), folder, counter.steps

    return of


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_learns_the_streams_that_it_says_and_refuses_others(
    method: str, stream: str, whole: Any, tmp_path: Path
) -> None:
    kind, tried = find_method(method), STREAMS[stream]
    if not tried.kinds <= kind.streams:
        with pytest.raises(EdblError, match=rf"^{method} does not learn streams with .*; use one of .*\brkd\b"):
            run(recipe(method, stream), tmp_path / "run")
        assert not (tmp_path / "run").exists(), "before anything is learnt"
        return
    record, folder, _ = whole(method, stream)
    assert (record.status, record.task_sizes) == ("done", tried.sizes)
    read = records.read(folder)
    assert (read.tasks, read.accuracy) == (record.tasks, record.accuracy)
    if stream != "i-blurry":  # which of its classes stay whole, the seed says
        assert record.tasks == tried.tasks
    labels = last_state(folder, record).tensors["memory.y"]
    quotas = Budget.parse(BUDGET).quotas(sum(tried.sizes))
    if kind.keeps == "reservoir":  # which does not care for classes
        assert len(labels) == sum(quotas)
    else:
        assert torch.bincount(labels).tolist() == quotas
    assert record.accuracy[kind.readout][-1] > 1.5 / sum(tried.sizes), "better than chance"


@pytest.mark.parametrize("method", [name for name in METHODS if "nothing new" in find_method(name).streams])
def test_more_images_of_known_classes_are_learnt_from(method: str, whole: Any) -> None:
    accuracy = whole(method, "blurry")[0].accuracy[find_method(method).readout]
    assert accuracy[-1] > accuracy[0] + 0.03


@pytest.mark.parametrize("method", [name for name in METHODS if find_method(name).streams])
def test_killed_and_resumed_equals_uninterrupted(method: str, whole: Any, tmp_path: Path) -> None:
    stream = "nothing new" if "nothing new" in find_method(method).streams else "returning"
    record, folder, steps = whole(method, stream)
    with pytest.raises(Killed):
        run(recipe(method, stream), tmp_path / "killed", progress=Killer(round(0.9 * steps)))
    resumed = resume(tmp_path / "killed")
    assert same(last_state(folder, record).tensors, last_state(tmp_path / "killed", resumed).tensors)
    for ours, theirs in zip(resumed.confusions["cnn"], record.confusions["cnn"], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert resumed.tasks == record.tasks


def test_a_method_of_ones_own_is_for_disjoint_streams_unless_it_says_more() -> None:
    class Mine(Method):
        name = "mine"

    check_stream(Mine, frozenset())
    with pytest.raises(
        EdblError, match=r"^mine does not learn streams with classes that come back; use one of acil, bic, "
    ):
        check_stream(Mine, frozenset({"returning"}))
    with pytest.raises(
        EdblError, match=r"^mine does not learn streams with a task without a new class; use one of acil, cl"
    ):
        check_stream(Mine, KINDS)
    Mine.streams = KINDS
    check_stream(Mine, KINDS)


def test_what_methods_declare() -> None:
    only_returning = {"bic", "icarl", "lucir", "podnet", "wa"}
    neither = {"lwf", "lwf-mc"}
    for name, kind in methods().items():
        declared = frozenset() if name in neither else frozenset({"returning"}) if name in only_returning else KINDS
        assert kind.streams == declared, name
    page = (Path(__file__).parents[1] / "docs" / "protocols.md").read_text()
    assert f"| {', '.join(sorted(only_returning))} | yes | no: " in page
    assert f"| {', '.join(sorted(neither))} | no: " in page


@pytest.mark.parametrize("masked", [False, True])
def test_gem_learns_returning_classes_among_those_of_the_task(masked: bool, tmp_path: Path) -> None:
    record = run(recipe("gem", "nothing new", **{"options.masked": masked}), tmp_path / "run")
    assert record.accuracy["cnn"][-1] > 0.5


def test_streams_from_the_command_line(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("edbl.report.files.write_report", lambda runs, out: out)  # it takes longer than all else
    quick = ("--preset", "quick", "--set", "backbone=mlp", "--set", "optim.batch=1000")
    done = cli("run", "er", *quick, "--set", "tasks=[[0,1],[2],[0,2]]", "--protocol", "tasks", "--out", "back")
    assert done.code == 0, done
    assert records.read(Path("back")).tasks == [[0, 1], [2], [0, 2]]
    done = cli("run", "rkd", *quick, "--order", "seed", "--seeds", 2, "--set", "shots=5", "--out", "orders")
    assert done.code == 0, done
    found = [records.read(folder) for folder in sorted(Path("orders").glob("rkd-*"))]
    assert [record.order for record in found] == ["seed", "seed"]
    assert found[0].classes != found[1].classes
    refused = cli("run", "lwf", *quick, "--set", "blur=0.1", "--out", "no")
    assert refused.code == 2
    assert "lwf does not learn streams with a task without a new class; use one of acil, cldr," in refused.err
    assert not Path("no").exists()


def own(parts: Any, folder: Path, seed: int = 0, **given: Any) -> Record:
    quick = {"net.backbone": "mlp", "memory": BUDGET, "checkpoint_seconds": 0, "seed": seed}
    return run(Recipe.build("rkd", data="digits", preset="quick", **quick), folder, stream=parts, **given)


def test_a_stream_of_ones_own_runs_and_goes_on_with_the_same_alone(tmp_path: Path) -> None:
    labels = load("digits").train.y
    first, second = ((labels % 2 == k).nonzero().squeeze(1) for k in (1, 0))
    parts = [first[::2], second.numpy(), first[1::2].tolist()]
    counter = Killer()
    whole = own(parts, tmp_path / "whole", progress=counter)
    assert (whole.protocol, whole.classes, whole.task_sizes) == ("own", list("1357902468"), [5, 5, 0])
    assert whole.tasks == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [0, 1, 2, 3, 4]]
    with pytest.raises(Killed):
        own(parts, tmp_path / "killed", progress=Killer(counter.steps - 3))
    with pytest.raises(EdblError, match="was given its stream in Python; go on there"):
        resume(tmp_path / "killed")
    with pytest.raises(EdblError, match=r"the stream is not what run .* began with"):
        resume(tmp_path / "killed", stream=parts[:2])
    resumed = resume(tmp_path / "killed", stream=parts)
    assert same(last_state(tmp_path / "whole", whole).tensors, last_state(tmp_path / "killed", resumed).tensors)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (5, "a stream is a list with the numbers of each task's training images"),
        ("012", "a stream is a list with the numbers of each task's training images"),
        ([], "the stream has no task"),
        ([[0, 1], []], "task 2 of the stream has no training image"),
        ([[0, 1], torch.empty(0, dtype=torch.int64)], "task 2 of the stream has no training image"),
        ([[0, 1], [0.5]], "task 2 of the stream is not a list of whole numbers, those of training images"),
        ([[0, 1], ["a"]], "task 2 of the stream is not a list of whole numbers, those of training images"),
        ([[0, 1], [[1, 2], [3]]], "task 2 of the stream is not a list of whole numbers, those of training images"),
        ([[0, 1], [True]], "task 2 of the stream is not a list of whole numbers, those of training images"),
        ([[0, 1], 3], "task 2 of the stream is not a list of whole numbers, those of training images"),
        ([[0, -1]], "task 1 of the stream has numbers that are no training images': 0 to 1441"),
        ([[0, 1442]], "task 1 of the stream has numbers that are no training images': 0 to 1441"),
    ],
)
def test_wrong_streams_of_ones_own(parts: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(EdblError) as caught:
        own(parts, tmp_path / "run")
    assert str(caught.value) == message
    assert not (tmp_path / "run").exists()


def test_a_stream_of_ones_own_is_not_held_out_nor_named_in_a_shell(cli: Cli, tmp_path: Path) -> None:
    with pytest.raises(EdblError, match=r"with data\.holdout training images have other numbers"):
        run(Recipe.build("rkd", data="digits", **{"data.holdout": 0.1}), tmp_path / "run", stream=[[0, 1]])  # type: ignore[arg-type]
    refused = cli("run", "rkd", "--protocol", "own", "--out", tmp_path / "run")
    assert refused.code == 2
    assert "protocol own needs stream.given, as in FILE.py:make" in refused.err


STREAM = """
def stream(labels):
    even, odd = ((labels % 2 == k).nonzero().squeeze(1) for k in (0, 1))
    labels.zero_()  # its own copy
    return [odd[::2], even, odd[1::2]]
"""


def test_a_stream_from_a_file(cli: Cli, tmp_path: Path) -> None:
    file, out = tmp_path / "mine.py", tmp_path / "run"
    file.write_text(STREAM)
    quick = ["--preset", "quick", "--set", "net.backbone=mlp", "--set", "schedule.epochs=2"]
    assert cli("run", "rkd", "--stream", f"{file}:stream", *quick, "--out", out).code == 0
    record = records.read(out)
    assert (record.protocol, record.classes, record.task_sizes) == ("own", list("1357902468"), [5, 5, 0])
    assert record.recipe["stream.given"] == f"{file}:stream"
    assert record.code.keys() == {"stream.given"}
    again = ["resume", out, "--stream", f"{file}:stream"]
    record.status = "running"
    records.write(record, out)
    users._named.clear()  # as in another process
    assert "which would run; name it too" in cli("resume", out).err
    file.write_text(STREAM.replace("odd[1::2]", "odd[2::2]"))
    assert f"{file}:stream has changed since" in cli(*again).err
    assert "are not those that run" in cli(*again, "--changed").err
    file.write_text(STREAM)
    assert cli(*again).code == 0
    assert "to protocol base0" in cli("run", "rkd", "--stream", f"{file}:stream", "--protocol", "base0").err
    assert f"say which function of {file} makes the stream" in cli("run", "rkd", "--stream", file).err


def test_a_stream_that_draws_follows_the_seed(tmp_path: Path) -> None:
    def halves(labels: Tensor) -> list[Tensor]:
        return list(torch.randperm(len(labels)).split(-(-len(labels) // 2)))

    kept: list[str] = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(kept))
        kept.append(own(halves, tmp_path / str(len(kept)), seed=seed).data_fingerprint)
    assert kept[0] == kept[1] != kept[2]
    torch.manual_seed(7)
    record = records.read(tmp_path / "0")
    record.status = "running"
    records.write(record, tmp_path / "0")
    assert resume(tmp_path / "0", stream=halves).status == "done"


def test_a_stream_by_a_function_of_all_labels(tmp_path: Path) -> None:
    def halves(labels: Tensor) -> list[Tensor]:
        return [(labels < 5).nonzero().squeeze(1), (labels >= 5).nonzero().squeeze(1)]

    record = own(halves, tmp_path / "run")
    assert (record.recipe["stream.given"], record.task_sizes) == ("given:halves", [5, 5])
    with pytest.raises(EdblError, match=r"the stream is not what run .* began with"):
        resume(tmp_path / "run", stream=[[0, 1]])
    assert resume(tmp_path / "run", stream=halves).finished == 2
