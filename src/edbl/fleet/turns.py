"""Which of several runs begins next: in order, after the one that trains its first task, and if it ends in time."""

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from edbl.fleet import starts
from edbl.recipe import Recipe


class Limit(NamedTuple):
    """The time that there is: its end, by `time.monotonic`, and how long runs take, by folder, where that is known."""

    end: float
    seconds: Mapping[Path, float]

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.end - time.monotonic()


class Source(Protocol):
    """Where runs come from, one after the other, while others go on."""

    @property
    def limit(self) -> Limit | None:
        """Return the time that there is, if it is limited."""

    @property
    def left(self) -> Collection[int]:
        """Return those that have not begun."""

    def next(self) -> tuple[int, starts.Start | None] | None:
        """Return a run that may begin now, and the first task that it shares."""

    def why(self, place: int) -> str:
        """Return what a run waits for that has not begun."""

    def goes_on(self, place: int) -> bool:
        """Tell whether a run goes on after what its record says now."""

    def ended(self, place: int) -> None:
        """Take note that a run ended, well or not."""


class Turns:
    """The runs that have not begun yet, in order."""

    def __init__(
        self,
        jobs: Sequence[tuple[Recipe, Path]],
        places: Collection[int],
        names: Sequence[str],
        kept: Path,
        limit: Limit | None,
    ) -> None:
        self.jobs, self.names, self.kept, self.limit = jobs, names, kept, limit
        self.left: list[int] = list(places)
        self._over: set[int] = set()
        self._first: dict[int, int] = {}  # the run that trains another's first task
        self._starts: dict[int, starts.Start] = {}  # of such runs
        self._kept: set[int] = set()  # those of them that have learnt it
        self._share()

    def _share(self) -> None:
        """Let one of the runs that are left train what several have in common, unless another is at it."""
        free = [place for place in self.left if place not in self._first]
        for first, others in starts.waiting(self.jobs, free).items():
            self._starts[first] = starts.Start(self.kept / str(first), self.names[first])
            self._first |= dict.fromkeys(others, first)

    def next(self) -> tuple[int, starts.Start | None] | None:
        """Return a run that may begin now, and the first task that it keeps for others or takes."""
        firsts = set(self._first.values()) - self._kept
        self._kept |= {first for first in firsts if self._starts[first].is_kept()}
        for place in list(self.left):
            first = self._first.get(place, place)
            if first != place and first not in self._kept | self._over:
                continue
            self.left.remove(place)
            if self._is_late(place):
                self._leave(place)
            elif first in self._kept or first == place:
                return place, self._starts.get(first)
            else:  # that one failed before it had learnt it
                return place, None
        return None

    def why(self, place: int) -> str:
        """Return what a run waits for that has not begun."""
        first = self._first.get(place, place)
        by_another = first not in {place, *self._kept, *self._over}
        return f"for its first task, which {self.names[first]} trains" if by_another else "for its turn"

    def goes_on(self, place: int) -> bool:
        """Tell that a run goes on, whatever its record says."""
        return True

    def ended(self, place: int) -> None:
        """Take note that a run ended, well or not."""
        self._over.add(place)

    def _is_late(self, place: int) -> bool:
        """Tell whether a run would not end in time, as far as anybody knows."""
        return self.limit is not None and self.limit.left < self.limit.seconds.get(self.jobs[place][1], 0.0)

    def _leave(self, place: int) -> None:
        """Leave a run out; another one trains the first task for those that would have had it from this one."""
        self._first = {other: first for other, first in self._first.items() if first != place}
        self._share()
