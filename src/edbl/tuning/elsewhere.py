"""Trials on a cluster: each is a run of a list that grows for as long as trials are wanted.

The process that searches asks for settings, has each trial made as `edbl.fleet.dispatch` makes any run, and hears of
each task by the record that comes back. A trial that is not worth its time is stopped there, and its folder is what it
would be here.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from edbl import records
from edbl.errors import Busy, Crashed, EdblError
from edbl.fleet.board import Board
from edbl.fleet.cluster import Cluster
from edbl.fleet.dispatch import Hand
from edbl.fleet.jobs import Job, Lost
from edbl.tuning.search import Searcher, folder_of
from edbl.tuning.trial import average_of


class Trials:
    """The trials of a search, as a source of runs by number."""

    limit = None
    left = ()  # a trial is asked for when there is room for its run

    def __init__(self, search: Searcher, wanted: int, say: Callable[[str], None]) -> None:
        self.search, self.wanted, self.say = search, wanted, say
        self.jobs: dict[int, Job] = {}
        self._trials: dict[int, Any] = {}  # of Optuna, by number
        self._heard: dict[int, int] = {}  # tasks of which the storage was told

    def next(self) -> tuple[int, None] | None:
        """Return a trial that may begin now."""
        while (trial := self.search.next(self.wanted)) is not None:
            self._trials[trial.number], self._heard[trial.number] = trial, 0
            try:
                recipe = self.search.begin(trial, self.say)
            except EdblError as error:
                self.search.failed(trial, error, self.say)
            else:
                self.jobs[trial.number] = Job(recipe, folder_of(self.search.folder, trial.number))
                return trial.number, None
        return None

    def why(self, place: int) -> str:
        """Return nothing: none is known before it begins."""
        return ""

    def goes_on(self, place: int) -> bool:
        """Tell the storage of the tasks that a trial has learnt, and return whether it goes on."""
        record, classifier = records.read(self.jobs[place].folder), self.search.plan.classifier
        for task in range(self._heard[place], record.finished):
            cut = {name: found[: task + 1] for name, found in record.confusions.items()}
            average = average_of(classifier, replace(record, confusions=cut).average_incremental_accuracy)
            goes_on = self.search.goes_on(self._trials[place], task, average)
            self._heard[place] = task + 1
            if not goes_on and task + 1 < len(record.task_sizes):
                return False
        return True

    def ended(self, place: int) -> None:
        """Do nothing: no other trial waits for it."""

    def over(self, place: int, error: BaseException | None) -> str:
        """Tell the storage how a trial ended; raise what is no fault of the trial, which is left to the next command.

        Return why it was stopped early, or failed.
        """
        if error is None:
            self.goes_on(place)  # of what came before this process did
            record = records.read(self.jobs[place].folder)
            self.search.ended(self._trials[place], record, self.say)
            return "" if record.status == "done" else "stopped early"
        if not isinstance(error, EdblError) or isinstance(error, Lost | Busy | Crashed):
            raise error
        self.search.failed(self._trials[place], error, self.say)
        return str(error)


def work_on(
    search: Searcher,
    cluster: Cluster,
    wanted: int,
    at_once: int | None,
    console: Console,
    data_dir: Path | None = None,
    logged: Sequence[str] = (),
) -> None:
    """Make trials on a cluster until there are so many in all, those of processes that were killed first."""
    room = at_once or cluster.room(search.plan.recipe({}).device)
    trials = Trials(search, wanted, cluster.say)
    with search.working(), Board(console, [f"trial {number}" for number in range(wanted)]) as board:
        for trial in search.trials():
            if trial.state.name != "RUNNING" and trial.number < wanted:
                board.end(trial.number, "failed" if trial.state.name == "FAIL" else "done")
        for place, error in Hand(cluster, trials.jobs, trials, board, data_dir, logged).ends(room):
            why = trials.over(place, error)
            board.end(place, "failed" if error else "done", why)
