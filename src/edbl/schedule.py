"""Schedules: how long a phase trains, at which learning rate, by which optimiser."""

from dataclasses import dataclass, replace

from edbl.config import option


@dataclass(frozen=True)
class Optim:
    """Stochastic gradient descent: what all phases of a run share."""

    batch: int = option(128, "images per batch, before mixing", least=2)
    momentum: float = option(0.9, "momentum", least=0, most=1)
    nesterov: bool = option(True, "Nesterov momentum (A16)")
    weight_decay: float = option(2e-4, "L2 penalty on all parameters", least=0)
    warmup: int = option(5, "epochs of linear warm-up from a third of the learning rate (A16)", least=0)
    steps: int = option(0, "most steps per epoch; 0 means all", least=0)


@dataclass(frozen=True)
class Schedule:
    """Epochs and learning rate of one phase: the rate falls by ``decay`` at each milestone."""

    epochs: int = option(150, "passes over the training images", least=1)
    lr: float = option(0.1, "learning rate", least=0)
    milestones: tuple[int, ...] = option((60, 100, 130), "epochs at which the learning rate falls")
    decay: float = option(0.1, "factor by which it falls", least=0, most=1)

    def rate(self, epoch: int, warmup: int) -> float:
        """Return the learning rate of an epoch, counted from 0."""
        if epoch < warmup:
            return self.lr * (1 + 2 * epoch / warmup) / 3
        passed = sum(epoch >= m for m in self.milestones)
        return float(self.lr * self.decay**passed)

    def scaled(self, epochs: int) -> "Schedule":
        """Return the same schedule squeezed or stretched to ``epochs``."""
        milestones = tuple(max(1, round(m * epochs / self.epochs)) for m in self.milestones)
        return replace(self, epochs=epochs, milestones=milestones)
