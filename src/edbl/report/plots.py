"""Figures as SVG text: the same records always give the same bytes.

Text and axes are drawn in ``currentColor`` on no background, so a figure inside a page takes on the page's colours,
light or dark. Names come from users' folders: they are shortened and never read as formulas.
"""

import io
import math
import re
import warnings
from collections.abc import Sequence
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from edbl.errors import EdblError
from edbl.metrics import Confusion
from edbl.report.tables import READOUT_NAMES, Group, readout_name
from edbl.store import write_output

# Okabe and Ito's palette without black and yellow, which vanish on a dark or on a light page.
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vPX*"
STYLES = ("-", "--", ":", "-.")  # of classifiers
# Paul Tol's muted palette, indigo lightened for dark pages: ten classes, told apart by colour-blind readers too.
CLASSES = (
    "#5566CC",
    "#CC6677",
    "#117733",
    "#DDCC77",
    "#88CCEE",
    "#AA4499",
    "#44AA99",
    "#882255",
    "#999933",
    "#909090",
)
HEAT = "#2F7FD0"
INK = "#010203"  # replaced by currentColor in the finished SVG
DARK = "#222222"  # of figures on white
NAMED = 20  # class names are written up to this many classes
NUMBERED = 12  # and numbers into the cells of a confusion matrix up to this many
TSNE_POINTS = 1000
FURTHEST = 1e15  # of a feature, since squares of distances are to be finite


def accuracy_curves(groups: Sequence[Group]) -> str:
    """Draw accuracy against classes seen: a style of line for each classifier, a band for the spread over runs."""
    return svg(_curves_figure(groups, INK))


def save_curves(groups: Sequence[Group], path: Path) -> None:
    """Write the accuracy curves, dark on white, to ``path``: an ``.svg`` or a ``.png`` file."""
    _save(_curves_figure(groups, DARK), path)


def save_tsne(
    features: NDArray[Any], labels: NDArray[Any], classes: Sequence[str], task_sizes: Sequence[int], path: Path
) -> None:
    """Write the map of features, dark on white, to ``path``: an ``.svg`` or a ``.png`` file."""
    _save(_tsne_figure(features, labels, classes, task_sizes, DARK), path)


def _save(figure: Figure, path: Path) -> None:
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("svg", "png"):
        raise EdblError(f"cannot write a figure to '{path}': end its name in .svg or .png")
    figure.patch.set(facecolor="white", alpha=1)
    write_output(path, _bytes(figure, kind))


def confusion(confusion: Confusion, classes: Sequence[str], task_sizes: Sequence[int]) -> str:
    """Draw a confusion matrix, each row as shares of its true class, with lines between tasks."""
    seen = len(confusion)
    images = confusion.sum(axis=1, keepdims=True)
    shares = confusion / np.maximum(images, 1)  # [seen, seen]
    figure, axes = blank(4.6, 4.4, INK)
    # From clear to full, not from white: the page's own background is the zero.
    heat = LinearSegmentedColormap.from_list("heat", [(HEAT, 0.0), (HEAT, 1.0)])
    axes.grid(visible=False)
    # Among many classes the single mistakes are rare: the root makes them visible.
    scale = PowerNorm(1.0 if seen <= NUMBERED else 0.5, vmin=0, vmax=1)
    axes.imshow(shares, cmap=heat, norm=scale, interpolation="none")
    for edge in np.cumsum(task_sizes)[:-1]:
        if edge < seen:
            axes.axhline(edge - 0.5, color=INK, linewidth=0.8)
            axes.axvline(edge - 0.5, color=INK, linewidth=0.8)
    if seen <= NUMBERED:
        for row, column in zip(*np.nonzero(confusion), strict=True):
            share = f"{100 * shares[row, column]:.0f}"
            axes.text(column, row, share, ha="center", va="center", color=INK, fontsize=7)
    if seen <= NAMED:
        names = [plain(name) for name in classes[:seen]]
        axes.set_xticks(range(seen), names, rotation=90 if max(map(len, names), default=0) > 3 else 0, parse_math=False)
        axes.set_yticks(range(seen), names, parse_math=False)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true class, in order of arrival")
    return svg(figure)


def tsne(features: NDArray[Any], labels: NDArray[Any], classes: Sequence[str], task_sizes: Sequence[int]) -> str:
    """Draw features in two dimensions: one colour per class, circles for old tasks, triangles for the newest."""
    return svg(_tsne_figure(features, labels, classes, task_sizes, INK))


def _tsne_figure(
    features: NDArray[Any], labels: NDArray[Any], classes: Sequence[str], task_sizes: Sequence[int], ink: str
) -> Figure:
    keep = even_subset(labels, TSNE_POINTS)
    keep = keep[(np.abs(features[keep].astype(np.float32)) < FURTHEST).all(axis=1)]  # which no NaN is
    points = _embed(features[keep].astype(np.float32))
    labels = labels[keep][: len(points)]
    old = sum(task_sizes[:-1])
    figure, axes = blank(4.6, 4.4, ink)
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.set_box_aspect(1)
    axes.set_adjustable("datalim")
    axes.spines[:].set(visible=True)
    axes.grid(visible=False)
    if len(points) == 0:
        axes.text(0.5, 0.5, "too few finite features", transform=axes.transAxes, ha="center", color=ink)
    handles = []
    for label in np.unique(labels):
        style: dict[str, Any] = {"marker": "o" if label < old else "^", "color": _class_colour(label, len(classes))}
        here = points[labels == label]
        axes.plot(*here.T, linestyle="", markersize=4, alpha=0.75, markeredgewidth=0, **style)
        handles.append(Line2D([], [], linestyle="", markersize=5, **style))
    if 0 < len(handles) <= NAMED:
        names = [plain(classes[label]) for label in np.unique(labels)]
        legend(axes, handles, names, columns=5 if max(map(len, names)) <= 6 else 3)
    return figure


def timings(groups: Sequence[Group]) -> str:
    """Draw where the time of a run went: one bar per group, one piece per part."""
    spent = [group.parts() for group in groups]
    parts = list(dict.fromkeys(part for one in spent for part in one if part != "other"))
    parts += ["other"] if any("other" in one for one in spent) else []
    figure, axes = blank(7.2, 1.1 + 0.32 * len(groups), INK)
    left = np.zeros(len(groups))
    unit, name = _time_unit(max((sum(one.values()) for one in spent), default=0.0))
    for index, part in enumerate(parts):
        width = np.array([one.get(part, 0.0) for one in spent]) / unit
        colour = "#909090" if part == "other" else LINES[index % len(LINES)]
        axes.barh(range(len(groups)), width, left=left, height=0.62, color=colour)
        left += width
    axes.set_yticks(range(len(groups)), [plain(group.label, 44) for group in groups], parse_math=False)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"{name} for the tasks finished")
    if parts:
        legend(axes, list(axes.containers), parts, columns=6, gap=0.5)
    return svg(figure)


def colours(groups: Sequence[Group]) -> list[str]:
    """Return the colour of each group in the curves."""
    return [LINES[index % len(LINES)] for index in range(len(groups))]


def even_subset(labels: NDArray[Any], most: int) -> NDArray[np.int64]:
    """Return the indices of at most ``most`` points, as equally many of each class as there are."""
    rank = np.empty(len(labels), dtype=np.int64)  # how many of its class come before a point
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        rank[places] = np.arange(len(places))
    first = np.argsort(rank, kind="stable")[:most]
    return np.sort(first)


def _curves_figure(groups: Sequence[Group], ink: str) -> Figure:
    figure, axes = blank(7.2, 4.0 + 0.2 * math.ceil(len(groups) / 2), ink)
    shown = [(group, colour) for group, colour in zip(groups, colours(groups), strict=True) if group.readouts]
    lowest = 1.0
    readouts = list(dict.fromkeys(readout for group, _ in shown for readout in group.readouts))
    styles: dict[str, Any] = dict(zip(dict.fromkeys([*READOUT_NAMES, *readouts]), cycle(STYLES)))
    handles = [Line2D([], [], color=ink, linestyle=styles[readout]) for readout in readouts]
    for index, (group, colour) in enumerate(shown):
        marker = MARKERS[index % len(MARKERS)]
        handles.append(Line2D([], [], color=colour, marker=marker, markersize=4))
        for readout in group.readouts:
            stats = group.accuracy(readout)
            mean = np.array([stat.mean for stat in stats])
            spread = np.nan_to_num([stat.spread for stat in stats])
            lowest = min([lowest, *(mean - spread)[~np.isnan(mean)]])
            style: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": styles[readout]}
            places = group.places[: len(mean)]
            axes.plot(places, 100 * mean, markersize=4, linewidth=1.6, **style)
            if spread.any():
                low, high = 100 * (mean - spread), 100 * (mean + spread)
                axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    bottom = max(0, 10 * math.floor(10 * lowest - 0.3))
    axes.set_ylim(bottom, 101)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ticks = sorted({place for group, _ in shown for place in group.places})
    if 0 < len(ticks) <= 12:
        axes.set_xticks(ticks)
    axes.set_xlabel("task" if any(0 in group.sizes for group, _ in shown) else "classes seen")
    axes.set_ylabel(f"accuracy, %; the axis starts at {bottom}" if bottom else "accuracy, %")
    names = [*(plain(readout_name(readout)) for readout in readouts), *(plain(group.label, 52) for group, _ in shown)]
    if shown:
        legend(axes, handles, names, columns=2, gap=0.5)
    return figure


def blank(width: float, height: float, ink: str = INK) -> tuple[Figure, Axes]:
    """Return a figure without anything in it."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    axes.tick_params(colors=ink, labelsize=8, width=0.6, length=2.5)
    axes.grid(color=ink, alpha=0.15, linewidth=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set(edgecolor=ink, linewidth=0.6, visible=side in ("left", "bottom"))
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=ink, fontsize=9)
    return figure, axes


def legend(axes: Axes, handles: Sequence[Any], names: Sequence[str], columns: int, gap: float = 0.2) -> None:
    """Put a legend below a figure."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    made: Legend = figure.legend(
        list(handles),
        [""] * len(handles),
        loc="outside lower center",
        ncols=min(columns, len(handles)),
        fontsize=8,
        frameon=False,
        borderaxespad=gap,
        handletextpad=0.4,
        columnspacing=1.2,
    )
    # Set afterwards, because a legend drops names that begin with an underscore.
    for text, name in zip(made.get_texts(), names, strict=True):
        text.set(text=name, color=axes.xaxis.label.get_color(), parse_math=False)


def _class_colour(label: int, classes: int) -> Any:
    if classes <= len(CLASSES):
        return CLASSES[label]
    # Too many for names: arrival order runs along a scale without its darkest and lightest ends.
    return matplotlib.colormaps["viridis"](0.1 + 0.8 * label / (classes - 1))


def _embed(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return t-SNE coordinates ``[n, 2]`` of ``features``; nothing where there are too few of them."""
    if len(features) < 4:
        return np.zeros((0, 2), dtype=np.float32)
    # t-SNE meets at a barrier many times a second: on a busy machine several threads take ten times as long as one.
    with import_module("threadpoolctl").threadpool_limits(limits=1):
        return _tsne(features)


def _tsne(features: NDArray[np.float32]) -> NDArray[np.float32]:
    from sklearn.manifold import TSNE  # takes a second to import, and most commands never draw

    count = len(features)
    centred = (features - features.mean(axis=0)).astype(np.float64)
    left, scale, _ = np.linalg.svd(centred, full_matrices=False)
    rank = int((scale > 1e-6 * scale[0]).sum())
    # Principal components make a good start; noise stands in for those that features without spread do not have.
    start = np.random.default_rng(0).normal(size=(count, 2))
    start[:, : min(rank, 2)] = left[:, : min(rank, 2)] * math.sqrt(count)
    reduced = (left * scale)[:, : max(1, min(rank, 50))]
    embedding = TSNE(
        perplexity=min(30.0, (count - 1) / 3), init=1e-4 * start.astype(np.float32), random_state=0, n_jobs=1
    )
    return np.asarray(embedding.fit_transform(reduced.astype(np.float32)), dtype=np.float32)


def _time_unit(seconds: float) -> tuple[float, str]:
    if seconds >= 2 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if seconds >= 180 else (1.0, "seconds")


def plain(name: str, longest: int = 24) -> str:
    """Return ``name`` on one line, printable and not too long."""
    line = "".join(letter if letter.isprintable() else "\ufffd" for letter in name)
    return line if len(line) <= longest else line[: longest - 1] + "…"


def _bytes(figure: Figure, kind: str) -> bytes:
    # A fixed salt and no date: the same records give the same file. Text stays text, which keeps it light.
    settings: dict[Any, Any] = {"svg.hashsalt": "edbl", "svg.fonttype": "none"}
    nameless: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type") if kind == "svg" else ("Software",))
    buffer = io.BytesIO()
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # Class names may be in any script; the reader's fonts have the letters that ours lack.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format=kind, dpi=160, metadata=nameless)
    return buffer.getvalue()


def svg(figure: Figure) -> str:
    """Return a figure as text that takes on the colours of the page around it."""
    text = _bytes(figure, "svg").decode()
    text = text[text.index("<svg") :]
    return re.sub(rf"(fill|stroke): {INK}", r"\1: currentColor", text)
