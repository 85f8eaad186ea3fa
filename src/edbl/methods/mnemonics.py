"""Mnemonics: exemplars whose pixels are learnt."""

from collections.abc import Generator as Steps
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

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
from edbl.methods.lucir import class_sums
from edbl.methods.rkd import RKD
from edbl.nets.exact import exactly
from edbl.nets.heads import CosineHead, cosines
from edbl.nets.linear import linear
from edbl.schedule import Schedule


class Mnemonics(RKD):
    """Cosine head and distillation; after each task the pixels of the exemplars are learnt, the net standing still.

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
    by_libraries = True
    paper: ClassVar[Mapping[str, object]] = {
        "schedule.epochs": 160,
        "schedule.milestones": (80, 120),
        "optim.weight_decay": 5e-4,
        "options.transfer": "scale",
        "options.exemplars.epochs": 1,
        "options.exemplars.lr": 1e-5,
    }

    @dataclass(frozen=True)
    class Config(RKD.Config):
        """Settings."""

        kd_scale: Literal["t2", "none"] = option("none", "multiply distillation by the squared temperature or not (A4)")
        transfer: Literal["all", "scale"] = option("all", "later tasks learn all weights, or a factor for each kernel")
        level: Literal["nearest-mean", "unrolled"] = option(
            "nearest-mean", "classifier made from exemplars: their class means, or the head after one step on them"
        )
        inner_lr: float = option(0.1, "learning rate of that step", least=0)
        adjust_old: bool = option(True, "learn the pixels of old exemplars too, each half judged by the other")
        exemplars: Schedule = Schedule(epochs=5, lr=1.0, milestones=())

    config: Config

    @property
    def cosine_head(self) -> CosineHead:
        """The net's head."""
        return cast(CosineHead, self.net.head)

    def begin(self, task: Task, generator: Generator) -> None:
        """Imprint the new classes and, from the second task on, freeze the kernels up to a factor for each."""
        if self.normalise(task.train.x[:1]).shape != task.train.x[:1].shape:
            raise EdblError(
                "mnemonics learns images, and cannot where several views stand for each; use another method"
            )
        super().begin(task, generator)
        if not task.old:
            return
        self.cosine_head.imprint(class_sums(self.features(task.train), task.train.y - task.old, task.new))
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
        images.x[new] = yield from self.learn("exemplars", images, new, task.train)
        if task.old and self.config.adjust_old and min(counts[: task.old]) > 1:
            first, second = every_other(0), every_other(1)
            images.x[first] = yield from self.learn("old-first", images, first, images[second])
            images.x[second] = yield from self.learn("old-second", images, second, images[first])
        self.memory.replace(images)

    def learn(self, name: str, images: Images, own: Tensor, data: Images) -> Steps[Phase, None, Tensor]:
        """Yield the phase that learns the pixels of some exemplars by the images of ``data``, and return them."""
        learnt, judge = images[own], self.net.frozen().backbone
        rows = torch.cat([self.cosine_head.old, self.cosine_head.weight.detach()])
        means = means_by_class(self.features(images), images.y, torch.zeros_like(rows))
        scale = self.cosine_head.scale.detach()
        pixels = nn.Parameter(self.normalise(learnt.x).clone())

        def loss(batch: Batch) -> Tensor:
            kept = self.normalise(self.stored(pixels.detach(), learnt.x))
            # The images as they will be kept; gradients pass the rounding by.
            features, seen = judge(pixels + (kept - pixels).detach()), judge(batch.x)
            if self.config.level == "unrolled":
                after = unrolled(features, learnt.y, rows, scale, self.config.inner_lr)
                return cross_entropy(scale * cosines(seen, after), batch.y).mean()
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


@exactly
def unrolled(features: Tensor, y: Tensor, rows: Tensor, scale: Tensor, rate: float) -> Tensor:
    """Return the rows of a cosine head after one step of gradient descent on the cross-entropy of exemplars."""
    rows = rows.detach().requires_grad_()
    labels = (y.unsqueeze(1) == torch.arange(len(rows), device=y.device)).float()
    loss = cross_entropy(scale * cosines(features, rows), labels).mean()
    (gradient,) = torch.autograd.grad(loss, rows, create_graph=True)
    return rows - rate * gradient
