"""Folders of small pictures for tests: scikit-learn's digits, a folder for each."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor

from edbl import store
from edbl.app import bundle as disk

QUICK = ["--backbone", "mlp", "--image-size", 8, "--device", "cpu", "--set", "data.augment=none"]
SHORT = [*QUICK, "--set", "schedule.epochs=4", "--set", "options.balance.epochs=2"]


@cache
def digits() -> Any:
    return load_digits()


def write_digits(folder: Path, counts: dict[int, int], start: int = 0) -> Path:
    """Write so many pictures of each digit to ``folder/digit K``, beginning with picture ``start`` of each."""
    data = digits()
    for digit, pictures in counts.items():
        place = folder / f"digit {digit}"
        place.mkdir(parents=True, exist_ok=True)
        for number, picture in enumerate(data.images[data.target == digit][start : start + pictures]):
            grey = (picture * 15.9).astype(np.uint8)
            Image.fromarray(np.stack([grey] * 3, 2)).save(place / f"{start + number:03}.png")
    return folder


def killed_command(arguments: Sequence[object], write: int, after: bool, log: Path) -> None:
    """Be the command ``edbl`` until the given write of a file, and die before or after it: a process's whole life."""
    import torch

    from edbl import store

    torch.set_num_threads(1)
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    numbers = count(1)

    replacing = store.replacing

    @contextmanager
    def watched(path: Path) -> Iterator[Path]:
        number = next(numbers)
        if number == write and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        with replacing(path) as temporary:
            yield temporary
        if number == write:
            os.kill(os.getpid(), signal.SIGKILL)

    store.replacing = watched
    sys.argv = ["edbl", *map(str, arguments)]
    from edbl.cli import main

    main()


def held_model(folder: Path, started: Path, end: Path) -> None:
    """Hold the lock of a model until ``end`` appears."""
    import time

    from edbl.app.bundle import locked

    with locked(folder):
        started.touch()
        while not end.exists():
            time.sleep(0.05)


def change(model: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change what a model says of itself, checksum included."""
    rewrite(model / disk.MODEL, edit)


def rewrite(path: Path, edit: Callable[[dict[str, Any]], object], tensors: Mapping[str, Tensor] | None = None) -> None:
    """Change the values of an entry, and its tensors if any are given, checksums included."""
    entry = store.read(path.parent, path.stem, object)
    values = cast(dict[str, Any], entry.value)
    edit(values)
    found = store.tensors_of(path.parent, path.stem, entry.tensors)
    store.save(path.parent, path.stem, values, tensors or found or None)
