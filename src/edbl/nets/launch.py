"""How the kernels of `edbl.nets.kernels` are started on a device.

What decides in which order a kernel adds numbers is the same on every device: `SUMS`. What does not is free, and a
device may have a table of its own for it: how many registers a program may take, and how the kernels are cut up that
add nothing across pixels. So results do not depend on tables, nor on a search for a better one (`edbl bench --tune`).
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from edbl import store
from edbl.errors import EdblError

WIDTHS = (16, 32, 64)  # output channels for which there are kernels
REGISTERS = (0, 128, 168)  # for each thread: as many as the compiler likes, or so many that 4 or 3 programs fit
BLOCKS, WARPS = (32, 64, 128, 256), (4, 8)  # of kernels that add nothing across pixels
FORMAT = 1  # of a table that is kept


class Launch(NamedTuple):
    """How a kernel is started."""

    block: int  # groups of pixels that a program takes at a time
    warps: int
    programs: int = 0  # at most
    rows: int = 1  # kernel rows for which a program sums gradients of weights
    tall: int = 1  # rows of pixels that are worked out together, where the stride allows


class Free(NamedTuple):
    """What a table may say of a kernel; 0 is as everywhere."""

    registers: int = 0  # for each thread, at most
    block: int = 0
    warps: int = 0


# By kernel and output channels, as measured best on an H200: one run with 128 and 600 images a step, six side by side.
SUMS: Mapping[str, Mapping[int, Launch]] = {
    "forward": {16: Launch(128, 4, 396, tall=2), 32: Launch(128, 4, 264), 64: Launch(64, 4, 264)},
    "data": {16: Launch(256, 4, 264), 32: Launch(128, 4, 264), 64: Launch(64, 4, 264)},
    "weight": {16: Launch(128, 4, 264, rows=3, tall=2), 32: Launch(64, 8, 64), 64: Launch(64, 8, 32)},
    "pool": {16: Launch(128, 8, 512), 32: Launch(64, 8, 512), 64: Launch(32, 8, 512)},
}
# Likewise, of kernels that add nothing across pixels. TALL is no order of sums, but another program.
ALONE: Mapping[str, Mapping[int, Launch]] = {
    "infer": {16: Launch(64, 4, tall=2), 32: Launch(64, 4, tall=2), 64: Launch(64, 4)},
    "activate": {16: Launch(128, 8), 32: Launch(64, 8), 64: Launch(32, 8)},
}
USUAL = {**SUMS, **ALONE}
Table = Mapping[str, Free]  # by kernel and width, as in ``forward.16``; what is missing is as everywhere

MEASURED = (9, 0)  # the capability whose table was measured; the others are by reasoning, as follows
# Before Hopper, sums stand in registers, and a teacher's program for 32 channels needs more than there are: as many
# again in 8 warps. With 168 registers three programs fit on a multiprocessor instead of two, so that 264 of them are
# there at once on 108 (A100) or 128 (RTX 4090) multiprocessors, for the spilling of 28 registers; not on the 84 of 8.6.
_WIDE: Table = {"infer.32": Free(0, 64, 8)}
_AT_ONCE: Table = {**_WIDE, "forward.64": Free(168), "data.64": Free(168)}
TABLES: Mapping[tuple[int, int], Table] = {
    (8, 0): _AT_ONCE,
    (8, 6): _WIDE,
    (8, 9): _AT_ONCE,
    MEASURED: {},
    (12, 0): _WIDE,
}


def table(device: torch.device) -> Table:
    """Return the table of a device: what a search there kept, or that of its compute capability."""
    if device.type != "cuda" or torch.version.hip:
        return {}
    return kept(device) or TABLES.get(torch.cuda.get_device_capability(device), {})


def chains(device: torch.device) -> bool:
    """Tell whether a kernel can be started while the one before it ends, as since Hopper."""
    return device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device) >= (9, 0)


def started(table: Table, kernel: str, width: int) -> tuple[Launch, dict[str, Any]]:
    """Return how a kernel is started, and the arguments for it that Triton has."""
    usual, free = USUAL[kernel][width], table.get(f"{kernel}.{width}", Free())
    launch = usual._replace(block=free.block or usual.block, warps=free.warps or usual.warps)
    return launch, {"num_warps": launch.warps} | ({"maxnreg": free.registers} if free.registers else {})


def choices(kernel: str) -> list[Free]:
    """Return what a table may say of a kernel, the usual first."""
    if kernel in SUMS:
        return [Free(registers) for registers in REGISTERS]
    return [Free()] + [Free(0, block, warps) for block in BLOCKS for warps in WARPS if block >= 64 or kernel != "infer"]


def folder() -> Path:
    """Return where what is found out about devices is kept."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "edbl" / "devices"


def identity(device: torch.device) -> dict[str, str]:
    """Return what tells a GPU and what is installed for it from others."""
    driver = ""
    with suppress(OSError):
        driver = store.read_file(Path("/proc/driver/nvidia/version"), 4096).decode(errors="replace").split("\n")[0]
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return {"device": torch.cuda.get_device_name(device), "capability": capability, "driver": driver}


def kept(device: torch.device) -> Table:
    """Return the table that a search kept for a device; anything else than a choice of ours counts as nothing."""
    with suppress(OSError, EdblError, ValueError):
        entry = store.read(folder(), name("table", identity(device)), dict[str, list[int]], FORMAT)
        found = {key: Free(*values) for key, values in entry.value.items() if len(values) == 3}
        if found.keys() == entry.value.keys() and fits(found):
            return found
    return {}


def fits(table: Table) -> bool:
    """Tell whether a table says nothing but what a search may choose."""
    names = {f"{kernel}.{width}": kernel for kernel in USUAL for width in WIDTHS}
    return all(key in names and free in choices(names[key]) for key, free in table.items())


def keep(device: torch.device, table: Table) -> Path:
    """Keep a table for a device; return the file."""
    place = folder()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EdblError(f"cannot make folder {place}: {error.strerror}") from error
    file = name("table", identity(device))
    store.save(place, file, {key: list(free) for key, free in table.items()}, format=FORMAT)
    return place / f"{file}.json"


def name(kind: str, facts: Mapping[str, str]) -> str:
    """Return the name of what is kept under some facts."""
    return f"{kind}-{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]}"
