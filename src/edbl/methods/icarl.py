"""iCaRL: incremental classifier and representation learning."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from edbl.data.mixing import Batch
from edbl.methods.base import Method


class ICaRL(Method):
    """One sigmoid per class, old ones taught by the old network; nearest mean of herded exemplars."""

    name = "icarl"
    title = "Incremental classifier and representation learning"
    source = "Rebuffi et al. 2017"
    year = 2017
    distils = True
    streams = frozenset({"returning"})
    readout: ClassVar[Literal["cnn", "nme"]] = "nme"
    # Its code takes the mean over 100 outputs at rate 2.0, and a penalty whose gradient is 2e-5; this is for a sum.
    paper: ClassVar[Mapping[str, object]] = {
        "schedule.epochs": 70,
        "schedule.lr": 0.02,
        "schedule.milestones": (49, 63),
        "schedule.decay": 0.2,
        "optim.weight_decay": 2e-3,
        "evaluation.nme_flips": True,
    }

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean over the batch; in the first task there is no teacher."""
        logits = self.net(batch.x).logits
        teacher = None if self.teacher is None else self.teach(batch.x).logits
        return binary_cross_entropy(logits, batch.y, teacher).mean()


def binary_cross_entropy(logits: Tensor, y: Tensor, teacher: Tensor | None) -> Tensor:
    """Return the binary cross-entropy of each sample, summed over the seen classes, ``[batch]``.

    For all images, exemplars too, the teacher's sigmoids take the place of the labels of old classes.
    """
    if teacher is not None:
        y = torch.cat([teacher.to(y.dtype).sigmoid(), y[:, teacher.shape[1] :]], 1)
    return F.binary_cross_entropy_with_logits(logits, y, reduction="none").sum(1)
