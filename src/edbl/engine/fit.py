"""The training loop: the only one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor, nn

from edbl.data.augment import Transform
from edbl.data.mixing import Batch
from edbl.engine.progress import Progress
from edbl.errors import EdblError
from edbl.methods.base import Phase
from edbl.nets.net import Net
from edbl.schedule import Optim
from edbl.seeds import Seeds


class LossError(EdblError):
    """The loss became NaN or infinite."""


@dataclass
class State:
    """How far a phase has come: what a checkpoint inside a phase must hold beside the net."""

    epoch: int = 0  # epochs finished
    momentum: list[Tensor] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # mean loss of each finished epoch


def step(net: Net, phase: Phase, transform: Transform, index: Tensor, classes: Tensor, generator: Generator) -> Batch:
    """Return the batch of one step: gathered, augmented, labelled, mixed."""
    images = phase.draw.data[index]
    labels = (images.y.unsqueeze(1) == classes).float()  # [batch, seen]
    return phase.draw.mixing(Batch(transform.augment(images.x, generator), labels), generator)


def fit(
    net: Net,
    phase: Phase,
    optim: Optim,
    transform: Transform,
    seeds: Seeds,
    place: Sequence[int | str],
    state: State,
    progress: Progress,
    after_epoch: Callable[[State], None],
) -> State:
    """Train a phase from ``state`` to its end; call ``after_epoch`` with the state after each epoch but the last."""
    device = phase.draw.data.y.device
    optimiser = torch.optim.SGD(
        phase.params,
        lr=phase.schedule.lr,
        momentum=optim.momentum,
        nesterov=optim.nesterov and optim.momentum > 0,
        weight_decay=optim.weight_decay,
    )
    for parameter, momentum in zip(phase.params, state.momentum, strict=False):
        optimiser.state[parameter]["momentum_buffer"] = momentum.to(device)
    classes = torch.arange(net.head.classes, device=device)
    generator = Generator(device)
    net.train(phase.train_mode)
    for epoch in range(state.epoch, phase.schedule.epochs):
        generator.manual_seed(seeds.number(*place, "epoch", epoch))
        for group in optimiser.param_groups:
            group["lr"] = phase.schedule.rate(epoch, optim.warmup)
        batches = phase.draw.sampler(generator)  # [steps, batch]
        batches = batches[: optim.steps] if optim.steps else batches
        losses = torch.zeros(len(batches), device=device)
        progress.epoch(epoch, len(batches))
        for number, index in enumerate(batches):
            batch = step(net, phase, transform, index, classes, generator)
            loss = phase.loss(batch)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            losses[number] = loss.detach()
            progress.step(losses, number, len(batch.x))
        values = losses.cpu()  # the one host synchronisation of an epoch
        if not values.isfinite().all():
            at = int((~values.isfinite()).nonzero()[0])
            raise LossError(
                f"the loss became {values[at]:f} in {phase.name} epoch {epoch + 1}, step {at + 1} of {len(values)}; "
                "lower schedule.lr or options.gamma. The last good checkpoint is kept"
            )
        state.epoch = epoch + 1
        state.losses.append(float(values.mean()))
        if state.epoch < phase.schedule.epochs:
            state.momentum = _momenta(optimiser, phase.params)
            after_epoch(state)
    net.eval()
    return state


def _momenta(optimiser: torch.optim.Optimizer, params: Sequence[nn.Parameter]) -> list[Tensor]:
    buffers = [optimiser.state[p].get("momentum_buffer") for p in params]
    return [b for b in buffers if b is not None]
