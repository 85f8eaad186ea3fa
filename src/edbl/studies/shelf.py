"""The shelf: records of finished runs below one folder, found by what they are and not by where they lie."""

import json
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from edbl import records
from edbl.errors import EdblError, Unnamed
from edbl.recipe import HOW, RECIPE, Recipe
from edbl.records import Record
from edbl.store import found_below, read_file, write_atomic

KEPT = (records.RECORD, records.CONFUSIONS, RECIPE)  # of a run


class Run(NamedTuple):
    """A finished run: its folder, what was asked, and what came out."""

    folder: Path
    recipe: Recipe
    record: Record


class Shelf:
    """All finished runs below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def runs(self) -> list[Run]:
        """Every finished run, in order of its start."""
        folders = found_below(self.folder, records.RECORD)
        read = [Run(folder, recipe, records.read(folder)) for folder in folders if (recipe := _recipe(folder))]
        return sorted((run for run in read if run.record.status == "done"), key=lambda run: run.record.started)

    @cached_property
    def _by_key(self) -> dict[str, list[Run]]:
        found: dict[str, list[Run]] = {}
        for run in self.runs:
            found.setdefault(key(run.recipe), []).append(run)
        return found

    def of(self, recipe: Recipe) -> list[Run]:
        """Return the runs of a recipe, whatever their seeds, a run for each seed, by seed."""
        by_seed = {run.record.seed: run for run in self._by_key.get(key(recipe), [])}
        return [by_seed[seed] for seed in sorted(by_seed)]

    def has(self, recipe: Recipe) -> bool:
        """Tell whether a run of this recipe and its seed is there."""
        return any(run.record.seed == recipe.seed for run in self.of(recipe))

    def keep(self, run: Path, name: str, features: bool = False) -> Path:
        """Copy what is worth keeping of a finished run to the folder ``name``, or beside it if that holds another."""
        names = (*KEPT, records.FEATURES) if features else KEPT
        numbered = (f"{name}-{number}" for number in range(2, 10_000))
        free = next(self.folder / n for n in (name, *numbered) if self._may_hold(self.folder / n, run))
        free.mkdir(parents=True, exist_ok=True)
        for file in sorted(names, key=lambda file: file == records.RECORD):  # last: it says that all is there
            write_atomic(free / file, read_file(run / file, own=True))
        for known in ("runs", "_by_key"):
            self.__dict__.pop(known, None)
        return free

    def _may_hold(self, folder: Path, run: Path) -> bool:
        """Tell whether a folder has no record, or one of the same recipe and seed as a run."""
        if not (folder / records.RECORD).is_file():
            return True
        here, there = _recipe(folder), _recipe(run)
        return here is not None and there is not None and (key(here), here.seed) == (key(there), there.seed)


def _recipe(run: Path) -> Recipe | None:
    """Return the recipe of a run; None if its method is in a file that nobody named: it would run."""
    try:
        return Recipe.read(run / RECIPE)
    except Unnamed:
        return None


def key(recipe: Recipe) -> str:
    """Return what a recipe learns, whatever its seed: how it computes, and where values came from, do not count.

    But for bf16, where it is named: a study may ask what that changes.
    """
    without = {*HOW, "seed", "preset", *recipe.stream.idle} - ({"precision"} if recipe.precision == "bf16" else set())
    return json.dumps({k: v for k, v in recipe.values().items() if k not in without}, sort_keys=True)


def require(folder: Path) -> Shelf:
    """Return the shelf of a folder that must exist."""
    if not folder.is_dir():
        raise EdblError(f"there is no folder of results {folder}")
    return Shelf(folder)
