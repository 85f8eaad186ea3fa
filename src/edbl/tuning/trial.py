"""One trial: a run of a recipe that somebody may stop after any task; a plain function, wherever it is called."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from edbl import records
from edbl.engine.callbacks import Callback, Stop, TaskEnd
from edbl.engine.folders import is_done
from edbl.engine.progress import Progress
from edbl.engine.run import resume, run
from edbl.errors import unknown
from edbl.logs import logs
from edbl.recipe import Recipe
from edbl.records import Record


class Reporter(Callback):
    """Tells the average accuracy so far after each task, and stops the run if the answer is no."""

    def __init__(self, goes_on: Callable[[int, float], bool], classifier: str) -> None:
        self.goes_on, self.classifier = goes_on, classifier

    def on_task(self, task: TaskEnd) -> None:
        """Tell of a task."""
        goes_on = self.goes_on(task.task, average_of(self.classifier, task.average))
        if not goes_on and task.task + 1 < task.run.tasks:
            raise Stop


def average_of(classifier: str, averages: Mapping[str, float]) -> float:
    """Return the average of a classifier, if the method has it."""
    if classifier not in averages:
        raise unknown("classifier", classifier, averages)
    return averages[classifier]


def attempt(
    values: Mapping[str, object],
    folder: Path,
    classifier: str,
    goes_on: Callable[[int, float], bool],
    data_dir: Path | None = None,
    progress: Progress | None = None,
    logged: Sequence[str] = (),
) -> Record:
    """Make the run of a recipe's values in a folder, or go on with it, and return its record, whole or not.

    ``goes_on`` is called with each task's number and the average accuracy so far; a run that does not go on ends.
    """
    recipe = Recipe.of(values)
    callbacks: list[Callback] = [*logs(logged), Reporter(goes_on, classifier)]
    is_done(folder, recipe, "use another folder for the search")  # or something else that is there, and stays
    if (folder / records.RECORD).exists():
        return resume(folder, data_dir=data_dir, progress=progress, callbacks=callbacks)
    return run(recipe, folder, data_dir=data_dir, progress=progress, callbacks=callbacks)
