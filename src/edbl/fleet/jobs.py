"""A run of a list: its recipe, its folder, and how it is made or goes on."""

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import NamedTuple

from edbl import group, records
from edbl.engine.callbacks import Callback
from edbl.engine.folders import Taken, default_folder, plain, runs_in
from edbl.engine.progress import Progress
from edbl.engine.run import resume, run
from edbl.errors import EdblError
from edbl.fleet import starts
from edbl.logs.wandb import LINKED
from edbl.recipe import RECIPE, Recipe
from edbl.store import refuse_links

TRIES = 3  # times that runs begin or go on, while processes are killed
SHARING = 6  # runs that share a GPU

Ended = Generator[tuple[int, BaseException | None]]  # runs by number as they end, each with what it failed of


class Lost(EdblError):
    """No worker could make a run, or go on with it; nothing is wrong with the run, which can continue."""


class Stopped(RuntimeError):
    """The time was over before the run was."""


class Job(NamedTuple):
    """A run to make, and where it goes."""

    recipe: Recipe
    folder: Path


def make(
    job: Job,
    data_dir: Path | None,
    progress: Progress,
    start: starts.Start | None = None,
    callbacks: Sequence[Callback] = (),
) -> None:
    """Make a run, or go on with it where it was begun."""
    with group.joined(job.recipe.device):
        if not group.told((job.folder / records.RECORD).exists()):
            try:
                run(job.recipe, job.folder, data_dir=data_dir, progress=progress, callbacks=callbacks, start=start)
                return
            except Taken:
                if not (job.folder / records.RECORD).exists():
                    raise
                # Another process was faster.
        resume(job.folder, data_dir=data_dir, progress=progress, callbacks=callbacks)


def jobs_of(recipes: Sequence[Recipe], out: Path | None = None) -> list[Job]:
    """Return where each run goes: below ``out``, by method and seed, or a place of its own where that is not given.

    One alone goes to ``out`` itself, unless that has runs below it. If ``out`` is the folder of one of several, that
    one stays there, and the others go below it. A link below it is refused: it would lead runs out of it.
    """
    if out and (len(recipes) > 1 or runs_in(out)):
        refuse_links(out, but=LINKED)
    own = Recipe.read(out / RECIPE) if out and len(recipes) > 1 and (out / records.RECORD).exists() else None
    if own and own not in recipes:
        raise EdblError(f"output folder {out} is that of one run, none of these; use another one for several")
    if out and len(recipes) == 1 and not runs_in(out):
        return [Job(recipes[0], out)]
    names = [f"{plain(Path(recipe.method).stem)}-seed{recipe.seed}" for recipe in recipes]
    pairs = zip(recipes, names, strict=True)
    below = [(recipe, out if recipe == own else out and out / name) for recipe, name in pairs]
    jobs = [Job(recipe, place or default_folder(recipe)) for recipe, place in below]
    if len({job.folder for job in jobs}) < len(jobs):
        raise EdblError("two methods have the same name, or one is named twice; each needs a folder of its own")
    return jobs


def names(jobs: Sequence[Job]) -> list[str]:
    """Return short names that tell runs apart."""
    parts = 1 if len({job.folder.parent for job in jobs}) == 1 else 2
    return [str(Path(*job.folder.parts[-parts:])) for job in jobs]
