"""LUCIR: a cosine classifier, features that keep their direction, and a margin between old and new classes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from edbl.config import Search, magnitude, option
from edbl.data.mixing import Batch
from edbl.data.stream import Task
from edbl.losses import cross_entropy, less_forget
from edbl.methods.base import Method
from edbl.nets.heads import CosineHead, class_sums


class LUCIR(Method):
    """Learning a unified classifier incrementally via rebalancing (Hou et al., CVPR 2019), as for CIFAR."""

    name = "lucir"
    title = "LUCIR: cosine classifier, less-forget constraint, margin ranking"
    source = "Hou et al. 2019"
    year = 2019
    distils = True
    head = CosineHead
    last_relu = False
    streams = frozenset({"returning"})
    paper: ClassVar[Mapping[str, object]] = {
        "schedule.epochs": 160,
        "schedule.milestones": (80, 120),
        "optim.weight_decay": 5e-4,
    }

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        lam_base: float = magnitude(5.0, "weight of the less-forget constraint, times sqrt(old / new classes)", 0.5, 50)
        mr_weight: float = magnitude(1.0, "weight of margin ranking", 0.1, 10)
        margin: float = option(
            0.5,
            "by how much an old image's own cosine is to exceed those of new classes",
            least=0,
            search=Search(0.1, 1),
        )
        rivals: int = option(
            2, "how many new classes an old image is held against", least=1, most=4096, search=Search(1, 4)
        )

    config: Config

    def begin(self, task: Task, generator: Generator) -> None:
        """Prepare for a task; weights of new classes point along the mean of their normalised features."""
        super().begin(task, generator)
        if task.old:
            sums = class_sums(self.features(task.train), task.train.y - task.old, task.new)
            self.net.head_as(CosineHead).imprint(sums)

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy, less-forget constraint and margin ranking; in the first task cross-entropy alone."""
        output = self.net(batch.x)
        loss = cross_entropy(output.logits, batch.y).mean()
        if self.teacher is None:
            return loss
        new = self.net.head.sizes[-1]
        old = batch.y.shape[1] - new
        weight = self.config.lam_base * math.sqrt(old / new)
        kept = less_forget(output.features, self.teach(batch.x).features).mean()
        cosines = self.net.head_as(CosineHead).cosines(output.features)
        ranking = margin_ranking(cosines, batch.y, old, self.config.margin, self.config.rivals)
        return loss + weight * kept + self.config.mr_weight * ranking


def margin_ranking(cosines: Tensor, y: Tensor, old: int, margin: float, rivals: int) -> Tensor:
    """``max(0, margin - cos_y + cos_k)`` over the highest ``rivals`` new classes k, a mean over images of old classes.

    The first ``old`` classes are the old ones. Without an old image in the batch it is 0.
    """
    own = (cosines * y).sum(1, keepdim=True)
    highest = cosines[:, old:].topk(min(rivals, cosines.shape[1] - old)).values
    misses = (margin - own + highest).relu().mean(1)
    share = y[:, :old].sum(1)  # 1 for an old image, 0 for a new one
    return (share * misses).sum() / share.sum().clamp(min=1)
