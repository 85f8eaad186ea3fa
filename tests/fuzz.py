"""Readers of files that may come from anywhere, each as a function of bytes, for a coverage-guided fuzzer.

``python -m tests.fuzz TARGET [SECONDS]`` runs atheris on one of them; it is no dependency, and is wanted in an
environment of its own (``pip install atheris``). It begins with the files of ``tests/corpus``, which tests read too.
"""

import hashlib
import importlib
import inspect
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from edbl import records, store
from edbl.app import begin
from edbl.app import bundle as disk
from edbl.app.estimator import EDBLClassifier
from edbl.data.decoding import decode
from edbl.errors import EdblError
from edbl.recipe import Recipe
from tests.campaign.forging import sign

CORPUS = Path(__file__).parent / "corpus"
FOLLOWED = {"edbl", "tomllib", "zipfile", "PIL"}
SIZE = 8  # side to which images are decoded


@cache
def place() -> Path:
    """Return a folder for the file that is read; of memory, where there is such a thing."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))


def recipe(data: bytes) -> None:
    """Read a recipe."""
    path = place() / "recipe.toml"
    path.write_bytes(data)
    Recipe.read(path)


def record(data: bytes) -> None:
    """Read the record of a run without a checksum, as older ones are."""
    (place() / records.RECORD).write_bytes(data)
    if not (place() / records.CONFUSIONS).exists():
        (place() / records.CONFUSIONS).write_bytes((CORPUS / "npz" / "two-tasks").read_bytes())
    records.read(place())


def npz(data: bytes) -> None:
    """Read the confusion matrices of a run, and features."""
    (place() / records.CONFUSIONS).write_bytes(data)
    (place() / records.RECORD).write_bytes((CORPUS / "record" / "two-tasks").read_bytes())
    records.read(place())


def features(data: bytes) -> None:
    """Read the features that were kept with a run."""
    (place() / records.FEATURES).write_bytes(data)
    records.read_features(place())


def model(data: bytes) -> None:
    """Read what a model says of itself, with a right checksum."""
    _signed(place() / disk.MODEL, data)
    disk.read(place())


def begun(data: bytes) -> None:
    """Read an increment that was begun, with a right checksum."""
    (place() / disk.INCREMENT).mkdir(exist_ok=True)
    _signed(place() / disk.INCREMENT / disk.BEGUN, data)
    begin.read(place())


def estimator(data: bytes) -> None:
    """Read an estimator, with a right checksum and no tensors."""
    _signed(place() / "estimator.json", data)
    EDBLClassifier.load(place())


def tensors(data: bytes) -> None:
    """Read tensors whose checksum is right."""
    (place() / "x.safetensors").write_bytes(data)
    store.tensors_of(place(), "x", hashlib.sha256(data).hexdigest())


def image(data: bytes) -> None:
    """Read an image."""
    path = place() / "image"
    path.write_bytes(data)
    found = decode(path, SIZE)
    if found.pixels is None:
        raise EdblError(found.bad)
    assert found.pixels.shape == (3, SIZE, SIZE)
    assert found.pixels.dtype == np.uint8


def _signed(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with suppress(ValueError, RecursionError):
        if isinstance(json.loads(data), dict):
            sign(path)


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    one.__name__: one for one in (recipe, record, npz, features, model, begun, estimator, tensors, image)
}


def read(target: str, data: bytes) -> bool:
    """Let a reader read; tell whether it took the data. All but a message to users is an error."""
    try:
        TARGETS[target](data)
    except EdblError as error:
        told = str(error)
    else:
        return True
    assert len(told) < 5000  # which somebody may read
    return False


def _functions() -> Iterator[FunctionType]:
    """Yield the functions whose lines the fuzzer follows."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in FOLLOWED and module is not None:
            for thing in vars(module).values():
                inner = vars(thing).values() if inspect.isclass(thing) else [thing]
                yield from (one for one in inner if inspect.isfunction(one) and one.__module__ == name)


def main() -> None:
    """Run the fuzzer on one of the readers."""
    atheris: Any = importlib.import_module("atheris")
    target, seconds = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "60"
    for function in _functions():
        atheris.instrument_func(function)
    with tempfile.TemporaryDirectory() as found:  # what it finds that reaches new lines
        for path in (CORPUS / target).iterdir():
            shutil.copy(path, found)
        options = [f"-max_total_time={seconds}", "-max_len=20000", "-timeout=10", "-rss_limit_mb=3000"]
        atheris.Setup([sys.argv[0], *options, found], partial(read, target))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
