"""Readers of files that may come from anywhere, each as a function of bytes, for a coverage-guided fuzzer.

``python -m tests.fuzz TARGET [SECONDS [SEED]]`` runs atheris on one of them; it is no dependency, and is wanted in an
environment of its own (``pip install atheris``). It begins with the files of ``tests/corpus``, which tests read too.
There it leaves, by their checksums, those that reach new lines or are an error: commit what is small, drop the rest.
"""

import asyncio
import hashlib
import importlib
import inspect
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from fastapi import Request

from edbl import pulse, records, store
from edbl.app import begin, importers
from edbl.app import bundle as disk
from edbl.app.estimator import EDBLClassifier
from edbl.data.decoding import decode
from edbl.errors import EdblError
from edbl.recipe import Recipe
from edbl.serve import uploads
from edbl.serve.declared import check
from edbl.serve.limits import Limits
from edbl.serve.refusals import Refused
from edbl.serve.schema import Labels
from edbl.serve.staged import Staged
from edbl.text import is_class_name
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


def requests(data: bytes) -> None:
    """Read the form of a request: its first line is its type."""
    kind, _, body = data.partition(b"\n")
    request = Request({"type": "http", "headers": [(b"content-type", kind)]})
    request._body = body
    with refusals():
        form = asyncio.run(uploads.form(request, Limits(), True))
        assert all(map(is_class_name, form.labels))
        assert len(form.labels) == len(form.files)


def bodies(data: bytes) -> None:
    """Read the JSON of a request."""
    request = Request({"type": "http", "headers": [(b"content-type", b"application/json")]})
    request._body = data
    with refusals():
        asyncio.run(uploads.body(request, Labels))


@contextmanager
def refusals() -> Iterator[None]:
    """Let what a client is told be what a user would be."""
    try:
        yield
    except Refused as error:
        raise EdblError(error.why) from error


def lists(data: bytes) -> None:
    """Read a list of photos: its first line is what its name ends in."""
    kind, _, text = data.partition(b"\n")
    (place() / "lists").mkdir(exist_ok=True)
    (place() / "lists" / "a.png").touch()
    path = place() / "lists" / f"list.{kind.decode() if kind in (b'csv', b'json', b'xml') else 'csv'}"
    path.write_bytes(text)
    found, _ = importers.find([path])
    assert all(is_class_name(photo.name) for photo in found)


def staged(data: bytes) -> None:
    """Read what waits for an update of a model that is served, with a right checksum."""
    (place() / disk.STAGED).mkdir(exist_ok=True)
    (place() / disk.STAGED / f"{'0' * 32}.png").touch()
    _signed(place() / disk.STAGED / f"{1:020}-{'0' * 32}.json", data)
    if not (waiting := Staged(place()).waiting()):
        raise EdblError("nothing waits")
    assert all(is_class_name(one.label) for one in waiting.values())


def beat(data: bytes) -> None:
    """Read how far a run is."""
    (place() / pulse.PULSE).write_bytes(data)
    if (found := pulse.read(place())) is None:
        raise EdblError("there is no pulse")
    assert found.beats in (True, False)


def _signed(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with suppress(ValueError, RecursionError):
        if isinstance(json.loads(data), dict):
            sign(path)


def declared(data: bytes) -> None:
    """Look through an ONNX file."""
    try:
        check(data)
    except ValueError as error:
        raise EdblError(str(error)) from error


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    one.__name__: one for one in (recipe, record, npz, features, model, begun, estimator, tensors, image)
} | {one.__name__: one for one in (requests, bodies, lists, staged, beat, declared)}


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
    target, seconds, seed = (*sys.argv[1:], *("60", "1")[len(sys.argv) - 2 :])
    for function in _functions():
        atheris.instrument_func(function)
    options = [f"-max_total_time={seconds}", "-max_len=20000", "-timeout=10", "-rss_limit_mb=3000", f"-seed={seed}"]
    found = str(CORPUS / target)
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={found}/", found], partial(read, target))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
