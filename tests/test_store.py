"""Files that are whole or not there at all, and entries of tensors and values."""

import errno
import json
import math
import os
import tempfile
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from edbl import scratch, store
from edbl.errors import EdblError
from edbl.store import Damaged, lock, write_atomic


@dataclass
class Values:
    """What an entry says."""

    name: str
    sizes: list[int]
    more: dict[str, Any] = field(default_factory=dict)
    known: str = field(default="", init=False)  # of one that is read


OLD, NEW = Values("old", [1], {"a": 1}), Values("new", [2, 3])


def tensors(value: float) -> dict[str, Tensor]:
    return {"x": torch.full((2, 3), value), "y": torch.arange(3)}


def found(folder: Path) -> tuple[Values, float]:
    value, loaded = store.load(folder, "entry", Values)
    assert loaded["y"].tolist() == [0, 1, 2]
    return value, float(loaded["x"][0, 0])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_entry_comes_back_as_saved(tmp_path: Path) -> None:
    checksum = store.save(tmp_path, "entry", OLD, tensors(1))
    assert names(tmp_path) == ["entry.json", "entry.safetensors"]
    assert found(tmp_path) == (OLD, 1)
    assert store.read(tmp_path, "entry", Values) == store.Entry(OLD, checksum)
    assert "known" not in json.loads((tmp_path / "entry.json").read_text())["values"]
    store.save(tmp_path, "entry", NEW, tensors(2))
    assert found(tmp_path) == (NEW, 2)
    assert store.save(tmp_path, "bare", {"a": [1, None]}) == ""
    assert store.load(tmp_path, "bare", dict[str, object]) == ({"a": [1, None]}, {})
    store.save(tmp_path, "bare", {10: (1,), 9: 2})
    assert store.read(tmp_path, "bare", object).value == {"10": [1], "9": 2}
    store.remove(tmp_path, "entry")
    assert names(tmp_path) == ["bare.json"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("move", [1, 2, 3])
def test_a_crash_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, move: int, after: bool
) -> None:
    """Of three moves (new tensors, JSON, tensors to their place) any may be the last, or be cut off."""
    store.save(tmp_path, "entry", OLD, tensors(1))
    moves, replace = count(1), os.replace

    def killed(source: Path, target: Path) -> None:
        number = next(moves)
        if number < move or after:
            replace(source, target)
        if number == move:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            store.save(tmp_path, "entry", NEW, tensors(2))
    whole: tuple[Values, float] = (NEW, 2) if (move, after) >= (2, True) else (OLD, 1)
    assert found(tmp_path) == whole
    with monkeypatch.context() as patch:  # once more, before anything was mended
        patch.setattr(store, "write_atomic", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.save(tmp_path, "entry", Values("third", []), tensors(3))
    assert found(tmp_path) == whole
    store.settle(tmp_path, "entry", store.read(tmp_path, "entry", Values).tensors)
    assert names(tmp_path) == ["entry.json", "entry.safetensors"]
    assert found(tmp_path) == whole


def test_what_is_replaced_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(tmp_path, "entry", OLD, tensors(1))
    read = store.read

    def late(*given: Any) -> Any:
        entry = read(*given)
        if entry.value == OLD:
            store.save(tmp_path, "entry", NEW, tensors(2))
        return entry

    monkeypatch.setattr(store, "read", late)
    assert found(tmp_path) == (NEW, 2)
    values = iter(range(9))

    def always(*given: Any) -> Any:
        entry = read(*given)
        store.save(tmp_path, "entry", OLD, tensors(next(values) + 3))
        return entry

    monkeypatch.setattr(store, "read", always)
    with pytest.raises(EdblError, match="is being changed by another process all the time"):
        store.load(tmp_path, "entry", Values)


def test_tensors_that_take_their_place_between_two_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(tmp_path, "entry", OLD, tensors(1))
    old = (tmp_path / "entry.safetensors").read_bytes()
    checksum = store.save(tmp_path, "entry", NEW, tensors(2))
    new = (tmp_path / "entry.safetensors").read_bytes()
    looks = iter([old, FileNotFoundError(), new])
    monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=looks))
    assert store.tensors_of(tmp_path, "entry", checksum)["x"][0, 0] == 2


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "format": (lambda s: s.update(format=0), "its format is 0, not 1"),
    "no format": (lambda s: s.pop("format"), "its format is None"),
    "sum": (lambda s: s.update(sha256="0" * 64), "its checksum is wrong"),
    "no sum": (lambda s: s.pop("sha256"), "its checksum is wrong"),
    "values": (lambda s: s["values"].update(sizes=[2]), "its checksum is wrong"),
    "no values": (lambda s: s.pop("values"), "its checksum is wrong"),
    "tensors": (lambda s: s.update(tensors="0" * 64), "its checksum is wrong"),
    "no tensors": (lambda s: s.pop("tensors"), "its checksum is wrong"),
    "list of tensors": (lambda s: s.update(tensors=[]), "its checksum is wrong"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_json_is_told(tmp_path: Path, damage: str) -> None:
    store.save(tmp_path, "entry", OLD, tensors(1))
    stored = json.loads((tmp_path / "entry.json").read_text())
    DAMAGE[damage][0](stored)
    (tmp_path / "entry.json").write_text(json.dumps(stored))
    with pytest.raises(Damaged, match=DAMAGE[damage][1]) as caught:
        store.load(tmp_path, "entry", Values)
    assert caught.value.file == "entry.json"
    assert store.find(tmp_path, "entry", Values) is None


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "entry.json").write_bytes(text)
    with pytest.raises(Damaged, match=r"not valid JSON|not a JSON object"):
        store.read(tmp_path, "entry", Values)


def test_values_of_other_types_are_told(tmp_path: Path) -> None:
    for values, why in (
        ({"name": "a", "sizes": ["x"], "more": {}}, "'sizes' is not a whole number"),
        ({"name": "a", "sizes": [1]}, "'more' of values is missing"),
        ({"name": "a", "sizes": [1], "more": {}, "known": ""}, "'known' of values is unknown"),
        ({"name": "a", "sizes": [1], "more": {"b": {}}}, "'more' is not a value that settings have"),
        ([1], "'values' is not an object"),
    ):
        store.save(tmp_path, "entry", values)
        with pytest.raises(Damaged, match=why):
            store.read(tmp_path, "entry", Values)


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing"])
def test_damaged_tensors_are_told(tmp_path: Path, damage: str) -> None:
    store.save(tmp_path, "entry", OLD, tensors(1))
    path = tmp_path / "entry.safetensors"
    data = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(data[:-1] if damage == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(Damaged, match="the file is missing" if damage == "missing" else "its checksum is wrong"):
        store.load(tmp_path, "entry", Values)
    assert store.read(tmp_path, "entry", Values).value == OLD
    store.save(tmp_path, "entry", NEW, tensors(2))
    assert found(tmp_path) == (NEW, 2)


def test_a_newer_format_is_told_as_such(tmp_path: Path) -> None:
    store.save(tmp_path, "entry", OLD, format=2)
    with pytest.raises(EdblError, match="has format 2, and this edbl reads format 1: it was written by a newer edbl"):
        store.read(tmp_path, "entry", Values)
    assert store.find(tmp_path, "entry", Values) is None
    assert store.read(tmp_path, "entry", Values, 2).value == OLD


def test_what_json_cannot_hold_changes_nothing(tmp_path: Path) -> None:
    store.save(tmp_path, "entry", OLD, tensors(1))
    for value in ({"a": {1}}, {"a": math.nan}):
        with pytest.raises((TypeError, ValueError)):
            store.save(tmp_path, "entry", value, tensors(2))
    assert found(tmp_path) == (OLD, 1)
    assert names(tmp_path) == ["entry.json", "entry.safetensors"]


def test_leftovers_of_an_entry(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    left = [f".entry.json.{'0' * 32}.tmp", f".other.json.{'0' * 32}.tmp", ".entry.draft.tmp"]
    for name in (*left, f"below/{left[0]}"):
        (tmp_path / name).touch()
    store.sweep(tmp_path, "entry")
    assert names(tmp_path) == sorted(["below", *left[1:]])
    store.sweep(tmp_path)
    assert names(tmp_path) == [".entry.draft.tmp", "below"]
    assert names(tmp_path / "below") == []


def test_write_atomic_replaces(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_that_was_removed_meanwhile_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    flock = fcntl.flock

    def late(file: IO[bytes], how: int) -> None:  # who had it removes it in the end
        (tmp_path / ".lock").unlink()
        (tmp_path / ".lock").touch()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(EdblError, match="another process is working in"), lock(tmp_path):
        pass


def test_a_file_system_without_locks_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))))
    with pytest.raises(EdblError, match=r"cannot lock .*: No locks available; use another file system"), lock(tmp_path):
        pass


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_failing_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises((EdblError, KeyboardInterrupt)) as caught:
        write_atomic(path, b"new")
    assert isinstance(caught.value, KeyboardInterrupt) or "No space left on device" in str(caught.value)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_write_into_a_place_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EdblError, match="cannot write"):
        write_atomic(tmp_path / "missing" / "file", b"")
    with pytest.raises(EdblError, match="cannot write"):
        store.save(tmp_path / "missing", "entry", OLD, tensors(1))


def test_what_killed_writers_left_of_an_output_goes_when_it_is_written_again(tmp_path: Path) -> None:
    old, new, other = (
        tmp_path / f".{name}.{digit * 32}.tmp" for name, digit in (("a[1]", "0"), ("a[1]", "1"), ("b", "0"))
    )
    for left in (old, new, other):
        left.touch()
    for left in (old, other):
        os.utime(left, (0, 0))
    store.write_output(tmp_path / "a[1]", b"x")
    assert names(tmp_path) == sorted([new.name, other.name, "a[1]"])


def test_folders_for_the_time_being_go_though_their_process_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, unlocked, old, other = (tmp_path / f"{scratch.SCRATCH}{name}" for name in ("killed", "new", "old", "other"))
    for folder in (killed, unlocked, old, other, tmp_path / "edbl-else"):
        folder.mkdir()
    (killed / "start").write_bytes(b"weights")
    for folder in (killed, other):
        (folder / store.LOCK).touch()
    os.utime(old, (0, 0))
    with lock(other), scratch.scratch() as mine:
        assert names(tmp_path) == sorted([unlocked.name, other.name, mine.name, "edbl-else"])
        assert not names(mine) or names(mine) == [store.LOCK]
    assert names(tmp_path) == sorted([unlocked.name, other.name, "edbl-else"])


def test_a_file_of_tensors_that_is_larger_than_it_says_is_not_read(tmp_path: Path) -> None:
    store.save(tmp_path, "entry", OLD, tensors(1))
    path = tmp_path / "entry.safetensors"
    os.truncate(path, 2**33)  # a hole, which takes no room on the disk, and would take 8 GB of memory
    tracemalloc.start()
    with pytest.raises(Damaged, match="its checksum is wrong"):
        store.load(tmp_path, "entry", type(OLD))
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
def test_numbers_that_are_none_are_refused(tmp_path: Path, number: str) -> None:
    (tmp_path / "x.json").write_text(f'{{"a": [{number}]}}')
    with pytest.raises(Damaged, match="a number in it is not finite"):
        store.read_json(tmp_path / "x.json")
