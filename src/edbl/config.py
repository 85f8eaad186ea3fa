"""Typed settings: dataclasses that check what is put into them and know their dotted keys.

A setting is a field of a frozen dataclass, declared with `option`. Settings nest; ``schedule.epochs`` is the key of
field ``epochs`` in field ``schedule``. `build` makes an instance from dotted keys, `flatten` is its inverse. `fit` is
the one reader of values by type, of settings and of what JSON files say.
"""

import dataclasses
import json
import sys
import types
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeGuard, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from edbl.errors import EdblError, unknown

MOST_SHOWN = 200  # characters of a value in a message
# Numbers, of either sign, where a setting has no range of its own: more would end in overflows.
LARGEST = {int: 1e9, float: 1e30}

T = TypeVar("T")


@dataclass(frozen=True)
class Search:
    """Where a search looks for a setting's value: from ``low`` to ``high``, or ``among`` a few values."""

    low: float = 0.0
    high: float = 0.0
    log: bool = False  # values are drawn evenly by their logarithm
    times: bool = False  # both ends are times the setting's default
    among: tuple[Any, ...] = ()

    def around(self, default: Any) -> "Search":
        """Return the same with ends that are values, for a setting with this default."""
        return Search(self.low * default, self.high * default, self.log) if self.times else self


def option(
    default: T, help: str, least: float | None = None, most: float | None = None, search: Search | None = None
) -> T:
    """Declare a setting with its default, one line of help, and its range; that of a list is the range of its items.

    ``search`` is where `edbl tune` looks for its value; without it, it keeps the one that it has.
    """
    return field(default=default, metadata={"help": help, "least": least, "most": most, "search": search})


def magnitude(default: float, help: str, low: float, high: float) -> float:
    """Declare a number of at least 0, searched for from ``low`` to ``high`` by its logarithm."""
    return option(default, help, least=0, search=Search(low, high, log=True))


@dataclass(frozen=True)
class Leaf:
    """One setting: its type, default, help and range."""

    kind: Any
    default: object
    help: str
    least: float | None
    most: float | None
    search: Search | None = None

    @property
    def choices(self) -> list[str]:
        """What it may be, if that is one of a few names."""
        return [str(c) for c in get_args(self.kind)] if get_origin(self.kind) is Literal else []

    def check(self, key: str, value: object) -> object:
        """Return ``value`` as this setting's type, or say what it must be."""
        try:
            fitted = fit(self.kind, value, key)
        except Unfit as error:
            if self.choices:
                told = value if isinstance(value, str) else shown(value)
                raise unknown(f"value of {key}", told, self.choices) from error
            raise EdblError(f"{key} = {shown(value)} is not {_describe(self.kind)}") from error
        items = fitted if isinstance(fitted, tuple) else (fitted,)
        for number in (item for item in items if isinstance(item, int | float)):
            largest = LARGEST[float if isinstance(number, float) else int]
            least = -largest if self.least is None else self.least
            most = largest if self.most is None else self.most
            if number < least:
                raise EdblError(f"{key} = {number} is too small: at least {least:g}")
            if number > most:
                raise EdblError(f"{key} = {number} is too large: at most {most:g}")
        return fitted


class UnknownKey(EdblError):
    """There is no setting of that key."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def shown(value: object) -> str:
    """Return a value as messages have it: short, and of an object, which may hold much, the type alone."""
    if not _is_plain(list(value) if isinstance(value, tuple) else value) and not isinstance(value, np.generic):
        return f"an object of type {type(value).__name__}"
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} ..."


class Unfit(ValueError):
    """A value is not of the type that it should have; the message names its key."""


def fit(kind: Any, value: object, key: str, null: float | None = None) -> Any:
    """Return a value, as TOML, JSON or a caller gives it, converted to a type where nothing is lost.

    The type may be that of a setting, a list, an object by key, a dataclass (which wants all its fields and no others)
    or a union. `Any` is what a setting may be, texts, numbers and lists of them; `object` is anything at all. Where a
    number should be, ``null`` is what JSON's null stands for, if for any.
    """
    if isinstance(value, np.generic):  # such as what a loop over an array gives
        value = value.item()
    origin, inner = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        wanted = [item.name for item in dataclasses.fields(kind) if item.init]
        if odd := sorted(set(wanted) ^ value.keys()):
            raise Unfit(f"'{odd[0]}' of {key} is {'missing' if odd[0] in wanted else 'unknown'}")
        return cast(Any, kind)(**{name: fit(hints[name], value[name], name, null) for name in wanted})
    if origin in (Union, types.UnionType):
        for one in sorted(inner, key=lambda one: one is not type(value)):  # as it is, if that will do
            with suppress(Unfit):
                return fit(one, value, key, null)
    elif origin is Literal and not isinstance(value, list | tuple | dict):
        for choice in inner:
            if str(choice) == str(value):
                return choice
    elif origin in (list, tuple) and isinstance(value, list | tuple):
        return origin(fit(inner[0], item, key, null) for item in value)
    elif origin is dict and isinstance(value, dict):
        return {name: fit(inner[1], item, key, null) for name, item in value.items()}
    elif kind is object or (kind is Any and _is_plain(value)) or (kind is type(None) and value is None):
        return value
    elif kind is float and value is None and null is not None:
        return null
    elif kind is bool and isinstance(value, bool):
        return value
    elif kind is str and isinstance(value, str | int) and not isinstance(value, bool):
        return str(value)
    elif kind in (int, float) and _is_finite(value) and (kind is float or value == int(value)):
        return kind(value)
    raise Unfit(f"'{key}' is not {_describe(kind)}")


def _is_finite(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_plain(value: object, depth: int = 3) -> bool:
    """Tell whether a value is one that settings have: a list of lists of numbers or texts at most."""
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


def _describe(kind: Any) -> str:
    names = {
        int: "a whole number",
        float: "a finite number",
        bool: "true or false",
        str: "a text",
        type(None): "null",
        Any: "a value that settings have",
    }
    if kind in names:
        return names[kind]
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (list, tuple):
        return f"a list, each item {_describe(inner[0])}"
    if origin is dict:
        return f"an object, each value {_describe(inner[1])}"
    if origin is Literal:
        return " or ".join(str(choice) for choice in inner)
    return " or ".join(_describe(one) for one in inner) or f"an object that says what a {kind.__name__} is"


@cache
def leaves(kind: type, prefix: str = "") -> Mapping[str, Leaf]:
    """Return the settings of a dataclass by dotted key."""
    if not isinstance(kind, type):
        raise EdblError(f"a Config must be a dataclass, not {kind!r}")
    if "__dataclass_fields__" not in vars(kind):  # its own: a subclass of a dataclass has those of its base
        raise EdblError(f"{kind.__qualname__} is not a dataclass: write @dataclass(frozen=True) above it")
    try:
        hints = get_type_hints(kind)
    except (NameError, TypeError, SyntaxError) as error:
        raise EdblError(f"the types of {kind.__qualname__} cannot be read: {error}") from error
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
            found[key] = Leaf(hint, item.default, meta["help"], meta["least"], meta["most"], meta["search"])
    return found


def build(kind: type[T], values: Mapping[str, object], prefix: str = "") -> T:
    """Return an instance of a dataclass from values by dotted key; what is not given keeps its default."""
    known = leaves(cast(type, kind), prefix)  # mypy takes no narrower class for hashable
    checked = check(values, known)
    return _assemble(kind, {k: checked.get(k, leaf.default) for k, leaf in known.items()}, prefix)


def check(values: Mapping[str, object], known: Mapping[str, Leaf]) -> dict[str, object]:
    """Return values by full key, each as its setting's type."""
    checked: dict[str, object] = {}
    for key, value in values.items():
        full = resolve(key, known)
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


def resolve(key: str, known: Iterable[str]) -> str:
    """Return the full key for ``key``, which may leave out leading parts where that is unambiguous."""
    names = list(known)
    if key in names:
        return key
    found = ends(key, names)
    if len(found) > 1:
        raise EdblError(f"key '{key}' is ambiguous: it may be {' or '.join(found)}")
    if not found:
        raise unknown_key(key, names)
    return found[0]


def unknown_key(key: str, known: Iterable[str], listing: str = "") -> UnknownKey:
    """Return the error for a key that does not exist; ``listing`` is a command that names all."""
    names = list(known)
    short = (name.rsplit(".", 1)[-1] for name in names)
    return UnknownKey(key, str(unknown("key", key, names, short, listing)))


def ends(key: str, known: Iterable[str]) -> list[str]:
    """Return the full keys that ``key`` may mean, which may leave out leading parts."""
    return [name for name in known if name == key or name.endswith("." + key)]


def toml_value(value: object) -> str:
    """Return a value as a recipe file has it."""
    if isinstance(value, tuple):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    # JSON writes texts, numbers and booleans as TOML does, except that TOML wants DEL escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
