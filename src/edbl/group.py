"""The processes that make one run together; usually there is one.

They all do the same with the same numbers, but for what is shared out image by image. The first one leads: it alone
writes, prints, and decides what hangs on time or on the disk. One that fails or is gone ends all of them.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from itertools import pairwise
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from edbl.errors import EdblError

if TYPE_CHECKING:
    from torch import Tensor

STARTED = "EDBL_STARTED"  # set where a command has started this process, and ends with it
PATIENCE = "EDBL_PATIENCE"  # seconds that a process waits for the others; those that are gone are usually seen at once
USUAL_PATIENCE = 600.0

P = ParamSpec("P")
T = TypeVar("T")


class Lost(EdblError):
    """Another process of the run is gone, or does not answer."""


class Told(EdblError):
    """What another process of the run has told of already."""


@dataclass(frozen=True)
class _Group:
    rank: int = 0
    size: int = 1
    device: str = "cpu"


_here = _Group()
_met = False  # whether this process has worked together with others


def size() -> int:
    """Return how many processes there are."""
    return _here.size


def leads() -> bool:
    """Tell whether this process is the first one."""
    return not _here.rank


def wanted() -> int:
    """Return how many processes were started together, as `torchrun` says in the environment."""
    return int(number) if (number := os.environ.get("WORLD_SIZE", "")).isdecimal() and "RANK" in os.environ else 1


def follows() -> bool:
    """Tell whether this process was started as another one than the first."""
    return wanted() > 1 and os.environ["RANK"] != "0"


def silent(error: Exception) -> bool:
    """Tell whether another process says what is wrong."""
    return isinstance(error, Told) or (follows() and not _met)


def end_with_starter() -> None:
    """Let this process end when the command that started it has ended, however that did."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)  # not `sys.stdin.read`, whose lock would be held when Python ends
        os._exit(1)

    if STARTED in os.environ:
        threading.Thread(target=wait, daemon=True).start()


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Let the processes that were started together work together, each on a GPU of its own if ``device`` is one."""
    global _here, _met
    if wanted() == 1 or size() > 1:
        yield
        return
    import torch
    from torch import distributed
    from torch.distributed.rendezvous import rendezvous

    if device.partition(":")[0] not in ("auto", "cpu", "cuda") or ":" in device:
        raise EdblError(f"several processes compute on device cuda, one GPU each, or on cpu, not on {device}")
    number, gpu = int(os.environ.get("LOCAL_RANK", os.environ["RANK"])), device != "cpu" and torch.cuda.is_available()
    if gpu:
        count, there = int(os.environ.get("LOCAL_WORLD_SIZE", wanted())), torch.cuda.device_count()
        if count > there:
            raise EdblError(f"there are {count} processes and {there} GPUs here; start as many processes as GPUs")
        torch.cuda.set_device(number)
    patience = _patience()
    try:
        # Beginning may take one of them much longer than the others.
        meeting = max(patience, timedelta(seconds=USUAL_PATIENCE))
        store, rank, count = next(rendezvous("env://", timeout=meeting))
        distributed.init_process_group(
            "nccl" if gpu else "gloo", store=store, rank=rank, world_size=count, timeout=patience
        )
    except RuntimeError as error:
        raise Lost(f"the {wanted()} processes of the run do not find each other: {_first_line(error)}") from error
    _here, _met = _Group(rank, count, f"cuda:{number}" if gpu else "cpu"), True
    try:
        yield
    except Exception as error:
        if _told_before(store):
            raise Told(f"process {rank + 1} of {count} ended with the others") from error
        raise
    finally:
        _here = _Group()
    distributed.destroy_process_group()


def _patience() -> timedelta:
    given = os.environ.get(PATIENCE, "")
    try:
        return timedelta(seconds=float(given or USUAL_PATIENCE))
    except (ValueError, OverflowError) as error:
        raise EdblError(f"{PATIENCE} is '{given}'; it is a number of seconds") from error


def _told_before(store: "torch.distributed.Store") -> bool:  # type: ignore[name-defined]  # noqa: F821
    """Tell whether another process has said already why the run ends; the first that fails does, or the next to it."""
    try:
        return bool(store.add("ended", 1) > 1)
    except RuntimeError:  # it went with the first process
        return _here.rank > 1


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _together(work: Callable[P, T]) -> Callable[P, T]:
    """Let what all processes do together say so if one of them does not."""

    @wraps(work)
    def tried(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return work(*arguments, **named)
        except RuntimeError as error:
            seconds = _patience().total_seconds()
            raise Lost(f"another process of the run has ended, or does not answer for {seconds:.0f} s") from error

    return tried


def own(count: int) -> slice:
    """Return which of ``count`` images are this process's."""
    return slice(_here.rank * count // _here.size, (_here.rank + 1) * count // _here.size)


@_together
def gathered(x: "Tensor", count: int) -> "Tensor":
    """Return the rows of all processes, ``count`` in all, given this one's."""
    from torch import distributed

    ends = [rank * count // _here.size for rank in range(_here.size + 1)]
    counts = [last - first for first, last in pairwise(ends)]
    padded = x.new_zeros(max(counts), *x.shape[1:])
    padded[: len(x)] = x
    parts = [padded.new_empty(padded.shape) for _ in counts]
    distributed.all_gather(parts, padded)
    return padded.new_empty(0, *x.shape[1:]) if not count else _cat([p[:n] for p, n in zip(parts, counts, strict=True)])


def _cat(parts: "list[Tensor]") -> "Tensor":
    import torch

    return torch.cat(parts)


@_together
def summed(x: "Tensor") -> "Tensor":
    """Return the sum over all processes, of which each gets the same bits."""
    from torch import distributed

    total = x.clone()
    distributed.all_reduce(total)
    return total


@_together
def told(value: T) -> T:
    """Return what the first process gives, which JSON must be able to hold; the others wait for it."""
    if size() == 1:
        return value
    import torch
    from torch import distributed

    text = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=_here.device)
    length = torch.tensor([len(text)], device=_here.device)
    distributed.broadcast(length, 0)
    text = text if leads() else text.new_empty(int(length))
    distributed.broadcast(text, 0)
    found: T = json.loads(bytes(text.tolist()))
    return found


def check_same(what: str, value: object) -> None:
    """Refuse to go on where a value is not the same in all processes: they would learn different things."""
    if told(value) != value:
        raise EdblError(
            f"{what} differs between the processes of the run; what the method draws at random must hang on the run's "
            "seed alone"
        )
