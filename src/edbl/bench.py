"""Speed of the training step, side by side with a plain PyTorch loop and with the bare network, in one run.

All three train a second task of RKD: student, teacher, cross-entropy and distillation, on random images of CIFAR's
shape. Only ratios within one run mean anything; absolute times belong to the device that the header names.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from edbl.data.augment import Transform
from edbl.data.images import Images
from edbl.data.mixing import Batch
from edbl.data.stream import Task
from edbl.engine import environment
from edbl.engine.step import Step
from edbl.memory import Budget, Memory
from edbl.methods.base import Method
from edbl.methods.rkd import RKD
from edbl.nets import backbones
from edbl.nets.heads import LinearHead
from edbl.nets.net import Net
from edbl.schedule import Optim, Schedule

OLD, NEW, EXEMPLARS, IMAGES = 20, 20, 2000, 10_000  # CIFAR-100, Base-0, 5 phases, second task
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
REPEATS = 3
WARM_UP = 5


@dataclass(frozen=True)
class Row:
    """One way to train, and what it takes."""

    name: str
    milliseconds: float  # of one step, median of the repeats
    images_per_second: float
    of_bare: float  # times the bare network's step


def measure(device: torch.device, backbone: str, batch: int, steps: int, workers: int) -> dict[str, Any]:
    """Return the header and the rows of a benchmark."""
    gpu = device.type == "cuda"
    ways: dict[str, Callable[[], None]] = {}
    if gpu:
        ways["edbl"] = engine(device, backbone, batch, bf16=True, graph=True)
        ways["edbl, fp32, no graph"] = engine(device, backbone, batch, bf16=False, graph=False)
    else:
        ways["edbl"] = engine(device, backbone, batch, bf16=False, graph=False)
    ways["bare network"] = bare(device, backbone, batch)
    ways[f"plain loop, {workers} workers"] = plain(device, backbone, batch, workers)
    ways["edbl's data path alone"] = data_path(device, batch)
    times = {name: seconds(step, steps, device) for name, step in ways.items()}
    rows = [Row(n, 1000 * t, batch / t, t / times["bare network"]) for n, t in times.items()]
    return {
        "device": environment.describe(device),
        "versions": environment.versions(),
        "commit": environment.commit(),
        "backbone": backbone,
        "batch": batch,
        "n": f"{REPEATS} times {steps} steps, median",
        "rows": [asdict(row) for row in rows],
    }


def seconds(step: Callable[[], None], steps: int, device: torch.device) -> float:
    """Return the seconds of one step."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(WARM_UP if device.type == "cuda" else 1):
        step()
    taken = []
    for _ in range(REPEATS):
        wait()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        wait()
        taken.append((time.perf_counter() - began) / steps)
    return statistics.median(taken)


def learner(device: torch.device, backbone: str, batch: int) -> tuple[Method, Task]:
    """Return RKD at the beginning of its second task."""
    generator = torch.Generator().manual_seed(0)
    body = backbones.build(backbone, (3, 32, 32), generator)
    net = Net(body, LinearHead(body.width)).to(device)
    pixels = torch.randint(0, 256, (EXEMPLARS + IMAGES, 3, 32, 32), dtype=torch.uint8, generator=generator).to(device)
    old = torch.arange(OLD, device=device).repeat_interleave(EXEMPLARS // OLD)
    memory = Memory(Budget("total", EXEMPLARS))
    memory.replace(Images(pixels[:EXEMPLARS], old))
    train = Images(pixels[EXEMPLARS:], OLD + torch.arange(IMAGES, device=device) % NEW)
    method = RKD(net, memory, RKD.Config(), Schedule(), Optim(batch=batch), features=lambda images: images.x)
    net.grow(OLD, generator)
    task = Task(1, OLD, NEW, train, train, train)
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
    draws = torch.Generator(device).manual_seed(1)
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


def training_step(method: Method, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    """Return forward, backward and update as everybody writes them."""
    optimiser = torch.optim.SGD(method.net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=2e-4)
    classes = torch.arange(OLD + NEW, device=device)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = method.loss(Batch(x, (y.unsqueeze(1) == classes).float()))
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        return loss

    return step


def bare(device: torch.device, backbone: str, batch: int) -> Callable[[], None]:
    """Return forward, backward and update on one batch that is there already."""
    method, _ = learner(device, backbone, batch)
    step = training_step(method, device)
    x, y = torch.randn(batch, 3, 32, 32, device=device), torch.arange(batch, device=device) % (OLD + NEW)

    def one() -> None:
        step(x, y)

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
    step = training_step(method, device)
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


def data_path(device: torch.device, batch: int) -> Callable[[], None]:
    """Return gathering, cropping, flipping and normalising alone."""
    method, task = learner(device, "mlp", batch)
    draw = method.draw(task)
    draws = torch.Generator(device).manual_seed(1)
    transform = Transform.of("crop-flip", 4, MEAN, STD, device)
    indices = draw.sampler(draws)
    made = 0

    def one() -> None:
        nonlocal made
        made += 1
        transform.augment(draw.data[indices[made % len(indices)]].x, draws)

    return one
