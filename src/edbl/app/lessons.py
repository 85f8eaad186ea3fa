"""Photos that a model answers by and that are in no version of it yet: on the disk before they are acknowledged.

Each is an entry in a folder of the model.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from edbl import store
from edbl.data.decoding import digest
from edbl.errors import EdblError, command
from edbl.text import is_class_name

PLACE = "taught"
ENTRY = re.compile(r"([0-9]{20})(\.json|\.safetensors(\.new)?)")
DIGEST = re.compile(r"[0-9a-f]{32}")
FEATURES, PIXELS = "features", "pixels"


@dataclass(frozen=True)
class Lesson:
    """A photo with its class."""

    digest: str
    label: str
    file: str  # to name it
    date: str  # when it was taught


def wait(folder: Path) -> bool:
    """Tell whether any photo of a model waits to be learnt."""
    place = _place(folder)
    return place.is_dir() and any(ENTRY.fullmatch(path.name) and path.suffix == ".json" for path in place.iterdir())


def waiting(folder: Path) -> EdblError:
    """Return the error for a model that cannot be changed, as some wait."""
    return EdblError(f"{folder} is learning photos that were just taught; try again, or {command('learn', folder)}")


def add(folder: Path, lesson: Lesson, tensors: Mapping[str, Tensor]) -> str:
    """Write a photo, after those that wait already, and return the name of its entry."""
    place = _place(folder)
    place.mkdir(exist_ok=True)
    name = f"{max([0, *map(int, names(folder))]) + 1:020}"
    try:
        store.save(place, name, lesson, tensors)
    except BaseException:
        drop(folder, name)
        raise
    return name


def every(folder: Path, wanted: Mapping[str, Tensor]) -> Iterator[tuple[str, Lesson, Mapping[str, Tensor]]]:
    """Yield all that wait, in order, by name, with tensors of the shapes and types ``wanted``.

    What a writer that was killed has left, or a stranger, is left aside.
    """
    for name in names(folder):
        found = store.find(_place(folder), name, Lesson)
        if found and _fits(*found, wanted):
            yield name, *found


def drop(folder: Path, *some: str) -> None:
    """Remove some, and the folder with the last of them."""
    place = _place(folder)
    for name in some:
        store.remove(place, name)
    with suppress(OSError):
        place.rmdir()


def names(folder: Path) -> list[str]:
    """Return the names of all, in order, and of what was left of others."""
    place = _place(folder)
    found = [ENTRY.fullmatch(path.name) for path in place.iterdir()] if place.is_dir() else []
    return sorted({one[1] for one in found if one})


def tidy(folder: Path, wanted: Mapping[str, Tensor]) -> None:
    """Remove what is left aside of a model that is locked."""
    drop(folder, *{*names(folder)} - {name for name, *_ in every(folder, wanted)})


def _fits(lesson: Lesson, tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> bool:
    try:
        store.check_tensors(tensors, wanted)
    except ValueError:
        return False
    pixels = tensors.get(PIXELS)
    same = pixels is None or digest(pixels.numpy()) == lesson.digest
    finite = bool(tensors[FEATURES].isfinite().all())
    return same and finite and bool(DIGEST.fullmatch(lesson.digest)) and is_class_name(lesson.label)


def _place(folder: Path) -> Path:
    """Return where they lie, which may be no link: it may lead to files of somebody else."""
    place = folder / PLACE
    if place.is_symlink():
        raise EdblError(f"{place} is a link; remove it")
    return place
