"""A run on another machine: a worker's part. Its folder there is for the time being, and all in it goes back.

Whatever is written is sent between steps, when nobody writes: so what was sent last is what a process leaves that is
killed, and another one goes on from it with the same bits.
"""

import os
import socket
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

import torch

from edbl import pulse, users
from edbl.data import datasets
from edbl.engine import environment
from edbl.engine.callbacks import Callback, End, Epoch, TaskEnd
from edbl.engine.prepare import code
from edbl.engine.progress import Progress
from edbl.errors import Crashed, Diverged, EdblError
from edbl.fleet import starts
from edbl.fleet.jobs import Job, make
from edbl.fleet.parcels import Arrays, Packer, Parcel, as_dataset, unpack
from edbl.pulse import Pulse
from edbl.recipe import Recipe
from edbl.scratch import scratch

LEAST = 2 * 2**30  # bytes of memory that every run may have
TURNS = "runs take turns on the GPU: its node was started without NVIDIA's multi-process service"


class Versions(NamedTuple):
    """What has to be alike wherever runs of one list are made."""

    edbl: str
    torch: str

    @classmethod
    def here(cls) -> "Versions":
        """Return those of this process."""
        found = environment.versions()
        return cls(f"{found['edbl']}{_commit()}", found["torch"])

    def odd(self, other: "Versions") -> str:
        """Return in what another one is unlike these, or nothing."""
        pairs = (("edbl", self.edbl, other.edbl), ("PyTorch", self.torch, other.torch))
        return ", ".join(f"{name} {theirs}, not {mine}" for name, mine, theirs in pairs if mine != theirs)


@cache
def _commit() -> str:
    found = environment.commit()
    return f" ({found[:12]})" if found else ""


@dataclass(frozen=True)
class Errand:
    """What a worker needs to make a run, or to go on with it."""

    recipe: Mapping[str, object]
    code: Mapping[str, str]  # of users, that it names
    folder: str  # where its files are in the end
    there: Parcel  # what is there of it
    gpu: float  # share of one, that it may have
    versions: Versions  # wanted
    unlike: Mapping[str, str]  # nodes whose GPU is of another kind than most, and of which
    first_task_by: str  # the run that trained its first task, if another did
    logged: bool  # what callbacks are told is sent too


class Arrived(NamedTuple):
    """The first thing that a worker says."""

    node: str  # as Ray has it
    host: str
    odd: str  # in what its versions are not those that are wanted


class News(NamedTuple):
    """What a worker says meanwhile."""

    pulse: Pulse | None = None
    parcel: Parcel | None = None
    told: Epoch | TaskEnd | End | None = None  # to callbacks


class Over(NamedTuple):
    """The last thing that a worker says: what went wrong, if anything did."""

    error: str = ""
    kind: type[EdblError] = EdblError


class Relay(Callback):
    """Sends what callbacks are told."""

    def __init__(self, queue: "SimpleQueue[News | Over]") -> None:
        self.queue = queue

    def on_epoch(self, epoch: Epoch) -> None:
        """Send an epoch."""
        self.queue.put(News(told=epoch))

    def on_task(self, task: TaskEnd) -> None:
        """Send a task."""
        self.queue.put(News(told=task))

    def on_end(self, end: End) -> None:
        """Send the end."""
        self.queue.put(News(told=end))


class Courier(Progress):
    """Sends what a run has written, whenever it begins something else."""

    def __init__(self, packer: Packer, queue: "SimpleQueue[News | Over]") -> None:
        self.packer, self.queue = packer, queue

    def send(self) -> None:
        """Send what is new."""
        if (parcel := self.packer.pack()) is not None:
            self.queue.put(News(pulse.read(self.packer.folder), parcel))

    def phase(self, task: int, name: str, epochs: int, done: int) -> None:
        """Announce a phase."""
        self.send()

    def epoch(self, epoch: int, steps: int) -> None:
        """Announce an epoch."""
        self.send()

    def busy(self, what: str) -> None:
        """Announce work that is no training."""
        self.send()


def work(errand: Errand, arrays: Arrays, first_task: Parcel | None) -> Iterator[Arrived | News | Over]:
    """Make a run, and tell of it."""
    node: str = import_module("ray").get_runtime_context().get_node_id()
    odd = errand.versions.odd(Versions.here())
    yield Arrived(node, socket.gethostname(), odd)
    queue: SimpleQueue[News | Over] = SimpleQueue()
    with scratch() as place:
        target = Path(errand.folder)
        folder = place / target.parent.name / target.name  # logs have its name
        folder.mkdir(parents=True)
        environment.notes[:] = _notes(errand, filter(None, [odd, errand.unlike.get(node, "")]))
        thread = threading.Thread(target=_make, args=(errand, folder, arrays, first_task, queue), daemon=True)
        thread.start()
        while True:
            try:
                told = queue.get(timeout=pulse.EVERY)
            except Empty:
                yield News(pulse.read(folder))
                continue
            yield told
            if isinstance(told, Over):
                thread.join()
                return


def _make(
    errand: Errand, folder: Path, arrays: Arrays, first_task: Parcel | None, queue: "SimpleQueue[News | Over]"
) -> None:
    """Make a run in a folder; its last words are how it ended."""
    packer = Packer(folder)
    courier = Courier(packer, queue)
    over = Over()
    try:
        with ExitStack() as stack:
            unpack(errand.there, folder)
            packer.skip()
            users.trust(errand.recipe)
            recipe = Recipe.of(errand.recipe)
            _refuse_other_code(errand, recipe)
            _bound(errand.gpu)
            held = recipe.data.name, recipe.data.image_size, recipe.data.skip_bad
            stack.enter_context(datasets.holding(*held, as_dataset(arrays)))
            start = None
            if first_task is not None:
                start = starts.Start(folder.parent.parent / "first-task", errand.first_task_by)
                unpack(first_task, start.folder)
            make(Job(recipe, folder), None, courier, start, [Relay(queue)] if errand.logged else [])
    except EdblError as error:
        kind = next((kind for kind in (Crashed, Diverged) if isinstance(error, kind)), EdblError)
        over = Over(_placed(str(error), folder, errand), kind)
    except Exception as error:
        told = users.told(error)
        what = told or "".join(traceback.format_exception(error)).rstrip()
        over = Over(_placed(what, folder, errand), Crashed if told else EdblError)
    except SystemExit as error:  # by code of a user
        over = Over(f"the run ended its process, with {error.code!r}", Crashed)
    try:
        courier.send()
    except OSError as error:
        over = Over(over.error or f"what it wrote last could not be read: {error}")
    queue.put(over)


def _refuse_other_code(errand: Errand, recipe: Recipe) -> None:
    """Refuse code of a user's that is not what it is where the run was asked for."""
    now = code(recipe)
    if odd := [key for key in sorted({*errand.code, *now}) if errand.code.get(key) != now.get(key)]:
        name = recipe.values()[odd[0]]
        raise EdblError(f"{name} on {socket.gethostname()} is not what it is here; copy it there, to the same path")


def _notes(errand: Errand, odd: Iterable[str]) -> list[str]:
    """Return what the record should say of this worker."""
    turns = 0 < errand.gpu < 1 and "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    return [*[TURNS] * turns, *(f"made with {what}, as most of its list" for what in odd)]


def _bound(gpu: float) -> None:
    """Let a run have its share of this machine's memory and no more, so that it takes none from others."""
    torch.set_num_threads(1)
    if gpu:
        if not torch.cuda.is_available():  # rather than on a CPU, where nobody would see why it takes so long
            raise EdblError(f"PyTorch sees no GPU on {socket.gethostname()}, and Ray does")
        if gpu < 1:
            torch.cuda.set_per_process_memory_fraction(gpu)
        return
    if sys.platform != "linux":
        return
    import resource

    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = max(LEAST, whole // environment.cores())
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))


def _placed(text: str, folder: Path, errand: Errand) -> str:
    """Return a message that names the folder where the files are in the end."""
    return text.replace(str(folder), errand.folder)
