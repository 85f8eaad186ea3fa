"""What commands print, and where."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from edbl.engine.progress import Bars

WIDE = 10_000  # columns

console = Console(emoji=False)


def tell(message: str) -> None:
    """Print a result as it is, whatever is in its names."""
    console.print(message, markup=False, highlight=False, soft_wrap=True)


def say(message: str) -> None:
    """Print what is not a result, so that it does not end up in a file or a pipe."""
    _stderr().print(escape(message), highlight=False, soft_wrap=True)


def complain(message: str) -> None:
    """Print an error."""
    _stderr().print(f"[red]error:[/red] {escape(message)}", highlight=False, soft_wrap=True)


def show(tables: RenderableType) -> None:
    """Print tables; in a file or a pipe nothing of them is folded."""
    (console if console.is_terminal else Console(emoji=False, width=WIDE)).print(tables, highlight=False)


def table(*headings: str) -> Table:
    """Return an empty table without lines."""
    return Table(*headings, box=None, pad_edge=False)


def bars() -> "Bars":
    """Return what shows the progress of a run."""
    from edbl.engine.progress import Bars

    return Bars(console)


def show_runs(folders: Sequence[Path], page: Path, figure: Path | None = None) -> None:
    """Print the table of runs, and write their page."""
    from edbl.report.page import read_runs, write_report
    from edbl.report.plots import save_curves
    from edbl.report.tables import groups, run_table

    runs = read_runs(folders)
    found = [run.record for run in runs]
    if figure:
        save_curves(groups(found), figure)
    show(run_table(found))
    with console.status("making the report"):
        written = write_report(runs, page)
    tell(f"report: {written}")


def _stderr() -> Console:
    return Console(stderr=True, emoji=False)
