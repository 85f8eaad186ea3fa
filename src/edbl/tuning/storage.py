"""Where a search keeps its trials: a journal file in its folder, or a database; both by Optuna."""

import os
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from edbl.errors import EdblError
from edbl.store import turn

JOURNAL = "journal"  # folder of the journal file, below that of the search
LINES = "trials.jsonl"


def optuna() -> Any:
    """Return Optuna, which says nothing but warnings."""
    try:
        module = import_module("optuna")
    except ImportError as error:
        raise EdblError("a search needs Optuna: run `pip install 'edbl[tune]'`") from error
    module.logging.set_verbosity(module.logging.ERROR)
    return module


class Lock:
    """A lock for Optuna's journal that the system lifts when its process is killed.

    Optuna's own ones are files, which a killed process leaves for others to wait for. A line that was cut off by a
    kill is removed: those after it could not be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held = ExitStack()

    def acquire(self) -> bool:
        """Wait for the lock."""
        self._held.enter_context(turn(self.folder))
        path = self.folder / LINES
        with open(path, "rb+") as file:
            end = file.seek(0, os.SEEK_END)
            if end and file.seek(end - 1) >= 0 and file.read(1) != b"\n":
                file.truncate(path.read_bytes().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Let others have it."""
        self._held.close()


def storage(folder: Path, url: str | None) -> Any:
    """Return the storage of a search in a folder: a database's, if its address is given."""
    storages = optuna().storages
    if url is not None:
        try:
            return storages.RDBStorage(url)
        except Exception as error:  # of many packages, as many as there are databases
            why = str(error).strip().partition("\n")[0]
            raise EdblError(f"cannot use the storage: {type(error).__name__}: {why}") from error
    journal = folder / JOURNAL
    journal.mkdir(parents=True, exist_ok=True)
    backend = storages.journal.JournalFileBackend(str(journal / LINES), lock_obj=Lock(journal))
    try:
        return storages.JournalStorage(backend)
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        raise EdblError(f"'{journal / LINES}' is damaged: {error}; use another folder") from error
