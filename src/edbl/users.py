"""Code of users: what a name stands for that is not one of ours, what that code consists of, and where it crashed.

``mine.py`` and ``mine.py:thing`` are in a file; any other name was registered in this process, or is an entry point of
an installed package. Whoever looks for a method, a data set, a backbone or a stream asks here for what is not its own.
"""

import ast
import hashlib
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from edbl.errors import EdblError, Unnamed, unknown
from edbl.store import read_file

# What users may bring; `edbl.run` takes it under these words.
METHOD, DATA, BACKBONE, STREAM = "method", "data", "backbone", "stream"
# Settings that name it.
KEYS = {"method": METHOD, "data.name": DATA, "net.backbone": BACKBONE, "stream.given": STREAM}
# Groups of entry points.
GROUPS = {METHOD: "edbl.methods", DATA: "edbl.data", BACKBONE: "edbl.backbones", STREAM: "edbl.streams"}
CALLED = {METHOD: "method", DATA: "data set", BACKBONE: "backbone", STREAM: "stream"}  # in messages
GIVEN = "given:"  # begins the name of an object that a call was given
FULL = "EDBL_TRACEBACK"  # in the environment: show all frames of a crash
MOST_HELD = 100_000  # things in a collection that are looked at
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
FILE = re.compile(r"(.+\.py)(?::(\w+))?", re.DOTALL)
OURS = Path(__file__).parent
INSTALLED = {"site-packages", "dist-packages"}  # folders whose files are no neighbours
PACKAGE = "edbl_user_"  # begins the names of packages that folders of users become

_registered: dict[str, dict[str, object]] = {kind: {} for kind in GROUPS}
_named: set[Path] = set()  # files that this process was told to use, and may run
_files: set[str] = set()  # of users, that were imported
_packages: set[str] = set()  # of entry points that were loaded


def register(
    name: str, *, method: object = None, data: object = None, backbone: object = None, stream: object = None
) -> None:
    """Give a name, in this process, to a method, a data set, a backbone, a stream, or to one of each.

    They are what `edbl.run` takes under these words. All but a method may also be a function that makes them.
    """
    if not isinstance(name, str) or not name or is_file(name) or name.startswith(GIVEN):
        raise EdblError("a name to register is a text, and neither a .py file nor one that begins with 'given:'")
    given = {METHOD: method, DATA: data, BACKBONE: backbone, STREAM: stream}
    given = {kind: thing for kind, thing in given.items() if thing is not None}
    if not given:
        raise EdblError(f"there is nothing to register as '{name}': give method, data, backbone or stream")
    for kind, thing in given.items():
        _registered[kind][name] = thing


def give(kind: str, name: str, thing: object) -> str:
    """Remember an object that a call was given, and return the name that recipes have for it."""
    _registered[kind][GIVEN + name] = thing
    return GIVEN + name


def is_file(name: str) -> bool:
    """Tell whether a name means a ``.py`` file, or something in one."""
    return FILE.fullmatch(name) is not None and not Path(name).is_dir()


def files(values: Mapping[str, object]) -> dict[str, str]:
    """Return the names of files with code that values have, by full key; theirs may lack its first part."""
    named = {key: value for key, value in values.items() if isinstance(value, str) and is_file(value)}
    return {full: name for key, name in named.items() for full in KEYS if f".{full}".endswith(f".{key}")}


def trust(values: Mapping[str, object]) -> None:
    """Let files run that values name: they are of a user's, or what `refuse_unnamed` let pass."""
    _named.update(_parts(name)[0] for name in files(values).values())


def refuse_unnamed(values: Mapping[str, object], where: object) -> None:
    """Refuse files with code that nothing names but ``where``, which may come from anybody: they would run."""
    if unnamed := {key: name for key, name in files(values).items() if _parts(name)[0] not in _named}:
        raise Unnamed(where, unnamed)


def again(values: Mapping[str, object]) -> list[str]:
    """Return the options of `edbl resume` that name the files with code once more."""
    return [word for key, name in files(values).items() for word in (f"--{KEYS[key]}", name)]


def is_known(kind: str, name: str) -> bool:
    """Tell whether a name is that of a file, or one that users have given."""
    return is_file(name) or name in names(kind)


def absolute(name: str) -> str:
    """Return the name with the whole path of its file, so that a run can go on from anywhere; others as they are."""
    if not is_file(name):
        return name
    path, thing = _parts(name)
    return f"{path}:{thing}" if thing else str(path)


def check(kind: str, name: str, ours: Collection[str]) -> None:
    """Refuse a name that nothing has, without running anybody's code."""
    if is_file(name):
        _sources(_parts(name)[0])
    elif name not in ours and name not in names(kind) and not name.startswith(GIVEN):
        raise unknown(CALLED[kind], name, [*ours, *names(kind)])


def names(kind: str) -> list[str]:
    """Return the names that users have given, here or in packages."""
    named = [name for name in _registered[kind] if not name.startswith(GIVEN)]
    return sorted({*named, *_entries(kind)})


def find(kind: str, name: str, ours: Mapping[str, object]) -> object:
    """Return what a name stands for, one of ours or of users'; a file of which nothing is named is a module."""
    if is_file(name):
        path, thing = _parts(name)
        module = _module(path)
        if thing and not hasattr(module, thing):
            raise unknown(f"name in {path}", thing, [word for word in vars(module) if word[0] != "_"])
        return getattr(module, thing) if thing else module
    if name in _registered[kind]:
        if name in ours:
            raise EdblError(f"{CALLED[kind]} '{name}' is one of edbl's; register yours under another name")
        return _registered[kind][name]
    if name in ours:
        return ours[name]
    if name in _entries(kind):
        entry = _entries(kind)[name]
        _packages.add(entry.module.partition(".")[0])
        try:
            return entry.load()
        except Exception as error:
            why = f"of {_package(entry)} cannot be imported: {_first_line(error)}"
            raise EdblError(f"{CALLED[kind]} '{name}' {why}") from error
    if name.startswith(GIVEN):
        raise EdblError(f"{CALLED[kind]} '{name}' was given to a call in Python; give it again")
    raise unknown(CALLED[kind], name, [*ours, *names(kind)])


def digest(kind: str, name: str, ours: Collection[str]) -> str:
    """Return what tells the code behind a name from other such code: a checksum, or the package; nothing for ours."""
    if name in ours:
        return ""
    if is_file(name):
        path = _parts(name)[0]
        return _checksum(path, _sources(path))
    if name in _registered[kind]:
        return digest_of(_registered[kind][name])
    return _package(_entries(kind)[name]) if name in _entries(kind) else ""


def held(kind: type) -> dict[str, object]:
    """Return what classes and files of users hold beside code, as far as it shows: it is lost when a process ends."""
    theirs = [one for one in kind.__mro__ if not one.__module__.startswith("edbl.") and one is not object]
    found: dict[str, object] = {
        f"{one.__name__}.{name}": (id(value), _mark(value))
        for one in theirs
        for name, value in vars(one).items()
        if not name.startswith("__")
    }
    for module in [module for module in list(sys.modules.values()) if getattr(module, "__file__", None) in _files]:
        held = {name: value for name, value in vars(module).items() if not name.startswith("__")}
        found |= {f"{module.__name__.rpartition('.')[2]}.{k}": mark for k, v in held.items() if (mark := _mark(v))}
    return found


def _mark(value: object, depth: int = 4) -> str:
    """Return what changes when a number, a tensor, an array, or what a user's object or function holds of them, does.

    Of other objects it is nothing.
    """
    if hasattr(value, "_version") and hasattr(value, "data_ptr"):  # a tensor, whose values would be waited for
        return f"tensor {id(value)} {value._version}"
    if isinstance(value, np.ndarray):
        return f"array {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, Collection) and len(value) > MOST_HELD:  # such as a range, or data
        return f"{id(value)} {len(value)}"
    if isinstance(value, Mapping) and depth:
        return f"{{{', '.join(f'{key!r}: {_mark(item, depth - 1)}' for key, item in value.items())}}}"
    if isinstance(value, Collection) and not isinstance(value, str | bytes) and depth:
        return f"[{', '.join(_mark(item, depth - 1) for item in value)}]"
    if isinstance(value, FunctionType) and depth:
        return _mark([value.__defaults__, value.__kwdefaults__], depth)
    if getattr(sys.modules.get(type(value).__module__), "__file__", None) in _files:
        return _mark(getattr(value, "__dict__", {}), depth)
    return repr(value) if isinstance(value, int | float | str | bytes) else ""


def forget() -> None:
    """Forget what was imported of users, as a new process would begin."""
    _import.cache_clear()


@contextmanager
def calling(name: str) -> Iterator[None]:
    """Call what a name stands for: were it to end the process, as `sys.exit()` does, that is an error like others."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise EdblError(f"{name} ends the process: {_line(error, Path(name))}: {_first_line(error)}") from error


def told(error: BaseException) -> str:
    """Return where a user's code crashed, with its frames from the first on; nothing if the crash is not its own."""
    first = _first_of_users(error)
    if first is None:
        return ""
    frames = traceback.format_list(traceback.extract_tb(error.__traceback__)[first:])
    lines = [*frames, *traceback.format_exception_only(error)]
    if os.environ.get(FULL):
        lines = traceback.format_exception(error)
    head = place(error)
    return f"{head}\n{''.join(line for line in lines if line.rstrip() != head).rstrip()}"


def place(error: BaseException) -> str:
    """Return where in a run an error happened, as far as it is known."""
    first = _first_of_users(error)
    frames = traceback.extract_tb(error.__traceback__)
    function = [f"`{frames[first].name}`"] if first is not None else []
    places = [*function, *getattr(error, "places", [])]
    return f"in {', '.join(places)}" if places else ""


@cache
def _entries(kind: str) -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUPS[kind])}


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.module


def _parts(name: str) -> tuple[Path, str]:
    """Return the path of a file, and the name of what is meant in it."""
    found = FILE.fullmatch(name)
    assert found is not None
    return Path(found[1]).resolve(), found[2] or ""


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _first_of_users(error: BaseException) -> int | None:
    """Return the number of the first frame of an error that is of a user's code."""
    for number, (frame, _) in enumerate(traceback.walk_tb(error.__traceback__)):
        top = str(frame.f_globals.get("__name__")).partition(".")[0]
        if frame.f_code.co_filename in _files or top in _packages:
            return number
    return None


# What a file consists of: itself, and the files below its folder that it imports, directly or not.


def _sources(path: Path) -> dict[Path, bytes]:
    """Return the files that a file consists of, itself first, as they are now."""
    try:
        found = {path: read_file(path)}
    except OSError as error:
        raise EdblError(f"no file at {path}: {error.strerror}") from error
    left, alone = [path], not INSTALLED.isdisjoint(path.parts)
    while left:
        file = left.pop()
        for other in _imported_by(file, found[file], path.parent):
            if other not in found and other.is_file() and not other.is_relative_to(OURS) and not alone:
                found[other] = read_file(other)
                left.append(other)
    return found


def _imported_by(file: Path, source: bytes, folder: Path) -> Iterator[Path]:
    """Yield where the files would be that a file imports, were they below ``folder``."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # which its import will tell
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted = [(folder, alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else folder
            stem = node.module.split(".") if node.module else []
            wanted = [(start, [*stem, alias.name]) for alias in node.names]
        else:
            continue
        for start, parts in wanted:
            for end in range(len(parts) + 1):
                inner = start.joinpath(*parts[:end])
                if inner.is_relative_to(folder):
                    yield inner / "__init__.py"
                    if inner != folder:
                        yield inner.with_name(f"{inner.name}.py")


def _checksum(path: Path, sources: Mapping[Path, bytes]) -> str:
    """Return the SHA-256 of a file, and of names and contents of those that it imports."""
    found = hashlib.sha256(sources[path])
    for other in sorted(sources.keys() - {path}):
        found.update(f"\n{other.relative_to(path.parent).as_posix()}\n".encode() + sources[other])
    return found.hexdigest()


def _module(path: Path) -> ModuleType:
    """Return a file as a module, as it and those that it imports are now."""
    sources = _sources(path)
    key = hashlib.sha256(bytes(path) + _checksum(path, sources).encode()).hexdigest()
    return _import(f"{PACKAGE}{key[:16]}", path, tuple(sources.items()))


@cache
def _import(package: str, path: Path, sources: tuple[tuple[Path, bytes], ...]) -> ModuleType:
    """Import a file as part of a package that is its folder, so that it may import its neighbours by any name."""
    spec = spec_from_file_location(f"{package}.{path.stem.replace('.', '_')}", path)
    assert spec is not None
    module = module_from_spec(spec)
    folder = ModuleType(package)
    folder.__path__ = [str(path.parent)]
    sys.modules |= {package: folder, module.__name__: module}  # where dataclasses look up annotations
    files = {file for file, _ in sources}
    with _neighbours(path, files):
        _files.update(map(str, files))
        before = set(sys.modules)
        try:
            exec(compile(sources[0][1], str(path), "exec", dont_inherit=True), vars(module))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise EdblError(f"{path} cannot be imported: {_line(error, path)}: {_first_line(error)}") from error
        for name in set(sys.modules) - before:
            file = _file_of(name.removeprefix(f"{package}."), path.parent)
            if file is not None and file not in files:
                raise EdblError(f"{path} imports {file.name}, which it hides; write `import {name}`")
    return module


@contextmanager
def _neighbours(path: Path, files: Collection[Path]) -> Iterator[None]:
    """Let a file import others of its folder as they are now, whatever else was imported by their names before."""
    tops = {file.relative_to(path.parent).parts[0].removesuffix(".py") for file in files if file != path}
    tops -= sys.stdlib_module_names
    stale = {name.partition(".")[0] for name, module in sys.modules.items() if _is_users(name, module)}
    held = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in tops | stale}
    importlib.invalidate_caches()
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # which may be older, and nobody could tell
    sys.path.insert(0, str(path.parent))
    try:
        yield
    finally:
        sys.path.remove(str(path.parent))
        sys.dont_write_bytecode = writes
        sys.modules.update({name: module for name, module in held.items() if name.partition(".")[0] not in stale})


def _is_users(name: str, module: ModuleType) -> bool:
    """Tell whether a module is one that another file of users imported from its folder."""
    return getattr(module, "__file__", None) in _files and not name.startswith(PACKAGE)


def _file_of(name: str, folder: Path) -> Path | None:
    """Return the file of an imported module if it was found in ``folder`` by that name."""
    file = getattr(sys.modules.get(name), "__file__", None)
    stem = folder.joinpath(*name.split("."))
    places = (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")
    return next((place for place in places if file and str(place) == file), None)


def _line(error: BaseException, path: Path) -> str:
    """Return the last line of a user's that led to an error of an import."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _files]
    return f"{lines[-1].filename}, line {lines[-1].lineno}" if lines else str(path)


# What an object consists of that no file tells.


def digest_of(thing: object) -> str:
    """Return a checksum of the code of a class or a function; nothing for other objects.

    One of a module that can be imported is as that file is; one of a notebook or script is what its own code says.
    """
    if isinstance(thing, partial):
        arguments = f"{digest_of(thing.func)} {thing.args} {thing.keywords}"
        return hashlib.sha256(arguments.encode()).hexdigest()
    if not inspect.isclass(thing) and not inspect.isfunction(thing):
        return ""
    file = getattr(sys.modules.get(thing.__module__), "__file__", None) or ""
    if file.endswith(".py") and thing.__module__ != "__main__" and Path(file).is_file():
        return _checksum(Path(file), _sources(Path(file)))
    parts: list[Any] = [thing]
    if inspect.isclass(thing):
        parts = [kind for kind in inspect.getmro(thing) if kind.__module__ == thing.__module__]
    lines = (line for part in parts for line in _lines(part, part.__qualname__))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _lines(thing: object, outer: str) -> Iterator[str]:
    """Yield what the code of an object says, wherever it stands; of classes, only of those that are in ``outer``."""
    if isinstance(thing, property):
        thing = thing.fget
    if isinstance(thing, classmethod | staticmethod):
        thing = thing.__func__
    if isinstance(thing, CodeType):
        yield f"{thing.co_code.hex()} {thing.co_names} {thing.co_varnames}"
        for constant in thing.co_consts:
            yield from _lines(constant, outer)
    elif isinstance(thing, FunctionType):
        yield f"{thing.__defaults__} {thing.__kwdefaults__}"
        yield from _lines(inspect.unwrap(thing).__code__, outer)
    elif inspect.isclass(thing) and f"{thing.__qualname__}.".startswith(f"{outer}."):
        for name, member in sorted(vars(thing).items()):
            if name != "__firstlineno__":
                yield name
                yield from _lines(member, outer)
    elif isinstance(thing, frozenset):  # whose order is another one in each process
        yield str(sorted(map(repr, thing)))
    else:
        yield ADDRESS.sub("", repr(thing))
