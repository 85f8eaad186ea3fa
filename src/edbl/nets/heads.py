"""Heads that single methods have, beside the linear one of `edbl.nets.net`, and what they compute of features."""

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from edbl.nets.exact import exactly
from edbl.nets.net import Head, LinearHead, linear


@exactly
def cosines(features: Tensor, rows: Tensor) -> Tensor:
    """Return the cosine of each feature vector with each row, ``[batch, rows]``."""
    return linear(F.normalize(features), F.normalize(rows))


def class_sums(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the sum of each class's normalised features, ``[classes, width]``; it points along their mean."""
    members = (labels == torch.arange(classes, device=labels.device).unsqueeze(1)).float()  # [classes, n]
    return linear(members, F.normalize(features).T)


class CorrectedHead(LinearHead):
    """A linear layer whose newest logits are corrected, in evaluation mode alone: ``beta z + gamma`` (BiC)."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.correction = nn.Parameter(torch.tensor([1.0, 0.0]))  # beta, gamma

    def grow(self, new: int, generator: Generator) -> None:
        """Add ``new`` classes, not corrected yet; the others stay uncorrected from now on."""
        super().grow(new, generator)
        self.correct_nothing()

    def remove(self, number: int) -> None:
        """Remove a class; if it was the last of the newest task, no others become the corrected ones."""
        tasks = len(self.sizes)
        newest = number >= self.classes - self.sizes[-1]
        super().remove(number)
        if newest and len(self.sizes) < tasks:
            self.correct_nothing()

    def correct_nothing(self) -> None:
        """Leave all logits as they are."""
        with torch.no_grad():
            self.correction.copy_(torch.tensor([1.0, 0.0]))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits, ``[batch, classes]``."""
        logits = super().forward(features)
        if self.training or len(self.sizes) < 2:
            return logits
        old, new = logits.split([self.classes - self.sizes[-1], self.sizes[-1]], dim=1)
        return torch.cat([old, self.correction[0] * new + self.correction[1]], dim=1)


class FrozenHead(Head):
    """A head whose old classes do not learn: ``old`` holds their rows, ``weight`` those of the newest task."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.old = nn.Parameter(torch.empty(0, width), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(()))  # eta

    def grow(self, new: int, generator: Generator) -> None:
        """Add ``new`` classes and freeze the others."""
        self.old = nn.Parameter(torch.cat([self.old.detach(), self.weight.detach()]), requires_grad=False)
        self.weight = nn.Parameter(self.weight.detach()[:0])
        super().grow(new, generator)

    def thaw(self) -> None:
        """Let the old classes learn too, until the head grows."""
        self.old.requires_grad_(True)

    def clear(self) -> None:
        """Remove all classes."""
        super().clear()
        self.old = nn.Parameter(self.old.detach()[:0], requires_grad=False)
        self.scale.data.fill_(1)

    def remove(self, number: int) -> None:
        """Remove a class; ``weight`` holds the rows of what is the newest task then."""
        super().remove(number)
        rows = torch.cat([self.old.detach(), self.weight.detach()])
        newest = self.sizes[-1] * self.rows if self.sizes else 0
        self.old = nn.Parameter(rows[: len(rows) - newest], requires_grad=False)
        self.weight = nn.Parameter(rows[len(rows) - newest :])

    def _keep(self, kept: Tensor) -> None:
        old = len(self.old)
        self.old = nn.Parameter(self.old.detach()[kept[:old]], requires_grad=False)
        super()._keep(kept[old:])

    def imprint(self, rows: Tensor) -> None:
        """Let the rows of the newest classes point along ``rows``, as long as the old ones are in the mean."""
        length = self.old.norm(dim=1).mean() if len(self.old) else torch.ones((), device=rows.device)
        self.weight.data.copy_(F.normalize(rows) * length)

    def cosines(self, features: Tensor) -> Tensor:
        """Return the cosine of each feature vector with each row of weights, ``[batch, rows]``."""
        return cosines(features, torch.cat([self.old, self.weight]))


class CosineHead(FrozenHead):
    """``eta <w, h>`` of normalised weights and features (LUCIR)."""

    def forward(self, features: Tensor) -> Tensor:
        """Return logits, ``[batch, classes]``."""
        return self.scale * self.cosines(features)


class ProxyHead(FrozenHead):
    """Several proxies for each class; a class's score is their softmax-weighted similarity (PODNet)."""

    rows = 10

    def forward(self, features: Tensor) -> Tensor:
        """Return similarities, ``[batch, classes]``: the negative squared distance of unit vectors, not scaled."""
        similarity = (2 * self.cosines(features) - 2).view(len(features), -1, self.rows)
        return (similarity.softmax(2) * similarity).sum(2)
