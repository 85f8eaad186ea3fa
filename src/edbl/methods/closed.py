"""What methods in closed form share: features that stay as they are, and a classifier that is solved, not trained."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from edbl.config import Search, option
from edbl.data.images import Images
from edbl.data.stream import KINDS, Task
from edbl.errors import EdblError
from edbl.methods.base import Method, Phase
from edbl.nets.closed import Form, fitted, rooted
from edbl.nets.kept import Kept
from edbl.nets.net import Output, linear
from edbl.store import check_tensors

UNIT, WEIGHT, BIAS = "unit", "weight", "bias"  # in the state, beside what is kept of images


class ClosedForm(Method):
    """A classifier in closed form of features that do not change, exact however images were split into tasks.

    A backbone that can learn does so in the first task, with a linear layer, and stays as it is from then on.
    """

    keeps = "none"
    streams = KINDS
    searched = ("first.task_lr", "optim.weight_decay")  # of the first task, where the backbone learns
    form: ClassVar[type[Form]]

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        # Roots alone are what is known as Tukey's transformation, which classifiers by means and covariance take.
        unit: bool = option(
            True,
            "bring the square roots of features to length 1; cannot be changed later",
            search=Search(among=(True, False)),
        )

    config: Config

    def phases(self, task: Task) -> Iterator[Phase]:
        """Yield nothing, but for a backbone that can learn in its first task."""
        if not task.old and any(p.requires_grad for p in self.net.backbone.parameters()):
            yield self.first_phase(self.draw(task))

    def refresh(self, task: Task) -> Iterator[Phase]:
        """Yield nothing: `more` does it."""
        yield from ()

    def end(self, task: Task) -> None:
        """Solve for the classifier with the new classes; refresh the memory, which nearest means alone ask."""
        self.more(task.train)
        super().end(task)

    def more(self, images: Images) -> None:
        """Solve for the classifier with more images."""
        features = self.features(images)
        with one_thread():
            self._solve(self._kept().add(features, images.y))

    def forget(self, number: int) -> None:
        """Solve for the classifier without a class, as if it had never been there."""
        super().forget(number)
        with one_thread():
            self._solve(self._kept().forget(number))

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Refuse what is not kept of images of these classes: it may come from anywhere."""
        classes, width = self.net.head.weight.shape
        rows, many = (state[name].numel() if name in state else 0 for name in ("labels", "summed"))
        lengths = {"features": rows, "labels": rows, "ids": rows, "counts": classes, "means": classes, "summed": many}
        lengths |= {"scatters": many}
        none = Kept.none(width, torch.device("meta"), self._vectors, self.form.balanced).tensors()
        wanted = {name: x.new_empty(lengths.get(name, len(x)), *x.shape[1:]) for name, x in none.items()}
        weight = torch.empty(classes, width, device="meta")
        check_tensors(state, wanted | {UNIT: torch.tensor(True), WEIGHT: weight, BIAS: weight[:, 0]})
        for name in ("labels", "summed"):
            if not torch.isin(state[name], torch.arange(classes, device=state[name].device)).all():
                raise ValueError(f"tensor '{name}' is not of classes")

    def scores(self, output: Output) -> Tensor:
        """Return logits, ``[batch, seen]``, whose softmax is a calibrated probability."""
        return linear(self._vectors(output.features), self.weight, self.bias)

    @property
    def weight(self) -> Tensor:
        """Of the classifier, ``[seen, width]``."""
        return self.state[WEIGHT]

    @property
    def bias(self) -> Tensor:
        """Of the classifier, ``[seen]``."""
        return self.state[BIAS]

    def _vectors(self, features: Tensor) -> Tensor:
        return rooted(features, self.config.unit)

    def _kept(self) -> Kept:
        if not self.state:
            device = self.net.head.weight.device
            return Kept.none(self.net.head.weight.shape[1], device, self._vectors, self.form.balanced)
        if bool(self.state[UNIT]) != self.config.unit:
            raise EdblError(f"options.unit={self.config.unit} was the opposite when the first images came; leave it so")
        return Kept.of(self.state, self._vectors, self.form.balanced)

    def _solve(self, kept: Kept) -> None:
        found = fitted(self.form, kept.classes, *kept.judges())
        self.state.clear()
        self.state |= kept.tensors()
        unit = torch.tensor(self.config.unit, device=found.weight.device)
        self.state |= {UNIT: unit, WEIGHT: found.weight.float(), BIAS: found.bias.float()}


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread: it takes a second at most, several wait for each other, and bits hang on their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _blas().limit(limits=1, user_api="blas"):  # NumPy has threads of its own
            yield
    finally:
        torch.set_num_threads(threads)


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
