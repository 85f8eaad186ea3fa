"""Many runs on a cluster by Ray: recipes in, records out, in the folders where one machine would have put them.

Ray decides where and when; here is only what goes there with a run, and what becomes of what comes back. Each run is a
Ray task, which sends what it writes: this process writes that into the run's folder, whose lock it has, so no disk need
be shared. A run whose node died goes on elsewhere from what was sent last, and so do all runs if this process is killed
and the same command is given again.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from edbl import pulse
from edbl.engine.callbacks import Callback, End, Epoch, Facts, TaskEnd
from edbl.engine.checkpoint import CHECKPOINTS
from edbl.engine.folders import is_done
from edbl.engine.prepare import code
from edbl.engine.progress import Progress
from edbl.errors import EdblError
from edbl.fleet.afar import Arrived, Errand, News, Over, Versions, work
from edbl.fleet.board import Board
from edbl.fleet.cluster import Cluster
from edbl.fleet.jobs import TRIES, Ended, Job, Lost, Stopped, make, names
from edbl.fleet.parcels import pack, unpack
from edbl.fleet.starts import FIRST, Start
from edbl.fleet.turns import Limit, Source, Turns
from edbl.logs import logs
from edbl.records import RECORD
from edbl.scratch import scratch
from edbl.store import lock

REFRESH = 0.5  # seconds between looks at the runs
SHOWN = 5.0  # seconds after which what runs wait for is looked up again
PENDING = 256  # runs that Ray has at a time: enough for it to see what is wanted, few enough for its queue
NEWLINE = "\n"
FIRST_TASK = f"{CHECKPOINTS}/{FIRST}.json"


@dataclass(frozen=True)
class Running:
    """A run that Ray has."""

    place: int
    start: Start | None
    options: Mapping[str, Any]  # for Ray
    log: "Log"
    held: ExitStack  # the lock of its folder, and its log


class Log:
    """The logs of a run, which are written here, wherever the run is made."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self.callbacks: Sequence[Callback] = logs(names)
        self.folder = folder
        self._run: Facts | None = None  # that is not at its end

    def take(self, told: Epoch | TaskEnd | End) -> None:
        """Tell the logs what the run's callbacks were told."""
        told = replace(told, run=replace(told.run, folder=self.folder))
        self._run = None if isinstance(told, End) else told.run
        for one in self.callbacks:
            if isinstance(told, Epoch):
                one.on_epoch(told)
            elif isinstance(told, TaskEnd):
                one.on_task(told)
            else:
                one.on_end(told)

    def close(self) -> None:
        """Close the logs of a run that nobody told the end of."""
        if self._run is not None:
            with suppress(EdblError):
                self.take(End(self._run, "stopped", "", {}))


def ended_on(
    cluster: Cluster,
    jobs: Sequence[Job],
    workers: int,
    data_dir: Path | None,
    board: Board,
    limit: Limit | None,
    logged: Sequence[str],
    places: Collection[int],
) -> Ended:
    """Make the runs at ``places`` on a cluster, and yield each as it ends, with what it failed of."""
    with scratch() as kept:
        turns = Turns(jobs, places, names(jobs), kept, limit)
        yield from Hand(cluster, jobs, turns, board, data_dir, logged).ends(workers)


class Hand:
    """Gives runs to Ray, and takes what comes back."""

    def __init__(
        self,
        cluster: Cluster,
        jobs: Sequence[Job] | Mapping[int, Job],
        turns: Source,
        board: Board,
        data_dir: Path | None,
        logged: Sequence[str],
    ) -> None:
        self.cluster, self.jobs, self.turns, self.board = cluster, jobs, turns, board
        self.data_dir, self.logged = data_dir, logged
        self.running: dict[Any, Running] = {}  # by what Ray has given for it
        self._waiting: set[Any] = set()  # those of them that no node has yet
        self._wanted = Versions.here()
        self._tries: dict[int, int] = {}  # of each run, since it came further
        self._task = cluster.ray.remote(work)
        self._first_tasks: dict[Path, Any] = {}  # where they are in Ray's store
        self._shown = 0.0

    def ends(self, workers: int) -> Ended:
        """Make runs, ``workers`` at a time at most, and yield each as it ends, with what it failed of."""
        limit = self.turns.limit
        try:
            while True:
                while len(self.running) < min(workers, PENDING) and (turn := self.turns.next()):
                    yield from self.begin(*turn)
                if not self.running:
                    return
                yield from self.look()
                if limit is not None and limit.left <= 0:
                    for one in self.running.values():
                        yield one.place, Stopped("stopped, as the time is over; it can go on")
                    return
        finally:
            self.stop()

    def begin(self, place: int, start: Start | None) -> Ended:
        """Give a run to Ray, unless it is done or something keeps it from that."""
        job = self.jobs[place]
        try:
            if is_done(job.folder, job.recipe):
                make(job, self.data_dir, Progress())  # which tidies up
                yield self._over(place), None
                return
            job.folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as held:
                held.enter_context(lock(job.folder))
                self._submit(place, start, held)
        except EdblError as error:
            yield self._over(place), error
        except OSError as error:
            yield self._over(place), Lost(f"cannot use {job.folder}: {error.strerror}")

    def _submit(self, place: int, start: Start | None, held: ExitStack) -> None:
        job, cluster = self.jobs[place], self.cluster
        options = cluster.options(job.recipe.device)
        errand = Errand(
            recipe=job.recipe.values(),
            code=code(job.recipe),
            folder=str(job.folder),
            there=pack(job.folder),
            gpu=options["num_gpus"],
            versions=self._wanted,
            unlike=cluster.unlike(),
            first_task_by=start.run if start is not None else "",
            logged=bool(self.logged),
        )
        first_task = self._first_task(start) if start is not None and start.is_kept() else None
        told = self._task.options(**options).remote(errand, cluster.data(job, self.data_dir), first_task)
        log = Log(self.logged, job.folder)
        held.callback(log.close)
        self.running[told] = Running(place, start, options, log, held.pop_all())
        self._waiting.add(told)
        self.board.wait(place, cluster.waits_for(options))

    def _first_task(self, start: Start) -> Any:
        """Return where what runs have learnt of a first task is in Ray's store, from where each node gets it once."""
        if start.folder not in self._first_tasks:
            self._first_tasks[start.folder] = self.cluster.ray.put(pack(start.folder))
        return self._first_tasks[start.folder]

    def look(self) -> Ended:
        """Take what has come."""
        ray, every = self.cluster.ray, list(self.running)
        ready, _ = ray.wait(every, num_returns=1, timeout=REFRESH)
        if ready:
            ready, _ = ray.wait(every, num_returns=len(every), timeout=0)
        for told in ready:
            yield from self._take(told)
        self._show()

    def _take(self, told: Any) -> Ended:
        """Take the next thing that a worker says, or that it says no more."""
        errors, one = import_module("ray.exceptions"), self.running[told]
        try:
            news: Arrived | News | Over = self.cluster.ray.get(next(told))
        except errors.RayTaskError as error:  # such as a node without edbl, or with a full disk
            what = f"a worker could not do its work: {str(error.cause).strip().rpartition(NEWLINE)[2]}"
            yield self._over(self._let_go(told)), Lost(what)
        except (StopIteration, errors.RayError) as error:
            yield from self._again(told, "its node died" if isinstance(error, errors.NodeDiedError) else _first(error))
        else:
            if isinstance(news, Over):
                yield self._over(self._let_go(told)), news.kind(news.error) if news.error else None
            elif isinstance(news, News):
                yield from self._news(told, news)
            else:
                self._waiting.discard(told)
                self.board.run(one.place, where=news.host)
                if self.cluster.refuse(news):
                    self._cancel(told)
                    yield from self.begin(self._let_go(told), one.start)

    def _news(self, told: Any, news: News) -> Ended:
        """Write what a run has written into its folder here and its logs, and show how far it is."""
        one = self.running[told]
        folder = self.jobs[one.place].folder
        error: EdblError | None = None
        try:
            if news.parcel is not None:
                unpack(news.parcel, folder)
            if news.told is not None:
                one.log.take(news.told)
            goes_on = news.parcel is None or RECORD not in news.parcel.files or self.turns.goes_on(one.place)
        except EdblError as wrong:
            goes_on, error = False, wrong
        except OSError as wrong:  # such as a full disk
            goes_on, error = False, Lost(str(wrong))
        if not goes_on:
            self._cancel(told)
            yield self._over(self._let_go(told)), error
            return
        if news.parcel is not None:
            self._tries.pop(one.place, None)
            if one.start is not None and FIRST_TASK in news.parcel.files and not one.start.is_kept():
                one.start.keep(folder)
        if news.pulse is not None:
            pulse.write(folder, news.pulse)
            about = f"task {news.pulse.task + 1} of {news.pulse.tasks}: {news.pulse.phase}"
            self.board.run(one.place, news.pulse.share, why=about)

    def _again(self, told: Any, why: str) -> Ended:
        """Let a run go on elsewhere, unless that happens again and again without a step forward."""
        one = self.running[told]
        place = self._let_go(told)
        self._tries[place] = self._tries.get(place, 0) + 1
        if self._tries[place] >= TRIES:
            yield self._over(place), Lost(f"{why}, {TRIES} times; it can continue")
            return
        self.cluster.say(f"{self.jobs[place].folder}: {why}; it continues elsewhere")
        yield from self.begin(place, one.start)

    def _over(self, place: int) -> int:
        self.turns.ended(place)
        return place

    def _let_go(self, told: Any) -> int:
        """Forget a run that Ray had; others may work in its folder again."""
        one = self.running.pop(told)
        self._waiting.discard(told)
        pulse.remove(self.jobs[one.place].folder)
        one.held.close()
        return one.place

    def _cancel(self, told: Any) -> None:
        with suppress(Exception):  # it may be over, or the cluster gone
            self.cluster.ray.cancel(told, force=True)

    def stop(self) -> None:
        """End the runs that go on still: they have checkpoints."""
        for told in list(self.running):
            self._cancel(told)
            self._let_go(told)

    def _show(self) -> None:
        """Show what runs wait for, which is there still."""
        if time.monotonic() - self._shown < SHOWN:
            return
        self._shown = time.monotonic()
        self.cluster.check_left()
        for place in self.turns.left:
            self.board.wait(place, self.turns.why(place))
        for told in self._waiting:
            one = self.running[told]
            self.board.wait(one.place, self.cluster.waits_for(one.options))


def _first(error: BaseException) -> str:
    """Return in a line why a worker is gone."""
    return str(error).strip().partition("\n")[0] or "its worker ended"
