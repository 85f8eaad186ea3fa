"""Presets: the values that a user does not give, as one table of rows, later ones winning.

``default`` is one rule for every stream (`edbl.rule`), and one set of values beside it. ``tuned`` has the values that
were chosen for each stream of CIFAR, so that the records in ``results/`` can be made again. ``paper`` uses what the
EDBL paper prints (Appendix C, Table 6) and where it prints nothing the literal equation; a method from another
publication adds its own values (`Method.paper`). ``quick`` is a few epochs, for trying things. ``photos-...`` and
``samples`` are of models of one's own photos and of the classifier for scikit-learn.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from edbl.config import flatten, toml_value
from edbl.rule import RULED
from edbl.schedule import Schedule

BY_RULE = "by_rule"
MOST = "most_epochs"  # not a setting: further phases of a method have at most so many epochs


class Pace(NamedTuple):
    """How long a network learns an update."""

    least: int  # epochs
    most: int  # epochs, for the sake of `steps`
    steps: int  # updates that an increment of few images should come to


@dataclass(frozen=True)
class Facts:
    """What a row may ask for; a training without a data set has no facts of one."""

    preset: str
    augment: str  # changes of training images that leave their class as it is
    kd_scale: str  # how the method's distillation is multiplied if nobody says otherwise
    grows: bool  # whether the method's weight of distillation may grow with the classes
    keeps: str = "exemplars"  # of old images
    data: str = ""
    protocol: str = ""
    tasks: object = 0
    exemplars: int = 0  # of all classes, after the last task


@dataclass(frozen=True)
class Row:
    """Values by dotted key, why they are so, and when: a fact, or one of several."""

    why: str
    values: Mapping[str, object]
    when: Mapping[str, object] = field(default_factory=dict)
    exemplars_below: int | None = None

    def suits(self, facts: Facts) -> bool:
        """Tell whether the row is for these facts."""
        fits = all(_is_among(getattr(facts, k), v) for k, v in self.when.items())
        return fits and (self.exemplars_below is None or facts.exemplars < self.exemplars_below)


def _is_among(value: object, wanted: object) -> bool:
    return value in (wanted if isinstance(wanted, tuple) else (wanted,))


def _schedules(train: Schedule, balance: Schedule) -> dict[str, object]:
    return flatten(train, "schedule.") | flatten(balance, "options.balance.")


CIFAR = ("cifar10", "cifar100")
IMAGENET = ("imagenet100", "imagenet")
CIFAR_100_BLOCKS = tuple(f"cifar100-block{number}" for number in range(5))
CIFAR_10_PARTS = tuple(f"cifar10-part{number}" for number in range(3))
FOLDER, OTHER = "folder", "other"  # data that are none of ours
TABLE_6 = (  # data set, protocol, tasks, gamma, alpha
    ("cifar10", "base0", 2, 10.0, 1e-6),
    ("cifar10", "base0", 5, 100.0, 5e-6),
    ("cifar100", "base0", 2, 100.0, 5e-6),
    ("cifar100", "base0", 5, 300.0, 5e-6),
    ("cifar100", "base0", 10, 100.0, 5e-6),
    ("cifar100", "base-half", 5, 300.0, 5e-6),
    ("cifar100", "base-half", 10, 100.0, 5e-6),
    ("tiny-imagenet", "base-half", 5, 10.0, 1e-6),
    ("tiny-imagenet", "base-half", 10, 10.0, 5e-6),
)
# Chosen on held-out training images of CIFAR-100 in 5 tasks (docs/calibration.md); milestones are for those who set
# shape=steps.
CALIBRATED: Mapping[str, object] = {
    "first.task_epochs": 300,
    "first.task_milestones": (120, 200, 260),
    "first.task_lr": 0.1,
    "optim.weight_decay": 1e-3,
    "options.gamma": 100.0,
    "options.alpha": 5e-6,
    "options.max_rounds": 1,
    "options.clean_norm": True,
    "options.balance_layers": "head",
    "options.balance_norm": "eval",
}
BALANCED = Schedule(40, 0.01, (12, 24, 32), shape="cosine")
FEW_IMAGES: Mapping[str, object] = {"schedule.epochs": 30, MOST: 20, "optim.batch": 32, "options.min_old": 8}
OF_RUNS = ("default", "tuned", "paper", "quick")  # others are of models, which may learn known classes again
PACES = {  # by preset
    "photos-frozen": Pace(15, 100, 300),
    "photos-tuned": Pace(10, 60, 300),
    "photos-scratch": Pace(15, 60, 1000),
}
PHOTOS = tuple(PACES)
UNIT_RATE = 6.0  # learning rate for features of length 1
ON_CIFAR: Mapping[str, object] = {"preset": "tuned", "data": CIFAR}
CIFAR_10_IN_2: Mapping[str, object] = {
    "preset": "tuned",
    "data": "cifar10",
    "protocol": "base0",
    "tasks": 2,
}

# A data set has the built-in network, exemplars and number of tasks unless a row says so.
USUAL = (
    Row("usual for the data", {"memory": "total=200"}, {"data": ("cifar10", "fashion-mnist")}),
    Row("usual for the data", {"net.backbone": "resnet18", "memory": "per_class=20"}, {"data": "tiny-imagenet"}),
    Row("usual for the data", {"net.backbone": "resnet18-large", "stream.tasks": 10}, {"data": IMAGENET}),
    Row("usual for the data", {"memory": "total=20000"}, {"data": "imagenet"}),
    Row("usual for the data", {"net.backbone": "small", "memory": "total=50"}, {"data": "digits"}),
    Row("usual for the data", {"net.backbone": "small", "memory": "total=400"}, {"data": CIFAR_100_BLOCKS}),
    Row("usual for the data", {"net.backbone": "small", "memory": "total=100"}, {"data": CIFAR_10_PARTS}),
    Row("usual for the data", {"memory": "per_class=20"}, {"data": (FOLDER, OTHER)}),
    Row("usual for the data", {"stream.tasks": 2}, {"data": FOLDER}),
)

ROWS = (
    *USUAL,
    Row("usual", {"options.gamma": 100.0, "options.alpha": 5e-6}),
    *(
        Row("Table 6", {"options.gamma": gamma, "options.alpha": alpha}, {"data": d, "protocol": p, "tasks": n})
        for d, p, n, gamma, alpha in TABLE_6
    ),
    Row("Section 5.1", {"memory": "per_class=20"}, {"protocol": "base-half"}),
    Row("learns from no exemplars", {"memory": "none"}, {"keeps": "none", "preset": OF_RUNS}),
    Row("Appendix C", _schedules(Schedule(150, 0.1, (60, 100, 130)), Schedule(100, 0.01, (30, 60, 80)))),
    Row(
        "Appendix C",
        _schedules(Schedule(250, 0.1, (75, 125, 175, 225)), Schedule(150, 0.01, (60, 100, 130))),
        {"data": "tiny-imagenet"},
    ),
    Row(
        "as printed",
        {
            "optim.nesterov": False,
            "optim.warmup": 0,
            "optim.weight_decay": 2e-4,
            "options.counts": "raw",
            "options.kd_scale": "none",
            "options.max_rounds": 0,
            "options.factor_over": "all",
            "options.weight_sum": "one",
        },
        {"preset": "paper"},
    ),
    Row(
        "a hundred times fewer images than CIFAR",
        FEW_IMAGES,
        {"preset": ("tuned", "quick"), "data": "digits"},
    ),
    Row(
        "photos, the backbone from scratch",
        {**_schedules(Schedule(60, 0.1, (), shape="cosine"), Schedule(30, 0.01, (), shape="cosine"))}
        | {"data.augment": "crop-flip", "optim.batch": 32, "optim.warmup": 2, "options.max_rounds": 1},
        {"preset": PHOTOS},
    ),
    Row(
        "for features of length 1",
        {"schedule.lr": UNIT_RATE, "options.balance.lr": 2.0, "optim.batch": 64, "options.max_rounds": 8},
        {"preset": "photos-frozen"},
    ),
    Row(
        "a backbone that is good already, and so are its statistics; at a tenth of the rate it collapses at times",
        {"schedule.lr": 0.02, "options.balance.lr": 0.007, "optim.warmup": 1, "options.max_rounds": 2}
        | {"optim.backbone_lr": 0.01, "optim.fixed_norm": True},
        {"preset": "photos-tuned"},
    ),
    Row("few images, whatever they are", {**FEW_IMAGES, "data.augment": "crop"}, {"preset": "samples"}),
    Row(
        "for trying things",
        {"schedule.epochs": 6, MOST: 4, "optim.warmup": 1},
        {"preset": "quick"},
    ),
    Row(
        "one set for all data",
        {**CALIBRATED, **_schedules(Schedule(120, 0.03, (48, 80, 104), shape="cosine"), BALANCED)},
        {"preset": "default"},
    ),
    Row(
        "photographs",
        {"data.augment": "crop-flip-trivial"},
        {"preset": "default", "augment": ("crop-flip", "flip")},
    ),
    Row("the rule", {BY_RULE: ("schedule.lr", "schedule.epochs", "options.min_old")}, {"preset": "default"}),
    Row("the rule", {BY_RULE: tuple(RULED)}, {"preset": "default", "grows": True}),
    Row(
        "calibration: CIFAR-100 in 5 tasks",
        {
            **CALIBRATED,
            **_schedules(Schedule(120, 0.1, (48, 80, 104), shape="cosine"), BALANCED),
            "data.augment": "crop-flip-trivial",
        },
        ON_CIFAR,
    ),
    Row(
        "calibration: few exemplars must not be learnt too often",
        {"options.min_old": 1},
        ON_CIFAR,
        exemplars_below=2000,
    ),
    Row(
        "calibration: nor do few exemplars bring back what a higher rate loses",
        {"schedule.lr": 0.03},
        {"preset": "tuned", "data": "cifar100"},
        exemplars_below=2000,
    ),
    Row(
        "calibration: many new images in one task",
        {
            "schedule.epochs": 40,
            "schedule.lr": 0.01,
            "options.gamma": 1000.0,
            "options.reading": "epoch",
            "options.balance.lr": 0.03,
        },
        CIFAR_10_IN_2,
    ),
    Row(
        "calibration: many new images in one task",
        {"options.temperature": 4.0, "options.kd_weight": 2.0},
        {**CIFAR_10_IN_2, "kd_scale": "t2"},  # others have temperatures of their own
    ),
    Row(
        "calibration: few new classes beside many old ones",
        {"schedule.lr": 0.01, "options.kd_growth": 1.0},
        {**ON_CIFAR, "protocol": "base-half"},
    ),
)


def usual(data: str) -> dict[str, object]:
    """Return the network, exemplars and number of tasks that are usual for data, but for built-in ones."""
    found = (row.values for row in USUAL if _is_among(data, row.when["data"]))
    return {key: value for values in found for key, value in values.items()}


def rows(facts: Facts, paper: Mapping[str, object]) -> Iterator[Row]:
    """Yield the rows for these facts; ``paper`` are values that the method's own publication prints, for its preset."""
    yield from (row for row in ROWS if row.suits(facts))
    if paper:
        yield Row("as its authors print", paper)


def values(
    facts: Facts,
    paper: Mapping[str, object],
    usual: Mapping[str, object],
    theirs: Set[str],
    given: Mapping[str, object],
) -> dict[str, tuple[object, str]]:
    """Return the preset's values by dotted key, and milestones that move with given epochs, each with its origin.

    ``usual`` are the values of all settings without a preset, ``theirs`` the keys that a user's own method declares:
    whatever their names, presets know none of them.
    """
    found: dict[str, tuple[object, str]] = {}
    for row in rows(facts, paper):
        now = dict(usual) | {key: value for key, (value, _) in found.items()}
        new = {key: value for key, value in row.values.items() if key in usual and key not in theirs}
        if BY_RULE in new:
            new[BY_RULE] = tuple(key for key in cast(tuple[str, ...], new[BY_RULE]) if key in usual.keys() - theirs)
        new |= {key: row.values[MOST] for key in now if MOST in row.values and _is_longer(key, now, row.values[MOST])}
        origin = f"preset {facts.preset} ({row.why})"
        found |= {key: (value, origin) for key, value in (_moved(now, new) | new).items()}
    if "first.task_epochs" in given:  # the preset's milestones are those of its own epochs
        found.pop("first.task_milestones", None)
    later = _moved(dict(usual) | {key: value for key, (value, _) in found.items()}, given)
    return found | {key: (value, "moved with the epochs") for key, value in later.items()}


def _moved(usual: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the milestones, by dotted key, of schedules of which the epochs alone are given: moved with them."""
    found = {}
    for key, epochs in given.items():
        milestones = f"{key.removesuffix('epochs')}milestones"
        if key.endswith(".epochs") and milestones in usual and milestones not in given:
            found[milestones] = Schedule(usual[key], milestones=usual[milestones]).scaled(epochs).milestones
    return found


def _is_longer(key: str, values: Mapping[str, Any], most: Any) -> bool:
    """Tell whether a key is of the epochs of a method's further phase, and these are more than ``most``."""
    return bool(key.startswith("options.") and key.endswith(".epochs") and values[key] > most)


def described() -> list[tuple[str, str, str]]:
    """Return all rows for people: when, which values, and why."""
    found = []
    for row in ROWS:
        when = [f"{k} {' or '.join(map(str, v)) if isinstance(v, tuple) else v}" for k, v in row.when.items()]
        if row.exemplars_below is not None:
            when.append(f"fewer than {row.exemplars_below} exemplars")
        values = ", ".join(f"{k}={toml_value(v)}" for k, v in row.values.items())
        found.append((", ".join(when) or "always", values, row.why))
    return found
