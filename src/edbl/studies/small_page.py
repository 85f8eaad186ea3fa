"""The parts ``small``, its differences and its tuning of a page: each table once all of its runs are there."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Literal

from edbl.metrics import Difference
from edbl.records import READOUTS, Record
from edbl.studies import small
from edbl.studies.paper import planned
from edbl.studies.shelf import Shelf
from edbl.studies.small import Contrast, Stream, Table
from edbl.text import rounded

CELL = "CNN average and last / NME average and last"


def page(shelf: Shelf) -> str:
    """Return the tables that are complete, since there is one look, and what is missing of others."""
    parts, missing = [f"Mean over replicates, whose number is in brackets, {CELL}."], []
    for table in small.tables(small.RATES or dict.fromkeys(small.SYSTEMS, small.CANDIDATES[0])):
        plans = table.plans()
        there = _there(table, shelf)
        if there == len(plans):
            parts += [f"**{table.title}**", _cells(table, shelf)]
        else:
            missing.append(f"{table.title}: {there} of {len(plans)} runs are there.")
    return "\n\n".join([*parts, *missing])


def others(shelf: Shelf) -> str:
    """Return the systems that the paper does not compare with, and two that it does."""
    table = small.others(small.OTHERS_RATES)
    if (there := _there(table, shelf)) < len(table.plans()):
        return f"{there} of {len(table.plans())} runs are there."
    return _cells(small.beside(table), shelf)


def differences(shelf: Shelf) -> str:
    """Return what was to be compared, of the tables that are complete."""
    parts = []
    for table in small.tables(small.RATES) if small.RATES else ():
        if _there(table, shelf) == len(table.plans()):
            parts += [f"**{table.title}**", _contrasts(table, shelf)]
    return "\n\n".join(parts) or "Not run yet."


def tuning(shelf: Shelf) -> str:
    """Return which rates were chosen."""
    if not small.chosen(shelf):
        return "Not run yet."
    rows: dict[str, list[str]] = {}
    rates = small.chosen(shelf)
    for plan in planned(small.tuning(), [0]):
        system, rate = plan.recipe.method, plan.recipe.schedule.lr
        both = shelf.of(plan.recipe)[0].record.average_incremental_accuracy
        cell = " ".join(rounded(100 * both[readout]) for readout in READOUTS)
        rows.setdefault(system, [small.SYSTEMS[system]]).append(f"**{cell}**" if rate == rates[system] else cell)
    return _markdown(["", *(f"rate {rate:g}" for rate in small.CANDIDATES)], rows.values())


def _there(table: Table, shelf: Shelf) -> int:
    return sum(shelf.has(plan.recipe) for plan in table.plans()) if small.RATES else 0


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _average(readout: str) -> Callable[[Record], float]:
    return lambda record: 100 * record.average_incremental_accuracy[readout]


def _last(readout: str) -> Callable[[Record], float]:
    return lambda record: 100 * record.accuracy[readout][-1]


MEASURES = [pick(readout) for readout in READOUTS for pick in (_average, _last)]


def values(table: Table, name: str, stream: Stream, shelf: Shelf) -> list[list[float]]:
    """Return a row's numbers on each replicate of a stream, a list for each measure."""
    found = [run.record for run in small.runs_of(shelf, stream, table.row(name))]
    return [[measure(record) for record in found] for measure in MEASURES]


def _cells(table: Table, shelf: Shelf) -> str:
    rows = []
    for row in table.rows:
        cells = []
        for stream in table.streams:
            means = [rounded(fmean(numbers)) for numbers in values(table, row.name, stream, shelf)]
            cells.append(f"{means[0]} {means[1]} / {means[2]} {means[3]} ({len(stream.columns)})")
        rows.append([row.label, *cells])
    return _markdown(["", *(stream.label for stream in table.streams)], rows)


def _contrasts(table: Table, shelf: Shelf) -> str:
    wanted = [contrast for contrast in small.contrasts() if contrast.table == table.name]
    rows = [
        [_named(table, contrast), *(_contrast(table, contrast, stream, shelf) for stream in table.streams)]
        for contrast in wanted
    ]
    return _markdown(["", *(stream.label for stream in table.streams)], rows)


def _named(table: Table, contrast: Contrast) -> str:
    return " - ".join(table.row(name).label.removeprefix("+ ") for name in (contrast.one, contrast.other))


def _contrast(table: Table, contrast: Contrast, stream: Stream, shelf: Shelf) -> str:
    """Return the four differences of two rows on a stream, by CNN and below it by NME."""
    one, other = (values(table, name, stream, shelf) for name in (contrast.one, contrast.other))
    told = [_told(Difference.of(*pair)) for pair in zip(one, other, strict=True)]
    return f"{told[0]} {told[1]}<br>{told[2]} {told[3]}"


def _told(difference: Difference) -> str:
    """Return a difference in points with half of its interval: bold if that is above 0, in italics if below."""
    half = "" if math.isinf(difference.half) else f"±{rounded(difference.half)}"
    mark = {-1: "*", 0: "", 1: "**"}[difference.sign]
    return f"{mark}{rounded(difference.mean, sign='+')}{half}{mark}"


def verdict(difference: Difference, expected: Literal["higher", "open"]) -> str:
    """Return what a difference says about the expectation that it is above 0; ``open`` is none."""
    words = {"higher": ("refuted", "confirmed"), "open": ("lower", "higher")}[expected]
    return {-1: words[0], 0: "cannot be told", 1: words[1]}[difference.sign]
