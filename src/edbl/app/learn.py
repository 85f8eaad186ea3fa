"""One increment: it reads photos, learns, and commits the new model; killed at any moment, it can go on."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edbl.app import begin, photos
from edbl.app import bundle as disk
from edbl.app.begin import Begun, Say, now
from edbl.app.bundle import (
    CHECKPOINTS,
    EXEMPLARS,
    IMAGES,
    INCREMENT,
    VIEWS,
    Bundle,
    Contents,
    Event,
    Known,
    Readout,
    Score,
)
from edbl.app.inputs import inputs_of
from edbl.app.model import Model
from edbl.app.opening import held_out, leave_out, load, restore
from edbl.app.settings import Request
from edbl.data.folder import Pixels
from edbl.data.threads import in_threads
from edbl.engine.environment import pick_device
from edbl.engine.progress import Progress
from edbl.errors import Diverged, EdblError, command
from edbl.store import LOCK, ODD_ARRAY, lock, refuse_links
from edbl.text import count, shown
from edbl.training import Training

HELD_KEPT = 10  # held-out images of a class that stay with the model


@contextmanager
def increment(
    folder: Path, request: Request, *, device: str = "auto", discard: bool = False, say: Say = print
) -> Iterator["Increment | None"]:
    """Begin an increment, or go on with the one that was begun; None if there is nothing to learn.

    The model is locked meanwhile.
    """
    request.check()
    where = pick_device(device)
    there = folder.exists()
    made = _make(folder, request)
    with lock(folder):
        found = disk.heal(folder)
        try:
            yield _begin(folder, request, load(folder, found) if found else None, where, discard, say)
        finally:  # still locked: else what lies there might be another process's
            if made and not disk.exists(folder) and not disk.begun(folder):
                disk.discard(folder)
                with suppress(OSError):
                    (folder / LOCK).unlink()
                    if not there:
                        folder.rmdir()


def _make(folder: Path, request: Request) -> bool:
    """Make the folder of a new model, or see that it is one; tell whether it is new."""
    if folder.exists() and not folder.is_dir():
        raise EdblError(f"{folder} is a file; give the name of a model, or of a folder that does not exist yet")
    refuse_links(folder)
    there = disk.exists(folder) or disk.begun(folder)
    if others := _others(folder, there):
        raise EdblError(
            f"{folder} holds other things than a model, such as {shown(others[0])}\n"
            "move them elsewhere, or give the name of a model, or of a folder that does not exist yet"
        )
    if inside := [name for name in request.folders if Path(name).resolve().is_relative_to(folder.resolve())]:
        raise EdblError(f"{inside[0]} lies in the model {folder}, which changes; move the photos elsewhere")
    if around := [name for name in request.folders if folder.resolve().is_relative_to(Path(name).resolve())]:
        raise EdblError(f"the model {folder} lies among the photos in {around[0]}; give it a place elsewhere")
    if models := [name for name in request.folders if disk.exists(Path(name))]:
        raise EdblError(f"{models[0]} is a model; give a folder that has a sub-folder of images for each class")
    if there:
        return False
    if not request.folders:
        raise EdblError(f"there is no model {folder} yet; {command('learn', folder, 'FOLDER')} makes one from photos")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EdblError(f"cannot make the folder {folder}: {error.strerror}") from error
    return True


def _others(folder: Path, there: bool) -> list[Path]:
    """Return what is not of a model: in its begun increment, which will be removed and, if none is there, beside it."""
    found = disk.strangers(folder)
    if folder.is_dir() and not there:
        found += [path for path in folder.iterdir() if path.name not in (LOCK, INCREMENT)]
    return found


def _begin(
    folder: Path, request: Request, base: Contents | None, device: torch.device, discard: bool, say: Say
) -> "Increment | None":
    if discard:
        if not request.folders and request != Request():
            raise EdblError("discard alone drops what was begun; with other settings, name folders to learn from")
        if not disk.begun(folder):
            say("no increment was begun")
        if not request.folders:
            begin.drop(folder, say)
            return None
    begun = None if discard else begin.read(folder)
    if begun and base and begun.number < base.bundle.increments:  # killed after the commit
        disk.discard(folder)
        if _same(request, begun.request):
            say(f"that increment is complete: {command('info', folder)} shows it")
            return None
        begun = None
    fresh = begun is None
    if begun is None:
        if not request.folders:
            raise EdblError(f"{folder} has no begun increment to go on with; name folders with photos to learn from")
        try:
            begun = begin.begin(folder, request, base, device, say)
        except begin.Complete as error:
            say(str(error))
            return None
    elif not _same(request, begun.request):
        raise EdblError(
            f"{folder} has an increment that was begun {begun.began} and not finished ({_some(begun.names)})\n"
            f"{command('learn', folder)} goes on with it; {command('learn', folder, '--discard')} drops it"
        )
    elif begun.base != (base.bundle.weights if base else ""):
        raise EdblError(
            f"the increment begun in {folder} belongs to another state of the model\n"
            f"{command('learn', folder, '--discard')} drops it"
        )
    else:
        say(f"going on with the increment begun {begun.began} ({_some(begun.names)})")
    made = Increment(folder, begun, base, device)
    if not fresh:
        made.check()
    return made


def _same(request: Request, begun: Request) -> bool:
    """Tell whether a command asks for what was begun; one without folders and options always does."""
    asked = request if request.folders else replace(request, folders=begun.folders)
    return request == Request() or asked == begun


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class Increment:
    """An increment whose photos are read."""

    train: Tensor  # images to learn from and
    held: Tensor  # to measure with, as the model takes them

    def __init__(self, folder: Path, begun: Begun, base: Contents | None, device: torch.device) -> None:
        self.folder = folder
        self.place = folder / INCREMENT
        self.begun = begun
        self.learnt, self.measured = begun.images()
        self.base = leave_out(base, images=begun.moved) if base and begun.moved else base
        self.device = device
        self.inputs = inputs_of(begun.settings)
        self.started = time.monotonic()
        n, side = len(begun.labels), begun.settings.image_size
        try:
            if not (self.place / IMAGES).is_file():  # a pipe would be waited for
                raise begin.unusable(folder)
            pixels = np.lib.format.open_memmap(self.place / IMAGES, mode="c")
        except (OSError, *ODD_ARRAY) as error:
            raise begin.unusable(folder) from error
        if pixels.shape != (n, 3, side, side) or pixels.dtype != np.uint8:
            raise begin.unusable(folder)
        self.pixels: photos.Array = pixels

    def check(self) -> None:
        """Refuse images that are not those it was begun with."""
        rows = self.begun.train + self.begun.held
        found = in_threads(lambda row: photos.digest(self.pixels[row]), rows, "checking images")
        if found != [self.begun.digests[row] for row in rows]:
            raise begin.unusable(self.folder)

    def prepare(self) -> None:
        """Bring all images into the form that the model takes: where the backbone is frozen, compute features."""
        views, number = self.place / VIEWS, self.begun.number
        self.train, self.held = (
            self.inputs.seen(self.pixels, rows, kind, views, number, self.device)
            for kind, rows in (("train", self.begun.train), ("held", self.begun.held))
        )

    def learn(self, progress: Progress) -> Contents:
        """Learn and measure, and return the new model, which is not on disk yet."""
        begun, base = self.begun, self.base
        exemplars = sum(len(known.exemplars) for known in base.bundle.classes) if base else 0
        made_by = self.inputs.training(len(self.train) + exemplars, self.train)
        model = self.inputs.model(made_by, self.device, progress)
        kept, kept_labels = held_out(self.inputs, base) if base else (self.inputs.none(), list[str]())
        if base:
            restore(self.folder, self.inputs, model, base)
        old = list(model.names)
        before = measure(model, kept, kept_labels)
        names, held_labels = ([name for name, _ in pairs] for pairs in (self.learnt, self.measured))
        new = [name for name in begun.names if name not in old]
        self._train(model, names, progress, new=bool(new), first=not old)
        progress.busy("measuring")
        after = measure(model, kept, kept_labels)
        event = Event(
            kind="learn",
            date=now(),
            classes=new,
            refreshed=[name for name in begun.names if name in old and name in names],
            images=len(begun.train),
            exemplars=len(model.memory),
            seconds=round(time.monotonic() - self.started, 2),
            scores=measure(model, self.held, held_labels, after),
            before={name: before[name] for name in old},
            after={name: after[name] for name in old},
            asked=begun.asked,
        )
        made = self._bundle(model, made_by, new, event)
        held = chain(zip(kept_labels, kept, strict=True), zip(held_labels, self.held, strict=True))
        return Contents(made, self.inputs.tensors(model, made, held), self._images(model, made))

    def commit(self, learnt: Contents) -> Bundle:
        """Replace the model by the new one."""
        disk.write(self.folder, learnt.bundle, learnt.tensors, learnt.images)
        disk.discard(self.folder)
        return learnt.bundle

    def _train(self, model: Model, names: Sequence[str], progress: Progress, *, new: bool, first: bool) -> None:
        epochs = model.learner.epochs(new=new, first=first)
        progress.run(
            f"learning {count(self.begun.names, 'class')}", [*[0] * self.begun.number, epochs], self.begun.number
        )
        try:
            model.learn(self.train, names, self.place / CHECKPOINTS)
        except Diverged as error:  # to go on would lead to the same
            disk.discard(self.folder)
            again = "learn from the same folders with other values, such as a smaller schedule.lr"
            raise EdblError(f"{error}\nwhat was begun is dropped, and the model is as it was: {again}") from error

    def _bundle(self, model: Model, made_by: Training, new: Sequence[str], event: Event) -> Bundle:
        """Return what is to be said of the new model."""
        begun, base = self.begun, self.base
        known = {k.name: replace(k) for k in base.bundle.classes} if base else {}
        learnt, held = _by_class(self.learnt), _by_class(self.measured)
        below = begin.held_below(begun.settings, base, learnt)
        for name, exemplars in zip(model.names, self.inputs.files(model.memory, self._named()), strict=True):
            entry = known.setdefault(name, Known(name, learnt=event.date))
            entry.images += len(learnt.get(name, []))
            entry.refreshed = event.date if name in learnt and name not in new else entry.refreshed
            entry.held_below = below[name]
            entry.exemplars = exemplars
            entry.validation = (entry.validation + held.get(name, []))[:HELD_KEPT]
        return Bundle(
            settings=begun.settings,
            recipe=made_by.values(),
            classes=[known[name] for name in model.names],
            sizes=list(model.sizes),
            increments=model.increments,
            seen_images=model.seen_images,
            history=[*(base.bundle.history if base else []), event],
            readout=better(event.total(), model.method.readout),
        )

    def _named(self) -> Iterator[tuple[Tensor, list[str]]]:
        """Yield the images that may be exemplars now, with their files."""
        yield self.train, [file for _, file in self.learnt]
        if self.base:
            yield self.inputs.kept(self.base, EXEMPLARS), self.base.bundle.files(EXEMPLARS)

    def _images(self, model: Model, made: Bundle) -> dict[str, Pixels]:
        """Return the images that the new model keeps, by file name."""
        kept = {file for known in made.classes for file in known.exemplars + known.validation}
        rows = zip(self.begun.train + self.begun.held, self.learnt + self.measured, strict=True)
        images = {file: self.pixels[row] for row, (_, file) in rows if file in kept}
        return images | self.inputs.images([known.exemplars for known in made.classes], model.memory)


def _by_class(images: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the files of images by class."""
    found: dict[str, list[str]] = {}
    for name, file in images:
        found.setdefault(name, []).append(file)
    return found


def measure(
    model: Model, x: Tensor, labels: Sequence[str], before: Mapping[str, Score] | None = None
) -> dict[str, Score]:
    """Return how often both read-outs are right on images of each class, and on others ``before`` them."""
    scores = dict(before or dict.fromkeys(model.names, Score(0, 0, 0)))
    if not len(x):
        return scores
    cnn, nme = (answers.argmax(1).tolist() for answers in model.readouts(x))
    for name, one, other in zip(labels, cnn, nme, strict=True):
        scores[name] += Score(1, int(model.names[one] == name), int(model.names[other] == name))
    return scores


def better(score: Score, own: str) -> Readout:
    """Return the read-out with more right answers; the method's own where they are equal."""
    return "nme" if score.nme > score.cnn or (score.nme == score.cnn and own == "nme") else "cnn"
