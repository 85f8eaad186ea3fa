"""What a run leaves on disk, and how it is read back.

A run is a folder with ``record.json`` (what was run, how it went), ``confusions.npz`` (one confusion matrix per task
and classifier: ``cnn_0``, ``nme_0``, ``cnn_1``, ...) and, once it is done, ``features.npz``.
"""

import hashlib
import io
import json
import lzma
import math
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edbl import metrics
from edbl.config import Unfit, fit
from edbl.errors import EdblError
from edbl.store import ODD_ARRAY, Damaged, read_file, read_json, refuse_links, write_atomic

FORMAT = 1
READOUTS = ("cnn", "nme")  # the classifiers that the paper has; a method may have others
NEWER = ("title", "code", "kept", "within", "returning")  # what older records lack
MOST_ARRAYS, HEADER = 2**28, 2**14  # bytes that are read of a file of arrays, and of what stands before one of them
DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError)
RECORD, CONFUSIONS, FEATURES = "record.json", "confusions.npz", "features.npz"


@dataclass
class Record:
    """One run: its settings, where it ran, how far it came, and its confusion matrices."""

    method: str  # the method's name
    data: str  # data set, or path of an image folder
    protocol: str  # `base0`, `base-half`, `base-step`, `tasks` or `own`
    phases: int  # `stream.tasks`, or the number of tasks where the protocol has no such number
    memory: str  # `total=K`, `per_class=k` or `none`
    order: str  # `natural`, a seed, or `list`
    seed: int  # the seed
    recipe: dict[str, Any]  # every value by dotted key
    classes: list[str]  # class names in order of arrival
    task_sizes: list[int]  # number of new classes of each task; only the first has one for sure
    status: Literal["running", "done", "failed"] = "running"  # `running` may also be killed
    message: str = ""  # why it failed, else empty
    title: str = ""  # what the method is, in a line; older records have none
    commit: str = ""  # `$EDBL_COMMIT`, or the git commit, with `-dirty` if sources were changed; may be empty
    versions: dict[str, str] = field(default_factory=dict)  # of edbl, python, torch, numpy and scikit-learn
    device: str = ""  # name of the GPU, or the CPU with its number of threads
    started: str = ""  # time in UTC, ISO 8601
    # Wall time of each finished task; of a shared first phase, where it was trained.
    seconds: list[float] = field(default_factory=list)
    # The same by part: each phase by name, `clean`, `memory`, `evaluation`.
    timings: list[dict[str, float]] = field(default_factory=list)
    # By key, what identifies code that is not this package's: SHA-256 of files, of weights, or a package.
    code: dict[str, str] = field(default_factory=dict)
    losses: list[dict[str, list[float]]] = field(default_factory=list)  # for each task, by phase: mean of each epoch
    # For each task, by phase: epochs within it, and the accuracy over all, old and new classes after them.
    within: list[dict[str, list[list[float]]]] = field(default_factory=list)
    # For each task: `exemplars`, and bytes of `net`, `memory` and `state`; older records have none.
    kept: list[dict[str, int]] = field(default_factory=list)
    data_fingerprint: str = ""  # digest of all images and labels, as hexadecimal digits
    our_reading: bool = False  # the method is reconstructed: its publication leaves much open
    notes: list[str] = field(default_factory=list)  # hold-out, files skipped, odd counts, who else trained it
    # Old classes that each task had images of, by place in `classes`; empty if none had any.
    returning: list[list[int]] = field(default_factory=list)
    confusions: dict[str, list[metrics.Confusion]] = field(default_factory=dict)  # of each task by classifier

    @property
    def label(self) -> str:
        """The method's name, and whether it is reconstructed."""
        return f"{self.method} (reconstructed)" if self.our_reading else self.method

    @property
    def tasks(self) -> list[list[int]]:
        """The classes that each task had images of, by their place in ``classes``."""
        ends = accumulate(self.task_sizes)
        new = [list(range(end - size, end)) for size, end in zip(self.task_sizes, ends, strict=True)]
        return [old + own for old, own in zip(self.returning or [[]] * len(new), new, strict=True)]

    @property
    def accuracy(self) -> dict[str, list[float]]:
        """For each classifier: accuracy after each finished task."""
        return {readout: metrics.accuracies(found) for readout, found in self.confusions.items()}

    @property
    def average_incremental_accuracy(self) -> dict[str, float]:
        """For each classifier: the mean of its accuracies, first task included."""
        return {readout: metrics.average_incremental_accuracy(found) for readout, found in self.confusions.items()}

    def kept_bytes(self, task: int) -> int:
        """Return the bytes of network, exemplars and state after a task."""
        return sum(self.kept[task].get(part, 0) for part in ("net", "memory", "state"))

    @property
    def finished(self) -> int:
        """The number of tasks learnt and measured."""
        return max(map(len, self.confusions.values()), default=0)


def write(record: Record, folder: Path, *, cut: bool = False) -> None:
    """Write ``record`` to ``folder``, which is made if need be; ``cut``: what is there has more tasks."""
    _make(folder)
    matrices = {
        f"{readout}_{task}": np.asarray(confusion, dtype=np.int64)
        for readout, found in record.confusions.items()
        for task, confusion in enumerate(found)
    }
    stored: dict[str, Any] = {"format": FORMAT}
    stored |= {f.name: getattr(record, f.name) for f in fields(Record) if f.name != "confusions"}
    stored["accuracy"] = record.accuracy
    stored["average_incremental_accuracy"] = record.average_incremental_accuracy
    stored = _without_nan(stored)
    stored["sha256"] = _sum(stored)
    text = json.dumps(stored, indent=1, allow_nan=False)
    files = [(CONFUSIONS, _npz(matrices)), (RECORD, (text + "\n").encode())]
    # The json says how many matrices count: a kill between the two files must not leave fewer of them.
    for name, data in reversed(files) if cut else files:
        write_atomic(folder / name, data)


def read(folder: Path) -> Record:
    """Return the record in ``folder``."""
    stored = _read_json(folder)
    there = {name: hint for name, hint in _HINTS.items() if name in stored or name not in NEWER}
    record = Record(**{name: _value(folder, stored, name, hint) for name, hint in there.items()})
    record.confusions = _read_confusions(folder, stored, record.task_sizes, len(record.classes))
    if sum(record.task_sizes[: record.finished]) > len(record.classes):
        raise _broken(folder, RECORD, "it names fewer classes than its tasks hold")
    olds = [end - size for size, end in zip(record.task_sizes, accumulate(record.task_sizes), strict=True)]
    held = zip(record.returning, olds, strict=False)
    if len(record.returning) not in (0, len(olds)) or not all(0 <= k < old for some, old in held for k in some):
        raise _broken(folder, RECORD, "'returning' does not fit 'task_sizes'")
    lists: tuple[list[Any], ...] = (record.seconds, record.timings, record.losses, *record.confusions.values())
    tasks = {len(one) for one in lists if one}
    whole = tasks == {len(record.task_sizes)} or record.status != "done"
    if not whole or len(tasks) > 1 or (tasks and not record.finished):
        raise _broken(folder, RECORD, "what it says of its tasks is of different numbers of them")
    return record


def write_features(folder: Path, features: ArrayLike, labels: ArrayLike) -> None:
    """Keep features ``[n, d]`` of test images after the last task, with their classes (arrival order) ``[n]``."""
    points, classes = np.asarray(features), np.asarray(labels, dtype=np.int64)
    if points.ndim != 2 or classes.shape != points.shape[:1]:
        raise ValueError(f"features must be [n, d] and labels [n], not {points.shape} and {classes.shape}")
    small = points if points.dtype == np.float16 else points.astype(np.float32)
    _make(folder)
    write_atomic(folder / FEATURES, _npz({"features": small, "labels": classes}))


def read_features(folder: Path) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
    """Return the features ``[n, d]`` and class indices ``[n]`` kept with a run, or None where none were kept."""
    if not (folder / FEATURES).is_file():
        return None
    arrays = _read_npz(folder, FEATURES, ["features", "labels"], MOST_ARRAYS)
    features, labels = arrays["features"], arrays["labels"]
    if features.ndim != 2 or features.shape[1] == 0 or features.dtype.kind != "f" or labels.dtype.kind not in "iu":
        raise _broken(folder, FEATURES, "its arrays are not features [n, d] and labels [n]")
    if labels.shape != features.shape[:1] or (labels < 0).any():
        raise _broken(folder, FEATURES, "its labels do not match its features")
    return features, labels.astype(np.int64)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EdblError(f"cannot make the folder '{folder}': {error.strerror}") from error


def _npz(arrays: dict[str, NDArray[Any]]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _without_nan(value: Any) -> Any:
    """Return ``value`` with null in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_json(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise EdblError(f"no such run folder: '{folder}'")
    path = folder / RECORD
    refuse_links(folder)
    if not path.is_file():
        runs = [inner.parent.name for inner in sorted(folder.glob(f"*/{RECORD}"))]
        hint = f"; the folders in it are: name them, as '{folder / runs[0]}'" if runs else ""
        raise EdblError(f"'{folder}' is not a run: it has no {RECORD}{hint}")
    try:
        stored = read_json(path)
    except OSError as error:
        raise EdblError(f"cannot read '{path}': {error.strerror}") from error
    except Damaged as error:
        raise _broken(folder, RECORD, error.why) from error
    if stored.get("format") != FORMAT:
        raise EdblError(
            f"'{path}' has format {stored.get('format')!r}, this edbl reads format {FORMAT}: "
            "use the version of edbl that wrote it"
        )
    if "sha256" in stored and stored["sha256"] != _sum(stored):  # older records have none
        raise _broken(folder, RECORD, "its checksum is wrong")
    return stored


def _sum(stored: Mapping[str, Any]) -> str:
    """Return the checksum of what a record says but that."""
    said = {key: value for key, value in stored.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _value(folder: Path, stored: dict[str, Any], name: str, hint: Any) -> Any:
    if name not in stored:
        raise _broken(folder, RECORD, f"'{name}' is missing")
    try:
        return fit(hint, stored[name], name, null=math.nan)
    except Unfit as error:
        raise _broken(folder, RECORD, str(error)) from error


def _read_confusions(
    folder: Path, stored: dict[str, Any], sizes: list[int], classes: int
) -> dict[str, list[metrics.Confusion]]:
    accuracy = _value(folder, stored, "accuracy", dict[str, list[float]])
    tasks = {readout: len(found) for readout, found in accuracy.items()}
    if max(tasks.values(), default=0) > len(sizes) or min(sizes, default=0) < 0 or 0 in sizes[:1]:
        raise _broken(folder, RECORD, "'task_sizes' does not fit its number of tasks")
    if len(set(tasks.values()) - {0}) > 1:
        raise _broken(folder, RECORD, "'accuracy' has another number of tasks for each classifier")
    names = [f"{r}_{task}" for r in tasks for task in range(tasks[r])]
    arrays = _read_npz(folder, CONFUSIONS, names, 8 * classes**2)
    for name, array in arrays.items():
        seen = sum(sizes[: int(name.rpartition("_")[2]) + 1])
        if array.shape != (seen, seen) or array.dtype.kind not in "iu" or (array < 0).any():
            raise _broken(folder, CONFUSIONS, f"'{name}' is not a {seen} x {seen} matrix of counts")
    return {r: [arrays[f"{r}_{task}"].astype(np.int64) for task in range(tasks[r])] for r in tasks}


def _read_npz(folder: Path, file: str, names: list[str], most: int) -> dict[str, NDArray[Any]]:
    """Return arrays of a file by name, each of at most so many bytes."""
    if not names:
        return {}
    if not (folder / file).is_file():
        raise _broken(folder, file, "the file is missing")
    try:
        with zipfile.ZipFile(io.BytesIO(read_file(folder / file, MOST_ARRAYS, own=True))) as packed:
            found = {info.filename.removesuffix(".npy"): info for info in packed.infolist()}
            for name in names:
                if name not in found:
                    raise _broken(folder, file, f"'{name}' is missing")
                if found[name].file_size > most + HEADER:  # before it is unpacked
                    raise _broken(folder, file, f"'{name}' has {found[name].file_size:,} bytes")
            return {name: _array(packed.read(found[name])) for name in names}
    # What zip files and arrays may be is more than zipfile and NumPy know, and they say so in many ways.
    except (OSError, EOFError, RuntimeError, *ODD_ARRAY, *DAMAGED) as error:
        # What NumPy does not know it takes for a pickle, and tells how to load that unsafely.
        why = "it holds something else than arrays of numbers" if "allow_pickle" in str(error) else error
        raise _broken(folder, file, f"unreadable ({why})") from error


def _array(data: bytes) -> NDArray[Any]:
    found: NDArray[Any] = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return found


def _broken(folder: Path, file: str, why: str) -> EdblError:
    return EdblError(f"broken run '{folder}': {file}: {why}; run it again or leave it out")


_HINTS = {name: hint for name, hint in get_type_hints(Record).items() if name != "confusions"}
_HINTS["recipe"] = dict[str, object]  # by dotted key or nested: a report takes either
