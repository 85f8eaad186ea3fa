"""A report as a file: what its name ends in says of which kind."""

from collections.abc import Callable, Sequence
from pathlib import Path

from edbl.errors import EdblError
from edbl.report import long, page, paste
from edbl.report.runs import Run
from edbl.store import write_output
from edbl.text import printable

KINDS: dict[str, Callable[[Sequence[Run]], str]] = {
    ".html": page.html,
    ".csv": long.as_csv,
    ".tex": paste.latex,
    ".md": paste.markdown,
}


def check(out: Path) -> None:
    """Refuse a name that says of no kind, or is a folder's."""
    *others, last = KINDS
    if out.is_dir():
        raise EdblError(f"cannot write the report to '{out}': it is a folder, name a file such as report.html")
    if out.suffix.lower() not in KINDS:
        raise EdblError(f"cannot write a report to '{out}': end its name in {', '.join(others)} or {last}")


def write_report(runs: Sequence[Run], out: Path) -> Path:
    """Write the page or the tables of runs to ``out``, and return ``out``."""
    check(out)
    if not runs:
        raise EdblError("nothing to report: name at least one run folder")
    text = KINDS[out.suffix.lower()](runs)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EdblError(f"cannot make the folder '{out.parent}': {error.strerror}") from error
    # Names need not be valid text, a page must be.
    write_output(out, printable(text).encode("utf-8", errors="replace"))
    return out
