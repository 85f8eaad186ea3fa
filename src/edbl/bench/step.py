"""Speed of the training step, side by side with a plain PyTorch loop and with the bare network, in one run.

All three train a second task of RKD: student, teacher, cross-entropy and distillation, on random images of CIFAR's
shape. They take turns, round by round, so that whatever else the machine does meets all of them. Only ratios within one
run mean anything; absolute times belong to the device that the header names.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset

from edbl.data.augment import Transform
from edbl.data.images import Images
from edbl.data.mixing import Batch, Ratio, VanillaMixup
from edbl.data.samplers import Sampler
from edbl.data.stream import Task
from edbl.engine import environment
from edbl.engine.fit import Step
from edbl.errors import EdblError, unknown
from edbl.memory import Budget, Memory
from edbl.methods.base import Method, Tools
from edbl.methods.rkd import RKD
from edbl.nets import backbones
from edbl.nets.net import LinearHead, Net
from edbl.schedule import Optim, Schedule

OLD, NEW, EXEMPLARS, IMAGES = 20, 20, 2000, 10_000  # CIFAR-100, Base-0, 5 phases, second task
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
ROUNDS = 5
BARE = "bare network"
PRECISIONS = ("auto", "fp32", "bf16")
DATA_STEPS = 100  # timed in a round of the data path at least: it is quick, and draws once an epoch


class Way(NamedTuple):
    """One way to train, and how to time it in each round."""

    step: Callable[[], object]
    steps: int
    warm_up: int  # steps before those


@dataclass(frozen=True)
class Row:
    """What one way takes."""

    name: str
    milliseconds: float  # of one step, median of the rounds
    images_per_second: float
    of_bare: float  # times the bare network's step of the same round, median of the rounds


def measure(
    device: torch.device, backbone: str, batch: int, steps: int | None, workers: int, precision: str = "auto"
) -> dict[str, Any]:
    """Return the header and the rows of a benchmark; if nobody says how many ``steps``, few on a CPU.

    On a CPU, bf16 has a row of its own beside fp32; on a GPU that takes it by itself, fp32 has.
    """
    if batch > EXEMPLARS + IMAGES:
        raise EdblError(f"a batch of {batch} is more than the benchmark has images; use {EXEMPLARS + IMAGES} or less")
    if precision not in PRECISIONS:
        raise unknown("value of precision", precision, PRECISIONS)
    environment.check_precision(precision, device)
    gpu, bf16 = device.type == "cuda", environment.in_bf16(precision, device)
    steps = steps or (100 if gpu else 3)
    warm_up = 5 if gpu else 2
    ways = {"edbl": Way(engine(device, backbone, batch, bf16=gpu and bf16, graph=gpu), steps, warm_up)}
    if gpu or bf16:
        other = "edbl, fp32, no graph" if gpu else "edbl, bf16"
        ways[other] = Way(engine(device, backbone, batch, bf16=not gpu, graph=False), steps, warm_up)
    ways[BARE] = Way(bare(device, backbone, batch), steps, warm_up)
    for name, augment in (("edbl's data path alone", "crop-flip"), ("the same, TrivialAugment", "crop-flip-trivial")):
        ways[name] = Way(data_path(device, batch, augment), max(steps, DATA_STEPS), warm_up)
    # First of all the plain loop uses up the two batches that each worker made ready while the others had their turns.
    ways[f"plain loop, {workers} workers"] = Way(
        plain(device, backbone, batch, workers), steps, max(warm_up, 2 * workers)
    )
    return {
        "device": environment.describe(device),
        "versions": environment.versions(),
        "commit": environment.commit(),
        "backbone": backbone,
        "batch": batch,
        "n": f"{ROUNDS} rounds of {steps} steps, medians",
        "rows": [asdict(row) for row in rows(in_turns(ways, device), batch)],
    }


def in_turns(ways: dict[str, Way], device: torch.device) -> dict[str, list[float]]:
    """Return the seconds of one step of each way, round by round."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            taken[name].append(seconds(way, device))
    return taken


def rows(taken: dict[str, list[float]], batch: int) -> list[Row]:
    """Return the medians of what the rounds took."""
    made = []
    for name, times in taken.items():
        middle = statistics.median(times)
        of_bare = statistics.median(ours / bare for ours, bare in zip(times, taken[BARE], strict=True))
        made.append(Row(name, 1000 * middle, batch / middle, of_bare))
    return made


def seconds(way: Way, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of one step in one round."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(way.warm_up):
        way.step()
    wait()
    began = clock()
    for _ in range(way.steps):
        way.step()
    wait()
    return (clock() - began) / way.steps


def learner(device: torch.device, backbone: str, batch: int) -> tuple[Method, Task]:
    """Return RKD at the beginning of its second task."""
    generator = Generator().manual_seed(0)
    body = backbones.build(backbone, (3, 32, 32), generator)
    net = Net(body, LinearHead(body.width)).to(device)
    pixels = torch.randint(0, 256, (EXEMPLARS + IMAGES, 3, 32, 32), dtype=torch.uint8, generator=generator).to(device)
    old = torch.arange(OLD, device=device).repeat_interleave(EXEMPLARS // OLD)
    memory = Memory(Budget("total", EXEMPLARS))
    memory.replace(Images(pixels[:EXEMPLARS], old))
    train = Images(pixels[EXEMPLARS:], OLD + torch.arange(IMAGES, device=device) % NEW)
    method = RKD(
        net, memory, RKD.Config(), Schedule(), Optim(batch=batch), Tools(lambda net, images: net(images.x.float()))
    )
    net.grow(OLD, generator)
    task = Task(1, OLD, NEW, train)
    method.begin(task, generator)
    net.train()
    return method, task


def engine(device: torch.device, backbone: str, batch: int, *, bf16: bool, graph: bool) -> Callable[[], None]:
    """Return our own step."""
    method, task = learner(device, backbone, batch)
    if bf16 and method.teacher is not None:
        for net in (method.net, method.teacher.net):
            if isinstance(net.backbone, backbones.ResNet):
                net.backbone.fuse((3, 32, 32))
    (phase,) = method.phases(task)
    draws = Generator(device).manual_seed(1)
    transform = Transform.of("crop-flip", 4, MEAN, STD, device)
    step = Step(phase, OLD + NEW, transform, draws, bf16=bf16, graph=graph)
    made = 0

    def one() -> None:
        nonlocal made
        if made == len(step.losses):
            step.begin_epoch(phase.draw.sampler(draws), 0.1)
            made = 0
        made += 1
        step()

    return one


def training_step(method: Method, device: torch.device, *, fused: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Return forward, backward and update as everybody writes them."""
    optimiser = torch.optim.SGD(
        method.net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=2e-4, fused=fused
    )
    classes = torch.arange(OLD + NEW, device=device)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = method.loss(Batch(x, (y.unsqueeze(1) == classes).float()))
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        return loss

    return step


def bare(device: torch.device, backbone: str, batch: int) -> Callable[[], None]:
    """Return forward, backward and update on one batch that is there already, made and updated as the engine does."""
    method, task = learner(device, backbone, batch)
    step = training_step(method, device, fused=True)
    draw = method.draw(task)
    draws = Generator(device).manual_seed(1)
    images = draw.data[draw.sampler(draws)[0]]
    x = Transform.of("crop-flip", 4, MEAN, STD, device).augment(images.x, draws)

    def one() -> None:
        step(x, images.y)

    return one


class PerImage(Dataset[tuple[Tensor, int]]):
    """Images transformed one by one in Python, as toolkits of the field do it."""

    def __init__(self, images: Images) -> None:
        self.x: NDArray[np.uint8] = images.x.cpu().permute(0, 2, 3, 1).contiguous().numpy()
        self.y: list[int] = images.y.tolist()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.fromarray(np.pad(self.x[index], ((4, 4), (4, 4), (0, 0))))
        left, top = (int(v) for v in torch.randint(9, (2,)))
        image = image.crop((left, top, left + 32, top + 32))
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        x = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)
        return (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1), self.y[index]


def plain(device: torch.device, backbone: str, batch: int, workers: int) -> Callable[[], None]:
    """Return a step fed by a DataLoader that transforms images one by one, and that reads its loss each time."""
    method, task = learner(device, backbone, batch)
    step = training_step(method, device, fused=False)
    images = PerImage(method.draw(task).data)
    loader = DataLoader(images, batch, shuffle=True, drop_last=True, num_workers=workers)

    def forever() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from loader

    batches = forever()

    def one() -> None:
        x, y = next(batches)
        step(x.to(device), y.to(device)).item()

    return one


def data_path(device: torch.device, batch: int, augment: str) -> Callable[[], Batch]:
    """Return drawing, gathering, augmenting, normalising and mixing alone."""
    method, task = learner(device, "mlp", batch)
    draw = method.draw(task)
    draws = Generator(device).manual_seed(1)
    transform = Transform.of(augment, 4, MEAN, STD, device)
    one_hot = torch.eye(OLD + NEW, device=device)
    mixing = VanillaMixup(Ratio(1.0, "pass"))
    batches = epochs(draw.sampler, draws)

    def one() -> Batch:
        images = draw.data[next(batches)]
        return mixing(Batch(transform.augment(images.x, draws), one_hot[images.y]), draws)

    return one


def epochs(sampler: Sampler, draws: Generator) -> Iterator[Tensor]:
    """Yield batches of indices, one epoch after the other."""
    while True:
        yield from sampler(draws)
