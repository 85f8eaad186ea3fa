"""What a model learns from: pixels, where its backbone learns too, or features, where a frozen one computes them.

`inputs_of` is the one place where they part; all else asks what it gives. `Inputs` is what all have, `Trained` what
those have whose classifier is trained; a closed form (`edbl.app.exact`) needs no more of them.
"""

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, cast

import numpy as np
import torch
from torch import Generator, Tensor, nn

from edbl import config, presets
from edbl.app import features, photos
from edbl.app.bundle import FEATURES, Contents
from edbl.app.description import EXEMPLARS, VALIDATION, VECTORS, Bundle, Settings
from edbl.app.exact import UNIT, answers
from edbl.app.model import Model
from edbl.app.photos import Array
from edbl.data.augment import Views
from edbl.data.datasets import IMAGENET_MEAN, IMAGENET_STD
from edbl.data.decoding import Pixels as Image
from edbl.engine.progress import Progress
from edbl.errors import EdblError
from edbl.memory import Memory
from edbl.methods import find_method
from edbl.nets import engines, pretrained
from edbl.nets.backbones import Backbone, Foreign, refuse_width
from edbl.nets.closed import rooted
from edbl.nets.pretrained import SCRATCH, Pretrained
from edbl.schedule import Schedule
from edbl.training import MOST_PAD, Training

COPIES = 4  # changed copies of each image whose features a frozen model learns from
UNFROZEN = frozenset(  # keys about pixels, or about a backbone that learns
    {
        *(f"data.{name}" for name in ("augment", "pad", "brightness", "cutout", "mean", "std")),
        "optim.backbone_lr",
        "optim.fixed_norm",
        "evaluation.nme_flips",
    }
)


Learns = Literal["at once", "by updates"]
Change = Literal["forget photos", "merge", "join"]
STAYS: Mapping[Change, str] = {  # what a trained model cannot do, and why
    "forget photos": "{method} is trained, and what a photo did to its network stays; forget the photo's class, or use "
    "a closed form",
    "merge": "{method} is trained, and its classes cannot be merged; forget them, and learn their photos as one class",
    "join": "{model} is trained by {method}; only models with closed forms can be joined",
}


class Inputs(Protocol):
    """What differs between models that learn from pixels and from features. ``x`` is images as the model takes them."""

    backbone_note: ClassVar[str]  # what to add to the name of a backbone
    learns: ClassVar[Learns]  # where it is served
    read: ClassVar[Sequence[str]]  # kinds of files that are read with a model, and
    asked_by: ClassVar[Sequence[str]]  # those of them that predictions need

    def refuse(self, what: Change, model: Path) -> None:
        """Refuse a change of a model that cannot be made of it."""

    @property
    def idle(self) -> Collection[str]:
        """Recipe keys that mean nothing."""

    def completed(self) -> Settings:
        """Return the settings of a new model with those that hang on its inputs, if its method can learn from them."""

    def check(self) -> None:
        """Refuse to go on with another backbone than the one that the model has learnt with."""

    def bytes_each(self) -> int:
        """Return the most that an exemplar takes on disk, uncompressed."""

    def seen(
        self, pixels: Array, rows: Sequence[int], kind: str, place: Path, number: int, device: torch.device
    ) -> Tensor:
        """Return photos of an increment, to learn from or held out; what took time is kept in the folder ``place``."""

    def asked(self, pixels: Tensor, device: torch.device, keep: bool = False) -> Tensor:
        """Return photos that a model is asked about; ``keep`` what took time for another time."""

    def fault(self, contents: Contents) -> str:
        """Return what is wrong with the tensors of a model, if anything is."""

    def front(self) -> dict[str, Any]:
        """Return what `edbl.app.export.export` is to put between pixels and what the model takes."""


class Trained(Inputs, Protocol):
    """The same of a model whose classifier is trained."""

    def training(self, images: int, x: Tensor | None = None) -> Training:
        """Return the recipe of an increment that learns from so many images, exemplars among them; ``x`` is the new."""

    def model(self, made: Training, device: torch.device, progress: Progress | None = None) -> Model:
        """Return a model that has learnt nothing yet."""

    def none(self) -> Tensor:
        """Return no images."""

    def kept(self, contents: Contents, kind: str) -> Tensor:
        """Return the exemplars or the held-out images of a model on disk."""

    def files(self, memory: Memory, named: Iterable[tuple[Tensor, Sequence[str]]]) -> list[list[str]]:
        """Return the file of each exemplar, class by class; ``named`` is images that may be among them, with theirs."""

    def images(self, files: Sequence[Sequence[str]], memory: Memory) -> dict[str, Image]:
        """Return pixels to write, by file, that are those of no photo: a method may have changed its exemplars."""

    def tensors(self, model: Model, bundle: Bundle, held: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Return tensors to write; ``held`` is classes and images that were held out, in the order of their files."""


def inputs_of(settings: Settings) -> Inputs:
    """Return what a model learns from."""
    return Closed(settings) if settings.keep else trained_on(settings)


def trained_on(settings: Settings) -> Trained:
    """Return what a model whose classifier is trained learns from."""
    return Features(settings) if settings.tune == "head" else Pixels(settings)


def network(backbone: str) -> Pretrained | None:
    """Return what is known of a pretrained backbone; None for one that learns from scratch."""
    return None if backbone in SCRATCH else pretrained.find(backbone)


@dataclass(frozen=True)
class OfTrained:
    """What is so of all models whose classifier is trained."""

    settings: Settings
    learns: ClassVar[Learns] = "by updates"

    def refuse(self, what: Change, model: Path) -> None:
        """Refuse all."""
        raise EdblError(STAYS[what].format(method=self.settings.method, model=model))


@dataclass(frozen=True)
class Pixels(OfTrained):
    """Pixels, by a backbone that learns, from scratch or from what others have taught it."""

    backbone_note: ClassVar[str] = ""
    read: ClassVar[Sequence[str]] = (EXEMPLARS, VALIDATION)
    asked_by: ClassVar[Sequence[str]] = read
    idle: ClassVar[frozenset[str]] = frozenset()

    def completed(self) -> Settings:
        """Refuse a method that looks into a net that shows nothing."""
        s = self.settings
        if find_method(s.method).needs == "blocks" and s.backbone.startswith(pretrained.TIMM):
            raise EdblError(
                f"{s.method} reads inner layers, which networks of timm do not expose; use another method or backbone"
            )
        return s

    def check(self) -> None:
        """Take any: the backbone is in the model."""

    def bytes_each(self) -> int:
        """Count pixels."""
        return 3 * self.settings.image_size**2

    def training(self, images: int, x: Tensor | None = None) -> Training:
        """Choose by whether the backbone begins from scratch."""
        found = network(self.settings.backbone)
        if found is None:
            return _training(self.settings, "photos-scratch", images, {"net.backbone": self.settings.backbone})
        # The net is given when the model is made; its name is one that recipes know.
        return _training(self.settings, "photos-tuned", images, {"net.backbone": "resnet32", **_expected(found)})

    def model(self, made: Training, device: torch.device, progress: Progress | None = None) -> Model:
        """Build the backbone, or take the pretrained one."""
        found, side = network(self.settings.backbone), self.settings.image_size

        def make(generator: Generator, width: int) -> Backbone:
            refuse_width(self.settings.backbone, width)
            backbone = cast(Pretrained, found).load()
            if not isinstance(backbone, Foreign):  # whose last ReLU, if any, stays
                backbone.last_relu = find_method(made.method).last_relu
            return backbone

        shape = torch.Size((3, side, side))
        transform = made.data.transform(device)
        return Model(made, shape, transform, device, progress=progress, make=None if found is None else make)

    def seen(
        self, pixels: Array, rows: Sequence[int], kind: str, place: Path, number: int, device: torch.device
    ) -> Tensor:
        """Return the photos themselves."""
        return torch.from_numpy(pixels[np.array(rows, dtype=np.int64)])

    def asked(self, pixels: Tensor, device: torch.device, keep: bool = False) -> Tensor:
        """Return the photos themselves."""
        return pixels

    def none(self) -> Tensor:
        """Return none, of the model's image size."""
        return torch.empty(0, 3, self.settings.image_size, self.settings.image_size, dtype=torch.uint8)

    def fault(self, contents: Contents) -> str:
        """Refuse features, which would be learnt from in place of images."""
        odd = [key for key in FEATURES.values() if key in contents.tensors]
        return f"{odd[0]} should not be there" if odd else ""

    def kept(self, contents: Contents, kind: str) -> Tensor:
        """Return images as their files have them."""
        return contents.pixels(kind)

    def files(self, memory: Memory, named: Iterable[tuple[Tensor, Sequence[str]]]) -> list[list[str]]:
        """Name exemplars by their pixels."""
        return photos.files([images.x.cpu().numpy() for images in memory.classes])

    def images(self, files: Sequence[Sequence[str]], memory: Memory) -> dict[str, Image]:
        """Return all exemplars."""
        pairs = zip(files, memory.classes, strict=True)
        return {name: x for names, images in pairs for name, x in zip(names, images.x.cpu().numpy(), strict=True)}

    def tensors(self, model: Model, bundle: Bundle, held: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Return the net: images have their files."""
        return model.learner.weights()

    def front(self) -> dict[str, Any]:
        """Return nothing: the model takes pixels."""
        return {}


@dataclass(frozen=True)
class Frozen:
    """Features by a frozen backbone, of each image and of changed copies of it, ``[n, 1 + copies, width]``."""

    settings: Settings
    backbone_note: ClassVar[str] = " (frozen)"
    read: ClassVar[Sequence[str]] = ()
    asked_by: ClassVar[Sequence[str]] = ()
    copies: ClassVar[int] = 0

    @property
    def backbone(self) -> Pretrained:
        """What is known of the backbone."""
        return pretrained.find(self.settings.backbone)

    def completed(self) -> Settings:
        """Note which backbone it is; refuse a method that needs more than features."""
        if find_method(self.settings.method).needs != "features":
            raise EdblError(
                f"{self.settings.method} needs the pixels or the inner layers of its network, which a frozen backbone "
                "does not give it\nuse tune=all, or another method"
            )
        return replace(self.settings, copies=self.copies, backbone_weights=self.backbone.digest)

    def check(self) -> None:
        """Compare checksums, as the backbone is not in the model; look for its engine."""
        engines.check(self.settings.engine)
        name, here, learnt = self.backbone.name, self.backbone.digest, self.settings.backbone_weights
        if here != learnt:
            raise EdblError(
                f"the weights of {name} here are not those that the model has learnt with: their SHA-256 begins with "
                f"{here[:12]}, not {learnt[:12]}\ninstall those, or make another model"
            )

    def bytes_each(self) -> int:
        """Count pixels, and features in half precision."""
        return 3 * self.settings.image_size**2 + 2 * (1 + self.settings.copies) * self.backbone.width

    def seen(
        self, pixels: Array, rows: Sequence[int], kind: str, place: Path, number: int, device: torch.device
    ) -> Tensor:
        """Compute features, of changed copies too to learn from."""
        self.check()
        copies = self.settings.copies if kind == "train" else 0
        return self._rooted(features.of_increment(self.settings, pixels, rows, copies, kind, place, number, device))

    def asked(self, pixels: Tensor, device: torch.device, keep: bool = False) -> Tensor:
        """Compute features of the photos as they are."""
        return self._rooted(features.of(self.settings, pixels, device, keep=keep))

    def _rooted(self, views: Tensor) -> Tensor:
        return rooted(views.float(), unit=False).half() if self.settings.root else views

    def front(self) -> dict[str, Any]:
        """Return the backbone."""
        self.check()
        backbone = features.network(self.settings)
        net = nn.Sequential(backbone, Rooted()) if self.settings.root else backbone
        return {"backbone": net, "mean": self.backbone.mean, "std": self.backbone.std}


@dataclass(frozen=True)
class Features(OfTrained, Frozen):
    """Features for a classifier that is trained: of each image and of changed copies of it."""

    copies: ClassVar[int] = COPIES
    idle: ClassVar[frozenset[str]] = UNFROZEN

    def completed(self) -> Settings:
        """Let a new model learn from square roots of features."""
        return replace(super().completed(), root=True)

    def training(self, images: int, x: Tensor | None = None) -> Training:
        """Choose by the length of the features."""
        length = 1.0 if x is None else max(float(x[:, 0].float().square().sum(1).mean()), 1e-6) ** 0.5
        return _training(
            self.settings, "photos-frozen", images, {"net.backbone": "given", **_expected(self.backbone)}, length
        )

    def model(self, made: Training, device: torch.device, progress: Progress | None = None) -> Model:
        """Build a head for vectors."""
        return Model(made, (self.backbone.width,), Views(), device, progress=progress)

    def none(self) -> Tensor:
        """Return none, without copies."""
        return torch.empty(0, 1, self.backbone.width, dtype=torch.float16)

    def fault(self, contents: Contents) -> str:
        """Compare features with the files that they are of."""
        for kind, key in FEATURES.items():
            found = contents.tensors.get(key)
            if found is None:
                return f"{key} is missing"
            if found.ndim != 3 or len(found) != len(contents.bundle.files(kind)):
                return f"{key} holds features of other images than model.json names"
        return ""

    def kept(self, contents: Contents, kind: str) -> Tensor:
        """Return features, which are kept beside the files."""
        return contents.tensors[FEATURES[kind]]

    def files(self, memory: Memory, named: Iterable[tuple[Tensor, Sequence[str]]]) -> list[list[str]]:
        """Find out by its features which image an exemplar is."""
        names = {_key(views): file for x, files in named for views, file in zip(x, files, strict=True)}
        return [[names[_key(views)] for views in images.x.cpu()] for images in memory.classes]

    def images(self, files: Sequence[Sequence[str]], memory: Memory) -> dict[str, Image]:
        """Return none: no method changes pixels that it does not see."""
        return {}

    def tensors(self, model: Model, bundle: Bundle, held: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Return the net, and the features of all images that are kept."""
        views: dict[str, list[Tensor]] = {name: [] for name in bundle.names}
        for name, view in held:
            views[name].append(view)
        stay = [view for known in bundle.classes for view in views[known.name][: len(known.validation)]]
        kept = {FEATURES[VALIDATION]: torch.stack(stay) if stay else self.none()}
        return model.learner.weights() | {FEATURES[EXEMPLARS]: model.memory.images.x} | kept


@dataclass(frozen=True)
class Closed(Frozen):
    """Features for a closed form: of each image as it is."""

    learns: ClassVar[Learns] = "at once"
    read: ClassVar[Sequence[str]] = (VECTORS,)

    def refuse(self, what: Change, model: Path) -> None:
        """Refuse to join what cannot be calibrated then."""
        if what == "join" and self.settings.keep == "nothing":
            raise EdblError(f"{model} keeps nothing of its photos to calibrate probabilities by, and cannot be joined")

    @property
    def idle(self) -> Collection[str]:
        """All but the form's own option: nothing is trained."""
        return set(Training.origins({"method": self.settings.method})) - {UNIT}

    def completed(self) -> Settings:
        """Refuse what a form cannot do."""
        if self.settings.keep == "nothing" and self.settings.method == "ridge":
            raise EdblError(
                "ridge weighs photos by how many its class has in the end, so it needs what it has kept of "
                "them; use lda, or keep=features"
            )
        return super().completed()

    def fault(self, contents: Contents) -> str:
        """Look for what predictions are made by."""
        try:
            answers(contents)
        except (KeyError, ValueError) as error:
            return f"what it answers by does not fit this model ({error})"
        return ""


class Rooted(nn.Module):
    """Square roots, as what a backbone gives is learnt from."""

    def forward(self, x: Tensor) -> Tensor:
        """Return them."""
        return rooted(x, unit=False)


def _training(settings: Settings, preset: str, images: int, own: Mapping[str, object], length: float = 1.0) -> Training:
    """Return how an increment learns from so many images.

    ``length`` is the root mean square length of the features of a frozen backbone: a head learns by its square.
    """
    changes: dict[str, object] = {} if settings.mirror else {"data.augment": "crop"}
    kind, pace = find_method(settings.method), presets.PACES[preset]
    origins = Training.origins({"method": settings.method, "preset": preset})
    usual: dict[str, Any] = {key: value for key, (value, _) in origins.items()}
    batch = min(usual["optim.batch"], max(2, images))
    epochs = min(max(pace.least, math.ceil(pace.steps / max(1, images // batch))), pace.most)
    values: dict[str, Any] = {
        "method": settings.method,
        "preset": preset,
        "data.mean": IMAGENET_MEAN,
        "data.std": IMAGENET_STD,
        "data.pad": min(settings.image_size // 8, MOST_PAD),
        "memory": settings.memory,
        "seed": settings.seed,
        "optim.batch": batch,
        "schedule.epochs": epochs,
        "schedule.lr": usual["schedule.lr"] / length**2,
        "options.min_old": max(1, batch // 4),
        **changes,
        **own,
    }
    for item in fields(kind.Config):
        if isinstance(item.default, Schedule):  # a further phase
            shorter = item.default.scaled(max(1, min(item.default.epochs, epochs // 2)))
            if item.name == "balance":
                shorter = Schedule(shorter.epochs, usual["options.balance.lr"] / length**2, (), shape="cosine")
            values |= config.flatten(shorter, f"options.{item.name}.")
    ours = {k: v for k, v in values.items() if k in usual}
    return Training.made(kind, usual | ours | settings.given)


def _expected(found: Pretrained) -> dict[str, object]:
    """Return what a pretrained network expects of images, by recipe key."""
    return {"data.mean": tuple(found.mean), "data.std": tuple(found.std)}


def _key(views: Tensor) -> bytes:
    return hashlib.sha256(views.contiguous().numpy().tobytes()).digest()
