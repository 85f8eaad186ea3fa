"""The balancing phase: samples weighted by class and by the inverse of their influence."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from edbl.config import option
from edbl.data.mixing import Batch
from edbl.data.stream import Task
from edbl.losses import class_weights, influence, weighted_cross_entropy
from edbl.methods.base import Draw, Phase
from edbl.methods.rkd import RKD
from edbl.nets.net import Output, Teacher
from edbl.schedule import Schedule


class Balancing(RKD):
    """RKD, then a second phase that minimises ``lambda_k L_ce / influence + gamma_2 L_kd`` (Eq. 7, 14 and 16).

    The second phase starts from the first one's weights with a fresh optimiser and the same images (A13); the first
    task has none (A12).
    """

    factor_asks: ClassVar[bool] = False  # the influence factor depends on the teacher

    @dataclass(frozen=True)
    class Config(RKD.Config):
        """Settings."""

        gamma: float = option(100.0, "scale of the class weights lambda_k (Table 6)", least=0)
        epsilon: float = option(1e-3, "added to the influence factor before dividing by it (A9)", least=0)
        detach: bool = option(False, "treat the influence factor as a constant in the gradient (A10)")
        counts: Literal["raw", "effective"] = option("effective", "n_k: images, or label mass after re-sampling (A6)")
        weight_sum: Literal["classes", "one"] = option("classes", "lambda_k sum to gamma times classes, or gamma (A5)")
        weight_place: Literal["inside", "outside"] = option(
            "inside", "class weights of a mixed label in or out of CE (A7)"
        )
        balance_kd_weight: float = option(1.0, "weight gamma_2 of distillation in the balancing phase (A4)", least=0)
        balance_layers: Literal["all", "head"] = option("all", "what the balancing phase trains (A13)")
        balance_norm: Literal["train", "eval"] = option("train", "batch normalisation in the balancing phase (A13)")
        balance_teacher: Literal["old", "train"] = option("old", "teacher: the old net, or the net after phase 1 (A13)")
        exemplars_after: Literal["balance", "train"] = option("balance", "phase after which exemplars are chosen (A14)")
        balance: Schedule = Schedule(epochs=100, lr=0.01, milestones=(30, 60, 80))

    config: Config

    def phases(self, task: Task) -> Iterator[Phase]:
        """Yield the phase of distillation, then the balancing one."""
        draw = self.draw(task)
        yield self.main_phase(task, draw)
        if not task.old:
            return
        if self.config.balance_teacher == "train":
            self.teacher = Teacher(self.net)
        if self.config.exemplars_after == "train":
            super().end(task)
        weights = self.class_weights(draw, task)
        balance = self.phase("balance", draw, self.config.balance, lambda batch: self.balance_loss(batch, weights))
        layers = self.net.head if self.config.balance_layers == "head" else self.net
        train_mode = balance.train_mode and self.config.balance_norm == "train"
        teacher = self.teacher if self.balance_asks else None
        yield replace(balance, params=list(layers.parameters()), teacher=teacher, train_mode=train_mode)

    @property
    def balance_asks(self) -> bool:
        """Whether the balancing phase needs the teacher."""
        return self.factor_asks or self.config.balance_kd_weight > 0

    def class_weights(self, draw: Draw, task: Task) -> Tensor:
        """Return ``lambda_k`` for each seen class."""
        counts = draw.data.counts(task.seen).float()
        if self.config.counts == "effective" and draw.old_share is not None:
            old, new = counts.split([task.old, task.new])
            counts = torch.cat([draw.old_share * old / old.sum(), (1 - draw.old_share) * new / new.sum()])
        return class_weights(counts, self.config.gamma, self.config.weight_sum)

    def influence(self, output: Output, y: Tensor, teacher: Tensor | None) -> Tensor:
        """Return the influence factor of each sample: Eq. 6."""
        return influence(output.logits, y, output.features)

    def balance_loss(self, batch: Batch, weights: Tensor) -> Tensor:
        """Return Eq. 16: the influence-balanced loss of Eq. 7 or 14 plus gamma_2 times Eq. 3."""
        output = self.net(batch.x)
        teacher = self.teach(batch.x).logits if self.balance_asks else None
        weighed = Output(*(t.detach() for t in output)) if self.config.detach else output
        factor = self.influence(weighed, batch.y, teacher) + self.config.epsilon
        loss = weighted_cross_entropy(output.logits, batch.y, weights, self.config.weight_place) / factor
        if teacher is not None and self.config.balance_kd_weight:
            loss = loss + self.config.balance_kd_weight * self.distill(output.logits, teacher)
        return loss.mean()

    def end(self, task: Task) -> None:
        """Refresh the memory, unless that was done after phase 1."""
        if not (task.old and self.config.exemplars_after == "train"):
            super().end(task)
