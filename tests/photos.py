"""Folders of small pictures for tests: scikit-learn's digits, a folder for each."""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from edbl.app import bundle as store

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

    from edbl import files
    from edbl.app import bundle, learn
    from edbl.engine import checkpoint

    torch.set_num_threads(1)
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    numbers = count(1)

    def write_atomic(path: Path, data: bytes) -> None:
        number = next(numbers)
        if number == write and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        files.write_atomic(path, data)
        if number == write:
            os.kill(os.getpid(), signal.SIGKILL)

    for module in (bundle, learn, checkpoint):
        setattr(module, "write_atomic", write_atomic)  # noqa: B010
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
    path = model / store.MODEL
    stored = json.loads(path.read_text())
    del stored["sha256"]
    edit(stored)
    number = stored.pop("format")
    summed = {"sha256": store.checksum(stored)} if number == store.FORMAT else {}
    path.write_text(json.dumps({"format": number, **summed, **stored}))
