"""What a run ran on: device, versions, commit."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch

import edbl
from edbl.errors import EdblError

PART = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"  # of a GPU's multiprocessors, for one process under NVIDIA's service


def pick_device(wanted: str) -> torch.device:
    """Return the device for ``auto``, ``cpu`` or ``cuda``."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise EdblError("device cuda was asked for, but PyTorch sees no GPU; use device auto or cpu")
    use_gpu = wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if use_gpu else "cpu")


def cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe(device: torch.device) -> str:
    """Return the device's name for a record, and how much of it the run had."""
    if device.type == "cuda":
        part = os.environ.get(PART, "100")
        return torch.cuda.get_device_name(device) + (f", {part}% of it" if part != "100" else "")
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
