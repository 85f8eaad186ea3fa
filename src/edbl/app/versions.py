"""Versions of a model: each change made one, and any that is kept can be gone back to."""

from pathlib import Path

from edbl.app import bundle as disk
from edbl.app import places
from edbl.app.description import Bundle
from edbl.app.exact import Exact, drop_stale
from edbl.app.opening import load, open_model
from edbl.errors import EdblError
from edbl.nets import cache


def undo(folder: Path, number: int | None = None) -> Bundle:
    """Make the version that the model was made from the model again, or version ``number``; the other one stays."""
    with disk.changing(folder) as found:
        if number == found.version:
            raise EdblError(f"{folder} is at version {number} already")
        wanted = found.parent if number is None else number
        if not wanted:
            raise EdblError(f"{folder} is at its first version; there is nothing before it")
        if wanted not in disk.versions(folder):
            kept = ", ".join(str(one) for one in disk.versions(folder) if one != found.version) or "none"
            raise EdblError(f"{folder} does not keep version {wanted} (any more); others that it keeps: {kept}")
        _open(folder, disk.read_version(folder, wanted))
        return disk.restore(folder, wanted, found.version)


def _open(folder: Path, version: Bundle) -> None:
    """Open a version, as every later command would: one that cannot be opened does not become the model."""
    if version.settings.keep is None:
        open_model(folder, "cpu", version)
    else:
        Exact.of(folder, load(folder, version))


def history(folder: Path) -> tuple[Bundle, list[Bundle]]:
    """Return a model as it is, and all versions that are kept, itself among them, oldest first."""
    now = disk.settle(folder)
    others = [disk.read_version(folder, number) for number in disk.versions(folder) if number != now.version]
    return now, sorted([now, *others], key=lambda one: one.version)


def prune(folder: Path) -> int:
    """Remove all versions but the model as it is; return how many bytes that has freed.

    Features of photos that none of them has any more leave the user's cache too, and so do their paths.
    """
    with disk.changing(folder) as found:
        others = [disk.read_version(folder, number) for number in disk.versions(folder) if number != found.version]
        gone = {digest for one in others for digest in one.photos} - found.photos.keys()
        freed = drop_stale(folder, found) + disk.prune(folder, found)
        if gone and (kept := cache.usual()):
            kept.drop(gone)
            places.remember(folder, {}, found.photos)
        return freed
