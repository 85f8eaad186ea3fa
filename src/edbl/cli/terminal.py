"""What commands print, and where."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Column, Table

if TYPE_CHECKING:
    from edbl.engine.progress import Bars

WIDE = 10_000  # columns


class _Clean(Console):
    """A console that shows what others wrote, such as names in records and models, as text and nothing else.

    Where nobody reads on, as behind ``| head -1``, what is printed goes nowhere and the command goes on.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Return what is to be printed, in pieces."""
        from edbl.text import printable

        for text, style, control in super().render(renderable, options):
            clean = control or text == "\n" or text.isprintable()
            yield Segment(text if clean else printable(text), style, control)

    def on_broken_pipe(self) -> None:
        """Go on without a reader."""
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())


console = _Clean(emoji=False)


def tell(message: str) -> None:
    """Print a result as it is, whatever is in its names."""
    console.print(message, markup=False, highlight=False, soft_wrap=True)


def put(text: str) -> None:
    """Print what programs read, as it is; where nobody reads on, it goes nowhere and the command continues."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        console.on_broken_pipe()


def put_json(value: object, indent: int | None = 1) -> None:
    """Print a value as JSON, for programs."""
    put(json.dumps(value, indent=indent) + "\n")


def say(message: str) -> None:
    """Print what is not a result, so that it does not end up in a file or a pipe."""
    _stderr().print(escape(message), highlight=False, soft_wrap=True)


def complain(message: str) -> None:
    """Print an error, if there is a way to."""
    with suppress(OSError):
        _stderr().print(f"[red]error:[/red] {escape(message)}", highlight=False, soft_wrap=True)


def show(tables: RenderableType) -> None:
    """Print tables; in a file or a pipe nothing of them is folded."""
    (console if console.is_terminal else _Clean(emoji=False, width=WIDE)).print(tables, highlight=False)


def table(*headings: str) -> Table:
    """Return an empty table without lines; on a narrow terminal what is in it is folded, and nothing cut off."""
    return Table(*(Column(heading, overflow="fold") for heading in headings), box=None, pad_edge=False)


def bars() -> "Bars":
    """Return what shows the progress of a run."""
    from edbl.engine.progress import Bars

    return Bars(console)


def show_runs(folders: Sequence[Path], page: Path, figure: Path | None = None) -> None:
    """Print the table of the runs in folders or below them, and write their page, or tables."""
    from edbl.report.files import check, write_report
    from edbl.report.finding import findings
    from edbl.report.plots import save_curves
    from edbl.report.runs import by_stream, read_runs
    from edbl.report.tables import groups, run_table

    check(page)
    runs = read_runs(folders)
    found = [run.record for run in runs]
    if figure:
        save_curves(groups(found), figure)
    show(run_table(found))
    for together in by_stream(runs):
        compared = groups([run.record for run in together])
        for line in findings(compared) if len(compared) > 1 else ():
            tell(line)
    with console.status("making the report"):
        written = write_report(runs, page)
    tell(f"report: {written}")


def _stderr() -> Console:
    return _Clean(stderr=True, emoji=False)
