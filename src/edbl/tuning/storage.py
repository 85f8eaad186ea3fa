"""Where a search keeps its trials: a journal file in its folder, or a database; both for Optuna.

A folder may come from anywhere: what is no line of a search's is refused before Optuna reads it.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any

from edbl.errors import EdblError
from edbl.logs import quiet
from edbl.store import MOST_VALUES, Damaged, checked_object, opened, turn

JOURNAL = "journal"  # folder of the journal file, below that of the search
LINES = "trials.jsonl"
LONGEST = 200  # characters of what Optuna says of trials
MOST_LINES = 100_000  # which Optuna reads in seconds; larger searches have a database
MOST_TRIALS = 100_000  # of a database
WORKER, IDENTITY, ERROR = "edbl:worker", "edbl:search", "edbl:error"  # texts that are kept with trials or the search

# What a line says beside its kind and its writer, by kind, as `optuna.storages.journal` has them: those of a search.
TOLD = 6
NUMBERED: Mapping[int, Mapping[str, type]] = {
    0: {"study_name": str, "directions": list},
    2: {"study_id": int, "user_attr": dict},
    3: {"study_id": int, "system_attr": dict},
    4: {"study_id": int, "datetime_start": str},
    5: {"trial_id": int, "param_name": str, "param_value_internal": float, "distribution": str},
    TOLD: {"trial_id": int, "state": int},
    7: {"trial_id": int, "step": int, "intermediate_value": float},
    8: {"trial_id": int, "user_attr": dict},
    9: {"trial_id": int, "system_attr": dict},
}


def optuna() -> Any:
    """Return Optuna, which says nothing but warnings."""
    try:
        module = import_module("optuna")
    except ImportError as error:
        raise EdblError("a search needs Optuna: run `pip install 'edbl[tune]'`") from error
    module.logging.set_verbosity(module.logging.ERROR)
    return module


@contextmanager
def asking(folder: Path) -> Iterator[None]:
    """Ask Optuna about the search in a folder: whatever it makes of trials that it cannot use is one error."""
    try:
        with quiet():
            yield
    except (EdblError, MemoryError):
        raise
    except OSError as error:
        raise EdblError(f"cannot use '{error.filename or folder}': {error.strerror or error}") from error
    except Exception as error:  # of many kinds, as many as there are databases and things to be wrong
        why = shorten(f"{type(error).__name__}: {error}".strip().partition("\n")[0], LONGEST, placeholder=" ...")
        raise EdblError(f"the trials of {folder} cannot be used ({why}); use another folder, or storage") from error


def trials_of(study: Any, folder: Path) -> list[Any]:
    """Return the trials of the study of a search; its storage may come from anywhere, and say anything of them."""
    if study._storage.get_n_trials(study._study_id) > MOST_TRIALS:
        raise EdblError(f"the storage of {folder} has over {MOST_TRIALS:,} trials; use another one")
    found: list[Any] = sorted(study.get_trials(deepcopy=False), key=lambda trial: trial.number)
    for number, trial in enumerate(found):
        shares = [*trial.intermediate_values.values(), *([trial.value] if trial.state.name == "COMPLETE" else [])]
        if (
            trial.number != number
            or trial.state.name == "WAITING"
            or not all(_is(share, float) and 0 <= share <= 1 for share in shares)
            or not all(isinstance(text, str) for text in trial.user_attrs.values())
        ):
            raise EdblError(f"trial {number} of {folder} is none of a search; use another folder, or storage")
    return found


def journal(folder: Path) -> Any:
    """Return the journal in a folder, for Optuna, whose own one trusts what it reads, and leaves locks behind.

    A line that was cut off by a kill is removed before the next one is written.
    """

    class Journal(optuna().storages.journal.BaseJournalBackend):  # type: ignore[misc]
        def __init__(self) -> None:
            self.path = folder / LINES
            self.starts = [0]  # of lines that were read, and of the next one
            with turn(folder), suppress(FileExistsError):
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))

        def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
            """Yield lines, from one of a number on, as far as they are whole."""
            with opened(self.path, MOST_VALUES, own=True) as file:
                file.seek(self.starts[log_number_from])
                for number, line in enumerate(file, log_number_from):
                    if not line.endswith(b"\n"):
                        return
                    if number >= MOST_LINES:
                        raise EdblError(
                            f"'{self.path}' has over {MOST_LINES:,} lines; use a database, or another folder"
                        )
                    if len(self.starts) == number + 1:
                        self.starts.append(self.starts[number] + len(line))
                    yield checked(self.path, line)

        def append_logs(self, logs: Sequence[dict[str, Any]]) -> None:
            """Write lines, once it is this process's turn."""
            text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
            with turn(folder), opened(self.path, MOST_VALUES, own=True, change=True) as file:
                end = file.seek(0, os.SEEK_END)
                if end and file.seek(end - 1) >= 0 and file.read(1) != b"\n":
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
                    file.seek(0, os.SEEK_END)
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())

    return Journal()


def checked(path: Path, line: bytes) -> dict[str, Any]:
    """Return what a line of a journal says, if it is one that a search writes."""
    try:
        stored = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Damaged(path, f"not valid JSON ({error})") from error
    log = checked_object(path, stored)
    fields = NUMBERED.get(log["op_code"]) if type(log.get("op_code")) is int else None
    if fields is None or not isinstance(log.get("worker_id"), str):
        raise Damaged(path, "it has a line that no search writes")
    for name, kind in fields.items():
        if not _is(log.get(name), kind):
            raise Damaged(path, f"{name} of a line is missing, or of a wrong kind or size")
    if odd := log.keys() - fields.keys() - {"op_code", "worker_id", "values", "datetime_start", "datetime_complete"}:
        raise Damaged(path, f"a line has the unknown key {min(odd)}")
    shares = [log[name] for name in ("intermediate_value",) if name in log]
    if (values := log.get("values")) is not None:
        shares += values if isinstance(values, list) and len(values) == 1 else [None]
    if not all(_is(share, float) and 0 <= share <= 1 for share in shares):
        raise Damaged(path, "an accuracy of a line is none")
    if log["op_code"] == TOLD and log["state"] == 1 and not shares:
        raise Damaged(path, "a trial at its end has no accuracy")
    if not all(isinstance(text, str) for text in log.get("user_attr", {}).values()):
        raise Damaged(path, "user_attr of a line is no text")
    return log


def _is(value: object, kind: type) -> bool:
    """Tell whether a value of a line is of a kind; numbers are finite, and of a size that others can hold."""
    if kind not in (int, float):
        return isinstance(value, kind)
    if not isinstance(value, int | float) or isinstance(value, bool) or not isinstance(value, int | kind):
        return False
    return math.isfinite(value) and abs(value) < 2**63


def storage(folder: Path, url: str | None) -> Any:
    """Return the storage of a search in a folder: a database's, if its address is given."""
    storages = optuna().storages
    if url is not None:
        try:
            place = import_module("sqlalchemy").engine.make_url(url)
            if place.get_backend_name() == "sqlite" and place.database:
                with suppress(FileNotFoundError), opened(Path(place.database)):
                    pass  # a pipe, which would be waited for, is refused
            return storages.RDBStorage(url)
        except Exception as error:  # of many packages, as many as there are databases
            why = str(error).strip().partition("\n")[0]
            raise EdblError(f"cannot use the storage: {type(error).__name__}: {why}") from error
    with asking(folder):
        return storages.JournalStorage(journal(folder / JOURNAL))
