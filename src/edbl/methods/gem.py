"""GEM: gradients that do not raise the loss of past tasks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from edbl.config import Search, option
from edbl.data.mixing import Batch
from edbl.data.samplers import Parts
from edbl.data.stream import KINDS, Task
from edbl.losses import cross_entropy
from edbl.methods.base import Draw, Method, Phase
from edbl.nets.exact import exactly

RIDGE = 1e-3  # added to the diagonal of the past gradients' inner products
EXCHANGES = 3  # per past task, in the search for a minimum; 1 is usual


class GEM(Method):
    """Gradient episodic memory (Lopez-Paz and Ranzato, NeurIPS 2017) without a task's name at test time.

    The loss is that of new images. Where its gradient would raise the loss on exemplars of a past task, it is replaced
    by one near to it that does not.
    """

    name = "gem"
    title = "Gradient episodic memory"
    source = "Lopez-Paz and Ranzato 2017"
    year = 2017
    streams = KINDS
    paper: ClassVar[Mapping[str, object]] = {
        "schedule.epochs": 1,
        "schedule.lr": 0.1,
        "schedule.milestones": (),
        "optim.batch": 10,
        "optim.momentum": 0.0,
        "optim.weight_decay": 0.0,
        "data.augment": "none",
        "options.memory_batch": 0,
    }

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        margin: float = option(
            0.5, "least share of each past task's gradient that is added, where any is", least=0, search=Search(0, 1)
        )
        memory_batch: int = option(
            64,
            "exemplars of each past task in a step; 0 means all",
            least=0,
            most=4096,
            search=Search(16, 256, log=True),
        )
        masked: bool = option(False, "cross-entropy of each task over its own logits instead of all")

    config: Config

    each: Sequence[int] = ()  # exemplars of each past task in a batch
    past: Sequence[Batch] = ()  # those of the present step
    own: slice | Tensor  # classes of the present task

    def draw(self, task: Task) -> Draw:
        """Return exemplars of each past task, then new images."""
        plain = super().draw(task)
        if not task.old:
            self.each = ()
            return plain
        new = slice(task.old, task.seen)
        self.own = new if len(task.classes) == task.new else torch.tensor(task.classes, device=task.train.y.device)
        counts = [sum(map(len, self.memory.classes[first:last])) for first, last in self.ranges()]
        # A lone image comes twice: batch normalisation needs two.
        self.each = [max(2, min(self.config.memory_batch or count, count)) for count in counts]
        batch = max(2, min(self.optim.batch, len(task.train)))
        steps = max(1, len(task.train) // batch)
        return Draw(plain.data, Parts((*counts, len(task.train)), (*self.each, batch), steps))

    def ranges(self) -> list[tuple[int, int]]:
        """Return the first class of each past task that brought any, and the one after its last."""
        edges = pairwise(accumulate(self.net.head.sizes[:-1], initial=0))
        return [(first, last) for first, last in edges if first < last]

    def phases(self, task: Task) -> Iterator[Phase]:
        """Yield the usual phase; after the first task its gradients are projected."""
        phase = self.main_phase(task, self.draw(task))
        yield replace(phase, adjust=lambda _: self.adjust(phase.params)) if task.old else phase

    def loss(self, batch: Batch) -> Tensor:
        """Return the cross-entropy of the new images, and keep the exemplars for `adjust`."""
        sizes = [*self.each, len(batch.x) - sum(self.each)]
        *self.past, new = map(Batch, batch.x.split(sizes), batch.y.split(sizes))
        return self.task_loss(new, -1)

    def task_loss(self, batch: Batch, number: int) -> Tensor:
        """Return the cross-entropy of images of one task."""
        logits, y = self.net(batch.x).logits, batch.y
        if self.config.masked and self.each:  # without past tasks all classes are one
            own = self.own if number < 0 else slice(*self.ranges()[number])
            logits, y = logits[:, own], y[:, own]
        return cross_entropy(logits, y).mean()

    def adjust(self, params: Sequence[nn.Parameter]) -> None:
        """Project the gradient by those of the past tasks."""
        used = [(p, p.grad) for p in params if p.grad is not None]
        gradients = [gradient for _, gradient in used]
        learning = [p for p, _ in used]
        rows = [gradient_of(self.task_loss(batch, number), learning) for number, batch in enumerate(self.past)]
        projected = project(_flat(gradients), torch.stack(rows), self.config.margin)
        for gradient, values in zip(gradients, projected.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(values.view(gradient.shape))


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


@exactly
def gradient_of(loss: Tensor, params: Sequence[nn.Parameter]) -> Tensor:
    """Return the gradient of a loss as one vector."""
    return _flat(torch.autograd.grad(loss, params))


def project(gradient: Tensor, past: Tensor, margin: float) -> Tensor:
    """Return ``gradient + v past`` if it is against any row of ``past``, else ``gradient`` itself.

    ``v`` minimises ``1/2 v'(past past' + RIDGE) v + (past gradient)'v`` over all ``v >= margin``.
    """
    rows, wide = past.double(), gradient.double()  # as exact as can be
    along = rows @ wide
    products = rows @ rows.T
    products.diagonal().add_(RIDGE)
    scale = products.diagonal().rsqrt()
    linear = along + margin * products.sum(1)
    v = margin + scale * minimise(scale.unsqueeze(1) * products * scale, scale * linear, EXCHANGES * len(past))
    return torch.where((along < 0).any(), (wide + v @ rows).to(gradient.dtype), gradient)


def minimise(matrix: Tensor, linear: Tensor, exchanges: int) -> Tensor:
    """Return the ``w >= 0`` that minimises ``1/2 w' matrix w + linear'w``, for a positive definite matrix.

    A penalty ``p sum(w)`` is added and let fall, from where all w are 0, to 0. On the way an entry of the slack
    ``matrix w + linear + p`` and that of ``w`` are exchanged, one being 0, when the other gets to 0 too. Should
    ``exchanges`` not be enough, the w returned is the minimum with the penalty that is left.
    """
    size = len(linear)
    # Row i: slack i, or w i once exchanged, by the others, which are 0, a constant and the penalty.
    table = torch.cat([matrix, linear.unsqueeze(1), torch.ones_like(linear).unsqueeze(1)], 1)
    columns = torch.arange(size + 2, device=linear.device)
    exchanged = torch.zeros_like(linear, dtype=torch.bool)
    for _ in range(exchanges):
        penalty, index = _next(table)
        here = (columns == index) & (penalty > 0)
        row, column = table.index_select(0, index), table.index_select(1, index)
        pivot = row.index_select(1, index)
        other = torch.where(here, column / pivot, table - column * row / pivot)
        other = torch.where(here[:size].unsqueeze(1), torch.where(here, -1.0, row) / -pivot, other)
        table = torch.where(penalty > 0, other, table)
        exchanged = exchanged ^ here[:size]
    penalty, _ = _next(table)
    return torch.where(exchanged, table[:, -2] + penalty.clamp(min=0) * table[:, -1], 0.0)


def _next(table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the penalty at which a row gets to 0 first as the penalty falls, and which row."""
    constant, slope = table[:, -2], table[:, -1]
    return torch.where(slope > 0, -constant / slope, -torch.inf).max(0, keepdim=True)
