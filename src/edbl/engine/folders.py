"""Folders of runs: where one goes, where one may start, and what stands in the way of it."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from edbl import records, users
from edbl.engine.prepare import code
from edbl.errors import EdblError, command
from edbl.pulse import PULSE
from edbl.recipe import RECIPE, Recipe
from edbl.store import LOCK, TEMPORARY


def default_folder(recipe: Recipe) -> Path:
    """Return the folder of a run that was given none: named after what most recipes differ in."""
    short = hashlib.sha256(recipe.toml().encode()).hexdigest()[:6]
    data = plain(Path(recipe.data.name).name or "folder")
    tasks = [str(recipe.stream.number)] if recipe.stream.number else []
    parts = [plain(Path(recipe.method).stem), data, recipe.stream.protocol, *tasks, f"seed{recipe.seed}", short]
    return Path("runs") / "-".join(parts)


def runs_in(folder: Path) -> list[Path]:
    """Return the folders of runs in ``folder``."""
    return sorted(path.parent for path in folder.glob(f"*/{records.RECORD}"))


def plain(name: str) -> str:
    """Return a name of users' code as folders have it: ``mine-make`` for ``mine.py:make``, ``x`` for ``given:x``."""
    return name.removeprefix(users.GIVEN).replace(".py:", "-")


def is_free(folder: Path) -> bool:
    """Tell whether a run may start in ``folder``: nothing is there but what one killed before its record left."""
    names = {path.name for path in folder.iterdir() if not TEMPORARY.fullmatch(path.name)}
    return names <= {PULSE} or (LOCK in names and names <= {LOCK, RECIPE, records.CONFUSIONS, PULSE})


def is_done(folder: Path, recipe: Recipe, otherwise: str = "use another folder") -> bool:
    """Tell whether a run is done, and refuse a folder with something else; ``otherwise`` says what to do about it."""
    if not folder.exists() or (folder.is_dir() and is_free(folder)):
        return False
    if not (folder / records.RECORD).exists():
        raise taken(folder)
    found = records.read(folder)
    if Recipe.read(folder / RECIPE) != recipe:
        raise EdblError(f"{folder} holds another run, of {found.method}; {otherwise}")
    if found.code != (now := code(recipe)):
        odd = next(key for key in {**found.code, **now} if found.code.get(key) != now.get(key))
        raise changed_since(folder, odd, recipe.values())
    return found.status == "done"


class Taken(EdblError):
    """A folder holds something already."""


def taken(folder: Path) -> Taken:
    """Return the error for a folder that holds something else already."""
    instead = f"{command('resume', folder)} or " if (folder / records.RECORD).exists() else ""
    return Taken(f"output folder {folder} exists already; use {instead}another folder")


def changed_since(folder: Path, key: str, values: Mapping[str, object]) -> EdblError:
    """Return the error for a run of which some code of a user's, of the values by key, is not what it was."""
    how = command("resume", folder, *users.again(values), "--changed")
    so = f"undo that, remove {folder} to begin it anew, or go on with {how}"
    return EdblError(f"{values.get(key, key)} has changed since run {folder} began; {so}")
