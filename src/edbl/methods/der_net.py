"""DER-Net: a backbone for each task."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Generator, Tensor, nn

from edbl.config import Search, option
from edbl.data.images import Images
from edbl.data.mixing import Batch
from edbl.data.samplers import Uniform
from edbl.data.stream import KINDS, Task
from edbl.errors import EdblError
from edbl.losses import cross_entropy
from edbl.methods.base import Draw, Method, Phase
from edbl.nets.backbones import Backbone, Watch
from edbl.nets.net import LinearHead, Net, Output
from edbl.schedule import Schedule


class ExpandingNet(Net):
    """A net that gets a further backbone with each task; all but the newest are frozen, statistics included."""

    head: LinearHead
    aux: LinearHead | None  # on the newest backbone: all old classes as one, then each new one

    def __init__(self, make: Callable[[Generator], Backbone], generator: Generator) -> None:
        backbone = make(generator)
        super().__init__(backbone, LinearHead(backbone.width))
        self.make = make
        self.old = nn.ModuleList()
        self.register_module("aux", None)

    def forward(self, x: Tensor, watch: Watch | None = None) -> Output:
        """Return logits and the features of all backbones side by side, the newest one's last; that one is watched."""
        features = torch.cat([*(old(x) for old in self.old), self.backbone(x, watch)], 1)
        return Output(self.head(features), features)

    def grow(self, new: int, generator: Generator) -> None:
        """Add ``new`` classes and, unless they are the first, a backbone that starts as a copy of the last one."""
        if self.head.sizes:
            self.backbone.zero_grad()  # or it would keep its last gradients, and their memory
            self.old.append(self.backbone.eval().requires_grad_(False))
            self.backbone = self.make(generator).to(self.head.weight.device)
            self.backbone.load_state_dict(self.old[-1].state_dict())
            self._widen(generator)
            self.aux = LinearHead(self.backbone.width).to(self.head.weight.device)
            self.aux.grow(new + 1, generator)
        self.head.grow(new, generator)

    def _widen(self, generator: Generator) -> None:
        """Let the head take the newest features too; what it made of the others stays."""
        before, width = self.head, self.head.weight.shape[1]
        self.head = LinearHead(width + self.backbone.width).to(before.weight.device)
        for size in before.sizes:
            self.head.grow(size, generator)
        self.head.weight.data[:, :width] = before.weight.data
        self.head.bias.data.copy_(before.bias.data)

    def remove(self, number: int) -> None:
        """Refuse: a class's features would stay."""
        raise EdblError("`der-net` cannot forget a class: the backbone that learnt it would stay")

    def restart(self, generator: Generator) -> None:
        """Forget everything learnt: one backbone is left, and the head has no class."""
        super().restart(generator)
        self.head = LinearHead(self.backbone.width).to(self.head.weight.device)
        self.old = nn.ModuleList()
        self.aux = None

    def train(self, mode: bool = True) -> Self:
        """Set the mode; frozen backbones stay in evaluation mode."""
        super().train(mode)
        self.old.eval()
        return self


class DERNet(Method):
    """A new backbone for each task beside the frozen old ones, then a head retrained on balanced data.

    DER without its mask and pruning, which the authors' code lacks too.
    """

    name = "der-net"
    title = "Dynamically expandable representation, without pruning"
    source = "Yan, Xie and He 2021"
    year = 2021
    streams = KINDS
    paper: ClassVar[Mapping[str, object]] = {
        "schedule.epochs": 170,
        "schedule.milestones": (110, 130),
        "optim.weight_decay": 5e-4,
        "optim.warmup": 10,
        "data.brightness": 63 / 255,
    }
    net: ExpandingNet

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        aux_weight: float = option(
            1.0, "weight of the auxiliary loss on the newest features", least=0, search=Search(0, 3)
        )
        temperature: float = option(
            5.0, "temperature of the softmax while the head is retrained", least=1e-3, search=Search(1, 10, log=True)
        )
        tune: Schedule = Schedule(epochs=30, lr=0.1, milestones=(15,))

    config: Config

    @classmethod
    def build(cls, make: Callable[[Generator], Backbone], generator: Generator) -> Net:
        """Return a net that will ask ``make`` for more backbones."""
        return ExpandingNet(make, generator)

    def begin(self, task: Task, generator: Generator) -> None:
        """Let the net expand; draw the head and the images with which stage 2 will start."""
        super().begin(task, generator)
        if task.old:
            self.fresh = LinearHead(self.net.head.weight.shape[1])
            self.fresh.grow(task.seen, generator)
            self.balanced = balanced(Images.cat([self.memory.images, task.train]), task.seen, generator)

    def phases(self, task: Task) -> Iterator[Phase]:
        """Yield the stage of the features, then that of the head."""
        yield from super().phases(task)
        if task.old:
            head = self.net.head
            head.load_state_dict(self.fresh.state_dict())
            draw = Draw(self.balanced, Uniform(len(self.balanced), self.optim.batch))
            tune = self.phase("tune", draw, self.config.tune, self.tune_loss)
            optim = replace(self.optim, warmup=0)
            yield replace(tune, params=list(head.parameters()), optim=optim, train_mode=False)

    def loss(self, batch: Batch) -> Tensor:
        """Return cross-entropy, plus that of the auxiliary head on the newest features from the second task on."""
        logits, features, _ = self.net(batch.x)
        loss = cross_entropy(logits, batch.y)
        if self.net.aux is not None:
            newest = features[:, -self.net.backbone.width :]
            loss = loss + self.config.aux_weight * auxiliary_loss(self.net.aux(newest), batch.y)
        return loss.mean()

    def tune_loss(self, batch: Batch) -> Tensor:
        """Return the cross-entropy at a temperature."""
        return cross_entropy(self.net(batch.x).logits / self.config.temperature, batch.y).mean()


def auxiliary_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy over all old classes as one, which comes first, and each new one, ``[batch]``."""
    old = y.shape[1] - logits.shape[1] + 1
    return cross_entropy(logits, torch.cat([y[:, :old].sum(1, keepdim=True), y[:, old:]], 1))


def balanced(images: Images, classes: int, generator: Generator) -> Images:
    """Return as many images of each class as the smallest has, drawn at random."""
    counts = images.counts(classes)
    first = (counts.cumsum(0) - counts).unsqueeze(1)
    return images[images.shuffled(generator)[(first + torch.arange(int(counts.min()), device=first.device)).flatten()]]
