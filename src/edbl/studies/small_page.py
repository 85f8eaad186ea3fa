"""The part `small` of a page: what came out at small scale, each table once all of its runs are there."""

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

CELL = "CNN average and last / NME average and last"


def page(shelf: Shelf) -> str:
    """Return the state of all parts, then tables and contrasts of those that are complete: there is one look."""
    tables = small.tables(small.RATES or dict.fromkeys(small.SYSTEMS, small.CANDIDATES[0]))
    tuning = planned(small.tuning(), [0])
    state = [["Tuning", f"{sum(shelf.has(plan.recipe) for plan in tuning)} of {len(tuning)}"]]
    parts = [_tuned(shelf)] if small.chosen(shelf) else []
    for table in tables:
        plans = table.plans()
        there = sum(shelf.has(plan.recipe) for plan in plans) if small.RATES else 0
        state.append([table.title, f"{there} of {len(plans)}"])
        if there == len(plans):
            parts += [f"{table.title}. Mean over replicates, {CELL}:", _cells(table, shelf)]
            parts += ["Paired differences in points, with half of their 95% interval:", _contrasts(table, shelf)]
    return "\n\n".join([_markdown(["", "runs that are there"], state), *parts])


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _tuned(shelf: Shelf) -> str:
    rows: dict[str, list[str]] = {}
    rates = small.chosen(shelf)
    for plan in planned(small.tuning(), [0]):
        system, rate = plan.recipe.method, plan.recipe.schedule.lr
        both = shelf.of(plan.recipe)[0].record.average_incremental_accuracy
        cell = " ".join(f"{100 * both[readout]:.1f}" for readout in READOUTS)
        rows.setdefault(system, [small.SYSTEMS[system]]).append(f"**{cell}**" if rate == rates[system] else cell)
    heads = ["", *(f"rate {rate:g}" for rate in small.CANDIDATES)]
    return "Tuning: average CNN and NME on held-out images, the chosen rate in bold:\n\n" + _markdown(
        heads, rows.values()
    )


def _average(readout: str) -> Callable[[Record], float]:
    return lambda record: 100 * record.average_incremental_accuracy[readout]


def _last(readout: str) -> Callable[[Record], float]:
    return lambda record: 100 * record.accuracy[readout][-1]


MEASURES = [pick(readout) for readout in READOUTS for pick in (_average, _last)]
MEASURED = [f"{readout.upper()}, {what}" for readout in READOUTS for what in ("average", "last")]


def values(table: Table, name: str, stream: Stream, shelf: Shelf) -> list[list[float]]:
    """Return a row's numbers on each replicate of a stream, a list for each measure."""
    found = [run.record for run in small.runs_of(shelf, stream, table.row(name))]
    return [[measure(record) for record in found] for measure in MEASURES]


def _cells(table: Table, shelf: Shelf) -> str:
    rows = []
    for row in table.rows:
        cells = []
        for stream in table.streams:
            means = [f"{fmean(numbers):.1f}" for numbers in values(table, row.name, stream, shelf)]
            cells.append(f"{means[0]} {means[1]} / {means[2]} {means[3]} ({len(stream.columns)})")
        rows.append([row.label, *cells])
    return _markdown(["", *(stream.label for stream in table.streams)], rows)


def _contrasts(table: Table, shelf: Shelf) -> str:
    wanted = [contrast for contrast in small.contrasts() if contrast.table == table.name]
    rows = [_contrast(table, contrast, stream, shelf) for contrast in wanted for stream in table.streams]
    return _markdown(["", "stream", "replicates", *MEASURED], rows)


def _contrast(table: Table, contrast: Contrast, stream: Stream, shelf: Shelf) -> list[str]:
    one, other = (values(table, name, stream, shelf) for name in (contrast.one, contrast.other))
    cells = [_told(Difference.of(*pair), contrast) for pair in zip(one, other, strict=True)]
    labels = [table.row(name).label.removeprefix("+ ") for name in (contrast.one, contrast.other)]
    return [" - ".join(labels), stream.label, str(len(stream.columns)), *cells]


def _told(difference: Difference, contrast: Contrast) -> str:
    half = "" if math.isinf(difference.half) else f" ±{difference.half:.1f}"
    return f"{difference.mean:+.1f}{half}: {verdict(difference, contrast.expected)}"


def verdict(difference: Difference, expected: Literal["higher", "open"]) -> str:
    """Return what a difference says about the expectation that it is above 0; ``open`` is none."""
    words = {"higher": ("refuted", "confirmed"), "open": ("lower", "higher")}[expected]
    return {-1: words[0], 0: "cannot be told", 1: words[1]}[difference.sign]
