"""What a command says, and tidies up, when it is stopped."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from edbl.cli import terminal
from edbl.errors import command

if TYPE_CHECKING:
    from edbl.engine.progress import Bars

HANGUP = getattr(signal, "SIGHUP", None)  # not on Windows
told = False  # that the command is interrupted


def tell(how: str = "") -> None:
    """Say that the command is interrupted, once, and ``how`` to go on."""
    global told
    if not told:
        told = True
        terminal.say(f"interrupted; {how}" if how else "interrupted")


@contextmanager
def interruptible(how: Callable[[], str]) -> Iterator[None]:
    """Say ``how`` to go on if Ctrl-C is pressed meanwhile."""
    try:
        yield
    except KeyboardInterrupt:
        tell(how())
        raise typer.Exit(128 + signal.SIGINT) from None


@contextmanager
def one_run(folder: Path, values: Mapping[str, object]) -> Iterator["Bars"]:
    """Show how far a run in ``folder`` is, and say how to go on if it is interrupted; ``values`` may name code."""

    def how() -> str:
        from edbl import users
        from edbl.records import RECORD

        if (folder / RECORD).exists():
            return f"{command('resume', folder, *users.again(values))} goes on from the last checkpoint"
        return "the same command starts again"

    with interruptible(how), terminal.bars() as bars:
        yield bars


@contextmanager
def many_runs() -> Iterator[None]:
    """End the processes of several runs also where a batch system or a closed terminal asks for it."""
    code = 128 + signal.SIGINT

    def end(number: int, _: object) -> None:
        nonlocal code
        code = 128 + number
        raise KeyboardInterrupt

    asked = [one for one in (signal.SIGTERM, HANGUP) if one and signal.getsignal(one) != signal.SIG_IGN]  # as by nohup
    usual = {one: signal.signal(one, end) for one in asked}
    try:
        yield
    except KeyboardInterrupt:
        tell("the same command continues from the last checkpoints")
        raise typer.Exit(code) from None
    finally:
        for one, handler in usual.items():
            signal.signal(one, handler)
