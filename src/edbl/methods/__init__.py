"""Methods: what is learnt. One file each; a class with a ``name`` in this folder is on the command line."""

import importlib
import inspect
import pkgutil
from functools import cache
from types import ModuleType

from edbl import users
from edbl.errors import EdblError
from edbl.methods.base import Method


def _methods_in(module: ModuleType) -> list[type[Method]]:
    members = [member for _, member in inspect.getmembers(module, inspect.isclass)]
    return [m for m in members if issubclass(m, Method) and m.__module__ == module.__name__ and "name" in vars(m)]


@cache
def methods() -> dict[str, type[Method]]:
    """Return all methods of this package by name."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return {m.name: m for module in modules for m in _methods_in(module)}


def find_method(name: str) -> type[Method]:
    """Return the method of that name, ours or a user's, or the one in a ``.py`` file, as the file is now."""
    found = users.find(users.METHOD, name, methods())
    if isinstance(found, ModuleType):
        there = _methods_in(found)
        if len(there) != 1:
            raise EdblError(
                f"{found.__file__} must define exactly one subclass of edbl.methods.base.Method with a name"
            )
        return there[0]
    return as_method(found)


def as_method(found: object) -> type[Method]:
    """Return what a user brings as a method if it is one."""
    if not inspect.isclass(found) or not issubclass(found, Method) or not hasattr(found, "name"):
        what = getattr(found, "__name__", type(found).__name__)
        raise EdblError(f"{what} is no subclass of edbl.methods.base.Method with a name")
    return found
