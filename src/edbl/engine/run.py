"""One run, from recipe to record: every task learnt, evaluated and saved; killed at any moment, it can go on."""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from edbl import records
from edbl.data import datasets
from edbl.data.images import Dataset
from edbl.data.stream import Stream, Task, class_order, find_classes, hold_out, task_sizes
from edbl.engine import environment, starts
from edbl.engine.checkpoint import CHECKPOINTS, Checkpoints, Saved
from edbl.engine.evaluate import evaluate
from edbl.engine.learner import Learner, stopwatch
from edbl.engine.progress import Progress
from edbl.errors import Diverged, EdblError, command
from edbl.memory import Budget
from edbl.recipe import HOW, RECIPE, Recipe, StreamSettings
from edbl.records import Record
from edbl.store import LOCK, TEMPORARY, lock, sweep, write_atomic

FEATURES_KEPT = 1000  # test images whose features a run keeps for the report's map


def run(
    recipe: Recipe,
    out: Path | str | None = None,
    *,
    data_dir: Path | None = None,
    progress: Progress | None = None,
    start: starts.Start | None = None,
) -> Record:
    """Run a recipe and return its record; ``out`` must not hold anything yet (default: ``runs/NAME``).

    ``start`` is a first task that it shares with others: what they learnt of it is taken, or else this run's is kept.
    """
    folder = Path(out) if out else default_folder(recipe)
    if folder.exists() and (not folder.is_dir() or not is_free(folder)):
        raise _taken(folder)
    session = _Session(recipe, data_dir, progress or Progress())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EdblError(f"cannot make output folder {folder}: {error.strerror}") from error
    with lock(folder):
        if not is_free(folder):  # another process was faster
            raise _taken(folder)
        sweep(folder)
        write_atomic(folder / RECIPE, recipe.toml().encode())
        record = session.new_record()
        if start is not None:
            records.write(record, folder)  # a folder with checkpoints and no record would not be a run
            if starts.take(start, folder):
                record.notes = [*record.notes, f"first task shared with {start.run}"]
            else:
                session.start = start
        return session.go(folder, record)


def resume(folder: Path | str, *, data_dir: Path | None = None, progress: Progress | None = None) -> Record:
    """Go on with a run that was stopped; a finished one is returned as it is."""
    folder = Path(folder)
    record = records.read(folder)
    if record.status != "done":
        with lock(folder):
            record = records.read(folder)  # another process may have gone on meanwhile
            if record.status != "done":
                return _go_on(folder, record, data_dir, progress or Progress())
    _tidy(Checkpoints(folder / CHECKPOINTS), record)  # a kill at its very end may have left some
    return record


def _go_on(folder: Path, record: Record, data_dir: Path | None, progress: Progress) -> Record:
    """Go on with a run that is locked, unless something is not as it was."""
    if record.data not in datasets.DATASETS and not datasets.is_folder(record.data):
        raise EdblError(f"the images of run {folder} are in '{record.data}', which is not here; go on where it began")
    session = _Session(Recipe.read(folder / RECIPE), data_dir, progress)
    planned = json.loads(json.dumps(session.recipe.values()))  # as a record has it
    if any(planned.get(key) != value for key, value in record.recipe.items() if key not in HOW):
        raise EdblError(f"{folder / RECIPE} has changed since the run began; undo that, or start a new run")
    if record.method_digest != session.method_digest:
        raise changed(folder, session.recipe)
    if record.data_fingerprint != session.fingerprint:
        raise EdblError(f"the images of {record.data} are not those that run {folder} began with; it cannot go on")
    record.notes = [*record.notes, *_changes(record, session.new_record())]
    sweep(folder)
    return session.go(folder, record)


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


def _tidy(checkpoints: Checkpoints, done: Record) -> None:
    """Of a run that is done, keep the state after the last task alone."""
    checkpoints.forget(set(checkpoints.names()) - {f"task-{len(done.task_sizes) - 1}"})


def _taken(folder: Path) -> EdblError:
    instead = f"{command('resume', folder)} or " if (folder / records.RECORD).exists() else ""
    return EdblError(f"output folder {folder} exists already; use {instead}another --out")


def is_free(folder: Path) -> bool:
    """Tell whether a run may start in ``folder``: it holds nothing but what one killed before its record left."""
    names = {path.name for path in folder.iterdir() if not TEMPORARY.fullmatch(path.name)}
    return not names or (LOCK in names and names <= {LOCK, RECIPE, records.CONFUSIONS})


def default_folder(recipe: Recipe) -> Path:
    """Return the folder of a run that was given none: named after what most recipes differ in."""
    short = hashlib.sha256(recipe.toml().encode()).hexdigest()[:6]
    data = Path(recipe.data.name).name or "folder"
    phases = [str(recipe.stream.phases)] if recipe.stream.phased else []
    parts = [Path(recipe.method).stem, data, recipe.stream.protocol, *phases, f"seed{recipe.seed}", short]
    return Path("runs") / "-".join(parts)


def plan(stream: StreamSettings, names: tuple[str, ...]) -> tuple[list[int], list[int]]:
    """Return the class order and the size of each task."""
    if stream.protocol == "tasks":
        if not stream.tasks or not all(stream.tasks):
            raise EdblError("protocol tasks needs stream.tasks, a list of tasks with at least one class each")
        return find_classes([c for task in stream.tasks for c in task], names), [len(task) for task in stream.tasks]
    sizes = task_sizes(len(names), stream.protocol, stream.phases, stream.base, stream.step)
    return class_order(stream.order, names), sizes


class _Session:
    """A recipe with its data loaded and its learner made: all that can fail early has not."""

    start: starts.Start | None = None  # where to keep the first task for others

    def __init__(self, recipe: Recipe, data_dir: Path | None, progress: Progress) -> None:
        self.recipe = recipe
        self.progress = progress
        device = environment.pick_device(recipe.device)
        settings = recipe.data
        dataset = datasets.load(settings.name, data_dir, image_size=settings.image_size, skip_bad=settings.skip_bad)
        if settings.holdout:
            dataset = hold_out(dataset, settings.holdout, recipe.seed)
        self.notes = list(dataset.notes)
        self.fingerprint = fingerprint(dataset)
        order, sizes = plan(recipe.stream, dataset.classes)
        Budget.parse(recipe.memory).check(len(order))
        self.stream = Stream(dataset, order, sizes, device)
        shape = dataset.train.x.shape[1:]
        if len(shape) == 3:
            settings.check(shape[0])
        self.transform = settings.transform(device)
        self.method_digest = method_digest(recipe)
        self.learner = Learner(recipe, shape, self.transform, device, progress)
        self.method = self.learner.method

    def new_record(self) -> Record:
        recipe = self.recipe
        return Record(
            method=self.method.name,
            data=recipe.data.name,
            protocol=recipe.stream.protocol,
            phases=recipe.stream.phases if recipe.stream.phased else len(self.stream),
            memory=recipe.memory,
            order=recipe.stream.order if isinstance(recipe.stream.order, str) else "list",
            seed=recipe.seed,
            recipe=recipe.values(),
            classes=list(self.stream.classes),
            task_sizes=list(self.stream.sizes),
            commit=environment.commit(),
            versions=environment.versions(),
            device=environment.describe(self.learner.device),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            method_digest=self.method_digest,
            data_fingerprint=self.fingerprint,
            our_reading=self.method.our_reading,
            notes=self.notes,
        )

    def go(self, folder: Path, record: Record) -> Record:
        """Learn all tasks that are not learnt yet."""
        checkpoints = Checkpoints(folder / CHECKPOINTS)
        before, first = record.finished, self.restore(checkpoints, record)
        records.write(record, folder, cut=first < before)
        planned = [self.method.epochs(first=t == 0) for t in range(len(self.stream))]
        title = f"{self.method.name} on {Path(self.recipe.data.name).name}"
        self.progress.say(f"run folder: {folder}")
        self.progress.run(title, len(self.stream), sum(planned), sum(planned[:first]))
        try:
            for index in range(first, len(self.stream)):
                self.learn(self.stream[index], folder, record, checkpoints)
        except EdblError as error:
            record.status, record.message = "failed", str(error)
            with suppress(EdblError):  # a full disk must not hide what happened
                records.write(record, folder)
            at = f"run {folder}, task {len(record.seconds) + 1} of {len(self.stream)}"
            if isinstance(error, Diverged):  # to go on would lead to the same
                raise Diverged(f"{error}, in a new run ({at})") from error
            kept = "; its last good checkpoint is kept" if checkpoints.names() else ""
            raise EdblError(f"{error} ({at}{kept})") from error
        features, labels = self.sample_features()
        records.write_features(folder, features.numpy(), labels.numpy())
        record.status, record.message = "done", ""
        records.write(record, folder)
        _tidy(checkpoints, record)
        return record

    def restore(self, checkpoints: Checkpoints, record: Record) -> int:
        """Bring back the newest state after a task, cut the record there, and return the next task."""
        found = checkpoints.newest_task(below=len(record.seconds))
        first = 0
        if found:
            first = found[0] + 1
            self.learner.load(found[1], self.stream.sizes[:first])
        record.status, record.message = "running", ""
        for per_task in (record.seconds, record.timings, record.losses):
            del per_task[first:]
        record.confusions = {k: v[:first] for k, v in record.confusions.items()}
        return first

    def learn(self, task: Task, folder: Path, record: Record, checkpoints: Checkpoints) -> None:
        """Learn one task, evaluate it, and save record and state."""
        t = task.index
        timings, losses = self.learner.learn(task, checkpoints)
        if t == 0 and self.start is not None:
            starts.keep(folder, self.start)
        self.progress.busy("evaluating")
        with stopwatch(timings, "evaluation"):
            matrices = evaluate(self.method, task.test, self.transform, self.recipe.evaluation.nme_flips)
            for readout, matrix in matrices.items():
                record.confusions[readout].append(matrix.cpu().numpy())
        record.timings.append(timings)
        record.losses.append(losses)
        record.seconds.append(sum(timings.values()))
        records.write(record, folder)
        checkpoints.save(f"task-{t}", Saved(self.learner.tensors(), {}))
        # Should this state be damaged, the run goes on from the last task's state and this task's finished phases.
        kept = re.compile(rf"task-{t - 1}|task-{t}(-phase-\d+)?")
        checkpoints.forget(name for name in checkpoints.names() if not kept.fullmatch(name))
        accuracy = "  ".join(f"{k.upper()} {v[-1]:6.1%}" for k, v in record.accuracy.items())
        self.progress.say(
            f"{self.method.name}: task {t + 1}/{len(self.stream)}, {task.seen} classes: {accuracy}"
            f"  ({record.seconds[-1]:.1f} s)"
        )

    def sample_features(self) -> tuple[Tensor, Tensor]:
        """Return features and labels of some test images, evenly from all classes."""
        test = self.stream[len(self.stream) - 1].test
        each = max(1, FEATURES_KEPT // len(self.stream.classes))
        chosen = torch.cat([(test.y == k).nonzero().squeeze(1)[:each] for k in range(len(self.stream.classes))])
        return self.learner.features(test[chosen]).cpu(), test.y[chosen].cpu()


def method_digest(recipe: Recipe) -> str:
    """Return a digest of the file of a user's own method, or nothing."""
    return hashlib.sha256(Path(recipe.method).read_bytes()).hexdigest() if recipe.method.endswith(".py") else ""


def changed(folder: Path, recipe: Recipe) -> EdblError:
    """Return the error for a run whose method file is not what it was."""
    anew = f"remove {folder} to begin it anew"
    return EdblError(f"{recipe.method} has changed since run {folder} began; undo that, or {anew}")


def fingerprint(dataset: Dataset) -> str:
    """Return a short digest of all images and labels."""
    digest = hashlib.blake2b(digest_size=16)
    for images in (dataset.train, dataset.test):
        digest.update(images.x.contiguous().numpy().data)
        digest.update(images.y.contiguous().numpy().data)
    return digest.hexdigest()
