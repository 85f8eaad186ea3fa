"""Curves for terminals: a line of blocks, or a plot of braille dots."""

import math
from collections.abc import Sequence
from itertools import pairwise

from rich.text import Text

BLOCKS, PLAIN = "▁▂▃▄▅▆▇█", "_.-~=+*#"  # the latter where a terminal has ASCII alone
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille character, by row and column
COLOURS = ("blue", "red", "green", "magenta", "yellow", "cyan")


def spark(values: Sequence[float], width: int, low: float | None = None, high: float | None = None) -> str:
    """Return a line of blocks for numbers, at most so many; those of a longer list are the last of even parts."""
    there = [value for value in values if math.isfinite(value)]
    if not there or width < 1:
        return ""
    if len(there) > width:
        there = [there[(k + 1) * len(there) // width - 1] for k in range(width)]
    least, most = min(there) if low is None else low, max(there) if high is None else high
    part = 1.0 if math.isfinite(most - least) else 0.25  # of what no float can hold
    span = (part * most - part * least) or 1.0
    places = [min(max((part * value - part * least) / span, 0.0), 1.0) * (len(BLOCKS) - 1) for value in there]
    return "".join(BLOCKS[round(place)] for place in places)


def plain(line: str) -> str:
    """Return a line of blocks in ASCII."""
    return line.translate(dict(zip(map(ord, BLOCKS), PLAIN, strict=True)))


def plot(curves: Sequence[Sequence[float]], width: int, height: int, low: float, high: float) -> Text:
    """Return curves of numbers over their places, from ``low`` to ``high``, as so many lines of braille dots."""
    across, down = 2 * width, 4 * height
    longest = max((len(curve) for curve in curves), default=0)
    cells: dict[tuple[int, int], tuple[int, int]] = {}  # dots and curve, by row and column

    def dot(x: float, y: float, curve: int) -> None:
        column = min(round(x), across - 1)
        row = down - 1 - min(max(round((y - low) / (high - low) * (down - 1)), 0), down - 1)
        place = row // 4, column // 2
        cells[place] = cells.get(place, (0, 0))[0] | DOTS[row % 4][column % 2], curve

    step = (across - 1) / max(longest - 1, 1)
    for number, curve in enumerate(curves):
        points = [(k * step, value) for k, value in enumerate(curve) if math.isfinite(value)]
        for x, y in points:
            dot(x, y, number)
        for (x, y), (x2, y2) in pairwise(points):
            steps = max(math.ceil(abs(x2 - x)), 1)
            for k in range(steps):
                dot(x + (x2 - x) * k / steps, y + (y2 - y) * k / steps, number)
    text = Text()
    for row in range(height):
        axis = high if row == 0 else low if row == height - 1 else None
        text.append("\n" * bool(row) + (f"{100 * axis:4.0f} " if axis is not None else " " * 5), "dim")
        for column in range(width):
            dots, number = cells.get((row, column), (0, -1))
            text.append(chr(0x2800 + dots) if dots else " ", COLOURS[number % len(COLOURS)] if dots else "")
    return text
