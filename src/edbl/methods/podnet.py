"""PODNet: pooled outputs of blocks are distilled, and each class has several proxies."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Generator, Tensor
from torch.nn import functional as F
from torch.nn.utils import clip_grad_value_

from edbl.config import magnitude, option
from edbl.data.mixing import Batch
from edbl.data.samplers import Uniform
from edbl.data.stream import Task
from edbl.errors import EdblError
from edbl.losses import less_forget
from edbl.methods.base import Draw, Method, Phase
from edbl.nets.backbones import Backbone
from edbl.nets.heads import ProxyHead
from edbl.nets.net import Net, Output, linear
from edbl.schedule import Schedule

ROUNDS = 20  # of k-means; it has settled long before


class PODNet(Method):
    """Pooled outputs distillation (Douillard et al., ECCV 2020), as for CIFAR."""

    name = "podnet"
    title = "PODNet: pooled outputs distillation, several proxies per class"
    source = "Douillard et al. 2020"
    year = 2020
    distils = True
    head = ProxyHead
    last_relu = False
    needs = "blocks"
    streams = frozenset({"returning"})
    paper: ClassVar[Mapping[str, object]] = {
        "schedule.epochs": 160,
        "schedule.milestones": (),
        "schedule.shape": "cosine",
        "optim.weight_decay": 5e-4,
        "data.brightness": 63 / 255,
    }

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        spatial: float = magnitude(3.0, "weight of POD-spatial, times sqrt(seen / new classes)", 0.3, 30)
        flat: float = magnitude(1.0, "weight of POD-flat, times sqrt(seen / new classes)", 0.1, 10)
        clamp: float = option(5.0, "largest element of a gradient", least=1e-6)
        tune: Schedule = Schedule(epochs=20, lr=0.05, milestones=())

    config: Config

    def begin(self, task: Task, generator: Generator) -> None:
        """Prepare for a task; proxies of new classes point along centres of their normalised features."""
        if not self.net.backbone.ends:
            raise EdblError("podnet distils what blocks of the backbone return, and this one has none; use another")
        super().begin(task, generator)
        if task.old:
            new = task.train.of(range(task.old, task.seen))
            vectors, labels = F.normalize(self.features(new)), new.y - task.old
            head = self.net.head_as(ProxyHead)
            head.imprint(kmeans(vectors, labels, task.new, head.rows, generator))

    def phases(self, task: Task) -> Iterator[Phase]:
        """Yield the phase that trains all but old proxies, then one for the proxies, on balanced exemplars."""
        yield self.clamped(self.main_phase(task, self.draw(task)))
        if not task.old:
            return
        exemplars = self.memory.with_new(task.train, self.features).images
        head = self.net.head_as(ProxyHead)
        head.thaw()
        draw = Draw(exemplars, Uniform(len(exemplars), self.optim.batch))
        tune = self.phase("tune", draw, self.config.tune, self.tune_loss)
        yield self.clamped(replace(tune, params=[head.old, head.weight], optim=replace(self.optim, warmup=0)))

    def clamped(self, phase: Phase) -> Phase:
        """Return the phase with clamped gradients; its loss asks the teacher by itself."""
        return replace(phase, teacher=None, adjust=lambda _: clip_grad_value_(phase.params, self.config.clamp))

    def loss(self, batch: Batch) -> Tensor:
        """NCA loss, POD-spatial and POD-flat; in the first task the NCA loss alone."""
        if self.teacher is None:
            return self.classify(self.net(batch.x).logits, batch.y)
        output, maps = outputs_and_maps(self.net, batch.x)
        with torch.no_grad():
            teacher, old_maps = outputs_and_maps(self.teacher.net, batch.x)
        scale = math.sqrt(batch.y.shape[1] / self.net.head.sizes[-1])
        distances = [pod_spatial(a, b).mean() for a, b in zip(maps, old_maps, strict=True)]
        spatial = self.config.spatial * torch.stack(distances).mean()
        flat = self.config.flat * less_forget(output.features, teacher.features).mean()
        return self.classify(output.logits, batch.y) + scale * (spatial + flat)

    def tune_loss(self, batch: Batch) -> Tensor:
        """NCA loss; the proxies have no part in POD, and nothing else learns."""
        with torch.no_grad():
            features = self.net.backbone(batch.x)
        return self.classify(self.net.head(features), batch.y)

    def classify(self, similarities: Tensor, y: Tensor) -> Tensor:
        """Return the mean NCA loss."""
        return nca(similarities, y, self.net.head_as(ProxyHead).scale).mean()


def watched(backbone: Backbone) -> Sequence[int]:
    """Return the blocks whose output is distilled: the last of each stage; below four stages the one before, too."""
    last = backbone.ends[-1]
    return sorted({*backbone.ends, last - 1} if len(backbone.ends) < 4 else backbone.ends)


def outputs_and_maps(net: Net, x: Tensor) -> tuple[Output, list[Tensor]]:
    """Return the net's output, and what its watched blocks return before their ReLU."""
    wanted, maps = watched(net.backbone), []

    def watch(number: int, map_: Tensor) -> Tensor:
        if number in wanted:
            maps.append(map_)
        return map_

    return net(x, watch), maps


def pooled(maps: Tensor) -> Tensor:
    """Return the squares summed along width and along height, side by side and normalised, ``[batch, c (h + w)]``."""
    squares = maps.float().square()
    squares = squares if squares.ndim == 4 else squares.view(*squares.shape, 1, 1)
    return F.normalize(torch.cat([squares.sum(3).flatten(1), squares.sum(2).flatten(1)], 1))


def pod_spatial(maps: Tensor, teacher: Tensor) -> Tensor:
    """Return the distance between pooled outputs of a block, ``[batch]``."""
    distance: Tensor = torch.linalg.vector_norm(pooled(maps) - pooled(teacher), dim=1)
    return distance


def nca(similarities: Tensor, y: Tensor, eta: Tensor) -> Tensor:
    """NCA loss of one-hot labels, ``[batch]``; s is eta times the similarities, and j runs over all other classes.

    As released, ``log(exp(max s) + sum_j exp(s_j)) - s_y``: cross-entropy where the true class is the highest. The
    printed form has a margin and no lower bound.
    """
    scores = eta * similarities
    own = (y * scores).sum(1)
    others = scores.masked_fill(y > 0, -torch.inf)
    return torch.cat([others, scores.amax(1, keepdim=True)], 1).logsumexp(1) - own


def kmeans(vectors: Tensor, labels: Tensor, classes: int, centres: int, generator: Generator) -> Tensor:
    """Return centres of each class's vectors, ``[classes * centres, width]``, found by k-means from k-means++.

    A class with fewer vectors than centres has some of them several times.
    """
    count = torch.arange(classes, device=labels.device)
    own = labels == count.unsqueeze(1)  # [classes, n]
    race = torch.empty(centres, len(vectors)).exponential_(generator=generator).to(vectors.device)
    chosen: list[Tensor] = []  # [classes, width] each
    nearest = torch.ones_like(race[0])  # squared distance to the nearest centre of the own class
    for draws in race:
        # The first to come in an exponential race comes with probability proportional to its squared distance.
        first = (draws / nearest.clamp(min=1e-12)).where(own, torch.inf).argmin(1)
        chosen.append(vectors[first])
        distance = (vectors - chosen[-1][labels]).square().sum(1)
        nearest = distance if len(chosen) == 1 else nearest.minimum(distance)
    found = torch.stack(chosen, 1)  # [classes, centres, width]
    clusters = torch.arange(classes * centres, device=labels.device).unsqueeze(1)
    for _ in range(ROUNDS):
        closeness = 2 * linear(vectors, found.flatten(0, 1)) - found.flatten(0, 1).square().sum(1)
        mine = closeness.view(-1, classes, centres).take_along_dim(labels.view(-1, 1, 1), 1).squeeze(1)
        members = (labels * centres + mine.argmax(1) == clusters).float()  # [classes * centres, n]
        size = members.sum(1, keepdim=True)
        means = linear(members, vectors.T) / size.clamp(min=1)
        found = means.where(size > 0, found.flatten(0, 1)).view_as(found)
    return found.flatten(0, 1)
