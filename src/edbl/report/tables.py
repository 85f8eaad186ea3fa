"""Runs grouped into experiments, their means and spreads, and the table for the terminal."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table
from rich.text import Text

from edbl import metrics, users
from edbl.errors import EdblError
from edbl.records import Record
from edbl.text import DASH, rounded

LABEL_PARTS = 3  # a label names this many differing values of the recipe, more only where it takes more
_SETTING_WORDS = {
    "data": "{}",
    "protocol": "{}",
    "phases": "{} phases",
    "memory": "memory {}",
    "order": "order {}",
}
READOUT_NAMES = {"cnn": "CNN", "nme": "NME"}
TASK_AWARE = "task-aware"  # a classifier that is told the task of an image
DIGITS = 2  # after the point, where there is room


class Metric(NamedTuple):
    """A number of the summary: its key there, its name for people, which end is good, and what it means."""

    key: str
    title: str
    better: Literal["high", "low", ""]
    definition: str


METRICS = (
    Metric(
        "average_incremental_accuracy",
        "Average",
        "high",
        "average incremental accuracy: mean of the accuracies after each task, the first task included",
    ),
    Metric("average_without_first", "Without first", "high", "the same mean without the first task"),
    Metric("last_accuracy", "Last", "high", "accuracy over the test images of all classes after the last task"),
    Metric(
        "forgetting",
        "Forgetting",
        "low",
        "mean over all tasks but the last of: best accuracy on the task before the last task, minus accuracy on it at "
        "the end; predictions over all classes seen",
    ),
    Metric(
        "backward_transfer",
        "Backward transfer",
        "high",
        "mean over all tasks but the last of: accuracy on the task at the end, minus accuracy on it just after it was "
        "learnt",
    ),
    Metric(
        "old_accuracy", "Old", "high", "after the last task, accuracy on test images of the classes of earlier tasks"
    ),
    Metric("new_accuracy", "New", "high", "after the last task, accuracy on test images of its new classes"),
    Metric(
        "share_predicted_new",
        "Predicted new",
        "",
        "after the last task, share of all test images predicted as one of its new classes; without bias it equals the "
        "true share, given below the table",
    ),
)
BRIEF = tuple(m for m in METRICS if m.key in ("average_incremental_accuracy", "last_accuracy", "forgetting"))


class Stat(NamedTuple):
    """A mean over runs, its sample standard deviation (NaN for a single run) and the number of runs."""

    mean: float
    spread: float
    n: int

    @staticmethod
    def of(values: Iterable[float]) -> "Stat":
        """Return the statistics of ``values``, NaN left out."""
        there = [value for value in values if not math.isnan(value)]
        mean = statistics.fmean(there) if there else math.nan
        return Stat(mean, statistics.stdev(there) if len(there) > 1 else math.nan, len(there))

    def percent(self, digits: int = 1, sign: str = " ± ") -> str:
        """Return the mean, and the spread where there is one, times 100."""
        if math.isnan(self.mean):
            return DASH
        spread = "" if math.isnan(self.spread) else sign + rounded(100 * self.spread, digits)
        return rounded(100 * self.mean, digits) + spread


@dataclass(frozen=True)
class Group:
    """Runs of one experiment, equal in everything but the seed, and equally far."""

    label: str
    records: tuple[Record, ...]

    @property
    def first(self) -> Record:
        """The run that stands for the group where only one can be shown."""
        return self.records[0]

    @property
    def readouts(self) -> list[str]:
        """The classifiers that were measured."""
        return [readout for readout, matrices in self.first.confusions.items() if matrices]

    @property
    def complete(self) -> bool:
        """Whether the runs came to their end."""
        return self.first.status == "done"

    @property
    def sizes(self) -> list[int]:
        """The number of new classes of each finished task."""
        return self.first.task_sizes[: self.first.finished]

    @property
    def seen(self) -> list[int]:
        """The number of classes seen after each finished task."""
        return list(accumulate(self.sizes))

    @property
    def places(self) -> list[int]:
        """Where each finished task stands in a curve: the classes seen, or, if some task brings none, its number."""
        return list(range(1, len(self.sizes) + 1)) if 0 in self.sizes else self.seen

    @property
    def true_share_new(self) -> float:
        """The share of the last task's test images that are of its new classes, if it has any."""
        matrices = next((self.first.confusions[readout] for readout in self.readouts), [])
        if not matrices or not matrices[-1].sum() or not self.sizes[-1]:
            return math.nan
        return float(matrices[-1][sum(self.sizes[:-1]) :].sum() / matrices[-1].sum())

    def accuracy(self, readout: str) -> list[Stat]:
        """Return the accuracy after each task."""
        runs = [metrics.accuracies(record.confusions.get(readout, [])) for record in self.records]
        return [Stat.of(task) for task in zip(*runs, strict=True)]

    def metric(self, readout: str, key: str) -> Stat:
        """Return the summary metric named ``key``."""
        return Stat.of(summary[key] for summary in self._summaries[readout])

    def task_matrix(self, readout: str) -> NDArray[np.float64]:
        """Return the mean over runs of R, ``[tasks, tasks]``: accuracy on task j after task i."""
        runs = [metrics.task_matrix(r.confusions.get(readout, []), r.task_sizes) for r in self.records]
        return np.asarray(np.mean(runs, axis=0), dtype=np.float64)

    def seconds(self) -> list[Stat]:
        """Return the wall seconds of each finished task."""
        runs = [record.seconds[: record.finished] for record in self.records]
        return [Stat.of(run[task] for run in runs if task < len(run)) for task in range(max(map(len, runs)))]

    def parts(self) -> dict[str, float]:
        """Return the seconds of a whole run by part, mean over runs; what no part accounts for is ``other``."""
        totals: dict[str, float] = {}
        for record in self.records:
            parts = [item for task in record.timings for item in task.items() if math.isfinite(item[1])]
            rest = sum(s for s in record.seconds if math.isfinite(s)) - sum(seconds for _, seconds in parts)
            for part, seconds in [*parts, ("other", max(rest, 0.0))]:
                totals[part] = totals.get(part, 0.0) + seconds / len(self.records)
        other = totals.pop("other")
        return totals | ({"other": other} if other > 1e-3 else {})

    @cached_property
    def _summaries(self) -> dict[str, list[dict[str, float]]]:
        return {
            readout: [metrics.summary(r.confusions.get(readout, []), r.task_sizes) for r in self.records]
            for readout in self.readouts
        }


def readout_name(readout: str) -> str:
    """Return a classifier for people: one of a method's own goes by the name that the method gave it."""
    return READOUT_NAMES.get(readout, readout)


def best(found: Sequence[Group], metric: Metric) -> float | None:
    """Return the best mean of a metric among finished groups, by any classifier that is told nothing; None of one."""
    complete = [group for group in found if group.complete]
    stats = [group.metric(one, metric.key) for group in complete for one in group.readouts if one != TASK_AWARE]
    means = [stat.mean for stat in stats if not math.isnan(stat.mean)]
    if len(complete) < 2 or not metric.better or not means:
        return None
    return max(means) if metric.better == "high" else min(means)


def completed(records: Sequence[Record]) -> list[Record]:
    """Return records with the options of today: runs without one had its default, and so had those with one more."""
    kinds = {(record.method, frozenset(record.recipe)) for record in records}
    if len(kinds) == len({method for method, _ in kinds}):
        return list(records)
    return [replace(record, recipe=of_today(record.recipe)) for record in records]


def of_today(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe with the method's present keys; as it is if the method is not of this package, or no longer."""
    from edbl.recipe import Recipe, without_dropped  # here, because it takes a second that few reports need

    method = str(recipe.get("method"))
    with suppress(EdblError):
        if not users.is_file(method):  # a report runs nobody's code
            known = Recipe.keys(method)
            return {key: leaf.default for key, leaf in known.items()} | without_dropped(recipe, known)
    return recipe


def groups(records: Sequence[Record]) -> list[Group]:
    """Return the runs grouped by experiment, in the order in which they came.

    Runs belong together when they are equal in everything but the seed and as far along as each other, so that a mean
    never mixes finished and unfinished runs. One that repeats another to the bit does not count again.
    """
    together: dict[str, list[Record]] = {}
    for record in records:
        others = together.setdefault(_identity(record), [])
        if not any(other.seed == record.seed and other.losses == record.losses for other in others):
            others.append(record)
    members = list(together.values())
    labels = _labels([runs[0] for runs in members])
    return [Group(label, tuple(runs)) for label, runs in zip(labels, members, strict=True)]


def flat(recipe: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return a recipe as one level of dotted keys with JSON values, without the seed."""
    values: dict[str, str] = {}
    for key, value in recipe.items():
        if isinstance(value, dict) and value:
            values |= flat(value, f"{prefix}{key}.")
        elif f"{prefix}{key}" != "seed":
            values[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return values


def differing(recipes: Sequence[dict[str, str]]) -> list[str]:
    """Return the keys whose values are not the same in all ``recipes``, in order of appearance."""
    keys = dict.fromkeys(key for recipe in recipes for key in recipe)
    return [key for key in keys if len({recipe.get(key) for recipe in recipes}) > 1]


def run_table(records: Sequence[Record]) -> Table:
    """Return the results for the terminal: one row per experiment and classifier, in percent."""
    found = groups(records)
    several = any(len(group.records) > 1 for group in found)
    sized = any(group.first.kept for group in found)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=_caption(several, sized), caption_justify="left")
    table.add_column("method", overflow="fold")
    table.add_column("classifier")
    if several:
        table.add_column("n", justify="right")
    table.add_column("accuracy after each task, %", overflow="fold", ratio=1)
    for metric in BRIEF:
        table.add_column(metric.title.lower(), justify="right", no_wrap=True)
    if sized:
        table.add_column("kept, MB", justify="right")
    for group in found:
        _add_rows(table, group, several, sized)
    return table


def _caption(several: bool, sized: bool) -> str:
    spread = "mean ± sample standard deviation over n runs; " if several else ""
    average = "average: over all tasks, the first included; forgetting: best earlier minus last, old tasks"
    return f"{spread}{average}{'; kept: network, exemplars and state after the last task' if sized else ''}"


def _add_rows(table: Table, group: Group, several: bool, sized: bool) -> None:
    # Text, not str: a name with square brackets must not be read as markup.
    count = [Text(str(len(group.records)))] if several else []
    if not group.readouts:
        table.add_row(Text(group.label), Text(DASH), *count, Text("no task finished"), *[Text(DASH)] * len(BRIEF))
    for readout in group.readouts:
        cells = [stat.percent(sign="±") for stat in group.accuracy(readout)]
        width = max(map(len, cells))
        table.add_row(
            Text(group.label if readout == group.readouts[0] else ""),
            Text(readout_name(readout)),
            *count,
            Text(" ".join(cell.ljust(width) for cell in cells)),
            *(Text(group.metric(readout, metric.key).percent(sign="±")) for metric in BRIEF),
            *([Text(_megabytes(group) if readout == group.readouts[0] else "")] if sized else []),
        )


def _megabytes(group: Group) -> str:
    """Return what is kept after the last task, of the first run; others differ by a few images at most."""
    return f"{group.first.kept_bytes(-1) / 1e6:.1f}" if group.first.kept else DASH


def _setting(record: Record) -> dict[str, str]:
    return {name: str(getattr(record, name)) for name in _SETTING_WORDS}


def _progress(record: Record) -> str:
    if record.status == "done":
        return ""
    state = "failed" if record.status == "failed" else "unfinished"
    return f"{state}, {record.finished} of {len(record.task_sizes)} tasks"


def _identity(record: Record) -> str:
    sizes = record.task_sizes[: record.finished]
    far = {readout: len(matrices) for readout, matrices in sorted(record.confusions.items()) if matrices}
    return json.dumps([record.method, _setting(record), sorted(_made_of(record).items()), record.status, sizes, far])


def _made_of(record: Record) -> dict[str, str]:
    """Return the recipe of a run, and what tells its method file and images from others with the same name."""
    more = {f"code of {key}": text if " " in text else text[:8] for key, text in record.code.items()}  # or a package
    more |= {"images": images_of(record)}
    return flat(record.recipe) | {key: value for key, value in more.items() if value}


def images_of(record: Record) -> str:
    """Return what tells the images of a run from others, unless some are held out: which, the seed decides."""
    return "" if record.recipe.get("data.holdout") else record.data_fingerprint[:8]


def _labels(records: Sequence[Record]) -> list[str]:
    """Return one short label per experiment: the method and what tells it from the others."""
    settings = [_setting(record) for record in records]
    names = _telling(settings, fewest=0)
    labels = []
    for record, setting in zip(records, settings, strict=True):
        # Other methods and other data have other options by nature: a recipe is compared among its like only.
        recipes = [
            _made_of(other)
            for other, its in zip(records, settings, strict=True)
            if other.method == record.method and its == setting
        ]
        recipe = _made_of(record)
        parts = [_SETTING_WORDS[name].format(brief(setting[name])) for name in names]
        parts += [f"{key}={brief(recipe.get(key, DASH))}" for key in _telling(recipes, fewest=LABEL_PARTS)]
        progress = _progress(record)
        labels.append(" · ".join([record.label, *parts]) + (f" ({progress})" if progress else ""))
    return labels


def brief(value: str, longest: int = 24) -> str:
    """Return a value short enough for a label: a long one, such as a path, by its end."""
    return value if len(value) <= longest else "…" + value[1 - longest :]


def _telling(values: Sequence[dict[str, str]], fewest: int) -> list[str]:
    """Return the keys that a label names: those that tell all apart, and other differing ones up to ``fewest``."""
    keys = differing(values)
    chosen: list[str] = []
    target = len({tuple(value.get(key) for key in keys) for value in values})

    def apart(names: Sequence[str]) -> int:
        return len({tuple(value.get(name) for name in names) for value in values})

    while apart(chosen) < target:
        chosen.append(max((key for key in keys if key not in chosen), key=lambda key: apart([*chosen, key])))
    spare = [key for key in keys if key not in chosen]
    return chosen + spare[: max(fewest - len(chosen), 0)]
