"""The paper's tables and figures, from records, beside what was printed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from edbl import calibration, records
from edbl.errors import EdblError, command, unknown
from edbl.experiments import EXPERIMENTS, Column, Experiment, Row, folder_of, recipe_of
from edbl.recipe import HOW, RECIPE, Recipe
from edbl.records import Record
from edbl.report import plots
from edbl.report.tables import Stat, groups
from edbl.store import write_atomic

KEPT = (records.RECORD, records.CONFUSIONS, RECIPE)  # of a run, for the folder of results
MADE_BY = "Made by `edbl results`"  # on each of its pages
HEAD = """# Results

Made by `edbl results` from the records in `results/`; do not edit. Accuracy in percent. A cell is ours, mean ± sample
standard deviation over seeds where there are several, with the number of seeds in brackets, then the paper's number in
italics. `-` is not run yet, or not printed. The data sets are the real ones, the class order is the natural one on
CIFAR-10 ([why](calibration.md)) and that of seed 1993 elsewhere, all choices are those of preset `default`. *Quoted*:
the paper took the number from elsewhere, so it is of another schedule, and maybe another class order; LwF* has
exemplars and a cosine head, our `lwf` has neither. *Our reading*: no code, only a part of it, or no full text is
public, so much had to be decided here.
"""

CALIBRATION_HEAD = """# Calibration

Made by `edbl results` from the records in `results/calibration/`; do not edit. What the paper leaves open
([ambiguities](ambiguities.md)) is settled on CIFAR-100, Base-0, 5 phases, order 1993, 2000 exemplars, on a tenth of the
*training* images that is held out by seed, `rkd` with 30 epochs, `edbl` with 60 + 40 in all tasks but the first,
where a question says nothing else. Questions are asked one after the other. Average incremental accuracy in percent by
both read-outs, CNN and NME, mean ± sample standard deviation over seeds, with their number in brackets; `-` is not run
yet.

```console no-run
$ edbl reproduce calibration --seeds 3
```
"""


def find(name: str) -> list[Experiment]:
    """Return the table or figure of that name, or all questions of the calibration."""
    if name == "calibration":
        return [calibration.experiment(question) for question in calibration.QUESTIONS]
    if name not in EXPERIMENTS:
        raise unknown("table or figure", name, [*EXPERIMENTS, "calibration"])
    return [EXPERIMENTS[name]]


def keep(run: Path, results: Path, experiment: Experiment) -> None:
    """Copy what is worth keeping of a run that is done."""
    names = (*KEPT, records.FEATURES) if experiment.drawn == "tsne" else KEPT
    results.mkdir(parents=True, exist_ok=True)
    for name in sorted(names, key=lambda name: name == records.RECORD):  # the record last: it says that all is there
        write_atomic(results / name, (run / name).read_bytes())


def is_kept(folder: Path, recipe: Recipe) -> bool:
    """Tell whether a run of this recipe is among the results."""
    return (folder / records.RECORD).is_file() and _is_of(folder, records.read(folder), recipe)


def found(results: Path, column: Column, row: Row) -> list[Record]:
    """Return the finished runs of a cell, by seed; those made by another recipe do not count."""
    pattern = folder_of(column, row, seed=0).removesuffix("0")
    folders = sorted(results.glob(f"{pattern}*/{records.RECORD}"), key=lambda path: (len(path.parts[-2]), path))
    runs = [(path.parent, records.read(path.parent)) for path in folders]
    made = [(folder, run, recipe_of(column, row, run.seed)) for folder, run in runs]
    # With the recipe as it is written now: an option that is newer than a record does not set it apart from the others.
    return [replace(run, recipe=recipe.values()) for folder, run, recipe in made if _is_of(folder, run, recipe)]


def _is_of(folder: Path, run: Record, recipe: Recipe) -> bool:
    """Tell whether a run in ``folder`` is done, and of this recipe."""
    return run.status == "done" and _learns(Recipe.read(folder / RECIPE)) == _learns(recipe)


def _learns(recipe: Recipe) -> dict[str, object]:
    """Return what a recipe learns, without how it computes that."""
    return {key: value for key, value in recipe.values().items() if key not in HOW}


def table(experiment: Experiment, results: Path) -> str:
    """Return an experiment as a Markdown table."""
    lines = [
        " | ".join(["| ", *(column.label for column in experiment.columns)]) + " |",
        "|" + "---|" * (1 + len(experiment.columns)),
    ]
    for row in experiment.rows:
        runs = [found(results, column, row) for column in experiment.columns]
        label = row.label + (" (quoted)" if row.quoted else "")
        if any(record.our_reading for own in runs for record in own):
            label += " (our reading)"
        cells = [_cell(_numbers(own, row, experiment), len(own)) for own in runs]
        if _has_printed(experiment):
            cells = [cell + _printed(numbers) for cell, numbers in zip(cells, row.printed, strict=True)]
        lines.append(" | ".join([f"| {label}", *cells]) + " |")
    return "\n".join(lines)


def _has_printed(experiment: Experiment) -> bool:
    """Tell whether the paper prints numbers: of figures it does not, though they share rows with tables."""
    return experiment.drawn == "table" and experiment.number != "readouts"


def _numbers(runs: Sequence[Record], row: Row, experiment: Experiment) -> list[Stat]:
    if not runs:
        return []
    if experiment.number == "readouts":
        return [Stat.of(run.average_incremental_accuracy[readout] for run in runs) for readout in ("cnn", "nme")]
    if experiment.number == "average":
        return [Stat.of(run.average_incremental_accuracy[row.readout] for run in runs)]
    curves = [run.accuracy[row.readout] for run in runs]
    if experiment.number == "last":
        return [Stat.of(curve[-1] for curve in curves)]
    return [Stat.of(after) for after in zip(*curves, strict=True)]


def _cell(ours: Sequence[Stat], n: int) -> str:
    mine = " ".join(stat.percent(sign="±") for stat in ours)
    return f"{mine} ({n})" if mine else "-"


def _printed(numbers: Sequence[float]) -> str:
    exact = [Decimal(f"{number:.2f}") for number in numbers]  # the paper prints two digits at most
    theirs = " ".join(str(number.quantize(Decimal("0.1"), ROUND_HALF_UP)) for number in exact)
    return ("<br>" if len(numbers) > 1 else " ") + (f"*{theirs}*" if theirs else "-")


def figure(experiment: Experiment, results: Path, folder: Path) -> dict[str, str]:
    """Draw an experiment, a file for each of its panels, and return their names by title; a table has none."""
    if experiment.drawn == "table":
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    draw: Callable[[Experiment, Column, Path, Path], dict[str, str]]
    draw = _maps if experiment.drawn == "tsne" else _curves
    return {title: name for c in experiment.columns for title, name in draw(experiment, c, results, folder).items()}


def _curves(experiment: Experiment, column: Column, results: Path, folder: Path) -> dict[str, str]:
    rows = {row.method: row for row in experiment.rows}.values()
    runs = [run for row in rows for run in found(results, column, row)]
    name = f"{experiment.name}-{column.name}.svg"
    if runs:
        plots.save_curves(groups(runs), folder / name)
    return {column.label: name} if runs else {}


def _maps(experiment: Experiment, column: Column, results: Path, folder: Path) -> dict[str, str]:
    drawn = {}
    for row in experiment.rows:
        for run in found(results, column, row)[:1]:
            kept = records.read_features(results / folder_of(column, row, run.seed))
            if kept:
                drawn[row.method] = f"{experiment.name}-{row.method}.svg"
                plots.save_tsne(*kept, run.classes, run.task_sizes, folder / drawn[row.method])
    return drawn


def shown(experiment: Experiment, results: Path) -> str:
    """Return an experiment for the terminal."""
    legend = "\n\nours, then *printed*" if _has_printed(experiment) else ""
    one_line = table(experiment, results).replace("<br>", " ")  # a terminal's tables know no line breaks
    return f"## {experiment.title}\n\n{one_line}{legend}"


def page(results: Path, figures: Path) -> str:
    """Return the page of all tables and figures; figures are written to a folder beside it, older ones go."""
    if not results.is_dir():
        raise EdblError(f"there is no folder of results {results}")
    figures.mkdir(parents=True, exist_ok=True)
    drawn: set[str] = set()
    parts = [HEAD]
    for experiment in EXPERIMENTS.values():
        parts.append(f"## {experiment.title}\n\n```console no-run\n$ edbl reproduce {experiment.name}\n```\n")
        if experiment.drawn == "table":
            parts.append(table(experiment, results) + "\n")
            if experiment.name == "table3":
                parts.append(f"Average incremental accuracy, CNN and NME:\n\n{ablation(results)}\n")
        else:
            names = figure(experiment, results, figures)
            drawn |= set(names.values())
            parts.append(_panels(experiment, names, figures.name) + "\n")
    parts.append("## Runs\n\n" + _runs(results) + "\n")
    for name in EXPERIMENTS:
        for older in figures.glob(f"{name}-*.svg"):
            if older.name not in drawn:
                older.unlink()
    return "\n".join(parts)


def _panels(experiment: Experiment, names: Mapping[str, str], folder: str) -> str:
    """Return the panels of a figure as Markdown, maps side by side and curves below each other."""
    images = [f"![{title}]({folder}/{name})" for title, name in names.items()]
    if experiment.drawn == "tsne" and images:
        return "\n".join("| " + " | ".join(row) + " |" for row in (names, ["---"] * len(names), images))
    panels = [f"{title}:\n\n{image}" for title, image in zip(names, images, strict=True)]
    return "\n\n".join(panels) or "Not run yet."


def calibration_page(results: Path) -> str:
    """Return the page of the calibration: each question with its answers, what they gave, and the decision."""
    parts = [CALIBRATION_HEAD]
    for question in calibration.QUESTIONS:
        shown = table(calibration.experiment(question), results)
        parts.append(f"## {question.text}\n\n{shown}\n\n{question.decision or 'Not decided yet.'}\n")
    return "\n".join(parts)


def headline(results: Path) -> str:
    """Return EDBL's average accuracy in every experiment that has run or has a goal, as a short Markdown table."""
    lines = ["| | EDBL, CNN | EDBL, NME |", "|---|---|---|"]
    for name in ("table2", "table1"):
        shown = EXPERIMENTS[name]
        rows = [row for row in shown.rows if row.method == "edbl"]
        for number, column in enumerate(shown.columns):
            runs = found(results, column, rows[0])
            cells = [_cell(_numbers(runs, row, shown), len(runs)) + _printed(row.printed[number]) for row in rows]
            protocol = {"base0": "Base-0", "base-half": "Base-half"}[str(column.settings["stream.protocol"])]
            lines.append(f"| {protocol}, {column.label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ablation(results: Path) -> str:
    """Return the average accuracy of Table 3's rows by both read-outs."""
    shown = EXPERIMENTS["table3"]
    rows = tuple(replace(row, label=row.label.removesuffix("-CNN")) for row in shown.rows)
    return table(replace(shown, number="readouts", rows=rows), results)


def with_tables(text: str, results: Path) -> str:
    """Return a README whose tables between marks are those of these results."""
    for name, make in {"results": headline, "ablation": ablation}.items():
        marks = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, begin, rest = text.partition(marks[0])
        _, end, after = rest.partition(marks[1])
        if begin and end:
            text = f"{before}{begin}\n{make(results)}\n{end}{after}"
        elif name == "results":
            raise EdblError(f"there is no place for the table: put {marks[0]} and {marks[1]} on lines of their own")
    return text


def _runs(results: Path) -> str:
    """Return where each number comes from: run, device, commit, time, the command that repeats it, and its notes."""
    lines = ["| run | device | commit | seconds | again | notes |", "|---|---|---|---|---|---|"]
    for path in sorted(results.glob(f"*/*/{records.RECORD}")):
        record, name = records.read(path.parent), str(path.parent.relative_to(results))
        again = command("run", "--recipe", Path(results.name, name, RECIPE))
        cells = [f"`{name}`", record.device, record.commit[:7], f"{sum(record.seconds):.0f}", again]
        lines.append("| " + " | ".join([*cells, "; ".join(record.notes) or "-"]) + " |")
    return "\n".join(lines)
