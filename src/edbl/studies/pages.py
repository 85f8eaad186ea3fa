"""Tables, figures and pages of studies, from records, beside what the paper prints."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.neighbors import NearestNeighbors

from edbl import records
from edbl.config import toml_value
from edbl.errors import EdblError, unknown
from edbl.recipe import Recipe
from edbl.records import READOUTS
from edbl.report import plots
from edbl.report.tables import Stat, groups
from edbl.store import MOST_VALUES, read_file, write_atomic
from edbl.studies import small_page
from edbl.studies.paper import (
    AGAIN,
    BUDGETS,
    EDBL,
    EXPERIMENTS,
    HALF,
    STREAM,
    TUNED,
    ZERO,
    Column,
    Experiment,
    Row,
    one_recipe,
    recipe_of,
)
from edbl.studies.shelf import Run, Shelf, key, require
from edbl.studies.study import Study, read_all
from edbl.text import printable, rounded

INDEX = "runs.csv"  # of all runs, in the folder of results
NEIGHBOURS = 10
OWN = "†"  # marks a run by its method's own published recipe
LEGEND = "ours, then *printed*"
MADE_BY = "Made by `edbl results`"  # on a page that nobody writes by hand
STUDIES_HEAD = f"""# Calibration

{MADE_BY} from the files in `studies/calibration/` and the records of their runs; do not edit. What the
paper leaves open ([ambiguities](ambiguities.md)) was asked one question after the other on a tenth of the *training*
images, held out by seed. Average incremental accuracy in percent with both classifiers, CNN and NME, mean ± standard
deviation over seeds, with their number in brackets; `-` is not run yet. Which columns were asked about, and when to
stop, was decided by looking at test images: see [what was looked at](results.md#looks-at-test-images).

```console no-run
$ edbl study studies/calibration/29-first-task.toml
```
"""


def find(name: str) -> Experiment:
    """Return the table or figure of that name."""
    if name not in EXPERIMENTS:
        raise unknown("table or figure", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def table(experiment: Experiment, shelf: Shelf) -> str:
    """Return an experiment as a Markdown table."""
    lines = [_line(["", *(column.label for column in experiment.columns)]), _rule(1 + len(experiment.columns))]
    for row in experiment.rows:
        cells, ours = [], False
        for number, column in enumerate(experiment.columns):
            runs, mark = _runs(shelf, column, row)
            ours |= any(run.record.our_reading for run in runs)
            cell = _cell(_numbers(runs, row, experiment), len(runs), mark)
            cells.append(cell + (_printed(row.printed[number]) if _has_printed(experiment) else ""))
        label = row.label + (" (quoted)" if row.quoted else "") + (" (reconstructed)" if ours else "")
        lines.append(_line([label, *cells]))
    return "\n".join(lines)


def _runs(shelf: Shelf, column: Column, row: Row) -> tuple[list[Run], str]:
    """Return the runs of a cell; where there is none, those by the method's own recipe, with their mark."""
    if runs := shelf.of(recipe_of(column, row)):
        return runs, ""
    runs = [] if row.options else shelf.of(recipe_of(column, row, preset="paper"))
    return runs, OWN if runs else ""


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _rule(number: int) -> str:
    return "|" + "---|" * number


def _has_printed(experiment: Experiment) -> bool:
    """Tell whether the paper prints numbers: of figures it does not, though they share rows with tables."""
    return experiment.drawn == "table" and experiment.number != "readouts"


def _numbers(runs: Sequence[Run], row: Row, experiment: Experiment) -> list[Stat]:
    if not runs:
        return []
    found = [run.record for run in runs]
    if experiment.number == "readouts":
        return [Stat.of(record.average_incremental_accuracy[readout] for record in found) for readout in READOUTS]
    if experiment.number == "average":
        return [Stat.of(record.average_incremental_accuracy[row.readout] for record in found)]
    curves = [record.accuracy[row.readout] for record in found]
    if experiment.number == "last":
        return [Stat.of(curve[-1] for curve in curves)]
    return [Stat.of(after) for after in zip(*curves, strict=True)]


def _cell(ours: Sequence[Stat], n: int, mark: str = "") -> str:
    mine = " ".join(stat.percent(sign="±") for stat in ours)
    return f"{mine}{mark} ({n})" if mine else "-"


def _printed(numbers: Sequence[float]) -> str:
    theirs = " ".join(map(rounded, numbers))
    return ("<br>" if len(numbers) > 1 else " ") + (f"*{theirs}*" if theirs else "-")


def figure(experiment: Experiment, shelf: Shelf, folder: Path) -> dict[str, str]:
    """Draw an experiment, a file for each of its panels, and return their names by title; a table has none."""
    if experiment.drawn == "table":
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    draw: Callable[[Experiment, Column, Shelf, Path], dict[str, str]]
    draw = _maps if experiment.drawn == "tsne" else _curves
    return {title: name for c in experiment.columns for title, name in draw(experiment, c, shelf, folder).items()}


def _curves(experiment: Experiment, column: Column, shelf: Shelf, folder: Path) -> dict[str, str]:
    rows = {row.method: row for row in experiment.rows}
    found = {method: shelf.of(recipe_of(column, row)) for method, row in rows.items()}
    shown = [replace(run.record, recipe=runs[0].recipe.values()) for runs in found.values() for run in runs]
    if not shown:
        return {}
    name = f"{experiment.name}-{column.name}.svg"
    plots.save_curves(groups(shown), folder / name)
    return {column.label + _others(found): name}


def _others(found: Mapping[str, Sequence[Run]]) -> str:
    """Return what must be said beside curves of the systems that EDBL's are shown with."""
    rivals = [runs for method, runs in found.items() if method != "edbl" and runs]
    if not rivals:
        return " (EDBL only)" if len(found) > 1 else ""
    seeds = "one seed, " if {len(runs) for runs in rivals} == {1} else ""
    return f" (rivals: {seeds}EDBL's schedule)"


def _maps(experiment: Experiment, column: Column, shelf: Shelf, folder: Path) -> dict[str, str]:
    drawn = {}
    for row in experiment.rows:
        for run in shelf.of(recipe_of(column, row))[:1]:
            if kept := records.read_features(run.folder):
                name = f"{experiment.name}-{row.method}.svg"
                plots.save_tsne(*kept, run.record.classes, run.record.task_sizes, folder / name)
                share = foreign_neighbours(*kept, run.record.task_sizes)
                drawn[f"{row.method}: {share:.1%} of the {NEIGHBOURS} nearest neighbours are of the other task"] = name
    return drawn


def foreign_neighbours(features: np.ndarray, labels: np.ndarray, task_sizes: Sequence[int]) -> float:
    """Return the share of the nearest neighbours of images, by the angle of features, that are of another task."""
    task = np.repeat(np.arange(len(task_sizes)), task_sizes)[labels]
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    near = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(unit).kneighbors(return_distance=False)
    return float((task[near] != task[:, None]).mean())


def shown(experiment: Experiment, shelf: Shelf) -> str:
    """Return an experiment for the terminal."""
    text = table(experiment, shelf)
    own = f"; {OWN} by the method's own published recipe" if OWN in text else ""
    legend = f"\n\n{LEGEND}{own}" if _has_printed(experiment) else ""
    return f"## {experiment.title}\n\n{text.replace('<br>', ' ')}{legend}"  # a terminal's tables know no line breaks


def headline(shelf: Shelf) -> str:
    """Return EDBL's average accuracy on every stream: printed, by each recipe, and how often it was looked at."""
    heads, *rows = _headline(shelf)
    return "\n".join([_line(heads), _rule(len(heads)), *map(_line, rows)])


def summary(shelf: Shelf) -> str:
    """Return the headline without streams and recipes that have no run."""
    heads, *rows = _headline(shelf)
    ran = [row for row in rows if set(row[2:-1]) != {"-"}]
    kept = [n for n in range(len(heads)) if any(row[n] != "-" for row in ran)]
    lines = [_line([row[n] for n in kept]) for row in (heads, *ran)]
    return "\n".join([lines[0], _rule(len(kept)), *lines[1:]])


def _headline(shelf: Shelf) -> list[list[str]]:
    lines = [["", "paper", "as printed", "the rule", "one recipe", "tuned for the stream", "settings seen"]]
    for name in ("table2", "table1"):
        shown = replace(EXPERIMENTS[name], number="readouts")
        rows = [row for row in shown.rows if row.method == "edbl"]
        for number, column in enumerate(shown.columns):
            printed = "*" + " ".join(rounded(n) for row in rows for n in row.printed[number]) + "*"
            if column.name in AGAIN:
                printed += " again *" + " ".join(map(rounded, AGAIN[column.name])) + "*"
            own = (recipe_of(column, EDBL, preset=preset) for preset in ("paper", "default"))
            recipes = (*own, one_recipe(column), recipe_of(column, EDBL))
            cells = [_cell(_numbers(runs, EDBL, shown), len(runs)) for runs in map(shelf.of, recipes)]
            seen = len(settings_seen(shelf, column, held_out=False))
            lines.append([_named(column), printed, *cells, str(seen)])
    return lines


def _named(column: Column) -> str:
    protocol = {"base0": "Base-0", "base-half": "Base-half"}[str(column.settings["stream.protocol"])]
    return f"{protocol}, {column.label}"


def settings_seen(shelf: Shelf, column: Column, held_out: bool) -> list[list[Run]]:
    """Return EDBL's runs on a column's stream, a list for each setting, in order of first start."""
    stream = {k: v for k, v in column.settings.items() if k != "stream.order"}
    found: dict[str, list[Run]] = {}
    for run in shelf.runs:
        values = run.recipe.values()
        wanted = run.recipe.method == "edbl" and bool(run.recipe.data.holdout) == held_out
        if wanted and all(values[k] == v for k, v in stream.items()):
            found.setdefault(key(run.recipe), []).append(run)
    return list(found.values())


def looks(shelf: Shelf) -> str:
    """Return, for each stream of CIFAR, which settings of EDBL test images saw, and how many were held out."""
    heads = ("", "settings seen", "runs", "settings held out", "runs", "CNN / NME of those seen, in order of time")
    lines = [_line(heads), _rule(len(heads))]
    streams = [(_named(column), column) for column in (*ZERO, *HALF[:2])]
    streams += [(f"Base-0, CIFAR-100, 5 tasks, {column.label}", column) for column in BUDGETS[:3]]
    totals = np.zeros(4, dtype=int)
    average = replace(EXPERIMENTS["table2"], number="readouts")
    for label, column in streams:
        seen, held = (settings_seen(shelf, column, held_out=which) for which in (False, True))
        counts = [len(seen), sum(map(len, seen)), len(held), sum(map(len, held))]
        totals += counts
        means = [" / ".join(stat.percent(sign="±") for stat in _numbers(runs, EDBL, average)) for runs in seen]
        lines.append(_line([label, *map(str, counts), ", ".join(means)]))
    return "\n".join([*lines, _line(["all", *map(str, totals), ""])])


def settings(_: Shelf) -> str:
    """Return the values in which EDBL's recipes for the streams of CIFAR differ, and what the paper prints."""
    names = [_named(column) for column in (*ZERO, *HALF[:2])] + [column.label for column in BUDGETS[:3]]
    streams = dict(zip(names, (*ZERO, *HALF[:2], *BUDGETS[:3]), strict=True))
    ours = {name: recipe_of(column, EDBL).values() for name, column in streams.items()}
    printed = [recipe_of(column, EDBL, preset="paper").values() for column in streams.values()]
    keys = [k for k in printed[0] if not k.startswith(STREAM) and not k.endswith("milestones")]  # a cosine has none
    told = [k for k in keys if len({str(own[k]) for own in ours.values()}) > 1]
    alike: dict[str, list[str]] = {}
    for name, own in ours.items():
        alike.setdefault(str([own[k] for k in told]), []).append(name)
    lines = [_line(["", *("<br>".join(names) for names in alike.values()), "*paper*"]), _rule(2 + len(alike))]
    for k in told:
        theirs = ", ".join(dict.fromkeys(toml_value(own[k]) for own in printed))
        lines.append(_line([f"`{k}`", *(toml_value(ours[names[0]][k]) for names in alike.values()), f"*{theirs}*"]))
    return "\n".join(lines)


def ablation(shelf: Shelf) -> str:
    """Return Table 3's rows with both classifiers: averages, last task, gains over the baseline and the paper's."""
    shown = EXPERIMENTS["table3"]
    parts = ("CNN, average", "CNN, last", "gain", "*paper's*", "NME, average", "NME, last")
    heads = [f"{column.label.partition(',')[0]}: {part}" for column in shown.columns for part in parts]
    lines = [_line(["", *heads]), _rule(1 + len(heads))]
    for row in shown.rows:
        cells: list[str] = []
        for number, column in enumerate(shown.columns):
            base, runs = shelf.of(recipe_of(column, shown.rows[0])), shelf.of(recipe_of(column, row))
            cells += _gains(runs, base, row.printed[number], shown.rows[0].printed[number], row is shown.rows[0])
        lines.append(_line([row.label.removesuffix("-CNN"), *cells]))
    return "\n".join(lines)


def _gains(
    runs: Sequence[Run], base: Sequence[Run], printed: Sequence[float], printed_base: Sequence[float], is_base: bool
) -> list[str]:
    """Return the cells of a row of the ablation in one column."""
    if not runs or not base:
        return ["-"] * 6
    average, last = ({r: Stat.of(pick(run, r) for run in runs) for r in READOUTS} for pick in (_average, _last))
    gain = last["cnn"].mean - Stat.of(_last(run, "cnn") for run in base).mean
    theirs = f"*{rounded(printed[-1] - printed_base[-1], sign='+')}*" if printed and not is_base else ""
    return [
        f"{average['cnn'].percent(sign='±')} ({len(runs)})",
        last["cnn"].percent(sign="±"),
        "" if is_base else rounded(100 * gain, sign="+"),
        theirs,
        average["nme"].percent(sign="±"),
        last["nme"].percent(sign="±"),
    ]


def _average(run: Run, readout: str) -> float:
    return run.record.average_incremental_accuracy[readout]


def _last(run: Run, readout: str) -> float:
    return run.record.accuracy[readout][-1]


def parts(figures: Path, base: Path) -> dict[str, Callable[[Shelf], str]]:
    """Return what a page may hold between marks, by name; figures go to a folder, linked from pages in ``base``."""
    made: dict[str, Callable[[Shelf], str]] = {
        "results": headline,
        "summary": summary,
        "settings": settings,
        "looks": looks,
        "ablation": ablation,
        "small": small_page.page,
        "small-differences": small_page.differences,
        "small-tuning": small_page.tuning,
        "small-others": small_page.others,
    }
    for name, experiment in EXPERIMENTS.items():
        is_table = experiment.drawn == "table"
        made[name] = partial(table, experiment) if is_table else partial(_panels, experiment, figures, base)
    return made


def filled(text: str, shelf: Shelf, figures: Path, base: Path) -> str:
    """Return a page whose parts between marks ``<!-- NAME -->`` and ``<!-- end of NAME -->`` are those of a shelf."""
    found = 0
    for name, make in parts(figures, base).items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        if begin and end:
            text, found = f"{before}{begin}{make(shelf)}\n{end}{after}", found + 1
    if not found:
        raise EdblError("the page has no place for a table: put <!-- table1 --> and <!-- end of table1 --> on lines")
    return text


def skeleton() -> str:
    """Return a page with a place for every table and figure."""
    parts = ["# Results", LEGEND[0].upper() + LEGEND[1:] + f"; {OWN} by the method's own published recipe."]
    for experiment in EXPERIMENTS.values():
        command = f"```console no-run\n$ edbl reproduce {experiment.name}\n```"
        parts += [f"## {experiment.title}", command, f"<!-- {experiment.name} -->\n<!-- end of {experiment.name} -->"]
    return "\n\n".join(parts) + "\n"


def write_all(pages: Sequence[Path], results: Path, studies: Path | None) -> list[Path]:
    """Write pages anew, the page of a folder of studies beside the first one, and the list of runs; return them."""
    for page in pages:
        if page.suffix != ".md":  # figures go to a folder of its name without that
            raise EdblError(f"the name of a page must end in .md, unlike {page}")
    shelf = require(results)
    made: dict[Path, str] = {page: filled(_text(page), shelf, page.with_suffix(""), page.parent) for page in pages}
    if studies is not None:
        other = pages[0].with_name(f"{studies.resolve().name}.md")
        if other in made or (other.exists() and MADE_BY not in _text(other)):
            raise EdblError(f"{other} is not by `edbl results`, which would overwrite it; move it away")
        made[other] = studies_page(read_all(studies), shelf)
    made[results / INDEX] = index(shelf)
    for path, text in made.items():
        write_atomic(path, printable(text).encode())
    for page in pages:
        _tidy(page.with_suffix(""), made[page])
    return list(made)


def _text(page: Path) -> str:
    """Return the text of a page; one that is not there has a place for every table and figure."""
    try:
        return read_file(page, MOST_VALUES).decode() if page.exists() else skeleton()
    except UnicodeDecodeError as error:
        raise EdblError(f"{page} is not UTF-8: {error}") from error


def _tidy(figures: Path, page: str) -> None:
    """Remove figures of experiments that a page no longer shows."""
    for name in EXPERIMENTS:
        for older in figures.glob(f"{name}-*.svg"):
            if f"({figures.name}/{older.name})" not in page:
                older.unlink()


def _panels(experiment: Experiment, figures: Path, base: Path, shelf: Shelf) -> str:
    """Draw a figure and return its panels as Markdown, maps side by side and curves below each other."""
    names = figure(experiment, shelf, figures)
    images = [f"![{title}]({(figures / name).relative_to(base).as_posix()})" for title, name in names.items()]
    if experiment.drawn == "tsne" and images:
        return "\n".join(_line(row) for row in (names, ["---"] * len(names), images))
    panels = [f"{title}:\n\n{image}" for title, image in zip(names, images, strict=True)]
    return "\n\n".join(panels) or "Not run yet."


def studies_page(studies: Sequence[Study], shelf: Shelf) -> str:
    """Return the page of studies: each question with its candidates, what they gave, and the decision."""
    made = [STUDIES_HEAD]
    for study in studies:
        rule = f"The rule, set before the runs: {study.rule}\n\n" if study.rule else ""
        shown = table(study.experiment, shelf)
        made.append(f"## {study.question}\n\n{rule}{shown}\n\n{study.decision or 'Not decided yet.'}\n")
    return "\n".join(made)


def _preset(recipe: Recipe) -> str:
    """Return the preset of a recipe by today's name: without the rule, what is called `default` is `tuned` now."""
    return TUNED if recipe.preset == "default" and not recipe.by_rule else recipe.preset


def index(shelf: Shelf) -> str:
    """Return all finished runs as CSV: where each lies, what it is, what came out, and where it was made."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    stream = ("data.name", "stream.protocol", "stream.tasks", "memory", "stream.order", "data.holdout")
    results = ("average cnn", "average nme", "last cnn", "last nme")
    made = ("device", "commit", "started", "seconds", "notes")
    lines.writerow(["folder", "method", "preset", "seed", *stream, *results, *made])
    for run in sorted(shelf.runs, key=lambda run: run.folder):
        values, record = run.recipe.values(), run.record
        what = [run.recipe.method, _preset(run.recipe), run.recipe.seed, *(values[k] for k in stream)]
        numbers = [f"{100 * pick(run, readout):.2f}" for pick in (_average, _last) for readout in READOUTS]
        origin = [record.device, record.commit[:7], record.started, f"{sum(record.seconds):.0f}"]
        folder = run.folder.relative_to(shelf.folder).as_posix()
        lines.writerow([folder, *what, *numbers, *origin, "; ".join(record.notes)])
    return out.getvalue()
