"""What only a GPU can show: fused kernels, graphs, no waiting for the device. Skipped without one."""

import copy
import csv
import io
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from edbl import Recipe, Record, records, resume, run
from edbl.bench import tune, verify
from edbl.data.augment import Transform
from edbl.data.images import Images
from edbl.data.mixing import Batch
from edbl.data.stream import Task
from edbl.engine import trial
from edbl.engine.evaluate import outputs
from edbl.engine.fit import Step, only
from edbl.engine.progress import Progress
from edbl.fleet.jobs import Job
from edbl.fleet.many import divisible, run_many
from edbl.fleet.mps import MPS
from edbl.memory import Budget, Memory
from edbl.methods import find_method, methods
from edbl.methods.base import Draw, Tools
from edbl.nets import launch
from edbl.nets.backbones import Backbone, ResNet, _pooled, initialise
from edbl.nets.net import Net, linear
from edbl.schedule import Optim, Schedule
from tests.conftest import Cli
from tests.photos import write_digits
from tests.test_contract import Killed, Killer, last_state

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.allow_tf32 = before
    torch.cuda.set_sync_debug_mode("default")


def resnet(widths: tuple[int, ...], blocks: int) -> ResNet:
    generator = torch.Generator().manual_seed(0)
    net = ResNet(3, widths, blocks, project=False)
    initialise(net, generator)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.bias.data.uniform_(-0.3, 0.3, generator=generator)
    return net.to(GPU)


def error(value: Tensor, truth: Tensor) -> float:
    return float((value.double() - truth.double()).norm() / truth.double().norm())


def gradients(net: ResNet, x: Tensor, target: Tensor, cast: bool) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    net.train()
    with torch.autocast("cuda", torch.bfloat16, enabled=cast):
        features = net(x)
    (features.to(target.dtype) * target).sum().backward()
    running = [b for name, b in net.named_buffers() if "running" in name]
    return features.detach(), [p.grad for p in net.parameters() if p.grad is not None], running


@pytest.mark.parametrize(
    ("widths", "blocks", "side", "batch"), [((16, 32, 64), 5, 32, 48), ((16, 32), 1, 8, 33), ((32, 64), 2, 12, 7)]
)
def test_fused_kernels_compute_the_network(widths: tuple[int, ...], blocks: int, side: int, batch: int) -> None:
    net = resnet(widths, blocks)
    generator = torch.Generator(GPU).manual_seed(3)
    errors: list[list[tuple[float, float]]] = []  # ours and the usual ones of features and gradients, by draw
    for _ in range(4):
        x = torch.randn(batch, 3, side, side, device=GPU, generator=generator)
        target = torch.randn(batch, widths[-1], device=GPU, generator=generator)
        truth = gradients(copy.deepcopy(net).double(), x.double(), target.double(), cast=False)
        usual = gradients(copy.deepcopy(net), x, target, cast=True)
        ours, again = copy.deepcopy(net), copy.deepcopy(net)
        ours.fuse((3, side, side))
        again.fuse((3, side, side))
        assert ours.fused is not None
        fused = gradients(ours, x, target, cast=False)
        triples = zip((fused[0], *fused[1]), (usual[0], *usual[1]), (truth[0], *truth[1]), strict=True)
        errors.append([(error(mine, right), error(theirs, right)) for mine, theirs, right in triples])
        for mine, right in zip(fused[2], truth[2], strict=True):
            assert error(mine, right) < 2e-2
        for first, second in zip(gradients(again, x, target, cast=False)[1], fused[1], strict=True):
            assert torch.equal(first, second)
    # Rounding to bf16 makes errors; ours must be no larger than those of the usual bf16 pass.
    (mine, theirs), *others = torch.tensor(errors).mean(0).tolist()
    assert mine < 1.5 * theirs + 1e-4
    for mine, theirs in others:
        assert mine < 1.5 * theirs + 1e-2


def test_fused_teacher_computes_the_network() -> None:
    net = resnet((16, 32, 64), 5).eval().requires_grad_(False)
    x = torch.randn(50, 3, 32, 32, device=GPU)
    truth = net(x)
    net.fuse((3, 32, 32))
    assert error(net(x), truth) < 1e-2


def test_augmentation_by_kernel_is_the_usual_one() -> None:
    x = torch.randint(0, 256, (2000, 3, 32, 32), dtype=torch.uint8, device=GPU)
    transform = Transform.of("crop-flip-trivial", 4, (0.5, 0.4, 0.3), (0.25, 0.2, 0.3), GPU, 0.25, 8)
    by_kernel = transform.augment(x, torch.Generator(GPU).manual_seed(1))
    usual = transform.change(x, transform.draw(x, torch.Generator(GPU).manual_seed(1)))
    # A turned pixel that falls between two may be either, by rounding.
    assert torch.isclose(by_kernel, usual, atol=1e-4).float().mean() > 0.999


@pytest.mark.parametrize(("batch", "width", "rows"), [(128, 64, 100), (1000, 512, 7), (3, 1280, 1000), (1, 1, 1)])
def test_a_linear_layer_is_exact(batch: int, width: int, rows: int) -> None:
    generator = torch.Generator(GPU).manual_seed(0)
    shapes = (batch, width), (rows, width), (rows,), (batch, rows)
    *given, target = (torch.randn(shape, generator=generator, device=GPU) for shape in shapes)
    found = []
    for dtype in (torch.float32, torch.float32, torch.float64):
        x, weight, bias = (tensor.to(dtype).requires_grad_() for tensor in given)
        y = linear(x, weight, bias)
        found.append([y, *torch.autograd.grad((y * target).sum(), (x, weight, bias))])
    for mine, again, right in zip(*found, strict=True):
        assert torch.equal(mine, again)
        assert error(mine.detach(), right.detach()) < 1e-6


# Every method as it is, and what else its options let run in a step: the method, and what differs from its defaults.
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (name, {}) for name in sorted(methods())},
    "edbl-head": ("edbl", {"balance_layers": "head", "balance_norm": "eval"}),
    "eeil-noise": ("eeil", {"noise": 0.3}),
    "gem-all-exemplars": ("gem", {"memory_batch": 0}),
    "gem-some-exemplars": ("gem", {"memory_batch": 8}),
    "gem-masked": ("gem", {"masked": True}),
    "mnemonics-scale": ("mnemonics", {"transfer": "scale"}),
}


def steps_of(variant: str, old: int, **how: bool) -> Iterator[Step]:
    """Yield the step of each phase of a task of four classes, after two tasks that share the old ones, or first."""
    generator = torch.Generator().manual_seed(0)
    method, options = VARIANTS[variant]
    kind = find_method(method)

    def make(generator: torch.Generator) -> Backbone:
        backbone = ResNet(3, (16, 32), 1, project=False, last_relu=kind.last_relu)
        initialise(backbone, generator)
        backbone.to(GPU)
        if how.get("bf16"):
            backbone.fuse((3, 16, 16))
        return backbone

    net = kind.build(make, generator).to(GPU)
    memory = Memory(Budget("total", 40))
    pixels = torch.randint(0, 256, (240, 3, 16, 16), dtype=torch.uint8, generator=generator).to(GPU)
    train = Images(pixels[40:], old + torch.arange(200, device=GPU) % 4)
    if old:
        memory.replace(Images(pixels[:40], torch.arange(40, device=GPU) * old // 40))
    everything = Images.cat([*memory.classes, train])
    transform = Transform.of("crop-flip", 4, (0.5,) * 3, (0.25,) * 3, GPU)
    made = kind(
        net,
        memory,
        kind.Config(**options),
        Schedule(),
        Optim(batch=32),
        Tools(lambda net, images: outputs(net, images, transform), transform.normalise, transform.augment),
    )
    if old:
        net.grow(old // 2, generator)
        net.grow(old - old // 2, generator)
    task = Task(2 if old else 0, old, 4, train, stream_train=everything)
    made.begin(task, generator)
    for phase in made.phases(task):
        net.train(phase.train_mode)
        draws = torch.Generator(GPU).manual_seed(1)
        step = Step(phase, task.seen, transform, draws, bf16=how.get("bf16", False), graph=how.get("graph", False))
        step.begin_epoch(phase.draw.sampler(draws).repeat(8, 1), 0.05)
        with only(net, phase.params):
            yield step
        net.eval()


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("old", [0, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_step_waits_for_the_device(variant: str, old: int, graph: bool) -> None:
    for step in steps_of(variant, old, bf16=True, graph=graph):
        for _ in range(4):  # libraries load, kernels are compiled, the graph is captured
            step()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        step()
        torch.cuda.set_sync_debug_mode("default")
        assert step.losses[:5].isfinite().all()


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("old", [0, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_graph_gives_the_bits_of_single_steps(variant: str, old: int, bf16: bool) -> None:
    weights: list[list[Tensor]] = []
    for graph in (False, True):
        weights.append([])
        for step in steps_of(variant, old, bf16=bf16, graph=graph):
            for _ in range(6):
                step()
            weights[-1] += [p.detach().clone() for p in step.phase.params]
    for first, second in zip(*weights, strict=True):
        assert torch.equal(first, second)


def test_a_trial_finds_nothing_wrong_and_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shape = trial.Shape(3, (16, 32, 64), True, 32, 100)
    assert trial.apart(GPU, shape) == dict.fromkeys(trial.INSTEAD, "")
    assert trial.settle(GPU, shape, Progress()) == []
    assert trial.known(GPU, shape) == dict.fromkeys(trial.INSTEAD, "")


def test_no_table_changes_a_bit() -> None:
    step = tune.Step(GPU)
    right = step.bits()
    wide = {f"{kernel}.{width}": launch.choices(kernel)[-1] for kernel in launch.USUAL for width in launch.WIDTHS}
    for table in (*launch.TABLES.values(), {k: v for k, v in wide.items() if not k.startswith("pool")}):
        step.use(table)
        for mine, truth in zip(step.bits(), right, strict=True):
            assert torch.equal(mine, truth), table


def test_a_search_for_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = tune.search(GPU, seconds=10)
    assert 0 < found.tried <= found.of
    assert found.after < 1.05 * found.before
    launch.keep(GPU, found.table)
    assert launch.kept(GPU) == found.table


def test_a_device_is_verified() -> None:
    found = list(verify.verify(GPU))
    assert not [finding for finding in found if finding.state == "wrong"], found


def test_steps_that_cannot_be_captured_are_made_one_by_one(tmp_path: Path) -> None:
    """A loss that waits for the device, as a method of one's own may have it."""

    class Waits(find_method("rkd")):  # type: ignore[misc]
        name = "waits"

        def loss(self, batch: object) -> Tensor:
            found: Tensor = super().loss(batch)
            assert math.isfinite(float(found.detach()))
            return found

    ends = []
    for graph in (True, False):
        small = {"net.backbone": "resnet32", "stream.tasks": 2, "schedule.epochs": 2, "graph": graph}
        recipe = Recipe.build(Waits, "digits", preset="quick", device="cuda", **small)
        ends.append(run(recipe, tmp_path / str(graph), method=Waits))
    assert "are not replayed as a CUDA graph" in " ".join(ends[0].notes)
    assert not ends[1].notes
    assert ends[0].losses == ends[1].losses
    for ours, theirs in zip(confusions(ends[0]), confusions(ends[1]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert torch.rand(4, device=GPU).isfinite().all()  # which once refused after a failed capture


class Draws(find_method("rkd")):  # type: ignore[misc]
    """Draws as ordinary code does, by dropout and the global generator; augments and logs by itself."""

    name = "draws"

    @classmethod
    def build(cls, make: Callable[[torch.Generator], Backbone], generator: torch.Generator) -> Net:
        net: Net = super().build(make, generator)
        net.drop = nn.Dropout(0.5)
        return net

    def draw(self, task: Task) -> Draw:
        def noisy(x: Tensor, generator: torch.Generator) -> Tensor:
            noise = torch.randn(x.shape, generator=generator, device=x.device)
            levels: Tensor = self.normalise(x)
            return levels + 0.1 * noise

        plain: Draw = super().draw(task)
        return replace(plain, augment=noisy)

    def loss(self, batch: Batch) -> Tensor:
        features = self.net.get_submodule("drop")(self.net(batch.x).features)
        logits = self.net.head(features + 0.1 * torch.randn_like(features))
        ce: Tensor = -(batch.y * logits.log_softmax(1)).sum(1).mean()
        self.log("ce", ce)
        self.log("kept", (features != 0).float().mean())
        return ce


def drawn(folder: Path, killed_at: int = 0, **given: Any) -> Record:
    values = {"net.backbone": "resnet32", "stream.tasks": 2, "schedule.epochs": 3, "checkpoint_seconds": 0, **given}
    recipe = Recipe.build(Draws, "digits", preset="quick", device="cuda", **values)
    if not killed_at:
        return run(recipe, folder, method=Draws)
    with pytest.raises(Killed):
        run(recipe, folder, method=Draws, progress=Killer(killed_at))
    return resume(folder, method=Draws)


def test_what_code_draws_in_a_graph_follows_the_seed(tmp_path: Path) -> None:
    one, again, other = (drawn(tmp_path / name, seed=seed) for name, seed in (("one", 0), ("again", 0), ("other", 1)))
    assert not one.notes  # all steps were replayed
    assert one.losses == again.losses
    assert one.losses != other.losses
    assert drawn(tmp_path / "killed", killed_at=40).losses == one.losses
    for epochs in one.losses[1].values():
        assert len(set(epochs)) == len(epochs) == 3  # replays draw anew


def test_what_a_graph_logs_is_the_loss_of_its_steps(tmp_path: Path) -> None:
    record = drawn(tmp_path / "run")
    for losses in record.losses:
        assert losses["train.ce"] == pytest.approx(losses["train"], rel=1e-4)


def test_adamw_is_killed_and_resumed_on_a_gpu(tmp_path: Path) -> None:
    adam: Any = {"optim.kind": "adamw", "schedule.lr": 1e-3}
    whole, killed = drawn(tmp_path / "whole", **adam), drawn(tmp_path / "killed", killed_at=40, **adam)
    assert whole.losses == killed.losses
    for ours, theirs in zip(confusions(whole), confusions(killed), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_number_drawn_on_the_host_is_the_same_in_all_replays(tmp_path: Path) -> None:
    """Which is why `edbl check` names such a line: the graph holds what was drawn while it was captured."""
    made = []

    class Host(find_method("rkd")):  # type: ignore[misc]
        name = "host"

        def loss(self, batch: Batch) -> Tensor:
            made.append(float(torch.rand(())))
            found: Tensor = super().loss(batch)
            return found * (1 + made[-1])

    small = {"net.backbone": "resnet32", "stream.tasks": 2, "schedule.epochs": 3}
    record = run(Recipe.build(Host, "digits", preset="quick", device="cuda", **small), tmp_path / "run", method=Host)
    assert len(made) == 4 * len(record.losses)  # three steps one by one and one that is captured, in each phase


def confusions(record: Record) -> list[np.ndarray]:
    return [matrix for name in sorted(record.confusions) for matrix in record.confusions[name]]


@pytest.mark.parametrize("method", ["rkd", "edbl"])
def test_killed_and_resumed_on_a_gpu_equals_uninterrupted(method: str, tmp_path: Path) -> None:
    recipe = Recipe.build(method, data="digits", preset="quick", device="cuda", **{"checkpoint_seconds": 0})
    counter = Killer()
    whole = run(recipe, tmp_path / "whole", progress=counter)
    with pytest.raises(Killed):
        run(recipe, tmp_path / "killed", progress=Killer(counter.steps * 2 // 3))
    for ours, theirs in zip(confusions(resume(tmp_path / "killed")), confusions(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.skipif(not shutil.which(MPS), reason="needs NVIDIA's multi-process service")
def test_side_by_side_each_run_has_the_bits_that_it_has_alone(tmp_path: Path) -> None:
    torch.backends.cudnn.allow_tf32 = True  # as in the processes of the others
    # At a rate of 0.1 so short a run of der-net diverges.
    small = {"net.backbone": "resnet32", "stream.tasks": 2, "schedule.epochs": 2, "schedule.lr": 0.01}
    made = {name: Recipe.build(name, "digits", preset="quick", device="cuda", **small) for name in sorted(methods())}
    recipes = {name: recipe for name, recipe in made.items() if divisible(recipe)}
    jobs = [Job(recipe, tmp_path / "together" / name) for name, recipe in recipes.items()]
    different = []
    for job, together in zip(jobs, run_many(jobs, 6, Console()), strict=True):
        alone = run(job.recipe, tmp_path / "alone" / job.folder.name)
        assert together.device == f"{alone.device}, 33% of it"
        maps = [records.read_features(tmp_path / way / job.folder.name) for way in ("together", "alone")]
        assert maps[0] is not None
        assert maps[1] is not None
        pairs = [*zip(confusions(together), confusions(alone), strict=True), (maps[0][0], maps[1][0])]
        if together.losses != alone.losses or not all(np.array_equal(ours, theirs) for ours, theirs in pairs):
            different.append(job.folder.name)
    assert not different


@pytest.mark.parametrize("backbone", ["resnet32", "small", "mlp"])
def test_a_model_learns_on_a_gpu(backbone: str, tmp_path: Path, cli: Cli) -> None:
    model, short = tmp_path / "model", ["--set", "schedule.epochs=4", "--set", "options.balance.epochs=2"]
    for start, more in ((0, ["--backbone", backbone, "--image-size", 16]), (2, [])):
        folder = write_digits(tmp_path / f"from {start}", {start: 20, start + 1: 20})
        done = cli("learn", model, folder, *more, *short, "--device", "cuda")
        assert done.code == 0, done.err
    answers = []
    for device in ("cuda", "cpu"):
        asked = cli("predict", model, tmp_path / "from 2", "--csv", "--device", device)
        assert asked.code == 0, asked.err
        answers.append([row[:2] for row in csv.reader(io.StringIO(asked.out))])
    same = sum(one == other for one, other in zip(*answers, strict=True))
    assert same >= 39  # of 41 lines; a tie may fall either way
    assert cli("forget", model, "digit 1").code == 0


@pytest.mark.parametrize("graph", [True, False])
def test_images_in_memory_of_the_host_give_the_bits_of_those_on_the_device(graph: bool, tmp_path: Path) -> None:
    small = {"net.backbone": "resnet32", "stream.phases": 2, "schedule.epochs": 3, "schedule.lr": 0.01, "graph": graph}
    states = []
    for on in ("device", "host"):
        recipe = Recipe.build("edbl", "digits", preset="quick", device="cuda", **{**small, "data.on": on})
        states.append(last_state(tmp_path / on, run(recipe, tmp_path / on)).tensors)
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])


def test_pooling_is_that_of_pytorch() -> None:
    x = torch.randn(4, 8, 15, 16, device=GPU).relu().requires_grad_()
    theirs = torch.nn.functional.max_pool2d(x, 3, 2, 1)
    assert torch.equal(_pooled(x), theirs)
    weights = torch.randn_like(theirs)
    ours, usual = (torch.autograd.grad((out * weights).sum(), x)[0] for out in (_pooled(x), theirs))
    torch.testing.assert_close(ours.where(x > 0, 0.0), usual.where(x > 0, 0.0))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_make_one_run(tmp_path: Path) -> None:
    words = ["run", "edbl", "--data", "digits", "--preset", "quick", "--device", "cuda", "--set", "net.backbone=small"]
    for name, more in (("one", []), ("two", ["--gpus", "2"]), ("again", ["--gpus", "2"])):
        command = [sys.executable, "-m", "edbl", *words, *more, "--out", str(tmp_path / name)]
        subprocess.run(command, check=True, timeout=280)
    one, two, again = (records.read(tmp_path / name) for name in ("one", "two", "again"))
    assert two.losses == again.losses
    assert "2 processes" in two.device
    assert abs(one.average_incremental_accuracy["nme"] - two.average_incremental_accuracy["nme"]) < 0.05
