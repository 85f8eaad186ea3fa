"""The command that watches runs."""

import time
from pathlib import Path
from typing import Annotated

import typer

from edbl.cli import terminal


def watch(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS", help="Runs, or folders that contain runs.")],
    once: Annotated[bool, typer.Option("--once", help="Show them once and stop.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between updates of the table.", min=0.1, max=3600)] = 2.0,
) -> None:
    """Watch runs: task, accuracy so far, speed, time left. Ctrl-C stops watching, not the runs."""
    from rich.live import Live

    from edbl.report.watch import View, Watcher

    watcher = Watcher(runs)
    if once or not terminal.console.is_terminal:
        terminal.show(View(watcher.look().runs, whole=True))
        return
    try:
        with Live(watcher.look(), console=terminal.console, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                time.sleep(every)
                live.update(watcher.look(), refresh=True)
    except KeyboardInterrupt:  # the usual end
        return
