"""Photos that the server holds in memory: what was asked about, so that it can be taught without being sent again."""

import io
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from edbl.serve.limits import Limits

QUALITY = 85
THUMBNAIL = 256  # pixels, most

Pixels = npt.NDArray[np.uint8]  # [3, size, size]


@dataclass(frozen=True)
class Said:
    """What a version of a model says of a photo."""

    version: int
    names: Sequence[str]
    probabilities: Sequence[float]  # of each
    sure: float  # that one of them is right
    least: Any  # what returns the sureness up to which a photo is unknown, of a share of known ones
    rate: float = 0.05  # that is asked for where nothing else is

    def unknown(self, rate: float) -> bool:
        """Tell whether it is likely to be of none."""
        return not self.names or bool(self.sure <= self.least(rate))

    def best(self, top: int) -> list[tuple[str, float]]:
        """Return the likeliest classes."""
        order = np.argsort(-np.asarray(self.probabilities), kind="stable")[:top]
        return [(self.names[k], float(self.probabilities[k])) for k in order]


@dataclass
class Shown:
    """A photo that was sent."""

    id: str  # the digest of its pixels
    file: str  # as the client calls it
    pixels: Pixels
    features: Any = None  # once they were computed, where the backbone of the model is frozen
    said: Said | None = None  # of the version that was asked last
    taught: bool = False


class Room:
    """What photos of all models share: so many, the latest ones."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.photos: OrderedDict[tuple[int, str], Shown] = OrderedDict()  # by the number of a model, and id
        self.lock = threading.Lock()
        self._bytes = 0
        self._models = count()

    def number(self) -> int:
        """Return a number for another model."""
        return next(self._models)

    def put(self, key: tuple[int, str], shown: Shown) -> None:
        """Hold a photo, and let go of those that came first, where there are too many."""
        self.photos[key] = shown
        self._bytes += shown.pixels.nbytes
        while len(self.photos) > self.limits.held or (self._bytes > self.limits.held_bytes and len(self.photos) > 1):
            self.pop(next(iter(self.photos)))

    def pop(self, key: tuple[int, str]) -> Shown | None:
        """Let go of a photo, and return it."""
        shown = self.photos.pop(key, None)
        if shown is not None:
            self._bytes -= shown.pixels.nbytes
        return shown


class Held:
    """The photos of one model."""

    def __init__(self, room: Room) -> None:
        self._room, self._model = room, room.number()

    def __len__(self) -> int:
        return len(self._own())

    def _own(self) -> list[Shown]:
        with self._room.lock:
            return [shown for (model, _), shown in self._room.photos.items() if model == self._model]

    def put(self, id: str, file: str, pixels: Pixels) -> Shown:
        """Hold a photo, and return it; one that is there already keeps what was said of it."""
        with self._room.lock:
            shown = self._room.pop((self._model, id)) or Shown(id, file, pixels)
            shown.file = file
            self._room.put((self._model, id), shown)
            return shown

    def get(self, id: str) -> Shown | None:
        """Return a photo that is still there."""
        with self._room.lock:
            shown = self._room.photos.get((self._model, id))
            if shown is not None:
                self._room.photos.move_to_end((self._model, id))
            return shown

    def drop(self, ids: Collection[str]) -> None:
        """Let go of photos."""
        with self._room.lock:
            for id in ids:
                self._room.pop((self._model, id))

    def mark(self, taught: Collection[str]) -> None:
        """Note which photos are taught, and no others."""
        for shown in self._own():
            shown.taught = shown.id in taught

    def tray(self) -> list[Shown]:
        """Return photos that were asked about and not taught, the least sure first."""
        there = [(shown.said.sure, shown) for shown in self._own() if shown.said and not shown.taught]
        return [shown for _, shown in sorted(there, key=lambda pair: pair[0])]


def thumbnail(pixels: Pixels) -> bytes:
    """Return a small JPEG of a photo."""
    image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    if image.width > THUMBNAIL:
        image = image.resize((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()
