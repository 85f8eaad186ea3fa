"""The training loop: the only one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Generator, nn

from edbl.data.augment import Transform, Views
from edbl.engine.checkpoint import State
from edbl.engine.progress import Progress
from edbl.engine.step import Step
from edbl.errors import Diverged
from edbl.methods.base import Draw, Phase
from edbl.nets.net import Net
from edbl.seeds import Seeds

SHOWN = 100  # batches, of which batch normalisation, at a momentum of 0.1, forgets all but the last few dozens
ADVICE = "lower the learning rate (schedule.lr) or a weight of the loss"


@dataclass(frozen=True)
class Loop:
    """The training loop, with what all phases of a run share."""

    transform: Transform | Views
    seeds: Seeds
    progress: Progress
    bf16: bool
    graph: bool

    def fit(
        self,
        net: Net,
        phase: Phase,
        place: Sequence[int | str],
        state: State,
        after_epoch: Callable[[], None] = lambda: None,
    ) -> None:
        """Train a phase from ``state`` to its end; call ``after_epoch`` after each epoch but the last."""
        generator = Generator(phase.draw.data.y.device)
        step = Step(phase, net.head.classes, self.transform, generator, bf16=self.bf16, graph=self.graph)
        step.optimiser.load(state.momentum)
        net.train(phase.train_mode)
        if generator.device.type == "cuda":
            self.progress.busy("compiling kernels, once per machine")
        with only(net, phase.params):
            for epoch in range(state.epoch, phase.schedule.epochs):
                generator.manual_seed(self.seeds.number(*place, "epoch", epoch))
                torch.manual_seed(self.seeds.number(*place, "global", epoch))  # for a module's own draws, as dropout's
                state.losses.append(self._epoch(phase, step, epoch))
                state.epoch = epoch + 1
                if state.epoch < phase.schedule.epochs:
                    state.momentum = step.optimiser.momentum()
                    after_epoch()
        state.momentum = {}  # the next phase has an optimiser of its own
        net.eval()
        if phase.finish is not None:
            phase.finish()

    def _epoch(self, phase: Phase, step: Step, epoch: int) -> float:
        """Make the steps of an epoch, and return their mean loss."""
        batches = phase.draw.sampler(step.generator)  # [steps, batch]
        batches = batches[: phase.optim.steps] if phase.optim.steps else batches
        step.begin_epoch(batches, phase.schedule.rate(epoch, phase.optim.warmup))
        self.progress.epoch(epoch, len(batches))
        for number in range(len(batches)):
            step()
            self.progress.step(step.losses, number, step.images)
        losses = step.losses.cpu()  # the first time in an epoch that the host waits for the device
        if not losses.isfinite().all():
            at = int((~losses.isfinite()).nonzero()[0])
            raise Diverged(
                f"the loss became {losses[at]:f} in {phase.name} epoch {epoch + 1}, step {at + 1} of {len(losses)};"
                f" {ADVICE}"
            )
        # No loss has seen the last step, and the fused kernels' ReLU makes 0 of NaN, which losses do not show.
        if not torch.cat([p.detach().flatten() for p in phase.params]).isfinite().all():
            raise Diverged(f"weights became infinite in {phase.name} epoch {epoch + 1}; {ADVICE}")
        return float(losses.mean())

    def show(self, net: Net, draw: Draw, place: Sequence[int | str]) -> None:
        """Show images to a net that does not learn: the statistics of its batch normalisation become theirs."""
        generator = Generator(draw.data.y.device)
        generator.manual_seed(self.seeds.number(*place))
        net.train()
        left = SHOWN
        with torch.no_grad(), torch.autocast(generator.device.type, torch.bfloat16, enabled=self.bf16):
            while left > 0:
                batches = draw.sampler(generator)[:left]
                for index in batches:
                    net(self.transform.augment(draw.data[index].x, generator))
                left -= len(batches)
        net.eval()


@contextmanager
def only(net: Net, params: Sequence[nn.Parameter]) -> Iterator[None]:
    """Let no parameter but these have gradients, which would be worked out in vain."""
    learning = set(params)
    idle = [p for p in net.parameters() if p.requires_grad and p not in learning]
    for parameter in idle:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in idle:
            parameter.requires_grad_(True)
