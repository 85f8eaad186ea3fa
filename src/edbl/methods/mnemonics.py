"""Mnemonics: exemplars whose pixels are learnt."""

from collections.abc import Generator as Steps
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from edbl.config import option
from edbl.data.images import Images
from edbl.data.mixing import Batch
from edbl.data.samplers import Uniform
from edbl.data.stream import Task
from edbl.errors import EdblError
from edbl.losses import cross_entropy
from edbl.methods.base import Draw, Phase
from edbl.methods.options import Distilling
from edbl.methods.rkd import RKD
from edbl.nets.exact import exactly
from edbl.nets.heads import CosineHead, class_sums, cosines
from edbl.nets.net import linear
from edbl.schedule import Schedule


class Mnemonics(RKD):
    """Cosine head and distillation; after each task the pixels of the exemplars are learnt, while the network stays.

    Two levels: a classifier is made from exemplars, and its cross-entropy on other images is minimised in their pixels.
    """

    name = "mnemonics"
    title = "Mnemonics: exemplars whose pixels are learnt"
    source = "Liu et al. 2020"
    year = 2020
    our_reading = True
    head = CosineHead
    last_relu = False
    needs = "pixels"
    paper: ClassVar[Mapping[str, object]] = {
        "schedule.epochs": 160,
        "schedule.milestones": (80, 120),
        "optim.weight_decay": 5e-4,
        "options.transfer": "scale",
        "options.exemplars.epochs": 1,
        "options.exemplars.lr": 1e-5,
    }

    @dataclass(frozen=True)
    class Config(Distilling):
        """Settings."""

        kd_scale: Literal["t2", "none"] = option(
            "none", "t2: distillation times the squared temperature; none: not (A4)"
        )
        transfer: Literal["all", "scale"] = option("all", "later tasks learn all weights, or a factor for each kernel")
        exemplars: Schedule = Schedule(epochs=5, lr=1.0, milestones=())

    config: Config

    def begin(self, task: Task, generator: Generator) -> None:
        """Imprint the new classes and, from the second task on, freeze the kernels up to a factor for each."""
        if self.normalise(task.train.x[:1]).shape != task.train.x[:1].shape:
            raise EdblError(
                "mnemonics learns images, and cannot where several views stand for each; use another method"
            )
        super().begin(task, generator)
        if not task.old:
            return
        sums = class_sums(self.features(task.train), task.train.y - task.old, task.new)
        self.net.head_as(CosineHead).imprint(sums)
        if self.config.transfer == "scale":
            for layer in list(self.net.backbone.modules()):
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    layer.weight.requires_grad_(False)
                    parametrize.register_parametrization(layer, "weight", Scale(layer.weight))

    def phases(self, task: Task) -> Iterator[Phase]:
        """Yield the phase of the net, then those of the pixels: new classes, and each half of the old ones."""
        yield from super().phases(task)
        for layer in list(self.net.backbone.modules()):
            if parametrize.is_parametrized(layer, "weight"):
                parametrize.remove_parametrizations(layer, "weight")
        self.net.backbone.requires_grad_(True)
        memory = self.memory.with_new(task.train, self.features)
        images, counts = memory.images, [len(images) for images in memory.classes]
        starts = [sum(counts[:k]) for k in range(len(counts))]
        device = images.y.device

        def every_other(first: int) -> Tensor:
            own = [torch.arange(starts[k] + first, starts[k] + counts[k], 2, device=device) for k in range(task.old)]
            return torch.cat(own)

        new = torch.arange(sum(counts[: task.old]), len(images), device=device)
        if task.new:
            images.x[new] = yield from self.learn("exemplars", images, new, task.train)
        if task.old and min(counts[: task.old]) > 1:
            first, second = every_other(0), every_other(1)
            images.x[first] = yield from self.learn("old-first", images, first, images[second])
            images.x[second] = yield from self.learn("old-second", images, second, images[first])
        self.memory.replace(images)

    def learn(self, name: str, images: Images, own: Tensor, data: Images) -> Steps[Phase, None, Tensor]:
        """Yield the phase that learns the pixels of some exemplars by the images of ``data``, and return them."""
        learnt, judge = images[own], self.net.frozen().backbone
        features = self.features(images)
        means = means_by_class(features, images.y, features.new_zeros(self.net.head.classes, features.shape[1]))
        pixels = nn.Parameter(self.normalise(learnt.x).clone())

        def loss(batch: Batch) -> Tensor:
            kept = self.normalise(self.stored(pixels.detach(), learnt.x))
            # The images as they will be kept; gradients pass the rounding by.
            features, seen = judge(pixels + (kept - pixels).detach()), judge(batch.x)
            return cross_entropy(cosines(seen, means_by_class(features, learnt.y, means)), batch.y).mean()

        self.net.register_parameter("exemplars", pixels)
        optim = replace(self.optim, weight_decay=0.0, warmup=0)
        draw = Draw(data, Uniform(len(data), self.optim.batch))
        yield Phase(name, draw, self.config.exemplars, loss, [pixels], optim, train_mode=False)
        del self.net.exemplars
        return self.stored(pixels.detach(), learnt.x)

    def stored(self, x: Tensor, like: Tensor) -> Tensor:
        """Return what the net takes as the memory keeps it: levels from 0 to 255, or vectors as they are."""
        black = self.normalise(torch.zeros_like(like[:1]))
        levels = (x - black) / (self.normalise(torch.ones_like(like[:1])) - black)
        return levels if like.is_floating_point() else levels.round().clamp(0, 255).to(like.dtype)

    def end(self, task: Task) -> None:
        """Leave the memory as it is: it was refreshed by the last phase."""


class Scale(nn.Module):
    """A weight times one factor for each pair of an output and an input channel."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(weight.shape[:2] + (1,) * (weight.ndim - 2), device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the scaled weight."""
        return weight * self.factor


@exactly
def means_by_class(features: Tensor, y: Tensor, otherwise: Tensor) -> Tensor:
    """Return the normalised mean of each class's normalised features; a class without any keeps ``otherwise``."""
    members = (y == torch.arange(len(otherwise), device=y.device).unsqueeze(1)).float()  # [seen, n]
    means = F.normalize(linear(members, F.normalize(features).T))
    return torch.where(members.sum(1, keepdim=True) > 0, means, otherwise)
