"""The training loop, the only one: epochs of a phase; the step: gather, augment, mix, forward, backward, update."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Generator, Tensor, nn
from torch.optim.sgd import sgd

from edbl import group
from edbl.data.augment import Transform, Views
from edbl.data.devices import usable
from edbl.data.far import far
from edbl.data.mixing import Batch
from edbl.engine import contract
from edbl.engine.checkpoint import State
from edbl.engine.progress import LOSS, Progress
from edbl.errors import Diverged, EdblError, happened
from edbl.methods.base import Draw, Phase
from edbl.nets.net import Net
from edbl.schedule import Optim
from edbl.seeds import Seeds
from edbl.store import check_tensors

if TYPE_CHECKING:
    from torch.optim import Optimizer

SHOWN = 100  # batches, of which batch normalisation, at a momentum of 0.1, forgets all but the last few dozens
WARM_UP = 3  # steps before a capture, in which libraries make their choices and the optimiser its buffers
ADVICE = "lower the learning rate (schedule.lr) or a weight of the loss"


class Watch(NamedTuple):
    """Accuracy within a phase, after ``every`` so many epochs and at its end."""

    every: int
    accuracy: Callable[[Phase], tuple[float, float, float]]  # of the present net over all, old and new classes


@dataclass(frozen=True)
class Loop:
    """The training loop, with what all phases of a run share."""

    transform: Transform | Views
    seeds: Seeds
    progress: Progress
    bf16: bool
    graph: bool
    note: Callable[[str], None] = lambda _: None  # tells something about how steps are computed
    shared: bool = False  # by several processes

    def fit(
        self,
        net: Net,
        phase: Phase,
        place: Sequence[int | str],
        state: State,
        after_epoch: Callable[[], None] = lambda: None,
        watch: Watch | None = None,
    ) -> None:
        """Train a phase from ``state`` to its end; call ``after_epoch`` after each epoch but the last."""
        generator = Generator(phase.draw.data.y.device)
        step = Step(
            phase, net.head.classes, self.transform, generator, bf16=self.bf16, graph=self.graph, note=self.note
        )
        if state.saved is not None:
            try:
                step.optimiser.load(state.optimiser)
            except ValueError as error:
                raise state.saved.unfit(error) from error
        net.train(phase.train_mode)
        if generator.device.type == "cuda":
            self.progress.busy("compiling kernels, once per machine")
        with only(net, phase.params):
            first = state.epoch
            for epoch in range(first, phase.schedule.epochs):
                seed = self.seeds.number(*place, "epoch", epoch)
                step.generator.manual_seed(seed)
                torch.manual_seed(seed ^ 1)  # for a module's own draws, such as dropout's
                rate = phase.schedule.rate(epoch, phase.optim.warmup)
                try:
                    means = self._epoch(phase, step, epoch, rate)
                except Exception as error:
                    if isinstance(error, torch.OutOfMemoryError):
                        error.__dict__["images"] = step.images
                    happened(error, f"phase {phase.name}, epoch {epoch + 1}")
                    raise
                for name, mean in means.items():
                    state.losses.setdefault(name, []).append(mean)
                state.epoch = epoch + 1
                within: Sequence[float] = ()
                if watch and (state.epoch % watch.every == 0 or state.epoch == phase.schedule.epochs):
                    within = watch.accuracy(phase)
                    state.within.append([float(state.epoch), *within])
                    net.train(phase.train_mode)
                self.progress.trained(state.epoch, means, rate, within)
                if state.epoch < phase.schedule.epochs:
                    state.optimiser = step.optimiser.state()
                    if epoch == first and phase.optimiser and isinstance(step.optimiser, Foreign):
                        contract.check_resumes(phase, step.optimiser.optimiser, optimiser(phase), state.optimiser)
                    after_epoch()
        state.optimiser = {}  # the next phase has one of its own
        phase.logged.clear()  # what comes later is no step's
        net.eval()
        if phase.finish is not None:
            before = _structure(net)
            phase.finish()
            if _structure(net) != before:  # a run that was killed after it could not load the net
                what = f"`finish` of phase '{phase.name}' changes the structure of the network"
                raise EdblError(f"{what}; do that in `end`")

    def _epoch(self, phase: Phase, step: "Step", epoch: int, rate: float) -> dict[str, float]:
        """Make the steps of an epoch, and return the means of their loss and of what it logged, by name."""
        batches = phase.draw.sampler(step.generator)  # [steps, batch]
        if not step.calls:
            contract.check_batches(phase, batches)
        step.begin_epoch(batches, rate)
        self.progress.epoch(epoch, len(batches))
        for number in range(len(batches)):
            if phase.optim.by_step:  # on a GPU a launch of its own before that of the graph, which reads the rate
                step.optimiser.set_rate(phase.schedule.rate(epoch + number / len(batches), phase.optim.warmup))
            step()
            self.progress.step(step.losses, number, step.images)
        # The first time in an epoch that the host waits for the device.
        losses, *logs = torch.stack([step.losses, *step.logs.values()]).cpu()
        if not losses.isfinite().all():
            at = int((~losses.isfinite()).nonzero()[0])
            where = f"{phase.name} epoch {epoch + 1}, step {at + 1} of {len(losses)}"
            raise Diverged(f"the loss became {losses[at]:f} in {where}; {ADVICE}")
        # No loss has seen the last step, and the fused kernels' ReLU makes 0 of NaN, which losses do not show.
        if not torch.cat([p.detach().flatten() for p in phase.params]).isfinite().all():
            raise Diverged(f"weights became infinite in {phase.name} epoch {epoch + 1}; {ADVICE}")
        if self.shared:
            group.check_same("the loss", losses.tolist())
        return {LOSS: float(losses.mean())} | {k: float(log.mean()) for k, log in zip(step.logs, logs, strict=True)}

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
                    net((draw.augment or self.transform.augment)(draw.data[index].here().x, generator))
                left -= len(batches)
        net.eval()


def _structure(net: Net) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in net.state_dict().items()}


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


class Step:
    """One step of a phase, to be called once for each row of the epoch's batches.

    It reads and writes fixed buffers and never waits for the device. On a GPU it is captured once per phase as a CUDA
    graph and replayed, so a step costs one launch; on a CPU the same function runs as it is.
    """

    def __init__(
        self,
        phase: Phase,
        classes: int,
        transform: Transform | Views,
        generator: Generator,
        *,
        bf16: bool,
        graph: bool,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.note = note
        self.phase = phase
        self.generator = generator
        device = generator.device
        self.bf16 = bf16
        self.augment = phase.draw.augment or transform.augment
        self.optimiser = optimiser(phase)
        self.use_graph = graph and usable("graph", device) and isinstance(self.optimiser, SGD)
        # A teacher answers beside the student's own pass.
        self.ahead = phase.teacher if device.type == "cuda" and group.size() == 1 else None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.calls = 0
        self.images = 0  # images of a batch after mixing
        self.one_hot = torch.eye(classes, device=device)
        self.number = torch.zeros(1, dtype=torch.int64, device=device)  # of the step within the epoch
        self.batches = torch.empty(0, dtype=torch.int64, device=device)  # [steps, batch]
        self.coming: Iterator[Tensor] | None = None  # batches of images that are far from the device
        self.here: Tensor | None = None  # the present one
        self.losses = torch.empty(0, device=device)  # [steps]
        self.logs: dict[str, Tensor] = {}  # what the loss logs by name, [steps]

    def begin_epoch(self, batches: Tensor, rate: float) -> None:
        """Take the index batches and the learning rate of an epoch."""
        if self.calls and batches.shape != self.batches.shape:
            gives = f"gives {list(batches.shape)} in one epoch and {list(self.batches.shape)} in another"
            raise EdblError(f"the sampler of phase '{self.phase.name}' {gives}; the shape must stay the same")
        if not self.calls:
            self.batches = torch.empty_like(batches)
            self.losses = torch.empty(len(batches), device=batches.device)
            self.logs = {}
        self.batches.copy_(batches)
        apart = far(self.phase.draw.data.x)
        self.coming = apart.batches(batches.cpu().unbind()) if apart else None
        self.losses.zero_()
        self.number.zero_()
        self.optimiser.set_rate(rate)

    def __call__(self) -> None:
        """Make one step."""
        if self.coming is not None:
            came = next(self.coming)
            self.here = came if self.here is None else self.here.copy_(came)
        if self.graph is None and self.use_graph and self.calls == WARM_UP:
            self._try_to_capture()
        self.calls += 1
        if self.graph is None:
            self._step()
        else:
            self.graph.replay()

    def _try_to_capture(self) -> None:
        """Capture the step; where that fails, make the steps one by one, with the same draws."""
        device = self.generator.device
        drawn, usual = self.generator.get_state(), torch.cuda.get_rng_state(device)
        try:
            self.graph = torch.cuda.CUDAGraph()
            self.graph.register_generator_state(self.generator)
            self.optimiser.zero_grad()
            with torch.cuda.graph(self.graph):
                self._step()
        except RuntimeError as error:
            self.graph, self.use_graph = None, False
            # The old ones, ours and PyTorch's, may still take themselves to be captured, and would refuse to draw.
            self.generator = Generator(device)
            self.generator.set_state(drawn)
            theirs = torch.cuda.default_generators[device.index]
            theirs.graphsafe_set_state(theirs.clone_state())
            torch.cuda.set_rng_state(usual, device)
            self.optimiser.zero_grad()
            why = str(error).strip().partition("\n")[0]
            self.note(f"steps of phase {self.phase.name} are not replayed as a CUDA graph: {why}")

    def _batch(self) -> Batch:
        index = self.batches.index_select(0, self.number).squeeze(0)
        data = self.phase.draw.data
        labels = self.one_hot[data.y[index]]  # [batch, seen]
        x = self.augment(data.x[index] if self.here is None else self.here, self.generator)
        if not isinstance(x, Tensor) or len(x) != len(labels) or not x.is_floating_point():
            what = f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            given = f"gives {what} for {len(labels)} images"
            raise EdblError(f"`augment` of phase '{self.phase.name}' {given}; return as many, normalised, as floats")
        batch = Batch(x, labels, index=index)
        mixed: object = self.phase.draw.mixing(batch, self.generator)
        if not isinstance(mixed, Batch):
            raise EdblError(f"`mixing` of phase '{self.phase.name}' gives {type(mixed).__name__}; return a Batch")
        return mixed

    def _step(self) -> None:
        batch = self._batch()
        self.images = len(batch.x)
        # A graph must not keep casts of weights from one step for the next, so nothing is cached.
        cast = torch.autocast(batch.x.device.type, torch.bfloat16, cache_enabled=False) if self.bf16 else nullcontext()
        with cast:
            if self.ahead is not None:
                self.ahead.ask(batch.x)
            loss = self.phase.loss(batch)
            if self.calls == 1:
                contract.check_loss(self.phase, loss)
            if self.ahead is not None:
                self.ahead.wait()
        self.optimiser.zero_grad()
        loss.backward()
        if self.phase.adjust is not None:
            before = contract.versions(self.phase.params)
            with cast:
                self.phase.adjust(self.generator)
            if contract.versions(self.phase.params) != before:
                what = f"`adjust` of phase '{self.phase.name}' changes parameters, and a kill would lose how"
                raise EdblError(f"{what}; it may change gradients: an optimiser of your own is `Phase.optimiser`")
        if self.phase.optim.clip:
            nn.utils.clip_grad_norm_(self.phase.params, self.phase.optim.clip)
        self.optimiser.step()
        self.losses.index_copy_(0, self.number, loss.detach().float().view(1))
        for name, value in self.phase.logged.items():
            log = self.logs.setdefault(name, torch.zeros_like(self.losses))
            log.index_copy_(0, self.number, value.float().view(1))
        self.number += 1


class Optimiser(Protocol):
    """What changes parameters by their gradients."""

    def set_rate(self, rate: float) -> None:
        """Set the learning rate."""

    def zero_grad(self) -> None:
        """Drop all gradients."""

    def step(self) -> None:
        """Update all parameters that have a gradient."""

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold of it, by number of the parameter and name: ``3.momentum``."""

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave."""


def optimiser(phase: Phase) -> Optimiser:
    """Return the optimiser of a phase: one of its own, or what the recipe names."""
    if phase.optimiser is not None:
        made = phase.optimiser(phase.params)
        contract.check_optimiser(phase, made)
        return Foreign(made)
    if phase.optim.kind == "sgd":
        return SGD(phase.params, phase.backbone, phase.optim)
    from torch.optim import Adam, AdamW

    slow = set(phase.backbone)
    groups = [
        {"params": [p for p in phase.params if (p in slow) == is_slow], "lr_scale": scale}
        for is_slow, scale in ((True, phase.optim.backbone_lr), (False, 1.0))
    ]
    kind = {"adam": Adam, "adamw": AdamW}[phase.optim.kind]
    return Foreign(kind([group for group in groups if group["params"]], weight_decay=phase.optim.weight_decay))


class SGD:
    """Stochastic gradient descent, by PyTorch's fused update; the backbone's rate is ``optim.backbone_lr`` of others'.

    `torch.optim.SGD` calls the same function, but the class loads PyTorch's compiler, which takes as long as PyTorch.
    """

    def __init__(self, params: Sequence[nn.Parameter], backbone: Sequence[nn.Parameter], optim: Optim) -> None:
        self.params = params
        self.optim = optim
        self.momenta: list[Tensor | None] = [None] * len(params)
        slow = set(backbone)
        self.groups: dict[float, list[int]] = {}  # numbers of parameters by the factor of their learning rate
        for number, parameter in enumerate(params):
            self.groups.setdefault(optim.backbone_lr if parameter in slow else 1.0, []).append(number)
        self.rates = {factor: torch.zeros((), device=params[0].device) for factor in self.groups}

    def set_rate(self, rate: float) -> None:
        """Set the learning rate; a step that a CUDA graph has captured follows it."""
        for factor, tensor in self.rates.items():
            tensor.fill_(factor * rate)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.params:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters that have a gradient."""
        for factor, numbers in self.groups.items():
            used = [number for number in numbers if self.params[number].grad is not None]
            momenta = [self.momenta[number] for number in used]
            sgd(
                [self.params[number] for number in used],
                [grad for number in used if (grad := self.params[number].grad) is not None],
                momenta,
                fused=True,
                weight_decay=self.optim.weight_decay,
                momentum=self.optim.momentum,
                lr=self.rates[factor],  # type: ignore[arg-type]  # a tensor, as `torch.optim.SGD` gives it
                dampening=0.0,
                nesterov=self.optim.nesterov and self.optim.momentum > 0,
                maximize=False,
            )
            for number, momentum in zip(used, momenta, strict=True):
                self.momenta[number] = momentum

    def state(self) -> dict[str, Tensor]:
        """Return the momentum of each parameter that has one, for a checkpoint."""
        return {f"{number}.momentum": m for number, m in enumerate(self.momenta) if m is not None}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave; a parameter without momentum, beside others, had no gradient yet."""
        _check_kept(state, self.params, fused=True)
        for number, parameter in enumerate(self.params if state else ()):
            momentum = state.get(f"{number}.momentum", torch.zeros_like(parameter))
            self.momenta[number] = momentum.detach().to(parameter.device)


class Foreign:
    """An optimiser of PyTorch. It is not captured in a graph: few can be."""

    def __init__(self, optimiser: "Optimizer") -> None:
        self.optimiser = optimiser
        self.zero_grad, self.step = optimiser.zero_grad, optimiser.step

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of each group, times its ``lr_scale``."""
        for own in self.optimiser.param_groups:
            own["lr"] = rate * own.get("lr_scale", 1.0)

    def state(self) -> dict[str, Tensor]:
        """Return what it keeps for each parameter, and the numbers of its groups, for a checkpoint."""
        whole = self.optimiser.state_dict()
        named = {f"{number}.{name}": value for number, own in whole["state"].items() for name, value in own.items()}
        kept = {
            name: torch.as_tensor(value) for name, value in named.items() if isinstance(value, Tensor | int | float)
        }
        return kept | contract.numbers_of(whole["param_groups"])

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave."""
        groups = contract.with_numbers(self.optimiser.state_dict()["param_groups"], state)
        state = {name: value for name, value in state.items() if not name.startswith(contract.GROUP)}
        _check_kept(state, [p for own in self.optimiser.param_groups for p in own["params"]])
        kept: dict[int, dict[str, Tensor]] = {}
        for name, value in state.items():
            number, _, what = name.partition(".")
            kept.setdefault(int(number), {})[what] = value
        self.optimiser.load_state_dict({"state": kept, "param_groups": groups})


def _check_kept(state: Mapping[str, Tensor], params: Sequence[Tensor], fused: bool = False) -> None:
    """Refuse what is of no parameter, or of another shape: it may come from anywhere, and kernels believe it.

    Unless an update is ``fused``, one number may stand for several of a parameter, such as its steps.
    """
    numbered = {str(number): p for number, p in enumerate(params)}
    wanted = {name: numbered[number] for name in state if (number := name.partition(".")[0]) in numbered}
    for name, parameter in wanted.items():
        sizes = zip(state[name].shape, parameter.shape, strict=False)
        if not fused and state[name].ndim in (0, parameter.ndim) and all(size in (1, full) for size, full in sizes):
            wanted[name] = state[name]
    check_tensors(state, wanted)
