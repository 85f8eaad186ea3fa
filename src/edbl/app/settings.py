"""Settings of a model: what a command asks for, what is chosen where it says nothing, and the recipe they make."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, cast

import torch
from torch import Generator

from edbl import config
from edbl.app import extractor
from edbl.app.bundle import Settings
from edbl.app.extractor import SCRATCH, Pretrained
from edbl.app.model import Model
from edbl.app.photos import Photo, usual_size
from edbl.data.augment import Views
from edbl.engine.environment import pick_device
from edbl.engine.progress import Progress
from edbl.errors import EdblError, unknown
from edbl.memory import Budget
from edbl.methods import find_method, methods
from edbl.nets.backbones import Backbone, Foreign
from edbl.recipe import MOST_PAD, Recipe, check_values
from edbl.schedule import Schedule

MEMORY = "per_class=20"
VALIDATION = 0.1
SIDES = 8, 1024  # least and most image size
ELSEWHERE = {  # keys that --set may not change, and what does
    "method": "--method",
    "memory": "--memory",
    "seed": "--seed",
    "device": "--device",
    "net.backbone": "--backbone",
    "data.image_size": "--image-size",
    "data.holdout": "--validation",
    "data.skip_bad": "--skip-bad",
}
UNFROZEN = {  # keys about pixels, or about a backbone that learns
    *(f"data.{name}" for name in ("augment", "pad", "brightness", "cutout", "mean", "std")),
    "optim.backbone_lr",
    "optim.fixed_norm",
    "evaluation.nme_flips",
}


@dataclass(frozen=True)
class Preset:
    """How long and how fast a net learns an increment."""

    epochs: tuple[int, int]  # least, and most for the sake of `steps`
    steps: int  # updates that an increment of few images should come to
    batch: int
    lr: float  # where the backbone is frozen: for features of length 1
    balance_lr: float
    warmup: int
    weight_decay: float
    max_rounds: int  # of mixing
    backbone_lr: float = 1.0  # as a part of lr and balance_lr
    fixed_norm: bool = False


FROZEN = Preset(
    epochs=(15, 100), steps=300, batch=64, lr=6.0, balance_lr=2.0, warmup=2, weight_decay=2e-4, max_rounds=8
)
TUNED = Preset(
    epochs=(10, 60),
    steps=300,
    batch=32,
    lr=0.02,
    balance_lr=0.007,
    warmup=1,
    weight_decay=2e-4,
    max_rounds=2,
    backbone_lr=0.01,  # with a tenth it collapses at times
    fixed_norm=True,  # of few images, and mixed ones, statistics are worse than those of the pretrained backbone
)
FRESH = Preset(
    epochs=(15, 60), steps=1000, batch=32, lr=0.1, balance_lr=0.01, warmup=2, weight_decay=2e-4, max_rounds=1
)
COPIES = 4  # changed copies of each image whose features a frozen model learns from


@dataclass(frozen=True)
class Request:
    """What a command asks for; None where it says nothing."""

    folders: list[str] = field(default_factory=list)
    method: str | None = None
    memory: str | None = None
    memory_mb: float | None = None
    image_size: int | None = None
    backbone: str | None = None
    tune: str | None = None
    seed: int | None = None
    validation: float | None = None
    given: dict[str, Any] = field(default_factory=dict)
    skip_bad: bool = False
    relabel: bool = False

    def check(self) -> None:
        """Refuse what is wrong whatever the model."""
        if self.memory is not None and self.memory_mb is not None:
            raise EdblError("--memory and --memory-mb both say how much to keep; give one of them")
        if self.memory is not None:
            Budget.parse(self.memory)
        if self.memory_mb is not None and not 0 < self.memory_mb < math.inf:
            raise EdblError(f"--memory-mb {self.memory_mb:g} must be a number above 0")
        if self.image_size is not None and not SIDES[0] <= self.image_size <= SIDES[1]:
            raise EdblError(f"--image-size {self.image_size} must be {SIDES[0]} to {SIDES[1]}")
        if self.tune not in (None, "head", "all"):
            raise unknown("value of --tune", str(self.tune), ["head", "all"])
        if self.validation is not None and not 0 <= self.validation <= 0.5:
            raise EdblError(f"--validation {self.validation:g} must be a share of 0 to 0.5")
        if self.seed is not None and self.seed < 0:
            raise EdblError(f"--seed {self.seed} must be 0 or more")


def pretrained(backbone: str) -> Pretrained | None:
    """Return what is known of a pretrained backbone; None for one that learns from scratch."""
    return None if backbone in SCRATCH else extractor.find(backbone)


def frozen(settings: Settings) -> Pretrained | None:
    """Return the frozen backbone of a model, with the weights that it has learnt with; None if its backbone learns."""
    found = pretrained(settings.backbone) if settings.tune == "head" else None
    if found is not None and settings.backbone_weights not in ("", found.digest):
        raise EdblError(
            f"the weights of {found.name} here are not those that the model has learnt with: their SHA-256 begins with "
            f"{found.digest[:12]}, not {settings.backbone_weights[:12]}\ninstall those, or make another model"
        )
    return found


def choose(request: Request, photos: Sequence[Photo], device: str) -> Settings:
    """Return the settings of a new model."""
    gpu = pick_device(device).type == "cuda"
    method = request.method or "edbl"
    _check_method(method)
    backbone = request.backbone or extractor.default() or ("resnet32" if gpu else "small")
    found = pretrained(backbone)
    tune: Literal["head", "all"] = "all"
    if found is None and request.tune == "head":
        raise EdblError(f"{backbone} learns from scratch, so there is nothing to freeze; leave out --tune head")
    if found is not None:
        tune = cast(Literal["head", "all"], request.tune or ("all" if gpu else "head"))
    needs = find_method(method).needs
    if tune == "head" and needs != "features":
        raise EdblError(
            f"{method} needs the pixels or the inner layers of its net, which a frozen backbone does not give it\n"
            "use --tune all, or another method"
        )
    size = request.image_size or (found.image_size if found else usual_size(photos))
    if found is not None:
        found.check(size)
    if needs == "blocks" and backbone.startswith("timm:"):
        raise EdblError(
            f"{method} looks into its net, which one of timm does not let it; use another method or backbone"
        )
    settings = Settings(
        method=method,
        backbone=backbone,
        tune=tune,
        image_size=size,
        memory=request.memory or MEMORY,
        seed=request.seed or 0,
        validation=VALIDATION if request.validation is None else request.validation,
        copies=COPIES if tune == "head" else 0,
        given=_checked(request.given, method, tune),
        backbone_weights=found.digest if found and tune == "head" else "",
    )
    return _with_megabytes(settings, request.memory_mb, found.width if found else 0)


def change(settings: Settings, request: Request) -> Settings:
    """Return the settings of a model with what a later command asks for; some are for good."""
    for key in ("method", "backbone", "tune", "image_size"):
        wanted, now = getattr(request, key), getattr(settings, key)
        if wanted not in (None, now):
            flag = key.replace("_", "-")
            raise EdblError(
                f"--{flag} {wanted}: this model was made with {now}, for good; leave it out, or make another"
            )
    given = _checked(request.given, settings.method, settings.tune)
    if bad := [key for key in given if key in ("data.mean", "data.std")]:
        raise EdblError(
            f"--set {bad[0]}: the model has learnt with {bad[0]} as it was; make another model to change it"
        )
    found = frozen(settings)
    changed = replace(
        settings,
        memory=request.memory or settings.memory,
        seed=settings.seed if request.seed is None else request.seed,
        validation=settings.validation if request.validation is None else request.validation,
        given=settings.given | given,
        backbone_weights=found.digest if found else "",
    )
    return _with_megabytes(changed, request.memory_mb, found.width if found else 0)


def _check_method(name: str) -> None:
    if name.endswith(".py"):
        raise EdblError(
            f"--method {name}: a model must need nothing but its folder, so a method in a file of its own is no choice"
        )
    if name not in methods():
        raise unknown("method", name, methods())
    if find_method(name).keeps == "all images":
        raise EdblError(f"{name} keeps all images ever seen, which a model does not; use another --method")


def _checked(given: Mapping[str, Any], method: str, tune: str) -> dict[str, Any]:
    known = Recipe.keys(method)
    checked = check_values(given, known, method)
    for key in checked:
        if key in ELSEWHERE:
            raise EdblError(f"--set {key}: use {ELSEWHERE[key]}")
        if key in ("data.name", "preset") or key.startswith("stream."):
            raise EdblError(f"--set {key}: a model has no such setting; it learns what it is given")
        if tune == "head" and key in UNFROZEN:
            raise EdblError(f"--set {key} means nothing to a frozen backbone; leave it out, or use --tune all")
    return {key: _plain(value) for key, value in checked.items()}


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _with_megabytes(settings: Settings, megabytes: float | None, width: int) -> Settings:
    """Return the settings with as many exemplars as fit into ``megabytes``, uncompressed."""
    if megabytes is None:
        return settings
    each = exemplar_bytes(settings, width)
    total = int(megabytes * 1e6 // each)
    if not total:
        raise EdblError(f"--memory-mb {megabytes:g} holds no image: one takes up to {each / 1e6:.2g} MB")
    return replace(settings, memory=f"total={total}")


def exemplar_bytes(settings: Settings, width: int) -> int:
    """Return the most that an exemplar takes: its pixels and, where the backbone is frozen, its features."""
    return 3 * settings.image_size**2 + (2 * (1 + settings.copies) * width if settings.tune == "head" else 0)


def recipe(settings: Settings, images: int, length: float = 1.0) -> Recipe:
    """Return the recipe of an increment that learns from so many images, exemplars among them.

    ``length`` is the root mean square length of the features of a frozen backbone: a head learns by its square.
    """
    found = pretrained(settings.backbone)
    preset = FRESH if found is None else FROZEN if settings.tune == "head" else TUNED
    batch = min(preset.batch, max(2, images))
    least, most = preset.epochs
    epochs = min(max(least, math.ceil(preset.steps / max(1, images // batch))), most)
    train = Schedule(epochs, preset.lr / length**2, (), shape="cosine")
    values: dict[str, Any] = {
        "method": settings.method,
        "data.name": ".",  # any folder: what suits photos
        "data.image_size": settings.image_size,
        "data.pad": min(settings.image_size // 8, MOST_PAD),
        "memory": settings.memory,
        "seed": settings.seed,
        "net.backbone": "given" if settings.tune == "head" else settings.backbone if found is None else "resnet32",
        "optim.batch": batch,
        "optim.warmup": preset.warmup,
        "optim.weight_decay": preset.weight_decay,
        "optim.backbone_lr": preset.backbone_lr,
        "optim.fixed_norm": preset.fixed_norm,
        **config.flatten(train, "schedule."),
        "options.max_rounds": preset.max_rounds,
        "options.min_old": max(1, batch // 4),
    }
    if found is not None:
        values |= {"data.mean": tuple(found.mean), "data.std": tuple(found.std)}
    for item in fields(find_method(settings.method).Config):
        if isinstance(item.default, Schedule):  # a further phase
            shorter = item.default.scaled(max(1, min(item.default.epochs, epochs // 2)))
            if item.name == "balance":
                shorter = Schedule(shorter.epochs, preset.balance_lr / length**2, (), shape="cosine")
            values |= config.flatten(shorter, f"options.{item.name}.")
    known = Recipe.keys(settings.method)
    made = Recipe.of({k: v for k, v in values.items() if k in known} | settings.given)
    made.data.check(channels=3)
    return made


def build(settings: Settings, made: Recipe, device: str, progress: Progress | None = None) -> Model:
    """Return a model that has learnt nothing yet."""
    made = replace(made, device=cast(Literal["auto", "cpu", "cuda"], device))
    found = pretrained(settings.backbone)
    if settings.tune == "head" and found is not None:
        return Model(made, (found.width,), Views(), progress=progress)
    side, transform = settings.image_size, made.data.transform(pick_device(device))
    if found is None:
        return Model(made, torch.Size((3, side, side)), transform, progress=progress)

    def make(generator: Generator) -> Backbone:
        backbone = found.load()
        if not isinstance(backbone, Foreign):  # whose last ReLU, if any, stays
            backbone.last_relu = find_method(made.method).last_relu
        return backbone

    return Model(made, torch.Size((3, side, side)), transform, progress=progress, make=make)
