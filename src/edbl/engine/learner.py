"""A learner: a net, its memory and the method that trains them, for one task after another."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, cast

import torch
from torch import Generator, Tensor

from edbl.data.augment import Transform, Views
from edbl.data.images import Images
from edbl.data.stream import Task
from edbl.engine.checkpoint import Checkpoints, Saved, Saver, net_tensors
from edbl.engine.evaluate import outputs
from edbl.engine.fit import Loop
from edbl.engine.progress import Progress
from edbl.errors import EdblError
from edbl.memory import Budget, Memory
from edbl.methods import find_method
from edbl.methods.base import Draw, Method, Phase
from edbl.nets import backbones
from edbl.nets.backbones import Backbone
from edbl.rule import TaskFacts
from edbl.schedule import Schedule
from edbl.seeds import Seeds
from edbl.training import Training

CPU = torch.device("cpu")


@contextmanager
def _on_gpu() -> Iterator[None]:
    """Compute the same bits for the same seed on a GPU too; where its memory ends, say what to do."""
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        yield
    except torch.OutOfMemoryError as error:
        hint = "out of GPU memory; lower optim.batch or, for mixing methods, options.max_rounds"
        raise EdblError(hint) from error


class Learner:
    """What learns, made from a training; ``make`` makes its backbone where the training's is not wanted."""

    def __init__(
        self,
        training: Training,
        shape: Sequence[int],
        transform: Transform | Views,
        device: torch.device,
        progress: Progress,
        make: Callable[[Generator], Backbone] | None = None,
    ) -> None:
        self.training = training
        self.transform = transform
        self.device = device
        self.progress = progress
        self.seeds = Seeds(training.seed)
        bf16 = training.precision == "bf16" or (training.precision == "auto" and device.type == "cuda")
        fuse = bf16 and training.fused and device.type == "cuda"
        self.loop = Loop(transform, self.seeds, progress, bf16, training.graph)
        self.kind = kind = find_method(training.method)  # once: a file may be edited while a run goes on

        def backbone(generator: Generator) -> Backbone:
            made = backbones.build(training.net.backbone, shape, generator, kind.last_relu).to(device)
            if fuse and isinstance(made, backbones.ResNet):
                made.fuse(shape)
            return made

        with self.seeds.everywhere("backbone"):
            self.net = kind.build(make or backbone, self.seeds.generator(CPU, "backbone")).to(device)
        self.learnt: dict[str, Tensor] = {}  # statistics that training gave batch normalisation, while it has others
        self.memory = Memory(Budget.parse(training.memory))
        self.state: dict[str, Tensor] = {}  # what the method keeps from task to task
        if not isinstance(training.options, kind.Config):
            raise TypeError(f"options of {training.method} must be its Config; make recipes with Recipe.build")
        self.method = self._method(training)

    def _method(self, training: Training) -> Method:
        """Return the method as it is when a run goes on: with its net, memory and state, and no other attributes."""
        made = self.kind(
            self.net,
            self.memory,
            cast(Any, training.options),
            training.schedule,
            training.optim,
            self.features,
            training.first,
            self.transform.normalise,
        )
        made.state = self.state
        return made

    def features(self, images: Images) -> Tensor:
        """Return features of images by the present net."""
        return outputs(self.net, images, self.transform).features

    def weights(self) -> dict[str, Tensor]:
        """Return the net and the method's state."""
        learnt = {f"learnt.{k}": v for k, v in self.learnt.items()}
        return net_tensors(self.net) | learnt | {f"state.{k}": v for k, v in self.state.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return net, memory and the method's state."""
        images = self.memory.images
        return self.weights() | {"memory.x": images.x, "memory.y": images.y}

    def load(self, saved: Saved, sizes: Sequence[int]) -> None:
        """Take over net, memory and state, as `tensors` gave them after tasks of ``sizes`` classes."""
        for size in sizes:
            self.net.grow(size, self.seeds.generator(CPU, "restore"))
        self.net.load_state_dict(saved.part("net."))
        self.learnt = saved.part("learnt.")
        self.state.clear()
        self.state |= {k: v.to(self.device) for k, v in saved.part("state.").items()}
        exemplars = Images(saved.tensors["memory.x"], saved.tensors["memory.y"]).to(self.device)
        self.memory.replace(exemplars, self.net.head.classes)

    def epochs(self, new: bool, first: bool) -> int:
        """Return about how many epochs it takes to learn ``new`` classes, or known ones again, for the time left.

        Later tasks are taken to have a phase for each schedule among the method's own settings.
        """
        training = self.training
        if first or not new:
            return training.first.schedule(training.schedule).epochs
        own = (value for value in vars(training.options).values() if isinstance(value, Schedule))
        return training.schedule.epochs + sum(schedule.epochs for schedule in own)

    @_on_gpu()
    def learn(
        self, task: Task, checkpoints: Checkpoints | None = None
    ) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Learn one task, from where its newest checkpoint left it; without ``checkpoints``, at one go.

        Return the seconds that each part took, and the mean loss of each epoch of each phase.
        """
        if self.method.keeps != "all images":
            task = replace(task, stream_train=None)
        self._as_learnt()
        by_rule = task.old and self.training.by_rule
        self.method = self._method(self.training.ruled(self._facts(task)) if by_rule else self.training)
        with self.seeds.everywhere("task", task.index):
            self.method.begin(task, self.seeds.generator(CPU, "task", task.index, "begin"))
            timings, losses = self._fit(task, self.method.phases(task), checkpoints)
            self.progress.busy("choosing exemplars")
            with stopwatch(timings, "memory"):
                self.method.end(task)
        self.memory.check()
        return timings, losses

    @_on_gpu()
    def refresh(self, task: Task, checkpoints: Checkpoints | None = None) -> None:
        """Learn classes again that are known, as if they were those of a first task; the memory stays as it is."""
        self._as_learnt()
        self.method = self._method(self.training)
        self.net.head.thaw()
        with self.seeds.everywhere("task", task.index):
            self._fit(task, islice(self.method.phases(task), 1), checkpoints)

    def _fit(
        self, task: Task, phases: Iterable[Phase], checkpoints: Checkpoints | None
    ) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Fit one phase after the other, and then let batch normalisation see clean images, if it shall."""
        timings: dict[str, float] = {}
        losses: dict[str, list[float]] = {}
        clean: Draw | None = None
        after = self.seeds.number("task", task.index, "after phases")
        for number, phase in enumerate(phases):
            if number == 0:
                clean = self.method.norm_statistics(task, phase.draw)
            if phase.name in losses:  # and the seeds of its draws are named after it
                raise EdblError(f"two phases of a task are named '{phase.name}'; give each a name of its own")
            saver = Saver(self.net, checkpoints, task.index, number, self.training.checkpoint_seconds)
            state, epochs = saver.state, phase.schedule.epochs
            self.progress.phase(task.index, phase.name, epochs, state.epoch)
            if state.epoch < epochs:
                self.loop.fit(self.net, phase, ("task", task.index, phase.name), state, saver.after_epoch)
                saver.finish()
            timings[phase.name], losses[phase.name] = state.seconds, state.losses
            # What a method draws between phases and at the end must not hang on what this phase drew, or did not.
            torch.manual_seed(after + number)
        if clean:
            with stopwatch(timings, "clean"):
                self._show(task, clean)
        return timings, losses

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


@contextmanager
def stopwatch(timings: dict[str, float], name: str) -> Iterator[None]:
    """Note the seconds that the block takes."""
    began = time.monotonic()
    yield
    timings[name] = time.monotonic() - began
