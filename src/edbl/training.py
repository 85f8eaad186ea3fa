"""Training: every value that a learner reads, and where it comes from. A recipe adds the data set and the stream."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self, cast

import torch

from edbl import config, presets, users
from edbl.config import option
from edbl.data import devices
from edbl.data.augment import Transform
from edbl.errors import EdblError, command, unknown
from edbl.memory import Budget
from edbl.methods import find_method, methods
from edbl.methods.base import Method
from edbl.nets import named
from edbl.rule import RULED, TaskFacts
from edbl.schedule import FirstTask, Optim, Schedule

MOST_PAD = 64  # pixels

Values = Mapping[str, object]  # by dotted key
Origins = dict[str, tuple[object, str]]  # values by dotted key, each with where it comes from


@dataclass(frozen=True)
class ImageSettings:
    """What is done to images on their way to the network."""

    augment: Literal["crop-flip-trivial", "crop-flip-auto", "crop-flip", "crop", "flip", "resize-flip", "none"] = (
        option("none", "random changes of training images (A17)")
    )
    view: int = option(
        0,
        "side of what the network sees: the centre, or by resize-flip a part; 0: all",
        least=0,
        most=1024,
    )
    pad: int = option(4, "pixels of zeros around an image for the random crop", least=0, most=MOST_PAD)
    brightness: float = option(0.0, "most by which training images get brighter or darker, as a share", least=0, most=1)
    cutout: int = option(0, "side of a square that is blanked somewhere in each training image", least=0, most=1024)
    mean: tuple[float, ...] = option((0.5,), "mean of each channel, 0 to 1, or one for all", least=0, most=1)
    std: tuple[float, ...] = option((0.25,), "standard deviation of each channel, or one for all")

    def check(self, channels: int) -> None:
        """Raise if images of so many channels cannot be normalised."""
        given = len(self.mean), len(self.std)
        if not set(given) <= {1, channels}:
            raise EdblError(f"data.mean and data.std need {channels} values, one per channel, not {given}")

    def transform(self, device: torch.device) -> Transform:
        """Return what happens to images on their way to the network."""
        return Transform.of(
            self.augment, self.pad, self.mean, self.std, device, self.brightness, self.cutout, self.view
        )


@dataclass(frozen=True)
class NetSettings:
    """Which network."""

    backbone: str = option(
        "resnet32",
        "resnet32, resnet18, small, mlp, given, efficientnet-lite0, -lite2, timm:NAME, or code, FILE.py:NAME",
    )
    image_size: int = option(
        0, "side to which images are scaled before the network; 0: as they are", least=0, most=1024
    )
    frozen: bool = option(False, "the backbone keeps its weights and statistics, and the head alone learns")


@dataclass(frozen=True)
class EvaluationSettings:
    """How accuracy is measured."""

    nme_flips: bool = option(False, "class means over exemplars and their mirror images, as iCaRL does (A18)")
    task_aware: bool = option(False, "also measure accuracy among the classes of each image's own task")
    every: int = option(0, "also measure accuracy after so many epochs within each phase; 0 means never", least=0)


@dataclass(frozen=True)
class Common:
    """Every setting of a training but the method's own."""

    method: str = option("edbl", "method to run, or path of a .py file with one")
    preset: Literal[
        "default", "tuned", "paper", "quick", "photos-frozen", "photos-tuned", "photos-scratch", "samples"
    ] = option("default", "where values come from that are not given")
    by_rule: tuple[str, ...] = option((), "settings to which the rule gives a value in each task after the first")
    seed: int = option(0, "seed of all random choices, and of the class order if that is seed", least=0, most=2**63)
    memory: str = option("total=2000", "exemplars kept: total=K, per_class=k or none (A15)")
    device: str = option(
        "auto", "where to compute: cpu, cuda, cuda:1, mps, xpu, or auto, a GPU of CUDA if there is one"
    )
    precision: Literal["auto", "fp32", "bf16"] = option(
        "auto", "of forward passes in training: fp32, bf16, or auto, which is bf16 on a GPU that computes it"
    )
    graph: bool = option(True, "on a GPU, replay the training step as a CUDA graph")
    fused: bool = option(True, "on a GPU in bf16, use fused kernels for small residual networks")
    checkpoint_seconds: float = option(5.0, "least seconds between checkpoints inside a training phase", least=0)
    data: ImageSettings = ImageSettings()
    net: NetSettings = NetSettings()
    optim: Optim = Optim()
    schedule: Schedule = Schedule()
    first: FirstTask = FirstTask()
    evaluation: EvaluationSettings = EvaluationSettings()

    def check(self) -> None:
        """Refuse what can be seen to be wrong without the data."""
        named.check(self.net.backbone)
        devices.check(self.device)
        if not self.data.mean or not self.data.std or min(self.data.std) <= 0:
            raise EdblError("data.mean and data.std need a value for each channel, those of data.std above 0")
        for key in self.by_rule:
            if key not in RULED:
                raise unknown("setting in by_rule", key, RULED)
        check_text("file", self.method)
        check_text("file", self.net.backbone)

    def absolute(self) -> Self:
        """Return the settings with whole paths of files with users' code, so that a run can go on from anywhere."""
        net = replace(self.net, backbone=users.absolute(self.net.backbone))
        return replace(self, method=users.absolute(self.method), net=net)


@dataclass(frozen=True)
class Training(Common):
    """Every value that a learner reads. Make one with `Training.of`; ``options`` is the method's ``Config``."""

    kind: ClassVar[type[Common]] = Common  # all of it but the options

    options: object = None

    @classmethod
    def keys(cls, method: str) -> dict[str, config.Leaf]:
        """Return all settings for a method by dotted key."""
        return cls._keys(find_method(method))

    @classmethod
    def _keys(cls, method: type[Method]) -> dict[str, config.Leaf]:
        return {**config.leaves(cast(type, cls.kind)), **config.leaves(method.Config, "options.")}

    @classmethod
    def checked(cls, method: str, given: Values) -> dict[str, object]:
        """Return some values for a method by full key, each as its setting's type."""
        return check_values(given, cls.keys(method), method)

    @classmethod
    def of(cls, *layers: Values, complete: bool = False) -> Self:
        """Return the training for values by dotted key, those of later layers winning.

        What is missing comes from the preset. With ``complete``, nothing of the first layer was missing when it was
        written; what is missing now is newer, and has its built-in default.
        """
        kind = find_method(_method_of(layers))
        return cls.made(kind, {key: value for key, (value, _) in cls._origins(kind, layers, complete).items()})

    @classmethod
    def made(cls, kind: type[Method], filled: Values) -> Self:
        """Return the training by a method for values by full key; what is missing has its built-in default."""
        common = config.build(cls.kind, {k: v for k, v in filled.items() if not k.startswith("options.")})
        common.check()
        if missing := [key for key in common.by_rule if key not in cls._keys(kind)]:
            raise EdblError(f"by_rule names {missing[0]}, which {common.method} does not have; leave it out")
        common = common.absolute()
        users.trust(config.flatten(common))
        if Budget.parse(common.memory).kind == "none" and kind.keeps in ("exemplars", "reservoir"):
            able = sorted(name for name, one in methods().items() if one.keeps in ("none", "all images"))
            raise EdblError(
                f"{kind.name} learns from exemplars, so memory must not be none; of {', '.join(able)} it may be"
            )
        own = {k: v for k, v in filled.items() if k.startswith("options.")}
        options = config.build(kind.Config, own, "options.")
        return cls(**{f.name: getattr(common, f.name) for f in fields(common)}, options=options)

    @classmethod
    def origins(cls, *layers: Values, complete: bool = False) -> Origins:
        """Return every value by dotted key, and where it comes from: built in, data set, preset, or given."""
        return cls._origins(find_method(_method_of(layers)), layers, complete)

    @classmethod
    def _origins(cls, kind: type[Method], layers: Sequence[Values], complete: bool) -> Origins:
        known = cls._keys(kind)
        given = [check_values(layer, known, _method_of(layers)) for layer in layers]
        cls.check_layers(given, complete)
        checked = {k: v for layer in given for k, v in layer.items()}
        found: Origins = {k: (leaf.default, "built in") for k, leaf in known.items()}
        found |= cls.of_data(found, checked)
        if not complete:
            found |= _of_preset(kind, found, checked, cls.facts(found, checked))
            found |= cls.of_net({k: v for k, (v, _) in found.items()} | checked)
        ruled, origin = cast(tuple[tuple[str, ...], str], found["by_rule"])
        for layer in given:  # what a layer gives is not the rule's to say, unless the layer says so itself
            ruled = cast(Any, layer["by_rule"]) if "by_rule" in layer else tuple(k for k in ruled if k not in layer)
        found |= {k: (v, "given") for k, v in checked.items()}
        by_rule = {k: (found[k][0], "the rule, task by task") for k in ruled if k in found}
        return found | by_rule | {"by_rule": (ruled, "given" if "by_rule" in checked else origin)}

    @classmethod
    def check_layers(cls, layers: Sequence[Values], complete: bool) -> None:
        """Refuse what layers of values should not say; they have the types of their settings.

        A layer of all keys is one of a recipe: nobody chose them.
        """
        kind = next((layer["optim.kind"] for layer in reversed(layers) if "optim.kind" in layer), "sgd")
        every = {f"optim.{field.name}" for field in fields(Optim)}
        chosen = {key for layer in layers[complete:] if not layer.keys() >= every for key in layer}
        if kind != "sgd" and (idle := sorted(chosen & {"optim.momentum", "optim.nesterov"})):
            raise EdblError(f"{idle[0]} does not apply to optim.kind {kind}; leave it out")

    @classmethod
    def of_data(cls, found: Origins, given: Values) -> Origins:
        """Return the facts of the data set; a training has none."""
        return {}

    @classmethod
    def of_net(cls, values: Values) -> Origins:
        """Return what a pretrained backbone expects of images."""
        name = str(values["net.backbone"])
        return {k: (v, f"backbone {name}") for k, v in named.defaults(name).items() if k in values}

    @classmethod
    def facts(cls, found: Origins, given: Values) -> presets.Facts:
        """Return what presets ask for."""
        values: dict[str, Any] = {k: v for k, (v, _) in found.items()}
        return presets.Facts(
            preset=str(given.get("preset", values["preset"])),
            augment=values["data.augment"],
            kd_scale=values.get("options.kd_scale", ""),
            grows="options.kd_growth" in values,
        )

    def ruled(self, task: TaskFacts) -> Self:
        """Return the recipe with the values that the rule gives for a task after the first."""
        given = {key: RULED[key](task, self.optim.batch) for key in self.by_rule}
        schedule = self.schedule.scaled(int(given.get("schedule.epochs", self.schedule.epochs)))
        schedule = replace(schedule, lr=given.get("schedule.lr", schedule.lr))
        own = {k.removeprefix("options."): v for k, v in given.items() if k.startswith("options.")}
        return replace(self, schedule=schedule, options=replace(cast(Any, self.options), **own))

    def values(self) -> dict[str, object]:
        """Return every value by dotted key."""
        return config.flatten(self)


def _method_of(layers: Sequence[Values]) -> str:
    _refuse_objects(layers)
    return str(next((layer["method"] for layer in reversed(layers) if "method" in layer), "edbl"))


def _of_preset(method: type[Method], found: Origins, given: Values, facts: presets.Facts) -> Origins:
    """Return the values of the preset, which knows none of the options that a user's own method declares."""
    usual = {k: v for k, (v, _) in found.items()}
    theirs = {k for k in usual if _declared_by_users(method.Config, k)}
    paper = config.check(method.paper, Training._keys(method)) if facts.preset == "paper" else {}
    return presets.values(replace(facts, keeps=method.keeps), paper, usual, theirs, given)


def _declared_by_users(options: type, key: str) -> bool:
    """Tell whether an option is one that a user's method declares: whatever its name, our presets know none of them."""
    kinds = [kind for kind in options.__mro__ if not kind.__module__.startswith("edbl.methods.")]
    name = key.removeprefix("options.").partition(".")[0]
    return key.startswith("options.") and any(name in inspect.get_annotations(kind) for kind in kinds)


def check_values(values: Mapping[str, object], known: Mapping[str, config.Leaf], method: str) -> dict[str, object]:
    """Return values by full key, each as its setting's type; an option of other methods is not taken for a typo."""
    try:
        return config.check(_of_today(values), known)
    except config.UnknownKey as error:
        key = error.key
        options = {name: config.leaves(kind.Config, "options.") for name, kind in methods().items()}
        if owners := sorted(name for name, leaves in options.items() if config.ends(key, leaves)):
            told = f"unknown key '{key}': it is an option of {', '.join(owners)}, not of {method}"
            raise config.UnknownKey(key, told) from error
        raise config.unknown_key(key, known, command("list", "options", method)) from error


def _of_today(values: Values) -> Values:
    """Return values with the key of today for the number of tasks, which was a list beside `stream.phases`."""
    old, *more = [key for key in ("stream.phases", "phases") if key in values] or [""]
    listed = values.get("stream.tasks", values.get("tasks", ()))
    if more or (old and not isinstance(listed, list | tuple)):
        raise EdblError(f"stream.tasks is given twice, once as '{old}'")
    renamed = {"stream.tasks": listed or values[old]} if old else {}
    return {k: v for k, v in values.items() if k not in (old, *renamed)} | renamed


def _refuse_objects(layers: Sequence[Values]) -> None:
    """Refuse an object where a name should be: it may be given elsewhere."""
    for key, value in ((key, value) for layer in layers for key, value in layer.items() if key in users.KEYS):
        if not isinstance(value, str | int):
            raise EdblError(
                f"{key} is {config.shown(value)}; give it to `edbl.run(recipe, out, {users.KEYS[key]}=...)`"
            )


def check_text(what: str, name: str) -> None:
    """Refuse the name of a file or folder that cannot be written down."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise EdblError(f"the {what} name {name!r} is not valid text; rename the {what}") from error
