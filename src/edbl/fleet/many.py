"""Many runs at once on one machine: recipes in, records out.

Each run has a process to itself, so that one that fails takes no other with it. On a GPU they share its processors
through NVIDIA's multi-process service, where there is one: small networks leave most of a GPU idle. Three or more get
parts of it, each twice its share, so that kernels of one stand less in the way of another's. Of several GPUs, a run
goes to the one with the fewest. A first task that several runs have in common is trained once.
"""

import ctypes
import multiprocessing
import os
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from torch import Tensor

from edbl import records, users
from edbl.data import datasets
from edbl.engine import environment
from edbl.engine.folders import default_folder, is_done, plain, runs_in
from edbl.engine.progress import Count, Progress
from edbl.engine.run import resume, run
from edbl.errors import Crashed, EdblError
from edbl.fleet import starts
from edbl.fleet.gpus import Gpus
from edbl.fleet.turns import Limit, Turns
from edbl.logs import logs
from edbl.pulse import waiting
from edbl.recipe import RECIPE, Recipe
from edbl.records import Record
from edbl.store import lock, scratch

REFRESH = 0.5  # seconds between looks at the runs
TRIES = 3  # times that runs begin or go on, while processes are killed
# Methods whose bits are the same on a part of a GPU (`tests.test_gpu`). Of others, cuDNN or cuBLAS computes much.
DIVISIBLE = (
    "bic", "der-net", "edbl", "eeil", "er", "finetune", "gem", "ib", "icarl", "iib", "iib-kd", "joint", "lucir", "lwf",
    "lwf-mc", "re-mkd", "remix", "remix-kd", "rkd", "ssil", "vanilla-mkd", "wa",
)  # fmt: skip


class Job(NamedTuple):
    """A run to make, and where it goes."""

    recipe: Recipe
    folder: Path


class _Shared(Count):
    """Tell another process how far a run has come."""

    def __init__(self, shares: "ctypes.Array[ctypes.c_double]", place: int) -> None:
        super().__init__()
        self.shares, self.place = shares, place

    def step(self, losses: Tensor, number: int, images: int) -> None:
        """Count a step."""
        super().step(losses, number, images)
        self.shares[self.place] = self.share


class _NoGpu(RuntimeError):
    """The GPU that the others have is not there for this process."""


class _Stopped(RuntimeError):
    """The time was over before the run was."""


_shares: "ctypes.Array[ctypes.c_double]"  # of each job that is done; set in each worker process


def _begin(shares: "ctypes.Array[ctypes.c_double]", threads: int, note: str) -> None:
    global _shares
    _shares = shares
    environment.notes.extend([note] if note else [])
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(
    place: int,
    recipe: Mapping[str, object],
    folder: Path,
    data_dir: Path | None,
    gpu: int | None,
    start: starts.Start | None = None,
    logged: Sequence[str] = (),
) -> None:
    """Make a run, on the GPU of a number if it has one.

    Its recipe comes as values, since this process may not have read a method file of the user's yet.
    """
    if gpu is not None:
        if not torch.cuda.is_available():  # rather than on a CPU, where nobody would see why it takes so long
            raise _NoGpu("PyTorch sees the GPU no more")
        torch.cuda.set_device(gpu)
    try:
        make(Job(Recipe.of(recipe), folder), data_dir, _Shared(_shares, place), start, logged)
    except Exception as error:
        if not isinstance(error, EdblError) and (told := users.told(error)):
            raise Crashed(told) from None  # its frames do not come along
        raise
    _shares[place] = 1.0  # also where nothing was left to do, or a phase was


def make(
    job: Job,
    data_dir: Path | None,
    progress: Progress,
    start: starts.Start | None = None,
    logged: Sequence[str] = (),
) -> None:
    """Make a run, or go on with it where it was begun; ``logged`` are names of logs."""
    if (job.folder / records.RECORD).exists():
        resume(job.folder, data_dir=data_dir, progress=progress, callbacks=logs(logged))
    else:
        run(job.recipe, job.folder, data_dir=data_dir, progress=progress, callbacks=logs(logged), start=start)


def jobs_of(recipes: Sequence[Recipe], out: Path | None = None) -> list[Job]:
    """Return where each run goes: below ``out``, by method and seed, or a place of its own where that is not given.

    One alone goes to ``out`` itself, unless that has runs below it. If ``out`` is the folder of one of several, that
    one stays there, and the others go below it.
    """
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


def at_once(device: str) -> int:
    """Return how many runs are made at once if nobody says."""
    cores, gpus = environment.cores(), environment.gpus(device)
    return min(6 * len(gpus), cores) if gpus else max(1, cores // 2)


def divisible(recipe: Recipe) -> bool:
    """Tell whether a run has the same bits on a part of a GPU as on all of it, as far as `tests.test_gpu` shows."""
    fused = recipe.net.backbone == "resnet32" and recipe.fused and recipe.precision != "fp32"
    return fused and recipe.method in DIVISIBLE


def run_many(
    jobs: Sequence[Job],
    workers: int,
    console: Console,
    data_dir: Path | None = None,
    done: Callable[[Job], None] = lambda _: None,
    otherwise: str = "use another folder",
    anew: bool = False,
    limit: Limit | None = None,
    logged: Sequence[str] = (),
) -> list[Record]:
    """Make all runs that are not done, ``workers`` at a time, going on with those begun; return all records.

    ``done`` is called with each run as it ends well. ``otherwise`` is what to do about a folder with another run.
    ``anew`` makes all of them again, from their beginning. With a ``limit``, runs that would not end in time do not
    begin, those that did not are stopped, so that they can go on, and the records are of those that are done.
    ``logged`` are names of logs. A run that fails does not stop the others; that it failed is raised at the end. A
    process that is killed may take others with it, and the service that shares the GPU: their runs go on in new ones.
    """
    _check_data(
        [job.recipe.data.name for job in jobs if anew or not is_done(job.folder, job.recipe, otherwise)], data_dir
    )
    _remove(jobs if anew else [])
    names = _names(jobs)

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    gpus = Gpus(environment.gpus(jobs[0].recipe.device), say)
    failed: dict[int, BaseException] = {}
    well: list[int] = []
    crashes: list[str] = []
    left: Collection[int] = range(len(jobs))
    with waiting(_titled(jobs)), _bars(console) as bars:
        shown = [bars.add_task(name, total=1.0) for name in names]

        def show(place: int, share: float) -> None:
            bars.update(shown[place], completed=share)

        for _ in range(TRIES):
            broken: dict[int, BaseException] = {}
            for place, error in _ended(jobs, left, workers, data_dir, gpus, show, limit, logged):
                if error is None:
                    done(jobs[place])
                    well.append(place)
                elif isinstance(error, EdblError):
                    failed[place] = error
                elif not isinstance(error, _Stopped):
                    broken[place] = error
                say(f"{jobs[place].folder}: {_told(error, crashes)}")
            left = broken
            gpus.by_service = not any(isinstance(error, _NoGpu) for error in broken.values())
            if not any(isinstance(error, BrokenProcessPool | _NoGpu) for error in broken.values()):
                break
    failed |= broken
    if failed:
        listed = ", ".join(names[place] for place in sorted(failed))
        others = "; the others are done" if len(failed) < len(jobs) else ""
        raise EdblError(f"{len(failed)} of {len(jobs)} runs failed: {listed}{others}")
    return [records.read(jobs[place].folder) for place in sorted(well)]


def _bars(console: Console) -> RichProgress:
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    return RichProgress(*columns, console=console, disable=not console.is_terminal)


def _titled(jobs: Sequence[Job]) -> list[tuple[Path, str]]:
    """Return the folder of each run, and what it is for people."""
    return [(job.folder, f"{job.recipe.method} on {Path(job.recipe.data.name).name}") for job in jobs]


def _remove(jobs: Sequence[Job]) -> None:
    """Remove what is there of runs."""
    for job in jobs:
        if job.folder.is_dir():
            with lock(job.folder):
                shutil.rmtree(job.folder, ignore_errors=True)


def _told(error: BaseException | None, crashes: list[str]) -> str:
    """Return how a run ended: done, what was wrong, or of a bug all that is known; of the same crash, once."""
    if error is None:
        return "done"
    if isinstance(error, Crashed):
        crashes.append(str(error).rpartition("\n")[0])  # without how the run can go on
        return "crashed in the same way" if crashes[-1] in crashes[:-1] else str(error)
    if isinstance(error, EdblError | BrokenProcessPool | _NoGpu | _Stopped):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()


def _ended(
    jobs: Sequence[Job],
    places: Collection[int],
    workers: int,
    data_dir: Path | None,
    gpus: Gpus,
    show: Callable[[int, float], None],
    limit: Limit | None = None,
    logged: Sequence[str] = (),
) -> Iterator[tuple[int, BaseException | None]]:
    """Make the runs at ``places``, and yield each as it ends, with what it failed of."""
    context = multiprocessing.get_context("spawn")
    shares = context.RawArray("d", len(jobs))  # without a lock, which a process that is killed might hold for ever
    threads = max(1, min(environment.cores() // workers, torch.get_num_threads()))  # which knows OMP_NUM_THREADS
    parts = all(divisible(jobs[place].recipe) for place in places)
    running: dict[Future[None], int] = {}
    others = multiprocessing.active_children()
    with (
        gpus.shared(min(workers, len(places)), parts) as note,
        scratch() as kept,
        ProcessPoolExecutor(workers, context, _begin, (shares, threads, note)) as pool,
    ):
        turns = Turns(jobs, places, _names(jobs), kept, limit)

        def submit(place: int, start: starts.Start | None) -> None:
            recipe, folder = jobs[place]
            gpu = gpus.take(place, running.values())
            with _deaf_children():
                running[pool.submit(_work, place, recipe.values(), folder, data_dir, gpu, start, logged)] = place

        try:
            while True:
                while len(running) < workers and (turn := turns.next()):
                    try:
                        submit(*turn)
                    except BrokenProcessPool as error:
                        turns.ended(turn[0])
                        yield turn[0], error
                if not running:
                    return
                ended = wait(running, REFRESH, FIRST_COMPLETED).done
                for place in places:
                    show(place, shares[place])
                for future in ended:
                    turns.ended(running[future])
                    yield running.pop(future), future.exception()
                if limit is not None and limit.left <= 0:
                    _terminate(others)
                    for place in running.values():
                        yield place, _Stopped("stopped, as the time is over; it can go on")
                    return
        except BaseException:  # such as Ctrl-C; the pool would wait for all runs
            _terminate(others)
            raise


def _terminate(others: Sequence[BaseProcess]) -> None:
    """End the processes of runs, which have checkpoints, but not those that were there before."""
    for process in multiprocessing.active_children():
        if process not in others:
            process.terminate()


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Let the processes that are started meanwhile ignore Ctrl-C, which a terminal sends to all: this one ends them."""
    if threading.current_thread() is not threading.main_thread():  # only that one may say so, and Ctrl-C is its affair
        yield
        return
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _names(jobs: Sequence[Job]) -> list[str]:
    """Return short names that tell runs apart."""
    parts = 1 if len({job.folder.parent for job in jobs}) == 1 else 2
    return [str(Path(*job.folder.parts[-parts:])) for job in jobs]


def _check_data(wanted: Sequence[str], data_dir: Path | None) -> None:
    """Refuse data that cannot be loaded, here and once rather than in every run."""
    errors = []
    for name in dict.fromkeys(name for name in wanted if not datasets.is_folder(name)):  # may take minutes
        try:
            datasets.load(name, data_dir)
        except EdblError as error:
            errors.append(str(error))
    if errors:
        raise EdblError("\n".join(errors))
