"""What analytic methods share: random features of a frozen backbone, and sums of which ridge regression is solved."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from edbl.config import option
from edbl.data.images import Images
from edbl.data.stream import KINDS, Task
from edbl.errors import EdblError
from edbl.methods.base import Method, Phase
from edbl.methods.options import Options
from edbl.nets.net import Output

PROJECTION, GRAM, CROSS, WEIGHT = "projection", "gram", "cross", "weight"  # in the state; the last three of a stream


class Analytic(Method):
    """Ridge regression on random features. Of images sums alone are kept, so it is that of all images ever seen.

    A backbone that can learn does so in the first task, with a linear layer, and stays as it is from then on.
    """

    keeps = "none"
    streams = KINDS
    # Images of a forgotten class stay in the sums as those of no class, which changes no other class's score.
    class_axes = (("*" + CROSS, 1), ("*" + WEIGHT, 1))
    searched = ("first.task_lr", "optim.weight_decay")  # of the first task, where the backbone learns

    @dataclass(frozen=True)
    class Config(Options):
        """Settings."""

        size: int = option(1024, "number of random features; cannot be changed later", least=1)

    config: Config

    def phases(self, task: Task) -> Iterator[Phase]:
        """Yield nothing, but for a backbone that can learn in its first task."""
        if not task.old and any(p.requires_grad for p in self.net.backbone.parameters()):
            yield self.first_phase(self.draw(task))

    def refresh(self, task: Task) -> Iterator[Phase]:
        """Yield nothing: `more` does it."""
        yield from ()

    def end(self, task: Task) -> None:
        """Solve with the new classes; refresh the memory, which nearest means alone ask."""
        self.more(task.train)
        super().end(task)

    def more(self, images: Images) -> None:
        """Solve with more images."""
        features = self.features(images).double()
        if PROJECTION not in self.state:
            self.state[PROJECTION] = self.drawn(features.shape[1]).to(features)
        try:
            self.solve(features @ self.state[PROJECTION], F.one_hot(images.y, self.net.head.classes).double())
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise EdblError(f"{self.name} cannot be solved: its sums are singular; use a larger penalty") from error

    @property
    def sums(self) -> tuple[str, ...]:
        """The names of the streams that it keeps sums of."""
        return ("",)

    def state_like(self) -> dict[str, Tensor]:
        """Return the projection and the sums of these classes."""
        classes, width = self.net.head.weight.shape
        shapes = {PROJECTION: (width, self.config.size)}
        for stream in self.sums:
            shapes |= {stream + GRAM: (self.config.size,) * 2, stream + CROSS: (self.config.size, classes)}
            shapes[stream + WEIGHT] = self.config.size, classes
        return {name: torch.empty(shape, dtype=torch.double, device="meta") for name, shape in shapes.items()}

    def drawn(self, width: int) -> Tensor:
        """Return a random projection, ``[width, size]``: uniform, as a fresh linear layer has it."""
        uniform = torch.rand(width, self.config.size, generator=self.generator(PROJECTION))
        return (2 * uniform - 1).div(width**0.5)

    def solve(self, projected: Tensor, y: Tensor) -> None:
        """Add images to the sums, given their projections, ``[n, size]``, and labels, ``[n, seen]``, and solve."""
        raise NotImplementedError

    def add(self, stream: str, x: Tensor, y: Tensor, penalty: float) -> Tensor:
        """Add images to the sums of a stream, and return its weight, ``[size, seen]``."""
        gram, cross = x.T @ x, x.T @ y
        if stream + GRAM in self.state:
            old = self.state[stream + CROSS]
            gram, cross = gram + self.state[stream + GRAM], cross + F.pad(old, (0, y.shape[1] - old.shape[1]))
        weight = ridge(gram, cross, penalty)
        self.state |= {stream + GRAM: gram, stream + CROSS: cross, stream + WEIGHT: weight}
        return weight

    def scores(self, output: Output) -> Tensor:
        """Return the response of each class, ``[batch, seen]``."""
        return self.responses(output.features.double() @ self.state[PROJECTION]).float()

    def responses(self, projected: Tensor) -> Tensor:
        """Return the response of each class to projections, ``[n, seen]``."""
        return projected.relu() @ self.state[WEIGHT]


def ridge(gram: Tensor, cross: Tensor, penalty: float) -> Tensor:
    """Return ``(gram + penalty I)^-1 cross``, the weight of ridge regression with these sums, ``[size, seen]``."""
    weight: Tensor = torch.linalg.solve(gram + penalty * torch.eye(len(gram)).to(gram), cross)
    return weight
