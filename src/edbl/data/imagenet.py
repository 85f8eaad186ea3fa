"""ImageNet as folders: its JPEG files are decoded once, into a store from which runs read what they draw.

The store of a data set is a folder beside its images: ``pixels``, all images one after the other, ``chunks.txt``, a
line for each piece of them that is on the disk, and an entry that says that all are. Whatever is killed goes on after
the last whole piece; a piece whose files have changed is decoded again.
"""

import hashlib
import os
import shutil
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from edbl import store
from edbl.data.decoding import Decoded, decode
from edbl.data.far import Far, OnDisk, as_tensor
from edbl.data.images import Dataset, Images
from edbl.errors import EdblError
from edbl.text import bar, first, passing_bar, shown

SIDE, VIEW = 256, 224  # of the squares that are kept, and of what a network sees of them
NAMES = (".jpeg", ".jpg", ".png")
ENTRY, PIXELS, CHUNKS = "store", "pixels", "chunks.txt"
FORMAT = 1
CHUNK = 256  # images that are decoded and written together
SUBSET_SEED = 1993  # by which Hou et al. (2019) drew ImageNet-100
MARGIN = 2**28  # bytes of a disk that stay free
PATIENCE = 1.0  # seconds before a progress bar appears
LAYOUT = "images belong in DATA/imagenet/train/CLASS/ and DATA/imagenet/val/CLASS/"


@dataclass(frozen=True)
class _File:
    path: Path
    stamp: str  # name, size and time of change


@dataclass(frozen=True)
class _Store:
    """What a store holds."""

    side: int
    source: str  # checksum of the names, sizes and times of all files; they may be gone
    checksum: str  # of all pixels
    classes: tuple[str, ...]
    train: tuple[int, ...]  # images of each class, which follow each other
    test: tuple[int, ...]


def load(folder: Path, name: str, classes: int, side: int = SIDE) -> Dataset:
    """Return ImageNet, or a hundred classes of it, from its store in the data folder, which is made if need be."""
    place = folder / f"{name}-{side}"
    root = next((path for path in (folder / name, folder / "imagenet") if (path / "train").is_dir()), None)
    if root is None:
        found = _whole(place)
        if found is None:
            raise EdblError(f"{name} is not in {folder}: {LAYOUT}\nit cannot be downloaded without an account")
        return _dataset(name, place, found)
    listed = [_chosen(root / split, classes) for split in _splits(root)]
    names = _agreed(root, listed)
    files = [listed[part][k] for part in range(2) for k in names]
    source = hashlib.sha256("\n".join(file.stamp for group in files for file in group).encode()).hexdigest()
    counts = [tuple(len(listed[part][k]) for k in names) for part in range(2)]
    found = _whole(place)
    if found is None or found.source != source:
        with store.turn(place):
            found = _whole(place)  # another process may have made it meanwhile
            if found is None or found.source != source:
                checksum = _decode(place, [file for group in files for file in group], side, name)
                found = _Store(side, source, checksum, tuple(map(shown, names)), *counts)
                store.save(place, ENTRY, found, format=FORMAT)
    return _dataset(name, place, found)


def _splits(root: Path) -> tuple[str, str]:
    return "train", "test" if (root / "test").is_dir() and not (root / "val").is_dir() else "val"


def _chosen(folder: Path, wanted: int) -> dict[str, list[_File]]:
    """Return the images of each class in a folder; of more classes than wanted, those that are usual."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != ".")
    except OSError as error:
        raise EdblError(f"{folder} cannot be read: {error.strerror}\n{LAYOUT}") from error
    if len(names) < wanted:
        raise EdblError(f"{folder} has {len(names):,} class folders, and {wanted:,} are needed\n{LAYOUT}")
    if len(names) > wanted:
        names = sorted(np.random.RandomState(SUBSET_SEED).choice(names, wanted, replace=False).tolist())
    found = {}
    with bar(f"looking into {folder}", len(names)) as show:
        for name in names:
            found[name] = _files(folder / name)
            show(len(found))
    return found


def _files(folder: Path) -> list[_File]:
    found = []
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.lower().endswith(NAMES) and entry.name[0] != "." and entry.is_file():
                stat = entry.stat()
                stamp = f"{folder.parent.name}/{folder.name}/{entry.name} {stat.st_size} {stat.st_mtime_ns}"
                found.append(_File(Path(entry.path), shown(stamp)))
    if not found:
        raise EdblError(f"class '{shown(folder.name)}' has no image in {folder}; add some or remove the class")
    return found


def _agreed(root: Path, listed: Sequence[dict[str, list[_File]]]) -> list[str]:
    """Return the classes, of which both parts must have images."""
    if odd := sorted(listed[0].keys() ^ listed[1].keys()):
        lacking = [split for split, own in zip(_splits(root), listed, strict=True) if odd[0] not in own]
        raise EdblError(f"{root / lacking[0]} has no folder of class {first([shown(name) for name in odd])}\n{LAYOUT}")
    return sorted(listed[0])


def _whole(place: Path) -> _Store | None:
    """Return what a store holds, if all of it is there."""
    if not (place / f"{ENTRY}.json").exists():
        return None
    found = store.read(place, ENTRY, _Store, FORMAT).value
    size = 3 * found.side**2 * sum((*found.train, *found.test))
    there = (place / PIXELS).stat().st_size if (place / PIXELS).is_file() else 0
    if there != size:
        raise EdblError(f"'{place / PIXELS}' has {there:,} bytes, and {size:,} are right; delete the folder {place}")
    return found


def _dataset(name: str, place: Path, kept: _Store) -> Dataset:
    parts, start, each = [], 0, 3 * kept.side**2
    for counts in (kept.train, kept.test):
        labels = torch.arange(len(kept.classes)).repeat_interleave(torch.tensor(counts))
        size = (len(labels), 3, kept.side, kept.side)
        rows = OnDisk(place / PIXELS, size, f"{kept.checksum} {start}", start * each)
        parts.append(Images(as_tensor(Far.all_of(rows)), labels))
        start += len(labels)
    return Dataset(name, parts[0], parts[1], kept.classes)


def _decode(place: Path, files: Sequence[_File], side: int, name: str) -> str:
    """Write the pixels of all files that are not there yet, and return the checksum of all."""
    store.remove(place, ENTRY)  # from now on it is not whole
    pieces = [files[k : k + CHUNK] for k in range(0, len(files), CHUNK)]
    marks = [_mark(piece, side) for piece in pieces]
    done = _done(place)
    missing = [k for k, mark in enumerate(marks) if done.get(k, ("", ""))[0] != mark]
    _check_room(place, len(files) * 3 * side**2)
    try:
        with open(place / PIXELS, "r+b" if (place / PIXELS).exists() else "w+b") as pixels:
            for k, checksum in _written(pixels, pieces, missing, side, name):
                done[k] = marks[k], checksum
                with open(place / CHUNKS, "a") as log:
                    log.write(f"{k} {marks[k]} {checksum}\n")
                    log.flush()
                    os.fsync(log.fileno())
            pixels.truncate(len(files) * 3 * side**2)
    except OSError as error:
        raise EdblError(
            f"cannot write '{place}': {error.strerror or error}\nmake room there, or set another data folder; the same "
            "command continues where it was"
        ) from error
    return hashlib.sha256("".join(done[k][1] for k in range(len(pieces))).encode()).hexdigest()


def _mark(piece: Sequence[_File], side: int) -> str:
    return hashlib.sha256("\n".join([str(side), *(file.stamp for file in piece)]).encode()).hexdigest()[:32]


def _done(place: Path) -> dict[int, tuple[str, str]]:
    """Return for each piece that is on the disk what tells its files, and the checksum of its pixels."""
    found: dict[int, tuple[str, str]] = {}
    if (place / CHUNKS).is_file():
        for line in store.read_file(place / CHUNKS).decode(errors="replace").splitlines():
            number, *rest = line.split()[:3] or [""]
            if number.isdecimal() and [len(word) for word in rest] == [32, 32]:  # else a kill has cut it short
                found[int(number)] = rest[0], rest[1]
    return found


def _check_room(place: Path, needed: int) -> None:
    """Refuse to begin what the disk cannot hold."""
    there = (place / PIXELS).stat().st_blocks * 512 if (place / PIXELS).exists() else 0
    free = shutil.disk_usage(place).free
    if needed - there + MARGIN > free:
        raise EdblError(
            f"the decoded images take {needed / 1e9:,.1f} GB in {place}, and {free / 1e9:,.1f} GB are free\n"
            "make room there, or set another data folder"
        )


def _written(
    pixels: BinaryIO, pieces: Sequence[Sequence[_File]], missing: Sequence[int], side: int, name: str
) -> Iterator[tuple[int, str]]:
    """Decode pieces in threads, write them, and yield the number and checksum of each once it is on the disk."""
    begun = time.monotonic()
    with ExitStack() as stack:
        # What Pillow warns of is judged by `decode`.
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        pool = stack.enter_context(ThreadPoolExecutor(os.cpu_count() or 1))
        bars = stack.enter_context(passing_bar())
        told = bars.add_task(f"decoding {name}", total=len(missing), visible=False)

        def begin(k: int) -> list[Future[Decoded]]:
            return [pool.submit(decode, file.path, side, True, True) for file in pieces[k]]

        coming = begin(missing[0]) if missing else []
        for number, k in enumerate(missing):
            decoded = [one.result() for one in coming]
            coming = begin(missing[number + 1]) if number + 1 < len(missing) else []  # while this piece is written
            if bad := [f"{f.path} ({d.bad})" for f, d in zip(pieces[k], decoded, strict=True) if d.bad]:
                raise EdblError(f"images of {name} cannot be used: {first(bad)}\nput right ones in their place")
            data = np.ascontiguousarray([one.pixels for one in decoded if one.pixels is not None])
            pixels.seek(k * CHUNK * 3 * side**2)
            pixels.write(data.data)
            pixels.flush()
            os.fsync(pixels.fileno())
            yield k, hashlib.blake2b(data.data, digest_size=16).hexdigest()
            bars.update(told, completed=number + 1, visible=time.monotonic() - begun > PATIENCE)
