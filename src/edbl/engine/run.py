"""One run, from recipe to record: every task learnt, evaluated and saved; killed at any moment, it can go on."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from edbl import records
from edbl.data import datasets
from edbl.engine.checkpoint import CHECKPOINTS, Checkpoints
from edbl.engine.evaluate import evaluate
from edbl.engine.folders import changed, default_folder, is_free, taken
from edbl.engine.learner import stopwatch
from edbl.engine.prepare import Prepared
from edbl.engine.progress import Progress
from edbl.errors import Diverged, EdblError
from edbl.recipe import HOW, RECIPE, Recipe
from edbl.records import Record
from edbl.store import lock, sweep, write_atomic


class Start(Protocol):
    """A first task that a run has in common with others, of which one learns it."""

    def take(self, run: Path) -> str | None:
        """Give the run in a folder what another learnt, and return the name of that one; None if there is nothing."""

    def keep(self, run: Path) -> None:
        """Let others have what the run in a folder learnt."""


def run(
    recipe: Recipe,
    out: Path | str | None = None,
    *,
    data_dir: Path | None = None,
    progress: Progress | None = None,
    start: Start | None = None,
) -> Record:
    """Run a recipe and return its record; ``out`` must not hold anything yet (default: ``runs/NAME``).

    ``start`` is a first task that it shares with others: what they learnt of it is taken, or else this run's is kept.
    """
    folder = Path(out) if out else default_folder(recipe)
    if folder.exists() and (not folder.is_dir() or not is_free(folder)):
        raise taken(folder)
    prepared = Prepared(recipe, data_dir, progress or Progress())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EdblError(f"cannot make output folder {folder}: {error.strerror}") from error
    with lock(folder):
        if not is_free(folder):  # another process was faster
            raise taken(folder)
        sweep(folder)
        write_atomic(folder / RECIPE, recipe.toml().encode())
        record = prepared.record()
        if start is not None:
            records.write(record, folder)  # a folder with checkpoints and no record would not be a run
            if learnt_by := start.take(folder):
                record.notes = [*record.notes, f"first task shared with {learnt_by}"]
                start = None
        return _learn_tasks(prepared, folder, record, start)


def resume(folder: Path | str, *, data_dir: Path | None = None, progress: Progress | None = None) -> Record:
    """Go on with a run that was stopped; a finished one is returned as it is."""
    folder = Path(folder)
    record = records.read(folder)
    if record.status != "done":
        with lock(folder):
            record = records.read(folder)  # another process may have gone on meanwhile
            if record.status != "done":
                prepared = _prepare_again(folder, record, data_dir, progress or Progress())
                sweep(folder)
                return _learn_tasks(prepared, folder, record)
    Checkpoints(folder / CHECKPOINTS).keep_last(len(record.task_sizes))  # a kill at its very end may have left some
    return record


def _prepare_again(folder: Path, record: Record, data_dir: Path | None, progress: Progress) -> Prepared:
    """Prepare to go on with a run, unless something is not as it was."""
    if record.data not in datasets.DATASETS and not datasets.is_folder(record.data):
        raise EdblError(f"the images of run {folder} are in '{record.data}', which is not here; go on where it began")
    prepared = Prepared(Recipe.read(folder / RECIPE), data_dir, progress)
    now = prepared.record()
    planned = json.loads(json.dumps(now.recipe))  # as a record has it
    if any(planned.get(key) != value for key, value in record.recipe.items() if key not in HOW):
        raise EdblError(f"{folder / RECIPE} has changed since the run began; undo that, or start a new run")
    if record.method_digest != now.method_digest:
        raise changed(folder, prepared.recipe)
    if record.data_fingerprint != now.data_fingerprint:
        raise EdblError(f"the images of {record.data} are not those that run {folder} began with; it cannot go on")
    record.notes = [*record.notes, *_changes(record, now)]
    return prepared


def _changes(record: Record, now: Record) -> list[str]:
    """Return notes on what goes on with a run and is not what had it last."""
    notes = []
    for by, first, here in (
        ("by commit", record.commit, now.commit),
        ("with", record.device, now.device),
        ("under", _listed(record.versions), _listed(now.versions)),
    ):
        told = [note.partition(f" on {by} ")[2] for note in record.notes if f" on {by} " in note]
        if (here or "unknown") != (told[-1] if told else first or "unknown"):
            notes.append(f"from task {len(record.seconds) + 1} on {by} {here or 'unknown'}")
    return notes


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _learn_tasks(prepared: Prepared, folder: Path, record: Record, start: Start | None = None) -> Record:
    """Learn all tasks that are not learnt yet: each is evaluated, and then the record and its state are written."""
    recipe, stream, learner = prepared.recipe, prepared.stream, prepared.learner
    checkpoints, progress, tasks = Checkpoints(folder / CHECKPOINTS), learner.progress, len(stream)
    first = _restore(prepared, folder, record, checkpoints)
    progress.say(f"run folder: {folder}")
    epochs = [learner.epochs(new=True, first=number == 0) for number in range(tasks)]
    progress.run(f"{record.method} on {Path(recipe.data.name).name}", epochs, first)
    try:
        for number in range(first, tasks):
            task = stream[number]
            timings, losses = learner.learn(task, checkpoints)
            if number == 0 and start is not None:
                start.keep(folder)
            progress.busy("evaluating")
            with stopwatch(timings, "evaluation"):
                matrices = evaluate(learner.method, stream.test(number), learner.transform, recipe.evaluation.nme_flips)
                for readout, matrix in matrices.items():
                    record.confusions[readout].append(matrix.cpu().numpy())
            record.timings.append(timings)
            record.losses.append(losses)
            record.seconds.append(sum(timings.values()))
            records.write(record, folder)
            checkpoints.save_task(number, learner.tensors())
            accuracy = "  ".join(f"{k.upper()} {v[-1]:6.1%}" for k, v in record.accuracy.items())
            about = f"task {number + 1}/{tasks}, {task.seen} classes"
            progress.say(f"{record.method}: {about}: {accuracy}  ({record.seconds[-1]:.1f} s)")
    except EdblError as error:
        raise _failed(error, folder, record, checkpoints) from error
    features, labels = prepared.sample_features()
    records.write_features(folder, features.numpy(), labels.numpy())
    record.status, record.message = "done", ""
    records.write(record, folder)
    checkpoints.keep_last(tasks)
    return record


def _restore(prepared: Prepared, folder: Path, record: Record, checkpoints: Checkpoints) -> int:
    """Bring back the newest state after a task, cut the record there, and return the next task."""
    found = checkpoints.newest_task(below=len(record.seconds))
    before, first = record.finished, 0
    if found:
        first = found[0] + 1
        prepared.learner.load(found[1], prepared.stream.sizes[:first])
    record.status, record.message = "running", ""
    for per_task in (record.seconds, record.timings, record.losses):
        del per_task[first:]
    record.confusions = {k: v[:first] for k, v in record.confusions.items()}
    records.write(record, folder, cut=first < before)
    return first


def _failed(error: EdblError, folder: Path, record: Record, checkpoints: Checkpoints) -> EdblError:
    """Write into the record why a run failed, and return the error that says where."""
    record.status, record.message = "failed", str(error)
    with suppress(EdblError):  # a full disk must not hide what happened
        records.write(record, folder)
    at = f"run {folder}, task {len(record.seconds) + 1} of {len(record.task_sizes)}"
    if isinstance(error, Diverged):  # to go on would lead to the same
        return Diverged(f"{error}, in a new run ({at})")
    kept = "; its last good checkpoint is kept" if checkpoints.names() else ""
    return EdblError(f"{error} ({at}{kept})")
