"""A search: trials by Optuna, each an ordinary run, by as many processes as work in its folder.

Trials are in the storage, and their runs below the folder. A process that asks for a trial, or for one that another
process left when it was killed, keeps the others out meanwhile: so each trial has one process, which has a lock of its
own for as long as it lives.
"""

import json
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from edbl.config import toml_value
from edbl.engine.prepare import code
from edbl.engine.progress import Progress
from edbl.errors import Diverged, EdblError
from edbl.logs.wandb import LINKED
from edbl.methods import find_method
from edbl.recipe import Recipe, find_recipe
from edbl.records import Record
from edbl.store import LOCK, delete, lock, refuse_links, turn
from edbl.text import count
from edbl.tuning import space as spaces
from edbl.tuning.space import SearchFile
from edbl.tuning.storage import ERROR, IDENTITY, JOURNAL, WORKER, asking, optuna, storage, trials_of
from edbl.tuning.trial import attempt

TRIALS, WORKERS = "trials", "workers"  # folders of runs, and of locks of processes
HOLDOUT = 0.2  # share of training images, if nobody says
MOST_FAILED = 3  # trials in a row, after which something else must be wrong


@dataclass(frozen=True)
class Plan:
    """What is searched: recipes with everything fixed but the settings of the space."""

    layer: Mapping[str, object]  # what is given
    file: str | None  # a recipe
    found: SearchFile

    @classmethod
    def of(cls, layer: Mapping[str, object], file: str | None = None, search: Path | None = None) -> "Plan":
        """Return the plan for what is given, beside a recipe file and a search file."""
        plan = cls(layer, file, SearchFile())
        method = plan.recipe({}).method
        found = spaces.read(search, method) if search is not None else SearchFile()
        declared = {} if found.space else spaces.declared(method)
        given = Recipe.checked(method, layer)
        plan = cls({**found.settings, **given}, file, replace(found, space=found.space or declared))
        if both := sorted(given.keys() & found.space.keys()):
            raise EdblError(f"{both[0]} is given, and the search file has it in its [space]; leave it out of one")
        narrowed = {key: where for key, where in plan.found.space.items() if key not in plan.layer}
        if not narrowed:
            raise EdblError("every setting that could be searched is given; leave one out")
        plan = replace(plan, found=replace(plan.found, space=narrowed))
        if not plan.recipe({}).data.holdout:
            if "data.holdout" in plan.layer:
                raise EdblError("a search measures on held-out training images, so data.holdout must be above 0")
            plan = replace(plan, layer={**plan.layer, "data.holdout": HOLDOUT})
        return plan

    def recipe(self, chosen: Mapping[str, object]) -> Recipe:
        """Return the recipe with what a trial has chosen."""
        layer = {**self.layer, **chosen}
        return Recipe.of(layer) if self.file is None else Recipe.read(find_recipe(self.file), layer)

    @property
    def classifier(self) -> str:
        """Whose accuracy counts."""
        return self.found.classifier or find_method(self.recipe({}).method).readout

    def identity(self) -> str:
        """Return all that two processes must have in common to work on one search."""
        base = self.recipe({})
        told = {
            "recipe": {k: v for k, v in base.values().items() if k not in ("device", "checkpoint_seconds")},
            "code": code(base),
            "space": {key: spaces.shown(where) for key, where in self.found.space.items()},
            "sampler": self.found.sampler,
            "pruner": self.found.pruner,
            "classifier": self.classifier,
        }
        return json.dumps(told, sort_keys=True)


class Tally(NamedTuple):
    """How many trials there are, by how they ended."""

    done: int
    pruned: int
    failed: int
    running: int

    @property
    def all(self) -> int:
        """All trials."""
        return sum(self)

    def __str__(self) -> str:
        """Return them for people."""
        told = [f"{self.done} to their end", f"{self.pruned} stopped early", f"{self.failed} failed"]
        return f"{count(self.all, 'trial')} ({', '.join([*told, *[f'{self.running} running'] * bool(self.running)])})"


class Searcher:
    """One process that works on a search."""

    def __init__(self, plan: Plan, folder: Path, url: str | None = None) -> None:
        self.plan, self.folder = plan, folder
        self.leaves = Recipe.keys(plan.recipe({}).method)
        self.worker = f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}"
        self.storage: Any
        self._failed = 0  # trials in a row
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EdblError(f"cannot make output folder {folder}: {error.strerror}") from error
        refuse_links(folder, but=LINKED)
        with asking(folder), turn(folder):
            self.storage = storage(folder, url)
            self.name = self._begin(shared=url is not None)

    def _begin(self, shared: bool) -> str:
        """Find the search in the storage, or begin it; return its name there."""
        identity = self.plan.identity()
        base = self.plan.recipe({})
        of_its_own = f"edbl-{base.method}-{uuid.uuid5(uuid.NAMESPACE_OID, identity).hex[:12]}"
        name = of_its_own if shared else "edbl"
        study = optuna().create_study(storage=self.storage, study_name=name, direction="maximize", load_if_exists=True)
        kept = study.user_attrs.get(IDENTITY)
        if kept is None:
            study.set_user_attr(IDENTITY, identity)
        elif kept != identity:
            raise EdblError(f"{self.folder} holds another search: {_difference(kept, identity)}; use another folder")
        if study.direction != optuna().study.StudyDirection.MAXIMIZE:
            raise EdblError(f"{self.folder} holds a search for the least accuracy; use another folder, or storage")
        return name

    def study(self, number: int = 0) -> Any:
        """Return Optuna's study, whose sampler draws what it draws for a trial of this number."""
        with asking(self.folder):
            module = optuna()
            base = self.plan.recipe({})
            sampler = _sampler(self.plan.found.sampler, (base.seed + 7919 * number) % 2**32)
            pruner = _pruner(self.plan.found.pruner)
            return module.load_study(study_name=self.name, storage=self.storage, sampler=sampler, pruner=pruner)

    def work(
        self,
        trials: int,
        progress: Callable[[], Any],
        say: Callable[[str], None],
        data_dir: Path | None = None,
        logged: Sequence[str] = (),
    ) -> None:
        """Make trials until there are so many in all, those of processes that were killed first."""
        with self.working():
            while (trial := self.next(trials)) is not None:
                with progress() as shown:
                    self._make(trial, shown, say, data_dir, logged)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Have a lock meanwhile, by which others see that the trials of this process are not left."""
        with ExitStack() as stack:
            with turn(self.folder):
                place = self.folder / WORKERS / self.worker
                place.mkdir(parents=True)
                stack.enter_context(lock(place))
            yield
        self._tidy()

    def _tidy(self) -> None:
        """Remove the locks of processes that are gone and left no trial."""
        with turn(self.folder):
            left = {trial.user_attrs.get(WORKER) for trial in self.trials() if trial.state.name == "RUNNING"}
            for place in sorted((self.folder / WORKERS).iterdir()):
                if place.name not in left and _is_free(place):
                    with suppress(OSError):  # it holds more, which is nobody's business
                        delete(place, [LOCK])
                        os.rmdir(place)

    def next(self, trials: int) -> Any:
        """Return the next trial for this process, of a killed one or a new one; None if there are so many already."""
        with asking(self.folder), turn(self.folder):
            module, study = optuna(), self.study()
            there = trials_of(study, self.folder)
            for one in there:
                running = one.state == module.trial.TrialState.RUNNING
                if running and one.number < trials and self._is_left(one):
                    trial = module.trial.Trial(study, one._trial_id)
                    break
            else:
                if len(there) >= trials:
                    return None
                study = self.study(len(there))
                trial = study.ask()
            trial.set_user_attr(WORKER, self.worker)
            self._chosen(trial)
            return trial

    def _is_left(self, trial: Any) -> bool:
        """Tell whether the process of a running trial is gone: it worked here, and its lock is free."""
        worker = trial.user_attrs.get(WORKER)
        if worker is None:  # killed before it was told; a database may be shared with processes elsewhere
            return (self.folder / JOURNAL).is_dir()
        return _is_free(self.folder / WORKERS / Path(str(worker)).name)

    def _chosen(self, trial: Any) -> dict[str, object]:
        """Return what a trial has chosen, which it does once."""
        space = self.plan.found.space
        return {key: spaces.suggest(trial, key, where, self.leaves[key]) for key, where in space.items()}

    def _make(
        self, trial: Any, progress: Progress, say: Callable[[str], None], data_dir: Path | None, logged: Sequence[str]
    ) -> None:
        """Make the run of a trial and tell the storage."""
        folder, goes_on = folder_of(self.folder, trial.number), partial(self.goes_on, trial)
        try:
            values = self.begin(trial, say).values()
            record = attempt(values, folder, self.plan.classifier, goes_on, data_dir, progress, logged)
        except EdblError as error:
            self.failed(trial, error, say)
        else:
            self.ended(trial, record, say)

    def begin(self, trial: Any, say: Callable[[str], None]) -> Recipe:
        """Say what a trial has chosen, and return its recipe."""
        with asking(self.folder):
            chosen = self._chosen(trial)
        say(f"trial {trial.number}: {', '.join(f'{k} = {short(v)}' for k, v in chosen.items())}")
        return self.plan.recipe(chosen)

    def goes_on(self, trial: Any, task: int, average: float) -> bool:
        """Tell the storage of a trial's average so far after a task, and return whether the trial goes on."""
        with asking(self.folder):
            trial.report(average, task)  # once: what is there stays
            return not trial.should_prune()

    def failed(self, trial: Any, error: EdblError, say: Callable[[str], None]) -> None:
        """Tell the storage of a trial that failed; of too many in a row, something else must be wrong."""
        with asking(self.folder):
            trial.set_user_attr(ERROR, str(error))
            self.study().tell(trial.number, state=optuna().trial.TrialState.FAIL)
        say(f"trial {trial.number} failed: {error}")
        self._failed = 0 if isinstance(error, Diverged) else self._failed + 1
        if self._failed == MOST_FAILED:
            raise EdblError(f"{self._failed} trials in a row failed; the last one: {error}")

    def ended(self, trial: Any, record: Record, say: Callable[[str], None]) -> None:
        """Tell the storage of a trial that came to its end, or was stopped early."""
        value = record.average_incremental_accuracy[self.plan.classifier]
        with asking(self.folder):
            if record.status == "done":
                self.study().tell(trial.number, value)
            else:
                self.study().tell(trial.number, state=optuna().trial.TrialState.PRUNED)
        after = "" if record.status == "done" else f", stopped after {count(record.finished, 'task')}"
        say(f"trial {trial.number}: {100 * value:.2f}%{after}")
        self._failed = 0

    def trials(self) -> list[Any]:
        """Return all trials, as Optuna has them."""
        with asking(self.folder):
            found = trials_of(self.study(), self.folder)
            for trial in found:
                self.values(trial)
        return found

    def tally(self) -> Tally:
        """Return how many trials there are."""
        states = [trial.state.name for trial in self.trials()]
        return Tally(*(states.count(name) for name in ("COMPLETE", "PRUNED", "FAIL", "RUNNING")))

    def best(self) -> Any | None:
        """Return the best trial, the first of equals, if one came to its end."""
        done = [trial for trial in self.trials() if trial.state.name == "COMPLETE"]
        return max(done, key=lambda trial: (trial.value, -trial.number), default=None)

    def values(self, trial: Any) -> dict[str, object]:
        """Return what a trial chose, as its settings have it."""
        space, found = self.plan.found.space, {}
        for key, value in trial.params.items():
            try:
                where = space[key]
                found[key] = {toml_value(v): v for v in where.among}[value] if where.among else value
                slack = 1e-9 * (abs(where.low) + abs(where.high))  # a logarithm and back may lead beyond an end
                if not where.among and not where.low - slack <= value <= where.high + slack:
                    raise ValueError
            except (LookupError, TypeError, ValueError) as error:
                raise EdblError(
                    f"trial {trial.number} of {self.folder} chose what is not searched: {key[:99]}"
                ) from error
        return found

    def sentence(self) -> str:
        """Return how the best recipe was chosen: what a fair comparison has to state."""
        base = self.plan.recipe({})
        return (
            f"Chosen from {self.tally()} of {base.method} on {Path(base.data.name).name} by the average incremental "
            f"accuracy ({self.plan.classifier}) on {base.data.holdout:.0%} of the training images, held out, with seed "
            f"{base.seed}; no test image was looked at."
        )


def _is_free(place: Path) -> bool:
    """Tell whether the folder of a process is there and its lock is free."""
    if not place.is_dir():
        return False
    try:
        with lock(place):
            return True
    except EdblError:
        return False


def folder_of(search: Path, number: int) -> Path:
    """Return the folder of a trial's run."""
    return search / TRIALS / f"{number:04d}"


def short(value: object) -> str:
    """Return a value that was chosen, for people."""
    return f"{value:.4g}" if isinstance(value, float) else toml_value(value)


def average_so_far(trial: Any) -> list[float]:
    """Return the averages that a trial told, task by task."""
    return [trial.intermediate_values[task] for task in sorted(trial.intermediate_values)]


def _sampler(name: str, seed: int) -> Any:
    samplers = optuna().samplers
    if name == "random":
        return samplers.RandomSampler(seed=seed)
    if name == "gp":
        return samplers.GPSampler(seed=seed)
    return samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)


def _pruner(name: str) -> Any:
    """Return what stops trials; the first task, which many trials learn alike, stops none."""
    pruners = optuna().pruners
    if name == "median":
        return pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=1)
    if name == "halving":
        return pruners.SuccessiveHalvingPruner()
    if name == "hyperband":
        return pruners.HyperbandPruner()
    return pruners.NopPruner()


def _difference(one: str, other: str) -> str:
    """Return the first thing in which two searches differ."""
    try:
        pair = [_flat(json.loads(text)) for text in (one, other)]
    except (ValueError, AttributeError, RecursionError):  # not what a search writes
        return "nobody can tell of what"
    for key in sorted({*pair[0], *pair[1]}):
        values = [found.get(key, "nothing") for found in pair]
        if values[0] != values[1]:
            return f"its {key.partition('.')[2] or key} is {values[0]}, not {values[1]}"
    return "it is of another kind"


def _flat(tree: Mapping[str, object]) -> dict[str, object]:
    return {
        f"{part}.{key}" if isinstance(inner, dict) else part: value
        for part, inner in tree.items()
        for key, value in (inner.items() if isinstance(inner, dict) else [("", inner)])
    }
