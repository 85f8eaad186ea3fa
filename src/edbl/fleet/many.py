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
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from torch import Tensor

from edbl import records, users
from edbl.data import datasets
from edbl.engine import environment
from edbl.engine.folders import is_done
from edbl.engine.progress import Count
from edbl.errors import Busy, Crashed, EdblError
from edbl.fleet import starts
from edbl.fleet.board import Board
from edbl.fleet.cluster import connected
from edbl.fleet.dispatch import ended_on
from edbl.fleet.gpus import Gpus
from edbl.fleet.jobs import SHARING, TRIES, Ended, Job, Stopped, make, names
from edbl.fleet.turns import Limit, Turns
from edbl.logs import logs
from edbl.pulse import waiting
from edbl.recipe import Recipe
from edbl.records import Record
from edbl.scratch import scratch
from edbl.store import lock

REFRESH = 0.5  # seconds between looks at the runs
# Methods whose bits are the same on a part of a GPU (`tests.test_gpu`). Of others, cuDNN or cuBLAS computes much.
DIVISIBLE = (
    "bic", "der-net", "edbl", "eeil", "er", "finetune", "gem", "ib", "icarl", "iib", "iib-kd", "joint", "lucir", "lwf",
    "lwf-mc", "re-mkd", "remix", "remix-kd", "rkd", "ssil", "vanilla-mkd", "wa",
)  # fmt: skip


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


KILLED = (BrokenProcessPool, _NoGpu)  # of which a run may fail once, and not the next time


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
        make(Job(Recipe.of(recipe), folder), data_dir, _Shared(_shares, place), start, logs(logged))
    except Exception as error:
        if not isinstance(error, EdblError) and (told := users.told(error)):
            raise Crashed(told) from None  # its frames do not come along
        raise
    _shares[place] = 1.0  # also where nothing was left to do, or a phase was


class Where(NamedTuple):
    """Where runs are made, and whether others go on if one fails."""

    on: str = ""  # the address of a Ray cluster; this machine if empty
    mixed: bool = False  # its nodes may be unlike each other
    keep_going: bool = True


HERE = Where()


def at_once(device: str) -> int:
    """Return how many runs are made at once if nobody says."""
    gpus = environment.gpus(device)
    return min(SHARING * len(gpus), environment.cores()) if gpus else environment.on_cores()


def side_by_side(jobs: Sequence[Job], wanted: int | None, where: Where) -> int:
    """Return how many of some runs are made at once; on a cluster, that is for Ray to say unless somebody does."""
    return min(wanted or (len(jobs) if where.on else at_once(jobs[0].recipe.device)), len(jobs))


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
    where: Where = HERE,
) -> list[Record]:
    """Make all runs that are not done, ``workers`` at a time, going on with those begun; return all records.

    ``done`` is called with each run as it ends well. ``otherwise`` is what to do about a folder with another run.
    ``anew`` makes all of them again, from their beginning. With a ``limit``, runs that would not end in time do not
    begin, those that did not are stopped, so that they can go on, and the records are of those that are done.
    ``logged`` are names of logs. A run that fails does not stop the others, unless ``where`` says so; that it failed is
    raised at the end. A process that is killed may take others with it, and the service that shares the GPU: their runs
    go on in new ones. A run that another process has is left to it, and looked at once more at the end.
    """
    _check_data(
        [job.recipe.data.name for job in jobs if anew or not is_done(job.folder, job.recipe, otherwise)], data_dir
    )
    _remove(jobs if anew else [])
    results = _Results(jobs, console, done, where.keep_going)
    with waiting(_titled(jobs)), ExitStack() as stack:
        ends: Callable[[Collection[int]], Ended]
        if where.on:
            cluster = stack.enter_context(connected(where.on, where.mixed, results.say))
            ends = partial(ended_on, cluster, jobs, workers, data_dir, results.board, limit, logged)
        else:
            gpus = Gpus(environment.gpus(jobs[0].recipe.device), results.say)
            ends = partial(_ended, jobs, workers, data_dir, gpus, results.board, limit, logged)
        stack.enter_context(results.board)
        results.collect(ends)
    return results.records()


class _Results:
    """How the runs of a list ended."""

    def __init__(self, jobs: Sequence[Job], console: Console, done: Callable[[Job], None], keep_going: bool) -> None:
        self.jobs, self.console, self.done, self.keep_going = jobs, console, done, keep_going
        self.names = names(jobs)
        self.board = Board(console, self.names)
        self.well: list[int] = []
        self.failed: dict[int, BaseException] = {}
        self.crashes: list[str] = []

    def say(self, text: str) -> None:
        """Print a line above the table."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def collect(self, ends: Callable[[Collection[int]], Ended]) -> None:
        """Let runs be made, and those once more whose processes were killed, or that another process had."""
        left: Collection[int] = range(len(self.jobs))
        for _ in range(TRIES):
            before = len(self.well)
            with closing(ends(left)) as ended:
                for place, error in ended:
                    self._take(place, error)
                    if not self.keep_going and place in self.failed and not isinstance(error, (*KILLED, Busy)):
                        return
            left = [
                k for k, error in self.failed.items() if isinstance(error, Busy) or not isinstance(error, EdblError)
            ]
            killed = any(isinstance(self.failed[place], KILLED) for place in left)
            busy = any(isinstance(self.failed[place], Busy) for place in left)
            if not killed and not (busy and len(self.well) > before):
                return

    def _take(self, place: int, error: BaseException | None) -> None:
        self.failed.pop(place, None)
        if error is None:
            self.done(self.jobs[place])
            self.well.append(place)
        elif not isinstance(error, Stopped):
            self.failed[place] = error
        told = _told(error, self.crashes)
        left = isinstance(error, Stopped | Busy)
        self.board.end(place, "done" if error is None else "left" if left else "failed", told if error else "")
        self.say(f"{self.jobs[place].folder}: {told}")

    def records(self) -> list[Record]:
        """Return the records of those that are done, unless some are not that should be."""
        failed = sorted(place for place, error in self.failed.items() if not isinstance(error, Busy))
        rest = "; the others are done" if 0 < len(self.well) == len(self.jobs) - len(self.failed) else ""
        if failed:
            listed = ", ".join(self.names[place] for place in failed)
            raise EdblError(f"{len(failed)} of {len(self.jobs)} runs failed: {listed}{rest}")
        if self.failed:
            raise Busy(f"{len(self.failed)} of {len(self.jobs)} runs are with other processes{rest}")
        return [records.read(self.jobs[place].folder) for place in sorted(self.well)]


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
    if isinstance(error, EdblError | BrokenProcessPool | _NoGpu | Stopped):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()


def _ended(
    jobs: Sequence[Job],
    workers: int,
    data_dir: Path | None,
    gpus: Gpus,
    board: Board,
    limit: Limit | None,
    logged: Sequence[str],
    places: Collection[int],
) -> Ended:
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
        turns = Turns(jobs, places, names(jobs), kept, limit)

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
                for place in running.values():
                    board.run(place, shares[place])
                for place in turns.left:
                    board.wait(place, turns.why(place))
                for future in ended:
                    turns.ended(running[future])
                    gpus.by_service &= not isinstance(future.exception(), _NoGpu)
                    yield running.pop(future), future.exception()
                if limit is not None and limit.left <= 0:
                    _terminate(others)
                    for place in running.values():
                        yield place, Stopped("stopped, as the time is over; it can go on")
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
