"""Updates of a trained model: in a thread of their own, with news of how far they are."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from edbl.app.learn import increment
from edbl.app.photos import Photo
from edbl.app.settings import Request
from edbl.engine.progress import Count
from edbl.errors import EdblError
from edbl.serve.model import Values
from edbl.serve.refusals import Refused
from edbl.text import watched


class _Stopped(Exception):
    """The update is to end; what it has done stays as an unfinished one."""


class Updates:
    """At most one update at a time."""

    def __init__(self, folder: Path, device: str, learnt: Callable[[list[str]], None], said: Callable[[Any], str]):
        self.folder, self.device = folder, device
        self._learnt, self._said = learnt, said  # called with the digests of photos; what is said of an error
        self._news = threading.Condition()
        self._last: tuple[int, str, Values] = (0, "", {})
        self._thread: threading.Thread | None = None
        self._end = threading.Event()

    @property
    def running(self) -> bool:
        """Whether an update is under way."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, request: Request, photos: Sequence[Photo]) -> None:
        """Start an update with photos, or continue the unfinished one."""
        if self.running:
            raise Refused(409, "an update is under way already")
        self._end.clear()
        self._tell("progress", {"phase": "reading photos", "epoch": 0, "of": 0, "done": 0.0})
        self._thread = threading.Thread(target=self._run, args=(request, photos), name="update", daemon=True)
        self._thread.start()

    def stop(self, seconds: float | None = None) -> None:
        """End an update at its next photo or step; what it has done stays, and it can be continued.

        After some ``seconds`` it is left to end with the process, which may be killed at any moment.
        """
        self._end.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def events(self, seconds: float) -> Iterator[tuple[str, Values]]:
        """Yield news as they come; nothing, as an empty name, where some seconds pass without."""
        seen = 0
        while True:
            with self._news:
                if self._last[0] == seen and self.running:
                    self._news.wait(seconds)
                number, name, values = self._last
            if number > seen:
                seen = number
                yield name, values
            elif self.running:
                yield "", {}
            if name in ("done", "error", "") and not self.running:
                return

    def _run(self, request: Request, photos: Sequence[Photo]) -> None:
        try:
            with (
                watched(self._heed),
                increment(self.folder, request, device=self.device, yes=True, say=_silent, given=photos) as begun,
            ):
                if begun is None:
                    raise EdblError("there is nothing to learn: the model has all these photos already")
                digests = list(begun.begun.digests)
                begun.prepare()
                self._heed()
                learnt = begun.learn(_News(self._tell, self._heed))
                with watched(lambda: None):  # it is written whole
                    bundle = begun.commit(learnt)
            self._learnt(digests)
            self._tell("done", {"version": bundle.version})
        except _Stopped:
            self._tell("error", {"error": "the update was stopped; it can be continued"})
        except (EdblError, OSError) as error:
            self._tell("error", {"error": self._said(error)})
        except Exception:
            self._tell("error", {"error": "the update ended with an error of the program; the server's log has it"})
            raise

    def _heed(self) -> None:
        if self._end.is_set():
            raise _Stopped

    def _tell(self, name: str, values: Values) -> None:
        with self._news:
            self._last = self._last[0] + 1, name, values
            self._news.notify_all()


class _News(Count):
    """Tell how far an update is, and end it where it should."""

    def __init__(self, tell: Callable[[str, Values], None], heed: Callable[[], None]) -> None:
        super().__init__()
        self._tell, self._heed = tell, heed

    def phase(self, task: int, name: str, epochs: int, done: int) -> None:
        super().phase(task, name, epochs, done)
        self._progress()

    def epoch(self, epoch: int, steps: int) -> None:
        super().epoch(epoch, steps)
        self._progress()

    def step(self, losses: Tensor, number: int, images: int) -> None:
        self._heed()
        super().step(losses, number, images)

    def _progress(self) -> None:
        share = min(max(self.share, 0.0), 1.0)
        told = {"phase": self.phase_name, "epoch": min(self.now + 1, self.phase_epochs), "of": self.phase_epochs}
        self._tell("progress", {**told, "done": round(share, 4)})


def _silent(note: str) -> None:
    """Say nothing."""
