"""One table of all runs of a list: what each does, where, and what those wait for that have not begun."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from edbl.engine.progress import OnTerminal

State = Literal["running", "waiting", "failed", "left", "done"]
STYLES: dict[State, str] = {"running": "green", "waiting": "cyan", "failed": "red", "left": "yellow", "done": "bold"}
BAR = 20  # characters


@dataclass
class Line:
    """A run."""

    name: str
    state: State = "waiting"
    share: float = 0.0  # that is done
    where: str = ""
    why: str = ""  # it waits, or what it does


class Board(OnTerminal):
    """The table, on a terminal; elsewhere nothing is shown."""

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        self.console = console
        self.lines = [Line(name) for name in names]
        super().__init__(Live(self, console=console, refresh_per_second=4))

    def wait(self, place: int, why: str) -> None:
        """Show that a run waits, and why."""
        self.lines[place].state, self.lines[place].why, self.lines[place].where = "waiting", why, ""

    def run(self, place: int, share: float | None = None, where: str = "", why: str = "") -> None:
        """Show that a run goes on; what is not given stays."""
        line = self.lines[place]
        line.state, line.why = "running", why
        line.share = line.share if share is None else share
        line.where = where or line.where

    def end(self, place: int, state: State, why: str = "") -> None:
        """Show how a run ended, in the first line of ``why``."""
        line = self.lines[place]
        line.state, line.why = state, why.partition("\n")[0]
        line.share = 1.0 if state == "done" else line.share

    @property
    def summary(self) -> str:
        """How many runs there are in which state."""
        states = Counter(line.state for line in self.lines)
        return f"runs: {', '.join(f'{states[state]} {state}' for state in STYLES if states[state])}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw as many runs as there is room for, those first of which there is most to tell."""
        order = list(STYLES)
        most = max(1, console.size.height - 3)
        ranked = sorted(range(len(self.lines)), key=lambda place: (order.index(self.lines[place].state), place))
        columns = (Column("run", overflow="fold"), "state", "where", "", Column("", justify="right"), "")
        table = Table(*columns, box=None, pad_edge=False, show_header=False)
        for place in sorted(ranked[:most]):
            line = self.lines[place]
            bar = ProgressBar(total=1.0, completed=line.share, width=BAR)
            percent = f"{line.share:.0%}" if line.share else ""
            state = Text(line.state, STYLES[line.state])
            table.add_row(Text(line.name), state, Text(line.where), bar, percent, Text(line.why))
        yield Text(self.summary, "bold")
        yield table
        if len(self.lines) > most:
            yield Text(f"and {len(self.lines) - most} more", "dim")
