"""How often a reader who follows a computation turns the page: calls from one file of the package into another."""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Self

import edbl

ROOT = f"{Path(edbl.__file__).parent}/"


class Crossings:
    """Count calls by caller's and called file from `start` to `stop`; those of other threads do not count."""

    def __init__(self) -> None:
        self.found: Counter[tuple[str, str]] = Counter()
        self._before = sys.getprofile()

    def start(self) -> None:
        sys.setprofile(self._look)

    def stop(self) -> None:
        sys.setprofile(self._before)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def total(self) -> int:
        """All calls."""
        return sum(self.found.values())

    @property
    def files(self) -> set[str]:
        """The files that were called."""
        return {called for _, called in self.found}

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        called = frame.f_code.co_filename
        if event != "call" or not called.startswith(ROOT):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(ROOT):  # such as PyTorch's modules
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != called:
            self.found[caller.f_code.co_filename.removeprefix(ROOT), called.removeprefix(ROOT)] += 1
