"""Photos that wait for an update of a trained model: on the disk before they are acknowledged, each request at once."""

import io
import os
import re
import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from edbl import store
from edbl.app.bundle import STAGED
from edbl.app.photos import Photo
from edbl.data.decoding import Pixels
from edbl.errors import EdblError
from edbl.text import is_class_name

ENTRY = re.compile(r"[0-9]{20}-[0-9a-f]{32}\.json")
PHOTO = re.compile(r"[0-9a-f]{32}\.png")
ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Waiting:
    """A photo that waits."""

    id: str
    label: str
    file: str  # as the client calls it
    relabel: bool = False  # whether the model may have it as another class


@dataclass(frozen=True)
class Entry:
    """What a request has staged."""

    photos: list[Waiting]


class Staged:
    """The photos that wait in the folder of a model."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / STAGED

    def add(self, photos: Sequence[tuple[Waiting, Pixels]]) -> None:
        """Write photos; they wait once the last file, their entry, is there."""
        self._refuse_links()
        self.place.mkdir(parents=True, exist_ok=True)
        for one, pixels in photos:
            path = self.place / f"{one.id}.png"
            if not path.exists():
                store.write_atomic(path, _png(pixels))
        _sync(self.place)
        self._write([one for one, _ in photos])
        _sync(self.place)

    def waiting(self) -> dict[str, Waiting]:
        """Return what waits, by id; of a photo that was given again, what was said last."""
        self._refuse_links()
        found: dict[str, Waiting] = {}
        for path in self._entries():
            with suppress(EdblError, OSError):
                for one in store.read(self.place, path.stem, Entry).value.photos:
                    if ID.fullmatch(one.id) and is_class_name(one.label) and (self.place / f"{one.id}.png").is_file():
                        found.pop(one.id, None)
                        found[one.id] = one
        return found

    def photos(self) -> list[Photo]:
        """Return what waits, to learn from."""
        return [Photo(self.picture(one.id), one.label) for one in self.waiting().values()]

    def picture(self, id: str) -> Path:
        """Return the file of a photo, which may be no link."""
        path = self.place / f"{id}.png"
        if self.place.is_symlink() or path.is_symlink():
            raise EdblError(f"{path} is a link, or lies behind one; remove it")
        return path

    def drop(self, ids: Collection[str]) -> None:
        """Let go of photos; those that came again meanwhile too."""
        self._refuse_links()
        if not self.place.is_dir():
            return
        entries = self._entries()
        left = [one for one in self.waiting().values() if one.id not in ids]
        if left:
            self._write(left)
        own = {f"{one.id}.png" for one in left}
        gone = [path.name for path in self.place.iterdir() if PHOTO.fullmatch(path.name) and path.name not in own]
        store.delete(self.place, [*(path.name for path in entries), *gone])
        with suppress(OSError):
            self.place.rmdir()

    def _refuse_links(self) -> None:
        """Refuse a folder that is a link or holds one: it may lead to files of somebody else."""
        if self.place.is_symlink():
            raise EdblError(f"{self.place} is a link; remove it")
        store.refuse_links(self.place)

    def _entries(self) -> list[Path]:
        if not self.place.is_dir():
            return []
        return sorted(path for path in self.place.iterdir() if ENTRY.fullmatch(path.name))

    def _write(self, photos: Sequence[Waiting]) -> None:
        numbers = [int(path.name[:20]) for path in self._entries()]
        store.save(self.place, f"{max(numbers, default=0) + 1:020}-{uuid.uuid4().hex}", Entry(list(photos)))


def _png(pixels: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _sync(place: Path) -> None:
    """Let the names of new files be on the disk, too, where a system can."""
    with suppress(OSError):
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
