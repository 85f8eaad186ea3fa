"""Words for messages, and bars for a terminal while something lasts."""

import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import Progress

DASH = "—"  # where there is no number
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # characters that move a terminal's cursor, or do worse
LONGEST = 2000  # characters of the name of a class
NAMED = 5  # things named in a message before the rest is only counted
_watching: ContextVar[Callable[[], None]] = ContextVar("watching", default=lambda: None)


def count(things: Sequence[object] | int, noun: str) -> str:
    """Return how many there are, in words; ``things`` may be their number."""
    number = things if isinstance(things, int) else len(things)
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def rounded(number: float, digits: int = 1, sign: Literal["", "+"] = "") -> str:
    """Return a number with so many digits: ties, such as 56.15, that floats put just below, go away from zero."""
    exact = Decimal(f"{number:.9f}").quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return f"{exact if sign else exact + 0:{sign}f}"  # adding zero turns -0.0 into 0.0


def first(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


def duration(seconds: float) -> str:
    """Return a time for people: 12.3 s, 4 min 05 s, 3 h 20 min."""
    if not math.isfinite(seconds):
        return DASH
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"


def as_text(name: str | Path) -> str:
    """Return a name, which need not be valid text, as such."""
    return str(name).encode(errors="backslashreplace").decode()


def shown(name: str | Path) -> str:
    """Return a name that can be printed: what it holds must not move a terminal's cursor, or break a report."""
    return CONTROLS.sub(_written, as_text(name))


def printable(text: str) -> str:
    """Return lines that can be printed or put into a page, whatever the names and values in them hold."""
    return "\n".join(CONTROLS.sub(_written, line) for line in text.split("\n"))


def _written(control: re.Match[str]) -> str:
    return ascii(control[0])[1:-1]


def composed(name: str) -> str:
    """Return a name with its accents written in the one way, since systems write them in several."""
    return unicodedata.normalize("NFC", name)


def class_name(text: str) -> str:
    """Return the name of a class as models have it, however its accents are written."""
    name = composed(shown(text))
    return name.strip() or name


def is_class_name(text: str) -> bool:
    """Tell whether a text from disk is the name of a class as models have it."""
    return bool(text.strip()) and len(text) <= LONGEST and class_name(text) == text


def passing_bar(hidden: bool = False) -> Progress:
    """Return a progress bar that a terminal shows until it ends; what is printed meanwhile goes where it would."""
    console = Console(stderr=True)
    off = hidden or not console.is_terminal
    return Progress(console=console, transient=True, disable=off, redirect_stdout=False, redirect_stderr=False)


@contextmanager
def bar(label: str, total: int, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal; what it gives is called with how many are done."""
    with passing_bar(quiet) as progress:
        task = progress.add_task(label, total=total)

        def show(done: int) -> None:
            progress.update(task, completed=done)
            heed()

        yield show


@contextmanager
def watched(by: Callable[[], None]) -> Iterator[None]:
    """Call ``by`` whenever work of this thread that has a bar gets on; what it raises ends the work."""
    before = _watching.set(by)
    try:
        yield
    finally:
        _watching.reset(before)


def heed() -> None:
    """Let who watches this thread end its work."""
    _watching.get()()
