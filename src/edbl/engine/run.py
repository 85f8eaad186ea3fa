"""One run, from recipe to record: every task learnt, evaluated and saved; killed at any moment, it can go on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from edbl import group, records, users
from edbl.data import datasets
from edbl.data.images import Dataset
from edbl.engine import environment
from edbl.engine.callbacks import Callback, Facts, Listeners, Teller
from edbl.engine.checkpoint import CHECKPOINTS, Checkpoints, Shared
from edbl.engine.evaluate import accuracy_within, evaluate
from edbl.engine.finished import check_finished
from edbl.engine.fit import Watch
from edbl.engine.folders import changed_since, default_folder, is_free, taken
from edbl.engine.learner import stopwatch
from edbl.engine.prepare import Prepared, with_objects
from edbl.engine.progress import Progress
from edbl.errors import Diverged, EdblError, Unnamed, command, happened
from edbl.methods.base import Method
from edbl.nets import named
from edbl.recipe import HOW, RECIPE, Recipe, flat, given_method, without_dropped
from edbl.records import Record
from edbl.store import lock, sweep, write_atomic

# What a record says that follows from the recipe and the data.
OF_RECIPE = ("method", "data", "protocol", "phases", "memory", "order", "seed", "classes", "task_sizes", "our_reading")


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
    callbacks: Sequence[Callback] = (),
    start: Start | None = None,
    data: object = None,
    backbone: object = None,
    method: type[Method] | None = None,
    stream: object = None,
) -> Record:
    """Run a recipe and return its record; ``out`` must not hold anything yet (default: ``runs/NAME``).

    Objects win over what the recipe names. ``data``, for a recipe whose data set is ``given``, is a `Dataset`, arrays
    or tensors ``(X, y, X_test, y_test)``, or ``(train, test)`` that give images and labels by number. ``backbone`` is a
    module, which keeps its weights, or what makes one, and ``method`` a class. ``stream`` has the numbers of each
    task's training images, or is a function that makes them of all labels. ``start`` is a first task that it shares
    with others: what they learnt of it is taken, or else this run's is kept. ``callbacks`` are told of epochs, of tasks
    and of the end.
    """
    recipe, dataset = with_objects(recipe, data, backbone, method, stream)
    folder = Path(out) if out else default_folder(recipe)
    with group.joined(recipe.device):
        if group.leads():
            return _begin(recipe, folder, data_dir, Listeners(progress, callbacks), dataset, start)
        listeners = Listeners(None, ())
        prepared = Prepared(recipe, data_dir, listeners, dataset)
        return _learn_tasks(prepared, folder, prepared.record(), listeners)


def _begin(
    recipe: Recipe,
    folder: Path,
    data_dir: Path | None,
    listeners: Listeners,
    dataset: Dataset | None,
    start: Start | None,
) -> Record:
    """Make a run in a folder that does not hold anything yet."""
    if folder.exists() and (not folder.is_dir() or not is_free(folder)):
        raise taken(folder)
    prepared = Prepared(recipe, data_dir, listeners, dataset)
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
        return _learn_tasks(prepared, folder, record, listeners, start)


def resume(
    folder: Path | str,
    *,
    data_dir: Path | None = None,
    progress: Progress | None = None,
    callbacks: Sequence[Callback] = (),
    data: object = None,
    backbone: object = None,
    method: type[Method] | Path | str | None = None,
    stream: object = None,
    changed: bool = False,
) -> Record:
    """Continue a run that was stopped; a finished one is returned as it is.

    What `run` was given as an object is given again, and so are callbacks. A file with code, such as ``mine.py:make``,
    is named again: it runs, and a folder may come from anywhere. With ``changed``, code of users may have changed.
    """
    folder = Path(folder)
    given = {"data": data, "backbone": backbone, "method": method, "stream": stream}
    files = users.files({key: str(x) for key, word in users.KEYS.items() if isinstance(x := given[word], str | Path)})
    users.trust(files)
    objects = {word: given[word] for key, word in users.KEYS.items() if key not in files}
    record = records.read(folder)
    if record.status != "done":
        with group.joined(str(flat(record.recipe).get("device"))), lock(folder) if group.leads() else nullcontext():
            record = records.read(folder)  # another process may have gone on meanwhile
            if group.told(record.status) != "done":
                listeners = Listeners(progress, callbacks) if group.leads() else Listeners(None, ())
                prepared = _prepare_again(folder, record, data_dir, listeners, objects, changed)
                if group.leads():
                    sweep(folder)
                return _learn_tasks(prepared, folder, record, listeners)
    check_finished(folder, record, data_dir)
    if any(one is not None for one in objects.values()):
        _same_objects(folder, record, objects, changed)
    Checkpoints(folder / CHECKPOINTS).keep_last(len(record.task_sizes))  # a kill at its very end may have left some
    return record


def _prepare_again(
    folder: Path,
    record: Record,
    data_dir: Path | None,
    progress: Progress,
    objects: Mapping[str, object],
    may_change: bool,
) -> Prepared:
    """Prepare to go on with a run, unless something is not as it was."""
    recipe, dataset = _same_objects(folder, record, objects, may_change)
    prepared = Prepared(recipe, data_dir, progress, dataset)
    now = prepared.record()
    planned = json.loads(json.dumps(now.recipe))  # as a record has it
    began = without_dropped(record.recipe, planned)
    if any(planned.get(key) != value for key, value in began.items() if key not in HOW):
        raise EdblError(f"{folder / RECIPE} has changed since the run began; undo that, or start a new run")
    record.notes = [*record.notes, *_changed_code(folder, record, now, may_change)]
    if odd := [name for name in OF_RECIPE if getattr(record, name) != getattr(now, name)]:
        raise EdblError(f"the record of run {folder} is not that of its recipe: {odd[0]} is another; it cannot go on")
    if record.data_fingerprint != now.data_fingerprint:
        raise EdblError(f"the images of {record.data} are not those that run {folder} began with; it cannot go on")
    record.notes = [*record.notes, *_changes(record, now)]
    return prepared


def _same_objects(
    folder: Path, record: Record, objects: Mapping[str, object], may_change: bool
) -> tuple[Recipe, Dataset | None]:
    """Return the recipe of a run and the data that it was given, unless one of the objects is another."""
    _refuse_absent(folder, record, objects)
    if objects.get("method") is not None and given_method(objects["method"]) != flat(record.recipe).get("method"):
        raise EdblError(f"the method is not the one that run {folder} began with; it cannot go on")
    try:
        recipe = Recipe.read(folder / RECIPE)
    except Unnamed as error:
        again = [*users.again({**flat(record.recipe), **error.files}), *(["--changed"] if may_change else [])]
        raise EdblError(f"{error}: {command('resume', folder, *again)}") from error
    renamed, dataset = with_objects(recipe, **objects)
    if odd := [word for key, word in users.KEYS.items() if renamed.values()[key] != recipe.values()[key]]:
        raise EdblError(f"the {odd[0]} is not what run {folder} began with; it cannot go on")
    return recipe, dataset


def _refuse_absent(folder: Path, record: Record, objects: Mapping[str, object]) -> None:
    """Refuse to go on without what a run was given as an object, or found under a name that nothing has here."""
    recipe = flat(record.recipe)
    given = {word for key, word in users.KEYS.items() if str(recipe.get(key)).startswith(users.GIVEN)}
    if absent := sorted(word for word in given if objects.get(word) is None):
        call = f"edbl.resume({str(folder)!r}, {', '.join(f'{word}=...' for word in absent)})"
        raise EdblError(f"run {folder} was given its {' and '.join(absent)} in Python; go on there, with `{call}`")
    if more := sorted(word for word, thing in objects.items() if thing is not None and word not in given):
        raise EdblError(f"run {folder} was not given its {more[0]} as an object; leave it out")
    for key in record.code.keys() - {"data.name"}:
        name, kind = str(recipe.get(key)), users.KEYS[key]
        if kind not in given and not users.is_known(kind, name) and not named.is_pretrained(name):
            where = "was registered in Python, or is of a package that is not installed here"
            raise EdblError(f"{key} of run {folder}, '{name}', {where}; go on where it began")
    if users.DATA not in given and not datasets.is_known(record.data):
        raise EdblError(f"the images of run {folder} are in '{record.data}', which is not here; go on where it began")


def _changed_code(folder: Path, record: Record, now: Record, may_change: bool) -> list[str]:
    """Return notes on code that is not what it was, if that is wanted; from now on the run has it as it is."""
    odd = [key for key in sorted({*record.code, *now.code}) if record.code.get(key) != now.code.get(key)]
    if odd and not may_change:
        raise changed_since(folder, odd[0], flat(record.recipe))
    before, record.code = record.code, now.code
    task = len(record.seconds) + 1
    return [f"from task {task} on, {k} is {_short(now.code, k)}, and was {_short(before, k)} before" for k in odd]


def _short(code: Mapping[str, str], key: str) -> str:
    return code.get(key, "nothing")[:16]


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


def _learn_tasks(
    prepared: Prepared, folder: Path, record: Record, listeners: Listeners, start: Start | None = None
) -> Record:
    """Learn all tasks that are not learnt yet, and tell of it."""
    kind = Shared if group.size() > 1 else Checkpoints
    checkpoints, recipe = kind(folder / CHECKPOINTS), prepared.recipe
    first = _restore(prepared, folder, record, checkpoints)
    what = record.started, record.method, record.data, record.seed
    facts = Facts(folder, *what, len(prepared.stream), recipe.values())
    with listeners.listening(facts, record) if group.leads() else nullcontext():
        return _learn_from(first, prepared, folder, record, checkpoints, listeners.teller, start)


def _learn_from(
    first: int,
    prepared: Prepared,
    folder: Path,
    record: Record,
    checkpoints: Checkpoints,
    teller: Teller,
    start: Start | None,
) -> Record:
    """Learn all tasks from one on: each is evaluated, and then the record and its state are written."""
    recipe, stream, progress = prepared.recipe, prepared.stream, prepared.learner.progress
    tasks = len(stream)
    _add_notes(record, [*environment.notes, *prepared.learner.notes])
    progress.say(f"run folder: {folder}")
    epochs = [prepared.learner.epochs(new=True, first=number == 0) for number in range(tasks)]
    progress.run(f"{record.method} on {Path(recipe.data.name).name}", epochs, first)
    try:
        for number in range(first, tasks):
            task, learner = stream[number], prepared.learner
            learnt = learner.learn(task, checkpoints, _watch(prepared, number))
            _add_notes(record, learner.notes)
            if number == 0 and start is not None:
                start.keep(folder)
            progress.busy("evaluating")
            with stopwatch(learnt.seconds, "evaluation"), learner.seeds.everywhere("task", number, "evaluation"):
                how = recipe.evaluation
                sizes = stream.sizes[: number + 1] if how.task_aware else ()
                matrices = evaluate(learner.method, stream.test(number), how.nme_flips, sizes)
            _measured(record, matrices, number)
            tensors = learner.tensors()
            record.kept.append(_kept(tensors))
            record.timings.append(learnt.seconds)
            record.losses.append(learnt.losses)
            record.within.append(learnt.within)
            record.seconds.append(sum(learnt.seconds.values()))
            _check_same(tensors)
            _write(record, folder)
            if teller.callbacks:
                teller.task_end(record, task.seen)
            checkpoints.save_task(number, tensors)
            del tensors, learner  # each with all exemplars; another learner goes on
            if number + 1 < tasks:
                prepared.go_on_afresh(checkpoints, number)
            accuracy = "  ".join(f"{k.upper()} {v[-1]:6.1%}" for k, v in record.accuracy.items())
            about = f"task {number + 1}/{tasks}, {task.seen} classes"
            progress.say(f"{record.method}: {about}: {accuracy}  ({record.seconds[-1]:.1f} s)")
            if group.told(teller.stopped) and number + 1 < tasks:
                return record
    except EdblError as error:
        raise _failed(error, folder, record, checkpoints) from error
    except Exception as error:
        _crashed(error, folder, record)
        raise
    features, labels = prepared.sample_features()
    if group.leads():
        records.write_features(folder, features.numpy(), labels.numpy())
    record.status, record.message = "done", ""
    _write(record, folder)
    checkpoints.keep_last(tasks)
    return record


def _write(record: Record, folder: Path, *, cut: bool = False) -> None:
    """Write the record; of several processes the first does."""
    if group.leads():
        records.write(record, folder, cut=cut)


def _check_same(tensors: Mapping[str, Tensor]) -> None:
    """Refuse to go on where processes have not learnt the same, or keep other exemplars."""
    if group.size() == 1:
        return
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    group.check_same("what was learnt", digest.hexdigest())


def _add_notes(record: Record, notes: Sequence[str]) -> None:
    """Let a record say how its run computes, once."""
    record.notes = list(dict.fromkeys([*record.notes, *notes]))


def _watch(prepared: Prepared, number: int) -> Watch | None:
    """Return how accuracy is measured within a task, if it is."""
    learner, old, every = prepared.learner, sum(prepared.stream.sizes[:number]), prepared.recipe.evaluation.every
    if not every:
        return None
    test = prepared.stream.test(number)
    return Watch(every, lambda phase: accuracy_within(learner.method, test, old, phase.watched))


def _measured(record: Record, matrices: Mapping[str, Tensor], task: int) -> None:
    """Add the confusion matrices of a task to a record."""
    if task and matrices.keys() != record.confusions.keys():
        odd = sorted(matrices.keys() ^ record.confusions.keys())[0]
        raise EdblError(f"classifier '{odd}' is there after some tasks and not after others; every task has the same")
    for classifier, matrix in matrices.items():
        record.confusions.setdefault(classifier, []).append(matrix.cpu().numpy())


def _kept(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Return what is kept from task to task: exemplars, and the bytes of net, exemplars and state."""
    sizes = {"exemplars": len(tensors["memory.y"]), "net": 0, "memory": 0, "state": 0}
    for name, tensor in tensors.items():
        part = name.partition(".")[0]
        sizes["net" if part == "learnt" else part] += tensor.nbytes
    return sizes


def _restore(prepared: Prepared, folder: Path, record: Record, checkpoints: Checkpoints) -> int:
    """Bring back the newest state after a task, cut the record there, and return the next task."""
    found = checkpoints.newest_task(below=len(record.seconds))
    before, first = record.finished, 0
    if found:
        first = found[0] + 1
        try:
            prepared.learner.load(found[1], prepared.stream.sizes[:first])
        except ValueError as error:
            raise found[1].unfit(error) from error
    record.status, record.message = "running", ""
    for per_task in (record.seconds, record.timings, record.losses, record.within, record.kept):
        del per_task[first:]
    record.confusions = {k: v[:first] for k, v in record.confusions.items()}
    _write(record, folder, cut=first < before)
    return first


def _crashed(error: Exception, folder: Path, record: Record) -> None:
    """Write into the record where a run crashed, and let the error say so too, and how to go on."""
    happened(error, f"task {len(record.seconds) + 1}")
    where = users.place(error)
    record.status, record.message = "failed", f"{where}: {type(error).__name__}: {error}"
    with suppress(EdblError):
        _write(record, folder)
    again = users.again(flat(record.recipe))
    how = command("resume", folder, *again, *(["--changed"] if users.told(error) else []))
    error.add_note(where)
    error.add_note(f"run {folder} goes on from its last checkpoint with {how}")


def _failed(error: EdblError, folder: Path, record: Record, checkpoints: Checkpoints) -> EdblError:
    """Write into the record why a run failed, and return the error that says where."""
    record.status, record.message = "failed", str(error)
    with suppress(EdblError):  # a full disk must not hide what happened
        _write(record, folder)
    at = f"run {folder}, task {len(record.seconds) + 1} of {len(record.task_sizes)}"
    if isinstance(error, Diverged):  # to go on would lead to the same
        return Diverged(f"{error}, in a new run ({at})")
    kept = "; its last good checkpoint is kept" if checkpoints.names() else ""
    return EdblError(f"{error} ({at}{kept})")
