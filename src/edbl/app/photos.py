"""Photos: folders and files of images, as bytes of one size."""

import glob
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from edbl.data.decoding import EXTENSIONS, Decoded, decode, digests, short_side, squared
from edbl.data.decoding import digest as digest  # by which models name photos
from edbl.data.folder import Walk
from edbl.data.threads import in_threads
from edbl.errors import EdblError
from edbl.text import class_name, shown

SMALL, LARGE = 32, 64  # image sizes of nets that learn from scratch
SMALL_UP_TO = 48  # short side, in pixels, up to which images count as small
PEEKED = 200  # images that are looked at to find their usual size

Array = npt.NDArray[np.uint8]  # [n, 3, size, size]


@dataclass(frozen=True)
class Photo:
    """A file and the name of its class; or an image that is in memory, of which ``path`` is what it is called."""

    path: Path
    name: str
    image: Image.Image | None = None

    def read(self, size: int) -> Decoded:
        """Return it as bytes of ``size``."""
        return read(self.path, size) if self.image is None else Decoded(squared(self.image, size))


def find(folders: Sequence[Path]) -> tuple[list[Photo], list[str]]:
    """Return the photos of ``FOLDER/CLASS/`` for all folders, class by class, and notes on what was left aside.

    Classes of the same name are one. Where a folder has a folder ``train`` with classes, those are meant.
    """
    classes: dict[str, list[Photo]] = {}
    notes: list[str] = []
    for folder in folders:
        if not folder.is_dir():
            what = "is a file" if folder.exists() else "does not exist"
            raise EdblError(f"{shown(folder)} {what}: give a folder that has a sub-folder of images for each class")
        walk = Walk(folder)
        train, test = walk.layout()
        found = walk.folders(train)
        if not found:
            raise EdblError(
                f"{shown(train)} has no class folder{walk.unfollowed()}\n"
                "images belong in FOLDER/CLASS/: make a folder for each class, named after it"
            )
        if test is not None:
            notes.append(f"{shown(test)} is left out: only images in {shown(train)} are learnt")
        for directory, place in found.items():
            name = class_name(directory)
            paths = walk.images(place)
            if not paths:
                raise EdblError(
                    f"class '{name}' has no image in {shown(place)}{walk.unfollowed()}\n"
                    f"images are files ending in {', '.join(EXTENSIONS)}; add some or remove the folder"
                )
            classes.setdefault(name, []).extend(Photo(path, name) for path in paths)
            if all(path.parent != place for path in paths):
                notes.append(
                    f"class '{name}' has all its images in folders below {shown(place)}; if those are the classes, "
                    "give that folder instead"
                )
        notes += walk.notes()
    return [photo for photos in classes.values() for photo in photos], notes


def alike(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return notes on classes whose names differ in nothing but capitals: they may be meant as one."""
    forms: dict[str, list[str]] = {}
    for name in dict.fromkeys([*known, *names]):
        forms.setdefault(name.casefold(), []).append(name)
    met = [form for form in forms.values() if len(form) > 1 and set(form) & set(names)]
    return [f"{' and '.join(map(repr, form))} are {len(form)} classes" for form in met]


def listed(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return files as they are, the images in folders and below them and those that patterns mean, and notes."""
    found: list[Path] = []
    notes: list[str] = []
    for path in paths:
        if path.is_dir():
            walk = Walk(path)
            inside = walk.images(path)
            if not inside:
                raise EdblError(
                    f"{shown(path)} holds no image: no file ends in {', '.join(EXTENSIONS)}{walk.unfollowed()}"
                )
            found += inside
            notes += [f"in {shown(path)}: {note}" for note in walk.notes()]
        elif glob.has_magic(str(path)) and not path.exists():
            some = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
            if not some:
                raise EdblError(f"no file is named as {shown(path)} says")
            found += [one for one in some if not one.is_dir()]
        else:
            found.append(path)
    return found, notes


def usual_size(photos: Sequence[Photo]) -> int:
    """Return the image size for learning from scratch: 32 where most photos are small, else 64."""
    step = max(1, len(photos) // PEEKED)
    some = photos[::step]
    sides = in_threads(_short_side, some, "looking at images")
    known = [side for side in sides if side]
    return LARGE if known and statistics.median(known) > SMALL_UP_TO else SMALL


def largest_side(photos: Sequence[Photo]) -> int:
    """Return the largest of the shorter sides of photos."""
    return max(in_threads(_short_side, photos, "looking at images"), default=0)


def _short_side(photo: Photo) -> int:
    return min(photo.image.size) if photo.image else short_side(photo.path)


def read(path: Path, size: int) -> Decoded:
    """Return a photo as bytes of ``size``."""
    return decode(path, size, draft=True)


def read_into(file: Path, photos: Sequence[Photo], size: int) -> list[tuple[Decoded, str]]:
    """Decode all photos into a NumPy file, and return what became of each, without its pixels, and its digest."""
    array = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=(len(photos), 3, size, size))
    _fill(file)

    def work(row: int) -> tuple[Decoded, str]:
        decoded = photos[row].read(size)
        if decoded.pixels is None:
            return decoded, ""
        array[row] = decoded.pixels
        return replace(decoded, pixels=None), digest(decoded.pixels)

    results = in_threads(work, range(len(photos)), "reading images")
    array.flush()
    return results


def _fill(file: Path) -> None:
    """Give a file all its room on the disk: to write to a map of it, where there is none, would end the process."""
    if hasattr(os, "posix_fallocate"):
        with open(file, "r+b") as opened:
            try:
                os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
            except OSError as error:
                raise EdblError(f"cannot write '{file}': {error.strerror}") from error


def files(classes: Sequence[Array]) -> list[list[str]]:
    """Return the names of the files that a model keeps images as, class by class."""
    return [[f"{name}.png" for name in digests(images)] for images in classes]
