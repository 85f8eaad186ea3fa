"""Progress: what a user sees while a run trains."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from torch import Tensor

REFRESH = 0.5  # seconds between looks at the loss, each of which waits for the device


class Progress:
    """What the engine tells while it works. This one says nothing."""

    def run(self, title: str, tasks: int, epochs: int, done: int) -> None:
        """Announce a run of ``epochs`` epochs in all, of which ``done`` need no training any more."""

    def phase(self, task: int, name: str, epochs: int, done: int) -> None:
        """Announce a phase, of which ``done`` epochs need no training any more."""

    def epoch(self, epoch: int, steps: int) -> None:
        """Announce an epoch."""

    def step(self, losses: Tensor, number: int, images: int) -> None:
        """Count a step; its loss is, or will be, ``losses[number]``."""

    def busy(self, what: str) -> None:
        """Announce work that is no training."""

    def say(self, message: str) -> None:
        """Tell something worth a line."""


class Bars(Progress):
    """Live bars on a terminal: task, phase, epoch, loss, images/s, time left; elsewhere a line per task."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._title, self._tasks, self._epochs = "", 0, 0  # of the run
        self._task, self._phase, self._phase_epochs = 0, "", 0  # of the phase
        self._before = 0  # epochs of the run that were done when the phase began, those not trained now included
        self._start = self._epoch = 0  # epochs of the phase: not trained now, and done
        self._step, self._steps, self._images = 0, 1, 0
        self._loss, self._busy = float("nan"), ""
        self._looked = self._began = time.monotonic()
        self._live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._render)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def run(self, title: str, tasks: int, epochs: int, done: int) -> None:
        """Announce a run."""
        self._title, self._tasks, self._epochs, self._before = title, tasks, epochs, done
        self._phase_epochs = self._start = self._epoch = self._step = 0

    def phase(self, task: int, name: str, epochs: int, done: int) -> None:
        """Announce a phase."""
        self._before += self._epoch
        self._busy = ""
        self._task, self._phase, self._phase_epochs = task, name, epochs
        self._start = self._epoch = done
        self._step = self._images = 0
        self._began = time.monotonic()

    def epoch(self, epoch: int, steps: int) -> None:
        """Announce an epoch."""
        self._epoch, self._steps, self._step = epoch, steps, 0

    def step(self, losses: Tensor, number: int, images: int) -> None:
        """Count a step."""
        self._busy = ""
        self._step = number + 1
        self._images += images
        now = time.monotonic()
        if now - self._looked > REFRESH:
            self._loss, self._looked = float(losses[number]), now
        if self._step == self._steps:
            self._epoch, self._step = self._epoch + 1, 0

    def busy(self, what: str) -> None:
        """Announce work that is no training."""
        self._busy = what

    def say(self, message: str) -> None:
        """Print a line above the bars."""
        self.console.print(message, highlight=False)

    def _render(self) -> Table:
        done = self._epoch + self._step / self._steps  # epochs of this phase
        trained, elapsed = done - self._start, max(time.monotonic() - self._began, 1e-6)
        left = elapsed / trained * (self._epochs - self._before - done) if trained else None
        table = Table.grid(padding=(0, 1))
        table.add_row(
            f"[bold]{escape(self._title)}[/bold]",
            ProgressBar(total=max(self._epochs, 1), completed=self._before + done, width=30),
            f"task {self._task + 1}/{self._tasks}",
            f"time left {_clock(left)}" if left is not None else "",
        )
        if self._busy:
            table.add_row(escape(self._busy), ProgressBar(pulse=True, width=30))
        elif self._phase_epochs:
            table.add_row(
                escape(self._phase),
                ProgressBar(total=self._phase_epochs, completed=done, width=30),
                f"epoch {min(self._epoch + 1, self._phase_epochs)}/{self._phase_epochs}",
                f"loss {self._loss:.4f}  {self._images / elapsed:,.0f} images/s",
            )
        return table


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
