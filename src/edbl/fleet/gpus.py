"""The GPUs of a machine, shared out among runs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from edbl.fleet.mps import shared_gpu


class Gpus:
    """Which run is on which GPU; there may be none. Runs on one share it by NVIDIA's service where that works."""

    def __init__(self, numbers: Sequence[int], say: Callable[[str], None] = lambda _: None) -> None:
        self.numbers = numbers
        self.say = say
        self.by_service = True  # until it lets no run have a GPU
        self._on: dict[int, int] = {}

    @contextmanager
    def shared(self, runs: int, divisible: bool) -> Iterator[str]:
        """Let so many runs share them meanwhile; give a note for their records, if they take turns.

        Three or more on one GPU get parts of it, if runs are ``divisible``.
        """
        together = -(-runs // max(1, len(self.numbers)))  # on one of them
        if not self.numbers or together < 2:
            yield ""
            return
        part = 200 // together if together > 2 and divisible else 100
        with shared_gpu(part, self.by_service) as why:
            note = f"runs take turns on the GPU: {why}" if why else ""
            if note:
                self.say(note)
            yield note

    def take(self, place: int, running: Iterable[int]) -> int | None:
        """Return the GPU with the fewest of the running runs, for another one."""
        if not self.numbers:
            return None
        taken = [self._on[other] for other in running]
        self._on[place] = min(self.numbers, key=taken.count)
        return self._on[place]
