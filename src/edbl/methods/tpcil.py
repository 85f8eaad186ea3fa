"""TPCIL: the topology of the feature space is kept."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from edbl.config import magnitude, option
from edbl.data.mixing import Batch
from edbl.data.stream import KINDS, Task
from edbl.losses import cross_entropy
from edbl.methods.base import Method, Phase
from edbl.nets.exact import exactly
from edbl.nets.heads import CosineHead

ROUNDS = 20  # of the neural gas


class TPCIL(Method):
    """Cross-entropy, and a graph over exemplars whose edges shall keep their order of similarity.

    The graph is made anew for each task from the exemplars and the old net. Its images, the anchors, go through the net
    behind each batch.
    """

    name = "tpcil"
    title = "Topology-preserving class-incremental learning"
    source = "Tao et al. 2020"
    year = 2020
    our_reading = True
    head = CosineHead
    last_relu = False
    streams = KINDS
    paper: ClassVar[Mapping[str, object]] = {
        "schedule.epochs": 160,
        "schedule.milestones": (80, 120),
        "optim.weight_decay": 5e-4,
    }

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        topology_weight: float = magnitude(1.0, "weight lambda of the topology-preserving loss", 0.1, 10)
        vertices: int = option(
            128, "most vertices of the graph, each with an image that every step shows", least=2, most=4096
        )

    config: Config
    anchors: Tensor | None = None  # images of the vertices, as the net takes them
    edges: Tensor  # [edges, 2]
    before: Tensor  # their similarities under the old net

    def begin(self, task: Task, generator: Generator) -> None:
        """Make the graph of the old classes, then let the head grow."""
        if task.old:
            images = self.memory.images
            points = F.normalize(self.features(images))
            vertices = neural_gas(points, min(self.config.vertices, len(images)), generator)
            chosen = torch.cdist(vertices, points).argmin(1).unique()  # the image nearest to each vertex, once
            self.anchors = self.normalise(images.x[chosen])
            self.edges = hebbian_edges(points, points[chosen])
            self.before = similarities(points[chosen], self.edges)
        super().begin(task, generator)

    def phases(self, task: Task) -> Iterator[Phase]:
        """Yield one phase; where all classes are learnt again, as a first task, there is no graph to keep."""
        if not task.old:
            self.anchors = None
        yield from super().phases(task)

    def loss(self, batch: Batch) -> Tensor:
        """Return cross-entropy plus lambda times the topology-preserving loss; in the first task the former alone."""
        if self.anchors is None:
            return super().loss(batch)
        output = self.net(torch.cat([batch.x, self.anchors]))
        logits, features = output.logits[: len(batch.x)], output.features[len(batch.x) :]
        topology = topology_loss(self.before, similarities(features, self.edges))
        return cross_entropy(logits, batch.y).mean() + self.config.topology_weight * topology


def neural_gas(points: Tensor, count: int, generator: Generator) -> Tensor:
    """Return ``count`` vertices that spread over the points as these do, ``[count, width]``.

    In each round every vertex moves to the mean of all points, weighed by ``exp(-rank / reach)`` of the vertex among
    those nearest to the point; the reach shrinks to nothing.
    """
    vertices = points[torch.randperm(len(points), generator=generator)[:count].to(points.device)]
    for number in range(ROUNDS):
        reach = (count / 2) ** (1 - number / (ROUNDS - 1)) * 0.01 ** (number / (ROUNDS - 1))
        ranks = torch.cdist(points, vertices).argsort(1).argsort(1)  # [points, count]
        weights = torch.exp(-ranks / reach)
        total = weights.sum(0).unsqueeze(1)
        # A vertex that is no point's nearest stays where it is.
        vertices = torch.where(total > 1e-6, weights.T @ points / total.clamp(min=1e-6), vertices)
    return vertices


def hebbian_edges(points: Tensor, vertices: Tensor) -> Tensor:
    """Return the pairs of vertices that are nearest and second nearest to some point, ``[edges, 2]``, smaller first."""
    nearest = torch.cdist(points, vertices).topk(min(2, len(vertices)), largest=False).indices
    edges: Tensor = nearest.sort(1).values.unique(dim=0)
    return edges


@exactly
def similarities(features: Tensor, edges: Tensor) -> Tensor:
    """Return the cosine of the features at both ends of each edge, ``[edges]``."""
    unit = F.normalize(features)
    return (unit[edges[:, 0]] * unit[edges[:, -1]]).sum(1)


def topology_loss(before: Tensor, now: Tensor) -> Tensor:
    """Return minus the Pearson correlation of the similarities under the old net and under the present one."""
    return -F.cosine_similarity(before - before.mean(), now - now.mean(), dim=0)
