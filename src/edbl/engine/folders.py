"""Folders of runs: where one goes, where one may start, and what stands in the way of it."""

import hashlib
from pathlib import Path

from edbl import records
from edbl.errors import EdblError, command
from edbl.recipe import RECIPE, Recipe
from edbl.store import LOCK, TEMPORARY


def default_folder(recipe: Recipe) -> Path:
    """Return the folder of a run that was given none: named after what most recipes differ in."""
    short = hashlib.sha256(recipe.toml().encode()).hexdigest()[:6]
    data = Path(recipe.data.name).name or "folder"
    phases = [str(recipe.stream.phases)] if recipe.stream.phased else []
    parts = [Path(recipe.method).stem, data, recipe.stream.protocol, *phases, f"seed{recipe.seed}", short]
    return Path("runs") / "-".join(parts)


def is_free(folder: Path) -> bool:
    """Tell whether a run may start in ``folder``: it holds nothing but what one killed before its record left."""
    names = {path.name for path in folder.iterdir() if not TEMPORARY.fullmatch(path.name)}
    return not names or (LOCK in names and names <= {LOCK, RECIPE, records.CONFUSIONS})


def taken(folder: Path) -> EdblError:
    """Return the error for a folder that holds something else already."""
    instead = f"{command('resume', folder)} or " if (folder / records.RECORD).exists() else ""
    return EdblError(f"output folder {folder} exists already; use {instead}another folder")


def changed(folder: Path, recipe: Recipe) -> EdblError:
    """Return the error for a run whose method file is not what it was."""
    anew = f"remove {folder} to begin it anew"
    return EdblError(f"{recipe.method} has changed since run {folder} began; undo that, or {anew}")
