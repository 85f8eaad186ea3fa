"""The small scale: every table of the paper with all of its systems, on images of 16x16, overnight on any machine.

What is run, why, and what will count as an answer was written before the first run: studies/small/protocol.md.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from edbl.errors import EdblError, command, unknown
from edbl.recipe import Recipe
from edbl.studies.paper import ALPHAS, NO_INFLUENCE, Column, Experiment, Planned, Row, Settings, planned, recipe_of
from edbl.studies.shelf import Run, Shelf

SYSTEMS = {
    "rkd": "Baseline",
    "vanilla-mkd": "+ Vanilla-MKD",
    "iib": "+ IIB",
    "re-mkd": "+ Re-MKD",
    "iib-kd": "+ IIB-KD",
    "edbl": "EDBL",
    "icarl": "iCaRL",
    "bic": "BiC",
    "podnet": "PODNet",
    "remix": "Remix",
    "ssil": "SS-IL",
    "lwf": "LwF",
    "lucir": "LUCIR",
    "mnemonics": "Mnemonics",
    "tpcil": "TPCIL",
    "er": "ER",
    "gem": "GEM",
    "cldr": "CLDR",
}
# Systems that the paper does not compare with, added when its tables were done; these have a rate to choose.
OTHERS = {"foster": "FOSTER", "der++": "DER++", "ewc": "EWC"}
ANALYTIC = {"acil": "ACIL", "ranpac": "RanPAC"}  # which descend in the first task alone, whose rate is everybody's
PARTS = ("rkd", "vanilla-mkd", "iib", "re-mkd", "iib-kd", "edbl")  # of EDBL, as in Table 3

TUNING = "tuning"
CANDIDATES = (0.1, 0.03, 0.01)  # rates of later tasks, the larger first: it wins a tie
# The rate of each system, chosen by studies/small/tuning.toml; empty before that has run.
RATES: Mapping[str, float] = dict.fromkeys(SYSTEMS, 0.1) | {"lwf": 0.03, "gem": 0.01, "cldr": 0.03}

OTHERS_TUNING = "others-tuning"
# By the rule of studies/small/protocol.md, from the runs of `edbl reproduce others-tuning --scale small`.
OTHERS_RATES: Mapping[str, float] = {"foster": 0.1, "der++": 0.03, "ewc": 0.1}

FIRST, LATER, SECOND = 60, 30, 10  # epochs of the first task, of later ones, of the balancing phase
LONGER = 1.8  # times as long as others, RKD learns from as many images as EDBL


def settings() -> dict[str, object]:
    """Return what all systems share but the rate of later tasks, every value that a preset might choose."""
    return {
        "preset": "tuned",
        "by_rule": (),
        "data.augment": "crop-flip",
        "data.pad": 2,
        "data.brightness": 0.0,
        "data.cutout": 0,
        "net.backbone": "small",
        "optim.batch": 128,
        "optim.momentum": 0.9,
        "optim.nesterov": True,
        "optim.weight_decay": 1e-3,
        "optim.warmup": 1,
        "schedule.epochs": LATER,
        "schedule.milestones": (),
        "schedule.decay": 0.1,
        "schedule.shape": "cosine",
        "first.task_epochs": FIRST,
        "first.task_milestones": (),
        "first.task_lr": 0.1,
        "first.task_weight_decay": 0.0,
        "evaluation.nme_flips": False,
        "stream.order": "natural",
    }


def options(system: str, own: Settings) -> dict[str, object]:
    """Return a system's options: those of EDBL and its parts as calibrated at full scale, of others as built in."""
    calibrated: Settings = {
        "options.gamma": 100.0,
        "options.alpha": 5e-6,
        "options.min_old": 32,
        "options.max_rounds": 1,
        "options.clean_norm": True,
        "options.balance_layers": "head",
        "options.balance_norm": "eval",
        "options.balance.epochs": SECOND,
        "options.balance.lr": 0.01,
        "options.balance.milestones": (),
        "options.balance.shape": "cosine",
    }
    compression: Settings = {  # FOSTER's second phase: 130 epochs beside 170 in its paper
        "options.compress.epochs": round(130 / 170 * LATER),
        "options.compress.milestones": (),
        "options.compress.shape": "cosine",
    }
    built_in = {k: leaf.default for k, leaf in Recipe.keys(system).items() if k.startswith("options.")}
    return built_in | {k: v for k, v in {**calibrated, **compression}.items() if k in built_in} | dict(own)


AS_PRINTED: Settings = {  # N/2 mixings, raw counts, the whole net, and whatever else preset `paper` reads off the page
    "options.max_rounds": 0,
    "options.counts": "raw",
    "options.balance_layers": "all",
    "options.balance_norm": "train",
    "options.clean_norm": False,
    "options.gamma": 300.0,
    "options.weight_sum": "one",
    "options.kd_scale": "none",
    "options.factor_over": "all",
}


@dataclass(frozen=True)
class Stream:
    """A column of a table: the same stream on several pieces of data, its replicates."""

    label: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Table:
    """A table of the paper at small scale."""

    name: str
    title: str
    streams: tuple[Stream, ...]
    rows: tuple[Row, ...]

    @property
    def experiment(self) -> Experiment:
        """Its runs, a column for each replicate."""
        columns = tuple(column for stream in self.streams for column in stream.columns)
        return Experiment(self.name, self.title, "readouts", columns, self.rows)

    def row(self, name: str) -> Row:
        """Return the row of that name."""
        return next(row for row in self.rows if row.name == name)

    def plans(self) -> list[Planned]:
        """Return its runs."""
        return planned(self.experiment, [0])


@dataclass(frozen=True)
class Contrast:
    """A difference of two rows, and what the paper expects of it."""

    table: str
    one: str
    other: str
    expected: Literal["higher", "open"] = "higher"


def _stream(label: str, pieces: Sequence[str], protocol: str, tasks: int, memory: str) -> Stream:
    stream = {"stream.protocol": protocol, "stream.tasks": tasks, "memory": memory}
    name = f"{protocol}-{tasks}-{memory.replace('=', '')}"
    return Stream(
        label,
        tuple(
            Column(
                f"{label}, {piece.partition('-')[2]}",
                f"small/{piece}-{name}",
                settings() | {"data.name": piece} | stream,
            )
            for piece in pieces
        ),
    )


def _row(system: str, rate: float, label: str = "", name: str = "", own: Settings | None = None) -> Row:
    values = {"schedule.lr": rate} | options(system, own or {})
    return Row(label or (SYSTEMS | OTHERS | ANALYTIC)[system], system, "cnn", (), options=values, name=name or system)


def tuning(systems: Iterable[str] = SYSTEMS, name: str = TUNING) -> Experiment:
    """Return the runs that choose each system's rate, on held-out training images of block 0."""
    (column,) = _stream("CIFAR-100, 5 tasks", ["cifar100-block0"], "base0", 5, "total=400").columns
    held = Column(column.label, f"small/{TUNING}", {**column.settings, "data.holdout": 0.2})
    rows = [_row(s, rate, f"{s}, {rate:g}", f"{s}-{rate:g}") for s in systems for rate in CANDIDATES]
    return Experiment(name, "Small scale: which rate for which system?", "readouts", (held,), tuple(rows))


def chosen(shelf: Shelf, systems: Collection[str] = SYSTEMS) -> dict[str, float]:
    """Return the rate of each system by the rule of the tuning, once all of its runs are there; before, nothing."""
    sums: dict[str, dict[float, float]] = {system: {} for system in systems}
    for plan in planned(tuning(systems), [0]):
        for run in shelf.of(plan.recipe)[:1]:
            both = run.record.average_incremental_accuracy
            sums[plan.recipe.method][plan.recipe.schedule.lr] = both["cnn"] + both["nme"]
    if any(len(found) < len(CANDIDATES) for found in sums.values()):
        return {}
    return {system: max(CANDIDATES, key=found.__getitem__) for system, found in sums.items()}  # the first of equals


def others(rates: Mapping[str, float]) -> Table:
    """Return the systems that the paper does not compare with, on streams of Tables 1 and 2."""
    blocks = [f"cifar100-block{number}" for number in range(1, 5)]
    five = _stream("CIFAR-100, 5 tasks", blocks, "base0", 5, "total=400")
    half = _stream("CIFAR-100, half, 5 tasks", blocks, "base-half", 5, "per_class=20")
    rows = [_row(system, rates[system]) for system in OTHERS]
    rows += [_row(system, CANDIDATES[0]) for system in ANALYTIC]
    rows.append(_row("acil", CANDIDATES[0], "DS-AL", "ds-al", {"options.compensation": 0.6}))
    return Table("others", "Other systems", (five, half), tuple(rows))


def beside(table: Table) -> Table:
    """Return a table with EDBL and a rival, which have runs on all streams of Tables 1 and 2, below its rows."""
    return replace(table, rows=(*table.rows, *(_row(system, RATES[system]) for system in ("edbl", "icarl"))))


def tables(rates: Mapping[str, float]) -> tuple[Table, ...]:
    """Return the tables for systems with these rates, in the order in which they are to be run."""

    def rows(*systems: str) -> tuple[Row, ...]:
        return tuple(_row(system, rates[system]) for system in systems)

    blocks = [f"cifar100-block{number}" for number in range(1, 5)]  # 0 is for tuning alone
    parts = [f"cifar10-part{number}" for number in range(3)]
    ten = _stream("CIFAR-10, 5 tasks", parts, "base0", 5, "total=100")
    five = _stream("CIFAR-100, 5 tasks", blocks, "base0", 5, "total=400")
    zero = (
        _stream("CIFAR-10, 2 tasks", parts, "base0", 2, "total=100"),
        ten,
        _stream("CIFAR-100, 2 tasks", blocks, "base0", 2, "total=400"),
        five,
        _stream("CIFAR-100, 10 tasks", blocks, "base0", 10, "total=400"),
    )
    half = tuple(_stream(f"CIFAR-100, {n} tasks", blocks, "base-half", n, "per_class=20") for n in (5, 10))
    budgets = tuple(_stream(f"{k} exemplars", blocks, "base0", 5, f"total={k}") for k in (40, 100, 200, 400))
    controls = (
        _row("rkd", rates["rkd"], "Baseline, longer", "rkd-longer", {"schedule.epochs": round(LONGER * LATER)}),
        _row("iib-kd", rates["iib-kd"], "+ balanced head, no influence", "balanced-head", NO_INFLUENCE),
        _row("edbl", rates["edbl"], "EDBL as printed", "edbl-as-printed", AS_PRINTED),
    )
    alphas = tuple(
        _row("iib-kd", rates["iib-kd"], f"alpha = {alpha:g}", f"alpha-{alpha:g}", {"options.alpha": alpha})
        for alpha in ALPHAS
    )
    base_half = ("lwf", "icarl", "bic", "lucir", "podnet", "mnemonics", "tpcil", "ssil", "edbl")
    return (
        Table("table3", "Table 3: ablation, CIFAR-100", (five,), rows(*PARTS) + controls),
        Table("table3-cifar10", "Table 3: ablation, CIFAR-10", (ten,), rows(*PARTS)),
        Table("table5", "Table 5: alpha", (five,), alphas),
        Table("table2", "Table 2: Base-0", zero, rows("icarl", "bic", "podnet", "remix", "ssil", "edbl")),
        Table("table4", "Table 4: memory", budgets, rows("gem", "er", "cldr", "icarl", "ssil", "edbl")),
        Table("table1", "Table 1: Base-half", half, rows(*base_half)),
    )


def contrasts() -> list[Contrast]:
    """Return the differences that are looked at, each on every stream of its table."""
    parts = [("re-mkd", "rkd"), ("re-mkd", "vanilla-mkd"), ("iib", "rkd"), ("iib-kd", "iib"), ("edbl", "iib-kd")]
    parts += [("edbl", "rkd")]
    controls = [("edbl", "rkd-longer"), ("edbl", "balanced-head"), ("iib-kd", "balanced-head")]
    found = [Contrast("table3", one, other) for one, other in parts + controls]
    found.append(Contrast("table3", "edbl-as-printed", "edbl", "open"))
    found += [Contrast("table3-cifar10", one, other) for one, other in parts]
    found.append(Contrast("table5", "alpha-1e-05", "alpha-0"))
    rivals = [
        table for table in tables(dict.fromkeys(SYSTEMS, CANDIDATES[0])) if table.name in ("table2", "table4", "table1")
    ]
    return found + [Contrast(t.name, "edbl", row.name) for t in rivals for row in t.rows if row.name != "edbl"]


def experiments() -> dict[str, Experiment]:
    """Return what may be run, in order: the tuning and, once rates are chosen, the tables."""
    made = [tuning(), *((table.experiment for table in tables(RATES)) if RATES else ())]
    made += [tuning(OTHERS, OTHERS_TUNING), *([others(OTHERS_RATES).experiment] if OTHERS_RATES else [])]
    return {experiment.name: experiment for experiment in made}


def find(name: str) -> Experiment:
    """Return the table of that name; test images stay unseen until rates are chosen."""
    known = [TUNING, OTHERS_TUNING, "others", *(table.name for table in tables(dict.fromkeys(SYSTEMS, CANDIDATES[0])))]
    if name not in known:
        raise unknown("table at small scale", name, known)
    if name not in (found := experiments()):
        rates = ("OTHERS_RATES", OTHERS_TUNING) if name == "others" else ("RATES", TUNING)
        first = command("reproduce", rates[1], "--scale", "small")
        raise EdblError(
            f"no rates are chosen, so {name} would be looked at before its time: run {first} first,\n"
            f"then write what it chose as {rates[0]} into studies/small.py of the package"
        )
    return found[name]


def runs_of(shelf: Shelf, stream: Stream, row: Row) -> list[Run]:
    """Return the run of a row on each replicate of a stream, those that are there."""
    return [run for column in stream.columns for run in shelf.of(recipe_of(column, row))[:1]]
