"""A model on disk: one folder that is whole at every moment.

It is an entry of `edbl.store` that names the files of all images. Its replacement is the commit: images are written
before it and removed after it, so that a crash leaves the old model or the new one, and `heal` does what was not done
any more, whoever next opens the model.
"""

import io
import math
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from torch import Tensor

from edbl import store, users
from edbl.app.photos import digest
from edbl.data.folder import Pixels
from edbl.data.threads import in_threads
from edbl.errors import EdblError, command
from edbl.methods import methods
from edbl.nets.backbones import BACKBONES
from edbl.text import class_name, count

NAME, FORMAT = "model", 1  # of the entry
MODEL, WEIGHTS, NEW = "model.json", "model.safetensors", "model.safetensors.new"
EXEMPLARS, VALIDATION, INCREMENT, BEGUN = "exemplars", "validation", "increment", "begun.json"
IMAGES, VIEWS, CHECKPOINTS = "images.npy", "views", "checkpoints"  # of an increment
ENTRY = r"\.(json|safetensors(\.new)?)"
OWN = re.compile(  # what an increment consists of, by path in its folder
    rf"{re.escape(BEGUN)}|{re.escape(IMAGES)}|{VIEWS}(/(train|held)-\d+{ENTRY})?"
    rf"|{CHECKPOINTS}(/task-[\w-]+{ENTRY})?|(.+/)?{store.TEMPORARY.pattern}"
)
IMAGE = re.compile(r"[0-9a-f]{32}\.png")
FEATURES = {EXEMPLARS: "memory.x", VALIDATION: "validation.x"}  # tensors of images whose backbone is frozen

Readout = Literal["cnn", "nme"]


@dataclass(frozen=True)
class Settings:
    """What was chosen when the model was made."""

    method: str
    backbone: str
    tune: Literal["head", "all"]
    image_size: int
    memory: str
    seed: int
    validation: float  # share of images that are held out
    copies: int  # changed copies of each image whose features are kept; 0 where the backbone learns
    given: dict[str, Any]  # other values of the recipe that were chosen, by dotted key
    backbone_weights: str = ""  # SHA-256 of those of a frozen backbone


@dataclass
class Known:
    """A class of the model."""

    name: str
    learnt: str  # when
    refreshed: str = ""  # when it last got more images, if ever
    images: int = 0  # learnt from, ever
    exemplars: list[str] = field(default_factory=list)  # files, best first
    validation: list[str] = field(default_factory=list)  # files
    held_below: str = ""  # images whose place is below it were never learnt from: they alone may be held out


@dataclass(frozen=True)
class Score:
    """Right answers of both read-outs."""

    images: int
    cnn: int
    nme: int

    def share(self, readout: Readout) -> float:
        """Return the share of right answers; NaN of no images."""
        return (self.cnn if readout == "cnn" else self.nme) / self.images if self.images else math.nan

    def __add__(self, other: "Score") -> "Score":
        return Score(self.images + other.images, self.cnn + other.cnn, self.nme + other.nme)


def total(scores: Iterable[Score]) -> Score:
    """Return the sum of scores."""
    return sum(scores, Score(0, 0, 0))


@dataclass(frozen=True)
class Event:
    """One thing that happened to the model: an increment, or a class forgotten."""

    kind: Literal["learn", "forget"]
    date: str
    classes: list[str]  # new ones, or forgotten ones
    refreshed: list[str]
    images: int  # learnt from
    exemplars: int  # kept in all, after it
    seconds: float
    scores: dict[str, Score]  # of each class of the model after it, over its held-out images
    before: dict[str, Score]  # of each class before it, and
    after: dict[str, Score]  # after it, over the same images
    asked: str = ""  # digest of what was asked for, and of all images that were given

    def total(self, names: Sequence[str] | None = None) -> Score:
        """Return the score over some classes, or all."""
        return total(s for name, s in self.scores.items() if names is None or name in set(names))


@dataclass
class Bundle:
    """What ``model.json`` says."""

    settings: Settings
    recipe: dict[str, Any]  # of the last increment
    classes: list[Known]
    sizes: list[int]  # classes that each increment brought and that are still there
    increments: int
    seen_images: int
    history: list[Event]
    readout: Readout  # that predictions are made by
    weights: str = field(default="", init=False)  # SHA-256 of them on disk

    @property
    def names(self) -> list[str]:
        """The classes in order of arrival."""
        return [known.name for known in self.classes]

    def files(self, kind: str) -> list[str]:
        """Return the exemplars or the held-out images, class by class."""
        return [name for known in self.classes for name in of_kind(known, kind)]


def of_kind(known: Known, kind: str) -> list[str]:
    """Return a class's exemplars or its held-out images."""
    return known.exemplars if kind == EXEMPLARS else known.validation


@contextmanager
def locked(folder: Path) -> Iterator[Bundle | None]:
    """Keep other writers out of a folder, finish what a killed one left to do, and give the model, if there is one."""
    with store.lock(folder):
        yield heal(folder)


@contextmanager
def changing(folder: Path) -> Iterator[Bundle]:
    """Do the same for a model that must be there, and have no increment begun."""
    if not exists(folder):
        raise _missing(folder)
    with locked(folder) as found:
        if found is None:
            raise _missing(folder)
        if begun(folder):
            raise EdblError(
                f"{folder} has an increment that was begun and not finished\n"
                f"{command('learn', folder)} goes on with it; {command('learn', folder, '--discard')} drops it"
            )
        yield found


def settle(folder: Path) -> Bundle:
    """Return what a model's folder says, and finish before what a killed writer left to do.

    Not where another process works, or none may write. A model in order is not locked, so that a reader never keeps a
    writer out.
    """
    found = read(folder)
    with suppress(EdblError, OSError):
        if (folder / NEW).exists() or orphans(folder, found) or _abandoned(folder):
            with locked(folder) as healed:
                return healed or found
    return found


def exists(folder: Path) -> bool:
    """Tell whether there is a model."""
    return (folder / MODEL).is_file()


def begun(folder: Path) -> bool:
    """Tell whether an increment was begun and not finished."""
    return (folder / INCREMENT / BEGUN).is_file()


def foreign(settings: Settings) -> bool:
    """Tell whether a method or a net is none of this package's: a file of its own would run when it is opened."""
    return settings.method not in methods() or "method" in settings.given or bool(users.files(settings.given))


def _missing(folder: Path) -> EdblError:
    """Return the error for a folder that holds no model."""
    if begun(folder):
        return EdblError(
            f"{folder} has learnt nothing yet: its first increment was begun and not finished\n"
            f"{command('learn', folder)} goes on with it"
        )
    if folder.exists() and not folder.is_dir():
        return EdblError(f"{folder} is a file; give the folder of a model")
    what = "holds no model: it has no model.json" if folder.is_dir() else "does not exist"
    return EdblError(f"{folder} {what}; {command('learn', folder, 'FOLDER')} makes one")


def read(folder: Path) -> Bundle:
    """Return what a model's folder says of it, every value checked: it may come from anywhere."""
    if not exists(folder):
        raise _missing(folder)
    store.refuse_links(folder)
    try:
        entry = store.read(folder, NAME, Bundle, FORMAT)
    except store.Damaged as error:
        raise damaged(folder, error.file, error.why) from error
    bundle = entry.value
    bundle.weights = entry.tensors
    if fault := _fault(bundle):
        raise damaged(folder, MODEL, fault)
    return bundle


def _fault(bundle: Bundle) -> str:
    """Return what is wrong with values that are of the right types, if anything is."""
    settings, names = bundle.settings, bundle.names
    if foreign(settings) or users.files(bundle.recipe) or bundle.recipe.get("method") != settings.method:
        return "its method or its net is none of edbl's own, or its recipe has another"
    if len(set(names)) != len(names) or sum(bundle.sizes) != len(names) or min(bundle.sizes, default=0) < 1:
        return "its classes do not fit the sizes of its increments"
    if odd := [name for name in names if class_name(name) != name]:
        return f"{odd[0]!r} is no name of a class"
    if bad := [file for kind in (EXEMPLARS, VALIDATION) for file in bundle.files(kind) if not IMAGE.fullmatch(file)]:
        return f"{bad[0]!r} is no name of an image"
    if not bundle.history or bundle.history[-1].scores.keys() != set(names):
        return "its classes are not those that its history ends with"
    if not 1 <= settings.image_size <= 1024 or not 0 <= settings.copies <= 1000:
        return "its image size or number of copies is out of range"
    if min(settings.seed, bundle.increments, bundle.seen_images) < 0:
        return "its seed, or a number of what it has learnt, is below 0"
    if settings.tune == "head" and settings.backbone in BACKBONES:
        return "its backbone learns from scratch, and is said to be frozen"
    return ""


def write(folder: Path, bundle: Bundle, tensors: Mapping[str, Tensor], images: Mapping[str, Pixels]) -> None:
    """Replace the model by another one; ``images`` has at least those that are new, by file name."""
    wanted: list[Path] = []
    for kind in (EXEMPLARS, VALIDATION):
        (folder / kind).mkdir(exist_ok=True)
        wanted += [folder / kind / name for name in dict.fromkeys(bundle.files(kind))]
    missing = [path for path in wanted if not path.exists()]
    in_threads(lambda path: store.write_atomic(path, _png(images[path.name])), missing, "saving images")
    bundle.weights = store.save(folder, NAME, bundle, tensors, FORMAT)
    _tidy(folder, bundle)


def heal(folder: Path) -> Bundle | None:
    """Finish what a killed writer left to do, and return the model, if there is one."""
    store.sweep(folder)
    if _abandoned(folder):
        discard(folder)
    if not exists(folder):
        return None
    bundle = read(folder)
    store.settle(folder, NAME, bundle.weights)
    _tidy(folder, bundle)
    return bundle


def _tidy(folder: Path, bundle: Bundle) -> None:
    """Remove images that the model does not refer to."""
    for path in orphans(folder, bundle):
        try:
            store.delete(path.parent, [path.name])
        except OSError as error:
            raise EdblError(
                f"{path}, an image that the model does not keep any more, cannot be removed: {error.strerror}\n"
                f"make {path.parent} writable; the next command removes what is left"
            ) from error


def orphans(folder: Path, bundle: Bundle) -> list[Path]:
    """Return image files that the model does not refer to."""
    found = []
    for kind in (EXEMPLARS, VALIDATION):
        wanted = set(bundle.files(kind))
        own = [path for path in (folder / kind).glob("*.png") if IMAGE.fullmatch(path.name)]
        found += [path for path in own if path.name not in wanted]
    return found


def strangers(folder: Path) -> list[Path]:
    """Return what lies in the folder of an increment and is not of one."""
    place = folder / INCREMENT
    return [path for path in place.rglob("*") if not OWN.fullmatch(path.relative_to(place).as_posix())]


def _abandoned(folder: Path) -> bool:
    """Tell whether photos were being read for an increment that was not begun in the end."""
    place = folder / INCREMENT
    return place.is_dir() and not begun(folder) and not strangers(folder)


def discard(folder: Path) -> bool:
    """Drop a begun increment and, if it was the first, what it has put in its place already; tell whether one was."""
    found = begun(folder)
    shutil.rmtree(folder / INCREMENT, ignore_errors=True)
    if exists(folder):
        return found
    store.delete(folder.resolve(), [NEW])
    for place in (folder / EXEMPLARS, folder / VALIDATION):
        if place.is_dir():
            store.delete(place, [path.name for path in place.iterdir() if IMAGE.fullmatch(path.name)])
            with suppress(OSError):
                place.rmdir()
    return found


@dataclass(frozen=True)
class Contents:
    """A model as read from disk."""

    bundle: Bundle
    tensors: dict[str, Tensor]  # of ``model.safetensors``
    images: dict[str, Pixels]  # by file name, those asked for

    def pixels(self, kind: str) -> Tensor:
        """Return the exemplars or the held-out images, class by class, ``[n, 3, size, size]``."""
        size = self.bundle.settings.image_size
        pixels = [self.images[name] for name in self.bundle.files(kind)]
        return torch.from_numpy(np.array(pixels, np.uint8).reshape(-1, 3, size, size))


def load(
    folder: Path, kinds: Collection[str] = (), without: Sequence[str] = (), bundle: Bundle | None = None
) -> Contents:
    """Return a model with its images of some ``kinds``; those of classes ``without`` may be missing.

    A ``bundle`` is what was read of it before. A model that is replaced while it is read is read again.
    """
    bundle = bundle or read(folder)
    for _ in range(store.TRIES):
        try:
            return _load(folder, bundle, kinds, without)
        except EdblError:
            before, bundle = bundle, read(folder)
            if before.weights == bundle.weights:
                raise
    raise store.busy(folder)


def _load(folder: Path, bundle: Bundle, kinds: Collection[str], without: Sequence[str]) -> Contents:
    try:
        tensors = store.tensors_of(folder, NAME, bundle.weights)
    except store.Damaged as error:
        raise damaged(folder, error.file, error.why) from error
    wanted: dict[str, Path] = {}
    lost: dict[Path, str] = {}  # images that are not there, or damaged, and their classes
    for known in bundle.classes:
        for kind in (EXEMPLARS, VALIDATION):
            for name in of_kind(known, kind) if known.name not in without else []:
                path = folder / kind / name
                if not path.is_file():
                    lost[path] = known.name
                elif kind in kinds:
                    wanted[name] = path
    size = bundle.settings.image_size
    pixels = in_threads(lambda path: _pixels(path, size), list(wanted.values()), "reading the model")
    for path, found in zip(wanted.values(), pixels, strict=True):
        if found is None:
            owners = (known.name for known in bundle.classes if path.name in known.exemplars + known.validation)
            lost[path] = next(owners)
    if lost:
        path, owner = next(iter(lost.items()))
        what = "damaged" if path.is_file() else "missing"
        more = f", and so {'is 1 more' if len(lost) == 2 else f'are {len(lost) - 1:,} more'}" if len(lost) > 1 else ""
        classes = list(dict.fromkeys([*without, *lost.values()]))
        some = f"{command('forget', folder, *classes)} and learn {count(classes, 'class')} again"
        raise EdblError(
            f"{path}, an image of class '{owner}', is {what}{more}: restore what is lost from a copy of the model,\n"
            f"or {some if len(classes) < len(bundle.classes) else 'delete the model and learn all its classes again'}"
        )
    return Contents(bundle, tensors, {n: p for n, p in zip(wanted, pixels, strict=True) if p is not None})


def memory_bytes(folder: Path, bundle: Bundle) -> int:
    """Return the size of the exemplars on disk: images and, where the backbone is frozen, their features."""
    paths = [folder / EXEMPLARS / name for name in set(bundle.files(EXEMPLARS))]
    size = sum(path.stat().st_size for path in paths if path.is_file())
    if (folder / WEIGHTS).is_file():
        with suppress(OSError, SafetensorError), safe_open(folder / WEIGHTS, "pt") as file:
            size += file.get_tensor(FEATURES[EXEMPLARS]).nbytes  # an error where it learns from pixels
    return size


def damaged(folder: Path, file: str, why: str) -> EdblError:
    """Return the error for a file that cannot be used."""
    return EdblError(f"the model {folder} is damaged: {file}: {why}\nrestore the folder from a copy")


def _png(pixels: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).save(buffer, "PNG")
    return buffer.getvalue()


def _pixels(path: Path, size: int) -> Pixels | None:
    """Return the pixels of a file that `_png` made, or None if it is not what its name says."""
    try:
        with Image.open(path, formats=("PNG",)) as image:
            if image.size != (size, size) or image.mode != "RGB":
                return None
            pixels = np.asarray(image).transpose(2, 0, 1)
    except Exception as error:  # Pillow's readers answer damaged files with exceptions of every kind
        if isinstance(error, OSError) and error.errno:
            raise EdblError(f"cannot read {path}, an image of the model: {error.strerror}\nmake it readable") from error
        return None
    return pixels if digest(pixels) == path.stem else None
