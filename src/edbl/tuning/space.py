"""Where a search looks: what methods declare beside their options, or what a file says."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard, get_origin

from edbl import config, users
from edbl.config import Leaf, Search, toml_value
from edbl.errors import EdblError, unknown
from edbl.methods import find_method
from edbl.recipe import Recipe, flat
from edbl.store import read_toml

SAMPLERS = ("tpe", "gp", "random")
PRUNERS = ("median", "halving", "hyperband", "none")
ENDS = {"low", "high", "log"}  # keys of a range in a file
KEYS = ("sampler", "pruner", "classifier", "settings", "space")


@dataclass(frozen=True)
class SearchFile:
    """What a search file says."""

    sampler: str = "tpe"
    pruner: str = "median"
    classifier: str = ""  # whose accuracy counts; empty: the method's own
    settings: Mapping[str, object] = field(default_factory=dict)  # what all trials share
    space: Mapping[str, Search] = field(default_factory=dict)  # by full key; empty: what the method declares


def declared(method: str) -> dict[str, Search]:
    """Return where to look for the settings of a method, by full key, as they say beside their defaults."""
    common = find_method(method).searched
    leaves = {key: leaf for key, leaf in Recipe.keys(method).items() if key in common or key.startswith("options.")}
    return {key: leaf.search.around(leaf.default) for key, leaf in leaves.items() if leaf.search is not None}


def read(path: Path, method: str) -> SearchFile:
    """Read a search file for a method."""
    try:
        tree = read_toml(path)
    except OSError as error:
        raise EdblError(f"cannot read search {path}: {error.strerror}") from error
    except ValueError as error:
        raise EdblError(f"search {path} is not valid TOML: {error}") from error
    if wrong := [key for key in tree if key not in KEYS]:
        raise unknown(f"key in search {path}", wrong[0], KEYS)
    for key, known in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
        if tree.get(key, known[0]) not in known:
            raise unknown(f"{key} in search {path}", str(tree[key]), known)
    if not isinstance(tree.get("classifier", ""), str):
        raise EdblError(f"search {path}: classifier must be a text, such as nme")
    for key in ("settings", "space"):
        if not isinstance(tree.get(key, {}), dict):
            raise EdblError(f"search {path}: {key} must be a table")
    try:
        leaves = Recipe.keys(method)
        settings = Recipe.checked(method, flat(tree.get("settings", {})))
        space = {key: _search(key, told, leaves) for key, told in _told(tree.get("space", {}), leaves).items()}
    except EdblError as error:
        raise EdblError(f"search {path}: {error}") from error
    if "space" in tree and not space:
        raise EdblError(f"search {path}: [space] is empty; leave it out to search what the method declares")
    if both := sorted(settings.keys() & space.keys()):
        raise EdblError(f"search {path}: {both[0]} is both in [settings] and in [space]")
    for values in (settings, *({key: value} for key, where in space.items() for value in where.among)):
        users.refuse_unnamed(values, path)
    words = {key: tree[key] for key in ("sampler", "pruner", "classifier") if key in tree}
    return SearchFile(**words, settings=settings, space=space)


def _told(tree: Mapping[str, Any], leaves: Mapping[str, Leaf], prefix: str = "") -> dict[str, object]:
    """Return what nested tables say of each setting, by full key: a range, a list, or anything else."""
    found: dict[str, object] = {}
    for name, told in tree.items():
        key = prefix + name
        if isinstance(told, dict) and not told.keys() & ENDS:
            inner = _told(told, leaves, f"{key}.")
        else:
            inner = {config.resolve(key, leaves): told}
        if twice := sorted(found.keys() & inner.keys()):
            raise EdblError(f"{twice[0]} is given twice")
        found |= inner
    return found


def _search(key: str, told: object, leaves: Mapping[str, Leaf]) -> Search:
    """Return where to look for a setting, as a file says it."""
    if key in ("method", "seed", "data.name", "data.holdout") or key.startswith(("stream.", "evaluation.")):
        raise EdblError(f"{key} says what is learnt or measured, so it cannot be searched; put it in [settings]")
    if told == []:
        raise EdblError(f"{key} has an empty list of values")
    if isinstance(told, list):
        return check(key, Search(among=tuple(told)), leaves[key])
    if isinstance(told, dict):
        if odd := sorted(told.keys() - ENDS):
            raise unknown(f"key of {key}", odd[0], ENDS)
        low, high, log = told.get("low"), told.get("high"), told.get("log", False)
        if _is_number(low) and _is_number(high) and isinstance(log, bool):
            return check(key, Search(float(low), float(high), log), leaves[key])
    raise EdblError(f"{key} takes a range, such as {{ low = 0.01, high = 0.1, log = true }}, or a list of values")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check(key: str, search: Search, leaf: Leaf) -> Search:
    """Return where to look for a setting, if its values may be there."""
    if search.among:
        values = tuple(leaf.check(key, value) for value in search.among)
        if len(set(map(toml_value, values))) < len(values):
            raise EdblError(f"{key} has a value twice")
        return Search(among=values)
    if leaf.kind not in (int, float):
        kind = "a list of values" if leaf.choices or leaf.kind is bool or get_origin(leaf.kind) else "a list"
        raise EdblError(f"{key} is not a number, so it takes {kind}, not a range")
    if not search.low < search.high:
        raise EdblError(f"{key} has nothing between low = {search.low:g} and high = {search.high:g}")
    if search.log and search.low <= 0:
        raise EdblError(f"{key} has low = {search.low:g}, which has no logarithm; leave log out, or begin above 0")
    for end in (search.low, search.high):
        leaf.check(key, int(end) if leaf.kind is int and end == int(end) else end)
    return search


def shown(search: Search) -> str:
    """Return where to look for a value, for people."""
    if search.among:
        return ", ".join(map(toml_value, search.among))
    return f"{search.low:g} to {search.high:g}" + (", by its logarithm" if search.log else "")


def suggest(trial: Any, key: str, search: Search, leaf: Leaf) -> object:
    """Let a trial of Optuna choose a setting's value."""
    if search.among:
        named = {toml_value(value): value for value in search.among}
        return named[trial.suggest_categorical(key, list(named))]
    if leaf.kind is int:
        return trial.suggest_int(key, math.ceil(search.low), math.floor(search.high), log=search.log)
    return trial.suggest_float(key, search.low, search.high, log=search.log)
