"""The command line: all commands, in the order of the help, and what becomes of errors.

Commands parse, call and print; they import what they call when they are called, so that ``edbl --help`` need not wait
for PyTorch.
"""

import io
import os
import signal
import sys
from itertools import pairwise
from typing import Annotated

import typer

from edbl.cli import data, lists, models, runs, serve, stopping, studies, terminal, tuning, watching
from edbl.cli.options import with_flags
from edbl.errors import EdblError

ALLOCATOR = "DefaultCPUAllocator"  # which PyTorch names where there is no memory

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command line; errors a user can mend are one message and exit code 2."""
    stopping.told = False
    if sys.stdout is None:  # closed by the caller: what is printed goes nowhere
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
        if ended.code == 128 + signal.SIGINT:
            stopping.tell()
        raise
    except KeyboardInterrupt:  # before or after the command itself
        stopping.tell()
        sys.exit(128 + signal.SIGINT)
    except EdblError as error:
        terminal.complain(with_flags(str(error)))
        sys.exit(2)
    except OSError as error:  # a full disk, a folder that may not be written: nothing that a traceback would explain
        where = f" ({error.filename})" if error.filename else ""
        terminal.complain(f"{error.strerror or error}{where}")
        sys.exit(2)
    except Exception as error:
        from edbl.users import told

        if isinstance(error, MemoryError) or ALLOCATOR in str(error):
            terminal.complain("memory has run out; end other programs, or use smaller images, batches or exemplars")
            sys.exit(2)
        if not (crash := told(error)):
            raise
        terminal.complain(crash)
        sys.exit(1)


def _version(wanted: bool) -> None:
    if wanted:
        from edbl import __version__

        terminal.tell(f"edbl {__version__}")
        raise typer.Exit


@app.callback()
def edbl(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Class-incremental learning: EDBL and its baselines."""


app.command()(runs.run)
app.command()(runs.resume)
app.command()(watching.watch)
app.command()(runs.check)
app.command()(runs.report)
app.command()(runs.compare)
app.command()(studies.demo)
app.command()(models.learn)
app.command()(models.predict)
app.command()(models.info)
app.command()(models.forget)
app.command()(models.rename)
app.command()(models.merge)
app.command()(models.join)
app.command()(models.history)
app.command()(models.undo)
app.command()(models.prune)
app.command()(models.export)
app.command()(serve.serve)
app.command()(runs.bench)
app.command()(studies.reproduce)
app.command()(studies.study)
app.command()(studies.results)
app.command()(tuning.tune)
app.command("list")(lists.list_)
app.command()(lists.doctor)
app.add_typer(data.app, name="data")
