"""What works on a device, how fast, and whether it is right: a look of two minutes at most (`edbl bench --verify`)."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

import edbl
from edbl.bench import step as bench
from edbl.data import devices
from edbl.data.augment import Transform
from edbl.engine import environment, trial
from edbl.engine.trial import Shape
from edbl.fleet.mps import MPS, shared_gpu
from edbl.nets import launch

BATCH = 128
SIDE = 32
RESNET32 = Shape(3, (16, 32, 64), True, SIDE, BATCH)
SIDE_BY_SIDE = 3  # processes
SERVICE_SECONDS = 30
SECONDS = 120  # after which nothing more is looked at
TRIAL_SECONDS = 80  # of those, for the kernels
# A process that uses the GPU beside others, and says how much of it there is.
BESIDE = """
import torch
x = torch.ones(1000, 1000, device="cuda")
assert float((x @ x).sum()) == 1e9
print(torch.cuda.get_device_properties(0).multi_processor_count)
"""


State = Literal["right", "wrong", "not here", "left out"]
Found = tuple[State, str]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: whether it is right, how fast, or why it does not apply."""

    what: str
    state: State
    told: str


def verify(device: torch.device, say: Callable[[str], None] = lambda _: None) -> Iterator[Finding]:
    """Look at a device, one thing after the other, as long as there is time."""
    end = time.monotonic() + SECONDS
    gpu = device.type == "cuda"
    # First of all apart: what takes a process along must not end this one.
    fused = gpu and devices.has_triton() and environment.computes_bf16(device)
    found = trial.apart(device, RESNET32 if fused else None, TRIAL_SECONDS) if gpu else {}
    for kernel, why in found.items():
        if why:
            devices.refuse(kernel, device)
    for look in LOOKS:
        say(look.what)
        if time.monotonic() > end:
            yield Finding(look.what, "left out", f"{SECONDS} s are over")
        elif look.kernel and not gpu:
            yield Finding(look.what, "not here", "for NVIDIA's GPUs alone")
        elif look.kernel and look.kernel != "graph" and not devices.has_triton():
            yield Finding(look.what, "not here", "Triton is not installed; PyTorch computes instead")
        elif why := found.get(look.kernel, ""):
            yield Finding(look.what, "wrong", f"{why}; {trial.INSTEAD[look.kernel]}")
        else:
            yield _looked(look, device)


def _looked(look: "Look", device: torch.device) -> Finding:
    """Return what a look finds, whatever happens meanwhile."""
    found: list[Found] = []

    def attempt() -> str:
        found.append(look.at(device))
        return ""

    why = trial.guarded(attempt)
    return Finding(look.what, *(("wrong", why) if why else found[0]))


def report(device: torch.device, findings: list[Finding]) -> dict[str, Any]:
    """Return all that was found, for a file."""
    identity = launch.identity(device) if device.type == "cuda" else {}
    versions = environment.versions()
    if devices.has_triton():
        versions["triton"] = version("triton")
    return {
        "device": environment.describe(device),
        **{key: value for key, value in identity.items() if key != "device"},
        "versions": versions | ({"cuda": torch.version.cuda} if torch.version.cuda else {}),
        "commit": environment.commit(),
        "right": all(finding.state != "wrong" for finding in findings),
        "findings": [asdict(finding) for finding in findings],
    }


def _plain(device: torch.device) -> Found:
    """Compare the network as PyTorch computes it in fp32 with float64 on the CPU."""
    generator = torch.Generator().manual_seed(3)
    x, target = torch.randn(trial.IMAGES, 3, SIDE, SIDE, generator=generator), torch.ones(trial.IMAGES, 64)
    right = trial.passed(trial.example(RESNET32).double(), x.double(), target.double(), cast=False)
    ours = trial.passed(trial.example(RESNET32).to(device), x.to(device), target.to(device), cast=False)
    pairs = zip((ours.features, *ours.gradients), (right.features, *right.gradients), strict=True)
    worst = max(trial.error(mine, truth) for mine, truth in pairs)
    # TF32, which cuDNN may use for convolutions, has 10 bits.
    return "right" if worst < 5e-2 else "wrong", f"largest error {worst:.1e}"


def _bf16(device: torch.device) -> Found:
    """Tell whether bf16 is computed, and how far it is from fp32."""
    if not environment.computes_bf16(device):
        return "not here", "no instructions for it; training is in fp32"
    x = torch.randn(256, 256, generator=torch.Generator().manual_seed(1)).to(device)
    far = trial.error(x.bfloat16() @ x.bfloat16(), x.cpu().double() @ x.cpu().double())
    how = "precision auto takes it" if environment.in_bf16("auto", device) else "precision bf16 takes it"
    return "right" if far < 2e-2 else "wrong", f"error {far:.1e}; {how}"


def _graph(device: torch.device) -> Found:
    why = trial.graph(device)
    return "wrong" if why else "right", why or "replayed steps have the bits of single ones"


def _augmentation(device: torch.device) -> Found:
    why = trial.augmentation(device)
    if why:
        return "wrong", why
    images = torch.randint(0, 256, (1024, 3, SIDE, SIDE), dtype=torch.uint8, device=device)
    draws = torch.Generator(device).manual_seed(1)
    transform = Transform.of("crop-flip-trivial", 4, bench.MEAN, bench.STD, device)
    kernel = bench.seconds(bench.Way(lambda: transform.augment(images, draws), 20, 3), device)
    plain = bench.seconds(bench.Way(lambda: transform.change(images, transform.draw(images, draws)), 20, 3), device)
    return "right", f"{1024 / kernel:,.0f} images/s, {plain / kernel:.1f} times PyTorch"


def _linear(device: torch.device) -> Found:
    why = trial.layer(device)
    return "wrong" if why else "right", why or "as exact as float32 can be"


def _fused(device: torch.device) -> Found:
    """Compare all of ResNet-32 in fused kernels with float64."""
    if not environment.computes_bf16(device):
        return "not here", "this device trains in fp32, which they are not for"
    found = trial.measure(device, RESNET32, blocks=5)
    if why := trial.judged(found):
        return "wrong", why
    factor = statistics.mean(mine / theirs for mine, theirs in zip(found.ours, found.usual, strict=True))
    told = f"errors {factor:.2f} times those of PyTorch in bf16, teacher {found.ours[-1]:.1e}; the same bits again"
    return "right", told


def _table(device: torch.device) -> Found:
    """Tell which launch table is in use, and whether it changes no bit."""
    if device.type != "cuda" or torch.version.hip:
        return "not here", "for NVIDIA's GPUs alone"
    if kept := launch.kept(device):
        return "right", f"found by a search on this device, {len(kept)} entries"
    capability = torch.cuda.get_device_capability(device)
    name = ".".join(map(str, capability))
    known = {launch.MEASURED: "measured"}.get(capability, "shipped, not measured")
    usual = f"that of {name}, {known}" if capability in launch.TABLES else f"none for {name}; that of an H200"
    return "right", f"{usual}; `edbl bench --tune` searches for a better one"


def _service(device: torch.device) -> Found:
    """Let some processes use the GPU at the same time, by NVIDIA's service if it is there."""
    if device.type != "cuda":
        return "not here", f"side by side on cores: {environment.cores()}"
    path = os.pathsep.join(part for part in (str(Path(edbl.__file__).parents[1]), os.environ.get("PYTHONPATH")) if part)
    with shared_gpu(200 // SIDE_BY_SIDE) as why:
        environ = os.environ | {"PYTHONPATH": path}
        if device.index is not None:
            environ["CUDA_VISIBLE_DEVICES"] = str(device.index)
        command = [sys.executable, "-c", BESIDE]
        began = time.monotonic()
        others = [
            subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(SIDE_BY_SIDE)
        ]
        try:
            ends = [(*other.communicate(timeout=SERVICE_SECONDS), other.returncode) for other in others]
        except subprocess.TimeoutExpired:
            return "wrong", f"{SIDE_BY_SIDE} processes did not end within {SERVICE_SECONDS} s"
        finally:
            for other in others:
                other.kill()
        took = time.monotonic() - began
    if bad := [err.decode(errors="replace").strip().rpartition("\n")[2] for _, err, code in ends if code]:
        return "wrong", f"{len(bad)} of {SIDE_BY_SIDE} processes failed: {bad[0][:200]}"
    processors = {int(out) for out, _, _ in ends}
    how = f"they take turns ({why})" if why else f"by {MPS}, {max(processors)} multiprocessors each"
    return "right", f"{SIDE_BY_SIDE} processes in {took:.0f} s; {how}"


def _speed(device: torch.device) -> Found:
    """Time a step of ResNet-32 with a teacher beside the bare network."""
    gpu, bf16 = device.type == "cuda", environment.in_bf16("auto", device)
    graph = devices.usable("graph", device)
    batch, steps = (BATCH, 50) if gpu else (16, 2)
    ours = bench.engine(device, "resnet32", batch, bf16=bf16, graph=graph)
    ways = {
        "edbl": bench.Way(ours, steps, 5 if gpu else 1),
        bench.BARE: bench.Way(bench.bare(device, "resnet32", batch), max(2, steps // 5), 2 if gpu else 1),
    }
    mine, _ = bench.rows(bench.in_turns(ways, device), batch)
    how = f"batch {batch}, {'bf16' if bf16 else 'fp32'}{', CUDA graph' if graph else ''}"
    told = f"{mine.milliseconds:,.2f} ms, {mine.images_per_second:,.0f} images/s; "
    return "right", f"{told}{mine.of_bare:.2f} of the bare network in fp32 ({how})"


class Look(NamedTuple):
    """Something to look at: what it is, how, and which kernel it is about."""

    what: str
    at: Callable[[torch.device], Found]
    kernel: str = ""


LOOKS = (
    Look("plain network against float64", _plain),
    Look("bf16", _bf16),
    Look("CUDA graphs", _graph, "graph"),
    Look("augmentation kernel", _augmentation, "augmentation"),
    Look("linear kernel", _linear, "linear"),
    Look("fused network against float64", _fused, "network"),
    Look("launch table", _table),
    Look("several runs on one GPU", _service),
    Look("speed of a step", _speed),
)
