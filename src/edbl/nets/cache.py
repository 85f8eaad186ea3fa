"""Features of photos that were computed once, kept in the user's cache folder, so that nobody computes them again.

A folder for each network, engine and kind of device holds entries of `edbl.store`, each with the features of some
photos, which it names by their pixels. An entry never changes, so several processes may read and write: many small ones
are merged into one, and the ones that were used longest ago go where all take more room than they may.
"""

import functools
import hashlib
import os
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor

from edbl import store
from edbl.data.decoding import digests
from edbl.data.download import at_home, data_dir
from edbl.errors import EdblError
from edbl.nets import engines
from edbl.nets.engines import TORCH
from edbl.nets.pretrained import CPU, Pretrained

FOLDER, MOST = "EDBL_CACHE", "EDBL_CACHE_MB"  # variables of the environment: where it is, and how large it may become
MEGABYTES = 1000  # about 400,000 photos of 1,280 features
PART = 256  # photos whose features are written at a time
MANY, LARGE = 32, 4096  # entries that are merged, and photos of an entry that is merged no more
ROOM = 0.9  # share of the most that is left where entries have to go
NAME = re.compile(r"[0-9a-f]{32}")
HEADER = 2**16  # most bytes of a file that are no features
KEY = "features"


@dataclass(frozen=True)
class Photos:
    """What the JSON of an entry says."""

    photos: list[str]  # digests of pixels


class Cache:
    """Features by the pixels that they are of."""

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most  # bytes
        self._known: dict[Path, dict[str, store.Entry[Photos]]] = {}  # entries, whose JSON is read once

    def views(
        self,
        network: Pretrained,
        x: Tensor,
        say: Callable[[int], None],
        device: torch.device = CPU,
        engine: str = TORCH,
        ranges: Tensor | None = None,
    ) -> Tensor:
        """Return what ``network.views`` returns of images without copies, computing only what is not there yet."""
        names = digests(x.cpu().numpy())
        place = self.folder / _key(network, device, engine, ranges)
        found = self._find(place, set(names), network.width)
        missing = {name: row for row, name in enumerate(names) if name not in found}
        before = len(x) - len(missing)
        say(before)
        for start in range(0, len(missing), PART):
            part = list(missing)[start : start + PART]
            rows = torch.tensor([missing[name] for name in part])
            done = functools.partial(_add, say, before + start)
            features = network.views(x[rows], 0, Generator(), done, device, engine, ranges)[:, 0]
            self._keep(place, part, features)
            found |= dict(zip(part, features, strict=True))
        if not names:
            return torch.empty(0, 1, network.width, dtype=torch.float16)
        return torch.stack([found[name] for name in names]).unsqueeze(1)

    def drop(self, names: Collection[str]) -> None:
        """Remove the features of photos, given by the digests of their pixels, of whatever network."""
        for place in self._places():
            with store.lock(place):
                for name, entry in self._listed(place).items():
                    if not set(names).isdisjoint(entry.value.photos):
                        stay = {p: x for p, x in self._features(place, name, entry).items() if p not in names}
                        if stay:
                            self._write(place, list(stay), torch.stack(list(stay.values())))
                        store.remove(place, name)

    def _find(self, place: Path, names: set[str], width: int) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, entry in self._listed(place).items():
            here = names.intersection(entry.value.photos)
            if here - found.keys():
                features = self._features(place, name, entry, width)
                found |= {photo: features[photo] for photo in here if photo in features}
                with suppress(OSError):
                    os.utime(place / f"{name}.json")  # it was of use just now
        return found

    def _listed(self, place: Path) -> dict[str, store.Entry[Photos]]:
        known = self._known.setdefault(place, {})
        there = {path.stem for path in place.glob("*.json") if NAME.fullmatch(path.stem)}
        for name in known.keys() - there:
            del known[name]
        for name in sorted(there - known.keys()):
            try:
                known[name] = store.read(place, name, Photos)
            except store.Damaged:
                store.remove(place, name)
            except (OSError, EdblError):  # somebody merges it, or a newer edbl has written it
                continue
        return dict(known)

    def _features(
        self, place: Path, name: str, entry: store.Entry[Photos], width: int | None = None
    ) -> dict[str, Tensor]:
        """Return the features of an entry by photo; an entry that is not what it should be goes."""
        photos = entry.value.photos
        try:
            with suppress(FileNotFoundError):
                size = (place / f"{name}{store.TENSORS}").stat().st_size
                if width is not None and size > 2 * width * len(photos) + HEADER:
                    raise ValueError("it is too large")
            tensors = store.tensors_of(place, name, entry.tensors)
            wide = tensors[KEY].shape[-1] if width is None and KEY in tensors else width or 0
            store.check_tensors(tensors, {KEY: torch.empty(len(photos), wide, dtype=torch.float16, device="meta")})
            if not tensors[KEY].isfinite().all():
                raise ValueError("it has features that are no numbers")
        except (ValueError, EdblError, OSError):
            with suppress(OSError):
                store.remove(place, name)
            return {}
        return dict(zip(photos, tensors[KEY], strict=True))

    def _keep(self, place: Path, photos: Sequence[str], features: Tensor) -> None:
        """Write features; where that cannot be, they are computed again another time."""
        with suppress(OSError, EdblError):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._write(place, photos, features)
            small = {n: e for n, e in self._listed(place).items() if len(e.value.photos) < LARGE}
            if len(small) >= MANY:
                self._merge(place, small, features.shape[1])
            self._shrink()

    def _write(self, place: Path, photos: Sequence[str], features: Tensor) -> None:
        store.save(place, uuid.uuid4().hex, Photos(list(photos)), {KEY: features})

    def _merge(self, place: Path, entries: dict[str, store.Entry[Photos]], width: int) -> None:
        """Write several entries as one; whoever is about to read an old one computes again what it held."""
        with store.lock(place):
            store.sweep(place)
            found: dict[str, Tensor] = {}
            for name, entry in entries.items():
                found |= self._features(place, name, entry, width)
            names = list(found)
            for start in range(0, len(names), LARGE):
                part = names[start : start + LARGE]
                self._write(place, part, torch.stack([found[name] for name in part]))
            for name in entries:
                store.remove(place, name)

    def _shrink(self) -> None:
        """Remove the entries that were used longest ago, if all take more room than they may."""
        entries = [path for place in self._places() for path in place.glob("*.json") if NAME.fullmatch(path.stem)]
        sizes: dict[Path, tuple[float, int]] = {}
        for path in entries:
            with suppress(OSError):
                tensors = path.with_suffix(store.TENSORS)
                sizes[path] = path.stat().st_mtime, path.stat().st_size + tensors.stat().st_size
        total = sum(size for _, size in sizes.values())
        if total > self.most:
            with store.lock(self.folder):
                for path in sorted(sizes, key=lambda path: sizes[path]):
                    if total <= ROOM * self.most:
                        break
                    store.remove(path.parent, path.stem)
                    total -= sizes[path][1]

    def _places(self) -> Iterator[Path]:
        with suppress(FileNotFoundError):
            yield from (path for path in sorted(self.folder.iterdir()) if NAME.fullmatch(path.name) and path.is_dir())


def usual() -> Cache | None:
    """Return the cache of this user, as the environment has it; None if it may hold nothing."""
    given = os.environ.get(MOST, "") or str(MEGABYTES)
    if not given.isdecimal():
        raise EdblError(f"{MOST} is '{given}': give a whole number of MB that the cache may take, 0 for no cache")
    folder = os.environ.get(FOLDER)
    return _cache(at_home(Path(folder)) if folder else data_dir() / KEY, int(given) * 10**6) if int(given) else None


@functools.cache
def _cache(folder: Path, most: int) -> Cache:
    return Cache(folder, most)


def _key(network: Pretrained, device: torch.device, engine: str, ranges: Tensor | None) -> str:
    """Return what tells features from those of other networks, engines and kinds of device."""
    where = device.type if engine == TORCH else CPU.type
    parts = (network.name, network.digest, network.mean, network.std, engines.digest(engine, ranges), where)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _add(say: Callable[[int], None], before: int, done: int) -> None:
    say(before + done)
