"""Two experiments run by run: the difference over pairs of the same seed, and what makes no pair."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from edbl import metrics
from edbl.errors import EdblError, command, unknown
from edbl.metrics import Difference
from edbl.records import Record
from edbl.report.runs import Run, data_name, read_runs, stream_name
from edbl.report.tables import Stat, brief, differing, flat, groups, of_today, readout_name
from edbl.text import DASH, count, first

MEASURES = {"average": metrics.average_incremental_accuracy, "last": metrics.last_accuracy}
ALIKE = 1.1  # times as many bytes, from which on sides are no longer compared at equal memory
ENOUGH = 6  # pairs, for Wilcoxon's p to be able to fall below 0.05


class Side(NamedTuple):
    """The runs of one experiment by seed, and how it is called."""

    name: str
    records: dict[int, Record]

    @property
    def first(self) -> Record:
        """The run that stands for all, which differ in the seed alone."""
        return next(iter(self.records.values()))

    @property
    def readouts(self) -> list[str]:
        """The classifiers that were measured."""
        return [readout for readout, matrices in self.first.confusions.items() if matrices]


@dataclass(frozen=True)
class Comparison:
    """Two experiments with runs of the same seeds, on the same images in the same order, with the same memory."""

    one: Side
    other: Side

    @property
    def seeds(self) -> list[int]:
        """The seeds of the pairs."""
        return sorted(self.one.records)

    @property
    def readouts(self) -> list[str]:
        """The classifiers that both have."""
        return [readout for readout in self.one.readouts if readout in self.other.readouts]

    def values(self, side: Side, readout: str, measure: str) -> list[float]:
        """Return a number of each run of a side, by seed."""
        return [MEASURES[measure](side.records[seed].confusions[readout]) for seed in self.seeds]

    def difference(self, readout: str, measure: str) -> Difference:
        """Return what the first has more than the other, pair by pair."""
        return Difference.of(*(self.values(side, readout, measure) for side in (self.one, self.other)))


def compare(places: Sequence[Path], methods: Sequence[str] = ()) -> Comparison:
    """Compare the runs below two folders, or of two methods, or of the only two experiments below all folders."""
    one, other = (_side(name, runs) for name, runs in _runs(places, methods))
    if alone := sorted(one.records.keys() ^ other.records.keys()):
        name = one.name if alone[0] in one.records else other.name
        raise EdblError(f"not paired: seed {alone[0]} is of {name} alone; name runs of the same seeds")
    for seed in one.records:
        for fact, *values in _differences(one.records[seed], other.records[seed]):
            has = f"{one.name} has {fact} {values[0]}, and {other.name} {values[1]}"
            raise EdblError(f"not paired: at seed {seed}, {has}")
    labels = [group.label for group in groups([one.first, other.first])]
    if len(labels) == 2:  # else only the places tell them apart, as before and after a change of the code
        one, other = one._replace(name=labels[0]), other._replace(name=labels[1])
    made = Comparison(one, other)
    if not made.readouts:
        raise EdblError(f"{one.name} and {other.name} have no classifier in common")
    return made


def _runs(places: Sequence[Path], methods: Sequence[str]) -> list[tuple[str, list[Run]]]:
    """Return the runs of either side, with what a message calls them."""
    if not methods and len(places) == 2:
        return [(str(place), read_runs([place])) for place in places]
    runs = read_runs(places)
    if not methods:
        found = groups([run.record for run in runs])
        if len(found) != 2:
            labels = first([group.label for group in found])
            two = command("compare", *places[:1], "--methods", "A,B")
            raise EdblError(f"these are runs of {count(found, 'experiment')}, {labels}: name two folders, or {two}")
        sides = [(group.label, {id(record) for record in group.records}) for group in found]
        return [(label, [run for run in runs if id(run.record) in members]) for label, members in sides]
    there = {run.record.method for run in runs}
    if absent := [name for name in methods if name not in there]:
        raise unknown("method", absent[0], there)
    return [(name, [run for run in runs if run.record.method == name]) for name in methods]


def _side(name: str, runs: Sequence[Run]) -> Side:
    """Return the runs of one experiment by their seeds."""
    for run in runs:
        if run.record.status != "done":
            raise EdblError(f"run {run.folder} is not done: go on by {command('resume', run.folder)}, or leave it out")
    found = groups([run.record for run in runs])
    if len(found) > 1:
        labels = first([group.label for group in found])
        raise EdblError(f"{name} has runs of {len(found)} experiments, {labels}: name the folders of one")
    by_seed: dict[int, Record] = {}
    for record in found[0].records:
        if record.seed in by_seed:
            raise EdblError(f"{name} has two runs of seed {record.seed}, with other results: name one of them")
        by_seed[record.seed] = record
    return Side(name, by_seed)


def _differences(one: Record, other: Record) -> Iterator[tuple[str, str, str]]:
    """Yield what must be equal in a pair and is not, with both values for people."""
    facts: dict[str, tuple[Callable[[Record], object], Callable[[Record], str]]] = {
        "images": (lambda r: r.data_fingerprint, lambda r: f"{data_name(r)} {r.data_fingerprint[:8]}".strip()),
        "task sizes": (lambda r: r.task_sizes, lambda r: " + ".join(map(str, r.task_sizes))),
        "class order": (lambda r: r.classes, lambda r: r.order),
        "memory": (lambda r: r.memory, lambda r: r.memory),
    }
    for name, (value, shown) in facts.items():
        if value(one) != value(other):
            yield name, brief(shown(one)), brief(shown(other))
    streams = [_stream(record.recipe) for record in (one, other)]
    if streams[0].keys() != streams[1].keys():
        streams = [_stream(of_today(record.recipe)) for record in (one, other)]
    for key in differing(streams):
        yield key, brief(streams[0].get(key, DASH)), brief(streams[1].get(key, DASH))


def _stream(recipe: dict[str, Any]) -> dict[str, str]:
    """Return how the stream was made; of the order, the classes tell."""
    return {key: value for key, value in flat(recipe).items() if key.startswith("stream.") and key != "stream.order"}


def table(made: Comparison) -> Table:
    """Return the comparison for the terminal: a row for each classifier and measure."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("classifier")
    shown.add_column("accuracy, %")
    for heading in (made.one.name, made.other.name, "difference", "95% interval", "p (t)", "p (Wilcoxon)", "n"):
        shown.add_column(Text(heading), justify="right")
    for readout in made.readouts:
        for measure in MEASURES:
            difference = made.difference(readout, measure)
            means = [Stat.of(made.values(side, readout, measure)).percent(2, "±") for side in (made.one, made.other)]
            low, high = difference.mean - difference.half, difference.mean + difference.half
            shown.add_row(
                Text(readout_name(readout) if measure == next(iter(MEASURES)) else ""),
                measure,
                *map(Text, means),
                f"{100 * difference.mean:+.2f}",
                f"{100 * low:+.2f} to {100 * high:+.2f}" if math.isfinite(high) else DASH,
                _p(difference.t_test),
                _p(difference.wilcoxon),
                str(len(difference.values)),
            )
    return shown


def _p(value: float) -> str:
    if math.isnan(value):
        return DASH
    return f"{value:.4f}" if value >= 0.0001 else "<0.0001"


def notes(made: Comparison) -> list[str]:
    """Return what a reader of the table should know."""
    pairs = len(made.seeds)
    seeds = f"seed{'s' if pairs > 1 else ''} {', '.join(map(str, made.seeds))}"
    told = [f"{made.one.name} minus {made.other.name}, {stream_name(made.one.first)}: {count(pairs, 'pair')}, {seeds}"]
    recipes = [flat(side.first.recipe) for side in (made.one, made.other)]
    both = [key for key in differing(recipes) if key != "method" and all(key in recipe for recipe in recipes)]
    if both:
        told.append(f"their recipes differ in {first(both)}")
    for side in (made.one, made.other):
        alone = [readout_name(readout) for readout in side.readouts if readout not in made.readouts]
        told += [f"only {side.name} has {', '.join(alone)}"] if alone else []
    sizes = [side.first.kept_bytes(-1) for side in (made.one, made.other) if side.first.kept]
    if len(sizes) == 2 and max(sizes) > ALIKE * min(sizes):
        first_mb, other_mb = (f"{size / 1e6:.1f} MB" for size in sizes)
        told.append(f"{made.one.name} keeps {first_mb} after the last task, and {made.other.name} {other_mb}")
    if pairs == 1:
        told.append("one pair gives no interval and no test: run more seeds")
    elif pairs < ENOUGH:
        told.append(f"with {pairs} pairs Wilcoxon's p cannot be below {2 / 2**pairs:g}")
    return told
