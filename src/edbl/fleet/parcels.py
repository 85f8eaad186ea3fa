"""What goes from machine to machine: the files of a run as bytes, and a data set as arrays."""

import warnings
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from edbl.data.images import Dataset, Images
from edbl.engine.checkpoint import CHECKPOINTS
from edbl.errors import EdblError
from edbl.pulse import PULSE
from edbl.records import RECORD
from edbl.store import LOCK, NEW, TEMPORARY, TENSORS, delete, write_atomic

ENDS = TENSORS, NEW  # of the names of files with tensors


class Parcel(NamedTuple):
    """Files of a folder by their path below it, and the paths of all that there are."""

    files: Mapping[str, bytes]
    names: frozenset[str]


class Packer:
    """Packs what is new in a folder, while nobody writes there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._packed: dict[str, tuple[int, int, int]] = {}

    def skip(self) -> None:
        """Take what is there now as packed."""
        self._packed = {name: _stamp(path) for name, path in self._there().items()}

    def pack(self) -> Parcel | None:
        """Return what has changed since the last time, if anything has."""
        there = self._there()
        stamps = {name: _stamp(path) for name, path in there.items()}
        if stamps == self._packed:
            return None
        files = {name: there[name].read_bytes() for name in stamps if self._packed.get(name) != stamps[name]}
        self._packed = stamps
        return Parcel(files, frozenset(there))

    def _there(self) -> dict[str, Path]:
        paths = (path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink())
        names = {path.relative_to(self.folder).as_posix(): path for path in paths}
        return {name: path for name, path in names.items() if not _is_passing(path.name)}


def pack(folder: Path) -> Parcel:
    """Return all files of a folder, which may not be there."""
    return Packer(folder).pack() or Parcel({}, frozenset())


def unpack(parcel: Parcel, folder: Path) -> None:
    """Write files into a folder, so that whatever moment this is killed at, a run goes on from what is there.

    Tensors come before the JSON that names their checksum, and all before the record but the first one, without which a
    folder is no run. What is no longer there goes last.
    """
    new = not (folder / RECORD).exists()
    for name in sorted(parcel.files, key=lambda name: ((name == RECORD) is not new, not name.endswith(ENDS), name)):
        path = _place(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, parcel.files[name])
    checkpoints = folder / CHECKPOINTS
    if checkpoints.is_dir():
        there = {path.name for path in checkpoints.iterdir()}
        delete(checkpoints, [name for name in there if f"{CHECKPOINTS}/{name}" not in parcel.names])


def _place(folder: Path, name: str) -> Path:
    """Return where a file goes; it comes from another machine."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or _is_passing(path.name):
        raise EdblError(f"a worker sent a file named '{name}', which no run has")
    return folder.joinpath(*path.parts)


def _is_passing(name: str) -> bool:
    return name in (LOCK, PULSE) or TEMPORARY.fullmatch(name) is not None


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


class Arrays(NamedTuple):
    """A data set as arrays, which all processes of a machine may share."""

    name: str
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    train: Mapping[str, NDArray[Any]]
    test: Mapping[str, NDArray[Any]]


def as_arrays(dataset: Dataset) -> Arrays:
    """Return a data set as arrays."""
    return Arrays(dataset.name, dataset.classes, dataset.notes, _arrays(dataset.train), _arrays(dataset.test))


def as_dataset(arrays: Arrays) -> Dataset:
    """Return it as a data set; nothing is copied, and nothing may be written to its images."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return Dataset(arrays.name, _images(arrays.train), _images(arrays.test), arrays.classes, arrays.notes)


def _arrays(images: Images) -> dict[str, NDArray[Any]]:
    return {"x": images.x.numpy(), "y": images.y.numpy(), **{f"extra.{k}": v.numpy() for k, v in images.extra.items()}}


def _images(arrays: Mapping[str, NDArray[Any]]) -> Images:
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    extra = {name.removeprefix("extra."): tensor for name, tensor in tensors.items() if name.startswith("extra.")}
    return Images(tensors["x"], tensors["y"], extra)
