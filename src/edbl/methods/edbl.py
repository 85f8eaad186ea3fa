"""EDBL: Algorithm 1 of the paper, top to bottom. Equations are the paper's; A1 to A22 are in docs/ambiguities.md."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from edbl import losses
from edbl.config import option
from edbl.data.mixing import Batch, Ratio, VanillaMixup
from edbl.data.resampling import half_of_n, resampled
from edbl.data.stream import KINDS, Task
from edbl.methods.base import Draw, Method, Phase
from edbl.methods.options import Balancing, Distilling, IncrementalInfluence, Mixing, NormStatistics, Resampling
from edbl.nets.net import Teacher


class EDBL(Method):
    """Effective Decision Boundary Learning (Li, Wan, Yu 2023).

    A part whose settings the ``Config`` lacks is left out: an ablation is this class with another ``Config``.
    """

    name = "edbl"
    title = "Effective decision boundary learning: Re-MKD, then IIB-KD"
    source = "EDBL paper, Section 4.3"
    year = 2023
    distils = True
    streams = KINDS

    @dataclass(frozen=True)
    class Config(Distilling, Mixing, NormStatistics, Resampling, Balancing, IncrementalInfluence):
        """Settings of all parts. With mixed labels an attached factor has a pole at the target (A10)."""

        detach: bool = option(True, "treat the influence factor as a constant in the gradient (A10)")

    config: Distilling  # and the settings of whichever other parts there are

    def phases(self, task: Task) -> Iterator[Phase]:
        """Mix with re-sampling, train by distillation, balance. Exemplars are chosen last, by `Method.end` (A14)."""
        draw, c = self.draw(task), self.config
        yield self.main_phase(task, draw)  # phase 1: MKD training
        if isinstance(c, Balancing) and task.old:  # phase 2: balancing training; the first task has none (A12)
            weights = self.class_weights(c, draw, task)
            teacher = self.teacher if isinstance(c, IncrementalInfluence) or c.balance_kd_weight else None
            phase = self.phase("balance", draw, c.balance, lambda batch: self.balance_loss(c, batch, weights, teacher))
            params = list((self.net.head if c.balance_layers == "head" else self.net).parameters())  # A13
            train_mode = phase.train_mode and c.balance_norm == "train"
            yield replace(phase, params=params, teacher=teacher, train_mode=train_mode)

    def draw(self, task: Task) -> Draw:
        """Mixup with re-sampling (Section 4.1): N/2 times old with old and old with new images, once new with new."""
        plain, c = super().draw(task), self.config
        if not isinstance(c, Mixing) or (not task.old and c.first_task == "plain"):  # A12
            return plain
        ratio = Ratio(c.beta, c.ratio_per)  # lambda of Eq. 1, "sampled from the Beta function B=(1,1)"; A3
        if not isinstance(c, Resampling) or not task.old:
            return replace(plain, mixing=VanillaMixup(ratio))
        new = len(task.train)
        old = len(plain.data) - new  # exemplars
        # N is "the proportion of the data between per tail and head class" (A1); what is mixed N/2 times is open (A2).
        rounds = c.rounds or half_of_n((old, task.old), (new, len(task.classes)), c.max_rounds)
        return Draw(plain.data, *resampled(old, new, self.optim.batch, c.min_old, rounds, c.reading, ratio))

    def loss(self, batch: Batch) -> Tensor:
        """Phase 1: the mean of L_ce + gamma_1 L_kd (Algorithm 1); without a teacher, in the first task, of L_ce."""
        logits, c = self.net(batch.x).logits, self.config
        loss = losses.cross_entropy(logits, batch.y)  # Eq. 2
        if self.teacher is not None:
            old = self.teacher.answer(batch.x).logits  # of f^{t-1}
            gamma_1 = losses.grown(c.kd_weight, old.shape[1], logits.shape[1], c.kd_growth)
            loss = loss + gamma_1 * losses.distillation(logits, old, c.temperature, c.kd_scale)  # Eq. 3; A4
        return loss.mean()

    def class_weights(self, c: Balancing, draw: Draw, task: Task) -> Tensor:
        """Phase 2: lambda_k = gamma n_k^-1 / sum_i n_i^-1 (Eq. 7; A5)."""
        n = draw.data.counts(task.seen).float()
        if c.counts == "effective" and draw.old_share is not None:  # n_k after re-sampling: shares of label mass; A6
            new = task.train.counts(task.seen).float()
            old = n - new  # exemplars
            n = draw.old_share * old / old.sum() + (1 - draw.old_share) * new / new.sum()
        return losses.class_weights(n, c.gamma, c.weight_sum)

    def balance_loss(self, c: Balancing, batch: Batch, weights: Tensor, teacher: Teacher | None) -> Tensor:
        """Phase 2: the mean of L_IIB + gamma_2 L_kd (Eq. 16, Algorithm 1)."""
        output = self.net(batch.x)
        old = None if teacher is None else teacher.answer(batch.x).logits  # of f^{t-1}
        z, h = (t.detach() if c.detach else t for t in (output.logits, output.features))  # A10
        if isinstance(c, IncrementalInfluence) and old is not None:
            factor = losses.incremental_influence(z, batch.y, old, h, c.alpha, c.factor_over)  # Eq. 13, 15; A8, A11
        else:
            factor = losses.influence(z, batch.y, h)  # Eq. 6
        loss = losses.weighted_cross_entropy(output.logits, batch.y, weights, c.weight_place)  # lambda_k L_ce; A7
        loss = loss / (factor + c.epsilon)  # L_IIB of Eq. 14, or L_IB of Eq. 7; A9
        if old is not None and c.balance_kd_weight:  # gamma_2, which is 1 in Eq. 16
            kd = losses.distillation(output.logits, old, self.config.temperature, self.config.kd_scale)  # Eq. 3
            loss = loss + c.balance_kd_weight * kd
        return loss.mean()
