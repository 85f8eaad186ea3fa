"""The queue: every run that the tables and figures take, the most valuable first, its state, and what it would take."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple, Self

from edbl import records
from edbl.data.datasets import DATASETS
from edbl.data.resampling import half_of_n
from edbl.data.stream import task_sizes
from edbl.engine.folders import is_free
from edbl.fleet import starts
from edbl.fleet.many import divisible
from edbl.memory import Budget
from edbl.recipe import RECIPE, Recipe
from edbl.rule import TaskFacts
from edbl.studies import small
from edbl.studies.paper import (
    BUDGETS,
    EDBL,
    EXPERIMENTS,
    HALF,
    STREAM,
    TABLE_3,
    TUNED,
    ZERO,
    Column,
    Experiment,
    Planned,
    Row,
    planned,
    recipe_of,
    wanted,
)
from edbl.studies.shelf import Shelf, key
from edbl.studies.study import Study

ALL = "all"  # tables and figures
SEEDS = 3  # of the whole queue
ORDERS = ("natural", "1994", "1995")  # of classes, beside those of the tables
TINY = "tiny-imagenet"
RIVALS = {row.method for e in EXPERIMENTS.values() for row in e.rows} - {row.method for row in TABLE_3}
BETAS = "options.boost_betas"
RATE = "schedule.lr"
SIZES = {  # training images and their side, of data sets whose times can be told from those of others
    "cifar10": (50_000, 32),
    "cifar100": (50_000, 32),
    TINY: (100_000, 64),
    "fashion-mnist": (60_000, 32),
    "digits": (1_442, 8),
    **{name: (10_000, 16) for name in DATASETS if name.startswith(("cifar100-block", "cifar10-part"))},
}


# Systems that the paper does not compare with: CIFAR-100, and what their authors print. FOSTER's betas are those of its
# configurations.
FOSTER = (
    (ZERO[3], (0.97, 0.96, 0.95, 0.94), 73.9),
    (ZERO[4], (0.98, 0.975, 0.97, 0.965, 0.96, 0.955, 0.95, 0.945, 0.94), 73.1),
    (HALF[0], (0.94,), 71.1),
    (HALF[1], (0.94,), 68.6),
)
MANY_PHASES = Column(
    "CIFAR-100, 25 tasks, no exemplars",
    "cifar100-base-half-25-none",
    {**HALF[0].settings, "stream.tasks": 25, "memory": "none"},
)
ANALYTIC = (
    Row("ACIL", "acil", "cnn", ((71.05,),)),
    Row("DS-AL", "acil", "cnn", ((71.28,),), options={"options.compensation": 0.6}, name="ds-al"),
)
WA_OF_PYCIL = Row(
    "WA", "wa", "cnn", ((67.1,),), options={"options.weighting": "two", "options.clip": False}, name="wa-two"
)
REFERENCES = (
    *(
        Experiment("", "", "average", (column,), (Row("FOSTER", "foster", "boosted", ((n,),), options={BETAS: betas}),))
        for column, betas, n in FOSTER
    ),
    Experiment("", "", "average", (MANY_PHASES,), ANALYTIC),
    Experiment("", "", "average", (ZERO[4],), (WA_OF_PYCIL,)),
)


class Item(NamedTuple):
    """Runs that are of equal value, and why they have their place."""

    name: str
    why: str
    runs: Sequence[Planned]


@dataclass(frozen=True)
class Entry:
    """A run in the queue."""

    item: str
    run: Planned
    state: Literal["done", "unfinished", "missing"]
    seconds: float | None = None  # that are left, about; None if nobody knows
    machine: str = ""  # another one than this, by whose records the seconds are told
    others: int = 0  # runs that it trains a first task for
    start: str = ""  # the run that trains its first task
    obstacle: str = ""  # what keeps it from being run

    @property
    def todo(self) -> bool:
        """Whether it can be run, and is not done."""
        return self.state != "done" and not self.obstacle


def everything(seeds: int = SEEDS, studies: Sequence[Study] = (), shelf: Shelf | None = None) -> list[Item]:
    """Return the queue of all tables and figures, the most valuable item first; a run counts for the first one.

    This list is the order. A further item is a name, a reason and planned runs, at the place that its value has. Rates
    that studies with a decision found better than the rule's, by the records of a shelf, have items of their own; runs
    by the rule that an undecided study of EDBL may change wait for it.
    """
    undecided = [study for study in studies if _asks_edbl(study) and not study.decision]
    columns = Experiment("", "", "average", (*ZERO, *HALF[:2], *BUDGETS[:3]), (EDBL,))
    tiny = replace(columns, columns=HALF[2:])
    tables = list(EXPERIMENTS.values())
    parts = [EXPERIMENTS["table3"], EXPERIMENTS["table5"], EXPERIMENTS["fig3"]]
    printed = [replace(e, rows=tuple(r for r in e.rows if r.printed[0])) for e in parts[:2]]
    rates = {m: rate for s in studies if shelf is not None for m, rate in better_rates(s, shelf).items()}
    better = _with_rates(tables, rates)
    first = [
        Item("as printed", "what the paper prints was never run as it is", planned(columns, [0], "paper")),
        *(Item(s.name, s.question, planned(s.experiment, range(SEEDS))) for s in studies if s in undecided),
        Item("the rule", "one recipe for every stream", planned(columns, [0], "default")),
        Item("EDBL", "the rows that every table is about", _of(tables, lambda r: _is_edbl(r) and not _is_tiny(r))),
        Item("parts", "which of EDBL's parts bring its gains", _of(parts, lambda r: not _is_tiny(r))),
        *(Item(s.name, s.question, planned(s.experiment, [0])) for s in studies if s not in undecided),
        Item("rivals, the rule", "EDBL by the rule counts only beside rivals by it", _of(tables, _is_rival, "default")),
        Item(
            "rivals, better rates", "once more with what their held-out trials found", _of(better, _is_rival, "default")
        ),
        Item("rivals", "gains count only beside rivals that train as long", _of(tables, lambda r: not _is_tiny(r))),
        Item(
            "rivals, their own recipes", "whether ours are as strong as their authors'", _of(tables, _is_rival, "paper")
        ),
        Item("parts, as printed", "the printed ablation was never run as it is", _of(printed, lambda r: True, "paper")),
        Item("parts, the rule", "whether the parts bring the same by one rule", _of(parts, lambda r: True, "default")),
        *_ordered(columns, ORDERS[:1]),
        Item("Tiny-ImageNet, the rule", "a third data set, at several times the cost", planned(tiny, [0], "default")),
        Item("Tiny-ImageNet, as printed", "the same, as the paper has it", planned(tiny, [0], "paper")),
        Item("Tiny-ImageNet, EDBL", "the same as in the tables", _of(tables, _is_edbl)),
        Item("Tiny-ImageNet", "the same for rivals", _of(tables, lambda r: True)),
        Item("Tiny-ImageNet, rivals, the rule", "the same by the rule", _of(tables, _is_tiny, "default")),
        Item("Tiny-ImageNet, rivals, better rates", "the same by better rates", _of(better, _is_tiny, "default")),
        Item("Tiny-ImageNet, rivals, their own recipes", "the same by their own", _of(tables, _is_tiny, "paper")),
        Item("other systems", "whether ours are as strong as published", _of(REFERENCES, lambda r: True, "paper")),
    ]
    tested = [run for item in first for run in item.runs if not run.recipe.data.holdout]  # studies have their seeds
    later = [
        Item(f"seed {seed}", "what one seed says may be chance", [_with_seed(run, seed) for run in tested])
        for seed in range(1, seeds)
    ]
    return [
        item._replace(runs=[_waiting(run, undecided) for run in item.runs])
        for item in once([*first, *later, *_ordered(columns, ORDERS[1:])])
    ]


def better_rates(study: Study, shelf: Shelf) -> dict[str, float]:
    """Return the rates that a decided study found better than the rule's, for each method all of whose runs are there.

    The best has the largest sum of CNN and NME over the study's streams; of equals it is the rule's.
    """
    sums: dict[str, dict[float | None, float]] = {}
    for row in study.experiment.rows if study.decision else ():
        if row.options.keys() <= {RATE}:
            runs = [run for column in study.experiment.columns for run in shelf.of(recipe_of(column, row))[:1]]
            there = len(runs) == len(study.experiment.columns)
            total = sum(sum(run.record.average_incremental_accuracy.values()) for run in runs)
            rate = float(str(row.options[RATE])) if row.options else None
            sums.setdefault(row.method, {})[rate] = total if there else nan
    best = {
        method: max(found, key=lambda rate: (found[rate], rate is None))
        for method, found in sums.items()
        if not any(map(isnan, found.values()))
    }
    return {method: rate for method, rate in best.items() if rate is not None}


def _with_rates(experiments: Iterable[Experiment], rates: Mapping[str, float]) -> list[Experiment]:
    """Return experiments with the rows of these methods alone, each with its rate."""

    def changed(row: Row) -> Row:
        rate = rates[row.method]
        return replace(row, options={**row.options, RATE: rate}, name=f"{row.name or row.method}-rate-{rate:g}")

    return [replace(e, rows=tuple(changed(row) for row in e.rows if row.method in rates)) for e in experiments]


def _waiting(run: Planned, undecided: Sequence[Study]) -> Planned:
    """Return a run with the first of these studies that may still change what the rule gives it."""
    ruled = set(run.recipe.by_rule)
    for study in undecided if ruled and not run.recipe.data.holdout else ():
        rows = study.experiment.rows
        if any(row.method == run.recipe.method or ruled & row.options.keys() for row in rows):
            return replace(run, waits=f"decide {study.path.as_posix()} first")
    return run


def small_scale() -> list[Item]:
    """Return the queue of the small scale: the tuning and, once rates are chosen, the tables in their order."""
    return [Item(name, found.title, planned(found, [0])) for name, found in small.experiments().items()]


def _of(experiments: Iterable[Experiment], which: Callable[[Recipe], bool], preset: str = TUNED) -> list[Planned]:
    return [run for e in experiments for run in planned(e, [0], preset) if which(run.recipe)]


def _ordered(experiment: Experiment, orders: Sequence[str]) -> list[Item]:
    """Return an item for each other order of classes."""
    items = []
    for order in orders:
        columns = [
            replace(column, name=f"{column.name}-order-{order}", settings={**column.settings, "stream.order": order})
            for column in experiment.columns
        ]
        runs = planned(replace(experiment, columns=tuple(columns)), [0], "default")
        items.append(Item(f"class order {order}", "one class order says little", runs))
    return items


def _asks_edbl(study: Study) -> bool:
    return all(row.method == "edbl" for row in study.experiment.rows)


def _is_edbl(recipe: Recipe) -> bool:
    return recipe.method == "edbl"


def _is_rival(recipe: Recipe) -> bool:
    return recipe.method in RIVALS and not _is_tiny(recipe)


def _is_tiny(recipe: Recipe) -> bool:
    return recipe.data.name == TINY


def _with_seed(run: Planned, seed: int) -> Planned:
    return replace(run, folder=f"{run.folder.removesuffix('-seed0')}-seed{seed}", recipe=replace(run.recipe, seed=seed))


def once(items: Sequence[Item]) -> list[Item]:
    """Return the items with each run in the first that has it; one that has none left goes."""
    seen: set[tuple[str, int]] = set()
    made = []
    for item in items:
        new: dict[tuple[str, int], Planned] = {}
        for run in item.runs:
            new.setdefault((key(run.recipe), run.recipe.seed), run)
        made.append(item._replace(runs=[run for what, run in new.items() if what not in seen]))
        seen |= new.keys()
    return [item for item in made if item.runs]


def chosen(items: Sequence[Item], name: str, methods: Sequence[str] | None, data: str | None) -> list[Item]:
    """Return the items with those of their runs that are of these methods and this data set."""
    folders = {run.folder for run in wanted([run for item in items for run in item.runs], name, methods, data)}
    left = [item._replace(runs=[run for run in item.runs if run.folder in folders]) for item in items]
    return [item for item in left if item.runs]


def plan(
    items: Sequence[Item], shelf: Shelf, runs: Path, device: str, absent: Callable[[str], str] = lambda data: ""
) -> list[Entry]:
    """Return the queue as it stands: what is on the shelf is done, what lies in the folder ``runs`` is begun.

    ``device`` is this machine's, as records name it. ``absent`` says why a data set cannot be had, or nothing.
    """
    times = Times(shelf, device)
    found = [_entry(item.name, run, shelf, runs, times, absent) for item in items for run in item.runs]
    jobs = [(entry.run.recipe, runs / entry.run.folder) for entry in found]
    fresh = [place for place, entry in enumerate(found) if entry.state == "missing"]
    for first, others in starts.waiting(jobs, fresh).items():
        found[first] = replace(found[first], others=len(others))
        for place in others:
            start, recipe = found[first].run.folder, found[place].run.recipe
            found[place] = replace(found[place], start=start, seconds=times.left(recipe, 1)[0])
    return found


def _entry(item: str, run: Planned, shelf: Shelf, runs: Path, times: "Times", absent: Callable[[str], str]) -> Entry:
    if shelf.has(run.recipe):
        return Entry(item, run, "done")
    folder = runs / run.folder
    begun = records.read(folder) if folder.exists() and not is_free(folder) else None
    seconds, machine = times.left(run.recipe, begun.finished if begun else 0)
    other = begun is not None and Recipe.read(folder / RECIPE) != run.recipe
    obstacle = f"{folder} holds another run" if other else run.waits or absent(run.recipe.data.name)
    return Entry(item, run, "unfinished" if begun and not other else "missing", seconds, machine, obstacle=obstacle)


class _Took(NamedTuple):
    """A recipe, what of it tells its time, and, of a run that is done, the seconds of each task."""

    machine: str
    key: str
    method: str
    stream: dict[str, object]
    net: object
    images: list[float] | None
    seconds: Sequence[float]

    @classmethod
    def of(cls, recipe: Recipe, device: str, seconds: Sequence[float] = ()) -> Self:
        stream = {k: v for k, v in recipe.values().items() if k.startswith(STREAM) and k not in recipe.stream.idle}
        machine = machine_of(device)
        return cls(machine, key(recipe), recipe.method, stream, recipe.net, images(recipe), seconds)

    def after(self, tasks: int, other: "_Took") -> float:
        """Return what the tasks after the first ``tasks`` take, by another that is done."""
        if self.key == other.key:
            return sum(other.seconds[tasks:])
        return sum(other.seconds) / sum(other.images or ()) * sum((self.images or ())[tasks:])

    def nearest(self, others: Sequence["_Took"]) -> "list[_Took]":
        """Return those that tell most about its time: of the same values, or stream and method, or method, or net."""
        same = [one for one in others if one.key == self.key]
        if same or self.images is None:
            return same
        known = [one for one in others if one.net == self.net and one.images is not None]
        own = [one for one in known if one.method == self.method]
        return [one for one in own if one.stream == self.stream] or own or known


class Times:
    """What runs take, by the records of those that are done: on this machine, or else on another."""

    def __init__(self, shelf: Shelf, device: str) -> None:
        self.device = device
        whole = [run for run in shelf.runs if len(run.record.seconds) == len(run.record.task_sizes)]
        took = [_Took.of(run.recipe, run.record.device, run.record.seconds) for run in whole]
        here = machine_of(device)
        self.here = [one for one in took if one.machine == here]
        self.elsewhere = [one for one in took if one.machine != here]

    def left(self, recipe: Recipe, tasks: int) -> tuple[float | None, str]:
        """Return about how many seconds a run takes that has learnt so many tasks, and the machine if it is another."""
        mine = _Took.of(recipe, self.device)
        if near := mine.nearest(self.here):
            return fmean(mine.after(tasks, one) for one in near), ""
        if near := mine.nearest(self.elsewhere):
            machine = near[-1].machine  # of the newest
            return fmean(mine.after(tasks, one) for one in near if one.machine == machine), machine
        return None, ""


def machine_of(device: str) -> str:
    """Return which machine a record's device is, whatever part of it a run had."""
    return device.partition(",")[0]


def images(recipe: Recipe) -> list[float] | None:
    """Return about how many images each task trains, of 32 pixels a side; None for data that nothing is known of."""
    if recipe.data.name not in SIZES:
        return None
    all_images, side = SIZES[recipe.data.name]
    classes, stream = DATASETS[recipe.data.name].classes, recipe.stream
    each = all_images * (1 - recipe.data.holdout) / classes
    sizes = [len(task) for task in stream.lists]
    if not sizes:
        sizes = task_sizes(classes, stream.protocol, stream.number, stream.base, stream.step)
    found = [sizes[0] * each * recipe.first.schedule(recipe.schedule).epochs]
    area = (side / 32) ** 2
    for task in range(1, len(sizes)):
        old, new = sum(sizes[:task]), sizes[task]
        kept = sum(Budget.parse(recipe.memory).quotas(old))
        ruled = recipe.ruled(TaskFacts(round(new * each), kept, old, new, side))
        own = {k: v for k, v in ruled.values().items() if k.startswith("options.")}
        balance = sum(float(str(v)) for k, v in own.items() if k.endswith(".epochs"))
        drawn = kept + new * each
        mixed = _mixed(ruled, own, kept / drawn, each, kept / old)
        found.append(drawn * (ruled.schedule.epochs * mixed + balance))
    return [number * area for number in found]


def _mixed(recipe: Recipe, own: dict[str, object], share: float, new: float, kept: float) -> float:
    """Return how many images are mixed of each that is drawn, a ``share`` being old; numbers are of each class."""
    most, least = own.get("options.max_rounds"), own.get("options.min_old")
    if not isinstance(most, int) or not isinstance(least, int):
        return 1.0
    rounds = half_of_n((round(1000 * kept), 1), (round(1000 * new), 1), most)
    old = max(share, least / recipe.optim.batch)
    return 2 * rounds * old + 1 - share


def in_time(entries: Sequence[Entry], runs: Path, seconds: float) -> dict[Path, float]:
    """Return how long runs take that are not begun, by folder, if that is known here and can be had in ``seconds``.

    One that takes longer would never end in time, so it begins whenever it is its turn, and goes on the next time.
    """
    known = [entry for entry in entries if entry.state == "missing" and entry.seconds is not None and not entry.machine]
    return {runs / e.run.folder: e.seconds for e in known if e.seconds is not None and e.seconds <= seconds}


def batches(entries: Sequence[Entry], gpu: bool) -> list[list[Planned]]:
    """Return what is to be run, in order: what is begun comes first, since little of it may be left.

    On a GPU, those of an item that may have a part of it come before those that need all, in batches of their own:
    beside one of these, none would have a part.
    """
    items = list(dict.fromkeys(entry.item for entry in entries))
    turn = sorted(
        (entry for entry in entries if entry.todo),
        key=lambda e: (e.state != "unfinished", items.index(e.item), gpu and not divisible(e.run.recipe)),
    )
    if not gpu:
        return [[entry.run for entry in turn]]
    return [[e.run for e in batch] for _, batch in groupby(turn, lambda e: divisible(e.run.recipe))]


def shown(seconds: float | None) -> str:
    """Return about how long something takes."""
    if seconds is None:
        return "?"
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{max(1, round(seconds / 60))} min"
