"""Methods: what is learnt. One file each; a class with a ``name`` in this folder is on the command line."""

import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from edbl.errors import EdblError, unknown
from edbl.methods.base import Method


def _methods_in(module: ModuleType) -> list[type[Method]]:
    members = [member for _, member in inspect.getmembers(module, inspect.isclass)]
    return [m for m in members if issubclass(m, Method) and m.__module__ == module.__name__ and "name" in vars(m)]


@cache
def methods() -> dict[str, type[Method]]:
    """Return all methods of this package by name."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return {m.name: m for module in modules for m in _methods_in(module)}


@cache
def _method_in_file(path: Path) -> type[Method]:
    name = f"edbl_method_{path.stem}_{hashlib.sha256(str(path).encode(errors='replace')).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise EdblError(f"no method file at {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look up annotations
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise EdblError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    found = _methods_in(module)
    if len(found) != 1:
        raise EdblError(f"{path} must define exactly one subclass of edbl.methods.base.Method with a name")
    return found[0]


def find_method(name: str) -> type[Method]:
    """Return the method of that name, or the one in a ``.py`` file."""
    if name.endswith(".py"):
        return _method_in_file(Path(name).resolve())
    if name not in methods():
        raise unknown("method", name, methods())
    return methods()[name]
