"""One increment: it reads photos, learns, and commits the new model; killed at any moment, it can go on."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from edbl.app import begin, honest, page, photos, places
from edbl.app import bundle as disk
from edbl.app.at_once import AtOnce
from edbl.app.begin import Begun, Say, now
from edbl.app.bundle import CHECKPOINTS, INCREMENT, VIEWS, Contents
from edbl.app.description import EXEMPLARS, Bundle, Event, Known, Readout, Score
from edbl.app.exact import Exact, LeftOut, right
from edbl.app.honest import Left
from edbl.app.inputs import inputs_of, trained_on
from edbl.app.lessons import wait
from edbl.app.measuring import Held, Told, factor_of, judged, measure
from edbl.app.model import Model
from edbl.app.opening import held_out, leave_out, load, restore
from edbl.app.photos import Photo
from edbl.app.settings import Request
from edbl.data.decoding import Pixels
from edbl.data.threads import in_threads
from edbl.engine.environment import pick_device
from edbl.engine.progress import Progress
from edbl.errors import Diverged, EdblError, command
from edbl.store import LOCK, lock, refuse_links
from edbl.text import count, shown
from edbl.training import Training as Recipe

HELD_KEPT = 10  # held-out images of a class that stay with the model


@contextmanager
def increment(
    folder: Path,
    request: Request,
    *,
    device: str = "auto",
    discard: bool = False,
    yes: bool = False,
    say: Say = print,
    given: Sequence[Photo] = (),
) -> Iterator["Increment | None"]:
    """Begin an increment, or go on with the one that was begun; None if there is nothing to learn.

    It learns from photos in the folders of the request and from those ``given``; with ``yes`` also from those that look
    mislabelled. The model is locked meanwhile.
    """
    request.check()
    where = pick_device(device)
    there = folder.exists()
    made = _make(folder, request, bool(given))
    if wait(folder) and (number := AtOnce(folder).finish()):
        say(f"{count(number, 'photo')} that had been taught {'is' if number == 1 else 'are'} learnt")
        if request == Request() and not given and not discard and not disk.begun(folder):
            yield None
            return
    with lock(folder):
        found = disk.heal(folder)
        try:
            begun = _begin(folder, request, found, where, discard, say, given)
            if begun:
                begun.yes = yes
            yield begun
        finally:  # still locked: else what lies there might be another process's
            if made and not disk.exists(folder) and not disk.begun(folder):
                disk.discard(folder)
                with suppress(OSError):
                    (folder / LOCK).unlink()
                    if not there:
                        folder.rmdir()


def _make(folder: Path, request: Request, given: bool) -> bool:
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
    if not request.folders and not given:
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
        found += [path for path in folder.iterdir() if path.name not in (LOCK, INCREMENT, disk.STAGED)]
    return found


def _begin(
    folder: Path,
    request: Request,
    found: Bundle | None,
    device: torch.device,
    discard: bool,
    say: Say,
    given: Sequence[Photo],
) -> "Increment | None":
    if discard:
        if not request.folders and request != Request():
            raise EdblError("discard alone drops an unfinished update; with other settings, name folders to learn from")
        if not disk.begun(folder):
            say("there is no unfinished update")
        if not request.folders:
            begin.drop(folder, say)
            return None
    begun = None if discard else begin.read(folder)
    if begun and found and begun.base < found.version and begun.asked == found.history[-1].asked:  # after the commit
        _finish(folder, found, begun)
        if _same(request, begun.request):
            say(f"that update is complete: {command('info', folder)} shows it")
            return None
        begun = None
    fresh = begun is None
    base = _base(folder, found, begun.request.start if begun else request.start)
    if begun is None:
        if not request.folders and not given:
            raise EdblError(f"{folder} has no unfinished update to continue; name folders with photos to learn from")
        try:
            begun = begin.begin(folder, request, base, device, say, given)
        except begin.Complete as error:
            say(str(error))
            return None
    elif given or not _same(request, begun.request):
        raise EdblError(
            f"{folder} has an unfinished update of {begun.began} ({_some(begun.names)})\n"
            f"{command('learn', folder)} continues it; {command('learn', folder, '--discard')} discards it"
        )
    elif begun.base != (base.bundle.version if base else 0):
        raise EdblError(
            f"the unfinished update in {folder} belongs to another state of the model\n"
            f"{command('learn', folder, '--discard')} discards it"
        )
    elif not begin.fits(begun, base):
        raise begin.unusable(folder)
    else:
        say(f"continuing the update of {begun.began} ({_some(begun.names)})")
    kind = Solving if begun.settings.keep else Training
    made = kind(folder, begun, base, device, found.version if found else 0)
    if not fresh:
        made.check()
    return made


def _finish(folder: Path, found: Bundle, begun: Begun) -> None:
    """Do what an increment that was stopped after its commit did not come to: its page, and that no photo stays."""
    try:
        pictures = begin.pictures(begun, begin.pixels(folder, begun))
    except EdblError:
        pictures = {}
    page.write(folder, found, pictures=pictures)
    _remember(folder, found, begun)
    disk.discard(folder)


def _remember(folder: Path, bundle: Bundle, begun: Begun) -> None:
    places.remember(folder, dict(zip(begun.digests, begun.files, strict=True)), bundle.photos)


def _base(folder: Path, found: Bundle | None, start: int | None) -> Contents | None:
    """Return the version that an increment starts from."""
    if found is None:
        if start is not None:
            raise EdblError(f"there is no model {folder} yet, and so no version {start} of it")
        return None
    return load(folder, found if start in (None, found.version) else disk.read_version(folder, start))


def _same(request: Request, begun: Request) -> bool:
    """Tell whether a command asks for what was begun; one without folders and options always does."""
    asked = request if request.folders else replace(request, folders=begun.folders)
    return request == Request() or asked == begun


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class Increment(ABC):
    """An increment whose photos are read."""

    train: Tensor  # images to learn from and
    held: Tensor  # to measure with, as the model takes them
    told: Left | Held | None = None  # what the page of the new model has of photos that it had not learnt
    yes: bool = False  # whether to learn photos that look mislabelled

    def __init__(self, folder: Path, begun: Begun, base: Contents | None, device: torch.device, over: int) -> None:
        self.folder = folder
        self.over = over  # the version that the model is at
        self.place = folder / INCREMENT
        self.begun = begun
        self.learnt, self.measured = begun.images()
        self.base = leave_out(base, images=begun.moved) if base and begun.moved else base
        self.device = device
        self.inputs = inputs_of(begun.settings)
        self.started = time.monotonic()
        self.pixels = begin.pixels(folder, begun)

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

    @abstractmethod
    def learn(self, progress: Progress) -> Contents:
        """Learn and measure, and return the new model, which is not on disk yet."""

    def commit(self, learnt: Contents) -> Bundle:
        """Make it the next version, and write its page."""
        disk.write(self.folder, learnt.bundle, learnt.tensors, learnt.images, learnt.files, self.over)
        kept = {file.removesuffix(".png"): pixels for file, pixels in learnt.images.items()}
        page.write(self.folder, learnt.bundle, self.told, begin.pictures(self.begun, self.pixels) | kept)
        _remember(self.folder, learnt.bundle, self.begun)
        disk.discard(self.folder)
        return learnt.bundle

    def _event(self, old: Sequence[str], exemplars: int, scores: dict[str, Score]) -> Event:
        names = {name for name, _ in self.learnt}
        return Event(
            kind="learn",
            date=now(),
            classes=[name for name in self.begun.names if name not in old],
            refreshed=[name for name in self.begun.names if name in old and name in names],
            images=len(self.begun.train),
            exemplars=exemplars,
            seconds=round(time.monotonic() - self.started, 2),
            scores=scores,
            before={},
            after={},
            asked=self.begun.asked,
        )

    def _classes(self, names: Sequence[str], event: Event) -> list[Known]:
        """Return the classes with what they have learnt."""
        known = {k.name: replace(k) for k in self.base.bundle.classes} if self.base else {}
        learnt, moved = _by_class(self.learnt), [file.removesuffix(".png") for file in self.begun.moved]
        for name in names:
            entry = known.setdefault(name, Known(name, learnt=event.date))
            entry.add([file.removesuffix(".png") for file in learnt.get(name, [])], moved)
            entry.refreshed = event.date if name in event.refreshed else entry.refreshed
        return [known[name] for name in names]


class Solving(Increment):
    """An increment whose classifier has a closed form."""

    def learn(self, progress: Progress) -> Contents:
        """Solve for the classifier with all photos that are kept, and measure by leaving them out one by one."""
        begun, base = self.begun, self.base
        keep = begun.settings.keep
        features = self.train[:, 0]
        exact = Exact.of(self.folder, base) if base else Exact.new(begun.settings, features.shape[1])
        names, digests = ([one for one, _ in self.learnt], [file.removesuffix(".png") for _, file in self.learnt])
        old = list(exact.names)
        self._drop(exact, dict(zip(digests, features, strict=True)))
        exact.learn(features, digests, names)
        answers, left_out = exact.solve((features, names))
        self.told = left = honest.left(exact, answers, left_out)
        if left is not None and not self.yes:
            self._doubt(exact, left, exact.left_out(features, digests, names))
        event = self._event(old, 0, right(exact.names, left_out))
        classes = self._classes(exact.names, event)
        for known in classes:
            known.exemplars = [f"{digest}.png" for digest in known.digests] if keep == "photos" else []
        made = Bundle(
            settings=begun.settings,
            recipe={"method": begun.settings.method, **begun.settings.given},
            classes=classes,
            sizes=[len(classes)],
            increments=begun.number + 1,
            seen_images=sum(known.images for known in classes),
            history=[*(base.bundle.history if base else []), event],
            readout="cnn",
            version=begun.base,
        )
        self.exact = exact
        rows = zip(begun.train, self.learnt, strict=True)
        images = {file: self.pixels[row] for row, (_, file) in rows} if keep == "photos" else {}
        return Contents(made, exact.tensors(answers), images, files=exact.files(made))

    def _doubt(self, exact: Exact, left: Left, asked: LeftOut) -> None:
        """Refuse new photos that look mislabelled."""
        new = {self.begun.digests[row]: self.begun.files[row] for row in self.begun.train}
        told = [
            f"{new[one.digest]}, given as '{exact.names[one.label]}', {honest.looks(exact.names, one)}"
            for one in honest.suspects(left, asked)
        ]
        if told:
            raise EdblError(
                f"{count(told, 'photo')} may have a wrong label, and nothing is learnt yet:\n"
                + "\n".join(told)
                + f"\nright as they are: {command('learn', self.folder, '--yes')}; "
                + f"else move them, and {command('learn', self.folder, '--discard', *self.begun.request.folders)}"
            )

    def commit(self, learnt: Contents) -> Bundle:
        """Make it the next version, and keep what saves work the next time."""
        bundle = super().commit(learnt)
        self.exact.save_sums(self.folder, bundle)
        return bundle

    def _drop(self, exact: Exact, features: Mapping[str, Tensor]) -> None:
        """Take out photos that are another class now."""
        moved = {file.removesuffix(".png") for file in self.begun.moved}
        for known in self.base.bundle.classes if self.base else []:
            if gone := sorted(moved & set(known.digests)):
                exact.drop(known.name, gone, torch.stack([features[digest] for digest in gone]))


class Training(Increment):
    """An increment whose classifier is trained."""

    def learn(self, progress: Progress) -> Contents:
        """Learn from photos and exemplars, and measure on photos that were held out."""
        begun, base = self.begun, self.base
        self.trained_on = trained_on(begun.settings)
        exemplars = sum(len(known.exemplars) for known in base.bundle.classes) if base else 0
        made_by = self.trained_on.training(len(self.train) + exemplars, self.train)
        model = self.trained_on.model(made_by, self.device, progress)
        kept, kept_labels = held_out(self.trained_on, base) if base else (self.trained_on.none(), list[str]())
        if base:
            restore(self.folder, self.trained_on, model, base)
        old = list(model.names)
        before = measure(model, kept, kept_labels)
        names, held_labels = ([name for name, _ in pairs] for pairs in (self.learnt, self.measured))
        self._train(model, names, progress, new=not set(begun.names) <= set(old), first=not old)
        progress.busy("measuring")
        told: Told = []
        after = measure(model, kept, kept_labels, told=told)
        event = replace(
            self._event(old, len(model.memory), measure(model, self.held, held_labels, after, told)),
            before={name: before[name] for name in old},
            after={name: after[name] for name in old},
        )
        made = self._bundle(model, made_by, event)
        held = chain(zip(kept_labels, kept, strict=True), zip(held_labels, self.held, strict=True))
        tensors = self.trained_on.tensors(model, made, held) | judged(model.names, told)
        learnt = Contents(made, tensors, self._images(model, made))
        model.factor = factor_of(tensors)
        self.told = Held(model, *held_out(self.trained_on, learnt))
        return learnt

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
            raise EdblError(f"{error}\nthe update is discarded, and the model unchanged: {again}") from error

    def _bundle(self, model: Model, made_by: Recipe, event: Event) -> Bundle:
        """Return what is to be said of the new model."""
        begun, base = self.begun, self.base
        held, classes = _by_class(self.measured), self._classes(model.names, event)
        below = begin.held_below(begun.settings, base, _by_class(self.learnt))
        for entry, exemplars in zip(classes, self.trained_on.files(model.memory, self._named()), strict=True):
            entry.held_below = below[entry.name]
            entry.exemplars = exemplars
            entry.validation = (entry.validation + held.get(entry.name, []))[:HELD_KEPT]
        return Bundle(
            settings=begun.settings,
            recipe=made_by.values(),
            classes=classes,
            sizes=list(model.sizes),
            increments=model.increments,
            seen_images=model.seen_images,
            history=[*(base.bundle.history if base else []), event],
            readout=readout_of(model.method.readout),
            version=begun.base,
        )

    def _named(self) -> Iterator[tuple[Tensor, list[str]]]:
        """Yield the images that may be exemplars now, with their files."""
        yield self.train, [file for _, file in self.learnt]
        if self.base:
            yield self.trained_on.kept(self.base, EXEMPLARS), self.base.bundle.files(EXEMPLARS)

    def _images(self, model: Model, made: Bundle) -> dict[str, Pixels]:
        """Return the images that the new model keeps, by file name; those that were read of the model before, too."""
        kept = {file for known in made.classes for file in known.exemplars + known.validation}
        before = self.base.images if self.base else {}
        rows = zip(self.begun.train + self.begun.held, self.learnt + self.measured, strict=True)
        images = before | {file: self.pixels[row] for row, (_, file) in rows}
        images = {file: pixels for file, pixels in images.items() if file in kept}
        return images | self.trained_on.images([known.exemplars for known in made.classes], model.memory)


def _by_class(images: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the files of images by class."""
    found: dict[str, list[str]] = {}
    for name, file in images:
        found.setdefault(name, []).append(file)
    return found


def readout_of(own: str) -> Readout:
    """Return the classifier that predictions are made by: always the method's own."""
    return "nme" if own == "nme" else "cnn"
