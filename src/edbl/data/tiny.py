"""Tiny-ImageNet-200: its zip or unpacked folder, and the decoded images that are kept beside it."""

import io
import os
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from edbl import store
from edbl.data import download
from edbl.data.download import Remote, Wrong
from edbl.data.images import Dataset, Images, odd_counts
from edbl.data.threads import in_threads
from edbl.errors import EdblError

FILE = Remote(
    name="tiny-imagenet-200.zip",
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    md5="90528d7ca1a48142e341f4ef8d21d0de",
    size=248_100_043,
    dataset="tiny-imagenet",
)
CACHE = "tiny-imagenet-200"
FORMAT = 1  # of the cache; a change of how images are read or ordered needs a new one
CHUNK = 256  # images that one thread reads at a time


def load(folder: Path) -> Dataset:
    """Read Tiny-ImageNet-200 from its zip or its unpacked folder; its val split is the test set.

    Classes are in the order of their sorted WordNet ids. The decoded images are kept beside the source, where the
    next call finds them.
    """
    archive, unpacked = folder / FILE.name, folder / "tiny-imagenet-200"
    names = [] if archive.exists() or not unpacked.is_dir() else _file_names(unpacked)
    source = f"zip {FILE.md5}" if archive.exists() else f"folder of {len(names)} files" if names else ""
    dataset = _read_cache(folder, source)
    if dataset:
        return dataset
    if archive.exists():
        download.verify(FILE, folder)
        with download.open_zip(archive) as file:
            dataset = _decode(_Files(archive, file.namelist(), file.read))
    elif names:
        dataset = _decode(_Files(unpacked, names, lambda name: store.read_file(folder / name)))
    else:
        raise download.missing(FILE, folder)
    if not os.access(folder, os.W_OK):
        note = f"{folder} cannot be written to: the images will be decoded again each time"
        return replace(dataset, notes=(*dataset.notes, note))
    _write_cache(folder, source, dataset)
    return dataset


@dataclass(frozen=True)
class _Files:
    """The files of Tiny-ImageNet, in its zip or unpacked."""

    where: Path
    names: Sequence[str]
    read: Callable[[str], bytes]

    def content(self, name: str) -> bytes:
        try:
            return self.read(name)
        except (KeyError, FileNotFoundError) as error:
            raise Wrong(f"{self.where} is incomplete: it has no {name}") from error
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise Wrong(f"{self.where} is damaged at {name} ({error})") from error

    def lines(self, name: str) -> list[list[str]]:
        """Return the tab-separated fields of a text file."""
        text = self.content(f"tiny-imagenet-200/{name}").decode(errors="replace")
        return [line.split("\t") for line in text.splitlines() if line.strip()]

    def image(self, name: str) -> npt.NDArray[np.uint8]:
        content = self.content(name)
        try:
            with Image.open(io.BytesIO(content), formats=("JPEG",)) as image:
                pixels = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
        except Exception as error:  # Pillow answers damaged files with exceptions of every kind
            raise Wrong(f"{self.where} has a damaged image, {name} ({error})") from error
        if pixels.shape != (3, 64, 64):
            raise Wrong(f"{self.where} has an image that is not 64x64, {name}")
        return pixels


def _file_names(unpacked: Path) -> list[str]:
    """Return the files below ``unpacked`` as the zip would name them."""
    return [
        (Path(folder) / name).relative_to(unpacked.parent).as_posix()
        for folder, _, names in os.walk(unpacked)
        for name in names
    ]


def _decode(files: _Files) -> Dataset:
    wnids = sorted(fields[0] for fields in files.lines("wnids.txt"))
    label = {wnid: k for k, wnid in enumerate(wnids)}
    # tiny-imagenet-200/train/WNID/images/NAME.JPEG, which sorts by class first
    train = [(name, name.split("/")[2]) for name in sorted(files.names) if _is_training_image(name)]
    test = [(f"tiny-imagenet-200/val/images/{f[0]}", f[1]) for f in files.lines("val/val_annotations.txt") if f[1:]]
    for name, wnid in (*train, *test):
        if wnid not in label:
            raise Wrong(f"{files.where} gives {name} the class {wnid}, which wnids.txt does not have")
    if not train or not test:
        raise Wrong(f"{files.where} is incomplete: it has no training or no validation images")
    splits = [
        Images(_pixels(files, [name for name, _ in split], title), torch.tensor([label[wnid] for _, wnid in split]))
        for split, title in ((train, "Tiny-ImageNet training images"), (test, "Tiny-ImageNet test images"))
    ]
    return _dataset(splits[0], splits[1], _classes(files, wnids))


def _is_training_image(name: str) -> bool:
    parts = name.split("/")
    return parts[:2] == ["tiny-imagenet-200", "train"] and len(parts) == 5 and name.endswith(".JPEG")


def _pixels(files: _Files, names: Sequence[str], title: str) -> torch.Tensor:
    x = np.empty((len(names), 3, 64, 64), np.uint8)

    def fill(start: int) -> None:
        for k in range(start, min(start + CHUNK, len(names))):
            x[k] = files.image(names[k])

    in_threads(fill, range(0, len(names), CHUNK), title)
    return torch.from_numpy(x)


def _classes(files: _Files, wnids: Sequence[str]) -> tuple[str, ...]:
    """Return the first synonym of each class, with the WordNet id where two classes share it."""
    words = {fields[0]: fields[-1].split(",")[0].strip() for fields in files.lines("words.txt")}
    names = [words.get(wnid, wnid) for wnid in wnids]
    counts = Counter(names)
    return tuple(name if counts[name] == 1 else f"{name} ({wnid})" for name, wnid in zip(names, wnids, strict=True))


def _dataset(train: Images, test: Images, classes: tuple[str, ...]) -> Dataset:
    return Dataset("tiny-imagenet", train, test, classes, odd_counts(train, test, 100_000, 10_000))


@dataclass(frozen=True)
class _Cached:
    """What the decoded images of Tiny-ImageNet were read from, and their classes."""

    source: str
    classes: tuple[str, ...]


def _read_cache(folder: Path, source: str) -> Dataset | None:
    """Return the decoded images kept in a folder if they are of this source, or if they are all there is."""
    found = store.find(folder, CACHE, _Cached, FORMAT)
    if found is None or source not in ("", found[0].source):
        return None
    cached, tensors = found
    if tensors.keys() != {f"{split}.{part}" for split in ("train", "test") for part in ("x", "y")}:
        return None
    train, test = (Images(tensors[f"{s}.x"], tensors[f"{s}.y"]) for s in ("train", "test"))
    return _dataset(train, test, cached.classes)


def _write_cache(folder: Path, source: str, dataset: Dataset) -> None:
    splits = {"train": dataset.train, "test": dataset.test}
    tensors = {f"{name}.{part}": getattr(images, part) for name, images in splits.items() for part in ("x", "y")}
    for left in folder.glob(f".{CACHE}.*.tmp"):
        if time.time() - left.stat().st_mtime > download.ABANDONED:
            left.unlink(missing_ok=True)
    try:
        store.save(folder, CACHE, _Cached(source, dataset.classes), tensors, FORMAT)
    except EdblError as error:
        raise EdblError(f"{error}\nmake room there, or set another data folder") from error
