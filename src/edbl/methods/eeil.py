"""EEIL: end-to-end incremental learning."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from edbl.config import Search, magnitude, option
from edbl.data.images import Images
from edbl.data.mixing import Batch
from edbl.data.samplers import Uniform
from edbl.data.stream import KINDS, Task
from edbl.losses import cross_entropy, task_distillation
from edbl.memory import Budget, Memory
from edbl.methods.base import Draw, Method, Phase
from edbl.nets.backbones import Backbone
from edbl.nets.net import Net, Teacher
from edbl.schedule import Schedule


class EEIL(Method):
    """Rehearsal and distillation task by task, then fine-tuning on as many images of each class."""

    name = "eeil"
    title = "End-to-end incremental learning"
    source = "Castro et al. 2018"
    year = 2018
    distils = True
    streams = KINDS
    paper: ClassVar[Mapping[str, object]] = {
        "schedule.epochs": 40,
        "schedule.milestones": (10, 20, 30),
        "options.balance.epochs": 30,
        "options.balance.milestones": (10, 20),
        "optim.weight_decay": 1e-4,
        "options.noise": 0.3,
    }

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        temperature: float = option(2.0, "temperature of distillation", least=1e-3, search=Search(1, 8))
        kd_weight: float = magnitude(1.0, "weight of the distillation of each task", 0.1, 10)
        kd_scale: Literal["t2", "none"] = option("none", "t2: distillation times the squared temperature; none: not")
        balance_teacher: Literal["train", "old"] = option(
            "train", "teacher of old classes in fine-tuning: the network before it (train), or the old one"
        )
        noise: float = option(0.0, "scale eta of the noise added to gradients; 0 means none", least=0)
        noise_decay: float = option(0.55, "power by which the noise falls with the epochs of a task", least=0)
        balance: Schedule = Schedule(epochs=100, lr=0.01, milestones=(30, 60, 80))

    config: Config

    @classmethod
    def build(cls, make: Callable[[Generator], Backbone], generator: Generator) -> Net:
        """Return the net, with room for the epochs of a task that the noise has seen."""
        net = super().build(make, generator)
        net.register_buffer("noisy_epochs", torch.zeros(()))
        return net

    def phases(self, task: Task) -> Iterator[Phase]:
        """Yield the usual phase, with noise anew, then the balanced one, taught by the net that the first one left."""
        self.net.get_buffer("noisy_epochs").zero_()
        yield self.noisy(self.main_phase(task, self.draw(task)))
        if task.old:
            before, data = Teacher(self.net), self.balanced(task)
            draw = Draw(data, Uniform(len(data), self.optim.batch))
            tune = self.phase("balance", draw, self.config.balance, lambda batch: self.balance_loss(batch, before))
            yield self.noisy(replace(tune, teacher=before))

    def balanced(self, task: Task) -> Images:
        """Return as many exemplars of each class as there are in the mean, and, chosen alike, of each new class."""
        each = max(1, len(self.memory) // task.old)
        chosen = Memory(Budget("per_class", each))
        chosen.classes = list(self.memory.classes)
        chosen.update(task.train, self.features)
        return chosen.images

    def loss(self, batch: Batch) -> Tensor:
        """Return cross-entropy, plus the distillation of each old task."""
        logits = self.net(batch.x).logits
        if self.teacher is None:
            return cross_entropy(logits, batch.y).mean()
        return self.total(logits, batch.y, self.teach(batch.x).logits, self.net.head.sizes[:-1])

    def balance_loss(self, batch: Batch, before: Teacher) -> Tensor:
        """Return cross-entropy plus the distillation of each task, the new one too."""
        logits, teacher = self.net(batch.x).logits, before.answer(batch.x).logits
        if self.config.balance_teacher == "old":
            old = self.teach(batch.x).logits
            teacher = torch.cat([old, teacher[:, old.shape[1] :]], 1)
        return self.total(logits, batch.y, teacher, self.net.head.sizes)

    def total(self, logits: Tensor, y: Tensor, teacher: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return cross-entropy plus the distillation of the tasks that have these sizes."""
        kd = task_distillation(logits, teacher, sizes, self.config.temperature, self.config.kd_scale)
        return (cross_entropy(logits, y) + self.config.kd_weight * kd).mean()

    def noisy(self, phase: Phase) -> Phase:
        """Return the phase with noise on its gradients, where that is wanted."""
        if not self.config.noise:
            return phase
        batch = min(phase.optim.batch, len(phase.draw.data))
        steps = len(phase.draw.data) // batch
        time = self.net.get_buffer("noisy_epochs")

        def adjust(generator: Generator) -> None:
            scale = self.config.noise / (2 + time) ** self.config.noise_decay
            add_noise(phase.params, scale / batch, generator)
            time.add_(1 / steps)

        return replace(phase, adjust=adjust)


def add_noise(params: Sequence[nn.Parameter], scale: Tensor, generator: Generator) -> None:
    """Add normal noise of standard deviation ``scale`` to the gradients."""
    grads = [p.grad for p in params if p.grad is not None]
    noise = torch.randn(sum(g.numel() for g in grads), generator=generator, device=generator.device) * scale
    for grad, part in zip(grads, noise.split([g.numel() for g in grads]), strict=True):
        grad.add_(part.view_as(grad))
