"""WA: weight aligning."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor, linalg

from edbl.config import Search, option
from edbl.data.mixing import Batch
from edbl.data.stream import Task
from edbl.losses import by_share, cross_entropy, distillation
from edbl.methods.base import Draw, Method, Phase


class WA(Method):
    """Rehearsal and distillation; then the weights of new classes get the mean norm of the old ones.

    The head's weights are kept at or above zero, so that a larger norm is a larger logit: features are not negative.
    """

    name = "wa"
    title = "Weight aligning"
    source = "Zhao et al. 2020"
    year = 2020
    distils = True
    streams = frozenset({"returning"})
    paper: ClassVar[Mapping[str, object]] = {  # PyCIL's
        "schedule.epochs": 170,
        "schedule.milestones": (60, 100, 140),
        "first.task_epochs": 200,
        "first.task_milestones": (60, 120, 170),
        "first.task_weight_decay": 5e-4,
        "data.brightness": 63 / 255,
    }

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        temperature: float = option(2.0, "temperature of distillation", least=1e-3, search=Search(1, 8))
        weighting: Literal["share", "two"] = option(
            "share", "share: both losses by the share of old classes; two: distillation times 2, as PyCIL"
        )
        clip: bool = option(True, "keep the head's weights at or above zero, if the backbone ends in a ReLU")

    config: Config

    def phases(self, task: Task) -> Iterator[Phase]:
        """Yield the only phase, then align the head."""
        yield from super().phases(task)
        if task.old:
            weight = self.net.head.weight.data
            weight[task.old :] *= alignment(weight, task.old)

    def main_phase(self, task: Task, draw: Draw) -> Phase:
        """Return the usual phase, whose last step is followed by clipping too."""
        return replace(super().main_phase(task, draw), finish=self.clip)

    def clip(self) -> None:
        """Lift negative weights of the head to zero, where that is wanted and no feature is negative."""
        if self.config.clip and self.net.backbone.last_relu:
            self.net.head.weight.data.clamp_(min=0)

    def loss(self, batch: Batch) -> Tensor:
        """Return ``(1 - lambda)`` cross-entropy plus ``lambda`` distillation, lambda being the share of old classes.

        With ``weighting="two"`` it is cross-entropy plus twice distillation, as PyCIL has it. Weights are clipped
        before each step, and by the phase after the last: the same as after each step.
        """
        self.clip()
        if self.teacher is None:
            return super().loss(batch)
        logits, teacher = self.net(batch.x).logits, self.teach(batch.x).logits
        if self.config.weighting == "two":
            kd = distillation(logits, teacher, self.config.temperature, "none")
            return (cross_entropy(logits, batch.y) + 2 * kd).mean()
        return by_share(logits, teacher, batch.y, self.config.temperature, "none").mean()


def alignment(weight: Tensor, old: int) -> Tensor:
    """Return gamma: the mean norm of the rows of ``old`` classes over that of the new ones, or 1 if that is 0."""
    norms: Tensor = linalg.vector_norm(weight, dim=1)
    new = norms[old:].mean()
    return (norms[:old].mean() / new).where(new > 0, 1.0)
