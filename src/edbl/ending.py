"""Things that a caller gives one after the other, such as images, which may have no end."""

import os
from collections.abc import Iterable
from typing import Any

from edbl.errors import EdblError

MOST = 10_000_000  # things that come one by one
SMALL = 256  # bytes that a file takes, which is given by its name
MEMORY = 8 * 2**30  # bytes, where it is not said


def all_of(given: Iterable[Any]) -> list[Any]:
    """Return all that is given; what comes one by one may take half of the memory that the machine has."""
    if hasattr(given, "__len__"):
        return list(given)
    found, size, most = [], 0, _memory() // 2
    for one in given:
        found.append(one)
        size += _size(one)
        if len(found) > MOST or size > most:
            raise EdblError(
                f"what is given has no end, or is too much: it was read up to number {len(found):,}, "
                f"{size / 1e6:,.0f} MB\ngive names of files, or less at a time"
            )
    return found


def _size(one: Any) -> int:
    """Return about how many bytes something takes: a name, bytes, an array, an image of Pillow, or several of them."""
    if isinstance(one, tuple):
        return sum(map(_size, one))
    if isinstance(one, bytes):
        return len(one)
    if isinstance(size := getattr(one, "nbytes", None), int):
        return size
    return 4 * one.width * one.height if hasattr(one, "width") and hasattr(one, "height") else SMALL


def _memory() -> int:
    """Return how many bytes of memory the machine has."""
    if not hasattr(os, "sysconf"):
        return MEMORY
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
