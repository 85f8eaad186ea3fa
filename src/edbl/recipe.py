"""The recipe: every value of a run, frozen, checked, saved with the run: a training, its data set and its stream."""

import inspect
import os
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast

from edbl import config, presets, users
from edbl.config import option, toml_value
from edbl.data import datasets
from edbl.errors import EdblError, unknown
from edbl.memory import Budget
from edbl.methods import as_method
from edbl.methods.base import Method
from edbl.store import MOST_TEXT, parse_toml, read_file, read_toml
from edbl.training import Common, ImageSettings, Origins, Training, Values, check_text, check_values

RECIPE = "recipe.toml"  # in the folder of a run
HOW = ("device", "precision", "graph", "fused", "checkpoint_seconds", "data.on")  # keys that say how, not what
SPLITTING = frozenset(f"stream.{name}" for name in ("tasks", "base", "step", "order", "given"))  # by protocol
WITHOUT = {"stream.tail": "imbalance", "stream.disjoint": "blur"}  # keys that mean nothing without another
MOST_KEYS = 1000  # of a recipe
COMPLETE = "complete"  # in a file: whether it held every value when it was written
# Settings that are gone, with their last default: complete recipes of before may say it, and it changes nothing.
DROPPED: Mapping[str, object] = {
    "optim.steps": 0,
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
    "options.kd_scale": "none",  # eeil, lwf, wa
    "options.ratio_per": "pass",  # remix, remix-kd
    "eeil options.balance_teacher": "train",  # where it was another one than edbl's
}


@dataclass(frozen=True)
class DataSettings(ImageSettings):
    """Which images, and what is done to them."""

    name: str = option("digits", "data set, path of an image folder, given, or code, FILE.py:NAME")
    image_size: int = option(0, "image folders: side of the square images; 0 means 32", least=0, most=1024)
    skip_bad: bool = option(False, "image folders: leave unreadable files out instead of stopping")
    on: Literal["auto", "device", "host", "disk"] = option(
        "auto", "where images are during a run: device, host, disk (data sets with a store), or auto, by size"
    )
    holdout: float = option(0.0, "share of training images that stand in for the test images", least=0, most=0.9)


@dataclass(frozen=True)
class StreamSettings:
    """Which classes arrive when."""

    protocol: Literal["base0", "base-half", "base-step", "tasks", "own"] = option(
        "base0", "how classes are split into tasks"
    )
    tasks: int | tuple[tuple[str, ...], ...] = option(
        5,
        "base0: number of tasks; base-half: after the first; tasks: the classes of each",
        least=1,
    )
    base: int = option(0, "base-step: classes of the first task (0: as many as step)", least=0)
    step: int = option(1, "base-step: classes of each further task", least=1)
    order: str | tuple[str, ...] = option(
        "natural", "class order: natural, a seed, seed (that of the run), or all classes in a list"
    )
    given: str = option("", "protocol own: what gives the images of each task, FILE.py:NAME")
    shots: int = option(0, "training images of each class in tasks after the first; 0 means all", least=0)
    imbalance: float = option(
        1.0, "long tail: share of its training images that the rarest class keeps", least=1e-6, most=1
    )
    tail: Literal["ordered", "shuffled"] = option(
        "ordered", "long tail: classes get rarer as they arrive (ordered), or by seed (shuffled)"
    )
    blur: float = option(0.0, "share of each class's training images that comes in other tasks", least=0, most=1)
    disjoint: float = option(0.0, "blur: share of each task's classes that come in no other", least=0, most=1)

    @property
    def idle(self) -> frozenset[str]:
        """Keys that do not apply to the protocol, or not without another."""
        own = {"base-step": {"base", "step", "order"}, "tasks": {"tasks"}, "own": {"given"}}
        parts = own.get(self.protocol, {"tasks", "order"})
        unused = {key for key, other in WITHOUT.items() if getattr(self, other) == getattr(StreamSettings, other)}
        return SPLITTING - {f"stream.{name}" for name in parts} | unused

    @property
    def number(self) -> int:
        """How many tasks there are, or after the first half, where the protocol leaves that open; else 0."""
        return self.tasks if isinstance(self.tasks, int) and "stream.tasks" not in self.idle else 0

    @property
    def lists(self) -> tuple[tuple[str, ...], ...]:
        """The classes of each task, where they are listed."""
        return () if isinstance(self.tasks, int) else self.tasks

    def check(self) -> None:
        """Refuse tasks that the protocol has no use for."""
        if self.protocol == "tasks" and not (self.lists and all(self.lists)):
            raise EdblError("protocol tasks needs stream.tasks to list the tasks, with at least one class each")
        if self.protocol in ("base0", "base-half") and self.lists:
            raise EdblError(f"protocol {self.protocol} needs a number as stream.tasks; protocol tasks lists classes")


@dataclass(frozen=True)
class CommonOfRuns(Common):
    """Every setting of a run but the method's own."""

    data: DataSettings = DataSettings()
    stream: StreamSettings = StreamSettings()

    def check(self) -> None:
        """Refuse what can be seen to be wrong without the data."""
        super().check()
        self.stream.check()
        check_text("folder", self.data.name)
        if self.stream.given:
            users.check(users.STREAM, self.stream.given, ())

    def absolute(self) -> Self:
        """Return the settings with whole paths of files with users' code."""
        data = replace(self.data, name=users.absolute(self.data.name))
        stream = replace(self.stream, given=users.absolute(self.stream.given))
        return replace(super().absolute(), data=data, stream=stream)


OF_RUNS = config.leaves(CommonOfRuns).keys() - config.leaves(Common).keys()  # what a training alone does not have


@dataclass(frozen=True)
class Recipe(CommonOfRuns, Training):
    """Every value of a run. Make one with `Recipe.build` or `Recipe.read`; ``options`` is the method's ``Config``."""

    kind: ClassVar[type[Common]] = CommonOfRuns

    @classmethod
    def build(
        cls, method: str | type[Method] = "edbl", data: str = "digits", *, preset: str = "default", **given: object
    ) -> Self:
        """Return the recipe for a method on a data set; ``given`` values win over the preset's.

        Keys with dots are given as ``**{"schedule.epochs": 20}``; leading parts may be left out where that is
        unambiguous, so ``epochs=20`` is an error for two-phase methods and fine for others. ``data="given"`` is for
        data that `edbl.run` will be given. The method may be a class.
        """
        if inspect.isclass(method):
            method = given_method(method)
        return cls.of({"method": method, "data.name": data, "preset": preset, **given})

    @classmethod
    def check_layers(cls, layers: Sequence[Values], complete: bool) -> None:
        """Refuse keys that do not apply to the protocol."""
        super().check_layers(layers, complete)
        _refuse_idle(layers, complete)

    @classmethod
    def of_data(cls, found: Origins, given: Values) -> Origins:
        """Return the facts of the data set."""
        name = str(given.get("data.name", found["data.name"][0]))
        return {k: (v, f"data set {name}") for k, v in datasets.defaults(name).items()}

    @classmethod
    def of_net(cls, values: Values) -> Origins:
        """Return what a pretrained backbone expects of images; those of a folder are read as large as that."""
        found = super().of_net(values)
        if not datasets.is_folder(str(values["data.name"])):
            found.pop("data.image_size", None)
        return found

    @classmethod
    def facts(cls, found: Origins, given: Values) -> presets.Facts:
        """Return what presets ask for."""
        name = str(given.get("data.name", found["data.name"][0]))
        classes, data = 1, presets.FOLDER if datasets.is_folder(name) else presets.OTHER  # of which is not known yet
        if name in datasets.DATASETS:
            classes, data = datasets.DATASETS[name].classes, name
        values: dict[str, Any] = {k: v for k, (v, _) in found.items()} | presets.usual(data) | dict(given)
        return replace(
            super().facts(found, given),
            data=data,
            protocol=values["stream.protocol"],
            tasks=values["stream.tasks"],
            exemplars=sum(Budget.parse(values["memory"]).quotas(classes)),
        )

    @classmethod
    def read(cls, path: Path | str, *layers: Mapping[str, object]) -> Self:
        """Read a recipe file; values of ``layers`` win over it.

        The file may leave out what the preset has, unless it says that it is complete: presets may change, a started
        run may not. With another method than the file's, the preset gives the options that this one has more.
        A ``.py`` file that it names runs only if a layer names it too, or somebody did before.
        """
        try:
            tree = read_toml(Path(path))
        except OSError as error:
            raise EdblError(f"cannot read recipe {path}: {error.strerror}") from error
        except ValueError as error:  # also of bytes that are no text, and of numbers with thousands of digits
            raise EdblError(f"recipe {path} is not valid TOML: {error}") from error
        complete = tree.pop(COMPLETE, False)
        if not isinstance(complete, bool):
            raise EdblError(f"recipe {path}: {COMPLETE} is true or false, not {complete!r}")
        file = flat(tree)
        if len(file) > MOST_KEYS:
            raise EdblError(f"recipe {path} has {len(file):,} keys, which is more than there are")
        given = {**file, **{key: value for layer in layers for key, value in layer.items()}}
        if complete and given.get("preset") != file.get("preset"):
            raise EdblError(f"recipe {path} is complete, so a preset would change nothing; change single values")
        method = str(given.get("method", "edbl"))
        over = [f".{key}" for layer in layers for key in layer]
        users.refuse_unnamed({k: v for k, v in file.items() if not any(f".{k}".endswith(key) for key in over)}, path)
        known = cls.keys(method)
        try:
            if complete:
                file = without_dropped(file, known)
                _refuse_dropped(file, known.keys())
            check_values(file, known, method)
        except EdblError as error:
            raise EdblError(f"recipe {path}: {error}") from error
        return cls.of(file, *layers, complete=complete and given.get("method") == file.get("method"))

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


def given_method(kind: object) -> str:
    """Return the name in recipes of a method that is given as a class."""
    found = as_method(kind)
    return users.give(users.METHOD, found.name, found)


def without_dropped(values: Mapping[str, object], known: Collection[str]) -> dict[str, object]:
    """Return values by full key without those of settings that are gone, where they have their last default."""
    last = _last_defaults(values)
    return {k: v for k, v in values.items() if k in known or k not in last or v != last[k]}


def _last_defaults(values: Mapping[str, object]) -> dict[str, object]:
    """Return the last defaults of settings that are gone, of the method that values name."""
    own = f"{values.get('method')} "
    return {**DROPPED, **{k.removeprefix(own): v for k, v in DROPPED.items() if k.startswith(own)}}


def _refuse_dropped(values: Mapping[str, object], known: Set[str]) -> None:
    """Refuse a setting that is gone: its last default would have been left out before."""
    last = _last_defaults(values)
    for key in values.keys() & last.keys() - known:
        told, left = toml_value(values[key]), toml_value(last[key])
        raise EdblError(f"{key} = {told} is no longer to be had, only what was {left}; make the run with an older edbl")


def _refuse_idle(layers: Sequence[Mapping[str, object]], complete: bool) -> None:
    """Refuse a key that does not apply to the stream, neither to that of its own layer nor to the last one.

    A layer of all keys is one of a recipe: nobody chose them.
    """
    streams = [StreamSettings()]
    for layer in layers:
        told = {name: layer[f"stream.{name}"] for name in ("protocol", *WITHOUT.values()) if f"stream.{name}" in layer}
        streams.append(replace(streams[-1], **cast(Any, told)))
    for layer, stream in list(zip(layers, streams[1:], strict=True))[complete:]:
        every = layer.keys() >= SPLITTING - {"stream.given"}  # which older recipes lack
        if not every and (idle := sorted(layer.keys() & stream.idle & streams[-1].idle)):
            other = WITHOUT.get(idle[0])
            why = f"without stream.{other}" if other else f"to protocol {streams[-1].protocol}"
            raise EdblError(f"{idle[0]} does not apply {why}; leave it out")


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


def toml_of(text: str) -> object:
    """Return what a value says in TOML; a `ValueError` says why it is none."""
    return parse_toml(f"value = {text}")["value"]


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file, such as one of a class order."""
    return read_file(path, MOST_TEXT).decode().splitlines()


def flat(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return the values of nested tables by dotted key."""
    values: dict[str, object] = {}
    for key, value in tree.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return values
