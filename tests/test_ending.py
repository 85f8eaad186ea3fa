"""What callers give that has no end, or would be waited for."""

import os
import socket
from collections.abc import Callable
from itertools import count, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import edbl
from edbl import EdblError, ending
from edbl.data.decoding import decode
from edbl.data.given import as_dataset
from edbl.serve import client

ODD = ("pipe", "/dev/zero", "socket")


def put(kind: str, path: Path) -> Path:
    """Put something in a place that is no file."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    else:
        path.symlink_to(kind)
    return path


@pytest.mark.parametrize("kind", ODD)
def test_an_image_that_is_no_file_is_not_waited_for(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = put(kind, Path("x.png"))
    assert decode(place, 8).bad == "not a regular file"
    with pytest.raises(EdblError, match=r"cannot read x\.png: it is not a regular file"):
        client._file(place)


class Endless:
    """A data set of more images than there is room for."""

    def __len__(self) -> int:
        return 2**62

    def __getitem__(self, number: int) -> tuple[Any, int]:
        return np.zeros((8, 8), np.uint8), number % 4


def learn(place: Path, *given: Any) -> None:
    """Let a model learn what its types would not allow."""
    edbl.open(place).learn(*given)


WITHOUT_END: dict[str, Callable[[Path], object]] = {
    "files to predict": lambda p: learn(p, repeat("x.png"), count()),
    "images by class": lambda p: edbl.open(p).learn({"a": repeat(Image.new("RGB", (8, 8)))}),
    "arrays by class": lambda p: edbl.open(p).learn({"a": (np.zeros((8, 8), np.uint8) for _ in count())}),
    "folders": lambda p: learn(p, repeat("folder")),
    "files to a server": lambda p: client._listed(repeat("x.png")),
    "bytes to a server": lambda p: client._listed(repeat(b"x" * 1000)),
    "a data set": lambda p: as_dataset((Endless(), Endless())),
}


@pytest.mark.parametrize("what", WITHOUT_END)
def test_what_has_no_end_is_refused(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "MOST", 1000)
    with pytest.raises(EdblError, match="what is given has no end, or is too much: it was read up to number 1,001"):
        WITHOUT_END[what](tmp_path / "out")


def test_what_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_memory", lambda: 2 * 10**6)
    with pytest.raises(EdblError, match="up to number 11, 1 MB"):
        ending.all_of(np.zeros(10**5, np.uint8) for _ in count())
    assert len(ending.all_of([np.zeros(10**5)] * 20)) == 20  # which are there already
    assert ending.all_of(iter("abc")) == ["a", "b", "c"]


@pytest.mark.parametrize("given", [count(), (one for one in "ab"), [count(), count()], (count(), count(), count(), 1)])
def test_data_that_are_no_data_are_refused(given: object) -> None:
    with pytest.raises(EdblError, match=r"the given data|are none|give one for each"):
        as_dataset(given)
