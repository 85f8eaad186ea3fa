"""A trial of a GPU: whether the kernels, and graphs, compute there what PyTorch does; what does not is not used.

It runs once per device, driver, PyTorch, Triton and edbl, in a process of its own, since a compiler that gives up, or a
kernel that writes where it may not, takes its process along. What it finds is kept in the user's cache folder.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

import edbl
from edbl import store
from edbl.data import devices
from edbl.data.augment import Transform
from edbl.engine.progress import Progress
from edbl.errors import EdblError
from edbl.nets import launch
from edbl.nets.backbones import Backbone, ResNet, initialise
from edbl.nets.net import linear

SECONDS = 300  # that a trial may take; compiling all kernels takes half a minute
FORMAT = 1  # of what is kept
READY = "ready"  # what the process says once the device answers
IMAGES = 16
ODD = 13  # images, as many as a last batch may have: for numbers that 16 divides, Triton compiles kernels of their own
MOST = 256  # images of a batch that is tried
# By what it tries, what computes instead.
INSTEAD = {
    "network": "PyTorch trains without the fused kernels",
    "linear": "PyTorch multiplies in the heads",
    "augmentation": "PyTorch augments",
    "graph": "steps are not replayed as CUDA graphs",
}
SOURCES = ("data/kernels.py", "nets/fused.py", "nets/kernels.py", "nets/launch.py", "engine/trial.py")

Wrong = dict[str, str]  # by what was tried, what is wrong with it; empty if it is right


class Shape(NamedTuple):
    """What the fused kernels of a network are compiled for."""

    channels: int
    widths: tuple[int, ...]
    last_relu: bool
    side: int
    batch: int = IMAGES  # images of a run's batch


def shape_of(backbone: Backbone, shape: Sequence[int], batch: int) -> Shape | None:
    """Return what the fused kernels of a network are compiled for, if it can have any."""
    if not isinstance(backbone, ResNet) or len(shape) != 3 or not backbone.fusible(shape):
        return None
    return Shape(shape[0], backbone.widths, backbone.last_relu, shape[1], min(batch, MOST))


def settle(device: torch.device, shape: Shape | None, progress: Progress) -> list[str]:
    """Try a device, unless that was done, and refuse there what is wrong; return a sentence for each of that."""
    if device.type != "cuda":
        return []
    devices.allow(device)
    found = known(device, shape)
    if found is None:
        progress.busy("trying the GPU's kernels, once per machine")
        found = apart(device, shape)
        with suppress(OSError, EdblError):  # such as a full disk: the next run tries again
            _keep(device, shape, found)
    for kernel, why in found.items():
        if why:
            devices.refuse(kernel, device)
    return [f"{INSTEAD[kernel]} on this device: {why}" for kernel, why in found.items() if why and kernel in INSTEAD]


def known(device: torch.device, shape: Shape | None) -> Wrong | None:
    """Return what an earlier trial found, if it tried all that is wanted."""
    if not devices.has_triton():
        return dict.fromkeys(("network", "linear", "augmentation") if shape else ("linear",), "Triton is not installed")
    with suppress(OSError, EdblError):
        found = store.read(launch.folder(), _name(device, shape), dict[str, str], FORMAT).value
        if found.keys() <= INSTEAD.keys():
            return found
    return None


def _keep(device: torch.device, shape: Shape | None, found: Wrong) -> None:
    if not any("out of memory" in why for why in found.values()):  # which may be another program's
        launch.folder().mkdir(parents=True, exist_ok=True)
        store.save(launch.folder(), _name(device, shape), found, format=FORMAT)


def _name(device: torch.device, shape: Shape | None) -> str:
    """Return the name of what is kept: another one as soon as anything is different that may decide."""
    facts = launch.identity(device) | {"edbl": edbl.__version__, "shape": str(shape)}
    facts["table"] = str(sorted(launch.table(device).items()))
    for package in ("torch", "triton"):
        with suppress(PackageNotFoundError):
            facts[package] = version(package)
    here = Path(edbl.__file__).parent
    facts["source"] = sha256(b"".join((here / name).read_bytes() for name in SOURCES)).hexdigest()
    return launch.name("trial", facts)


def apart(device: torch.device, shape: Shape | None, seconds: float = 0.0) -> Wrong:
    """Try a device in a process of its own, at most ``SECONDS``, or ``seconds``; in this one if that fails."""
    seconds = seconds or SECONDS
    number = devices.placed(device).index
    here = str(Path(edbl.__file__).parents[1])
    path = os.pathsep.join(part for part in (here, os.environ.get("PYTHONPATH")) if part)
    command = [sys.executable, "-m", "edbl.engine.trial", str(number), json.dumps(shape)]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds,
            env=os.environ | {"PYTHONPATH": path}, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return dict.fromkeys(_wanted(shape), f"its trial took more than {seconds} s")
    except OSError:  # no interpreter to start, as within another program
        return here_and_now(device, shape)
    first, *rest = ended.stdout.splitlines() or [""]
    if first != READY:
        return here_and_now(device, shape)
    found: Wrong = {}
    for line in rest:  # one for each that it came to the end of
        with suppress(ValueError):
            kernel, why = json.loads(line)
            found[kernel] = why
    for kernel in _wanted(shape):
        if kernel not in found:  # the first of them took the process along, and what was after it is not known
            found[kernel] = f"its trial ended with {_end(ended.returncode)}"
    return found


def _end(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"


def _wanted(shape: Shape | None) -> list[str]:
    return ["graph", "augmentation", "linear", *(["network"] if shape else [])]


def here_and_now(
    device: torch.device, shape: Shape | None, told: Callable[[str, str], None] = lambda *_: None
) -> Wrong:
    """Try a device in this process."""
    tries: dict[str, Callable[[], str]] = {
        "graph": lambda: graph(device),
        "augmentation": lambda: augmentation(device),
        "linear": lambda: layer(device),
    }
    if shape is not None:
        tries["network"] = lambda: network(device, shape)
    found: Wrong = {}
    with torch.random.fork_rng([devices.placed(device).index] if device.type == "cuda" else []):
        for name, attempt in tries.items():
            found[name] = guarded(attempt)
            told(name, found[name])
    return found


def guarded(attempt: Callable[[], str]) -> str:
    """Return what is wrong, be it that it does not compile or start."""
    try:
        return attempt()
    except Exception as error:  # of a compiler, of a driver: whatever it is, PyTorch does without
        if isinstance(error, torch.OutOfMemoryError):
            return "out of memory"
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        kind = type(error).__name__
        why = lines[-1 if kind == "CompilationError" else 0]  # where a compiler stopped comes first, and then why
        return f"{kind}: {why}"[:200].rstrip(": ")


def error(value: Tensor, truth: Tensor) -> float:
    """Return how far a value is from the truth, as a part of it."""
    truth = truth.detach().double()
    return float((value.detach().cpu().double() - truth).norm() / truth.norm().clamp(min=1e-12))


def graph(device: torch.device) -> str:
    """Say what is wrong with steps that draw, learn and are replayed."""
    ends = []
    for captured in (False, True):
        generator = Generator(device).manual_seed(1)
        weight = torch.linspace(-1, 1, 160, device=device).view(10, 16).requires_grad_()

        def step(weight: Tensor = weight, generator: Generator = generator) -> None:
            x = torch.rand(32, 16, generator=generator, device=device)
            (slope,) = torch.autograd.grad(F.linear(x, weight).square().mean(), [weight])
            with torch.no_grad():
                weight -= 0.1 * slope

        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream(device).wait_stream(side)
        if captured:
            recorded = torch.cuda.CUDAGraph()
            recorded.register_generator_state(generator)
            with torch.cuda.graph(recorded):
                step()
            for _ in range(3):
                recorded.replay()
        else:
            for _ in range(3):
                step()
        ends.append(weight.detach().cpu())
    return "" if torch.equal(*ends) else "replayed steps end elsewhere than single ones"


def augmentation(device: torch.device) -> str:
    """Say what is wrong with the kernel that augments."""
    from edbl.data.kernels import move

    generator = Generator().manual_seed(1)
    x = torch.randint(0, 256, (64, 3, 16, 16), dtype=torch.uint8, generator=generator)
    transform = Transform.of("crop-flip-trivial", 2, (0.5, 0.4, 0.3), (0.25, 0.2, 0.3), x.device, 0.25, 4)
    changes = transform.draw(x, generator)
    there = type(changes)(*(None if change is None else change.to(device) for change in changes))
    moved = move(x.to(device), there, transform.mean.to(device), transform.std.to(device), 2, 4)
    # A turned pixel that falls between two may be either, by rounding.
    same = torch.isclose(moved.cpu(), transform.change(x, changes), atol=1e-4).float().mean()
    return "" if same > 0.995 else f"{1 - float(same):.1%} of the pixels are others"


def layer(device: torch.device) -> str:
    """Say what is wrong with the kernel that multiplies."""
    generator = Generator().manual_seed(2)
    given = [torch.randn(shape, generator=generator) for shape in ((37, 64), (20, 64), (20,), (37, 20))]
    found = []
    for where, dtype in ((device, torch.float32), (given[0].device, torch.float64)):
        *leaves, target = (one.to(where, dtype) for one in given)
        x, weight, bias = (one.requires_grad_() for one in leaves)
        y = linear(x, weight, bias)
        found.append([y, *torch.autograd.grad((y * target).sum(), (x, weight, bias))])
    worst = max(error(mine, right) for mine, right in zip(*found, strict=True))
    return "" if worst < 1e-5 else f"products are wrong by {worst:.1%}"


class Pass(NamedTuple):
    """What one pass of a network gives."""

    features: Tensor
    gradients: list[Tensor]
    running: list[Tensor]  # statistics of batch normalisation


def passed(net: nn.Module, x: Tensor, target: Tensor, cast: bool) -> Pass:
    """Return what a network in training gives on a batch."""
    net.train()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=cast):
        features = net(x)
    gradients = torch.autograd.grad((features.to(target.dtype) * target).sum(), list(net.parameters()))
    return Pass(features.detach(), list(gradients), [b for k, b in net.named_buffers() if "running" in k])


def example(shape: Shape, blocks: int = 2) -> ResNet:
    """Return a network with all kernels that a deeper one has, none of its weights as at a beginning."""
    generator = Generator().manual_seed(0)
    net = ResNet(shape.channels, shape.widths, blocks, project=False, last_relu=shape.last_relu)
    initialise(net, generator)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.bias.data.uniform_(-0.3, 0.3, generator=generator)
    return net


class Errors(NamedTuple):
    """Errors of the fused kernels against float64, and PyTorch's own in bf16; whether the same batch has the same bits.

    Of features, of each gradient, of each running statistic, and of a frozen network's features.
    """

    ours: list[float]
    usual: list[float]
    same: bool


def measure(device: torch.device, shape: Shape, blocks: int = 2, images: int = IMAGES) -> Errors:
    """Return the errors on one batch."""
    generator = Generator().manual_seed(3)
    x = torch.randn(images, shape.channels, shape.side, shape.side, generator=generator)
    target = torch.randn(images, shape.widths[-1], generator=generator)

    def all_of(x: Tensor, target: Tensor, fused: bool, cast: bool) -> list[Tensor]:
        nets = [example(shape, blocks).to(x.device, x.dtype) for _ in range(2)]
        for net in nets if fused else []:
            net.fuse((shape.channels, shape.side, shape.side))
        frozen = nets[1].eval().requires_grad_(False)
        with torch.no_grad(), torch.autocast(x.device.type, torch.bfloat16, enabled=cast):
            taught = frozen(x)
        found = passed(nets[0], x, target, cast)
        return [found.features, *found.gradients, *found.running, taught]

    truth = all_of(x.double(), target.double(), fused=False, cast=False)
    x, target = x.to(device), target.to(device)
    usual = all_of(x, target, fused=False, cast=True)
    ours, again = (all_of(x, target, fused=True, cast=False) for _ in range(2))
    return Errors(
        [error(mine, right) for mine, right in zip(ours, truth, strict=True)],
        [error(mine, right) for mine, right in zip(usual, truth, strict=True)],
        all(torch.equal(mine, other) for mine, other in zip(ours, again, strict=True)),
    )


def network(device: torch.device, shape: Shape) -> str:
    """Say what is wrong with the fused kernels, in a small batch, an odd one and the run's own."""
    for images in sorted({IMAGES, ODD, shape.batch}):
        if why := judged(measure(device, shape, images=images)):
            return f"in a batch of {images}, {why}"
    return ""


def judged(found: Errors) -> str:
    """Say what is wrong with such errors. On one batch ours may be twice the usual ones; what is wrong is far off."""
    for mine, theirs in zip(found.ours, found.usual, strict=True):
        if not mine < 2 * theirs + 2e-2:
            return f"they are wrong by {mine:.1%}, where PyTorch in bf16 is by {theirs:.1%}"
    return "" if found.same else "the same batch gives other bits the second time"


def main(number: str, text: str) -> None:
    """Try a GPU, and tell what is wrong, one line for each part as it is done."""
    torch.cuda.set_device(int(number))
    device = torch.device("cuda", int(number))
    torch.zeros(1, device=device).cpu()
    print(READY, flush=True)
    values = json.loads(text)
    shape = Shape(values[0], tuple(values[1]), *values[2:]) if values else None
    torch.backends.cudnn.deterministic = True
    here_and_now(device, shape, lambda name, why: print(json.dumps([name, why]), flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
