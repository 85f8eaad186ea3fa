"""Files that are whole or not there at all."""

import errno
import os
import re
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edbl.errors import EdblError

LOCK = ".lock"
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # of file systems that have none
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")  # what `replacing` calls a file that is not whole yet


def write_atomic(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` so that a reader, or a crash, finds the old file or the new one, never a part."""
    with replacing(path) as temporary, open(temporary, "xb") as file:
        file.write(data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; the file written there takes its place once it is on the disk."""
    # A name of its own, so that two writers of one path cannot mix their bytes.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        with open(temporary, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise EdblError(f"cannot write '{path}': {error.strerror or error}") from error
        raise


def sweep(folder: Path) -> None:
    """Remove what writers that were killed left behind in ``folder`` and below it; nobody may be writing there."""
    for left in folder.rglob(".*.tmp"):
        if TEMPORARY.fullmatch(left.name):
            left.unlink(missing_ok=True)


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep other processes out of ``folder``; the system lifts the lock when this process ends, however it ends."""
    # Nothing is written to it, and no link followed: a folder may come from anywhere.
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(folder / LOCK, flags, 0o666), "r+b") as file:
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(os.fstat(file.fileno()), os.stat(folder / LOCK)):
                    raise OSError("the lock was removed by who had it")
        except OSError as error:
            if error.errno in NO_LOCKS:
                raise EdblError(f"cannot lock {folder}: {error.strerror}; use another file system") from error
            raise EdblError(f"another process is working in {folder}; wait for it to end") from error
        yield
