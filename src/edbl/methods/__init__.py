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
def _method_in_file(path: Path, digest: str) -> type[Method]:
    name = f"edbl_method_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
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
    """Return the method of that name, or the one in a ``.py`` file, as the file is now."""
    if name.endswith(".py"):
        path = Path(name).resolve()
        try:
            digest = hashlib.sha256(bytes(path) + path.read_bytes()).hexdigest()
        except OSError as error:
            raise EdblError(f"no method file at {path}: {error.strerror}") from error
        return _method_in_file(path, digest)
    if name not in methods():
        raise unknown("method", name, methods())
    return methods()[name]
