"""A search for the launch table of a GPU, and where it is kept. Whatever it finds, results have the same bits."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from edbl.data.devices import has_triton
from edbl.engine import environment, trial
from edbl.engine.trial import Pass, Shape, example
from edbl.errors import EdblError
from edbl.nets import launch
from edbl.nets.backbones import ResNet
from edbl.nets.launch import Free, Table

SECONDS = 60.0  # that a search takes
ROUNDS, STEPS = 5, 20
GAIN = 0.99  # of the time: what gains less is noise
BATCH = 128
BLOCKS = 5  # of each stage, as ResNet-32 has them
SHAPE = Shape(3, (16, 32, 64), True, 32)


@dataclass(frozen=True)
class Search:
    """What a search found: the table, how long a step takes with the usual one and with this, and how far it came."""

    table: Table
    before: float  # milliseconds
    after: float
    tried: int
    of: int
    refused: int  # choices that do not compile, or give other bits


def keep(device: torch.device, found: Search) -> Path:
    """Keep what a search found; return the file."""
    return launch.keep(device, found.table)


class Step:
    """Forward and back of a student, and forward of a teacher, with a table."""

    def __init__(self, device: torch.device) -> None:
        generator = Generator().manual_seed(5)
        self.x = torch.randn(BATCH, SHAPE.channels, SHAPE.side, SHAPE.side, generator=generator).to(device)
        self.target = torch.randn(BATCH, SHAPE.widths[-1], generator=generator).to(device)
        self.device = device
        self.student = self._net().train()
        self.teacher = self._net().eval().requires_grad_(False)

    def _net(self) -> ResNet:
        net = example(SHAPE, BLOCKS).to(self.device)
        net.fuse((SHAPE.channels, SHAPE.side, SHAPE.side))
        if net.fused is None:
            raise EdblError("there are no fused kernels for this device, and so nothing to tune")
        return net

    def use(self, table: Table) -> None:
        """Take another table."""
        for net in (self.student, self.teacher):
            assert net.fused is not None
            net.fused.table = table

    def bits(self) -> list[Tensor]:
        """Return all that a step gives, from the same state each time."""
        before = {k: v.clone() for k, v in self.student.state_dict().items()}
        found: Pass = trial.passed(self.student, self.x, self.target, cast=False)
        running = [statistic.clone() for statistic in found.running]
        self.student.load_state_dict(before)
        with torch.no_grad():
            return [found.features, *found.gradients, *running, self.teacher(self.x)]

    def __call__(self) -> None:
        """Make a step."""
        trial.passed(self.student, self.x, self.target, cast=False)
        with torch.no_grad():
            self.teacher(self.x)


class _Timed(NamedTuple):
    """A choice, and the graph of a step with it."""

    table: Table
    graph: torch.cuda.CUDAGraph


def search(device: torch.device, seconds: float = SECONDS, say: Callable[[str], None] = lambda _: None) -> Search:
    """Search for the best table of a device, one kernel after the other, until the time is over."""
    if device.type != "cuda" or torch.version.hip or not has_triton():
        raise EdblError(f"{environment.describe(device)} has no launch table; only NVIDIA's GPUs with Triton have one")
    end = time.monotonic() + seconds
    step = Step(device)
    best = _captured(step, {})
    usual, right = best, step.bits()
    every = list(_choices())
    tried = refused = 0
    for name, free in every:
        if time.monotonic() > end:
            break
        say(f"{name}: {_told(free)}")
        tried += 1
        table = {**best.table, name: free}
        try:
            step.use(table)
            same = all(torch.equal(a, b) for a, b in zip(step.bits(), right, strict=True))
            other = _captured(step, table) if same else None
        except Exception as error:  # of a compiler, or of a program that needs more than there is
            if isinstance(error, torch.AcceleratorError):  # the device is lost for this process
                raise
            other = None
        if other is None:
            refused += 1
        elif _ratio(other, best) < GAIN:
            best = other
    before, after = _times(usual, best)
    return Search(best.table, before, after, tried, len(every), refused)


def _choices() -> Iterator[tuple[str, Free]]:
    """Yield what can be chosen, what most is gained by first."""
    for kernel in ("forward", "data", "infer", "weight", "activate"):
        for width in launch.WIDTHS:
            for free in launch.choices(kernel)[1:]:
                yield f"{kernel}.{width}", free


def _told(free: Free) -> str:
    return f"{free.registers} registers" if free.registers else f"{free.block} pixels, {free.warps} warps"


def _captured(step: Step, table: Table) -> _Timed:
    step.use(table)
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return _Timed(table, graph)


def _times(*ways: _Timed) -> list[float]:
    """Return the milliseconds of a step of each way, the medians of rounds in which they take turns."""
    taken: list[list[float]] = [[] for _ in ways]
    for _ in range(ROUNDS):
        for way, times in zip(ways, taken, strict=True):
            way.graph.replay()
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(STEPS):
                way.graph.replay()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - began) / STEPS * 1000)
    return [statistics.median(times) for times in taken]


def _ratio(one: _Timed, other: _Timed) -> float:
    mine, theirs = _times(one, other)
    return mine / theirs
