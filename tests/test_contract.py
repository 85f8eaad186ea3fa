"""What every method must do, whatever it is: over the registry, both protocols, tiny images."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from edbl import EdblError, Recipe, Record, records, resume, run
from edbl.data import datasets
from edbl.data.images import Dataset, Images
from edbl.data.stream import Stream, Task
from edbl.engine.checkpoint import Checkpoints, Saved
from edbl.engine.fit import Loop
from edbl.engine.learner import Learner
from edbl.engine.progress import Count, Progress
from edbl.memory import Budget
from edbl.methods import find_method, methods
from edbl.nets.heads import CorrectedHead, CosineHead, ProxyHead
from edbl.nets.net import Head, LinearHead, Net
from edbl.training import Training
from tests.conftest import Cli
from tests.vectors import same

CPU = torch.device("cpu")
METHODS = sorted(methods())
PROTOCOLS = {"base0": 3, "base-half": 2}
MEMORY = {"base0": "total=25", "base-half": "per_class=3"}


class Whole(NamedTuple):
    """An uninterrupted run."""

    record: Record
    folder: Path
    steps: int


Baseline = dict[tuple[str, str], Whole]


def recipe(method: str, protocol: str = "base0", seed: int = 0, **given: object) -> Recipe:
    quick: dict[str, object] = {
        "stream.protocol": protocol,
        "stream.tasks": PROTOCOLS[protocol],
        "memory": MEMORY[protocol],
        "net.backbone": "mlp",
        "schedule.epochs": 4,
        "schedule.milestones": (3,),
        "checkpoint_seconds": 0,
        "seed": seed,
    }
    if "options.balance.epochs" in Recipe.keys(method):
        quick |= {"options.balance.epochs": 3, "options.balance.milestones": (2,)}
    return Recipe.build(method, data="digits", preset="quick", **(quick | given))


def learner_of(recipe: Training, progress: Progress | None = None) -> Learner:
    """Return what the engine builds for a recipe of the digits."""
    return Learner(recipe, (1, 8, 8), recipe.data.transform(CPU), CPU, progress or Progress())


class Learnt(NamedTuple):
    """A learner after two tasks of five digits each, and what the second one started from."""

    learner: Learner
    old: Net
    exemplars: Images
    test: Images


def learnt(method: str, folder: Path, progress: Progress | None = None, /, **given: object) -> Learnt:
    """Learn two tasks, which takes less than a second."""
    quick: dict[str, Any] = {"memory": "total=50", "checkpoint_seconds": 1000, **given}
    learner = learner_of(recipe(method, **quick), progress)
    stream = Stream(datasets.load("digits"), range(10), [5, 5], CPU)
    learner.learn(stream[0], Checkpoints(folder))
    old, exemplars = learner.net.frozen(), learner.memory.images
    learner.learn(stream[1], Checkpoints(folder))
    learner.net.eval()
    return Learnt(learner, old, exemplars, stream.test(1))


def last_state(folder: Path, record: Record) -> Saved:
    saved = Checkpoints(folder / "checkpoints").load(f"task-{len(record.task_sizes) - 1}")
    assert saved is not None
    return saved


class Killed(BaseException):
    """Stands for a process that ends without a word."""


class Killer(Progress):
    """Count steps, and end the process at one of them."""

    def __init__(self, at: int = -1) -> None:
        self.steps = 0
        self.at = at

    def step(self, losses: Tensor, number: int, images: int) -> None:
        self.steps += 1
        if self.steps == self.at:
            raise Killed


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Baseline:
    """One uninterrupted run of each method and protocol, made when first asked for."""

    class Runs(Baseline):
        def __missing__(self, key: tuple[str, str]) -> Whole:
            folder, counter = tmp_path_factory.mktemp("run") / "out", Killer()
            self[key] = Whole(run(recipe(*key), folder, progress=counter), folder, counter.steps)
            return self[key]

    return Runs()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("method", METHODS)
def test_run_ends_with_a_whole_record(method: str, protocol: str, baseline: Baseline) -> None:
    record, folder, _ = baseline[method, protocol]
    assert record.status == "done"
    assert record.method == method
    assert record.task_sizes == ([4, 3, 3] if protocol == "base0" else [5, 3, 2])
    test = datasets.load("digits").test
    for readout in ("cnn", "nme"):
        seen = 0
        for size, confusion in zip(record.task_sizes, record.confusions[readout], strict=True):
            seen += size
            assert confusion.shape == (seen, seen)
            assert confusion.sum(1).tolist() == [int((test.y == k).sum()) for k in range(seen)]
        assert record.accuracy[readout][0] > 0.5, "the first task must be learnt"
        # Fine-tuning knows its last task only: 3 or 2 classes of 10.
        assert record.accuracy[readout][-1] > 0.15, "better than chance"
    assert len(record.seconds) == len(record.timings) == 3
    read = records.read(folder)
    assert read.accuracy == record.accuracy
    assert read.recipe["method"] == method


@pytest.mark.parametrize("method", METHODS)
def test_a_bar_ends_at_its_end(method: str, tmp_path: Path) -> None:
    other_first: dict[str, Any] = {"first.task_epochs": 3, "first.task_milestones": (2,)}
    counter = Count()
    run(recipe(method, **other_first), tmp_path / "run", progress=counter)
    assert counter.share == 1
    learner = learnt(method, tmp_path, counter, **other_first).learner
    known = learner.memory.images
    counter.run("classes learnt again", [0, 0, learner.epochs(new=False, first=False)], 2)
    learner.refresh(Task(2, 0, 10, known, stream_train=known), Checkpoints(tmp_path / "again"))
    assert counter.share == 1


@pytest.mark.parametrize("again", [False, True])
def test_a_gpu_repeats_its_bits_and_its_memory_may_end(
    again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    learner = learner_of(recipe("rkd"))
    task = Stream(datasets.load("digits"), range(10), [5, 5], CPU)[0]
    if again:
        learner.learn(task, Checkpoints(tmp_path / "first"))
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(Loop, "fit", full)
    with pytest.raises(EdblError, match=r"out of memory on CPU .* with batches of 32 images .*\nlower optim\.batch"):
        (learner.refresh if again else learner.learn)(task, Checkpoints(tmp_path / "then"))
    assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (True, False)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("method", METHODS)
def test_memory_stays_within_its_budget(method: str, protocol: str, baseline: Baseline) -> None:
    record, folder, _ = baseline[method, protocol]
    labels = last_state(folder, record).tensors["memory.y"]
    quotas = Budget.parse(MEMORY[protocol]).quotas(10)
    if find_method(method).keeps == "reservoir":  # which does not care for classes
        assert len(labels) == sum(quotas)
    else:
        assert torch.bincount(labels, minlength=10).tolist() == quotas


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_bits_other_seed_other_bits(method: str, baseline: Baseline, tmp_path: Path) -> None:
    record, folder, _ = baseline[method, "base0"]
    again = run(recipe(method), tmp_path / "again")
    other = run(recipe(method, seed=1), tmp_path / "other")
    state = last_state(folder, record).tensors
    assert same(state, last_state(tmp_path / "again", again).tensors)
    assert not same(state, last_state(tmp_path / "other", other).tensors)


@pytest.mark.parametrize("share", [0.1, 0.45, 0.97])
@pytest.mark.parametrize("method", METHODS)
def test_killed_and_resumed_equals_uninterrupted(method: str, share: float, baseline: Baseline, tmp_path: Path) -> None:
    record, folder, steps = baseline[method, "base0"]
    at = max(1, round(steps * share))
    with pytest.raises(Killed):
        run(recipe(method), tmp_path / "killed", progress=Killer(at))
    left = Killer()
    resumed = resume(tmp_path / "killed", progress=left)
    assert left.steps < steps - at + 50, "finished epochs are not trained again"
    assert same(last_state(folder, record).tensors, last_state(tmp_path / "killed", resumed).tensors)
    assert resumed.losses == record.losses
    for readout in ("cnn", "nme"):
        for ours, theirs in zip(resumed.confusions[readout], record.confusions[readout], strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("method", METHODS)
def test_later_tasks_are_not_looked_at(
    method: str,
    baseline: Baseline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record, *_ = baseline[method, "base0"]
    whole = datasets.load("digits")

    def poisoned(*_: object, **__: object) -> Dataset:
        later = (whole.train.y >= 7).view(-1, 1, 1, 1)
        x = torch.where(later, 255 - whole.train.x, whole.train.x)
        return replace(whole, train=Images(x, whole.train.y))

    monkeypatch.setattr(datasets, "load", poisoned)
    other = run(recipe(method), tmp_path / "poisoned")
    for readout in ("cnn", "nme"):
        for task in (0, 1):
            np.testing.assert_array_equal(record.confusions[readout][task], other.confusions[readout][task])
    assert any((record.confusions[r][2] != other.confusions[r][2]).any() for r in ("cnn", "nme"))


@pytest.mark.parametrize("method", METHODS)
def test_teacher_does_not_change(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = find_method(method)
    begin, end = kind.begin, kind.end
    at_begin: dict[str, Tensor] = {}
    compared = []

    def spy_begin(self, task, generator) -> None:  # type: ignore[no-untyped-def]
        before = {k: v.clone() for k, v in self.net.state_dict().items()}
        begin(self, task, generator)
        at_begin.clear()
        if self.teacher is not None:
            at_begin.update({k: v.clone() for k, v in self.teacher.net.state_dict().items()})
            assert same(at_begin, before), "the teacher is the old net"

    def spy_end(self, task) -> None:  # type: ignore[no-untyped-def]
        if self.teacher is not None:
            compared.append(same(dict(self.teacher.net.state_dict()), at_begin))
        end(self, task)

    monkeypatch.setattr(kind, "begin", spy_begin)
    monkeypatch.setattr(kind, "end", spy_end)
    run(recipe(method), tmp_path / "run")
    assert all(compared)
    assert len(compared) == (2 if kind.distils else 0)


HEADS: dict[str, type[Head]] = {
    "bic": CorrectedHead,
    "lucir": CosineHead,
    "mnemonics": CosineHead,
    "podnet": ProxyHead,
    "tpcil": CosineHead,
}
WITHOUT_LAST_RELU = ("lucir", "mnemonics", "podnet", "tpcil")


@pytest.mark.parametrize("backbone", ["small", "mlp", "resnet32"])
@pytest.mark.parametrize("method", METHODS)
def test_the_engine_builds_the_head_of_the_method_and_leaves_out_the_last_relu_where_it_shall(
    method: str, backbone: str
) -> None:
    made = Recipe.build(method, data="digits", preset="quick", **{"net.backbone": backbone})
    net = learner_of(made).net.eval()
    for size in (2, 3):
        net.grow(size, torch.Generator().manual_seed(size))
    assert type(net.head) is HEADS.get(method, LinearHead)
    logits, features, _ = net(torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    assert bool((features < 0).any()) == (method in WITHOUT_LAST_RELU)
    by_direction_alone = torch.allclose(net.head(3 * features), logits, atol=1e-5)
    assert by_direction_alone == isinstance(net.head, CosineHead | ProxyHead)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_from_the_command_line_with_the_default_backbone_is_done(
    method: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("edbl.report.files.write_report", lambda runs, out: out)  # it takes longer than all else
    short = ("--tasks", 2, "--set", "optim.batch=1000")
    finished = cli("run", method, "--data", "digits", "--preset", "quick", *short)
    assert finished.code == 0, finished
    (folder,) = Path("runs").iterdir()
    record = records.read(folder)
    assert (record.method, record.status, record.task_sizes) == (method, "done", [5, 5])
    assert record.recipe["net.backbone"] == "small"
    keeps = find_method(method).keeps != "none"
    assert ("nme" in record.confusions) is (record.memory != "none") is keeps
    for matrices in record.confusions.values():
        assert [len(confusion) for confusion in matrices] == [5, 10]
