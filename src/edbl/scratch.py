"""Folders for the time being, which are gone when their process is, however it ended."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edbl import store
from edbl.errors import EdblError
from edbl.store import LOCK, lock

SCRATCH = "edbl-runs-"  # what their names begin with


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder for the time being."""
    tidy()
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as name, lock(Path(name)):
        yield Path(name)


def tidy() -> None:
    """Remove the folders of processes that were killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        with suppress(OSError, EdblError):  # of another user, or in use
            if (left / LOCK).is_file() or time.time() - left.lstat().st_mtime > store.ABANDONED:
                with lock(left):
                    shutil.rmtree(left, ignore_errors=True)
