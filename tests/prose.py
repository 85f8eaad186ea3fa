"""``make prose``: proselint, with the rules of docs/prose.toml, on README, docs, help, docstrings and messages."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

import typer.main
from proselint.checks import __register__ as usual
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, types
from proselint.tools import LintFile

from edbl.cli import app
from edbl.methods import methods
from edbl.recipe import Recipe

ROOT = Path(__file__).parents[1]
RULES = tomllib.loads((ROOT / "docs" / "prose.toml").read_text(encoding="utf-8"))
LAB = (ROOT / "docs" / "calibration.md",)  # notebooks of attempts, in the words of their day
CODE = re.compile(  # and names: what is not prose
    "|".join(
        (
            r"^```.*?^```$|`[^`\n]*`|\$[^$\n]+\$",
            r"\]\([^)\s]*\)|https?://\S+",
            r"<!-- imports -->.*?<!-- end of imports -->|<!--.*?-->",
            r"\bder-net\b|^## Net$|\b\w+\.\w[\w.]*|\{[^}\n]*\}",
        )
    ),
    re.MULTILINE | re.DOTALL,
)
HOUSE = Check(
    check_type=types.PreferredForms(RULES["plain"]), path="house", message="'{1}' is an idiom of ours: write {0}"
)
RAISED = {"EdblError", "Wrong", "Diverged", "say", "tell", "complain"}


def texts() -> Iterator[tuple[str, str]]:
    """Return each text with where it is."""
    found = sorted(page for page in ROOT.glob("docs/**/*.md") if "generated" not in page.parts)
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *found]
    for page in pages:
        if page not in LAB:
            yield str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")
    yield from _helps(typer.main.get_command(app), "edbl")
    helps = {key: leaf.help for method in methods() for key, leaf in Recipe.keys(method).items()}
    yield from ((f"the meaning of {key}", CODE.sub(_blank, text)) for key, text in helps.items())
    for file in sorted((ROOT / "src" / "edbl").rglob("*.py")):
        place, code = str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")
        yield place, messages(code)
        if ".".join(file.relative_to(ROOT / "src").with_suffix("").parts) in set(_in_the_reference()):
            yield place, docstrings(code)


def _in_the_reference() -> Iterator[str]:
    """Return the modules whose docstrings the site shows."""
    shown = re.findall(r"auto(\w+):: ([\w.]+)", (ROOT / "docs" / "api.rst").read_text(encoding="utf-8"))
    for kind, name in shown:
        module, _, member = name.rpartition(".")
        yield name if kind == "module" else getattr(import_module(module), member).__module__


def wrong(texts: Iterable[tuple[str, str]]) -> list[str]:
    """Return what is wrong with texts, a line each."""
    registry = CheckRegistry()
    if not registry.checks:
        registry.register_many((*usual, HOUSE))
    config = {**DEFAULT, "checks": {**DEFAULT["checks"], **RULES["checks"], "house": True}}
    found = []
    for place, text in texts:
        for result in LintFile(place, CODE.sub(_blank, text) or " ").lint(config):
            check = result.check_result
            found.append(f"{place}:{result.pos[0]}: {check.message} ({check.check_path})")
    return found


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n") or " x "


def _helps(command: object, name: str) -> Iterator[tuple[str, str]]:
    """Return the help of a command, of its options, and of the commands below it."""
    for what in (command, *getattr(command, "params", [])):
        if text := getattr(what, "help", None):
            yield f"{name} --help", CODE.sub(_blank, text)
    for below, one in getattr(command, "commands", {}).items():
        yield from _helps(one, f"{name} {below}")


def docstrings(code: str) -> str:
    """Return the docstrings of what is public, each on its lines."""
    lines = [""] * (code.count("\n") + 2)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and getattr(node, "name", "")[:1] != "_":
            for number, line in enumerate((ast.get_docstring(node) or "").splitlines()):
                lines[getattr(node, "lineno", 1) + number] += CODE.sub(_blank, line.replace("``", "`"))
    return "\n".join(lines)


def messages(code: str) -> str:
    """Return what code raises or prints, each message on its line."""
    lines = [""] * (code.count("\n") + 2)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in RAISED:
            lines[node.lineno - 1] += " ".join(CODE.sub(_blank, _said(argument)) for argument in node.args)
    return "\n".join(lines)


def _said(node: ast.expr) -> str:
    """Return the words of a message, without what is put into it."""
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_said(part) if isinstance(part, ast.Constant) else "x" for part in node.values)
    return ""


if __name__ == "__main__":
    found = wrong(texts())
    print("\n".join(found) or "nothing found")
    sys.exit(bool(found))
