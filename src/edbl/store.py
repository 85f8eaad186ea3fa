"""What is kept on disk: files that are whole or not there at all, and entries of tensors and values.

An entry of a folder is ``NAME.json``, its values, and ``NAME.safetensors``, its tensors, where it has any. The JSON has
a format, the checksum of the tensors, and one of itself: its replacement is the commit. Tensors are written as
``NAME.safetensors.new`` before it and take their place after it, so that a kill at any moment leaves the old entry or
the new one. Until they are there, which `settle` sees to if the writer could not, readers find them by their checksum.
"""

import dataclasses
import errno
import glob
import hashlib
import io
import json
import math
import os
import re
import stat
import sys
import time
import tokenize
import tomllib
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from edbl.config import Unfit, fit
from edbl.errors import Busy, EdblError

if TYPE_CHECKING:  # torch takes a second, and whoever only reads records needs none
    from torch import Tensor

LOCK = ".lock"
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # of file systems that have none
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")  # what `replacing` calls a file that is not whole yet
TENSORS, NEW = ".safetensors", ".safetensors.new"  # how the names of files with tensors end
ABANDONED = 600  # seconds after which nobody writes a file any more
LONG_NAME = 200  # bytes
PAUSE = 0.05  # seconds between two tries at a lock
TRIES = 5  # at reading what is being replaced
HEAD = 8  # bytes at the beginning of a file of tensors: how long what it says of them is
# The most that is read: of values in JSON, of texts that people write, and how deep either may be nested.
MOST_VALUES, MOST_TEXT, DEEPEST = 64 * 2**20, 2**20, 30
LONG_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{DEEPEST}}}""")

# What NumPy may raise over an array whose header was forged: it reads that as an expression of Python.
ODD_ARRAY = (ValueError, TypeError, ArithmeticError, MemoryError, RecursionError, SyntaxError, tokenize.TokenError)

T = TypeVar("T")


class Damaged(EdblError):
    """A file is not what was written: which, and why."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"'{path}' is damaged: {why}")
        self.file, self.why = path.name, why


@dataclass(frozen=True)
class Entry(Generic[T]):
    """What the JSON of an entry says."""

    value: T
    tensors: str  # SHA-256 of the tensors; empty if there are none


def save(folder: Path, name: str, value: object, tensors: "Mapping[str, Tensor] | None" = None, format: int = 1) -> str:
    """Replace an entry of a folder; return the checksum of its tensors. ``value`` is a dataclass or values by key."""
    new = folder / f"{name}{NEW}"
    # As a reader will have them; what JSON cannot hold is refused before anything is written.
    values = json.loads(json.dumps(_by_key(value), allow_nan=False))
    if new.is_file():  # of a writer that was killed, and maybe all there is of an entry
        with suppress(OSError, EdblError):
            settle(folder, name, read(folder, name, object, format).tensors)
    checksum = "" if tensors is None else _write_tensors(new, tensors)
    described = {"format": format, "sha256": _sum_of(values, checksum), "tensors": checksum, "values": values}
    write_atomic(folder / f"{name}.json", (json.dumps(described, indent=1) + "\n").encode())
    settle(folder, name, checksum)
    return checksum


def read(folder: Path, name: str, kind: type[T], format: int = 1) -> Entry[T]:
    """Return what the JSON of an entry says, every value checked against its type: it may come from anywhere."""
    path = folder / f"{name}.json"
    stored = read_json(path)
    number, values, tensors = (stored.get(key) for key in ("format", "values", "tensors"))
    if isinstance(number, int) and number > format:
        raise EdblError(
            f"'{path}' has format {number}, and this edbl reads format {format}: it was written by a newer edbl\n"
            "upgrade edbl to use it"
        )
    if number != format:
        raise Damaged(path, f"its format is {number!r}, not {format}")
    try:
        if not isinstance(tensors, str) or stored.get("sha256") != _sum_of(values, tensors):
            raise Damaged(path, "its checksum is wrong")
        return Entry(fit(kind, values, "values"), tensors)
    except (Unfit, RecursionError) as error:
        raise Damaged(path, str(error)) from error


def load(folder: Path, name: str, kind: type[T], format: int = 1) -> "tuple[T, dict[str, Tensor]]":
    """Return an entry and its tensors; one that is replaced while it is read is read again."""
    entry = read(folder, name, kind, format)
    for _ in range(TRIES):
        try:
            return entry.value, tensors_of(folder, name, entry.tensors)
        except Damaged:
            before, entry = entry, read(folder, name, kind, format)
            if before.tensors == entry.tensors:
                raise
    raise busy(folder)


def find(folder: Path, name: str, kind: type[T], format: int = 1) -> "tuple[T, dict[str, Tensor]] | None":
    """Return an entry and its tensors, or None if it is missing, damaged or of another format."""
    try:
        return load(folder, name, kind, format)
    except (OSError, EdblError):
        return None


def tensors_of(folder: Path, name: str, checksum: str) -> "dict[str, Tensor]":
    """Return the tensors of an entry, in their place or on the way there."""
    if not checksum:
        return {}
    path = folder / f"{name}{TENSORS}"
    for place in (path, folder / f"{name}{NEW}", path):  # again, as they may take their place between two looks
        with suppress(FileNotFoundError), opened(place, own=True) as file:
            if not _is_whole(file) or hashlib.file_digest(file, "sha256").hexdigest() != checksum:
                continue
            file.seek(0)
            try:
                return tensors_in(file.read())
            except ValueError as error:
                raise Damaged(place, str(error)) from error
    raise Damaged(path, "its checksum is wrong" if path.exists() else "the file is missing")


def tensors_in(data: bytes) -> "dict[str, Tensor]":
    """Return the tensors that a file of them holds; a `ValueError` says why it is none."""
    import safetensors.torch
    from safetensors import SafetensorError

    try:
        return safetensors.torch.load(data)
    except (SafetensorError, KeyError) as error:
        raise ValueError(str(error)) from error


def bytes_of(tensors: "Mapping[str, Tensor]") -> bytes:
    """Return what a file of tensors holds."""
    import safetensors.torch

    return safetensors.torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def _is_whole(file: io.BufferedReader) -> bool:
    """Tell whether a file of tensors is as large as it says at its beginning, to which it is left."""
    try:
        head = int.from_bytes(file.read(HEAD), "little")
        tensors = json.loads(file.read(head)) if head <= MOST_VALUES else {}
        ends = [one["data_offsets"][1] for name, one in tensors.items() if name != "__metadata__"]
        return bool(HEAD + head + max(ends, default=0) == os.fstat(file.fileno()).st_size)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return False
    finally:
        file.seek(0)


def check_tensors(found: "Mapping[str, Tensor]", wanted: "Mapping[str, Tensor]") -> None:
    """Refuse tensors from disk that are not, name by name, of the shape and type of those that they stand for.

    A checksum guards against damage, not against strangers, and kernels may write beyond a tensor that is too small.
    """
    for name in sorted(found.keys() ^ wanted.keys()):
        raise Unfit(f"tensor '{name}' is {'missing' if name in wanted else 'unknown'}")
    for name, tensor in found.items():
        here, there = ((one.dtype, tuple(one.shape)) for one in (tensor, wanted[name]))
        if here != there:
            raise Unfit(f"tensor '{name}' is {here[0]} {list(here[1])}, not {there[0]} {list(there[1])}")


def settle(folder: Path, name: str, checksum: str) -> None:
    """Let new tensors take their place if they are those of the ``checksum`` that the JSON has; else remove them."""
    new = folder / f"{name}{NEW}"
    if new.is_file() and not new.is_symlink():
        with open(new, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found == checksum:
            os.replace(new, folder / f"{name}{TENSORS}")
        else:
            delete(folder.resolve(), [new.name])


def remove(folder: Path, name: str) -> None:
    """Delete an entry."""
    delete(folder, (f"{name}{part}" for part in (".json", TENSORS, NEW)))


def delete(folder: Path, names: Iterable[str]) -> None:
    """Delete files of a folder that are there; if a link has taken the folder's place, nothing behind it."""
    if os.unlink not in os.supports_dir_fd:  # Windows, where few may make links
        for name in names:
            (folder / name).unlink(missing_ok=True)
        return
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=handle)
    finally:
        os.close(handle)


def below(folder: Path, but: str = "") -> list[os.DirEntry[str]]:
    """Return what is in a folder and below it, links too, which are not followed, but not deeper than ``DEEPEST``.

    Folders that are called as ``but`` says are left out: neither read nor written.
    """
    places, found = [(os.fspath(folder), 1)], []
    for place, depth in places:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(place) as entries:  # some may be removed
            for entry in entries:
                found.append(entry)
                if depth < DEEPEST and entry.name != but and entry.is_dir(follow_symlinks=False):
                    places.append((entry.path, depth + 1))
    return found


def found_below(folder: Path, name: str) -> list[Path]:
    """Return the folders in a folder, or below it, that hold something of a name, in order."""
    return sorted(Path(entry.path).parent for entry in below(folder) if entry.name == name)


def refuse_links(folder: Path, but: str = "") -> None:
    """Refuse a run, a model or a search that holds a link: it may come from anywhere, and the link lead anywhere."""
    top = len(folder.parts)
    for entry in below(folder, but):
        if entry.is_symlink():
            own = "a run, a model or a search keeps its files itself; put what it leads to in its place"
            raise EdblError(f"{entry.path} is a link, and {own}")
        if len(Path(entry.path).parts) - top == DEEPEST and entry.is_dir(follow_symlinks=False):
            raise EdblError(f"{folder} has folders nested deeper than {DEEPEST}; it is no run, model or search")


def busy(folder: Path) -> EdblError:
    """Return the error for what is replaced as often as it is read."""
    return EdblError(f"{folder} is being changed by another process all the time; try again later")


def read_json(path: Path, most: int = MOST_VALUES) -> dict[str, Any]:
    """Return what a JSON file of at most so many bytes says, which must be an object."""
    try:
        stored = json.loads(read_file(path, most, own=True), parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise Damaged(path, f"not valid JSON ({error})") from error
    return checked_object(path, stored)


def checked_object(path: Path, stored: object) -> dict[str, Any]:
    """Return what JSON of a file says, if it is an object that is not nested too deep."""
    if not isinstance(stored, dict):
        raise Damaged(path, "not a JSON object")
    level: list[Any] = [stored]
    for _ in range(DEEPEST):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if not level:
            return stored
    raise Damaged(path, "it is nested too deep")


def _finite(text: str) -> float:
    """Return a number of a JSON file: what writes them writes no other, and what reads them might pass it on."""
    if not math.isfinite(number := float(text)):
        raise ValueError("a number in it is not finite")
    return number


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file says; a `ValueError` says why it is none."""
    return parse_toml(read_file(path, MOST_TEXT).decode())


def parse_toml(text: str) -> dict[str, Any]:
    """Return what TOML says; a `ValueError` says why it is none.

    A key of many parts takes memory by their square, and is none of ours.
    """
    if LONG_KEY.search(text):
        raise ValueError("a key has too many parts")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def read_file(path: Path, most: int | None = None, own: bool = False) -> bytes:
    """Return what a file holds, which must be a regular one of at most ``most`` bytes: a pipe would be waited for.

    One that is a run's or a model's ``own`` may be no link. What is wrong is an `OSError`, as if the system said so.
    """
    with opened(path, most, own) as file:
        data: bytes = file.read()
        return data


@contextmanager
def opened(path: Path, most: int | None = None, own: bool = False, change: bool = False) -> Iterator[Any]:
    """Open a file to read it, as `read_file` does, or to ``change`` it too."""
    flags = (os.O_RDWR if change else os.O_RDONLY) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    number = os.open(path, flags | (getattr(os, "O_NOFOLLOW", 0) if own else 0))
    with os.fdopen(number, "r+b" if change else "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if most is not None and found.st_size > most:
            raise OSError(errno.EFBIG, f"it has {found.st_size:,} bytes, and at most {most:,} are read", str(path))
        yield file


def _by_key(value: object) -> object:
    """Return a dataclass as values by key, without the fields that are not given to make one."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    found = dataclasses.asdict(value)
    return {item.name: found[item.name] for item in dataclasses.fields(value) if item.init}


def _sum_of(values: object, tensors: str) -> str:
    text = json.dumps({"tensors": tensors, "values": values}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _write_tensors(path: Path, tensors: "Mapping[str, Tensor]") -> str:
    """Write tensors one after the other, which takes no memory for all of them, and return their checksum."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with replacing(path) as part:
        part.touch()
        mode = part.stat().st_mode
        try:
            save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, part)
        except SafetensorError as error:
            raise OSError(str(error)) from error
        part.chmod(mode)  # it was made for this user alone, where others may share the folder
        with open(part, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomic(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` so that a reader, or a crash, finds the old file or the new one, never a part."""
    with replacing(path) as temporary, open(temporary, "xb") as file:
        file.write(data)


def write_output(path: Path, data: bytes) -> None:
    """Do so with a file that a user asked for, and remove what was left of it by writers that were killed."""
    write_atomic(path, data)
    with suppress(OSError):
        for left in path.parent.glob(f"{glob.escape(_hidden(path))}.*.tmp"):
            if TEMPORARY.fullmatch(left.name) and time.time() - left.lstat().st_mtime > ABANDONED:
                left.unlink()


def _hidden(path: Path) -> str:
    """Return what the names of a path's temporary files begin with; file systems take no more than 255 bytes."""
    return f".{path.name if len(os.fsencode(path.name)) <= LONG_NAME else path.name[: LONG_NAME // 4]}"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; the file written there takes its place once it is on the disk."""
    # A name of its own, so that two writers of one path cannot mix their bytes.
    temporary = path.with_name(f"{_hidden(path)}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        with open(temporary, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise EdblError(f"cannot write '{path}': {error.strerror or error}") from error
        raise


def sweep(folder: Path, name: str = "") -> None:
    """Remove what writers that were killed left of an entry, or else of any file in ``folder`` and below it.

    Nobody may be writing there.
    """
    for entry in [*(os.scandir if name else below)(folder.resolve())]:
        if TEMPORARY.fullmatch(entry.name) and (not name or entry.name.startswith(f".{name}.")):
            delete(Path(entry.path).parent, [entry.name])


@contextmanager
def lock(folder: Path, links: bool = False) -> Iterator[None]:
    """Keep other processes out of ``folder``, which may hold no link unless ``links`` allows it.

    The system lifts the lock when this process ends, however it ends.
    """
    if not links:
        refuse_links(folder)
    # Nothing is written to it, and no link followed: a folder may come from anywhere.
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(folder / LOCK, flags, 0o666), "rb") as file:
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(os.fstat(file.fileno()), os.stat(folder / LOCK)):
                    raise OSError("the lock was removed by who had it")
        except OSError as error:
            if error.errno in NO_LOCKS:
                raise EdblError(f"cannot lock {folder}: {error.strerror}; use another file system") from error
            raise Busy(f"another process is working in {folder}; wait for it to end") from error
        yield


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Keep other processes out of ``folder``, which is made if need be, once those that are there are done."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(lock(folder, links=True))
                break
            except EdblError as error:
                if isinstance(error.__cause__, OSError) and error.__cause__.errno in NO_LOCKS:
                    raise
                time.sleep(PAUSE)
        yield
