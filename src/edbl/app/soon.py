"""What a model in memory answers by after one more photo, before it is solved with it.

Shrinkage, calibration and what is known of the accuracy stay those of the last solution. Given these, the answers are
those that it will have.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from edbl.app.exact import Answers, Exact, LeftOut
from edbl.nets.closed import Changed, linked
from edbl.nets.kept import Kept

MOST = 1200  # photos by which a solution is changed: more take nearly as long as another one


@dataclass(frozen=True)
class Sooner:
    """Classes by name with more photos than a solution has."""

    exact: Exact  # as it was solved
    solved: Answers
    names: list[str]
    since: Changed  # the photos since, and all others by which the solution changes
    x: Tensor  # [n, width], the photos since, as the classifier takes them

    @classmethod
    def of(cls, exact: Exact, answers: Answers) -> "Sooner":
        """Return a solution without photos since."""
        x, y = torch.zeros(0, answers.weight.shape[1]).double(), torch.zeros(0, dtype=torch.int64)
        return cls(exact, answers, exact.names, Changed(x, y, y.bool()), x)

    def __len__(self) -> int:
        return len(self.x)

    def more(self, features: Tensor, name: str) -> "Sooner | None":
        """Return it with one more photo, or None where only a new solution will do.

        That is so where the solution has not decomposed the whole space, of a class of which sums are kept, and where
        a new solution takes no longer.
        """
        kept, found = self.exact.kept, self.exact.found
        names = self.names if name in self.names else [*self.names, name]
        label = names.index(name)
        if not isinstance(kept, Kept) or found is None or not found.form.whole or label in kept.summed.tolist():
            return None
        x, since = self.exact.halved(features.unsqueeze(0)), self.since
        own, y = found.form.seen(x), torch.tensor([label])
        parts = [since, Changed(own, y, torch.ones_like(y).bool())]
        if kept.balanced and label not in since.y:  # its other photos weigh less from now on
            others, labels = kept.samples(kept.labels == label)
            parts.append(Changed(found.form.seen(others), labels, torch.zeros_like(labels).bool()))
        since = Changed(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
        return Sooner(self.exact, self.solved, names, since, torch.cat([self.x, x])) if len(since.x) <= MOST else None

    @cached_property
    def counts(self) -> Tensor:
        """How many photos each class has."""
        assert isinstance(self.exact.kept, Kept)
        before = self.exact.kept.counts
        labels = self.since.y[self.since.new]
        return F.pad(before, (0, len(self.names) - len(before))) + torch.bincount(labels, minlength=len(self.names))

    @cached_property
    def means(self) -> Tensor:
        """The mean of each class."""
        assert isinstance(self.exact.kept, Kept)
        labels = self.since.y[self.since.new]
        return Changed(self.x, labels, torch.ones_like(labels).bool()).means(self.exact.kept.means, self.counts)

    def answers(self) -> Answers:
        """Return what it answers by."""
        if not len(self):
            return self.solved
        assert self.exact.found is not None
        weight, bias = self.exact.found.more(self.counts, self.since)
        sure = self.solved.sure._replace(means=F.normalize(self.means))
        return self.solved._replace(weight=weight, bias=bias, sure=sure)

    def told(self, features: Tensor, digest: str, name: str, answers: Answers) -> LeftOut | None:
        """Return what ``answers`` by all others say of a photo of a class that has some; None of a new class."""
        if name not in self.names:
            return None
        x, y = self.exact.halved(features.unsqueeze(0)), torch.tensor([self.names.index(name)])
        scores = linked(x @ answers.weight.T + answers.bias, answers.link)
        return LeftOut(scores, y, [digest], F.cosine_similarity(x, self.means[y]))
