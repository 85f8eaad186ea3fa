"""First tasks that several runs train in the same way: one trains it, the others go on from there.

What a first task learns does not depend on the memory, nor on what a method does in later tasks only. The others choose
their exemplars and are evaluated for themselves, and have the bits that they would have alone.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from edbl import records
from edbl.config import flatten
from edbl.engine.checkpoint import CHECKPOINTS, Checkpoints
from edbl.errors import EdblError
from edbl.methods import methods
from edbl.recipe import Recipe

FIRST = "task-0-phase-0"  # the checkpoint after the first phase of the first task
WITHOUT = ("method", "preset", "by_rule", "memory", "checkpoint_seconds")
REPLACED = ("options.", "schedule.", "first.", "optim.", "evaluation.")


class Like(NamedTuple):
    """How a method trains the first task: in the same way as which method, and which of its options count in it."""

    method: str
    options: frozenset[str]


PLAIN = Like("rkd", frozenset())
MIXED = Like("vanilla-mkd", frozenset({"beta", "ratio_per", "first_task"}))
# A method that is not here shares its first task with its own runs alone, and all of its options count.
FIRST_TASKS: Mapping[str, Like] = {
    **dict.fromkeys(("rkd", "ib", "iib", "iib-kd", "der++", "ewc", "acil", "ranpac", "foster"), PLAIN),
    **dict.fromkeys(("vanilla-mkd", "re-mkd", "edbl"), MIXED),
}


class Start(NamedTuple):
    """A first task that runs share: the folder for what is learnt of it, and the name of the run that learns it."""

    folder: Path
    run: str

    def keep(self, run: Path) -> None:
        """Let others have the state after the first phase of a run, if it is there."""
        with suppress(OSError, EdblError):  # such as a full disk: the others can do without
            self.folder.mkdir(parents=True, exist_ok=True)
            _copy(run / CHECKPOINTS, self.folder)

    def is_kept(self) -> bool:
        """Tell whether there is something to take."""
        return Checkpoints(self.folder).load(FIRST) is not None

    def take(self, run: Path) -> str | None:
        """Give a run the state that another kept; return the name of that one, if there was one."""
        return self.run if _copy(self.folder, run / CHECKPOINTS) else None


def key(recipe: Recipe) -> str | None:
    """Return all that the first phase of a run's first task depends on; None for a method that a user wrote."""
    if recipe.method not in methods():
        return None
    options = flatten(recipe.options)
    like = FIRST_TASKS.get(recipe.method, Like(recipe.method, frozenset(options)))
    values = {k: v for k, v in recipe.values().items() if k not in WITHOUT and not k.startswith(REPLACED)}
    if recipe.stream.protocol == "base-half" and not recipe.stream.blur:
        del values["stream.tasks"]  # of the second half
    values |= flatten(recipe.first.schedule(recipe.schedule), "schedule.")
    values |= flatten(recipe.first.optim(recipe.optim), "optim.")
    values |= {"method": like.method, "options": {k: options[k] for k in like.options}}
    return json.dumps(values, sort_keys=True)


def waiting(jobs: Sequence[tuple[Recipe, Path]], places: Collection[int]) -> dict[int, list[int]]:
    """Return, for runs that train a first task for others, these others; none of them is begun yet."""
    alike: dict[str, list[int]] = {}
    for place in places:
        recipe, folder = jobs[place]
        found = None if (folder / records.RECORD).exists() else key(recipe)
        if found is not None:
            alike.setdefault(found, []).append(place)
    return {first: others for first, *others in alike.values() if others}


def _copy(source: Path, target: Path) -> bool:
    saved = Checkpoints(source).load(FIRST)
    if saved is not None:
        Checkpoints(target).save(FIRST, saved)
    return saved is not None
