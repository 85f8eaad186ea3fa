"""The demo: basic RKD and EDBL on scikit-learn's digits, with the same memory; RKD trains at least as long."""

from pathlib import Path
from typing import cast

from edbl.engine.progress import Progress
from edbl.engine.run import resume, run
from edbl.recipe import RECIPE, Recipe
from edbl.records import RECORD, Record
from edbl.rule import TaskFacts, epochs

LEAST_NEW = 284  # training images of two digits: with more, the rule gives fewer epochs


def recipes() -> list[Recipe]:
    """Return the demo's two recipes: RKD has as many epochs as the two phases of EDBL, at the rate of the rule."""
    digits = {"data.name": "digits"}
    edbl = Recipe.of(digits | {"method": "edbl"})
    balance = edbl.values()["options.balance.epochs"]
    longest = epochs(TaskFacts(new_images=LEAST_NEW, exemplars=50, old_classes=2, new_classes=2, size=8))
    return [Recipe.of(digits | {"method": "rkd", "schedule.epochs": longest + cast(int, balance)}), edbl]


def run_or_resume(recipe: Recipe, folder: Path, progress: Progress | None = None) -> Record:
    """Make one of the demo's runs, or go on with it where it was stopped."""
    if (folder / RECORD).exists() and Recipe.read(folder / RECIPE) == recipe:
        return resume(folder, progress=progress)
    return run(recipe, folder, progress=progress)


def free_folder(wanted: Path = Path("runs/demo")) -> Path:
    """Return ``wanted``, or the first of its name and a number that does not exist."""
    numbered = (wanted.with_name(f"{wanted.name}-{number}") for number in range(2, 10_000))
    return wanted if not wanted.exists() else next(path for path in numbered if not path.exists())
