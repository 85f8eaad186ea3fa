"""DER-Net: a backbone for each task."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Generator, Tensor

from edbl.config import Search, option
from edbl.data.images import Images
from edbl.data.mixing import Batch
from edbl.data.samplers import Uniform
from edbl.data.stream import KINDS, Task
from edbl.losses import cross_entropy
from edbl.methods.base import Draw, Method, Phase
from edbl.nets.backbones import Maker
from edbl.nets.expanding import ExpandingNet
from edbl.nets.net import LinearHead, Net
from edbl.schedule import Schedule


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
    def build(cls, make: Maker, generator: Generator) -> Net:
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
