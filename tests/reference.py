"""What of the documentation is made from the code.

`python -m tests.reference` writes the tables of docs/commands.md anew, from each command's `--help`; a test compares
them. The keys of a recipe and the front page are pages that only the site has.
"""

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


COMMANDS = ROOT / "docs" / "commands.md"
MADE = re.compile(
    r"(<!-- (?:options of (edbl [\w ]+)|commands) -->\n).*?(<!-- end of (?:options|commands) -->)", re.DOTALL
)


def write(folder: Path, source: str) -> None:
    """Write the pages into a folder; ``source`` is where the repository's files are read."""
    folder.mkdir(exist_ok=True)
    for name, lines in (("keys.md", _keys()), ("front.md", _front(source))):
        text = "\n".join(lines) + "\n"
        page = folder / name
        if not page.is_file() or page.read_text(encoding="utf-8") != text:  # what is the same is not built again
            page.write_text(text, encoding="utf-8")


def filled(text: str) -> str:
    """Return the page of commands with its tables as the commands are now."""
    commands = dict(_below(typer.main.get_command(app), ""))

    def made(match: re.Match[str]) -> str:
        lines = _options(commands[match[2]]) if match[2] else _index(commands)
        return "".join([match[1], *(f"{line}\n" for line in lines), match[3]])

    return MADE.sub(made, text)


def _below(command: object, name: str) -> Iterator[tuple[str, typer.core.TyperCommand]]:
    """Return each command by its words."""
    if isinstance(command, typer.core.TyperGroup):
        for word, inner in command.commands.items():
            yield from _below(inner, f"{name or 'edbl'} {word}")
    elif isinstance(command, typer.core.TyperCommand):
        yield name, command


def _index(commands: Mapping[str, typer.core.TyperCommand]) -> Iterator[str]:
    yield "| command | what it does |\n|---|---|"
    for name, command in commands.items():
        line = (command.help or "").partition("\n\n")[0].replace("\n", " ")
        yield f"| [`{name}`](#{name.replace(' ', '-')}) | {_cell(line)} |"


def _options(command: typer.core.TyperCommand) -> Iterator[str]:
    yield "| option | default | meaning |\n|---|---|---|"
    for param in command.params:
        text = _cell(getattr(param, "help", "") or "")
        if isinstance(param, typer.core.TyperOption):
            names = ", ".join(f"`{one}`" for one in (*param.opts, *param.secondary_opts))
            choices = f"`{param.metavar}`: ".replace("|", "` or `") if "|" in (param.metavar or "") else ""
            told = param.default is not None and param.default is not False
            yield f"| {names} | {f'`{param.default}`' if told else ''} | {choices}{text} |"
        else:
            yield f"| `{(param.metavar or param.name or '').upper()}` | | {text} |"


def _front(source: str) -> Iterator[str]:
    """Return the README, whose links to pages lead to the site's."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace(source, "")
    text = re.sub(r"\(https://raw\.[^)]*/(?=docs/)", "(", text)
    text = re.sub(r"\]\((?!\w+:|#|docs/)", f"]({source}", text)
    yield text.replace("](docs/", "](")


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


if __name__ == "__main__":
    COMMANDS.write_text(filled(COMMANDS.read_text(encoding="utf-8")), encoding="utf-8")
