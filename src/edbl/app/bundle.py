"""A model on disk: one folder that is whole at every moment.

``model.json`` is the truth. It names the SHA-256 of the weights and the files of all images; its replacement is the
commit. Weights are written as ``model.safetensors.new`` before it and take their place after it, images are written
before and removed after: a crash leaves the old model or the new one, and `heal` does what was not done any more,
whoever next opens the model.
"""

import dataclasses
import hashlib
import io
import json
import math
import os
import re
import shutil
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import safetensors.torch
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from torch import Tensor

from edbl.app.photos import digest, stack
from edbl.data.folder import Pixels
from edbl.data.threads import in_threads
from edbl.errors import EdblError, command
from edbl.files import lock, sweep, write_atomic
from edbl.methods import methods
from edbl.nets.backbones import BACKBONES
from edbl.text import count

FORMAT = 3
UNSUMMED = 1, 2  # earlier formats, which have no checksum of model.json
MODEL, WEIGHTS, NEW = "model.json", "model.safetensors", "model.safetensors.new"
EXEMPLARS, VALIDATION, INCREMENT, BEGUN = "exemplars", "validation", "increment", "begun.json"
IMAGES, VIEWS, CHECKPOINTS = "images.npy", "views", "checkpoints"  # of an increment
OWN = re.compile(  # what an increment consists of, by path in its folder
    rf"{re.escape(BEGUN)}|{re.escape(IMAGES)}|{VIEWS}(/(train|held)-\d+\.safetensors)?"
    rf"|{CHECKPOINTS}(/task-[\w-]+\.(safetensors|json))?|(.+/)?\.[^/]+\.[0-9a-f]{{32}}\.tmp"
)
IMAGE = re.compile(r"[0-9a-f]{32}\.png")
TRIES = 5  # at reading a model that is being replaced

T = TypeVar("T")
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

    def total(self, names: Sequence[str] | None = None) -> Score:
        """Return the score over some classes, or all."""
        return sum((s for name, s in self.scores.items() if names is None or name in set(names)), Score(0, 0, 0))


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
    weights: str  # SHA-256

    @property
    def names(self) -> list[str]:
        """The classes in order of arrival."""
        return [known.name for known in self.classes]

    def files(self, kind: str) -> list[str]:
        """Return the exemplars or the held-out images, class by class."""
        return [name for known in self.classes for name in of_kind(known, kind)]


# What models of format 1 do not say.
LATER: dict[type, dict[str, Any]] = {Settings: {"backbone_weights": ""}, Known: {"held_below": ""}}


def of_kind(known: Known, kind: str) -> list[str]:
    """Return a class's exemplars or its held-out images."""
    return known.exemplars if kind == EXEMPLARS else known.validation


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other writers out of a model, and finish what a killed one left to do."""
    with lock(folder):
        heal(folder)
        yield


def settle(folder: Path) -> None:
    """Finish, before reading, what a killed writer left to do; not where another process works, or none may write.

    A model in order is not locked, so that a reader never keeps a writer out.
    """
    with suppress(EdblError, OSError):
        if (folder / NEW).exists() or orphans(folder, read(folder)) or _abandoned(folder):
            with locked(folder):
                pass


def exists(folder: Path) -> bool:
    """Tell whether there is a model."""
    return (folder / MODEL).is_file()


def begun(folder: Path) -> bool:
    """Tell whether an increment was begun and not finished."""
    return (folder / INCREMENT / BEGUN).is_file()


def foreign(settings: Settings) -> bool:
    """Tell whether a method is none of this package's: what is in a file of its own would run when it is opened."""
    return settings.method not in methods() or "method" in settings.given


def read(folder: Path) -> Bundle:
    """Return what a model's folder says of it."""
    if not exists(folder):
        if begun(folder):
            raise EdblError(
                f"{folder} has learnt nothing yet: its first increment was begun and not finished\n"
                f"{command('learn', folder)} goes on with it"
            )
        if folder.exists() and not folder.is_dir():
            raise EdblError(f"{folder} is a file; give the folder of a model")
        what = "holds no model: it has no model.json" if folder.is_dir() else "does not exist"
        raise EdblError(f"{folder} {what}; {command('learn', folder, 'FOLDER')} makes one")
    for name in (EXEMPLARS, VALIDATION, INCREMENT):
        if (folder / name).is_symlink():
            raise EdblError(
                f"{folder / name} is a link, and a model keeps its files itself; put the folder in its place"
            )
    return parse(folder, (folder / MODEL).read_bytes())


def parse(folder: Path, text: bytes) -> Bundle:
    """Return what ``model.json`` says, every value checked: it may come from anywhere."""
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(folder, MODEL, f"not valid JSON ({error})") from error
    if not isinstance(stored, dict):
        raise damaged(folder, MODEL, "not a JSON object")
    number = stored.pop("format", None)
    if isinstance(number, int) and number > FORMAT:
        raise EdblError(
            f"{folder} is a model of format {number}, and this edbl reads format {FORMAT}: it was written by a newer "
            "edbl\nupgrade edbl to use it"
        )
    if number not in (*UNSUMMED, FORMAT):
        raise damaged(folder, MODEL, f"its format is {number!r}, not {FORMAT}")
    if number == FORMAT and stored.pop("sha256", None) != checksum(stored):
        raise damaged(folder, MODEL, "its checksum is wrong")
    bundle = typed(Bundle, stored, folder, MODEL)
    if foreign(bundle.settings) or bundle.recipe.get("method") != bundle.settings.method:
        raise damaged(folder, MODEL, "its method is none of edbl's own, or its recipe has another")
    names, files = bundle.names, bundle.files(EXEMPLARS) + bundle.files(VALIDATION)
    if len(set(names)) != len(names) or sum(bundle.sizes) != len(names) or min(bundle.sizes, default=0) < 1:
        raise damaged(folder, MODEL, "its classes do not fit the sizes of its increments")
    if bad := [name for name in files if not IMAGE.fullmatch(name)]:
        raise damaged(folder, MODEL, f"{bad[0]!r} is no name of an image")
    if not bundle.history or bundle.history[-1].scores.keys() != set(names):
        raise damaged(folder, MODEL, "its classes are not those that its history ends with")
    if not 1 <= bundle.settings.image_size <= 1024 or not 0 <= bundle.settings.copies <= 1000:
        raise damaged(folder, MODEL, "its image size or number of copies is out of range")
    if bundle.settings.tune == "head" and bundle.settings.backbone in BACKBONES:
        raise damaged(folder, MODEL, "its backbone learns from scratch, and is said to be frozen")
    return bundle


def write(folder: Path, bundle: Bundle, tensors: Mapping[str, Tensor], images: Mapping[str, Pixels]) -> None:
    """Replace the model by another one; ``images`` has at least those that are new, by file name."""
    wanted: list[Path] = []
    for kind in (EXEMPLARS, VALIDATION):
        (folder / kind).mkdir(exist_ok=True)
        wanted += [folder / kind / name for name in dict.fromkeys(bundle.files(kind))]
    missing = [path for path in wanted if not path.exists()]
    in_threads(lambda path: write_atomic(path, _png(images[path.name])), missing, "saving images")
    data = safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in tensors.items()})
    bundle.weights = hashlib.sha256(data).hexdigest()
    write_atomic(folder / NEW, data)
    values = dataclasses.asdict(bundle)
    text = json.dumps({"format": FORMAT, "sha256": checksum(values), **values}, indent=1, allow_nan=False)
    write_atomic(folder / MODEL, (text + "\n").encode())
    heal(folder)


def checksum(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what a JSON file says."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def heal(folder: Path) -> None:
    """Finish what a killed writer left to do: put new weights in place, remove what no model refers to."""
    sweep(folder)
    if _abandoned(folder):
        discard(folder)
    if not exists(folder):
        return
    bundle = read(folder)
    new = folder / NEW
    if new.is_file():
        if _sum(new) == bundle.weights:
            os.replace(new, folder / WEIGHTS)
        else:
            new.unlink()
    for path in orphans(folder, bundle):
        try:
            path.unlink(missing_ok=True)
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
    return place.is_dir() and not place.is_symlink() and not begun(folder) and not strangers(folder)


def discard(folder: Path) -> None:
    """Drop a begun increment and, if it was the first, what it has put in its place already."""
    shutil.rmtree(folder / INCREMENT, ignore_errors=True)
    if exists(folder):
        return
    (folder / NEW).unlink(missing_ok=True)
    for place in (folder / EXEMPLARS, folder / VALIDATION):
        if place.is_dir() and not place.is_symlink():
            for path in place.iterdir():
                if IMAGE.fullmatch(path.name):
                    path.unlink()
            with suppress(OSError):
                place.rmdir()


@dataclass(frozen=True)
class Contents:
    """A model as read from disk."""

    bundle: Bundle
    tensors: dict[str, Tensor]  # of ``model.safetensors``
    images: dict[str, Pixels]  # by file name, those asked for


def load(folder: Path, kinds: Sequence[str] = (), without: Sequence[str] = ()) -> Contents:
    """Return a model with its images of some ``kinds``; those of classes ``without`` may be missing.

    A model that is replaced while it is read is read again.
    """
    for _ in range(TRIES):
        bundle = read(folder)
        try:
            return _load(folder, bundle, kinds, without)
        except EdblError:
            if read(folder).weights == bundle.weights:
                raise
    raise EdblError(f"{folder} is being changed by another process all the time; try again later")


def _load(folder: Path, bundle: Bundle, kinds: Sequence[str], without: Sequence[str]) -> Contents:
    tensors = _tensors(folder, bundle)
    for key, kind in (("memory.x", EXEMPLARS), ("validation.x", VALIDATION)):
        features = tensors.get(key)
        if (features is None) != (bundle.settings.tune == "all"):
            raise damaged(folder, WEIGHTS, f"{key} is missing, or should not be there")
        if features is not None and (features.ndim != 3 or len(features) != len(bundle.files(kind))):
            raise damaged(folder, WEIGHTS, f"{key} holds features of other images than model.json names")
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


def _tensors(folder: Path, bundle: Bundle) -> dict[str, Tensor]:
    for path in (folder / WEIGHTS, folder / NEW):  # a writer may have been killed, or be, between commit and renaming
        with suppress(FileNotFoundError):
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() == bundle.weights:
                try:
                    return safetensors.torch.load(data)
                except (SafetensorError, ValueError, KeyError) as error:
                    raise damaged(folder, path.name, str(error)) from error
    what = "its checksum is wrong" if (folder / WEIGHTS).exists() else "the file is missing"
    raise damaged(folder, WEIGHTS, what)


def pick(images: Mapping[str, Pixels], names: Sequence[str], size: int) -> Tensor:
    """Return images by name as one tensor, ``[n, 3, size, size]``."""
    return torch.from_numpy(stack([images[name] for name in names], size))


def memory_bytes(folder: Path, bundle: Bundle) -> int:
    """Return the size of the exemplars on disk: images and, where the backbone is frozen, their features."""
    paths = [folder / EXEMPLARS / name for name in set(bundle.files(EXEMPLARS))]
    size = sum(path.stat().st_size for path in paths if path.is_file())
    if bundle.settings.tune == "head":
        with suppress(OSError, SafetensorError), safe_open(folder / WEIGHTS, "pt") as file:
            size += file.get_tensor("memory.x").nbytes
    return size


def damaged(folder: Path, file: str, why: str) -> EdblError:
    """Return the error for a file that cannot be used."""
    return EdblError(f"the model {folder} is damaged: {file}: {why}\nrestore the folder from a copy")


def _sum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def typed(kind: type[T], value: Any, folder: Path, file: str) -> T:
    """Return an instance of a dataclass from what JSON gave, every value checked against its type."""
    try:
        made: T = _fit(kind, value, kind.__name__.lower())
    except ValueError as error:
        raise damaged(folder, file, str(error)) from error
    return made


def _fit(kind: Any, value: Any, at: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, dict):
        hints, value = get_type_hints(kind), LATER.get(kind, {}) | value
        if missing := sorted(hints.keys() ^ value.keys()):
            raise ValueError(f"'{missing[0]}' of {at} is missing or unknown")
        return kind(**{name: _fit(hint, value[name], name) for name, hint in hints.items()})
    if kind is Any and _plain(value):
        return value
    if origin is Literal and value in inner and isinstance(value, str):
        return value
    if origin is list and isinstance(value, list):
        return [_fit(inner[0], item, at) for item in value]
    if origin is dict and isinstance(value, dict):
        return {key: _fit(inner[1], item, at) for key, item in value.items()}
    if origin is types.UnionType:  # of something and None
        return None if value is None else _fit(inner[0], value, at)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if kind is int and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if kind in (str, bool) and isinstance(value, kind):
        return value
    raise ValueError(f"'{at}' has a value of the wrong kind")


def _plain(value: Any, depth: int = 3) -> bool:
    """Tell whether a value is one that settings have: a list of lists of numbers or texts at most."""
    if isinstance(value, list):
        return depth > 0 and all(_plain(item, depth - 1) for item in value)
    return not isinstance(value, dict)
