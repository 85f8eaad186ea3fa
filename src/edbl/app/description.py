"""What a model says of itself: settings, classes, history; every value is checked, for it may come from anywhere."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from edbl import users
from edbl.errors import EdblError
from edbl.memory import Budget
from edbl.methods import find_method, methods
from edbl.methods.closed import ClosedForm
from edbl.nets.backbones import BACKBONES
from edbl.nets.engines import ENGINES, INT8, TORCH
from edbl.text import is_class_name

EXEMPLARS, VALIDATION, VECTORS = "exemplars", "validation", "features"  # folders of what is kept of photos
IMAGE, PACK = re.compile(r"[0-9a-f]{32}\.png"), re.compile(r"[0-9a-f]{64}\.safetensors")
KINDS = {EXEMPLARS: IMAGE, VALIDATION: IMAGE, VECTORS: PACK}  # the files in them
DIGITS = 32  # of the digest of a photo
NEWEST = 10**9 - 2  # number of a version, of at most nine digits, and so is the one after it
PHOTOS = re.compile(rf"([0-9a-f]{{{DIGITS}}})*")

Readout = Literal["cnn", "nme"]
Kind = Literal["learn", "forget", "rename", "merge", "join"]
Keep = Literal["features", "photos", "nothing"]


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
    keep: Keep | None = None  # what a closed form keeps of photos; None of a trained method, which has its memory
    root: bool = False  # whether a trained method learns from square roots of features
    engine: str = TORCH  # what computes features, one of `edbl.nets.engines.ENGINES`
    mirror: bool = True  # whether a trained method learns from mirrored copies too
    ranges: list[list[float]] = field(default_factory=list)  # the least and the most of its values, in eight bits


@dataclass
class Known:
    """A class of the model."""

    name: str
    learnt: str  # when
    refreshed: str = ""  # when it last got more images, if ever
    photos: str = ""  # digests of all that it has learnt from, one after the other, sorted
    features: str = ""  # SHA-256 of the file with them, where a closed form keeps them
    exemplars: list[str] = field(default_factory=list)  # files, best first
    validation: list[str] = field(default_factory=list)  # files
    held_below: str = ""  # images whose place is below it were never learnt from: they alone may be held out

    @property
    def images(self) -> int:
        """How many photos it has learnt from."""
        return len(self.photos) // DIGITS

    @property
    def digests(self) -> list[str]:
        """Digests of these photos."""
        return [self.photos[at : at + DIGITS] for at in range(0, len(self.photos), DIGITS)]

    def add(self, digests: Iterable[str], gone: Iterable[str] = ()) -> None:
        """Note that it has learnt from more photos, and has not from others any more."""
        self.photos = "".join(sorted({*self.digests} - {*gone} | {*digests}))

    def files(self, kind: str) -> list[str]:
        """Return its exemplars, its held-out images, or the file with its features."""
        if kind == VECTORS:
            return [f"{self.features}.safetensors"] if self.features else []
        return self.exemplars if kind == EXEMPLARS else self.validation


def had(known: Known) -> set[str]:
    """Return the digests of all images that a class has learnt from or that are held out of it."""
    return {*known.digests, *(file.removesuffix(".png") for file in known.exemplars + known.validation)}


@dataclass(frozen=True)
class Score:
    """Right answers of both classifiers; of a closed form, which has one, the second are 0."""

    images: int
    cnn: int
    nme: int = 0

    def share(self, readout: Readout) -> float:
        """Return the share of right answers; NaN of no images."""
        return (self.cnn if readout == "cnn" else self.nme) / self.images if self.images else math.nan

    def __add__(self, other: "Score") -> "Score":
        return Score(self.images + other.images, self.cnn + other.cnn, self.nme + other.nme)


def total(scores: Iterable[Score]) -> Score:
    """Return the sum of scores."""
    return sum(scores, Score(0, 0))


@dataclass(frozen=True)
class Event:
    """One thing that happened to the model, which made a version of it."""

    kind: Kind  # learn, forget, rename, merge or join
    date: str
    classes: list[str]  # new ones, forgotten ones, a name before and after, or what became one, its name last
    refreshed: list[str]
    images: int  # learnt from, or forgotten
    exemplars: int  # kept in all, after it
    seconds: float
    scores: dict[str, Score]  # of each class of the model after it, over its held-out images
    before: dict[str, Score]  # of each class before it, over held-out images
    after: dict[str, Score]  # the same after it, over the same images
    asked: str = ""  # digest of the request, and of all images given

    def total(self, names: Sequence[str] | None = None) -> Score:
        """Return the score over some classes, or all."""
        return total(s for name, s in self.scores.items() if names is None or name in set(names))


@dataclass
class Bundle:
    """What ``model.json`` says."""

    settings: Settings
    recipe: dict[str, Any]  # every value of the recipe of the last update
    classes: list[Known]
    sizes: list[int]  # classes that each update brought and that are still there
    increments: int  # number of updates, ever
    seen_images: int  # number of images learnt from, ever
    history: list[Event]
    readout: Readout  # cnn or nme: what predictions are made by; cnn of closed forms
    version: int = 0  # its number
    parent: int = 0  # number of the version it was made from; 0 if there is none
    weights: str = field(default="", init=False)  # SHA-256 of them on disk

    @property
    def names(self) -> list[str]:
        """The classes in order of arrival."""
        return [known.name for known in self.classes]

    @property
    def images(self) -> int:
        """Number of photos that its classes have learnt from."""
        return sum(known.images for known in self.classes)

    @property
    def photos(self) -> dict[str, Known]:
        """The class of each photo that it has learnt from or holds out, by digest."""
        return {digest: known for known in self.classes for digest in had(known)}

    def owners(self) -> dict[tuple[str, str], str]:
        """Return which class each file is of, by kind and name."""
        return {(kind, name): known.name for known in self.classes for kind in KINDS for name in known.files(kind)}

    def files(self, kind: str) -> list[str]:
        """Return the files of a kind, class by class."""
        return [name for known in self.classes for name in known.files(kind)]


def closed(method: str) -> bool:
    """Tell whether a method has a closed form."""
    return issubclass(find_method(method), ClosedForm)


def foreign(settings: Settings) -> bool:
    """Tell whether a method or a net is none of this package's: a file of its own would run when it is opened."""
    return settings.method not in methods() or "method" in settings.given or bool(users.files(settings.given))


def fault(bundle: Bundle) -> str:
    """Return what is wrong with values that are of the right types, if anything is."""
    settings, names = bundle.settings, bundle.names
    if foreign(settings) or users.files(bundle.recipe) or bundle.recipe.get("method") != settings.method:
        return "its method or its net is none of edbl's own, or its recipe has another"
    if len(set(names)) != len(names) or sum(bundle.sizes) != len(names) or min(bundle.sizes, default=0) < 1:
        return "its classes do not fit the sizes of its increments"
    if odd := [name for name in names if not is_class_name(name)]:
        return f"{odd[0][:80]!r} is no name of a class"
    if bad := [file for kind, own in KINDS.items() for file in bundle.files(kind) if not own.fullmatch(file)]:
        return f"{bad[0]!r} is no name of an image, or of features"
    if not all(PHOTOS.fullmatch(known.photos) for known in bundle.classes):
        return "its digests of photos are none"
    if not bundle.history or bundle.history[-1].scores.keys() != set(names):
        return "its classes are not those that its history ends with"
    if min(bundle.increments, bundle.seen_images, bundle.parent, bundle.version - 1) < 0:
        return "its version, or a number of what it has learnt, is below 0"
    if max(bundle.parent, bundle.version) > NEWEST:
        return f"its version is above {NEWEST:,}"
    return odd_settings(settings)


def odd_settings(settings: Settings) -> str:
    """Return what is wrong with the settings of a model or an update, if anything is."""
    if not 1 <= settings.image_size <= 1024 or not 0 <= settings.copies <= 1000:
        return "its image size or number of copies is out of range"
    if not 0 <= settings.validation <= 0.5 or not 0 <= settings.seed <= 2**63:
        return "its seed, or the share that it holds out, is out of range"
    try:
        Budget.parse(settings.memory)
    except EdblError as error:
        return str(error)
    if (settings.keep is not None) != (closed(settings.method) and settings.tune == "head"):
        return "what it keeps of photos does not fit its method"
    if settings.engine not in ENGINES or (settings.tune == "all" and settings.engine != TORCH):
        return "its engine is none"
    if (settings.engine == INT8) != bool(settings.ranges) or any(len(pair) != 2 for pair in settings.ranges):
        return "the ranges of its engine are none"
    if settings.tune == "head" and settings.backbone in BACKBONES:
        return "its backbone learns from scratch, and is said to be frozen"
    return ""
