"""Progress: what the engine tells while it works, and who shows it: bars on a terminal, the pulse of a run."""

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from torch import Tensor

from edbl import pulse
from edbl.pulse import Pulse

LOSS = ""  # the name of a phase's loss among what it logs
RECENT = 60  # epochs whose losses a pulse has
REFRESH = 0.5  # seconds between looks at the loss, each of which waits for the device


class Progress:
    """What the engine tells while it works. This one says nothing."""

    def run(self, title: str, plan: Sequence[int], first: int) -> None:
        """Announce a run from task ``first`` on; the plan is about how many epochs each task takes."""

    def phase(self, task: int, name: str, epochs: int, done: int) -> None:
        """Announce a phase, of which ``done`` epochs need no training any more."""

    def learnt(self, task: int) -> None:
        """Announce that a task is learnt, in phases or without any."""

    def epoch(self, epoch: int, steps: int) -> None:
        """Announce an epoch."""

    def step(self, losses: Tensor, number: int, images: int) -> None:
        """Count a step; its loss is, or will be, ``losses[number]``."""

    def trained(self, epoch: int, means: Mapping[str, float], rate: float, within: Sequence[float]) -> None:
        """Announce the end of an epoch of a phase, counted from 1, before a checkpoint has it.

        The mean of its loss has an empty name, and what the loss logged its own. ``within`` are accuracies over all,
        old and new classes, if they were measured.
        """

    def busy(self, what: str) -> None:
        """Announce work that is no training."""

    def say(self, message: str) -> None:
        """Tell something worth a line."""


class Several(Progress):
    """Tell all of several."""

    def __init__(self, *others: Progress) -> None:
        self.others = others

    def run(self, title: str, plan: Sequence[int], first: int) -> None:
        """Announce a run."""
        for one in self.others:
            one.run(title, plan, first)

    def phase(self, task: int, name: str, epochs: int, done: int) -> None:
        """Announce a phase."""
        for one in self.others:
            one.phase(task, name, epochs, done)

    def learnt(self, task: int) -> None:
        """Announce that a task is learnt."""
        for one in self.others:
            one.learnt(task)

    def epoch(self, epoch: int, steps: int) -> None:
        """Announce an epoch."""
        for one in self.others:
            one.epoch(epoch, steps)

    def step(self, losses: Tensor, number: int, images: int) -> None:
        """Count a step."""
        for one in self.others:
            one.step(losses, number, images)

    def trained(self, epoch: int, means: Mapping[str, float], rate: float, within: Sequence[float]) -> None:
        """Announce the end of an epoch."""
        for one in self.others:
            one.trained(epoch, means, rate, within)

    def busy(self, what: str) -> None:
        """Announce work that is no training."""
        for one in self.others:
            one.busy(what)

    def say(self, message: str) -> None:
        """Tell something worth a line."""
        for one in self.others:
            one.say(message)


class Count(Progress):
    """Keep count of epochs, steps, images and time."""

    def __init__(self) -> None:
        self.title = ""
        self.plan: list[int] = []  # epochs of each task, which are known for sure once it is learnt
        self.task, self.phase_name, self.phase_epochs = 0, "", 0  # of the phase
        self.before = 0  # epochs of the task's phases before the present one
        self.start = self.now = 0  # epochs of the phase: not trained now, and done
        self.number, self.steps = 0, 1  # steps of the epoch: done, and in all
        self.began, self.images = time.monotonic(), 0  # of the phase

    @property
    def done(self) -> float:
        """Epochs of the phase that are done, the present one in part."""
        return self.now + self.number / self.steps

    @property
    def left(self) -> float:
        """Epochs of the run that are left, as far as they are known."""
        return sum(self.plan[self.task :]) - self.before - self.done

    @property
    def share(self) -> float:
        """Share of the run that is done: of its epochs or, where there are none, of its tasks."""
        epochs = sum(self.plan)
        return 1 - self.left / epochs if epochs else self.task / max(len(self.plan), 1)

    def run(self, title: str, plan: Sequence[int], first: int) -> None:
        """Announce a run."""
        self.title, self.plan, self.task = title, list(plan), first
        self.before = self.phase_epochs = self.start = self.now = self.number = 0

    def phase(self, task: int, name: str, epochs: int, done: int) -> None:
        """Announce a phase; a plan that was too short or too long is mended as soon as that shows."""
        self.before += self.phase_epochs
        self.task, self.phase_name, self.phase_epochs = task, name, epochs
        self.plan[task] = max(self.plan[task], self.before + epochs)
        self.start = self.now = done
        self.number = 0
        self.began, self.images = time.monotonic(), 0

    def learnt(self, task: int) -> None:
        """Plan for a task what it took, and for later ones the same: only a first task is unlike others."""
        took = self.before + self.phase_epochs
        self.plan[task:] = [took, *([took] * len(self.plan[task + 1 :]) if task or not took else self.plan[task + 1 :])]
        self.task = task + 1
        self.before = self.phase_epochs = self.start = self.now = self.number = 0

    def epoch(self, epoch: int, steps: int) -> None:
        """Announce an epoch."""
        self.now, self.steps, self.number = epoch, steps, 0

    def step(self, losses: Tensor, number: int, images: int) -> None:
        """Count a step."""
        self.images += images
        self.number = number + 1
        if self.number == self.steps:
            self.now, self.number = self.now + 1, 0

    def pace(self) -> tuple[float, float | None]:
        """Return images/s in this phase, and the seconds that are left of the run, if anything tells."""
        trained, elapsed = self.done - self.start, max(time.monotonic() - self.began, 1e-6)
        return self.images / elapsed, elapsed / trained * self.left if trained else None


class Beat(Count):
    """Writes the pulse of a run."""

    def __init__(self) -> None:
        super().__init__()
        self._losses: deque[float] = deque(maxlen=RECENT)
        self._busy = ""

    def phase(self, task: int, name: str, epochs: int, done: int) -> None:
        """Announce a phase."""
        super().phase(task, name, epochs, done)
        self._busy = ""
        self._losses.clear()

    def step(self, losses: Tensor, number: int, images: int) -> None:
        """Count a step."""
        super().step(losses, number, images)
        self._busy = ""

    def trained(self, epoch: int, means: Mapping[str, float], rate: float, within: Sequence[float]) -> None:
        """Announce the end of an epoch."""
        self._losses.append(means[LOSS])

    def busy(self, what: str) -> None:
        """Announce work that is no training."""
        self._busy = what

    @contextmanager
    def beating(self, folder: Path) -> Iterator[None]:
        """Write the pulse meanwhile, from a thread of its own, which looks at counts alone."""
        over = threading.Event()

        def beat() -> None:
            while True:
                pulse.write(folder, self._now())
                if over.wait(pulse.EVERY):
                    return

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            pulse.remove(folder)

    def _now(self) -> Pulse:
        speed, left = self.pace()
        return Pulse(
            "running",
            self.title,
            task=self.task,
            tasks=len(self.plan),
            phase=self._busy or self.phase_name,
            epoch=self.now,
            epochs=self.phase_epochs,
            share=self.share,
            left=-1.0 if left is None else left,
            speed=speed,
            losses=list(self._losses),
        )


class OnTerminal:
    """What a terminal shows from when it is entered until it is left; elsewhere nothing is shown."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def __enter__(self) -> Self:
        if self._live.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


class Bars(Count, OnTerminal):
    """Live bars on a terminal: task, phase, epoch, loss, images/s, time left; elsewhere a line per task."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        self._loss: float | None = None  # unless it was looked at
        self._busy = ""
        self._looked = time.monotonic()
        live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._render)
        OnTerminal.__init__(self, live)

    def phase(self, task: int, name: str, epochs: int, done: int) -> None:
        """Announce a phase."""
        super().phase(task, name, epochs, done)
        self._loss, self._busy = None, ""

    def step(self, losses: Tensor, number: int, images: int) -> None:
        """Count a step."""
        super().step(losses, number, images)
        self._busy = ""
        now = time.monotonic()
        if now - self._looked > REFRESH:
            self._loss, self._looked = float(losses[number]), now

    def busy(self, what: str) -> None:
        """Announce work that is no training."""
        self._busy = what

    def say(self, message: str) -> None:
        """Print a line above the bars."""
        self.console.print(message, markup=False, highlight=False, soft_wrap=True)

    def _render(self) -> Table:
        speed, left = self.pace()
        table = Table.grid(padding=(0, 1))
        table.add_row(
            f"[bold]{escape(self.title)}[/bold]",
            ProgressBar(total=1, completed=self.share, width=30),
            f"task {min(self.task + 1, len(self.plan))}/{len(self.plan)}",
            f"time left {clock(left)}" if left is not None else "",
        )
        if self._busy:
            table.add_row(escape(self._busy), ProgressBar(pulse=True, width=30))
        elif self.phase_epochs:
            table.add_row(
                escape(self.phase_name),
                ProgressBar(total=self.phase_epochs, completed=self.done, width=30),
                f"epoch {min(self.now + 1, self.phase_epochs)}/{self.phase_epochs}",
                f"{'' if self._loss is None else f'loss {self._loss:.4f}  '}{speed:,.0f} images/s",
            )
        return table


def clock(seconds: float) -> str:
    """Return a time as clocks show it."""
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
