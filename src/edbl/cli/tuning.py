"""The command that searches for settings of a method."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edbl.cli import options, runs, stopping, terminal
from edbl.cli.options import DataDir, Log

if TYPE_CHECKING:
    from edbl.tuning.search import Searcher


def tune(
    method: Annotated[str, typer.Argument(help="Method, or .py file with one. See `edbl list methods`.")],
    out: Annotated[Path, typer.Option(help="Folder of the search, new or to go on with.")],
    data: Annotated[str | None, typer.Option(help="Data set, or path of an image folder.")] = None,
    search: Annotated[
        Path | None, typer.Option(help="What to search, as TOML. Default: what the method declares.")
    ] = None,
    trials: Annotated[int, typer.Option(help="How many trials in all, by all processes.", min=1, max=100_000)] = 30,
    recipe: Annotated[str | None, typer.Option(help="Recipe file or name; other options win over it.")] = None,
    protocol: Annotated[str | None, typer.Option(help="base0, base-half, base-step or tasks.")] = None,
    tasks: Annotated[
        int | None, typer.Option("--tasks", "--phases", help="How many tasks; of base-half, after the first one.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="total=2000, per_class=20 or none.")] = None,
    seed: Annotated[int | None, typer.Option(help="Drives all that is random, the search too.")] = None,
    preset: Annotated[str | None, typer.Option(help="default, tuned, paper or quick.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE that all trials share.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps or xpu.")] = None,
    storage: Annotated[
        str | None, typer.Option(help="Address of a database. Default: a journal file in the folder.")
    ] = None,
    log: Log = None,
    data_dir: DataDir = None,
) -> None:
    """Search for a method's settings on held-out training images; more processes may share the search."""
    from edbl.logs import logs
    from edbl.tuning import results
    from edbl.tuning.search import Plan, Searcher

    given: dict[str, object] = {
        "method": method,
        "data.name": data,
        "stream.protocol": protocol,
        "stream.tasks": tasks,
        "memory": memory,
        "seed": seed,
        "preset": preset,
        "device": device,
    }
    flags = {key: value for key, value in given.items() if value is not None}
    layer = runs.layered(flags, options.settings(settings))
    logs(log or [])  # what is missing for them is said at once
    searcher = Searcher(Plan.of(layer, recipe, search), out, storage)
    try:
        with stopping.interruptible(lambda: "the same command goes on"):
            searcher.work(trials, terminal.bars, terminal.tell, data_dir, log or [])
    finally:
        written = results.write(searcher)
    _tell(searcher, written)


def _tell(searcher: "Searcher", written: list[Path]) -> None:
    from edbl.tuning.search import short

    best = searcher.best()
    if best is not None:
        table = terminal.table("setting", f"trial {best.number}, {100 * best.value:.2f}%")
        for key, value in searcher.values(best).items():
            table.add_row(key, short(value))
        terminal.show(table)
    terminal.tell(searcher.sentence())
    for path in written:
        terminal.tell(f"{'page' if path.suffix == '.html' else 'recipe'}: {path}")
