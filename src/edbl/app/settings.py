"""Settings of a model: what a command asks for, and what is chosen where it says nothing."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

import torch

from edbl import users
from edbl.app.description import Keep, Settings, closed
from edbl.app.inputs import Inputs, inputs_of, network
from edbl.app.photos import Photo, largest_side, usual_size
from edbl.config import UnknownKey, ends
from edbl.errors import EdblError, unknown
from edbl.memory import Budget
from edbl.methods import find_method, methods
from edbl.nets import engines, pretrained
from edbl.nets.pretrained import Pretrained
from edbl.recipe import OF_RUNS
from edbl.training import Training

EXACT, TRAINED = "lda", "edbl"  # the methods where the backbone is frozen, and where it learns
MEMORY = "per_class=20"
VALIDATION = 0.1
AUGMENT = "data.augment"
SIDES = 8, 1024  # least and most image size
ENLARGED = 256  # image size up to which photos may be smaller
OWN = {  # recipe keys for which a model has settings of its own
    "method": "method",
    "memory": "memory",
    "seed": "seed",
    "device": "device",
    "net.backbone": "backbone",
    "data.image_size": "image_size",
    "data.holdout": "validation",
    "data.skip_bad": "skip_bad",
}


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
    keep: str | None = None
    start: int | None = None  # the version to learn from, where it is not the newest
    engine: str | None = None
    mirror: bool | None = None

    def check(self) -> None:
        """Refuse what is wrong whatever the model."""
        if self.memory is not None and self.memory_mb is not None:
            raise EdblError("memory and memory_mb both say how much to keep; give one of them")
        if self.memory is not None:
            Budget.parse(self.memory)
        if self.memory_mb is not None and not 0 < self.memory_mb < math.inf:
            raise EdblError(f"memory_mb={self.memory_mb:g} must be a number above 0")
        if self.image_size is not None and not SIDES[0] <= self.image_size <= SIDES[1]:
            raise EdblError(f"image_size={self.image_size} must be {SIDES[0]} to {SIDES[1]}")
        if self.tune not in (None, "head", "all"):
            raise unknown("value of tune", str(self.tune), ["head", "all"])
        if self.validation is not None and not 0 <= self.validation <= 0.5:
            raise EdblError(f"validation={self.validation:g} must be a share of 0 to 0.5")
        if self.seed is not None and self.seed < 0:
            raise EdblError(f"seed={self.seed} must be 0 or more")
        if self.keep not in (None, *get_args(Keep)):
            raise unknown("value of keep", str(self.keep), get_args(Keep))


def choose(request: Request, photos: Sequence[Photo], device: torch.device) -> Settings:
    """Return the settings of a new model."""
    gpu = device.type == "cuda"
    backbone = request.backbone or pretrained.default() or ("resnet32" if gpu else "small")
    found = network(backbone)
    tune: Literal["head", "all"] = "all"
    if found is None and request.tune == "head":
        raise EdblError(f"{backbone} learns from scratch, so there is nothing to freeze; leave out tune=head")
    if found is not None:
        tune = cast(Literal["head", "all"], request.tune or ("all" if gpu else "head"))
    method = request.method or (EXACT if tune == "head" else TRAINED)
    _check_method(method)
    exact = tune == "head" and closed(method)
    _check_kept(request, exact, method)
    size = request.image_size or (found.image_size if found else usual_size(photos))
    if size > ENLARGED and size > (most := max(ENLARGED, largest_side(photos))):  # memory grows by its square
        raise EdblError(f"image_size={size} is more than the photos have; give at most {most}")
    settings = Settings(
        method=method,
        backbone=backbone,
        tune=tune,
        image_size=size,
        memory="none" if exact else request.memory or MEMORY,
        seed=request.seed or 0,
        validation=0 if exact else VALIDATION if request.validation is None else request.validation,
        copies=0,
        given={},
        keep=cast(Keep, request.keep or "features") if exact else None,
        mirror=request.mirror is not False,
    )
    settings = inputs_of(replace(settings, engine=_engine(request, found, tune, device))).completed()
    if found is not None:
        found.check(size)
    return _asked(settings, request, inputs_of(settings))


def _engine(request: Request, found: Pretrained | None, tune: str, device: torch.device) -> str:
    """Return what is to compute features."""
    if found is None or tune != "head":
        if request.engine is not None:
            raise EdblError(f"engine={request.engine} is what computes the features of a frozen backbone; leave it out")
        return engines.TORCH
    if request.engine is None:
        return found.usual_engine(device)
    engines.check(request.engine)
    if request.engine == engines.INT8 and found.name not in pretrained.LITES:
        raise EdblError(engines.LITE_ONLY)
    return request.engine


def _check_kept(request: Request, exact: bool, method: str) -> None:
    """Refuse what does not apply to how a model learns."""
    if exact and request.mirror is not None:
        raise EdblError(f"{method} learns from photos as they are, never from mirrored copies; leave mirror out")
    if request.mirror is not None and AUGMENT in request.given:
        raise EdblError(f"mirror and {AUGMENT} both say whether photos are mirrored; give one of them")
    if not exact and request.keep is not None:
        raise EdblError(f"keep={request.keep} is for lda and ridge on a frozen backbone; {method} has memory instead")
    for name in ("memory", "memory_mb", "validation") if exact else ():
        if (value := getattr(request, name)) is not None:
            raise EdblError(
                f"{name}={value}: {method} is solved, not trained: it needs no exemplars and holds nothing out; keep "
                "says what is kept, and method=edbl is trained"
            )


def change(settings: Settings, request: Request) -> Settings:
    """Return the settings of a model with what a later command asks for; some are for good."""
    for key in ("method", "backbone", "tune", "image_size", "keep", "engine", "mirror"):
        wanted, now = getattr(request, key), getattr(settings, key)
        if wanted not in (None, now):
            raise EdblError(
                f"{key}={wanted}: this model uses {now}, which cannot change; leave it out, or create another model"
            )
    _check_kept(request, settings.keep is not None, settings.method)
    inputs = inputs_of(settings)
    inputs.check()
    changed = replace(
        settings,
        memory=request.memory or settings.memory,
        seed=settings.seed if request.seed is None else request.seed,
        validation=settings.validation if request.validation is None else request.validation,
    )
    changed = _asked(changed, request, inputs)
    if bad := [key for key in ("data.mean", "data.std") if changed.given.get(key) != settings.given.get(key)]:
        raise EdblError(f"the model has learnt with another {bad[0]}; create another model to change it")
    return changed


def _asked(settings: Settings, request: Request, inputs: Inputs) -> Settings:
    """Return the settings with recipe values that are given, and as many exemplars as fit into what is given in MB."""
    given = settings.given | _checked(request.given, settings.method, inputs.idle)
    if given != settings.given:
        trial = Training.made(find_method(settings.method), {"method": settings.method, **given})
        trial.data.check(channels=3)  # as the line before, it refuses what no increment could learn by
    memory = settings.memory
    if request.memory_mb is not None:
        each = inputs.bytes_each()
        total = int(request.memory_mb * 1e6 // each)
        if not total:
            raise EdblError(f"memory_mb={request.memory_mb:g} holds no image: one takes up to {each / 1e6:.2g} MB")
        memory = f"total={total}"
    return replace(settings, given=given, memory=memory)


def _check_method(name: str) -> None:
    if users.is_file(name):
        raise EdblError(
            f"method={name}: models cannot use a method from a .py file, since a model must need nothing but its folder"
        )
    if name not in methods():
        raise unknown("method", name, methods())
    if find_method(name).keeps == "all images":
        raise EdblError(f"{name} keeps all images ever seen, which a model does not; use another method")


def _checked(given: Mapping[str, Any], method: str, idle: Collection[str]) -> dict[str, Any]:
    try:
        checked = Training.checked(method, given)
    except UnknownKey as error:
        of_run = ends(error.key, OF_RUNS)
        raise _foreign(of_run[0]) if of_run else error from None
    for key in checked:
        if key in OWN or key == "preset":
            raise _foreign(key)
        if key in idle:
            what = "a closed form, which is not trained" if closed(method) else "a frozen backbone"
            raise EdblError(f"{key} does not apply to {what}; leave it out, or use tune=all")
    return {key: _plain(value) for key, value in checked.items()}


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _foreign(key: str) -> EdblError:
    """Return the error for a key of runs that is not for models."""
    if key in OWN:
        return EdblError(f"{key} is not for a model's recipe; it has the setting {OWN[key]}")
    return EdblError(f"{key}: a model has no such setting; it learns what it is given")
