"""Where the photos of a model lie on this machine, so that its page can show them; the model itself does not say.

It is noted in the user's cache, for a model that somebody else has made may name any file. What is found there counts
only if its pixels are those of the photo.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from edbl import store
from edbl.app import photos
from edbl.data.decoding import Pixels
from edbl.data.threads import in_threads
from edbl.errors import EdblError
from edbl.nets import cache

FOLDER = "places"


def remember(model: Path, files: Mapping[str, str], known: Collection[str]) -> None:
    """Note the file of each photo, by digest, beside those noted before; only ``known`` digests stay."""
    entry = _entry(model)
    if entry is None:
        return
    there = {digest: str(Path(file).resolve()) for digest, file in files.items() if Path(file).is_file()}
    noted = {digest: file for digest, file in (_noted(entry) | there).items() if digest in known}
    with suppress(OSError, EdblError):
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        store.save(entry.parent, entry.name, noted)


def pictures(model: Path, digests: Sequence[str], size: int) -> dict[str, Pixels]:
    """Return the photos that are still where they were."""
    entry = _entry(model) if digests else None
    noted = _noted(entry) if entry else {}
    files = [Path(noted[digest]) for digest in digests if digest in noted]
    read = in_threads(lambda path: photos.read(path, size).pixels if path.is_file() else None, files, "reading images")
    found = {photos.digest(pixels): pixels for pixels in read if pixels is not None}
    return {digest: found[digest] for digest in digests if digest in found}


def _entry(model: Path) -> Path | None:
    kept = cache.usual()
    return kept.folder / FOLDER / hashlib.sha256(str(model.resolve()).encode()).hexdigest()[:32] if kept else None


def _noted(entry: Path) -> dict[str, str]:
    found = store.find(entry.parent, entry.name, dict[str, str])
    return found[0] if found else {}
