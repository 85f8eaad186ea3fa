"""One page that shows and compares runs: a single HTML file that needs nothing else, made from records alone."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from edbl.errors import EdblError
from edbl.records import Record, read, read_features
from edbl.report import plots
from edbl.report.tables import DASH, METRICS, Group, Metric, completed, differing, flat, groups, images_of
from edbl.store import write_atomic
from edbl.text import count

DIGITS = 2
READOUT_NAMES = {"cnn": "CNN", "nme": "NME"}


@dataclass(frozen=True)
class Run:
    """A record and the folder it was read from."""

    folder: Path
    record: Record

    @property
    def name(self) -> str:
        """The folder's own name; where it lies is nobody's business."""
        return self.folder.resolve().name


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Return the runs in ``folders``, each once."""
    once = {folder.resolve(): folder for folder in folders}
    found = completed([read(folder) for folder in once.values()])
    return [Run(folder, record) for folder, record in zip(once.values(), found, strict=True)]


def write_report(runs: Sequence[Run], out: Path) -> Path:
    """Compare runs in one HTML file at ``out``, and return ``out``."""
    if not runs:
        raise EdblError("nothing to report: name at least one run folder")
    if out.is_dir():
        raise EdblError(f"cannot write the report to '{out}': it is a folder, name a file such as report.html")
    text = _template().render(**_contents(runs))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EdblError(f"cannot make the folder '{out.parent}': {error.strerror}") from error
    # Folder names need not be valid text, a page must be.
    write_atomic(out, text.encode("utf-8", errors="replace"))
    return out


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(files("edbl.report").joinpath("page.html").read_text(encoding="utf-8"))


def _contents(runs: Sequence[Run]) -> dict[str, Any]:
    draw = _Drawer()
    together: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        together.setdefault((run.record.data, run.record.protocol, run.record.phases), []).append(run)
    return {
        "intro": _intro([run.record for run in runs]),
        "unfinished": [run for run in runs if run.record.status != "done"],
        "sections": [_section(part, draw) for part in together.values()],
        "metrics": METRICS,
        "numbered": plots.NUMBERED,
        "runs": runs,
        "environments": _environments(runs),
        "data_name": data_name,
        "duration": duration,
        "readout_names": READOUT_NAMES,
    }


def _intro(records: Sequence[Record]) -> str:
    methods = list(dict.fromkeys(record.label for record in records))
    data = list(dict.fromkeys(data_name(record) for record in records))
    seeds = {record.seed for record in records}
    return (
        f"{count(len(records), 'run')} of {count(len(methods), 'method')} ({', '.join(methods)}) "
        f"on {', '.join(data)}, with {count(len(seeds), 'seed')}."
    )


def data_name(record: Record) -> str:
    """Return the name of a run's data set; an image folder, given by its path, goes by its own name."""
    return Path(record.data).name or record.data


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


def _section(runs: Sequence[Run], draw: "_Drawer") -> dict[str, Any]:
    found = groups([run.record for run in runs])
    record = max((run.record for run in runs), key=lambda one: one.finished)
    measured = [group for group in found if group.readouts]
    tasks = _task_titles(measured)
    return {
        "title": f"{data_name(record)} · {record.protocol} · {count(record.phases, 'phase')}",
        "facts": _facts(found, record),
        "notes": _notes(runs),
        "groups": [_group_line(group, colour) for group, colour in zip(found, plots.colours(found), strict=True)],
        "tasks": tasks,
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
    each = f"{sizes[0]} classes each" if len(set(sizes)) == 1 else f"{' + '.join(map(str, sizes))} classes"
    facts = [f"{count(len(sizes), 'task')}, {each}"] if sizes else []
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
    """Return the head of each task's column: the classes seen, where all groups agree on them."""
    titles = []
    for task in range(max((len(group.seen) for group in measured), default=0)):
        seen = {group.seen[task] for group in measured if task < len(group.seen)}
        titles.append(str(seen.pop()) if len(seen) == 1 else f"task {task + 1}")
    return titles


def _accuracy_cells(group: Group, tasks: int) -> dict[str, list[str]]:
    stats = {readout: group.accuracy(readout) for readout in group.readouts}
    return {readout: _filled([stat.percent(DIGITS) for stat in stats[readout]], tasks) for readout in stats}


def _filled(cells: list[str], columns: int) -> list[str]:
    return cells[:columns] + [""] * (columns - len(cells))


def _summary_cells(found: Sequence[Group]) -> list[dict[str, list[tuple[str, bool]]]]:
    """Return the text of each metric and whether it is the best of all, for each group and read-out."""
    best = {metric.key: _best(found, metric) for metric in METRICS}
    rows = []
    for group in found:
        cells: dict[str, list[tuple[str, bool]]] = {}
        for readout in group.readouts:
            stats = {metric.key: group.metric(readout, metric.key) for metric in METRICS}
            cells[readout] = [
                (stat.percent(DIGITS), group.complete and stat.mean == best[key]) for key, stat in stats.items()
            ]
        rows.append(cells)
    return rows


def _true_share(found: Sequence[Group]) -> str:
    """Return what the share predicted as new would be without bias."""
    shares = {f"{100 * group.true_share_new:.1f}" for group in found if group.complete and group.readouts}
    return " or ".join(sorted(shares))


def _best(found: Sequence[Group], metric: Metric) -> float | None:
    complete = [group for group in found if group.complete]
    means = [group.metric(readout, metric.key).mean for group in complete for readout in group.readouts]
    means = [mean for mean in means if not math.isnan(mean)]
    if len(complete) < 2 or not metric.better or not means:
        return None
    return max(means) if metric.better == "high" else min(means)


def _matrices(group: Group) -> dict[str, Any]:
    return {
        "label": group.label,
        "sizes": group.sizes,
        "readouts": {readout: group.task_matrix(readout).tolist() for readout in group.readouts},
    }


def _confusions(group: Group, runs: Sequence[Run], draw: "_Drawer") -> dict[str, Any]:
    record = group.first
    panels = []
    for readout in group.readouts:
        svg = plots.confusion(record.confusions[readout][-1], record.classes, record.task_sizes)
        panels.append((readout, draw(svg, f"Confusion matrix of {group.label}, {READOUT_NAMES[readout]}")))
    return {"label": group.label, "run": _run_of(record, runs), "panels": panels}


def _tsne(group: Group, runs: Sequence[Run], draw: "_Drawer") -> dict[str, Any] | None:
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
        place = {"commit": record.commit or DASH, "device": record.device or DASH, "versions": versions or DASH}
        found.setdefault(repr(place), {**place, "runs": []})["runs"].append(run.name)
    return list(found.values())


def duration(seconds: float) -> str:
    """Return a time for people: 12.3 s, 4 min 05 s, 3 h 20 min."""
    if not math.isfinite(seconds):
        return DASH
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"


class _Drawer:
    """Makes SVG fit for a page: no namespaces, which HTML does not need, and ids that no other figure has."""

    def __init__(self) -> None:
        self.drawn = 0

    def __call__(self, svg: str, title: str) -> Markup:
        self.drawn += 1
        own = rf"\g<1>f{self.drawn}-"
        svg = re.sub(r'( id="|url\(#|href="#)', own, re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg))
        # The figure's text was escaped when it was drawn; only the title is added here.
        return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1))
