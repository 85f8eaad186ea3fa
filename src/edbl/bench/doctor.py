"""What is installed here, which device computes, and what is missing for which command."""

import platform
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import NamedTuple

import torch

import edbl
from edbl.data.datasets import DATASETS
from edbl.data.download import data_dir
from edbl.engine.environment import commit, computes_bf16, cores, describe, pick_device, versions
from edbl.nets import cache

# What each extra of the package is for; `pyproject.toml` says what it installs.
EXTRAS = {
    "photos": "pretrained networks for `edbl learn`",
    "timm": "networks of timm, as `timm:NAME`",
    "heic": "HEIC photos",
    "export": "`edbl export`, and features in half the time on a CPU",
    "pandas": "`edbl.frame`",
    "serve": "`edbl serve`",
    "ray": "runs on a cluster, `--on`",
    "tune": "`edbl tune`",
    "tensorboard": "`--log tensorboard`",
    "wandb": "`--log wandb`",
    "mlflow": "`--log mlflow`",
    "docs": "`make site`",
    "dev": "the tests",
}
NAME = re.compile(r"[\w.-]+")
EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")
GIGABYTE = 1e9


class Finding(NamedTuple):
    """One line: what was looked at, how it is (``ok``, ``none`` or ``missing``), and in words."""

    what: str
    state: str
    told: str


def examine(data: Path | None = None) -> Iterator[Finding]:
    """Look at versions, the device, data sets, caches and extras."""
    found = versions()
    yield Finding("edbl", "ok", found.pop("edbl") + (f", commit {commit()[:12]}" if commit() else ""))
    yield Finding("system", "ok", f"{platform.platform()}, {cores()} cores")
    yield Finding("versions", "ok", ", ".join(f"{name} {number}" for name, number in found.items()))
    yield _device()
    yield from _data(data_dir(data))
    yield _features()
    yield from _extras()


def _device() -> Finding:
    """Say what `--device auto` computes on, and why it is no GPU."""
    device = pick_device("auto")
    bf16 = "computes bf16" if computes_bf16(device) else "no bf16"
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory / GIGABYTE
        return Finding("device", "ok", f"{describe(device)}, {memory:.0f} GB, {bf16}; `edbl bench --verify` tries it")
    if not (torch.version.cuda or torch.version.hip):
        why = "this PyTorch is built without GPUs: for one, install a build with CUDA or ROCm"
    elif shutil.which("nvidia-smi") is None:
        why = f"PyTorch is built for CUDA {torch.version.cuda}, but there is no NVIDIA driver"
    else:
        why = f"PyTorch is built for CUDA {torch.version.cuda}, but sees no GPU: does `nvidia-smi` show one?"
    return Finding("device", "none", f"{describe(device)}, {bf16}; {why}")


def _data(folder: Path) -> Iterator[Finding]:
    """Say which data sets that need a download are there."""
    wanting = {source.files: name for name, source in reversed(DATASETS.items()) if source.files}  # others share files
    here = [name for files, name in wanting.items() if all((folder / remote.name).is_file() for remote in files)]
    if here:
        yield Finding("data sets", "ok", f"in {folder}: {', '.join(here)}")
    if lacking := [name for name in wanting.values() if name not in here]:
        yield Finding("data sets", "none", f"not in {folder}: {', '.join(lacking)}; `edbl data fetch NAME` fetches one")


def _features() -> Finding:
    """Say where features of photos are kept, and how much they take."""
    kept = cache.usual()
    if kept is None:
        return Finding("features", "none", f"not kept, since ${cache.MOST} is 0")
    size = sum(file.stat().st_size for file in kept.folder.rglob("*") if file.is_file()) if kept.folder.is_dir() else 0
    return Finding("features", "ok", f"kept in {kept.folder}: {size / 1e6:,.0f} MB")


def _extras() -> Iterator[Finding]:
    """Say of each extra whether all that it needs is installed."""
    for extra, purpose in EXTRAS.items():
        packages = needed(extra)
        lacking = [name for name in packages if not _installed(name)]
        if not packages:
            yield Finding(f"edbl[{extra}]", "missing", f"{purpose}: this installation is older than it; install again")
        elif not lacking:
            yield Finding(f"edbl[{extra}]", "ok", purpose)
        else:
            told = f"{purpose}: pip install 'edbl[{extra}]' installs {', '.join(lacking)}"
            yield Finding(f"edbl[{extra}]", "missing", told)


def needed(extra: str) -> list[str]:
    """Return the packages that an extra needs."""
    stated = [(line, EXTRA.search(line)) for line in requires(edbl.__name__) or []]
    return [found[0] for line, of in stated if of and of[1] == extra and (found := NAME.match(line))]


def _installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False
