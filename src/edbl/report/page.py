"""One page that shows and compares runs: a single HTML file that needs nothing else, made from records alone."""

import math
import re
from collections.abc import Collection, Sequence
from typing import Any

from markupsafe import Markup, escape

from edbl.errors import EdblError
from edbl.records import Record, read_features
from edbl.report import plots
from edbl.report.filling import filled
from edbl.report.finding import findings, one_image
from edbl.report.runs import Run, by_stream, data_name, stream_name
from edbl.report.tables import (
    DIGITS,
    METRICS,
    TASK_AWARE,
    Group,
    Metric,
    best,
    differing,
    flat,
    groups,
    images_of,
    readout_name,
)
from edbl.text import DASH, count, duration

READOUTS = {
    "cnn": "CNN: the scores of the network.",
    "nme": "NME: the nearest mean of exemplar features.",
    TASK_AWARE: f"{TASK_AWARE}: these scores among the classes of the right task alone; never marked as best.",
}


def html(runs: Sequence[Run]) -> str:
    """Return the page of runs."""
    return filled("page.html", _contents(runs))


def _contents(runs: Sequence[Run]) -> dict[str, Any]:
    draw = Drawer()
    return {
        "intro": _intro([run.record for run in runs]),
        "unfinished": [run for run in runs if run.record.status != "done"],
        "sections": [_section(part, draw) for part in by_stream(runs)],
        "metrics": METRICS,
        "numbered": plots.NUMBERED,
        "runs": runs,
        "environments": _environments(runs),
        "data_name": data_name,
        "duration": duration,
        "minute": minute,
        "readout_name": readout_name,
    }


def _intro(records: Sequence[Record]) -> str:
    methods = list(dict.fromkeys(record.label for record in records))
    data = list(dict.fromkeys(data_name(record) for record in records))
    seeds = {record.seed for record in records}
    return (
        f"{count(len(records), 'run')} of {count(len(methods), 'method')} ({', '.join(methods)}) "
        f"on {', '.join(data)}, with {count(len(seeds), 'seed')}."
    )


def _notes(runs: Sequence[Run]) -> list[str]:
    """Return what the runs note; what not all of them do, with the names of those that do."""
    noted: dict[str, list[str]] = {}
    for run in runs:
        for note in dict.fromkeys(run.record.notes):
            noted.setdefault(note, []).append(run.name)
    notes = [note if len(names) == len(runs) else f"{', '.join(names)}: {note}" for note, names in noted.items()]
    if len({images_of(run.record) for run in runs}) > 1:
        notes.append("These runs did not all have the same images: the fingerprints of their data differ.")
    return notes


def _section(runs: Sequence[Run], draw: "Drawer") -> dict[str, Any]:
    found = groups([run.record for run in runs])
    record = max((run.record for run in runs), key=lambda one: one.finished)
    measured = [group for group in found if group.readouts]
    tasks = _task_titles(measured)
    return {
        "title": stream_name(record),
        "findings": findings(found),
        "facts": _facts(found, record),
        "titles": {run.record.method: run.record.title for run in runs if run.record.title},
        "notes": _notes(runs),
        "groups": [_group_line(group, colour) for group, colour in zip(found, plots.colours(found), strict=True)],
        "tasks": tasks,
        "lowest": _lowest(measured),
        "readouts": _meanings({readout for group in found for readout in group.readouts}),
        "accuracy": [_accuracy_cells(group, len(tasks)) for group in found],
        "summary": _summary_cells(found),
        "true_share": _true_share(found),
        "curves": draw(plots.accuracy_curves(found), "Accuracy against classes seen") if measured else None,
        "matrices": [_matrices(group) for group in measured],
        "confusions": [_confusions(group, runs, draw) for group in measured],
        "tsne": [panel for group in measured if (panel := _tsne(group, runs, draw))],
        "timings": draw(plots.timings(found), "Time by part") if any(group.parts() for group in found) else None,
        "seconds": [_filled([duration(stat.mean) for stat in group.seconds()], len(tasks)) for group in found],
        "recipes": _recipes(found),
    }


def _facts(found: Sequence[Group], record: Record) -> list[str]:
    sizes = record.task_sizes
    new = "new classes" if record.returning else "classes"
    each = f"{sizes[0]} {new} each" if len(set(sizes)) == 1 else f"{' + '.join(map(str, sizes))} {new}"
    facts = [f"{count(len(sizes), 'task')}, {each}"] if sizes else []
    facts += ["classes come back"] if record.returning else []
    for name in ("memory", "order"):
        values = {getattr(group.first, name) for group in found}
        facts += [f"{name}: {values.pop()}"] if len(values) == 1 else []
    return facts


def _group_line(group: Group, colour: str) -> dict[str, Any]:
    return {
        "label": group.label,
        "colour": colour,
        "complete": group.complete,
        "n": len(group.records),
        "seeds": ", ".join(str(record.seed) for record in group.records),
        "readouts": group.readouts,
    }


def _task_titles(measured: Sequence[Group]) -> list[str]:
    """Return the head of each task's column: the classes seen, where all groups agree and each task has more."""
    titles = []
    for task in range(max((len(group.seen) for group in measured), default=0)):
        seen = {group.seen[task] for group in measured if task < len(group.seen)}
        told = len(seen) == 1 and not any(0 in group.sizes for group in measured)
        titles.append(str(seen.pop()) if told else f"task {task + 1}")
    return titles


def _accuracy_cells(group: Group, tasks: int) -> dict[str, list[str]]:
    stats = {readout: group.accuracy(readout) for readout in group.readouts}
    return {readout: _filled([stat.percent(_digits([group])) for stat in stats[readout]], tasks) for readout in stats}


def _meanings(readouts: Collection[str]) -> list[str]:
    """Return what the classifiers are."""
    told = [meaning for readout, meaning in READOUTS.items() if readout in readouts]
    return told + ["The others are classifiers that a method adds."] * any(one not in READOUTS for one in readouts)


def _filled(cells: list[str], columns: int) -> list[str]:
    return cells[:columns] + [""] * (columns - len(cells))


def _summary_cells(found: Sequence[Group]) -> list[dict[str, list[tuple[str, bool]]]]:
    """Return the text of each metric and whether it is the best of all, for each group and classifier.

    None is the best where the next is closer than a single test image.
    """
    highest = {metric.key: best(found, metric) for metric in METRICS}
    clear = {metric.key for metric in METRICS if _lead(found, metric) > _resolution(found)}
    digits = _digits(found)
    rows = []
    for group in found:
        cells: dict[str, list[tuple[str, bool]]] = {}
        for readout in group.readouts:
            stats = {metric.key: group.metric(readout, metric.key) for metric in METRICS}
            cells[readout] = [
                (stat.percent(digits), group.complete and key in clear and stat.mean == highest[key])
                for key, stat in stats.items()
            ]
        rows.append(cells)
    return rows


def _lead(found: Sequence[Group], metric: Metric) -> float:
    """Return by how much the best group's best mean of a metric is ahead of the next group's."""
    sign = 1 if metric.better == "high" else -1
    means = [
        [sign * group.metric(one, metric.key).mean for one in group.readouts if one != TASK_AWARE]
        for group in found
        if group.complete
    ]
    tops = sorted((max(some) for of in means if (some := [one for one in of if not math.isnan(one)])), reverse=True)
    return tops[0] - tops[1] if len(tops) > 1 else 0.0


def _resolution(found: Sequence[Group]) -> float:
    """Return the largest share that one test image is of any group's, with a margin for rounding."""
    return 1.001 * max((one_image(group) for group in found if group.complete), default=0.0)


def _digits(found: Sequence[Group]) -> int:
    """Return how many digits after the point mean something: a second one where an image is less than 0.1 points."""
    shares = [one_image(group) for group in found if group.readouts]
    return DIGITS if shares and max(shares) < 0.001 else 1


def _lowest(measured: Sequence[Group]) -> float:
    """Return the lowest accuracy on a task's classes, where the shades of the matrices begin."""
    matrices = [group.task_matrix(one) for group in measured for one in group.readouts]
    shares = [share for matrix in matrices for row in matrix for share in row if not math.isnan(share)]
    return min(shares, default=0.0)


def _true_share(found: Sequence[Group]) -> str:
    """Return what the share predicted as new would be without bias."""
    shares = {f"{100 * group.true_share_new:.1f}" for group in found if group.complete and group.readouts}
    return " or ".join(sorted(shares - {"nan"}))


def _matrices(group: Group) -> dict[str, Any]:
    return {
        "label": group.label,
        "sizes": group.sizes,
        "readouts": {readout: group.task_matrix(readout).tolist() for readout in group.readouts},
    }


def _confusions(group: Group, runs: Sequence[Run], draw: "Drawer") -> dict[str, Any]:
    record = group.first
    panels = []
    for readout in group.readouts:
        svg = plots.confusion(record.confusions[readout][-1], record.classes, record.task_sizes)
        panels.append((readout, draw(svg, f"Confusion matrix of {group.label}, {readout_name(readout)}")))
    return {"label": group.label, "run": _run_of(record, runs), "panels": panels}


def _tsne(group: Group, runs: Sequence[Run], draw: "Drawer") -> dict[str, Any] | None:
    """Return the picture of the first run of the group that kept features."""
    for record in group.records:
        run = _run_of(record, runs)
        kept = read_features(run.folder)
        if kept is None:
            continue
        features, labels = kept
        if len(labels) and labels.max() >= sum(group.sizes):
            raise EdblError(f"broken run '{run.folder}': features.npz has labels of classes that the run has not seen")
        svg = plots.tsne(features, labels, record.classes[: sum(group.sizes)], group.sizes)
        return {"label": group.label, "run": run, "svg": draw(svg, f"t-SNE of the features of {group.label}")}
    return None


def _run_of(record: Record, runs: Sequence[Run]) -> Run:
    return next(run for run in runs if run.record is record)


def _recipes(found: Sequence[Group]) -> dict[str, Any]:
    recipes = [flat(group.first.recipe) for group in found]
    different = differing(recipes)
    # A method's own options would fill the table with gaps; they are marked in the whole recipe.
    common = [key for key in different if len({recipe[key] for recipe in recipes if key in recipe}) > 1]
    return {
        "different": [(key, [recipe.get(key, DASH) for recipe in recipes]) for key in common],
        "whole": [[(key, value, key in different) for key, value in recipe.items()] for recipe in recipes],
    }


def _environments(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return each environment once, with the runs that ran in it."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        record = run.record
        versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
        place = {"commit": _short(record.commit) or DASH, "device": record.device or DASH, "versions": versions or DASH}
        found.setdefault(repr(place), {**place, "runs": []})["runs"].append(run.name)
    return list(found.values())


def _short(commit: str) -> str:
    """Return the first 12 digits of a commit, and whether files had been changed."""
    digits, dash, rest = commit.partition("-")
    return digits[:12] + dash + rest


def minute(started: str) -> str:
    """Return when a run began, to the minute, for people."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)[\d:.]*(\+00:00|Z)?", started)
    return f"{found[1]} {found[2]}{' UTC' if found[3] else ''}" if found else started


class Drawer:
    """Makes SVG fit for a page: no namespaces, which HTML does not need, and ids that no other figure has."""

    def __init__(self) -> None:
        self.drawn = 0

    def __call__(self, svg: str, title: str) -> Markup:
        """Return a figure for a page, with what it shows for those who do not see it."""
        self.drawn += 1
        own = rf"\g<1>f{self.drawn}-"
        svg = re.sub(r'( id="|url\(#|href="#)', own, re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg))
        # The figure's text was escaped when it was drawn; only the title is added here.
        return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1))
