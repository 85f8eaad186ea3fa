"""What all tests share: one thread, the command line in this process, and a disk that gets full."""

import errno
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch

torch.set_num_threads(1)


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str


Cli = Callable[..., Finished]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let each test compute its own features, and leave the user's alone."""
    monkeypatch.setenv("EDBL_CACHE", str(tmp_path_factory.getbasetemp() / f"cache-{uuid.uuid4().hex}"))


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command as a user would and return exit code and output."""
    from edbl.cli import main

    def run(*arguments: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["edbl", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        return Finished(code, *capsys.readouterr())

    return run


@contextmanager
def full_disk(after: int) -> Iterator[None]:
    """Let the disk be full once ``after`` files are written."""
    fsync, left = os.fsync, iter(range(after))

    def full(descriptor: int) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full)
        yield
