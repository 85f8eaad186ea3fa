"""BiC: bias correction."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from edbl.config import Search, magnitude, option
from edbl.data.images import Images
from edbl.data.mixing import Batch
from edbl.data.samplers import Uniform
from edbl.data.stream import Task
from edbl.losses import by_share, cross_entropy
from edbl.methods.base import Draw, Method, Phase
from edbl.nets.heads import CorrectedHead
from edbl.schedule import Schedule


class BiC(Method):
    """Rehearsal and distillation; then two numbers, learnt on held-out images, correct the logits of new classes.

    The head corrects in evaluation mode alone: so do the teacher and the classifier, but not the network that learns.
    """

    name = "bic"
    title = "Large scale incremental learning (bias correction)"
    source = "Wu et al. 2019"
    year = 2019
    distils = True
    head = CorrectedHead
    streams = frozenset({"returning"})
    paper: ClassVar[Mapping[str, object]] = {"schedule.epochs": 250, "schedule.milestones": (100, 150, 200)}

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        temperature: float = option(2.0, "temperature of distillation", least=1e-3, search=Search(1, 8))
        # The paper prints no factor; a PyTorch code of it in common use multiplies by the squared temperature.
        kd_scale: Literal["t2", "none"] = option("none", "t2: distillation times the squared temperature; none: not")
        val_share: float = option(
            0.1, "share of the exemplars held out for the correction", least=0, most=0.5, search=Search(0.05, 0.3)
        )
        bias_penalty: float = magnitude(0.1, "weight of gamma^2 / 2 in the loss of the correction", 1e-3, 1)
        bias: Schedule = Schedule(epochs=200, lr=0.05, milestones=(60, 120, 160, 180))

    config: Config

    @property
    def correction(self) -> nn.Parameter:
        """The two numbers, beta and gamma."""
        return self.net.head_as(CorrectedHead).correction

    def begin(self, task: Task, generator: Generator) -> None:
        """Prepare for a task; from the second on hold images of all classes out."""
        super().begin(task, generator)
        if task.old:
            each = self.config.val_share * len(self.memory) / task.old
            both = Images.cat([self.memory.images, task.train])
            self.learnt, self.held = hold_out(both, task.seen, max(1, round(each)) if each else 0, generator)

    def draw(self, task: Task) -> Draw:
        """Return what is not held out."""
        return Draw(self.learnt, Uniform(len(self.learnt), self.optim.batch)) if task.old else super().draw(task)

    def phases(self, task: Task) -> Iterator[Phase]:
        """Yield the usual phase, then that of the correction, if both old and new classes have images for it."""
        if not task.old:
            self.net.head_as(CorrectedHead).correct_nothing()
        yield from super().phases(task)
        if task.old and (self.held.y < task.old).any() and (self.held.y >= task.old).any():
            draw = Draw(self.held, Uniform(len(self.held), self.optim.batch))
            phase = self.phase("bias", draw, self.config.bias, self.bias_loss)
            optim = replace(self.optim, weight_decay=0.0)
            yield replace(phase, params=[self.correction], optim=optim, teacher=None, train_mode=False)

    def phase(self, name: str, draw: Draw, schedule: Schedule, loss: Callable[[Batch], Tensor]) -> Phase:
        """Return a phase that trains all of the net but the correction."""
        phase = super().phase(name, draw, schedule, loss)
        return replace(phase, params=[p for p in phase.params if p is not self.correction])

    def loss(self, batch: Batch) -> Tensor:
        """Return cross-entropy and distillation, weighed by the shares of new and old classes."""
        if self.teacher is None:
            return super().loss(batch)
        logits, teacher = self.net(batch.x).logits, self.teach(batch.x).logits
        return by_share(logits, teacher, batch.y, self.config.temperature, self.config.kd_scale).mean()

    def bias_loss(self, batch: Batch) -> Tensor:
        """Return cross-entropy of corrected logits plus the penalty on gamma."""
        penalty = self.config.bias_penalty * self.correction[1].square() / 2
        return cross_entropy(self.net(batch.x).logits, batch.y).mean() + penalty


def hold_out(images: Images, classes: int, each: int, generator: Generator) -> tuple[Images, Images]:
    """Return what is left of the images and the ``each`` of each class, drawn at random, that are held out.

    A class gives no more than half of its images: a lone one stays.
    """
    counts = images.counts(classes)
    shuffled = images.shuffled(generator)
    label = images.y[shuffled]
    place = torch.arange(len(images), device=label.device) - (counts.cumsum(0) - counts)[label]  # within the class
    held = place < (counts // 2).clamp(max=each)[label]
    return images[shuffled[~held].sort().values], images[shuffled[held].sort().values]
