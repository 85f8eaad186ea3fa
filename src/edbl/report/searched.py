"""Figures of a search: its trials in order, what counted most, accuracy task by task, and against each setting."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from edbl.report.plots import LINES, blank, legend, plain, svg

BEST, DONE, PRUNED = LINES[1], LINES[0], "#909090"
MOST_NAMES = 8  # values of a setting whose names are written


class Point(NamedTuple):
    """A trial in a figure; values are shares."""

    number: int
    state: Literal["done", "pruned"]
    averages: Sequence[float]  # average accuracy so far, task by task
    best: bool

    @property
    def value(self) -> float:
        """The last of them."""
        return self.averages[-1] if self.averages else math.nan

    @property
    def colour(self) -> str:
        """Its colour."""
        return BEST if self.best else DONE if self.state == "done" else PRUNED


def history(points: Sequence[Point]) -> str:
    """Draw the value of each trial, and the best so far."""
    figure, axes = blank(7.2, 3.2)
    for state, marker in (("done", "o"), ("pruned", "x")):
        own = [point for point in points if point.state == state and not point.best]
        colour = DONE if state == "done" else PRUNED
        axes.plot([p.number for p in own], [100 * p.value for p in own], marker, color=colour, markersize=4)
    done = [point for point in points if point.state == "done"]
    best = [max(100 * point.value for point in done[: k + 1]) for k in range(len(done))]
    axes.step([point.number for point in done], best, where="post", color=BEST, linewidth=1.4)
    for point in points:
        if point.best:
            axes.plot([point.number], [100 * point.value], "o", color=BEST, markersize=6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("trial")
    axes.set_ylabel("average accuracy, %")
    _states(axes)
    return svg(figure)


def curves(points: Sequence[Point]) -> str:
    """Draw the average accuracy of each trial, task by task."""
    figure, axes = blank(7.2, 3.6)
    for point in sorted(points, key=lambda one: one.best):
        tasks = range(1, len(point.averages) + 1)
        style = "-" if point.state == "done" else "--"
        width, alpha = (2.0, 1.0) if point.best else (0.9, 0.6)
        values = [100 * value for value in point.averages]
        axes.plot(tasks, values, style, marker=".", color=point.colour, linewidth=width, alpha=alpha, markersize=4)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("task")
    axes.set_ylabel("average accuracy so far, %")
    _states(axes)
    return svg(figure)


def importances(shares: Sequence[tuple[str, float]]) -> str:
    """Draw how much of what differs between trials each setting explains."""
    figure, axes = blank(7.2, 0.8 + 0.3 * len(shares))
    axes.barh(range(len(shares)), [100 * share for _, share in shares], height=0.62, color=DONE)
    axes.set_yticks(range(len(shares)), [plain(name, 44) for name, _ in shares], parse_math=False)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("share of the differences between trials, %")
    return svg(figure)


def against(name: str, values: Sequence[object], points: Sequence[Point], log: bool) -> str:
    """Draw the value of each trial against what it chose for a setting: a number, or one of a few."""
    figure, axes = blank(3.4, 2.6)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    names = list(dict.fromkeys(map(str, values)))
    places: list[Any] = [value if numbers else names.index(str(value)) for value in values]
    for place, point in zip(places, points, strict=True):
        marker = "o" if point.state == "done" else "x"
        axes.plot([place], [100 * point.value], marker, color=point.colour, markersize=6 if point.best else 4)
    if not numbers and len(names) <= MOST_NAMES:
        axes.set_xticks(range(len(names)), [plain(one, 16) for one in names], parse_math=False)
    elif numbers and log:
        axes.set_xscale("log")
        ends = min(places), max(places)
        ticks = sorted({ends[0], math.sqrt(ends[0] * ends[1]), ends[1]})
        axes.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
        axes.minorticks_off()
    axes.set_xlabel(plain(name, 40), parse_math=False)
    axes.set_ylabel("average accuracy, %")
    return svg(figure)


def _states(axes: Axes) -> None:
    looks = (("best", BEST, "o"), ("to its end", DONE, "o"), ("stopped early", PRUNED, "x"))
    handles = [Line2D([], [], linestyle="", marker=marker, color=colour, markersize=4) for _, colour, marker in looks]
    legend(axes, handles, [name for name, _, _ in looks], columns=3)
