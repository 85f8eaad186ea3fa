"""Pages of the site that come from elsewhere: each command as `--help` has it, each key of a recipe, the front page."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import typer.core
import typer.main

from edbl.cli import app
from edbl.config import Leaf
from edbl.methods import find_method, methods
from edbl.recipe import Recipe

ROOT = Path(__file__).parents[1]


def write(folder: Path, source: str) -> None:
    """Write the pages into a folder; ``source`` is where the repository's files are read."""
    folder.mkdir(exist_ok=True)
    for name, lines in (("commands.md", _commands()), ("keys.md", _keys()), ("front.md", _front(source))):
        text = "\n".join(lines) + "\n"
        page = folder / name
        if not page.is_file() or page.read_text(encoding="utf-8") != text:  # what is the same is not built again
            page.write_text(text, encoding="utf-8")


def _front(source: str) -> Iterator[str]:
    """Return the README, whose links to pages lead to the site's."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace(source, "")
    text = re.sub(r"\]\((?!\w+:|#|docs/)", f"]({source}", text)
    yield text.replace("](docs/", "](")


def _commands() -> Iterator[str]:
    yield "# Commands, option by option\n"
    yield "This page is made from the commands' own `--help`; [Commands](../commands.md) explains them.\n"
    top = typer.main.get_command(app)
    assert isinstance(top, typer.core.TyperGroup)
    yield from _below(top, "edbl")


def _below(group: typer.core.TyperGroup, group_name: str) -> Iterator[str]:
    for word, command in group.commands.items():
        if isinstance(command, typer.core.TyperGroup):
            yield from _below(command, f"{group_name} {word}")
            continue
        yield f"## {group_name} {word}\n"
        yield f"{command.help or ''}\n"
        yield "| option | default | meaning |\n|---|---|---|"
        for param in command.params:
            if isinstance(param, typer.core.TyperOption):
                names = ", ".join(f"`{one}`" for one in (*param.opts, *param.secondary_opts))
                known = param.default is not None and param.default is not False
                default = f"`{param.default}`" if known else ""
                yield f"| {names} | {default} | {_cell(param.help or '')} |"
            else:
                name = (param.metavar or param.name or "").upper()
                yield f"| `{name}` | | {_cell(getattr(param, 'help', '') or '')} |"
        yield ""


def _keys() -> Iterator[str]:
    yield "# Keys of a recipe\n"
    yield "This page is made from the options as they stand in the code; [Recipes](../recipes.md) explains them.\n"
    common = Recipe.keys("finetune")
    yield "## All methods\n"
    yield from _table(common)
    for name in sorted(methods()):
        own = {key: leaf for key, leaf in Recipe.keys(name).items() if key not in common}
        yield f"## {name}\n"
        yield f"{find_method(name).title}.\n"
        if own:
            yield from _table(own)


def _table(keys: Mapping[str, Leaf]) -> Iterator[str]:
    yield "| key | built in | meaning |\n|---|---|---|"
    for key, leaf in sorted(keys.items()):
        yield f"| `{key}` | `{leaf.default!r}` | {_cell(leaf.help)} |"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
