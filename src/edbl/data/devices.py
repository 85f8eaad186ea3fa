"""Devices: their names, and which kernels of our own may run there: those that a trial has not refused."""

from functools import cache
from importlib.util import find_spec

import torch

from edbl.errors import unknown

NAMES = ("auto", "cpu", "cuda", "cuda:1", "mps", "xpu")  # among others
_refused: set[tuple[str, torch.device]] = set()


def check(name: str) -> None:
    """Refuse what is the name of no device, be it here or elsewhere."""
    try:
        known = name == "auto" or torch.device(name).type != "meta"
    except RuntimeError:
        known = False
    if not known:
        raise unknown("value of device", name, NAMES)


@cache
def has_triton() -> bool:
    """Tell whether Triton, which compiles them, is installed."""
    return find_spec("triton") is not None


def usable(kernel: str, device: torch.device) -> bool:
    """Tell whether a kernel, or a ``graph`` of all that runs, may be used on a device."""
    known = device.type == "cuda" and (kernel, placed(device)) not in _refused
    return known and (kernel == "graph" or has_triton())


def refuse(kernel: str, device: torch.device) -> None:
    """Let PyTorch compute on a device what a kernel would."""
    _refused.add((kernel, placed(device)))


def allow(device: torch.device) -> None:
    """Let all kernels run on a device again."""
    _refused.difference_update([one for one in _refused if one[1] == placed(device)])


def placed(device: torch.device) -> torch.device:
    """Return a device with its number, which of a GPU is the current one's unless it is given."""
    numbered = device.type != "cuda" or "cuda:" in str(device)
    return device if numbered else torch.device("cuda", torch.cuda.current_device())
