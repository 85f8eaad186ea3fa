"""What a run needs before it trains: its data, its stream and its learner, so that all that can fail early does."""

import gc
import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from edbl import users
from edbl.data import datasets
from edbl.data.arrivals import Arrivals, arrivals, own_parts, share_out
from edbl.data.far import far, placed
from edbl.data.given import as_dataset
from edbl.data.images import Dataset
from edbl.data.stream import Kind, Stream, class_order, find_classes, hold_out, task_sizes
from edbl.engine import environment
from edbl.engine.checkpoint import Checkpoints
from edbl.engine.learner import Learner
from edbl.engine.progress import Progress
from edbl.errors import EdblError
from edbl.memory import Budget
from edbl.methods import find_method, methods
from edbl.methods.base import Method
from edbl.nets import named
from edbl.recipe import Recipe, StreamSettings, given_method
from edbl.records import Record
from edbl.seeds import Seeds

FEATURES_KEPT = 1000  # test images whose features a run keeps for the report's map


class Prepared:
    """A recipe with its data loaded and its learner made."""

    def __init__(
        self,
        recipe: Recipe,
        data_dir: Path | None,
        progress: Progress,
        dataset: Dataset | None = None,
    ) -> None:
        self.recipe = recipe
        device = environment.pick_device(recipe.device)
        environment.check_precision(recipe.precision, device)
        settings = recipe.data
        dataset = loaded(recipe, data_dir) if dataset is None else dataset
        dataset.check()
        if settings.holdout:
            dataset = hold_out(dataset, settings.holdout, recipe.seed)
        self.notes = list(dataset.notes)
        order, sizes, parts = plan(recipe.stream, dataset, recipe.seed)
        self.fingerprint = fingerprint(dataset, parts if recipe.stream.given else ())
        Budget.parse(recipe.memory).check(len(order))
        train, test = placed([dataset.train.x, dataset.test.x], settings.on, device)
        self.far = far(train) is not None
        dataset = replace(dataset, train=replace(dataset.train, x=train), test=replace(dataset.test, x=test))
        self.stream = Stream(dataset, order, sizes, device, parts)
        check_stream(find_method(recipe.method), self.stream.kinds)
        shape = dataset.train.x.shape[1:]
        self.code = code(recipe)
        self.shape = shape
        self.learner = self._learner(device, progress)
        if len(shape) == 3:
            settings.check(shape[0])

    def _learner(self, device: torch.device, progress: Progress) -> Learner:
        return Learner(self.recipe, self.shape, self.recipe.data.transform(device), device, progress)

    def go_on_afresh(self, checkpoints: Checkpoints, task: int) -> None:
        """Let a fresh learner go on from the state after a task: what a kill would lose is lost, or refused, now."""
        learner, saved = self.learner.fresh(), checkpoints.load(f"task-{task}")
        if saved is None:
            return  # an unlucky moment; whoever goes on finds the state before it
        name = self.learner.method.name
        try:
            learner.load(saved, self.stream.sizes[: task + 1])
        except ValueError as error:
            raise EdblError(
                f"a run of {name} could not be resumed: after task {task + 1} its network is not what `build` and "
                f"`grow` make; keep other tensors in `self.state` ({' '.join(str(error).split())})"
            ) from error
        again = learner.tensors()
        if odd := sorted(k for k, v in saved.tensors.items() if k not in again or not _same(v, again[k].cpu())):
            raise EdblError(f"a run of {name} could not be resumed: '{odd[0]}' is lost after task {task + 1}")
        frozen = {k for k, p in self.learner.net.named_parameters() if not p.requires_grad}
        if odd := sorted(k for k, p in learner.net.named_parameters() if p.requires_grad and k in frozen):
            raise EdblError(
                f"a run of {name} could not be resumed: that '{odd[0]}' is frozen is lost after task {task + 1}; "
                f"freeze in `begin`, or leave it out of the `params` of phases"
            )
        self.learner = learner
        if self.far:  # learners hold themselves, and with them all exemplars
            gc.collect()

    def record(self) -> Record:
        """Return the record of a run that has learnt nothing yet."""
        recipe, method = self.recipe, self.learner.method
        return Record(
            method=method.name,
            data=recipe.data.name,
            protocol=recipe.stream.protocol,
            phases=recipe.stream.number or len(self.stream),
            memory=recipe.memory,
            order=recipe.stream.order if isinstance(recipe.stream.order, str) else "list",
            seed=recipe.seed,
            recipe=recipe.values(),
            classes=list(self.stream.classes),
            task_sizes=list(self.stream.sizes),
            returning=self.stream.returning,
            commit=environment.commit(),
            versions=environment.versions(),
            device=environment.describe(self.learner.device),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            code=self.code,
            data_fingerprint=self.fingerprint,
            our_reading=method.our_reading,
            title=method.title,
            notes=[*self.notes, *environment.notes, *self.learner.notes],
        )

    def sample_features(self) -> tuple[Tensor, Tensor]:
        """Return features and labels of some test images, evenly from all classes."""
        test = self.stream.test(len(self.stream) - 1)
        each = max(1, FEATURES_KEPT // len(self.stream.classes))
        chosen = torch.cat([(test.y == k).nonzero().squeeze(1)[:each] for k in range(len(self.stream.classes))])
        with self.learner.seeds.everywhere("features"):
            return self.learner.features(test[chosen]).cpu(), test.y[chosen].cpu()


def loaded(recipe: Recipe, data_dir: Path | None) -> Dataset:
    """Load the data that a recipe names."""
    settings = recipe.data
    return datasets.load(settings.name, data_dir, image_size=settings.image_size, skip_bad=settings.skip_bad)


def of_data(recipe: Recipe, data_dir: Path | None) -> dict[str, object]:
    """Return what a record says that follows from the data, without a learner: a device may be wanted that is away."""
    dataset = loaded(recipe, data_dir)
    if recipe.data.holdout:
        dataset = hold_out(dataset, recipe.data.holdout, recipe.seed)
    order, sizes, parts = plan(recipe.stream, dataset, recipe.seed)
    classes = [dataset.classes[number] for number in order]
    return {
        "classes": classes,
        "task_sizes": list(sizes),
        "phases": recipe.stream.number or len(sizes),
        "data_fingerprint": fingerprint(dataset, parts if recipe.stream.given else ()),
    }


def _same(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors have the same bits, or are both not a number."""
    if one.is_floating_point():
        one, other = one.nan_to_num(), other.nan_to_num()
    return one.dtype == other.dtype and torch.equal(one, other)


def plan(stream: StreamSettings, dataset: Dataset, seed: int) -> Arrivals:
    """Return which classes and training images arrive when."""
    labels = dataset.train.y
    if stream.protocol == "own":
        return arrivals(labels, _own_parts(stream.given, labels, seed))
    tasks = listed(stream, dataset.classes, seed)
    parts = share_out(
        labels,
        tasks,
        seed,
        shots=stream.shots,
        imbalance=stream.imbalance,
        tail=stream.tail,
        blur=stream.blur,
        disjoint=stream.disjoint,
    )
    return arrivals(labels, parts, tasks)


def _own_parts(name: str, labels: Tensor, seed: int) -> list[Tensor]:
    """Return the images of each task of a stream of one's own: as they were given, or as a function makes them."""
    if not name:
        raise EdblError("protocol own needs stream.given, as in FILE.py:make, or `edbl.run(recipe, stream=...)`")
    found = users.find(users.STREAM, name, {})
    if isinstance(found, ModuleType):
        raise EdblError(f"say which function of {name} makes the stream, as in {name}:make")
    with users.calling(name), Seeds(seed).everywhere("stream"):
        return own_parts(found(labels.clone()) if callable(found) else found)


def listed(stream: StreamSettings, names: Sequence[str], seed: int) -> list[list[int]]:
    """Return the classes of each task, some perhaps again."""
    if stream.lists:
        return [find_classes(task, names, f"task {t + 1} of stream.tasks") for t, task in enumerate(stream.lists)]
    sizes = task_sizes(len(names), stream.protocol, stream.number, stream.base, stream.step)
    order = iter(class_order(stream.order, names, seed))
    return [list(islice(order, size)) for size in sizes]


def check_stream(method: type[Method], kinds: frozenset[Kind]) -> None:
    """Refuse a stream that the method does not say that it can learn."""
    words = {"nothing new": "a task without a new class", "returning": "classes that come back"}
    if lacking := sorted(kinds - method.streams):
        able = sorted(name for name, kind in methods().items() if kinds <= kind.streams)
        what = f"{method.name} does not learn streams with {words[lacking[0]]}"
        raise EdblError(f"{what}; use one of {', '.join(able)}, or another stream")


def code(recipe: Recipe) -> dict[str, str]:
    """Return what tells the code that a recipe names, and that is not ours, from other such code, by key."""
    found = {
        "method": users.digest(users.METHOD, recipe.method, methods()),
        "data.name": users.digest(users.DATA, recipe.data.name, datasets.DATASETS),
        "net.backbone": named.digest(recipe.net.backbone),
        "stream.given": users.digest(users.STREAM, recipe.stream.given, ()),
    }
    return {key: text for key, text in found.items() if text}


def with_objects(
    recipe: Recipe, data: object = None, backbone: object = None, method: object = None, stream: object = None
) -> tuple[Recipe, Dataset | None]:
    """Return the recipe of a run that is given objects, with names for them, and the data."""
    if method is not None:
        recipe = Recipe.of({**recipe.values(), "method": given_method(method)})
    if backbone is not None:
        kind = backbone if inspect.isroutine(backbone) or inspect.isclass(backbone) else type(backbone)
        name = users.give(users.BACKBONE, kind.__name__, backbone)
        recipe = replace(recipe, net=replace(recipe.net, backbone=name))
    if stream is not None:
        recipe = replace(recipe, stream=StreamSettings("own", given=_given_stream(stream, bool(recipe.data.holdout))))
    if data is None:
        return recipe, None
    if recipe.data.name.partition(":")[0] != datasets.GIVEN:
        raise EdblError(
            f"the recipe is for {recipe.data.name}, whose mean and more may not suit the data that are given\n"
            f'make it for those: `Recipe.build(..., data="{datasets.GIVEN}")`'
        )
    dataset = as_dataset(data)
    dataset.check()
    name = users.GIVEN + fingerprint(dataset)
    return replace(recipe, data=replace(recipe.data, name=name)), dataset


def _given_stream(stream: object, held_out: bool) -> str:
    """Return the name of a stream that a call was given: a checksum of its numbers, or that of a function."""
    if callable(stream):
        return users.give(users.STREAM, getattr(stream, "__name__", type(stream).__name__), stream)
    if held_out:
        raise EdblError("with data.holdout training images have other numbers; leave it out, or give a function")
    parts = own_parts(stream)
    return users.give(users.STREAM, _digest_of_parts(parts), parts)


def _digest_of_parts(parts: Sequence[Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part.numpy().tobytes())
    return digest.hexdigest()


def fingerprint(dataset: Dataset, parts: Sequence[Tensor] = ()) -> str:
    """Return a short digest of all images and labels, and of which of them come when if that is a user's choice."""
    digest = hashlib.blake2b(digest_size=16)
    if parts:
        digest.update(_digest_of_parts(parts).encode())
    for images in (dataset.train, dataset.test):
        apart = far(images.x)
        digest.update(apart.digest().encode() if apart else images.x.contiguous().numpy().data)
        digest.update(images.y.contiguous().numpy().data)
    return digest.hexdigest()
