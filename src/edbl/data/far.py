"""Images that are not on the device: in memory of the host, or on disk, and brought there batch by batch.

`Far` stands for a tensor of images where `Images` has one. What is picked of it stays where it is, until `near` or a
loop over its batches brings the pixels; these are the same, wherever they were.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from edbl.errors import EdblError

AHEAD = 4  # batches that are on their way while one is worked on
SHARE = 0.5  # of a memory that is free which a data set may take
MEMINFO = Path("/proc/meminfo")
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # of a container
CPU = torch.device("cpu")

Place = Literal["auto", "device", "host", "disk"]


class Rows(Protocol):
    """Where pixels are kept."""

    @property
    def shape(self) -> torch.Size:
        """How many images there are, and theirs."""

    def take(self, numbers: Tensor) -> Tensor:
        """Return some of the images, in memory of the host."""

    def digest(self) -> str:
        """Return what tells these images from others."""


@dataclass(frozen=True)
class Held:
    """Images in memory of the host."""

    x: Tensor

    @property
    def shape(self) -> torch.Size:
        """Of all of them."""
        return self.x.shape

    def take(self, numbers: Tensor) -> Tensor:
        """Return some of them."""
        return self.x.index_select(0, numbers)

    def digest(self) -> str:
        """Return a checksum of the pixels."""
        return hashlib.blake2b(self.x.contiguous().numpy().data, digest_size=16).hexdigest()


@dataclass(frozen=True)
class OnDisk:
    """Images in a file, one after the other as they are in memory, whose checksum is known."""

    path: Path
    size: tuple[int, int, int, int]  # [n, c, h, w]
    checksum: str
    first: int = 0  # byte of the first one

    @property
    def shape(self) -> torch.Size:
        """Of all of them."""
        return torch.Size(self.size)

    def take(self, numbers: Tensor) -> Tensor:
        """Return some of them, read through a map of the file that lasts no longer: they alone take memory."""
        try:
            mapped = np.memmap(self.path, np.uint8, "r", self.first, self.size)
        except (OSError, ValueError) as error:
            raise EdblError(f"'{self.path}' cannot be read, or its size has changed ({error})") from error
        return torch.from_numpy(mapped[numbers.numpy()].view(np.ndarray))

    def digest(self) -> str:
        """Return the checksum."""
        return self.checksum


class Far:
    """Some images of several places, in an order of their own, for a device."""

    def __init__(self, rows: Sequence[Rows], numbers: Tensor, device: torch.device = CPU) -> None:
        self.rows, self.numbers, self.device = tuple(rows), numbers, device
        self.ends = np.cumsum([len_of(rows) for rows in self.rows])
        self.dtype, self.is_cuda = torch.uint8, device.type == "cuda"

    @classmethod
    def __torch_function__(cls, called: object, types: object, args: Any = (), kwargs: object = None) -> Any:
        """Let `torch.cat` put images together, of which some are far; they stay where they are."""
        return _cat(args[0]) if called is torch.cat and len(args) == 1 and not kwargs else NotImplemented

    @staticmethod
    def all_of(rows: Rows) -> "Far":
        """Return all images of a place."""
        return Far([rows], torch.arange(len_of(rows)))

    @property
    def shape(self) -> torch.Size:
        """Of all of them."""
        return torch.Size([len(self.numbers), *self.rows[0].shape[1:]])

    @property
    def ndim(self) -> int:
        """4, as of all images."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """How much memory they would take."""
        return self.shape.numel()

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Tensor | slice) -> "Far":
        return Far(self.rows, self.numbers[index if isinstance(index, slice) else index.cpu()], self.device)

    def to(self, device: torch.device) -> "Far":
        """Return the same for another device."""
        return Far(self.rows, self.numbers, device)

    def here(self) -> Tensor:
        """Return all of them on the device."""
        return self._brought(self._gathered(self.numbers))

    def float(self) -> Tensor:
        """Return all of them on the device as numbers with a fraction."""
        return self.here().float()

    def split(self, size: int) -> Iterator[Tensor]:
        """Yield so many at a time, on the device."""
        return self.batches(torch.arange(len(self)).split(size))

    def batches(self, picks: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield those of each pick, on the device; a few batches are on their way meanwhile."""
        numbers = [self.numbers[pick.cpu()] for pick in picks]
        with _reader() as read:
            coming: deque[Future[Tensor]] = deque()
            for place in range(len(numbers)):
                while len(coming) < AHEAD and place + len(coming) < len(numbers):
                    coming.append(read(self._gathered, numbers[place + len(coming)]))
                yield self._brought(coming.popleft().result())

    def digest(self) -> str:
        """Return what tells these images from others."""
        found = hashlib.blake2b("".join(rows.digest() for rows in self.rows).encode(), digest_size=16)
        found.update(self.numbers.numpy().data)
        return found.hexdigest()

    def _gathered(self, numbers: Tensor) -> Tensor:
        """Return images in memory of the host, from which a GPU can fetch them by itself."""
        found = torch.empty([len(numbers), *self.shape[1:]], dtype=torch.uint8, pin_memory=self.is_cuda)
        starts = [0, *self.ends.tolist()]
        for rows, first, last in zip(self.rows, starts, starts[1:], strict=False):
            own = ((numbers >= first) & (numbers < last)).nonzero().squeeze(1)
            if len(own):
                found[own] = rows.take(numbers[own] - first)
        return found

    def _brought(self, x: Tensor) -> Tensor:
        return x.to(self.device, non_blocking=True)


@contextmanager
def _reader() -> Iterator[Callable[..., "Future[Tensor]"]]:
    """Give what reads in threads; those that nobody waits for are given up."""
    pool = ThreadPoolExecutor(min(AHEAD, os.cpu_count() or 1))
    try:
        yield pool.submit
    finally:
        pool.shutdown(cancel_futures=True)


def len_of(rows: Rows) -> int:
    """Return how many images a place has."""
    return rows.shape[0]


def far(x: object) -> Far | None:
    """Return what stands for a tensor, if that is no tensor."""
    return x if isinstance(x, Far) else None


def as_tensor(x: Far) -> Tensor:
    """Return what stands for a tensor as one, for those who need not know."""
    return cast(Tensor, x)


def near(x: Tensor) -> Tensor:
    """Return images on the device, wherever they are."""
    apart = far(x)
    return x if apart is None else apart.here()


def _cat(parts: Sequence[Tensor]) -> Tensor:
    rows: list[Rows] = []
    numbers = []
    own = [Far.all_of(Held(part.cpu())) if (one := far(part)) is None else one for part in parts]
    for one in own:
        numbers.append(one.numbers + sum(map(len_of, rows)))
        rows += one.rows
    device = next(one.device for one in map(far, parts) if one is not None)
    return as_tensor(Far(rows, torch.cat(numbers), device))


def placed(parts: Sequence[Tensor], place: Place, device: torch.device) -> list[Tensor]:
    """Return the images of a data set where they are to be: on the device, or `Far` from it."""
    needed = sum(part.nbytes for part in parts)
    if place == "auto":
        on_disk = any(isinstance(part, Far) for part in parts)
        # What is in memory already takes no more of it where that is the device's.
        fits = needed <= SHARE * free(device) if on_disk or device.type == "cuda" else True
        place = "device" if fits else "disk" if on_disk and needed > SHARE * free(CPU) else "host"
    if place == "disk":
        return list(parts)
    if place == "host":
        return [as_tensor(Far.all_of(Held(near(part.to(CPU))))) if part.ndim == 4 else part for part in parts]
    return [near(part.to(CPU)) for part in parts]


def free(device: torch.device) -> int:
    """Return how many bytes of a device's memory are free, as far as is known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    found = [2**62]
    try:
        found += [1024 * int(line.split()[1]) for line in MEMINFO.read_text().splitlines() if "MemAvailable" in line]
    except (OSError, ValueError, IndexError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0)
    for path in LIMITS:
        try:
            found.append(int(path.read_text()))
        except (OSError, ValueError):  # there is none
            continue
    return min(found)
