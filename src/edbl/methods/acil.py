"""ACIL: analytic class-incremental learning, and DS-AL, which adds a second stream."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from edbl.config import Search, option
from edbl.methods.analytic import Analytic


class ACIL(Analytic):
    """Ridge regression on rectified random features; with ``compensation``, what it leaves is fitted once more."""

    name, title, source, year = "acil", "Analytic class-incremental learning", "Zhuang et al. 2022", 2022
    paper: ClassVar[Mapping[str, object]] = {
        **{"schedule.epochs": 300, "schedule.lr": 0.5, "schedule.shape": "cosine", "data.augment": "crop-flip-trivial"},
        **{"optim.batch": 256, "optim.weight_decay": 5e-4, "optim.warmup": 10, "options.size": 8192},
    }

    @dataclass(frozen=True)
    class Config(Analytic.Config):
        """Settings."""

        penalty: float = option(0.1, "penalty of ridge regression", least=1e-9, search=Search(1e-3, 10, log=True))
        compensation: float = option(
            0.0, "share C of DS-AL's second stream; 0 means none, which is ACIL", least=0, search=Search(0, 1.5)
        )
        penalty_comp: float = option(0.1, "penalty of the second stream", least=1e-9, search=Search(1e-3, 10, log=True))

    config: Config

    def solve(self, projected: Tensor, y: Tensor) -> None:
        """Solve the main stream, then, for the classes of these images alone, the other one for what it leaves."""
        weight = self.add("", projected.relu(), y, self.config.penalty)
        if self.config.compensation:
            self.add("comp.", projected.tanh(), (y - projected.relu() @ weight) * y.any(0), self.config.penalty_comp)

    @property
    def sums(self) -> tuple[str, ...]:
        """The names of the streams that it keeps sums of."""
        return ("", "comp.") if self.config.compensation else ("",)

    def responses(self, projected: Tensor) -> Tensor:
        """Return the sum of both streams, if there are two."""
        main, comp = super().responses(projected), self.state.get("comp.weight")
        return main if comp is None else main + self.config.compensation * projected.tanh() @ comp
