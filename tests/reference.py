"""What of the documentation is made from the code.

`python -m tests.reference` writes anew what stands between marks such as ``<!-- options of edbl run -->`` and
``<!-- end of options -->``: the options of commands and methods, the keys of recipes, data sets, the members of the
contract, the facts of a record, the calls and limits of the server. A test compares them. The keys of all methods and
the front page are pages that only the site has.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import cast

import typer.core
import typer.main
from fastapi.routing import APIRoute

from edbl import EDBLClassifier, metrics, rule
from edbl.app.description import Bundle, Event, Known, Settings
from edbl.cli import app
from edbl.config import Leaf, toml_value
from edbl.data.datasets import DATASETS
from edbl.data.images import Images
from edbl.data.mixing import Batch
from edbl.data.stream import Task
from edbl.memory import Memory
from edbl.methods import find_method, methods
from edbl.methods.base import Draw, Method, Phase, Tools
from edbl.nets.net import Head, Net, Output
from edbl.presets import described
from edbl.recipe import Recipe, shipped_recipes
from edbl.records import Record
from edbl.report.tables import METRICS
from edbl.rule import TaskFacts
from edbl.serve import api
from edbl.serve.limits import MB, Limits
from edbl.serve.metrics import Metrics
from edbl.serve.server import NOW
from edbl.studies.paper import EDBL, HALF, ZERO, recipe_of
from tests.members import members

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MADE = re.compile(r"(<!-- (\w+)(?: of ([\w ]+))? -->\n).*?(<!-- end of \2 -->)", re.DOTALL)
CONTRACT = (Method, Task, Images, Batch, Draw, Phase, Memory, Net, Head, Output, Tools)
BUILT_IN = {"data.augment": "flip"}  # of Tiny-ImageNet
STREAM = {"data.name": "cifar100"}  # in 5 tasks: whose values of presets the tables of methods have
# New images, exemplars, old and new classes, pixels a side.
TASKS = {
    "CIFAR-10, Base-0, 2 tasks": TaskFacts(25000, 200, 5, 5),
    "CIFAR-10, Base-0, 5 tasks, second task": TaskFacts(10000, 200, 2, 2),
    "CIFAR-10, Base-0, 5 tasks, last task": TaskFacts(10000, 200, 8, 2),
    "CIFAR-100, Base-0, 2 tasks": TaskFacts(25000, 2000, 50, 50),
    "CIFAR-100, Base-0, 5 tasks, second task": TaskFacts(10000, 2000, 20, 20),
    "CIFAR-100, Base-0, 5 tasks, last task": TaskFacts(10000, 2000, 80, 20),
    "CIFAR-100, Base-0, 10 tasks, last task": TaskFacts(5000, 2000, 90, 10),
    "CIFAR-100, Base-half, 5 tasks, second task": TaskFacts(5000, 1000, 50, 10),
    "CIFAR-100, Base-half, 10 tasks, last task": TaskFacts(2500, 1900, 95, 5),
    "Tiny-ImageNet, Base-half, 5 tasks, second task": TaskFacts(10000, 2000, 100, 20, 64),
    "CIFAR-100, Base-0, 5 tasks, 500 exemplars": TaskFacts(10000, 500, 20, 20),
    "100 photos of 5 classes, 20 kept of 10": TaskFacts(500, 200, 10, 5),
    "digits, 5 tasks": TaskFacts(288, 50, 2, 2, 8),
}

Lines = Iterable[str]


def write(folder: Path, source: str) -> None:
    """Write the pages into a folder; ``source`` is where the repository's files are read."""
    folder.mkdir(exist_ok=True)
    for name, lines in (("keys.md", _all_keys()), ("front.md", _front(source))):
        text = "\n".join(lines) + "\n"
        page = folder / name
        if not page.is_file() or page.read_text(encoding="utf-8") != text:  # what is the same is not built again
            page.write_text(text, encoding="utf-8")


def filled(page: Path) -> str:
    """Return the text of a page with what is made of the code as the code is now."""

    def made(match: re.Match[str]) -> str:
        if match[2] not in MAKERS:  # of another program
            return match[0]
        return match[1] + "\n".join([*MAKERS[match[2]](match[3] or page.stem), match[4]])

    return MADE.sub(made, page.read_text(encoding="utf-8"))


def table(heads: str, rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Return the lines of a table."""
    yield f"| {heads} |"
    yield "|---" * (heads.count("|") + 1) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


@cache
def _commands() -> Mapping[str, typer.core.TyperCommand]:
    return dict(_below(typer.main.get_command(app), ""))


def _below(command: object, name: str) -> Iterator[tuple[str, typer.core.TyperCommand]]:
    """Return each command by its words."""
    if isinstance(command, typer.core.TyperGroup):
        for word, inner in command.commands.items():
            yield from _below(inner, f"{name or 'edbl'} {word}")
    elif isinstance(command, typer.core.TyperCommand):
        yield name, command


def _index(_: str) -> Lines:
    told = {name: (one.help or "").partition("\n\n")[0] for name, one in _commands().items()}
    rows = ((f"[`{name}`](#{name.replace(' ', '-')})", _cell(line)) for name, line in told.items())
    return table("command | what it does", rows)


def _options(subject: str) -> Lines:
    return _of_command(_commands()[subject]) if subject in _commands() else _of_method(subject)


def _of_command(command: typer.core.TyperCommand) -> Lines:
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


def _of_method(name: str) -> Lines:
    """Return the options of a method with the values that presets give them, and what else `paper` sets."""
    keys, common = Recipe.keys(name), Recipe.keys("finetune")
    own = {key: leaf for key, leaf in keys.items() if key not in common}
    presets = {preset: Recipe.origins({"method": name, "preset": preset, **STREAM}) for preset in ("default", "paper")}
    rows = [
        (
            f"`{key.removeprefix('options.')}`",
            f"`{toml_value(leaf.default)}`",
            *(_changed(leaf, *presets[preset][key]) for preset in presets),
            _cell(_linked(leaf.help)),
        )
        for key, leaf in own.items()
    ]
    if rows:
        yield from table("option | built in | `default` | `paper` | meaning", rows)
        yield ""
        yield (
            "`--set NAME=VALUE` sets an option. Values of presets are those of CIFAR-100 in 5 tasks, where they are "
            "not the built-in ones; others are in [presets](../recipes.md#presets)."
        )
    else:
        yield "None of its own."
    yield ""
    if also := {key: value for key, value in find_method(name).paper.items() if key in common}:
        values = ", ".join(f"`{key}={toml_value(value)}`" for key, value in also.items())
        yield f"Preset `paper` sets {values}."
        yield ""
    yield "[Recipes](../recipes.md) has the settings of all methods."


def _changed(leaf: Leaf, value: object, origin: str) -> str:
    if origin.startswith("the rule"):
        return "[rule](../rule.md)"
    return "" if value == leaf.default else f"`{toml_value(value)}`"


def _linked(text: str) -> str:
    """Return a meaning whose tags lead to the page of ambiguities."""
    return re.sub(r"\b(A\d+)\b", lambda tag: f"[{tag[1]}](../ambiguities.md#{tag[1].lower()})", text)


def _keys(_: str) -> Lines:
    rows = ((f"`{key}`", f"`{toml_value(leaf.default)}`", _meaning(leaf)) for key, leaf in _common().items())
    return table("key | built in | meaning", rows)


def _common() -> Mapping[str, Leaf]:
    return Recipe.keys("finetune")


def _meaning(leaf: Leaf) -> str:
    choices = ", ".join(f"`{one}`" for one in leaf.choices)
    told = all(one in leaf.help.lower() for one in leaf.choices)
    return _cell(leaf.help) + ("" if told else f" ({choices})")


def _presets(_: str) -> Lines:
    rows = ((when, re.sub(r", (?=[\w.]+=)", "<br>", values), why) for when, values, why in described())
    return table("when | values | why", rows)


def _recipes(_: str) -> Lines:
    heads = {name: path.read_text(encoding="utf-8").splitlines()[0] for name, path in shipped_recipes().items()}
    return table("recipe | what it runs", ((f"`{name}`", line.lstrip("# ")) for name, line in heads.items()))


def _sets(_: str) -> Lines:
    def row(name: str) -> Iterator[str]:
        source = DATASETS[name]
        download = sum(remote.size for remote in source.files)
        yield f"`{name}`"
        yield source.title
        yield f"{download / 1e6:.0f} MB" if download else ""
        facts = {key.rpartition(".")[2]: value for key, value in source.defaults.items()}
        yield f"{facts['augment']}, {facts['pad']}"
        for key in ("mean", "std"):
            yield ", ".join(f"{number:.4g}" for number in cast(tuple[float, ...], facts[key]))
        common = Recipe.build("edbl", data=name, preset="tuned").values()
        yield from (str(common[key]) for key in ("net.backbone", "memory", "stream.tasks"))

    heads = "name | what it holds | download | augment, pad | mean | std | backbone | memory | tasks"
    return table(heads, map(row, DATASETS))


def _files(name: str) -> Lines:
    remotes = DATASETS[name.replace(" ", "-")].files
    return table("file | md5 | bytes", ((f"`{Path(r.name).name}`", f"`{r.md5}`", f"{r.size:,}") for r in remotes))


def _open(page: str) -> Lines:
    """Return the points that the paper leaves open, with the settings whose help has their tag."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    asked = re.findall(r"^## (A\d+)\n\n\*\*(.*?)\*\*", text, re.MULTILINE | re.DOTALL)
    keys, columns = Recipe.keys("edbl"), (*ZERO, *HALF)
    made = {preset: [recipe_of(column, EDBL, preset=preset) for column in columns] for preset in ("default", "paper")}

    def values(key: str, preset: str) -> str:
        on = made[preset][-2:] if key == "data.augment" else made[preset]  # Tiny-ImageNet's alone is open
        found = " or ".join(dict.fromkeys(toml_value(recipe.values()[key]) for recipe in on))
        return found + " by rule" * (key in on[0].by_rule)

    for_tag = {tag: [key for key, leaf in keys.items() if re.search(rf"\b{tag}\b", leaf.help)] for tag, _ in asked}
    rows = (
        (
            f"[{tag}](#{tag.lower()})",
            " ".join(question.split()),
            ", ".join(f"`{key}`" for key in for_tag[tag]) or "-",
            ", ".join(toml_value(BUILT_IN.get(key, keys[key].default)) for key in for_tag[tag]) or "-",
            *(", ".join(values(key, preset) for key in for_tag[tag]) or "-" for preset in made),
        )
        for tag, question in asked
    )
    return table("tag | open | key | built in | `default` | `paper`", rows)


def _measures(_: str) -> Lines:
    found = [one for one in inspect.getmembers(metrics, inspect.isfunction) if one[1].__module__ == metrics.__name__]
    own = sorted((one for one in found if one[0][0] != "_"), key=lambda one: one[1].__code__.co_firstlineno)
    told = {one.key: (one.title, one.definition) for one in METRICS}
    rows = ((f"`{name}`", *told.get(name, ("", _first(function.__doc__)))) for name, function in own)
    return table("function | in the report | definition", rows)


def _parameters(_: str) -> Lines:
    told = re.findall(r"- ``(\w+)``: (.*)", EDBLClassifier.__doc__ or "")
    defaults = inspect.signature(EDBLClassifier).parameters
    rows = ((f"`{name}`", f"`{defaults[name].default!r}`", _plain(meaning)) for name, meaning in told)
    return table("parameter | default | meaning", rows)


def _first(text: str | None) -> str:
    """Return the first paragraph of a docstring as a remark."""
    return _plain((text or "").partition("\n\n")[0].removeprefix("Return ").rstrip("."))


def _plain(text: str) -> str:
    return _cell(text.replace("``", "`"))


def _ruled(_: str) -> Lines:
    heads = "task | new images | exemplars | old | new | size | rate | epochs | distillation | old in 128"
    return table(heads, ([name, *map(str, (*facts, *_given(facts)))] for name, facts in TASKS.items()))


def _given(facts: TaskFacts) -> tuple[float, int, float, int]:
    weight, old = round(rule.distillation(facts), 1), rule.old_in_batch(facts, 128)
    return round(rule.rate(facts), 3), rule.epochs(facts), weight, old


def _members(name: str) -> Lines:
    kind = next(kind for kind in CONTRACT if kind.__name__ == name)
    rows = ((f"`{one.called}`", _code(one.kind), one.default, one.meaning) for one in members(kind))
    return table("member | type | default | meaning", rows)


def _facts(_: str) -> Lines:
    own = {field.name for field in fields(Record)} - {"confusions"}
    told = {
        one.called: one for one in members(Record) if one.called in own | {"accuracy", "average_incremental_accuracy"}
    }
    rows = [("`format`", "`int`", "1"), *((f"`{key}`", _code(one.kind), one.meaning) for key, one in told.items())]
    rows.append(("`sha256`", "`str`", "Checksum of all the rest, as JSON with sorted keys; older records have none"))
    return table("key | type | meaning", rows)


def _fields(name: str) -> Lines:
    kind = next(kind for kind in (Bundle, Settings, Known, Event) if kind.__name__ == name)
    own = {field.name for field in fields(kind) if field.init}
    rows = ((f"`{one.called}`", _code(one.kind), one.meaning) for one in members(kind) if one.called in own)
    return table("key | type | meaning", rows)


def _code(kind: str) -> str:
    return f"`{kind}`".replace("|", "\\|") if kind else ""


def _limits(_: str) -> Lines:
    def size(value: float) -> str:
        units = ((MB, " MB"), (2**10, " KB"), (1, ""))
        unit, name = next(
            one for one in units if value >= one[0] and not value % one[0] and (one[0] == 1 or value > 1024)
        )
        return f"{value / unit:.0f}{name}"

    rows = ((f"`{one.called}`", size(getattr(Limits(), one.called)), one.meaning) for one in members(Limits))
    return table("limit | value | of what", rows)


def _counted(_: str) -> Lines:
    counted = Metrics()
    counted.request("GET", "/", 200, 0.0)
    for name in ("batches", "predictions", "photos_taught", "changes", "slow_clients"):
        counted.add(name)
    found = re.findall(r"# HELP (\w+) (.*)\.\n# TYPE \w+ (\w+)", counted.text((*pair, 0.0) for pair in NOW.items()))
    return table("name | kind | meaning", ((f"`{name}`", kind, meaning) for name, meaning, kind in found))


def _calls(_: str) -> Lines:
    routes = [route for route in api.router.routes if isinstance(route, APIRoute) and route.include_in_schema]
    rows = (
        (f"`{verb} {route.path}`", _cell(route.description).rstrip("."))
        for route in routes
        for verb in route.methods or ()
    )
    return table("call | what it does", rows)


MAKERS: Mapping[str, Callable[[str], Lines]] = {
    "commands": _index,
    "options": _options,
    "keys": _keys,
    "presets": _presets,
    "recipes": _recipes,
    "sets": _sets,
    "files": _files,
    "open": _open,
    "ruled": _ruled,
    "measures": _measures,
    "parameters": _parameters,
    "members": _members,
    "facts": _facts,
    "fields": _fields,
    "limits": _limits,
    "counted": _counted,
    "calls": _calls,
}


def _front(source: str) -> Lines:
    """Return the README, whose links to pages lead to the site's."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace(source, "")
    text = re.sub(r"\(https://raw\.[^)]*/(?=docs/)", "(", text)
    text = re.sub(r"\]\((?!\w+:|#|docs/)", f"]({source}", text)
    yield text.replace("](docs/", "](")


def _all_keys() -> Lines:
    yield "# Keys of a recipe\n"
    yield "This page is made from the options as they stand in the code; [Recipes](../recipes.md) explains them.\n"
    common = _common()
    yield "## All methods\n"
    yield from _table(common)
    for name in sorted(methods()):
        own = {key: leaf for key, leaf in Recipe.keys(name).items() if key not in common}
        yield f"## {name}\n"
        yield f"{find_method(name).title}.\n"
        if own:
            yield from _table(own)


def _table(keys: Mapping[str, Leaf]) -> Lines:
    yield from table(
        "key | built in | meaning",
        ((f"`{key}`", f"`{leaf.default!r}`", _cell(leaf.help)) for key, leaf in sorted(keys.items())),
    )
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    for page in sorted(DOCS.glob("**/*.md")):
        if "generated" not in page.parts and (text := filled(page)) != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")
            print(page.relative_to(ROOT))
