"""What cases begin with: runs, models and an estimator, in each state that one of them may be left in."""

import hashlib
import json
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from edbl.app import places
from edbl.errors import EdblError
from edbl.store import TEMPORARY
from tests.campaign.child import Action, Child, Watch, command, die
from tests.photos import write_digits

SHORT = ["--data", "digits", "--preset", "quick", "--set", "net.backbone=mlp", "--set", "checkpoint_seconds=0",
         "--set", "stream.tasks=2", "--set", "schedule.epochs=3", "--set", "memory=total=25"]  # fmt: skip
RUN = ["run", "edbl", *SHORT, "--set", "options.balance.epochs=2", "--out", "run"]
MANY = ["run", "rkd", "finetune", *SHORT, "--out", "runs", "--at-once", 2]
SWEEP = ["study", "study.toml", "--runs", "runs", "--results", "results", "--at-once", 2]
STUDY = """question = "Which?"
method = "rkd"
[settings]
preset = "quick"
net.backbone = "mlp"
schedule.epochs = 2
checkpoint_seconds = 0
memory = "total=25"
[streams.digits]
data.name = "digits"
data.holdout = 0.2
stream.tasks = 2
[candidates.one]
[candidates.two]
options.temperature = 4.0
"""
SEARCH = """sampler = "random"
classifier = "nme"
[settings]
schedule.epochs = 1
data.holdout = 0.3
[space]
optim.warmup = { low = 0, high = 2 }
optim.kind = ["sgd"]
schedule.lr = { low = 0.01, high = 0.1, log = true }
"""
TUNE = ["tune", "finetune", *SHORT, "--search", "space.toml", "--trials", 2,
        "--out", "search"]  # fmt: skip
QUICK = ["--backbone", "mlp", "--image-size", 8, "--device", "cpu", "--set", "data.augment=none",
         "--set", "schedule.epochs=3", "--set", "options.balance.epochs=2"]  # fmt: skip
LEARN, MORE = ["learn", "model", "photos", *QUICK], ["learn", "model", "more", "--set", "checkpoint_seconds=0"]
VOLATILE = {"date", "learnt", "refreshed", "seconds", "began"}  # what a model says of times
ESTIMATOR = "saved"
NOTED = (".cache", "edbl", "features", places.FOLDER)  # below the home
OF_PYTORCH = "torchinductor_root"  # an empty folder that it makes where temporary files go


@cache
def vectors() -> tuple[Any, Any]:
    """Return samples of four classes."""
    rng = np.random.default_rng(0)
    y = np.arange(40) % 4
    return rng.normal(size=(40, 4)) + y[:, None], y


def _classifier() -> Any:
    from edbl.app.estimator import EDBLClassifier

    return EDBLClassifier


def fit_and_save(rounds: int = 1) -> None:
    """Save an estimator of two classes, or of four."""
    x, y = vectors()
    made = _classifier()(epochs=2, memory="total=10", device="cpu", random_state=0)
    for number in range(rounds):
        here = y // 2 == number
        made.partial_fit(x[here], y[here])
    try:
        made.save(ESTIMATOR)
    except (EdblError, OSError) as error:  # which is for who called it to handle
        print(error)
        sys.exit(2)


def write_study() -> None:
    """Ask which of two settings is better."""
    Path("study.toml").write_text(STUDY)


def write_search() -> None:
    """Say what a search may try."""
    Path("space.toml").write_text(SEARCH)


def load_and_predict() -> None:
    """Do as a user of somebody's estimator does."""
    print(_classifier().load(ESTIMATOR).predict(vectors()[0]).tolist())


def load_and_learn() -> None:
    """Let somebody's estimator learn."""
    x, y = vectors()
    print(len(_classifier().load(ESTIMATOR, epochs=1).partial_fit(x[y > 1], y[y > 1]).classes_))


def prepare(folder: Path) -> None:
    """Make everything that cases begin with, each in a folder of its own; what is there already stays."""
    steps: Mapping[str, tuple[str, list[Action | tuple[Action, Watch]]]] = {
        "nothing": ("", []),
        "stopped": ("", [(command(*RUN), Watch(1, die, wanted="task-1-phase-0-epoch-2.json"))]),
        "done": ("", [command(*RUN)]),
        "asked": ("", [write_study]),
        "logged": ("", [(command(*RUN, "--log", "tensorboard"), Watch(1, die, wanted="task-1-phase-0-epoch-2.json"))]),
        "space": ("", [write_search]),
        "searched": ("space", [command(*TUNE)]),
        "model": ("", [command(*LEARN)]),
        "changed": ("model", [command(*MORE)]),
        "begun": ("model", [(command(*MORE), Watch(1, die, wanted="task-1-phase-0-epoch-2.json"))]),
        "first": ("", [(command(*LEARN, "--set", "checkpoint_seconds=0"), Watch(1, die, wanted="epoch-1.json"))]),
        "estimator": ("", [fit_and_save]),
    }
    for name, (of, actions) in steps.items():
        place = folder / name
        if place.is_dir():
            continue
        making = folder / "making"
        shutil.rmtree(making, ignore_errors=True)
        if of:
            shutil.copytree(folder / of, making)
        else:
            write_digits(making / "photos", {1: 8, 2: 8})
            write_digits(making / "more", {3: 8, 1: 3}, start=8)
            for empty in ("outside", "home", "tmp"):
                (making / empty).mkdir()
            (making / "outside" / "task-list.json").write_text("precious")
            (making / "outside" / "task-2024.safetensors").write_text("precious")
        for action in actions:
            action, first = action if isinstance(action, tuple) else (action, None)
            end = Child(in_place(making, action), making / "tmp" / "log", *([first] if first else [])).wait()
            assert end.code == (-9 if first else 0), (name, end)
            (making / "tmp" / "log").unlink()
        making.rename(place)


def in_place(place: Path, action: Action) -> Action:
    """Return what does something with a folder as the current one and as home."""
    import os

    def there() -> None:
        os.chdir(place)
        os.environ.update(HOME=str(place / "home"), TMPDIR=str(place / "tmp"), XDG_CACHE_HOME=str(place / "home"))
        action()

    return there


def tree(folder: Path) -> dict[str, str]:
    """Return what is in a folder, in a few words for each path, but for where photos of a model lie: edbl notes it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.parent.parts[-len(NOTED) :] == NOTED and path.suffix == ".json":
            continue
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not path.is_symlink() else ""
        found[path.relative_to(folder).as_posix()] = f"{path.lstat().st_mode:o} {content}"
    return found


def result(folder: Path) -> dict[str, Any]:
    """Return what a run, a model or an estimator has come to: all that is the same however often it was stopped."""
    if (folder / "record.json").exists():
        return _of_run(folder)
    found: dict[str, Any] = {}
    for name in ("model", "estimator"):
        if (folder / f"{name}.json").exists():
            stored = json.loads((folder / f"{name}.json").read_bytes())
            found |= {"values": _steady(stored["values"]), "tensors": stored["tensors"]}
    inner = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return found | {"files": sorted(name for name in inner if name != ".lock")}


def _of_run(folder: Path) -> dict[str, Any]:
    record = json.loads((folder / "record.json").read_bytes())
    keys = ("status", "accuracy", "losses", "within", "kept", "classes", "task_sizes", "data_fingerprint")
    found: dict[str, Any] = {key: record[key] for key in keys}
    for name in ("confusions.npz", "features.npz"):
        with suppress(FileNotFoundError), np.load(folder / name) as arrays:
            found[name] = {key: hashlib.sha256(arrays[key].tobytes()).hexdigest() for key in sorted(arrays)}
    for path in sorted((folder / "checkpoints").glob("*.safetensors")):
        found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _steady(item) for key, item in value.items() if key not in VOLATILE}
    return [_steady(item) for item in value] if isinstance(value, list) else value


def left_behind(place: Path) -> list[str]:
    """Return temporary files and such that nobody will remove."""
    found = [path for path in place.rglob("*") if TEMPORARY.fullmatch(path.name) or path.name.endswith(".new")]
    found += [path for path in (place / "tmp").iterdir() if path.name != OF_PYTORCH]
    return sorted(path.relative_to(place).as_posix() for path in found)
