"""A model that keeps learning: names of classes, a learner, and what it remembers."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from edbl.data.augment import Transform, Views
from edbl.data.images import Images
from edbl.data.stream import Task
from edbl.engine.checkpoint import Checkpoints, Saved
from edbl.engine.evaluate import class_means, distances, outputs
from edbl.engine.fit import ADVICE
from edbl.engine.learner import CPU, Learner
from edbl.engine.progress import Progress
from edbl.errors import Diverged, EdblError, unknown
from edbl.methods.base import Method
from edbl.nets.named import Make
from edbl.nets.net import Output
from edbl.training import Training

CHECKED = 64  # most exemplars that a net answers after it has learnt


class Model:
    """Classes by name, learnt in increments. What it learns from is ``x``, as its transform takes it, and names."""

    def __init__(
        self,
        recipe: Training,
        shape: Sequence[int],
        transform: Transform | Views,
        device: torch.device,
        *,
        progress: Progress | None = None,
        make: Make | None = None,
    ) -> None:
        self.learner = Learner(recipe, shape, transform, device, progress or Progress(), make)
        self.memory = self.method.memory
        if self.method.keeps == "all images":
            raise EdblError(f"{recipe.method} keeps all images ever seen, which a model does not; use another method")
        self.names: list[str] = []
        self.increments = 0
        self.seen_images = 0  # in training, ever
        self.factor = 1.0  # of logits, that calibrates probabilities
        self._means: Tensor | None = None  # of exemplars, once they were asked for

    @property
    def sizes(self) -> list[int]:
        """How many classes each increment brought that are still there."""
        return self.method.net.head.sizes

    @property
    def method(self) -> Method:
        """The method, which is another one after each increment."""
        return self.learner.method

    def learn(self, x: Tensor, names: Sequence[str], checkpoints: Path | None = None) -> None:
        """Learn from images and the name of each one's class: new classes, and more of those already known.

        With a folder for ``checkpoints``, the same call after a crash goes on from the last one.
        """
        new = [name for name in dict.fromkeys(names) if name not in set(self.names)]
        known = len(self.names)
        self.names += new
        number = {name: k for k, name in enumerate(self.names)}
        images = Images(x, torch.tensor([number[name] for name in names])).to(self.learner.device)
        more, train, before = None, images, list(self.memory.classes)
        if set(names) > set(new):
            more, train = images.of(range(known)), images.of(range(known, len(self.names)))
            # More images of known classes are learnt from as exemplars, until exemplars are chosen again.
            exemplars = before or [images[:0]] * known  # of a method that keeps nothing there is no list
            self.memory.classes = [Images.cat([old, more.of([k])]) for k, old in enumerate(exemplars)]
        saved = Checkpoints(checkpoints) if checkpoints else None
        if new:
            task = Task(self.increments, known, len(new), train, self.seen_images)
            self.learner.learn(task, saved)
        else:
            everything = self.memory.images
            self.learner.refresh(Task(self.increments, 0, known, everything, self.seen_images), saved)
        if more is not None:
            self.method.more(more)
            if before:
                self._choose_again(more, train, before)
            else:
                self.memory.classes = []
        self._means = None
        self._check(x)
        self.seen_images += len(names)
        self.increments += 1

    def _check(self, x: Tensor) -> None:
        """Refuse a net whose weights are finite and whose answers are not."""
        x = self.memory.images.x if len(self.memory) else x
        x = x[torch.linspace(0, len(x) - 1, min(CHECKED, len(x))).long()]
        cnn, nme = self.readouts(x) if len(self.memory) else (self.probabilities(x), torch.zeros(1, 1))
        if not cnn.isfinite().all() or not nme.amax(1).isfinite().all():  # a class without exemplars is infinitely far
            raise Diverged(f"the network's outputs are NaN after training; {ADVICE}")

    def _choose_again(self, more: Images, train: Images, before: Sequence[Images]) -> None:
        """Choose exemplars from more images of known classes and from those of ``before``; new classes have theirs.

        A reservoir is drawn again from all that came, or ``more`` would be in it as if it had been drawn before.
        """
        if self.method.keeps != "reservoir":
            classes = set(more.y.tolist())
            for k in classes:
                self.memory.classes[k] = Images.cat([before[k], more.of([k])])
            self.memory.choose_again(classes, self.learner.features)
        else:
            self.memory.classes = list(before)
            generator = self.learner.seeds.generator(CPU, "task", self.increments, "reservoir")
            self.memory.reservoir(Images.cat([more, train]), self.seen_images, generator)

    @torch.no_grad()
    def probabilities(self, x: Tensor) -> Tensor:
        """Return the probability of each class by the network's own classifier, ``[n, classes]``."""
        return self._probabilities(self._outputs(x))

    @torch.no_grad()
    def nearness(self, x: Tensor) -> Tensor:
        """Return minus the squared distance to each class's mean of exemplars, ``[n, classes]``."""
        return self._nearness(self._outputs(x))

    @torch.no_grad()
    def readouts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return `probabilities` and `nearness` of the same images, which pass through the net once."""
        output = self._outputs(x)
        return self._probabilities(output), self._nearness(output)

    def _probabilities(self, output: Output) -> Tensor:
        return (self.factor * self.method.scores(output)).softmax(1).cpu()

    def _nearness(self, output: Output) -> Tensor:
        if self._means is None:
            flips = self.learner.training.evaluation.nme_flips
            self._means = class_means(self.memory, self.method.features, flips)
        return -distances(self._means, output.features).cpu()

    def _outputs(self, x: Tensor) -> Output:
        images = Images(x.to(self.learner.device), torch.zeros(len(x), dtype=torch.int64))  # of no class
        return outputs(self.method.net, images, self.learner.transform)

    def forget(self, name: str) -> None:
        """Remove a class, its exemplars included."""
        if name not in self.names:
            raise unknown("class", name, self.names)
        if len(self.names) == 1:
            raise EdblError(f"'{name}' is the only class of the model; delete the model instead")
        number = self.names.index(name)
        self.method.forget(number)
        self.names.remove(name)
        self._means = None

    def tensors(self) -> dict[str, Tensor]:
        """Return net and memory."""
        return self.learner.tensors()

    def load(self, tensors: dict[str, Tensor], names: Sequence[str], sizes: Sequence[int]) -> None:
        """Take over net and memory as `tensors` gave them, with names and sizes."""
        self.learner.load(Saved(tensors, {}), sizes)
        self.names = list(names)
