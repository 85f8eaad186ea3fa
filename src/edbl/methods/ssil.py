"""SS-IL: separated softmax for incremental learning."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from edbl.config import Search, magnitude, option
from edbl.data.mixing import Batch
from edbl.data.samplers import OldNew
from edbl.data.stream import KINDS, Task
from edbl.losses import cross_entropy, task_distillation
from edbl.methods.base import Draw, Method, Phase


class SSIL(Method):
    """Old and new classes under a softmax of their own, each old task distilled for itself."""

    name = "ssil"
    title = "Separated softmax for incremental learning (SS-IL)"
    source = "Ahn et al. 2021"
    year = 2021
    distils = True
    streams = KINDS
    paper: ClassVar[Mapping[str, object]] = {
        "schedule.epochs": 100,
        "schedule.milestones": (40, 80),
        "optim.weight_decay": 1e-4,
        "options.replay": 32,
        "options.lr_by_task": True,
    }

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        temperature: float = option(2.0, "temperature of distillation", least=1e-3, search=Search(1, 8))
        kd_weight: float = magnitude(1.0, "weight of the distillation of each old task", 0.1, 10)
        replay: int = option(
            0, "exemplars added to each batch of new images; 0 means a quarter of it", least=0, most=4096
        )
        lr_by_task: bool = option(False, "divide the learning rate by the number of the task")

    config: Config

    def draw(self, task: Task) -> Draw:
        """Return batches of new images, each with exemplars; an epoch is one pass over the new images."""
        plain = super().draw(task)
        if not task.old:
            return plain
        new = len(task.train)
        batch = min(self.optim.batch, new)
        replay = self.config.replay or max(1, batch // 4)
        return Draw(plain.data, OldNew(len(self.memory), new, replay, batch, steps=new // batch))

    def main_phase(self, task: Task, draw: Draw) -> Phase:
        """Return the only phase, with a rate that may fall from task to task."""
        phase = super().main_phase(task, draw)
        lr = phase.schedule.lr / (task.index + 1 if self.config.lr_by_task else 1)
        return replace(phase, schedule=replace(phase.schedule, lr=lr))

    def loss(self, batch: Batch) -> Tensor:
        """Return separated cross-entropy plus the distillation of each old task."""
        if self.teacher is None:
            return super().loss(batch)
        logits, teacher = self.net(batch.x).logits, self.teach(batch.x).logits
        kd = task_distillation(logits, teacher, self.net.head.sizes[:-1], self.config.temperature, "t2")
        return (separated_cross_entropy(logits, batch.y, teacher.shape[1]) + self.config.kd_weight * kd).mean()


def separated_cross_entropy(logits: Tensor, y: Tensor, old: int) -> Tensor:
    """Return the cross-entropy of old classes under a softmax over them, of new ones under another, ``[batch]``.

    A one-hot label has mass on one side alone, so the logits of the other get no gradient.
    """
    return cross_entropy(logits[:, :old], y[:, :old]) + cross_entropy(logits[:, old:], y[:, old:])
