"""Photos that the server holds in memory: what was asked about, so that it can be taught without being sent again."""

import io
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
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


class Held:
    """The photos that came last, within bounds."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._photos: OrderedDict[str, Shown] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._photos)

    def put(self, id: str, file: str, pixels: Pixels) -> Shown:
        """Hold a photo, and return it; one that is there already keeps what is known of it."""
        with self._lock:
            shown = self._photos.pop(id, None)
            if shown is None:
                shown = Shown(id, file, pixels)
                self._bytes += pixels.nbytes
            shown.file = file
            self._photos[id] = shown
            while len(self._photos) > self._limits.held or (
                self._bytes > self._limits.held_bytes and len(self._photos) > 1
            ):
                self._bytes -= self._photos.popitem(last=False)[1].pixels.nbytes
            return shown

    def get(self, id: str) -> Shown | None:
        """Return a photo that is still there."""
        with self._lock:
            shown = self._photos.get(id)
            if shown is not None:
                self._photos.move_to_end(id)
            return shown

    def drop(self, ids: Collection[str]) -> None:
        """Let go of photos."""
        with self._lock:
            for id in ids:
                if (shown := self._photos.pop(id, None)) is not None:
                    self._bytes -= shown.pixels.nbytes

    def mark(self, taught: Collection[str]) -> None:
        """Note which photos are taught, and no others."""
        with self._lock:
            for id, shown in self._photos.items():
                shown.taught = id in taught

    def tray(self) -> list[Shown]:
        """Return photos that were asked about and not taught, the least sure first."""
        with self._lock:
            there = [(shown.said.sure, shown) for shown in self._photos.values() if shown.said and not shown.taught]
        return [shown for _, shown in sorted(there, key=lambda pair: pair[0])]


def thumbnail(pixels: Pixels) -> bytes:
    """Return a small JPEG of a photo."""
    image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    if image.width > THUMBNAIL:
        image = image.resize((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()
