"""The heads of the paper's recipes: command, what the paper prints, what our records say.

``python -m tests.heads`` writes them anew; `tests.test_recipes` compares them.
"""

from pathlib import Path

from edbl.recipe import shipped_recipes
from edbl.report.tables import Stat
from edbl.studies.pages import settings_seen
from edbl.studies.paper import AGAIN, DATA_SETS, EDBL, EXPERIMENTS, Column, Experiment, recipe_of
from edbl.studies.shelf import Run, Shelf
from edbl.text import count, rounded
from tests.shelf import SHELF

ROOT = Path(__file__).parents[1]
PROTOCOLS = {"base0": "Base-0", "base-half": "Base-half", "tasks": "airplane and cat, then dog and ship"}
FIRST = ("table2", "table1", "table4", "fig3")  # where a column's numbers are taken from


def of_paper() -> dict[str, Path]:
    """Return the recipes of the paper's experiments."""
    return {name: path for name, path in shipped_recipes().items() if name != "digits"}


def experiments(column: Column) -> list[Experiment]:
    """Return the tables and figures with a column."""
    return [shown for shown in EXPERIMENTS.values() if column.name in [c.name for c in shown.columns]]


def head(name: str, shelf: Shelf) -> list[str]:
    """Return what stands above the values of a recipe."""
    column = Column.of(name)
    shown = experiments(column)
    first = EXPERIMENTS[next(place for place in FIRST if place in [e.name for e in shown])]
    return [
        f"# {_title(column, shown)}",
        f"# edbl run --recipe {name} --seed 0; the same run is in edbl reproduce {first.name}",
        f"# The paper's {_number(first)}{_printed(first, column)}{_again(column)}",
        *_ours(
            shelf.of(recipe_of(column, EDBL)), first.number == "last" and first.drawn == "table", _tuned(column, shelf)
        ),
    ]


def _title(column: Column, shown: list[Experiment]) -> str:
    settings = column.settings
    budget = str(settings["memory"]).removeprefix("total=").replace("per_class=20", "20")
    per_class = " per class" if "per_class" in str(settings["memory"]) else ""
    number = settings.get("stream.tasks")
    tasks = f", {number} tasks" if isinstance(number, int) else ""
    where = ", ".join(experiment.title.partition(":")[0] for experiment in shown)
    stream = f"{DATA_SETS[str(settings['data.name'])]}, {PROTOCOLS[str(settings['stream.protocol'])]}{tasks}"
    return f"EDBL on {stream}, {budget} exemplars{per_class} ({where})."


def _number(first: Experiment) -> str:
    if first.name == "table4":
        return "accuracy after the last task, CNN: "
    return "average incremental accuracy, CNN and NME: "


def _printed(first: Experiment, column: Column) -> str:
    number = [c.name for c in first.columns].index(column.name)
    rows = [row for row in first.rows if row.method == "edbl"] if first.drawn == "table" else []
    return " and ".join(f"{row.printed[number][0]:g}" for row in rows) or "none is printed"


def _again(column: Column) -> str:
    numbers = " and ".join(map(rounded, AGAIN.get(column.name, ())))
    return f" (again in Appendix D: {numbers})" if numbers else ""


def _tuned(column: Column, shelf: Shelf) -> str:
    """Return of what our numbers are, and how many settings of EDBL test images saw before."""
    return f"preset tuned, {count(len(settings_seen(shelf, column, held_out=False)), 'setting')} seen on test images"


def _ours(runs: list[Run], last: bool, tuned: str) -> list[str]:
    if not runs:
        return ["# Ours: not run yet"]
    found = [run.record for run in runs]
    stats = [Stat.of(record.accuracy["cnn"][-1] for record in found)]
    if not last:
        stats = [
            Stat.of(record.average_incremental_accuracy[readout] for record in found) for readout in ("cnn", "nme")
        ]
    numbers = " and ".join(stat.percent(sign="±") for stat in stats)
    seconds = sorted({round(sum(record.seconds)) for record in found})
    seeds = ", ".join(str(record.seed) for record in found)
    devices = "; ".join(dict.fromkeys(record.device for record in found))
    took = " to ".join(dict.fromkeys((str(seconds[0]), str(seconds[-1]))))
    return [f"# Ours: {numbers} (seed{'s' * (len(found) > 1)} {seeds}; {tuned})", f"# {took} s a run on {devices}"]


def body(path: Path) -> list[str]:
    """Return the lines of a recipe below its head."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return lines[next(number for number, line in enumerate(lines) if not line.startswith("#")) :]


if __name__ == "__main__":
    kept = SHELF
    for name, path in of_paper().items():
        path.write_text("\n".join([*head(name, kept), *body(path)]) + "\n", encoding="utf-8")
