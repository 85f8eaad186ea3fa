"""What the source says of the members of a class: their types, defaults and one line about each."""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Member(NamedTuple):
    """A public member: its name, with the arguments if it is called, its type, default and meaning."""

    called: str
    kind: str
    default: str
    meaning: str


def members(kind: type) -> list[Member]:
    """Return the public members of a class in the order of its source, those that its objects are given last."""
    lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    (tree,) = ast.parse("\n".join(lines)).body
    assert isinstance(tree, ast.ClassDef)
    found = [*_members(tree.body, lines, {})]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            hints = {a.arg: ast.unparse(a.annotation) for a in node.args.args if a.annotation}
            found += _members(node.body, lines, hints)
    first = {one.called.partition("(")[0]: one for one in reversed(found)}
    public = [one for one in found if one.called[0] != "_" and one in first.values()]
    return [one._replace(default=default_of(kind, one.called)) for one in public]


def _members(body: list[ast.stmt], lines: list[str], hints: Mapping[str, str]) -> Iterator[Member]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            words = [ast.unparse(one) for one in node.decorator_list]
            called = "" if "property" in words else f"({', '.join(a.arg for a in node.args.args if a.arg != 'self')})"
            text = (ast.get_docstring(node) or "").partition("\n\n")[0]
            called = called.replace("(cls, ", "(").replace("(cls)", "()")
            yield Member(node.name + called, _type(node.returns), "-", _plain(text))
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        for target in targets[0].elts if targets and isinstance(targets[0], ast.Tuple) else targets:
            own = isinstance(target, ast.Attribute) and ast.unparse(target).startswith("self.")
            if name := target.attr if own and isinstance(target, ast.Attribute) else getattr(target, "id", ""):
                hint = _type(getattr(node, "annotation", None)) or hints.get(name, "")
                yield Member(name, hint, "-", _plain(_remark(node, lines)))


def _remark(node: ast.stmt, lines: list[str]) -> str:
    """Return the comment behind a statement, or the lines of comment above it."""
    last = lines[(node.end_lineno or 1) - 1]
    if behind := re.search(r"  # (.*)$", last):
        return behind[1]
    above, number = list[str](), node.lineno - 2
    while lines[number].strip().startswith("# "):
        above.insert(0, lines[number].strip()[2:])
        number -= 1
    return " ".join(above)


def _type(node: ast.expr | None) -> str:
    """Return a type as the source has it, without what is of no use to a reader."""
    text = "" if node is None else ast.unparse(node).strip("'")
    return re.sub(r"^ClassVar\[(.*)\]$", r"\1", text)


def _plain(text: str) -> str:
    """Return a remark as tables have it: in one line, and without a full stop."""
    text = " ".join(text.replace("``", "`").split()).replace("|", "\\|")
    return text[:1].upper() + text[1:].removesuffix(".")


def default_of(kind: type, name: str) -> str:
    """Return a member's default as tables have it."""
    own = kind.__name__ in ("Method", "Head", "Memory", "Net")  # what these are made with are no defaults
    parameters = {} if own else inspect.signature(kind).parameters
    default = parameters[name].default if name in parameters else vars(kind).get(name, inspect.Parameter.empty)
    if default is inspect.Parameter.empty or isinstance(default, property) or kind.__name__ == "Tools":
        return "-"
    if isinstance(default, Mapping) or repr(default) == "<factory>":
        return "`{}`"
    return f"`{json.dumps(default) if isinstance(default, str) else getattr(default, '__name__', default)}`"
