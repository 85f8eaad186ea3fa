"""A learner: a net, its memory and the method that trains them, for one task after another."""

import fnmatch
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Generator, Tensor

from edbl import group, users
from edbl.data.augment import Transform, Views
from edbl.data.images import Images
from edbl.data.stream import Task
from edbl.engine import contract, environment, room, trial
from edbl.engine.checkpoint import Checkpoints, Saved, Saver, State, net_tensors
from edbl.engine.evaluate import outputs, shared_outputs
from edbl.engine.fit import Loop, Watch
from edbl.engine.progress import Progress
from edbl.errors import EdblError
from edbl.memory import Budget, Memory
from edbl.methods import find_method
from edbl.methods.base import Draw, Method, Phase, Tools
from edbl.nets import named
from edbl.nets.backbones import Backbone, Maker, ResNet
from edbl.nets.net import Net, stay
from edbl.nets.shared import apart, share
from edbl.rule import TaskFacts
from edbl.schedule import Schedule
from edbl.seeds import Seeds
from edbl.store import check_tensors
from edbl.training import Training

CPU = torch.device("cpu")


@dataclass
class Learnt:
    """What there is to tell of a task that was learnt."""

    seconds: dict[str, float] = field(default_factory=dict)  # of each part
    losses: dict[str, list[float]] = field(default_factory=dict)  # of each epoch of each phase, and what it logged
    within: dict[str, list[list[float]]] = field(default_factory=dict)  # epochs and accuracies within each phase

    def add(self, phase: str, state: State) -> None:
        """Add a phase."""
        self.seconds[phase] = state.seconds
        self.losses |= {f"{phase}.{name}" if name else phase: means for name, means in state.losses.items()}
        if state.within:
            self.within[phase] = state.within


class Learner:
    """What learns, made from a training; ``make`` makes its backbone where the training's is not wanted."""

    def __init__(
        self,
        training: Training,
        shape: Sequence[int],
        transform: Transform | Views,
        device: torch.device,
        progress: Progress,
        make: named.Make | None = None,
        kind: type[Method] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.training = training
        self.shape = torch.Size(shape)
        self.transform = transform
        self.device = device
        self.progress = progress
        self.seeds = Seeds(training.seed)
        self.notes = list(notes)  # what a record should say of how it computes
        bf16, self.alone = environment.in_bf16(training.precision, device), group.size() == 1
        graph = training.graph and self.alone and device.type == "cuda"
        self.loop = Loop(transform, self.seeds, progress, bf16, graph, self._note, shared=not self.alone)
        self.kind = kind = kind or find_method(training.method)  # once: a file may be edited while a run goes on
        self.seen = transform.seen(shape) if isinstance(transform, Transform) else shape
        self.make = built = make or named.maker(
            training.net.backbone, self.seen, kind.last_relu, training.net.image_size
        )

        def backbone(generator: Generator, width: int) -> Backbone:
            return self._backbone(built(generator, width or training.net.width), bf16)

        maker = Maker(tuple(self.seen), backbone)  # kept by nets that grow, and copied with them
        with self.seeds.everywhere("backbone"):
            net = kind.build(maker, self.seeds.generator(CPU, "backbone")).to(device)
        self.learnt: dict[str, Tensor] = {}  # statistics that training gave batch normalisation, while it has others
        if not isinstance(training.options, kind.Config):
            raise TypeError(f"options of {training.method} must be its Config; make recipes with Recipe.build")
        self.budget = Budget.parse(training.memory)
        self.method = self._method(training, 0, net, Memory(self.budget), {})
        contract.check_net(self.method, 0, "build")

    def fresh(self) -> "Learner":
        """Return a learner of the same training and code that has learnt nothing."""
        same = self.training, self.shape, self.transform, self.device, self.progress, self.make, self.kind, self.notes
        return Learner(*same)

    def _backbone(self, made: Backbone, bf16: bool) -> Backbone:
        """Return a backbone on the device, in the kernels that a trial has found to be right there."""
        made = made.to(self.device)
        if self.training.net.frozen:
            stay(made)
        fuse = bf16 and self.training.fused and self.alone and not self.training.net.frozen
        shape = trial.shape_of(made, self.seen, self.training.optim.batch) if fuse else None
        for note in trial.settle(self.device, shape, self.progress):
            self._note(note)
        if isinstance(made, ResNet) and fuse:
            made.fuse(self.seen)
        if not self.alone:
            share(made)
        return made

    def _note(self, note: str) -> None:
        """Tell something about how this computes, once, for the record too."""
        if note not in self.notes:
            self.notes.append(note)
            self.progress.say(note)

    @property
    def net(self) -> Net:
        """The method's net, which it may replace."""
        return self.method.net

    @property
    def memory(self) -> Memory:
        """The exemplars."""
        return self.method.memory

    @property
    def state(self) -> dict[str, Tensor]:
        """What the method keeps from task to task beside them."""
        return self.method.state

    def _method(self, training: Training, task: int, net: Net, memory: Memory, state: dict[str, Tensor]) -> Method:
        """Return the method as it is when a run goes on: with its net, memory and state, and no other attributes."""
        tools = Tools(
            partial(outputs if self.alone else shared_outputs, transform=self.transform),
            self.transform.normalise,
            self.transform.augment,
            partial(self.seeds.generator, CPU, "task", task, "method"),
        )
        options = cast(Any, training.options)
        made = self.kind(net, memory, options, training.schedule, training.optim, tools, training.first)
        made.state = state
        return made

    def _anew(self, training: Training, task: int) -> None:
        """Make the method anew for a task."""
        self.method = self._method(training, task, self.net, self.memory, self.state)

    def features(self, images: Images) -> Tensor:
        """Return features of images by the present net."""
        return self.method.features(images)

    def weights(self) -> dict[str, Tensor]:
        """Return the net and the method's state."""
        learnt = {f"learnt.{k}": v for k, v in self.learnt.items()}
        return net_tensors(self.net) | learnt | {f"state.{k}": v for k, v in self.state.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return net, memory and the method's state."""
        images = self.memory.images
        extra = {f"memory.extra.{k}": v for k, v in images.extra.items()}
        return self.weights() | {"memory.x": images.x, "memory.y": images.y} | extra

    def load(self, saved: Saved, sizes: Sequence[int]) -> None:
        """Take over net, memory and state, as `tensors` gave them after tasks of ``sizes`` classes.

        All of it is checked, since it may come from anywhere: a `ValueError` says what does not fit.
        """
        weights, learnt, state, extra = saved.parts("net.", "learnt.", "state.", "memory.extra.")
        with self.seeds.everywhere("restore"):  # what is drawn and in no checkpoint is the same each time
            for size in sizes:
                self.net.grow(size, self.seeds.generator(CPU, "restore"))
                if _count(self.net.state_dict()) > _count(weights):  # before it takes all memory
                    raise ValueError("there are fewer weights than the net has")
        wanted = self.net.state_dict()
        check_tensors(weights, wanted)
        check_tensors(learnt, {k: v for k, v in wanted.items() if k in learnt and "running_" in k})
        self._check_memory(saved.tensors, extra)
        self.method.check_state(state)
        self.net.load_state_dict(weights)
        self.learnt = learnt
        self.method.state = {k: v.to(self.device) for k, v in state.items()}
        exemplars = Images(saved.tensors["memory.x"], saved.tensors["memory.y"], extra)
        if exemplars.x.ndim > 1:  # else the memory was never filled
            self.memory.replace(exemplars.to(self.device), self.net.head.classes)

    def _check_memory(self, tensors: Mapping[str, Tensor], extra: Mapping[str, Tensor]) -> None:
        """Refuse exemplars that are no images of this learner's shape, sorted by class; there may be none at all."""
        x, y = (tensors.get(name, torch.empty(1)) for name in ("memory.x", "memory.y"))
        own = x.shape[-len(self.shape) :] == self.shape and x.ndim in (1 + len(self.shape), 2 + len(self.shape))
        fits = own and x.dtype in ((torch.uint8,) if len(self.shape) == 3 else (torch.float32, torch.float16))
        lengths = {part.shape[:1] for part in (x, y, *extra.values())}
        if not (fits or x.shape == (0,)) or lengths != {y.shape}:
            raise ValueError(f"tensor 'memory.x' is {x.dtype} {list(x.shape)} of {list(y.shape)} labels")
        known = torch.arange(self.net.head.classes, device=y.device)
        if y.dtype != torch.int64 or (y.diff() < 0).any() or not torch.isin(y, known).all():
            raise ValueError("tensor 'memory.y' is not the class of each exemplar, in order")
        for pattern, axis in self.method.class_axes:
            for name in fnmatch.filter(extra, pattern):
                part = extra[name]
                if part.ndim != 2 or not part.is_floating_point() or part.shape[axis] > len(known):
                    raise ValueError(f"tensor 'memory.extra.{name}' is {part.dtype} {list(part.shape)}")

    def epochs(self, new: bool, first: bool) -> int:
        """Return about how many epochs it takes to learn ``new`` classes, or known ones again, for the time left.

        Later tasks are taken to have a phase for each schedule among the method's own settings.
        """
        training = self.training
        if first or not new:
            return training.first.schedule(training.schedule).epochs
        own = (value for value in vars(training.options).values() if isinstance(value, Schedule))
        return training.schedule.epochs + sum(schedule.epochs for schedule in own)

    def learn(self, task: Task, checkpoints: Checkpoints | None = None, watch: Watch | None = None) -> "Learnt":
        """Learn one task, from where its newest checkpoint left it; without ``checkpoints``, at one go."""
        if self.method.keeps != "all images":
            task = replace(task, stream_train=None)
        self._as_learnt()
        by_rule = task.old and self.training.by_rule
        training = self.training.ruled(self._facts(task)) if by_rule else self.training
        with self._computing(), self.seeds.everywhere("task", task.index):
            self._anew(training, task.index)
            held = users.held(self.kind)
            self.method.begin(task, self.seeds.generator(CPU, "task", task.index, "begin"))
            contract.check_net(self.method, task.seen, "begin")
            learnt = self._fit(task, self.method.phases(task), checkpoints, watch)
            self.progress.busy("choosing exemplars" if self.budget.count else "finishing the task")
            with stopwatch(learnt.seconds, "memory"):
                self.method.end(task)
        contract.check_end(self.method, task, self.budget, self.device, held)
        self.progress.learnt(task.index)
        return learnt

    def refresh(self, task: Task, checkpoints: Checkpoints | None = None) -> None:
        """Learn classes again that are known, as if they were those of a first task; the memory stays as it is."""
        self._as_learnt()
        with self._computing(), self.seeds.everywhere("task", task.index):
            self._anew(self.training, task.index)
            self.net.head.thaw()
            self._fit(task, self.method.refresh(task), checkpoints)
        self.progress.learnt(task.index)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Compute the same bits for the same seed on a GPU too; where its memory ends, say what would fit."""
        environment.check_precision(self.training.precision, self.device)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        try:
            yield
        except torch.OutOfMemoryError as error:
            images = getattr(error, "images", self.training.optim.batch)
            with apart():
                told = room.told(self.net, self.training, self.seen, self.device, images, self.loop.bf16)
            raise EdblError(told) from error

    def _fit(
        self,
        task: Task,
        phases: Iterable[Phase] | None,
        checkpoints: Checkpoints | None,
        watch: Watch | None = None,
    ) -> "Learnt":
        """Fit one phase after the other, and then let batch normalisation see clean images, if it shall."""
        if phases is None:
            raise EdblError(f"`phases` of {self.method.name} gives None; let it yield phases, or return an empty list")
        learnt = Learnt()
        clean: Draw | None = None
        after = self.seeds.number("task", task.index, "after phases")
        for number, phase in enumerate(phases):
            contract.check_phase(self.method, self.net, phase)
            if number == 0:
                clean = self.method.norm_statistics(task, phase.draw)
            if phase.name in learnt.seconds:  # and the seeds of its draws are named after it
                raise EdblError(f"two phases of a task are named '{phase.name}'; give each a name of its own")
            saver = Saver(
                self.net, self.state, phase, checkpoints, task.index, number, self.training.checkpoint_seconds
            )
            state, epochs = saver.state, phase.schedule.epochs
            self.progress.phase(task.index, phase.name, epochs, state.epoch)
            if state.epoch < epochs:
                place = "task", task.index, phase.name
                self.loop.fit(self.net, phase, place, state, saver.after_epoch, watch)
                saver.finish()
            learnt.add(phase.name, state)
            # What a method draws between phases and at the end must not hang on what this phase drew, or did not.
            torch.manual_seed(after + number)
        if clean is not None:
            if not isinstance(clean, Draw):
                raise EdblError(f"`norm_statistics` of {self.method.name} gives {clean!r:.50}; return a Draw or None")
            with stopwatch(learnt.seconds, "clean"):
                self._show(task, clean)
        return learnt

    def _facts(self, task: Task) -> TaskFacts:
        """Return what the rule asks about a task; features have no size, and count as small images."""
        shape = task.train.x.shape
        facts = TaskFacts(len(task.train), len(self.memory), task.old, task.new)
        return facts._replace(size=max(shape[2:])) if len(shape) == 4 else facts

    def _as_learnt(self) -> None:
        """Give batch normalisation the statistics of what it was trained on, which a teacher is shown too."""
        self.net.load_state_dict(self.learnt, strict=False)
        self.learnt = {}

    def _show(self, task: Task, clean: Draw) -> None:
        """Give batch normalisation the statistics of unmixed images, and keep those it was trained on."""
        self.learnt = {k: v.clone() for k, v in self.net.state_dict().items() if "running_" in k}
        self.loop.show(self.net, clean, ("task", task.index, "clean"))


def _count(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())


@contextmanager
def stopwatch(timings: dict[str, float], name: str) -> Iterator[None]:
    """Note the seconds that the block takes."""
    began = time.monotonic()
    yield
    timings[name] = time.monotonic() - began
