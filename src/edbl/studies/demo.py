"""The demo: basic RKD and EDBL on scikit-learn's digits, with the same memory; RKD trains at least as long."""

from pathlib import Path

from edbl.config import flatten
from edbl.engine.progress import Progress
from edbl.engine.run import resume, run
from edbl.methods.edbl import EDBL
from edbl.recipe import RECIPE, Recipe
from edbl.records import RECORD, Record


def recipes() -> list[Recipe]:
    """Return the demo's two recipes."""
    edbl = Recipe.build("edbl", data="digits")
    assert isinstance(edbl.options, EDBL.Config)
    epochs = edbl.schedule.epochs + edbl.options.balance.epochs
    return [
        Recipe.of({"method": "rkd", "data.name": "digits"} | flatten(edbl.schedule.scaled(epochs), "schedule.")),
        edbl,
    ]


def run_or_resume(recipe: Recipe, folder: Path, progress: Progress | None = None) -> Record:
    """Make one of the demo's runs, or go on with it where it was stopped."""
    if (folder / RECORD).exists() and Recipe.read(folder / RECIPE) == recipe:
        return resume(folder, progress=progress)
    return run(recipe, folder, progress=progress)


def free_folder(wanted: Path = Path("runs/demo")) -> Path:
    """Return ``wanted``, or the first of its name and a number that does not exist."""
    numbered = (wanted.with_name(f"{wanted.name}-{number}") for number in range(2, 10_000))
    return wanted if not wanted.exists() else next(path for path in numbered if not path.exists())
