"""Many runs at once on one machine: recipes in, records out.

Each run is a process of its own, so that one that fails takes no other with it. On a GPU they share its processors
through NVIDIA's multi-process service, where there is one: small networks leave most of a GPU idle.
"""

import multiprocessing
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from multiprocessing.sharedctypes import SynchronizedArray
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from torch import Tensor

from edbl import records
from edbl.engine import environment
from edbl.engine.progress import Count
from edbl.engine.run import RECIPE, resume, run
from edbl.errors import EdblError
from edbl.recipe import Recipe
from edbl.records import Record

MPS = "nvidia-cuda-mps-control"
REFRESH = 0.5  # seconds between looks at the runs


class Job(NamedTuple):
    """A run to make, and where it goes."""

    recipe: Recipe
    folder: Path


class _Shared(Count):
    """Tell another process how far a run has come."""

    def __init__(self, shares: "SynchronizedArray[float]", place: int) -> None:
        super().__init__()
        self.shares, self.place = shares, place

    def step(self, losses: Tensor, number: int, images: int) -> None:
        """Count a step."""
        super().step(losses, number, images)
        self.shares[self.place] = self.share


_shares: "SynchronizedArray[float]"  # of each job that is done; set in each worker process


def _begin(shares: "SynchronizedArray[float]", threads: int) -> None:
    global _shares
    _shares = shares
    torch.set_num_threads(threads)


def _work(place: int, job: Job, data_dir: Path | None) -> None:
    progress = _Shared(_shares, place)
    if (job.folder / records.RECORD).exists():
        resume(job.folder, data_dir=data_dir, progress=progress)
    else:
        run(job.recipe, job.folder, data_dir=data_dir, progress=progress)


def at_once(device: str) -> int:
    """Return how many runs are made at once if nobody says."""
    return 4 if environment.pick_device(device).type == "cuda" else max(1, (os.cpu_count() or 1) // 2)


def run_many(
    jobs: Sequence[Job],
    workers: int,
    console: Console,
    data_dir: Path | None = None,
    done: Callable[[Job], None] = lambda _: None,
) -> list[Record]:
    """Make all runs that are not done, ``workers`` at a time, going on with those begun; return all records.

    ``done`` is called with each run as it ends well.
    A run that fails does not stop the others; that it failed is raised at the end.
    """
    for job in jobs:
        _check(job)
    context = multiprocessing.get_context("spawn")
    shares = context.Array("d", len(jobs))
    failed: list[str] = []
    with ExitStack() as stack:
        if environment.pick_device(jobs[0].recipe.device).type == "cuda":
            stack.enter_context(shared_gpu())
        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
        bars = stack.enter_context(RichProgress(*columns, console=console, disable=not console.is_terminal))
        shown = [bars.add_task(job.folder.name, total=1.0) for job in jobs]
        threads = max(1, (os.cpu_count() or 1) // workers)
        pool = stack.enter_context(ProcessPoolExecutor(workers, context, _begin, (shares, threads)))
        jobs_of = {pool.submit(_work, place, job, data_dir): job for place, job in enumerate(jobs)}
        waiting: Collection[Future[None]] = jobs_of
        while waiting:
            ended, waiting = wait(waiting, REFRESH, FIRST_COMPLETED)
            for place, bar in enumerate(shown):
                bars.update(bar, completed=shares[place])
            for future in ended:
                folder, error = jobs_of[future].folder, future.exception()
                if error is None:
                    done(jobs_of[future])
                console.print(f"{folder}: {error or 'done'}", highlight=False, soft_wrap=True)
                if error is not None:
                    failed.append(folder.name)
    if failed:
        raise EdblError(f"{len(failed)} of {len(jobs)} runs failed: {', '.join(failed)}; the others are done")
    return [records.read(job.folder) for job in jobs]


def _check(job: Job) -> None:
    """Refuse a folder that holds something else."""
    if job.folder.exists() and any(job.folder.iterdir()):
        found = records.read(job.folder)
        if Recipe.read(job.folder / RECIPE) != job.recipe:
            raise EdblError(f"{job.folder} holds another run, of {found.method}; use another --out")


@contextmanager
def shared_gpu() -> Iterator[None]:
    """Let the processes that are started meanwhile run on the GPU side by side, if the driver's service is there."""
    control = shutil.which(MPS)
    if control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="edbl-") as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        # Without the service, processes still share the GPU, by turns.
        start = subprocess.run([control, "-d"], env=os.environ | places, input=b"", capture_output=True, check=False)
        if start.returncode:
            yield
            return
        os.environ.update(places)
        try:
            yield
        finally:
            subprocess.run([control], input=b"quit\n", capture_output=True, check=False)
            for name in places:
                del os.environ[name]
