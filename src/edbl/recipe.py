"""The recipe: every value of a run, frozen, checked, saved with the run."""

import inspect
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch

from edbl import config, presets
from edbl.config import option, toml_value
from edbl.data import datasets
from edbl.data.augment import Transform
from edbl.errors import EdblError, command, unknown
from edbl.memory import Budget
from edbl.methods import find_method, methods
from edbl.nets.backbones import BACKBONES
from edbl.rule import RULED, TaskFacts
from edbl.schedule import FirstTask, Optim, Schedule, moved

RECIPE = "recipe.toml"  # in the folder of a run
HOW = ("device", "precision", "graph", "fused", "checkpoint_seconds")  # keys that say how a run computes, not what
COMPLETE = "complete"  # in a file: whether it held every value when it was written
MOST_PAD = 64  # pixels
# Options that are gone, with their last default: complete recipes of before may say it, and it changes nothing.
DROPPED: Mapping[str, object] = {
    "options.adjust_old": True,  # mnemonics
    "options.balance_teacher": "old",  # edbl and its ablations, as the next two
    "options.exemplars_after": "balance",
    "options.factor": "decomposed",
    "options.classifier": "retrain",  # der-net
    "options.form": "bce",  # icarl, lwf-mc
    "options.temperature": 2.0,  # the same
    "options.inner_lr": 0.1,  # mnemonics
    "options.level": "nearest-mean",  # mnemonics
    "options.margin": 0.6,  # podnet
    "options.nca": "released",  # podnet
    "options.norm": "l2",  # wa
    "options.output": "kl",  # cldr
    "options.restart": True,  # joint
    "options.tune_norm": "train",  # podnet
    "options.tune_proxies": "all",  # podnet
}


@dataclass(frozen=True)
class DataSettings:
    """Which images, and what is done to them."""

    name: str = option("digits", "data set, or path of an image folder")
    augment: Literal["crop-flip-trivial", "crop-flip", "crop", "flip", "none"] = option(
        "none", "random changes of training images"
    )
    pad: int = option(4, "pixels of padding for the random crop", least=0, most=MOST_PAD)
    brightness: float = option(0.0, "most by which training images get brighter or darker, as a share", least=0, most=1)
    cutout: int = option(0, "side of a square that is blanked somewhere in each training image", least=0, most=1024)
    mean: tuple[float, ...] = option((0.5,), "mean of each channel, 0 to 1, for normalisation", least=0, most=1)
    std: tuple[float, ...] = option((0.25,), "standard deviation of each channel")
    image_size: int = option(0, "image folders: side of the square images; 0 means 32", least=0, most=1024)
    skip_bad: bool = option(False, "image folders: leave unreadable files out instead of stopping")
    holdout: float = option(
        0.0, "share of training images to evaluate on instead of the test images", least=0, most=0.9
    )

    def check(self, channels: int) -> None:
        """Raise if images of so many channels cannot be normalised."""
        given = len(self.mean), len(self.std)
        if not set(given) <= {1, channels}:
            raise EdblError(f"data.mean and data.std need {channels} values, one per channel, not {given}")

    def transform(self, device: torch.device) -> Transform:
        """Return what happens to images on their way to the network."""
        return Transform.of(self.augment, self.pad, self.mean, self.std, device, self.brightness, self.cutout)


@dataclass(frozen=True)
class StreamSettings:
    """Which classes arrive when."""

    protocol: Literal["base0", "base-half", "base-step", "tasks"] = option("base0", "how classes are split into tasks")
    phases: int = option(5, "number of parts for base0; parts after the first half for base-half", least=1)
    base: int = option(0, "base-step: classes of the first task (0: as many as step)", least=0)
    step: int = option(1, "base-step: classes of each further task", least=1)
    tasks: tuple[tuple[str, ...], ...] = option((), "protocol tasks: the classes of each task, by name or number")
    order: str | tuple[str, ...] = option("natural", "class order: natural, a seed, or all classes in a list")

    @property
    def idle(self) -> set[str]:
        """Keys that mean nothing to the protocol."""
        parts = {"base-step": {"base", "step", "order"}, "tasks": {"tasks"}}.get(self.protocol, {"phases", "order"})
        return {f"stream.{f.name}" for f in fields(self) if f.name not in parts | {"protocol"}}

    @property
    def phased(self) -> bool:
        """Whether ``phases`` says how many tasks there are."""
        return "stream.phases" not in self.idle


@dataclass(frozen=True)
class NetSettings:
    """Which network."""

    backbone: str = option("resnet32", "resnet32, resnet18, small, mlp or given")


@dataclass(frozen=True)
class EvaluationSettings:
    """How accuracy is measured."""

    nme_flips: bool = option(False, "average class means over exemplars and their mirror images, as iCaRL does")


@dataclass(frozen=True)
class _Common:
    """Every setting but the method's own."""

    method: str = option("edbl", "method to run, or path of a .py file with one")
    preset: Literal["default", "tuned", "paper", "quick", "photos", "samples"] = option(
        "default", "where values that are not given come from"
    )
    by_rule: tuple[str, ...] = option((), "settings to which the rule gives a value in each task after the first")
    seed: int = option(0, "drives initialisation, sampling, augmentation and mixing", least=0)
    memory: str = option("total=2000", "exemplars kept: total=K or per_class=k")
    device: Literal["auto", "cpu", "cuda"] = option("auto", "where to compute; auto takes a GPU if there is one")
    precision: Literal["auto", "fp32", "bf16"] = option("auto", "of forward passes in training; auto: bf16 on a GPU")
    graph: bool = option(True, "on a GPU, replay the training step as a CUDA graph")
    fused: bool = option(True, "on a GPU in bf16, use fused kernels for small residual networks")
    checkpoint_seconds: float = option(5.0, "least seconds between checkpoints inside a training phase", least=0)
    data: DataSettings = DataSettings()
    stream: StreamSettings = StreamSettings()
    net: NetSettings = NetSettings()
    optim: Optim = Optim()
    schedule: Schedule = Schedule()
    first: FirstTask = FirstTask()
    evaluation: EvaluationSettings = EvaluationSettings()

    def check(self) -> None:
        """Refuse what can be seen to be wrong without the data."""
        if self.net.backbone not in BACKBONES:
            raise unknown("backbone", self.net.backbone, BACKBONES)
        if not self.data.mean or not self.data.std or min(self.data.std) <= 0:
            raise EdblError("data.mean and data.std need a value for each channel, those of data.std above 0")
        Budget.parse(self.memory)
        for key in self.by_rule:
            if key not in RULED:
                raise unknown("setting in by_rule", key, RULED)
        for what, name in (("folder", self.data.name), ("file", self.method)):
            try:
                name.encode()
            except UnicodeEncodeError as error:
                raise EdblError(f"the {what} name {name!r} is not valid text; rename the {what}") from error


@dataclass(frozen=True)
class Recipe(_Common):
    """Every value of a run. Make one with `Recipe.build` or `Recipe.read`; ``options`` is the method's ``Config``."""

    options: object = None

    @classmethod
    def keys(cls, method: str) -> dict[str, config.Leaf]:
        """Return all settings for a method by dotted key."""
        return config.leaves(_Common) | config.leaves(find_method(method).Config, "options.")

    @classmethod
    def build(cls, method: str = "edbl", data: str = "digits", *, preset: str = "default", **given: object) -> Self:
        """Return the recipe for a method on a data set; ``given`` values win over the preset's.

        Keys with dots are given as ``**{"schedule.epochs": 20}``; leading parts may be left out where that is
        unambiguous, so ``epochs=20`` is an error for two-phase methods and fine for others.
        """
        return cls.of({"method": method, "data.name": data, "preset": preset, **given})

    @classmethod
    def of(cls, *layers: Mapping[str, object], complete: bool = False) -> Self:
        """Return the recipe for values by dotted key, those of later layers winning.

        What is missing comes from preset and data set. With ``complete``, nothing of the first layer was missing when
        it was written; what is missing now is newer, and has its built-in default.
        """
        found = cls.origins(*layers, complete=complete)
        filled = {key: value for key, (value, _) in found.items()}
        kind = find_method(str(filled["method"]))
        common = config.build(_Common, {k: v for k, v in filled.items() if not k.startswith("options.")})
        options = {k: v for k, v in filled.items() if k.startswith("options.")}
        common.check()
        if common.method.endswith(".py"):  # so that the run can go on from anywhere
            common = replace(common, method=str(Path(common.method).resolve()))
        chosen = config.build(kind.Config, options, "options.")
        if missing := [key for key in common.by_rule if key not in filled]:
            raise EdblError(f"by_rule names {missing[0]}, which {common.method} does not have; leave it out")
        return cls(**{f.name: getattr(common, f.name) for f in fields(common)}, options=chosen)

    @classmethod
    def origins(cls, *layers: Mapping[str, object], complete: bool = False) -> dict[str, tuple[object, str]]:
        """Return every value by dotted key, and where it comes from: built in, data set, preset, or given."""
        method = str(next((layer["method"] for layer in reversed(layers) if "method" in layer), "edbl"))
        known, kind = cls.keys(method), find_method(method)
        given = [check_values(layer, known, method) for layer in layers]
        checked = {k: v for layer in given for k, v in layer.items()}
        _refuse_idle(given, complete)
        name = str(checked.get("data.name", known["data.name"].default))
        found = {k: (leaf.default, "built in") for k, leaf in known.items()}
        found |= {k: (v, f"data set {name}") for k, v in datasets.defaults(name).items()}
        usual = {k: v for k, (v, _) in found.items()}
        if not complete:
            theirs = {k for k in known if _declared_by_users(kind.Config, k)}
            paper = config.check(kind.paper, known)
            ours = presets.values(_facts(usual, usual | checked), paper, usual, theirs)
            if "first.task_epochs" in checked:  # the preset's milestones are those of its own epochs
                ours.pop("first.task_milestones", None)
            preset = (usual | checked)["preset"]
            found |= {k: (v, f"preset {preset} ({why})") for k, (v, why) in ours.items()}
            later = moved({k: v for k, (v, _) in found.items()}, checked)
            found |= {k: (v, "moved with the epochs") for k, v in later.items()}
        ruled, origin = cast(tuple[tuple[str, ...], str], found["by_rule"])
        for layer in given:  # what a layer gives is not the rule's to say, unless the layer says so itself
            ruled = cast(Any, layer["by_rule"]) if "by_rule" in layer else tuple(k for k in ruled if k not in layer)
        found |= {k: (v, "given") for k, v in checked.items()}
        by_rule = {k: (found[k][0], "the rule, task by task") for k in ruled if k in found}
        return found | by_rule | {"by_rule": (ruled, "given" if "by_rule" in checked else origin)}

    @classmethod
    def read(cls, path: Path | str, *layers: Mapping[str, object]) -> Self:
        """Read a recipe file; values of ``layers`` win over it.

        The file may leave out what the preset knows, unless it says that it is complete: presets may change, a run that
        was begun may not. With another method than the file's, the preset gives the options that this one has more.
        """
        try:
            tree = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise EdblError(f"cannot read recipe {path}: {error.strerror}") from error
        except ValueError as error:  # also of bytes that are no text, and of numbers with thousands of digits
            raise EdblError(f"recipe {path} is not valid TOML: {error}") from error
        complete = tree.pop(COMPLETE, False)
        if not isinstance(complete, bool):
            raise EdblError(f"recipe {path}: {COMPLETE} is true or false, not {complete!r}")
        file = flat(tree)
        given = {**file, **{key: value for layer in layers for key, value in layer.items()}}
        if complete and given.get("preset") != file.get("preset"):
            raise EdblError(f"recipe {path} is complete, so a preset would change nothing; change single values")
        method = str(given.get("method", "edbl"))
        known = cls.keys(method)
        try:
            if complete:
                file = without_dropped(file, known)
                _refuse_dropped(file, known)
            check_values(file, known, method)
        except EdblError as error:
            raise EdblError(f"recipe {path}: {error}") from error
        return cls.of(file, *layers, complete=complete and given.get("method") == file.get("method"))

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

    def toml(self) -> str:
        """Return the recipe as a TOML file that `read` takes back unchanged."""
        top = [f"{COMPLETE} = true"]
        sections: dict[str, list[str]] = {}
        for key, value in self.values().items():
            section, _, name = key.rpartition(".")
            line = f"{name} = {toml_value(value)}"
            (sections.setdefault(section, []) if section else top).append(line)
        blocks = ["\n".join(top), *(f"[{name}]\n" + "\n".join(lines) for name, lines in sections.items())]
        return "\n\n".join(blocks) + "\n"


def _facts(usual: Mapping[str, object], filled: Mapping[str, Any]) -> presets.Facts:
    """Return what presets ask about a run."""
    data = filled["data.name"]
    classes = datasets.DATASETS[data].classes if data in datasets.DATASETS else 1  # of a folder they are not known yet
    return presets.Facts(
        preset=filled["preset"],
        data=data,
        protocol=filled["stream.protocol"],
        phases=filled["stream.phases"],
        exemplars=sum(Budget.parse(filled["memory"]).quotas(classes)),
        augment=str(usual["data.augment"]),
        kd_scale=str(usual.get("options.kd_scale", "")),
        grows="options.kd_growth" in usual,
    )


def _declared_by_users(options: type, key: str) -> bool:
    """Tell whether an option is one that a user's method declares: whatever its name, our presets know none of them."""
    kinds = [kind for kind in options.__mro__ if not kind.__module__.startswith("edbl.methods.")]
    name = key.removeprefix("options.").partition(".")[0]
    return key.startswith("options.") and any(name in inspect.get_annotations(kind) for kind in kinds)


def check_values(values: Mapping[str, object], known: Mapping[str, config.Leaf], method: str) -> dict[str, object]:
    """Return values by full key, each as its setting's type; an option of other methods is not taken for a typo."""
    for key in values:
        if not config.ends(key, known):
            options = {name: config.leaves(kind.Config, "options.") for name, kind in methods().items()}
            if owners := sorted(name for name, leaves in options.items() if config.ends(key, leaves)):
                raise EdblError(f"unknown key '{key}': it is an option of {', '.join(owners)}, not of {method}")
    return config.check(values, known, command("list", "options", method))


def without_dropped(values: Mapping[str, object], known: Mapping[str, config.Leaf]) -> dict[str, object]:
    """Return values by full key without those of options that are gone, where they have their last default."""
    return {k: v for k, v in values.items() if k in known or k not in DROPPED or v != DROPPED[k]}


def _refuse_dropped(values: Mapping[str, object], known: Mapping[str, config.Leaf]) -> None:
    """Refuse an option that is gone: its last default would have been left out before."""
    for key in values.keys() & DROPPED.keys() - known.keys():
        told, left = toml_value(values[key]), toml_value(DROPPED[key])
        raise EdblError(f"{key} = {told} is no longer to be had, only what was {left}; make the run with an older edbl")


def _refuse_idle(layers: Sequence[Mapping[str, object]], complete: bool) -> None:
    """Refuse a key that means nothing to the protocol, neither to that of its own layer nor to the last one.

    A layer of all keys is one of a recipe: nobody chose them.
    """
    streams = [StreamSettings()]
    for layer in layers:
        streams.append(StreamSettings(cast(Any, layer.get("stream.protocol", streams[-1].protocol))))
    every = config.leaves(StreamSettings, "stream.").keys()
    for layer, stream in list(zip(layers, streams[1:], strict=True))[complete:]:
        if not every <= layer.keys() and (idle := sorted(layer.keys() & stream.idle & streams[-1].idle)):
            raise EdblError(f"{idle[0]} means nothing to protocol {streams[-1].protocol}; leave it out")


def shipped_recipes() -> dict[str, Path]:
    """Return the recipe files that come with the package, by name."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "recipes").glob("*.toml"))}


def find_recipe(name: str) -> Path:
    """Return the file of a recipe: a path, or the name of one that comes with the package."""
    if os.sep in name or name.endswith(".toml"):
        return Path(name)
    if name not in shipped_recipes():
        raise unknown("recipe", name, shipped_recipes())
    return shipped_recipes()[name]


def flat(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return the values of nested tables by dotted key."""
    values: dict[str, object] = {}
    for key, value in tree.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return values
