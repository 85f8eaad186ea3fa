"""The command line: all commands, in the order of the help, and what becomes of errors.

Commands parse, call and print; they import what they call when they are called, so that ``edbl --help`` need not wait
for PyTorch.
"""

import io
import os
import signal
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated

import typer

from edbl import group
from edbl.cli import data, lists, models, runs, serve, stopping, studies, terminal, tuning, watching
from edbl.cli.examples import PANELS, epilog
from edbl.cli.options import with_flags
from edbl.errors import Busy, EdblError

LATER = 75  # the exit code that batch systems have for what may be tried again later
ALLOCATOR = "DefaultCPUAllocator"  # which PyTorch names where there is no memory

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command line; errors a user can mend are one message and exit code 2, or 75 if waiting mends them."""
    stopping.told = group.follows()  # the first of several processes tells
    group.end_with_starter()
    if sys.stdout is None or group.follows():  # closed by the caller: what is printed goes nowhere
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what it cannot hold of a name must not end the command
            stream.reconfigure(errors="backslashreplace")
    try:
        # An empty path would be the current folder; the values of options are looked at where they are used.
        if any(not word and not before.startswith("-") for before, word in pairwise(sys.argv)):
            raise EdblError("an argument is empty; such as a variable of the shell that is not set")
        app()
    except SystemExit as ended:
        if crash := _crash(ended):
            terminal.complain(crash)
            sys.exit(1)
        if ended.code == 128 + signal.SIGINT:
            stopping.tell()
        raise
    except KeyboardInterrupt:  # before or after the command itself
        stopping.tell()
        sys.exit(128 + signal.SIGINT)
    except EdblError as error:
        if group.silent(error):
            sys.exit(2)
        terminal.complain(with_flags(str(error)))
        sys.exit(LATER if isinstance(error, Busy) else 2)
    except OSError as error:  # a full disk, a folder that may not be written: nothing that a traceback would explain
        where = f" ({error.filename})" if error.filename else ""
        terminal.complain(f"{error.strerror or error}{where}")
        sys.exit(2)
    except BaseException as error:  # such as a user's code may raise
        if isinstance(error, MemoryError) or ALLOCATOR in str(error):
            terminal.complain("memory has run out; end other programs, or use smaller images, batches or exemplars")
            sys.exit(2)
        if not (crash := _crash(error)):
            raise
        terminal.complain(crash)
        sys.exit(1)


def _crash(error: BaseException) -> str:
    """Return where a user's code crashed, if it did: it may end the process, too."""
    users = sys.modules.get("edbl.users")
    return users.told(error) if users else ""


def _version(wanted: bool) -> None:
    if wanted:
        from edbl import __version__

        terminal.tell(f"edbl {__version__}")
        raise typer.Exit


@app.callback()
def edbl(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Teach an image classifier new classes over time, without keeping all the old photos.

    Begin with `edbl demo`, `edbl demo photos`, or `edbl learn MODEL PHOTOS`, a folder with a sub-folder for each class.
    """
    if group.wanted() > 1 and context.invoked_subcommand not in ("run", "resume"):
        raise EdblError("several processes make one run, by `edbl run` or `edbl resume`; start one for other commands")


COMMANDS: dict[str, Callable[..., None]] = {
    "learn": models.learn,
    "predict": models.predict,
    "serve": serve.serve,
    "info": models.info,
    "forget": models.forget,
    "rename": models.rename,
    "merge": models.merge,
    "join": models.join,
    "history": models.history,
    "undo": models.undo,
    "prune": models.prune,
    "export": models.export,
    "run": runs.run,
    "resume": runs.resume,
    "watch": watching.watch,
    "check": runs.check,
    "tune": tuning.tune,
    "compare": runs.compare,
    "report": runs.report,
    "list": lists.list_,
    "reproduce": studies.reproduce,
    "study": studies.study,
    "results": studies.results,
    "demo": studies.demo,
    "doctor": lists.doctor,
    "bench": runs.bench,
}
for panel, shown in PANELS.items():
    for word, examples in shown.items():
        app.command(word, rich_help_panel=panel, epilog=epilog(examples))(COMMANDS[word])
app.add_typer(data.app, name="data", rich_help_panel="Experiments")
