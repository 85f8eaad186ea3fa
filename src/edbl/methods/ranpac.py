"""RanPAC: random projections, and prototypes that are decorrelated."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from edbl.methods.analytic import Analytic

PENALTY = "penalty"  # in the state: the one chosen last
PENALTIES = tuple(10.0**k for k in range(-8, 9))
SHARE = 0.8  # of a task's images, by which a penalty is tried; the others measure it


class RanPAC(Analytic):
    """Ridge regression on rectified random features, whose penalty is chosen anew on images of each task."""

    name, title, source, year = "ranpac", "Random projections, decorrelated prototypes", "McDonnell et al. 2023", 2023
    paper: ClassVar[Mapping[str, object]] = {
        **{"schedule.epochs": 20, "schedule.lr": 0.01, "schedule.shape": "cosine"},
        **{"optim.batch": 48, "optim.weight_decay": 5e-4, "options.size": 10_000},
    }

    def drawn(self, width: int) -> Tensor:
        """Return a projection of standard normal numbers."""
        return torch.randn(width, self.config.size, generator=self.generator("projection"))

    def solve(self, projected: Tensor, y: Tensor) -> None:
        """Choose the penalty and solve; a lone image cannot choose."""
        order = torch.randperm(len(y), generator=self.generator(PENALTY)).to(y.device)
        if len(y) > 1 or PENALTY not in self.state:
            self.state[PENALTY] = torch.tensor(best_penalty(projected.relu()[order], y[order]), dtype=torch.float64)
        self.add("", projected.relu(), y, float(self.state[PENALTY]))

    def state_like(self) -> dict[str, Tensor]:
        """Return the penalty, too."""
        return super().state_like() | {PENALTY: torch.tensor(0.0, dtype=torch.float64)}


def best_penalty(x: Tensor, y: Tensor) -> float:
    """Return the penalty with the least squared error on the last fifth of images, by the weight of all others."""
    count = int(SHARE * len(y))
    values, axes = torch.linalg.eigh(x[:count].T @ x[:count])  # once for all penalties
    cross, held = axes.T @ x[:count].T @ y[:count], x[count:] @ axes
    errors = [(held / (values.clamp(min=0) + p) @ cross - y[count:]).square().mean() for p in PENALTIES]
    return PENALTIES[int(torch.stack(errors).argmin())]
