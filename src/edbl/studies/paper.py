"""What the paper reports: each table and figure as data, with the runs that it takes.

Numbers are printed ones, in percent. A row that the paper quotes from elsewhere, or that has no number in a column, is
run all the same where it is asked for.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from edbl import config
from edbl.errors import EdblError, unknown
from edbl.recipe import Recipe, find_recipe, flat

DATA_SETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny-imagenet": "Tiny-ImageNet"}
TUNED = "tuned"  # the preset of the records that the tables show
Cell = tuple[float, ...]  # one number, or one for each phase, or none
Settings = Mapping[str, object]


@dataclass(frozen=True)
class Column:
    """One experiment: data, stream and memory."""

    label: str
    name: str  # of its folder
    settings: Settings

    @classmethod
    def of(cls, recipe: str, label: str = "") -> Self:
        """Return the column of a recipe that comes with the package: all that it says but method and preset."""
        file = flat(tomllib.loads(find_recipe(recipe).read_text(encoding="utf-8")))
        settings = config.check(file, Recipe.keys(str(file["method"])))
        del settings["method"], settings["preset"]
        data, protocol, tasks, memory = map(settings.get, ("data.name", "stream.protocol", "stream.tasks", "memory"))
        # Records were named before recipes were, and with their memory.
        folder = f"{data}-{protocol}-{tasks}-{str(memory).replace('=', '')}" if isinstance(tasks, int) else recipe
        return cls(label or f"{DATA_SETS[str(data)]}, {tasks} tasks", folder, settings)


@dataclass(frozen=True)
class Row:
    """A method with a classifier, and what the paper prints for each column."""

    label: str
    method: str
    readout: str
    printed: tuple[Cell, ...]
    quoted: bool = False  # the paper took it from elsewhere
    options: Settings = field(default_factory=dict)
    name: str = ""  # of its folder, if another than the method's


@dataclass(frozen=True)
class Experiment:
    """A table or figure."""

    name: str
    title: str
    number: Literal["average", "last", "phases", "readouts"]  # what a cell holds, of the accuracies after each task
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    drawn: Literal["table", "curves", "tsne"] = "table"


@dataclass(frozen=True)
class Planned:
    """A run that an experiment needs."""

    folder: str  # below the folder of results
    recipe: Recipe
    features: bool = False  # whether its features are worth keeping, for a map
    waits: str = ""  # for what, before it is to be run


def _row(label: str, method: str, *printed: float | None, quoted: bool = False) -> Row:
    readout: Literal["cnn", "nme"] = "nme" if label.endswith("NME") or method == "icarl" else "cnn"
    return Row(label, method, readout, tuple(() if number is None else (number,) for number in printed), quoted)


def _phases(label: str, method: str, *printed: Sequence[float]) -> Row:
    return Row(label, method, "cnn", tuple(tuple(100 * number for number in cell) for cell in printed))


HALF = tuple(Column.of(f"{data}-base-half-{phases}") for data in ("cifar100", "tiny-imagenet") for phases in (5, 10))
ZERO = (
    *(Column.of(f"cifar10-base0-{phases}") for phases in (2, 5)),
    *(Column.of(f"cifar100-base0-{phases}") for phases in (2, 5, 10)),
)
ABLATION = (ZERO[1], ZERO[3])
BUDGETS = (
    *(Column.of(f"cifar100-base0-5-{k}", f"{k} exemplars") for k in (200, 500, 1000)),
    replace(ZERO[3], label="2000 exemplars"),
)
FOUR = Column.of("cifar10-four", "4 classes of CIFAR-10, 2 tasks")

TABLE_1 = (
    _row("LwF*", "lwf", 49.59, 46.98, None, None, quoted=True),
    _row("iCaRL*", "icarl", 57.12, 52.66, None, None, quoted=True),
    _row("BiC*", "bic", 59.36, 54.2, None, None, quoted=True),
    _row("LUCIR*", "lucir", 63.17, 60.14, None, None, quoted=True),
    _row("PODNet-CNN", "podnet", 64.83, 63.19, None, None, quoted=True),
    _row("Mnemonics*", "mnemonics", 63.34, 62.28, None, None, quoted=True),
    _row("TPCIL", "tpcil", 65.34, 63.58, None, None, quoted=True),
    _row("iCaRL", "icarl", 59.67, 56.13, 48.98, 39.27),
    _row("BiC", "bic", 61.14, 58.4, 49.23, 47.67),
    _row("LUCIR", "lucir", None, None, 49.31, 47.56),
    _row("SSIL-NME", "ssil", 64.94, 60.99, 48.93, 45.74),
    _row("EDBL-CNN", "edbl", 66.57, 62.06, 52.43, 53.80),
    _row("EDBL-NME", "edbl", 66.65, 64.73, 50.99, 49.97),
)
TABLE_2 = (
    _row("iCaRL", "icarl", 89.7, 77.13, 68.35, 67.24, 63.98),
    _row("BiC", "bic", 89.29, 78.5, 70.15, 68.06, 65.9),
    _row("PODNet-CNN", "podnet", None, 76.27, None, 66.72, 57.88),
    _row("Remix-CNN", "remix", 78.52, 70.36, 64.98, 64.37, 60.85),
    _row("Remix-NME", "remix", 82.07, 77.41, 67.19, 67.18, 64.46),
    _row("SSIL-NME", "ssil", 89.97, 77.9, 68.7, 65.83, 56.11),
    _row("EDBL-CNN", "edbl", 91.6, 77.42, 72.28, 72.2, 66.53),
    _row("EDBL-NME", "edbl", 89.82, 78.51, 70.71, 69.33, 67.99),
)
# For fig4, which has more rows than Table 2 and prints no numbers.
REMIX_KD = (
    _row("RemixKD-CNN", "remix-kd", None, None, None, None, None),
    _row("RemixKD-NME", "remix-kd", None, None, None, None, None),
)
# Beside so large an epsilon the influence factor is nothing: class weights of mean gamma / epsilon = 2 are left.
NO_INFLUENCE: Settings = {"options.epsilon": 1e6, "options.gamma": 2e6}
TABLE_3 = (
    _phases("Baseline", "rkd", (0.9894, 0.775, 0.5544, 0.464, 0.4427), (0.848, 0.7085, 0.5606, 0.4891, 0.392)),
    _phases(
        "+ Vanilla-MKD", "vanilla-mkd", (0.9905, 0.8095, 0.587, 0.4894, 0.4189), (0.8355, 0.718, 0.5658, 0.4836, 0.3625)
    ),
    _phases("+ IIB", "iib", (0.9894, 0.8527, 0.6678, 0.558, 0.5183), (0.848, 0.6914, 0.5851, 0.5068, 0.4476)),
    _phases("+ Re-MKD", "re-mkd", (0.9905, 0.8387, 0.6446, 0.6066, 0.5926), (0.8624, 0.761, 0.5744, 0.5882, 0.5629)),
    _phases("+ IIB-KD", "iib-kd", (0.989, 0.819, 0.7143, 0.6782, 0.6329), (0.8624, 0.7355, 0.636, 0.5788, 0.5362)),
    _phases("EDBL-CNN", "edbl", (0.992, 0.8727, 0.7245, 0.6794, 0.6618), (0.85, 0.767, 0.7093, 0.6573, 0.6051)),
    # A control that the paper lacks: at least as many images as EDBL mixes in the 120 + 40 epochs of a later task.
    Row(
        "Baseline, 240 epochs",
        "rkd",
        "cnn",
        ((), ()),
        options={"schedule.epochs": 240, "schedule.milestones": (96, 160, 208)},
        name="rkd-240-epochs",
    ),
    Row("+ balanced head, no influence", "iib-kd", "cnn", ((), ()), options=NO_INFLUENCE, name="no-influence"),
)
TABLE_4 = (
    _row("GEM*", "gem", 28.29, 32.04, 35.46, None, quoted=True),
    _row("ER-Res.*", "er", 28.69, 31.90, 34.06, None, quoted=True),
    _row("CLDR*", "cldr", 34.34, 37.70, 40.20, None, quoted=True),
    _row("iCaRL", "icarl", 41.89, 49.99, 51.33, 54.31),
    _row("SSIL-NME", "ssil", None, 49.84, 52.17, 53.71),
    _row("EDBL-CNN", "edbl", 42.68, 52.65, 55.74, 60.51),
)
ALPHAS = (1.0, 1e-3, 1e-5, 0.0)
PRINTED_5 = {
    "CNN": ((60.34, 59.6, 63.09, 61.76), (49.55, 49.77, 50.18, 47.15)),
    "NME": ((64.85, 65.99, 65.77, 64.24), (48.36, 48.83, 50.16, 50.15)),
}
TABLE_5 = tuple(
    replace(
        _row(f"alpha = {alpha:g}, {readout}", "iib-kd", *(data[k] for data in PRINTED_5[readout])),
        options={"options.alpha": alpha},
        name=f"iib-kd-alpha-{alpha:g}",
    )
    for readout in PRINTED_5
    for k, alpha in enumerate(ALPHAS)
)
EDBL = TABLE_2[-2]
AGAIN: Mapping[str, Cell] = {ZERO[1].name: (80.4, 81.894)}  # a second run of EDBL, CNN and NME: Appendix D
STREAM = ("data.name", "data.mean", "data.std", "stream.", "memory")  # keys that say what is learnt, not how

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("table1", "Table 1: average incremental accuracy, Base-half", "average", HALF, TABLE_1),
        Experiment("table2", "Table 2: average incremental accuracy, Base-0", "average", ZERO, TABLE_2),
        Experiment("table3", "Table 3: ablation, accuracy after each task", "phases", ABLATION, TABLE_3),
        Experiment("table4", "Table 4: accuracy after the last task, by memory", "last", BUDGETS, TABLE_4),
        Experiment("table5", "Table 5: accuracy after the last task, by alpha", "last", ABLATION, TABLE_5),
        Experiment("fig2", "Fig. 2: accuracy after each task, Base-half", "phases", HALF, TABLE_1, "curves"),
        Experiment("fig3", "Fig. 3: features of 4 classes", "last", (FOUR,), (TABLE_3[0], TABLE_3[5]), "tsne"),
        Experiment("fig4", "Fig. 4: accuracy after each task, Base-0", "phases", ZERO, TABLE_2 + REMIX_KD, "curves"),
    )
}


def folder_of(column: Column, row: Row, seed: int, preset: str = TUNED) -> str:
    """Return where the run of a cell lies below the results."""
    other = "" if preset == TUNED else f"-{preset}"
    return f"{column.name}/{row.name or row.method}{other}-seed{seed}"


def recipe_of(column: Column, row: Row, seed: int = 0, preset: str = TUNED) -> Recipe:
    """Return the recipe of a cell's run."""
    return Recipe.of({"method": row.method, "seed": seed, "preset": preset, **column.settings}, row.options)


def one_recipe(column: Column) -> Recipe:
    """Return EDBL's recipe of CIFAR-100, Base-0, 5 tasks for a column's stream, whatever its own may be."""
    stream = {k: v for k, v in recipe_of(column, EDBL).values().items() if k.startswith(STREAM)}
    return Recipe.of(recipe_of(ZERO[3], EDBL).values() | stream)


def planned(experiment: Experiment, seeds: Sequence[int], preset: str = TUNED) -> list[Planned]:
    """Return the runs behind an experiment, each once, the first seed of all first."""
    found: dict[str, Planned] = {}
    for seed in seeds:
        for column in experiment.columns:
            for row in experiment.rows:
                folder = folder_of(column, row, seed, preset)
                recipe = recipe_of(column, row, seed, preset)
                found.setdefault(folder, Planned(folder, recipe, experiment.drawn == "tsne"))
    return list(found.values())


def wanted(
    runs: Sequence[Planned], name: str, methods: Sequence[str] | None = None, data: str | None = None
) -> list[Planned]:
    """Return those of a table's runs that are of these methods and this data set, all if none is named."""
    known = sorted({run.recipe.method for run in runs})
    for method in methods or ():
        if method not in known:
            raise unknown(f"method in {name}", method, known)
    found = [run for run in runs if methods is None or run.recipe.method in methods]
    found = [run for run in found if data in (None, run.recipe.data.name)]
    if not found:
        raise EdblError(f"{name} has nothing on {data}")
    return found
