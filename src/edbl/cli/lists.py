"""Commands that show what there is: to choose from, and on this machine."""

from collections.abc import Mapping
from typing import Annotated, Literal

import typer
from rich.markup import escape
from rich.table import Table

from edbl.cli import options, terminal
from edbl.errors import EdblError


def list_(
    what: Annotated[Literal["methods", "options", "data", "recipes", "presets"], typer.Argument(help="What to list.")],
    method: Annotated[
        str | None, typer.Argument(metavar="METHOD", help="For options: the method, or a .py file with one.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="For options: show values for this data set.")] = None,
    preset: Annotated[str | None, typer.Option(help="For options: show values of this preset.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="For options: such as stream.tasks=2.")
    ] = None,
) -> None:
    """List methods, options of a method, data sets, recipes or presets."""
    if what == "options":
        if method is None:
            raise EdblError("name a method, as in `edbl list options edbl`")
        given = {"method": method, "data.name": data or "digits", "preset": preset or "default"}
        terminal.show(_options(method, given | options.settings(settings)))
        return
    if method or data or preset or settings:
        raise EdblError(f"a method, --data, --preset and --set do not apply to `edbl list {what}`; leave them out")
    terminal.show({"methods": _methods, "data": _data, "recipes": _recipes, "presets": _presets}[what]())


def _options(method: str, given: Mapping[str, object]) -> Table:
    from edbl.config import toml_value
    from edbl.recipe import Recipe

    table = terminal.table()
    table.add_column("key", no_wrap=True)
    table.add_column("value", max_width=22 if terminal.console.is_terminal else None)
    table.add_column("from")
    table.add_column("meaning")
    values = Recipe.origins(given)
    for key, leaf in sorted(Recipe.keys(method).items()):
        may_be = f" ({', '.join(leaf.choices)})" if leaf.choices else ""
        value, origin = values[key]
        table.add_row(key, *map(escape, (toml_value(value), origin, leaf.help + may_be)))
    return table


def _methods() -> Table:
    from edbl import users
    from edbl.methods import find_method, methods

    table = terminal.table("name", "year", "keeps", "classifier", "what it does")
    theirs = {name: find_method(name) for name in users.names(users.METHOD) if name not in methods()}
    for name, kind in sorted((methods() | theirs).items()):
        title = kind.title + (" (reconstructed)" if kind.our_reading else "")
        table.add_row(name, str(kind.year or ""), kind.keeps, kind.readout.upper(), title)
    return table


def _data() -> Table:
    from edbl import users
    from edbl.data.datasets import DATASETS

    table = terminal.table("name", "what it holds")
    for name, source in DATASETS.items():
        table.add_row(name, source.title)
    for name in users.names(users.DATA):
        table.add_row(name, f"data set of {users.digest(users.DATA, name, DATASETS)}")
    table.add_row("PATH", "any image folder: PATH/train/CLASS/*.jpg, or PATH/CLASS/*.jpg")
    return table


def _recipes() -> Table:
    from edbl.recipe import shipped_recipes

    table = terminal.table("name", "what it runs")
    for name, path in shipped_recipes().items():
        table.add_row(name, path.read_text(encoding="utf-8").splitlines()[0].lstrip("# "))
    return table


def _presets() -> Table:
    from edbl.presets import described

    table = terminal.table("when", "values", "why")
    for row in described():
        table.add_row(*map(escape, row))
    return table


def doctor(
    data_dir: options.DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show versions, the device that computes, data sets, caches and extras, and what is missing for which command."""
    from edbl.bench.doctor import examine

    found = list(examine(data_dir))
    if as_json:
        terminal.put_json([finding._asdict() for finding in found])
        return
    table = terminal.table("", "", "")
    for finding in found:
        table.add_row(*map(escape, finding))
    terminal.show(table)
