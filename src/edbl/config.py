"""Typed settings: dataclasses that check what is put into them and know their dotted keys.

A setting is a field of a frozen dataclass, declared with `option`. Settings nest; ``schedule.epochs`` is the key of
field ``epochs`` in field ``schedule``. `build` makes an instance from dotted keys, `flatten` is its inverse.
"""

import dataclasses
import json
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from edbl.errors import EdblError, unknown

T = TypeVar("T")


def option(default: T, help: str, least: float | None = None, most: float | None = None) -> T:
    """Declare a setting with its default, one line of help, and its range; that of a list is the range of its items."""
    return field(default=default, metadata={"help": help, "least": least, "most": most})


@dataclass(frozen=True)
class Leaf:
    """One setting: its type, default, help and range."""

    kind: Any
    default: object
    help: str
    least: float | None
    most: float | None

    @property
    def choices(self) -> list[str]:
        """What it may be, if that is one of a few names."""
        return [str(c) for c in get_args(self.kind)] if get_origin(self.kind) is Literal else []

    def check(self, key: str, value: object) -> object:
        """Return ``value`` as this setting's type, or say what it must be."""
        fitted = _fit(self.kind, value)
        if fitted is None:
            if self.choices:
                raise unknown(f"value of {key}", str(value), self.choices)
            raise EdblError(f"{key} = {value!r} is not {_describe(self.kind)}")
        items = fitted if isinstance(fitted, tuple) else (fitted,)
        for number in (item for item in items if isinstance(item, int | float)):
            if self.least is not None and number < self.least:
                raise EdblError(f"{key} = {number} is too small: at least {self.least:g}")
            if self.most is not None and number > self.most:
                raise EdblError(f"{key} = {number} is too large: at most {self.most:g}")
        return fitted


def _fit(kind: Any, value: object) -> Any:
    """Return ``value`` converted to ``kind`` where nothing is lost, else None."""
    if isinstance(value, np.generic):  # such as what a loop over an array gives
        value = value.item()
    origin = get_origin(kind)
    if origin is Literal:
        return next((c for c in get_args(kind) if str(c) == str(value)), None)
    if origin in (Union, types.UnionType):
        return next((v for v in (_fit(k, value) for k in get_args(kind)) if v is not None), None)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return None
        items = [_fit(get_args(kind)[0], item) for item in value]
        return None if any(item is None for item in items) else tuple(items)
    if kind is str:
        return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
    if kind is bool:
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        return None
    if kind is int:
        return int(value) if value == int(value) else None
    return float(value)


def _describe(kind: Any) -> str:
    names = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}
    if kind in names:
        return names[kind]
    if get_origin(kind) is tuple:
        return f"a list, each item {_describe(get_args(kind)[0])}"
    return " or ".join(_describe(k) for k in get_args(kind))


def leaves(kind: type, prefix: str = "") -> dict[str, Leaf]:
    """Return the settings of a dataclass by dotted key."""
    if "__dataclass_fields__" not in vars(kind):  # its own: a subclass of a dataclass has those of its base
        raise EdblError(f"{kind.__qualname__} is not a dataclass: write @dataclass(frozen=True) above it")
    hints = get_type_hints(kind)
    found: dict[str, Leaf] = {}
    for item in dataclasses.fields(kind):
        hint, key = hints[item.name], prefix + item.name
        if type(None) in get_args(hint):
            raise EdblError(f"{kind.__qualname__}.{item.name} may be None, which no recipe can hold; use 0, say")
        if dataclasses.is_dataclass(hint):
            inner = leaves(cast(type, hint), key + ".")
            preset = {} if item.default is dataclasses.MISSING else flatten(item.default, key + ".")
            found |= {k: dataclasses.replace(leaf, default=preset.get(k, leaf.default)) for k, leaf in inner.items()}
        else:
            meta = item.metadata
            if "help" not in meta:
                raise EdblError(f"{kind.__qualname__}.{item.name} must be an option; see edbl.config.option")
            found[key] = Leaf(hint, item.default, meta["help"], meta["least"], meta["most"])
    return found


def build(kind: type[T], values: Mapping[str, object], prefix: str = "") -> T:
    """Return an instance of a dataclass from values by dotted key; what is not given keeps its default."""
    known = leaves(kind, prefix)
    checked = check(values, known)
    return _assemble(kind, {k: checked.get(k, leaf.default) for k, leaf in known.items()}, prefix)


def check(values: Mapping[str, object], known: Mapping[str, Leaf], listing: str = "") -> dict[str, object]:
    """Return values by full key, each as its setting's type; ``listing`` is a command that names all keys."""
    checked: dict[str, object] = {}
    for key, value in values.items():
        full = resolve(key, known, listing)
        if full in checked:
            raise EdblError(f"{full} is given twice, once as '{key}'")
        checked[full] = known[full].check(full, value)
    return checked


def _assemble(kind: type[T], values: Mapping[str, object], prefix: str) -> T:
    hints = get_type_hints(kind)
    arguments: dict[str, Any] = {}
    for item in dataclasses.fields(cast(Any, kind)):
        hint, key = hints[item.name], prefix + item.name
        nested = dataclasses.is_dataclass(hint)
        arguments[item.name] = _assemble(cast(type, hint), values, key + ".") if nested else values[key]
    return kind(**arguments)


def flatten(instance: object, prefix: str = "") -> dict[str, object]:
    """Return the values of a settings object by dotted key."""
    flat: dict[str, object] = {}
    for item in dataclasses.fields(cast(Any, instance)):
        value = getattr(instance, item.name)
        key = prefix + item.name
        flat |= flatten(value, key + ".") if dataclasses.is_dataclass(value) else {key: value}
    return flat


def resolve(key: str, known: Iterable[str], listing: str = "") -> str:
    """Return the full key for ``key``, which may leave out leading parts where that is unambiguous."""
    names = list(known)
    if key in names:
        return key
    found = ends(key, names)
    if len(found) > 1:
        raise EdblError(f"key '{key}' is ambiguous: it may be {' or '.join(found)}")
    if not found:
        raise unknown("key", key, names, (name.rsplit(".", 1)[-1] for name in names), listing)
    return found[0]


def ends(key: str, known: Iterable[str]) -> list[str]:
    """Return the full keys that ``key`` may mean, which may leave out leading parts."""
    return [name for name in known if name == key or name.endswith("." + key)]


def toml_value(value: object) -> str:
    """Return a value as a recipe file has it."""
    if isinstance(value, tuple):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    # JSON writes texts, numbers and booleans as TOML does, except that TOML wants DEL escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
