"""The command that searches for settings of a method."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edbl.cli import options, runs, stopping, terminal
from edbl.cli.options import (
    Code,
    Data,
    DataDir,
    Log,
    Memory,
    Mixed,
    On,
    Preset,
    Protocol,
    RecipeFile,
    Settings,
    Tasks,
)
from edbl.errors import EdblError

if TYPE_CHECKING:
    from edbl.fleet.many import Where
    from edbl.tuning.search import Plan, Searcher


def tune(
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help="Method (`edbl list methods`), or .py file with one.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the search, new or to continue.")],
    data: Data = None,
    search: Annotated[
        Path | None, typer.Option(help="Search space, as TOML. Default: the one that the method declares.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Number of trials, of all processes together.", min=1, max=100_000)] = 30,
    recipe: RecipeFile = None,
    protocol: Protocol = None,
    tasks: Tasks = None,
    memory: Memory = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of all random choices, the search included. Default: 0.")
    ] = None,
    preset: Preset = None,
    settings: Settings = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps or xpu. Default: auto.")] = None,
    storage: Annotated[
        str | None, typer.Option(help="Database address of Optuna. Default: a journal file in the folder.")
    ] = None,
    on: On = None,
    mixed: Mixed = False,
    at_once: Annotated[
        int | None,
        typer.Option(help="With --on, how many trials at a time. Default: what the cluster has room for.", min=1),
    ] = None,
    log: Log = None,
    code: Code = None,
    data_dir: DataDir = None,
) -> None:
    """Search for a method's settings on held-out training images; several processes may share the search."""
    from edbl.logs import logs
    from edbl.tuning.search import Plan

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
    where = options.where(on, mixed)
    if at_once is not None and on is None:
        raise EdblError("--at-once is about trials on a cluster; give --on, or the same command in several terminals")
    with options.trusting(code):
        plan = Plan.of(layer, recipe, search)
    _search(plan, out, storage, trials, where, at_once, data_dir, log or [])


def _search(
    plan: "Plan",
    out: Path,
    storage: str | None,
    trials: int,
    where: "Where",
    at_once: int | None,
    data_dir: Path | None,
    logged: Sequence[str],
) -> None:
    """Make the trials, here or on a cluster; whatever ends that, write what was found."""
    from edbl.fleet.cluster import connected
    from edbl.tuning import results
    from edbl.tuning.elsewhere import work_on
    from edbl.tuning.search import Searcher

    with ExitStack() as stack:
        stack.enter_context(stopping.many_runs())
        cluster = stack.enter_context(connected(where.on, where.mixed, terminal.tell)) if where.on else None
        searcher = Searcher(plan, out, storage)
        try:
            if cluster:
                work_on(searcher, cluster, trials, at_once, terminal.console, data_dir, logged)
            else:
                searcher.work(trials, terminal.bars, terminal.tell, data_dir, logged)
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
