"""What a run needs before it trains: its data, its stream and its learner, so that all that can fail early does."""

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from edbl.data import datasets
from edbl.data.images import Dataset
from edbl.data.stream import Stream, class_order, find_classes, hold_out, task_sizes
from edbl.engine import environment
from edbl.engine.learner import Learner
from edbl.engine.progress import Progress
from edbl.errors import EdblError
from edbl.memory import Budget
from edbl.recipe import Recipe, StreamSettings
from edbl.records import Record

FEATURES_KEPT = 1000  # test images whose features a run keeps for the report's map


class Prepared:
    """A recipe with its data loaded and its learner made."""

    def __init__(self, recipe: Recipe, data_dir: Path | None, progress: Progress) -> None:
        self.recipe = recipe
        device = environment.pick_device(recipe.device)
        settings = recipe.data
        dataset = datasets.load(settings.name, data_dir, image_size=settings.image_size, skip_bad=settings.skip_bad)
        dataset.check()
        if settings.holdout:
            dataset = hold_out(dataset, settings.holdout, recipe.seed)
        self.notes = list(dataset.notes)
        self.fingerprint = fingerprint(dataset)
        order, sizes = plan(recipe.stream, dataset.classes)
        Budget.parse(recipe.memory).check(len(order))
        self.stream = Stream(dataset, order, sizes, device)
        shape = dataset.train.x.shape[1:]
        if len(shape) == 3:
            settings.check(shape[0])
        self.method_digest = method_digest(recipe)
        self.learner = Learner(recipe, shape, settings.transform(device), device, progress)

    def record(self) -> Record:
        """Return the record of a run that has learnt nothing yet."""
        recipe, method = self.recipe, self.learner.method
        return Record(
            method=method.name,
            data=recipe.data.name,
            protocol=recipe.stream.protocol,
            phases=recipe.stream.phases if recipe.stream.phased else len(self.stream),
            memory=recipe.memory,
            order=recipe.stream.order if isinstance(recipe.stream.order, str) else "list",
            seed=recipe.seed,
            recipe=recipe.values(),
            classes=list(self.stream.classes),
            task_sizes=list(self.stream.sizes),
            commit=environment.commit(),
            versions=environment.versions(),
            device=environment.describe(self.learner.device),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            method_digest=self.method_digest,
            data_fingerprint=self.fingerprint,
            our_reading=method.our_reading,
            notes=self.notes,
        )

    def sample_features(self) -> tuple[Tensor, Tensor]:
        """Return features and labels of some test images, evenly from all classes."""
        test = self.stream.test(len(self.stream) - 1)
        each = max(1, FEATURES_KEPT // len(self.stream.classes))
        chosen = torch.cat([(test.y == k).nonzero().squeeze(1)[:each] for k in range(len(self.stream.classes))])
        return self.learner.features(test[chosen]).cpu(), test.y[chosen].cpu()


def plan(stream: StreamSettings, names: tuple[str, ...]) -> tuple[list[int], list[int]]:
    """Return the class order and the size of each task."""
    if stream.protocol == "tasks":
        if not stream.tasks or not all(stream.tasks):
            raise EdblError("protocol tasks needs stream.tasks, a list of tasks with at least one class each")
        return find_classes([c for task in stream.tasks for c in task], names), [len(task) for task in stream.tasks]
    sizes = task_sizes(len(names), stream.protocol, stream.phases, stream.base, stream.step)
    return class_order(stream.order, names), sizes


def method_digest(recipe: Recipe) -> str:
    """Return a digest of the file of a user's own method, or nothing."""
    return hashlib.sha256(Path(recipe.method).read_bytes()).hexdigest() if recipe.method.endswith(".py") else ""


def fingerprint(dataset: Dataset) -> str:
    """Return a short digest of all images and labels."""
    digest = hashlib.blake2b(digest_size=16)
    for images in (dataset.train, dataset.test):
        digest.update(images.x.contiguous().numpy().data)
        digest.update(images.y.contiguous().numpy().data)
    return digest.hexdigest()
