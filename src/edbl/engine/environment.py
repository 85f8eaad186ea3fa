"""What a run ran on: device, versions, commit."""

import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

import edbl
from edbl import group
from edbl.data.devices import check, placed
from edbl.errors import EdblError

PART = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"  # of a GPU's multiprocessors, for one process under NVIDIA's service
CPUINFO = Path("/proc/cpuinfo")
MEMORY = Path("/proc/meminfo")
ALLOWED = Path("/sys/fs/cgroup/memory.max")  # bytes that a container may have
RUN_BYTES = 2**30  # of memory that a run may take; one on a part of CIFAR-10 takes 0.6 of it
notes: list[str] = []  # what records should say of this process


def pick_device(wanted: str) -> torch.device:
    """Return the device for ``auto``, or for the name of one, such as ``cuda:1`` or ``mps``.

    Of several GPUs, one that is named by its number is the process's own from now on: kernels start on that one.
    """
    check(wanted)
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(wanted)
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EdblError(f"device {wanted} is wanted, but PyTorch sees no GPU; use device auto or cpu")
    if device.type not in accelerators():
        raise EdblError(f"device {wanted} is wanted, but PyTorch has no such device here; use device auto or cpu")
    if device.index is not None and device.index >= (there := count(device)):
        raise EdblError(f"device {wanted} is wanted, but there {'is' if there == 1 else 'are'} {there} of them")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device


def accelerators() -> set[str]:
    """Return the types of devices that PyTorch has here, beside the CPU."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return {"cuda"} if torch.cuda.is_available() else {found.type} if found else set()


def count(device: torch.device) -> int:
    """Return how many devices of a type there are."""
    return torch.cuda.device_count() if device.type == "cuda" else torch.accelerator.device_count()


def gpus(wanted: str) -> list[int]:
    """Return the numbers of the GPUs that several runs may share out among them, if they are to compute on any."""
    device = pick_device(wanted)
    if device.type != "cuda":
        return []
    return list(range(count(device))) if device.index is None else [device.index]


def computes_bf16(device: torch.device) -> bool:
    """Tell whether a device has instructions for bf16; others take up to hundreds of times as long for it."""
    if device.type == "cuda":
        return bool(torch.version.hip) or torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu":
        return bool(_flags() & {"avx512_bf16", "amx_bf16", "bf16"})
    try:
        return bool(torch.ones(2, dtype=torch.bfloat16, device=device).sum() == 2)
    except (RuntimeError, TypeError):
        return False


@cache
def _flags() -> frozenset[str]:
    """Return what the CPU can do, by the names that Linux has for it; elsewhere nothing is known."""
    try:
        text = CPUINFO.read_text()
    except OSError:
        return frozenset()
    lines = (line.partition(":") for line in text.splitlines())
    return frozenset(word for key, _, value in lines if key.strip() in ("flags", "Features") for word in value.split())


def in_bf16(precision: str, device: torch.device) -> bool:
    """Return whether forward passes of training are in bf16; by itself, only a GPU that computes it has them so."""
    return precision == "bf16" or (precision == "auto" and device.type == "cuda" and computes_bf16(device))


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse bf16 where it would take up to hundreds of times as long."""
    if precision == "bf16" and not computes_bf16(device):
        lacks = "has neither avx512_bf16 nor amx_bf16" if device.type == "cpu" else "has no instructions for it"
        raise EdblError(
            f"precision bf16 is wanted, but {describe(device)} {lacks}, and would take many times as long; "
            "use precision auto or fp32"
        )


def cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_cores() -> int:
    """Return how many runs the CPU makes at a time: one for each thread that it has for them, if memory allows.

    Small networks gain little from a second thread, and as much as there is from a second run.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    threads = int(asked) if asked.isdecimal() else 1
    return max(1, min(cores() // max(1, threads), free() // RUN_BYTES))


def free() -> int:
    """Return the bytes of memory that programs may still take, as Linux has them; elsewhere as if there were enough."""
    found = [sys.maxsize]
    with suppress(OSError):
        found += [1024 * int(kib) for kib in re.findall(r"^MemAvailable:\s+(\d+) kB", MEMORY.read_text(), re.MULTILINE)]
    with suppress(OSError, ValueError):
        found.append(int(ALLOWED.read_text()))  # or "max"
    return min(found)


def describe(device: torch.device) -> str:
    """Return the device's name for a record, how much of it the run had, and how many processes shared the run."""
    return _named(device) + (f", {group.size()} processes" if group.size() > 1 else "")


def _named(device: torch.device) -> str:
    if device.type == "cuda":
        part = os.environ.get(PART, "100")
        number = f", {placed(device)}" if torch.cuda.device_count() > 1 and group.size() == 1 else ""
        return torch.cuda.get_device_name(device) + number + (f", {part}% of it" if part != "100" else "")
    if device.type != "cpu":
        return f"{device} ({platform.machine()})"
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


def versions() -> dict[str, str]:
    """Return the versions that decide what a run computes."""
    packages = {name: version(name) for name in ("torch", "numpy", "scikit-learn")}
    return {"edbl": edbl.__version__, "python": platform.python_version(), **packages}


def commit() -> str:
    """Return the commit this package runs from: ``EDBL_COMMIT``, or what git says of a checkout, or nothing."""
    if given := os.environ.get("EDBL_COMMIT"):
        return given
    here = Path(edbl.__file__).parent
    try:
        _git(here, "ls-files", "--error-unmatch", "__init__.py")  # not of a repository that only encloses it
        head = _git(here, "rev-parse", "HEAD")
        return head + ("-dirty" if _git(here, "status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
