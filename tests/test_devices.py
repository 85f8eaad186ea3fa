"""Any device: what does not work on one is told and done without. No GPU is needed; what fails is made to fail."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Generator, Tensor

from edbl import EdblError, Recipe, records, run
from edbl.data import datasets, devices
from edbl.data.stream import Stream
from edbl.engine import environment, fit, room, trial
from edbl.engine.fit import Step
from edbl.engine.progress import Progress
from edbl.engine.trial import Errors, Shape
from edbl.nets import backbones, launch
from edbl.nets.net import LinearHead, Net
from tests.conftest import Cli
from tests.test_contract import learner_of

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
SHAPE = Shape(3, (16, 32), True, 8)
RUN = subprocess.run


class Told(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let this machine seem to have a GPU of compute capability 8.6, with a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 6))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(devices, "has_triton", lambda: True)
    monkeypatch.setattr(devices, "_refused", set())


def child(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let another program stand in for the process that tries a GPU."""
    monkeypatch.setattr(subprocess, "run", lambda command, **how: RUN([sys.executable, "-c", program], **how))


RIGHT = "print('ready'); [print('[\"%s\", \"\"]' % k) for k in ('graph', 'augmentation', 'linear', 'network')]"


def test_what_is_right_is_used_and_tried_once(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, RIGHT)
    assert trial.settle(GPU, SHAPE, Progress()) == []
    assert all(devices.usable(kernel, GPU) for kernel in trial.INSTEAD)
    child(monkeypatch, "raise SystemExit(1)")
    assert trial.settle(GPU, SHAPE, Progress()) == []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "another")
    monkeypatch.setattr(trial, "here_and_now", lambda *given: {"graph": "it does not"})
    assert trial.settle(GPU, SHAPE, Progress()) == ["steps are not replayed as CUDA graphs on this device: it does not"]


@pytest.mark.parametrize(
    ("program", "refused"),
    [
        ("import os; print('ready', flush=True); os.abort()", {"graph", "augmentation", "linear", "network"}),
        (
            'import os; print(\'ready\'); print(\'["graph", ""]\'); print(\'["augmentation", ""]\');'
            'print(\'["linear", ""]\', flush=True); os.kill(os.getpid(), 11)',
            {"network"},
        ),
        (RIGHT + '; print(\'["network", "gradients are wrong by 30%"]\')', {"network"}),
        (RIGHT + '; print(\'["network", "out of memory"]\')', {"network"}),
        (RIGHT + "; print('no JSON'); print('[1]'); print('[\"x\", \"y\"]')", set()),
    ],
)
def test_what_is_wrong_is_refused(program: str, refused: set[str], gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, program)
    for _ in range(2):  # the second time as it is kept
        notes = trial.settle(GPU, SHAPE, Progress())
        assert len(notes) == len(refused)
        assert {kernel for kernel in trial.INSTEAD if not devices.usable(kernel, GPU)} == refused
    net = backbones.ResNet(3, (16, 32), 1, project=False)
    net.fuse((3, 8, 8))
    assert net.fused is None


def test_memory_of_others_decides_for_one_run_only(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, RIGHT + '; print(\'["network", "out of memory"]\')')
    assert len(trial.settle(GPU, SHAPE, Progress())) == 1
    child(monkeypatch, RIGHT)
    assert trial.settle(GPU, SHAPE, Progress()) == []


def test_a_device_that_another_process_cannot_have_is_tried_in_this_one(
    gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(monkeypatch, "raise SystemExit('all CUDA-capable devices are busy')")
    monkeypatch.setattr(trial, "here_and_now", lambda *given: {"network": ""})
    assert trial.apart(GPU, SHAPE) == {"network": ""}


def test_one_that_takes_too_long_is_refused(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, "import time; print('ready', flush=True); time.sleep(60)")
    monkeypatch.setattr(trial, "SECONDS", 0.5)
    assert set(trial.apart(GPU, SHAPE)) == {"graph", "augmentation", "linear", "network"}


def test_without_triton_pytorch_computes(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "has_triton", lambda: False)
    (first, *_) = trial.settle(GPU, SHAPE, Progress())
    assert first == "PyTorch trains without the fused kernels on this device: Triton is not installed"
    assert not devices.usable("linear", GPU)
    assert devices.usable("graph", GPU)


@pytest.mark.parametrize("forged", [b"", b"{", b"[]", b'{"format": 1}', b"\x00" * 100, b'{"a":' * 1000])
def test_what_is_kept_may_be_forged(forged: bytes, gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, RIGHT)
    trial.settle(GPU, SHAPE, Progress())
    launch.keep(GPU, {"infer.16": launch.Free(0, 128, 8)})
    assert launch.table(GPU) == {"infer.16": launch.Free(0, 128, 8)}
    for path in launch.folder().iterdir():
        path.write_bytes(forged)
    assert launch.table(GPU) == launch.TABLES[8, 6]
    assert trial.settle(GPU, SHAPE, Progress()) == []


def test_a_forged_table_starts_nothing_that_a_search_would_not(gpu: None) -> None:
    for table in (
        {"infer.16": launch.Free(0, 2**20, 4)},
        {"forward.16": launch.Free(0, 64, 8)},  # which would add in another order
        {"forward.16": launch.Free(-1)},
        {"elsewhere.16": launch.Free(168)},
    ):
        launch.keep(GPU, table)
        assert launch.table(GPU) == launch.TABLES[8, 6], table
    file = next(launch.folder().glob("table-*.json"))
    file.write_text(file.read_text().replace("168", '"$(x)"'))
    assert launch.table(GPU) == launch.TABLES[8, 6]


def test_tables_say_nothing_but_what_a_search_may() -> None:
    assert all(launch.fits(table) for table in launch.TABLES.values())
    assert launch.TABLES[launch.MEASURED] == {}
    how, arguments = launch.started({}, "forward", 16)
    assert (how, arguments) == (launch.SUMS["forward"][16], {"num_warps": 4})
    how, arguments = launch.started({"forward.16": launch.Free(168)}, "forward", 16)
    assert (how, arguments) == (launch.SUMS["forward"][16], {"num_warps": 4, "maxnreg": 168})


def test_errors_are_judged_beside_the_usual_ones() -> None:
    usual = [0.001, 0.1]
    assert trial.judged(Errors([0.002, 0.15], usual, True)) == ""
    assert "wrong by 30.0%" in trial.judged(Errors([0.002, 0.3], usual, True))
    assert "wrong by nan%" in trial.judged(Errors([float("nan"), 0.1], usual, True))
    assert "other bits" in trial.judged(Errors(usual, usual, False))


class CompilationError(Exception):  # what Triton calls it: where, the line, and why
    pass


def test_what_an_attempt_fails_of_is_one_line() -> None:
    def fails(error: Exception) -> Callable[[], str]:
        def attempt() -> str:
            raise error

        return attempt

    assert trial.guarded(fails(RuntimeError("no kernel image\nmore"))) == "RuntimeError: no kernel image"
    assert trial.guarded(fails(CompilationError("at 1:0:\ntl.dot\nno"))) == "CompilationError: no"
    assert trial.guarded(fails(torch.OutOfMemoryError("much"))) == "out of memory"
    assert trial.guarded(fails(AssertionError())) == "AssertionError"
    assert len(trial.guarded(fails(ValueError("x" * 9999)))) <= 200


def test_wrong_numbers_of_a_kernel_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself, with a network that computes something else when it is fused."""

    factor = 1.0

    def fuse(net: backbones.ResNet, shape: tuple[int, ...]) -> None:
        net.stem.weight.data *= factor

    monkeypatch.setattr(backbones.ResNet, "fuse", fuse)
    assert trial.network(CPU, SHAPE) == ""
    factor = -1.0
    assert "wrong by" in trial.network(CPU, SHAPE)


def test_an_odd_batch_and_that_of_the_run_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def measure(device: torch.device, shape: Shape, blocks: int = 2, images: int = 0) -> Errors:
        tried.append(images)
        return Errors([0.5 if images == wrong else 0.0], [0.1], True)

    monkeypatch.setattr(trial, "measure", measure)
    net = backbones.build("resnet32", (3, 32, 32), torch.Generator())
    shape = trial.shape_of(net, (3, 32, 32), 100)
    assert shape is not None
    for wrong, after in ((0, [13, 16, 100]), (13, [13]), (100, [13, 16, 100])):
        tried.clear()
        told = trial.network(CPU, shape)
        assert tried == after
        assert told.startswith(f"in a batch of {wrong}, they are wrong by 50.0%") if wrong else not told
    assert trial.shape_of(net, (3, 32, 32), 4000) == shape._replace(batch=256)


def test_a_note_is_told_once_and_is_in_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = "PyTorch augments on this device: it does not compile"
    monkeypatch.setattr(trial, "settle", lambda device, shape, progress: [note])
    told = Told()
    small = {"stream.tasks": 2, "net.backbone": "mlp", "schedule.epochs": 1}
    run(Recipe.build("finetune", "digits", preset="quick", **small), tmp_path / "run", progress=told)
    assert told.lines.count(note) == 1
    assert records.read(tmp_path / "run").notes == [note]


def test_a_step_that_cannot_be_captured_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoGraph:
        def register_generator_state(self, generator: Generator) -> None:
            generator.manual_seed(99)  # whatever a failed capture leaves behind
            torch.manual_seed(99)
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    class Theirs:
        def clone_state(self) -> str:
            return "fresh"

        def graphsafe_set_state(self, state: str) -> None:
            states.append(state)

    states: list[str] = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", NoGraph)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.get_rng_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: torch.set_rng_state(state))
    monkeypatch.setattr(torch.cuda, "default_generators", {None: Theirs()})
    ends: list[list[Tensor]] = []
    told: list[str] = []
    begin = Step.__init__
    for captured in (False, True):
        learner = learner_of(Recipe.build("edbl", "digits", preset="quick", **{"net.backbone": "mlp"}))
        stream = Stream(datasets.load("digits"), range(10), [5, 5], CPU)

        def made(step: Step, *given: Any, captured: bool = captured, **how: Any) -> None:
            begin(step, *given, **how)
            step.use_graph = captured

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Step, "__init__", made)
            learner.learn(stream[0])
        ends.append([p.detach().clone() for p in learner.net.parameters()])
        told += learner.notes
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    assert told == [
        "steps of phase train are not replayed as a CUDA graph: operation not permitted when stream is capturing"
    ]
    assert states == ["fresh"]


@pytest.mark.parametrize(
    ("flags", "able"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16", True),
        ("flags\t\t: fpu avx512f amx_bf16 amx_tile", True),
        ("Features\t: fp asimd bf16 i8mm", True),
        ("flags\t\t: fpu avx2 avx512f avx512_vnni", False),
        ("vmx flags\t: avx512_bf16", False),
        ("", False),
    ],
)
def test_a_cpu_says_whether_it_computes_bf16(
    flags: str, able: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{flags}\n")
    monkeypatch.setattr(environment, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(environment, "_flags", environment._flags.__wrapped__)
    assert environment.computes_bf16(CPU) == able


def test_bf16_is_refused_where_it_is_not_computed(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "computes_bf16", lambda device: False)
    done = cli("run", "finetune", "--data", "digits", "--precision", "bf16", "--device", "cpu", "--out", tmp_path / "x")
    assert done.code == 2
    assert "precision bf16 is wanted" in done.err
    assert "use precision auto or fp32" in done.err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("capability", "bf16"), [((7, 5), False), ((8, 0), True), ((12, 0), True)])
def test_precision_follows_what_a_gpu_computes(
    capability: tuple[int, int], bf16: bool, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    assert environment.in_bf16("auto", GPU) == bf16
    assert not environment.in_bf16("auto", CPU)
    assert not environment.in_bf16("auto", torch.device("mps"))


def test_devices_by_name(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    assert environment.pick_device("auto").type == "cuda"
    assert environment.gpus("auto") == [0, 1]
    assert environment.gpus("cuda:1") == [1]
    assert environment.gpus("cpu") == []
    assert taken == [torch.device("cuda", 1)]
    with pytest.raises(EdblError, match="device cuda:2 is wanted, but there are 2 of them"):
        environment.pick_device("cuda:2")
    assert environment.describe(torch.device("cuda", 1)) == "GPU, cuda:1"
    with pytest.raises(EdblError, match=r"unknown value of device 'gpu'"):
        environment.pick_device("gpu")
    with pytest.raises(EdblError, match=r"unknown value of device 'cdua'.*cuda"):
        Recipe.build("edbl", "digits", device="cdua")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without such a device")
@pytest.mark.parametrize("name", ["mps", "xpu", "hpu"])
def test_a_device_that_is_not_here(name: str) -> None:
    with pytest.raises(EdblError, match=f"device {name} is wanted, but PyTorch has no such device here"):
        environment.pick_device(name)


def test_out_of_memory_names_what_was_too_much_and_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe.build("edbl", "digits", preset="quick", **{"net.backbone": "mlp"})
    learner = learner_of(recipe)
    monkeypatch.setattr(room, "memory", lambda device: 3 * 2**30)

    def full(step: Step) -> None:
        step.images = 4096
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(fit.Step, "__call__", full)
    with pytest.raises(EdblError) as caught:
        learner.learn(Stream(datasets.load("digits"), range(10), [5, 5], CPU)[0])
    text = str(caught.value)
    assert "(3.0 GiB): mlp with batches of 4,096 images of [1, 8, 8]; about" in text
    assert "lower optim.batch" in text
    assert len(text.splitlines()) == 2


def test_what_would_fit_is_counted() -> None:
    """A linear net keeps its input alone: the count is that of the tensors that autograd keeps."""
    body = backbones.build("resnet32", (3, 32, 32), Generator().manual_seed(0))
    net = Net(body, LinearHead(body.width))
    net.grow(10, Generator().manual_seed(0))
    kept: dict[int, Tensor] = {}
    x = torch.zeros(2, 3, 32, 32)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t):
        output = net.train()(x)
    weights = {tensor.data_ptr() for tensor in net.state_dict().values()}
    right = sum(t.nbytes for place, t in kept.items() if place not in weights) / 2
    assert output.logits.shape == (2, 10)
    assert room.per_image(net, (3, 32, 32), bf16=False) == pytest.approx(right, rel=0.05)
    assert 1000 < room.fitting(net, (3, 32, 32), 8 * 2**30, bf16=False) < 10_000


def test_verify_says_on_a_cpu_what_applies(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from edbl.bench import verify

    monkeypatch.setattr(verify, "LOOKS", [look for look in verify.LOOKS if look.what != "speed of a step"])
    done = cli("bench", "--verify", "--device", "cpu", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    states = {finding["what"]: finding["state"] for finding in told["findings"]}
    assert states["plain network against float64"] == "right"
    assert states["fused network against float64"] == "not here"
    assert told["right"]
    assert told["device"].startswith("CPU")


@pytest.mark.parametrize("what", ["numbers", "crash"])
def test_verify_fails_where_something_is_wrong(what: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from edbl.bench import verify

    def look(device: torch.device) -> verify.Found:
        if what == "crash":
            raise RuntimeError("no kernel image")
        return "wrong", "off by 30%"

    monkeypatch.setattr(verify, "LOOKS", [verify.Look("something", look)])
    done = cli("bench", "--verify", "--device", "cpu")
    assert done.code == 1
    assert "something  wrong" in done.out
    assert "1 of 1 are wrong" in done.err


def test_there_is_nothing_to_tune_on_a_cpu(cli: Cli) -> None:
    done = cli("bench", "--tune", "--device", "cpu")
    assert done.code == 2
    assert "has no launch table" in done.err
    assert cli("bench", "--tune", "--verify").code == 2


def test_verify_ends_in_time(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from edbl.bench import verify

    def look(device: torch.device) -> verify.Found:
        clock[0] += 70
        return "right", "as it should be"

    clock = [0.0]
    monkeypatch.setattr(verify, "time", Mock(monotonic=lambda: clock[0]))
    monkeypatch.setattr(verify, "LOOKS", [verify.Look(name, look) for name in ("one", "two", "three", "four")])
    found = json.loads(cli("bench", "--verify", "--device", "cpu", "--json").out)["findings"]
    assert [finding["state"] for finding in found] == ["right", "right", "left out", "left out"]
    assert found[-1]["told"] == "120 s are over"


def test_verify_leaves_a_trial_part_of_its_time(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from edbl.bench import verify

    child(monkeypatch, "import time; print('ready', flush=True); time.sleep(60)")
    monkeypatch.setattr(verify, "TRIAL_SECONDS", 0.5)
    monkeypatch.setattr(verify, "LOOKS", [look for look in verify.LOOKS if look.kernel])
    assert {finding.told.partition(";")[0] for finding in verify.verify(GPU)} == {"its trial took more than 0.5 s"}
