"""The data sets that have a name, and the one way to load any data set."""

import gzip
import io
import math
import os
import struct
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.nn import functional

from edbl import store
from edbl.data import blocks, download
from edbl.data.download import Remote
from edbl.data.folder import load_folder
from edbl.data.images import Dataset, Images
from edbl.data.threads import in_threads
from edbl.errors import EdblError, unknown

CIFAR10 = Remote(
    name="cifar-10-binary.tar.gz",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    size=170_052_171,
    dataset="cifar10",
)
CIFAR100 = Remote(
    name="cifar-100-binary.tar.gz",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    size=168_513_733,
    dataset="cifar100",
)
TINY = Remote(
    name="tiny-imagenet-200.zip",
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    md5="90528d7ca1a48142e341f4ef8d21d0de",
    size=248_100_043,
    dataset="tiny-imagenet",
)
FASHION = tuple(
    Remote(
        name=f"fashion-mnist/{file}.gz",
        url=f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{file}.gz",
        md5=md5,
        size=size,
        dataset="fashion-mnist",
    )
    for file, md5, size in (
        ("train-images-idx3-ubyte", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
        ("train-labels-idx1-ubyte", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
        ("t10k-images-idx3-ubyte", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
        ("t10k-labels-idx1-ubyte", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
    )
)
FASHION_FOLDERS = (Path("/usr/share/datasets"),)  # where Debian's dataset-fashion-mnist puts its folder
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
TINY_CACHE = "tiny-imagenet-200"
TINY_FORMAT = 1  # of the cache; a change of how images are read or ordered needs a new one
TINY_CHUNK = 256  # images that one thread reads at a time


@dataclass(frozen=True)
class Source:
    """A data set with a name: its files, how it is read, and the recipe settings that suit it."""

    name: str
    title: str
    classes: int
    files: tuple[Remote, ...]
    load: Callable[[Path], Dataset]
    defaults: Mapping[str, object]


class _Wrong(EdblError):
    """A file is damaged, or not what it should be."""


def is_folder(name: str) -> bool:
    """Tell whether ``name`` means a folder of images rather than a data set of the registry."""
    if name in DATASETS or not name:
        return False
    separators = [mark for mark in (os.sep, os.altsep) if mark]
    return any(mark in name for mark in separators) or name.startswith((".", "~")) or Path(name).is_dir()


def source(name: str) -> Source:
    """Return the data set of that name."""
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return DATASETS[name]


def defaults(name: str) -> Mapping[str, object]:
    """Return the recipe settings that suit a data set or a folder of images, by dotted key."""
    return FOLDER_DEFAULTS if is_folder(name) else source(name).defaults


def load(name: str, data_dir: Path | None = None, *, image_size: int = 0, skip_bad: bool = False) -> Dataset:
    """Load a data set by name, or a folder of images by path.

    ``data_dir`` is where the files of named data sets lie. ``image_size`` and ``skip_bad`` are for folders only.
    """
    if is_folder(name):
        return load_folder(download.at_home(Path(name)), image_size=image_size, skip_bad=skip_bad)
    found = source(name)
    if image_size:
        raise EdblError(f"the image size can only be set for a folder of images, and {name} is none: leave it out")
    folder = download.data_dir(data_dir)
    try:
        return found.load(folder)
    except _Wrong as error:
        raise EdblError(f"{error}\ndelete it and run {download.fetch_command(name, folder)}") from error


def load_cifar10(folder: Path) -> Dataset:
    """Read CIFAR-10's official binary files: one label byte, then 3x32x32 pixel bytes."""
    train = tuple(f"data_batch_{k}.bin" for k in range(1, 6))
    return _cifar(folder, _Cifar(CIFAR10, "cifar-10-batches-bin", train, "test_batch.bin", "batches.meta.txt", 1, 10))


def load_cifar100(folder: Path) -> Dataset:
    """Read CIFAR-100's official binary files: a coarse and a fine label byte, then pixels; the fine one is used."""
    names = "fine_label_names.txt"
    return _cifar(folder, _Cifar(CIFAR100, "cifar-100-binary", ("train.bin",), "test.bin", names, 2, 100))


def load_cifar100_block(folder: Path, number: int) -> Dataset:
    """Return 20 classes of CIFAR-100 at 16x16: a fifth of them in order 1993."""
    return blocks.block(load_cifar100(folder), number, f"cifar100-block{number}")


def load_cifar10_part(folder: Path, number: int) -> Dataset:
    """Return CIFAR-10 at 16x16 with 1,000 training images of each class, other ones in each part."""
    return blocks.part(load_cifar10(folder), number, f"cifar10-part{number}")


def load_fashion(folder: Path) -> Dataset:
    """Read Fashion-MNIST's idx files, packed or not, from the data folder or Debian's package.

    Note: the 28x28 images are padded by zeros to 32x32, so that a network that halves them twice fits cleanly.
    """
    train, test = (
        _fashion(_fashion_file(folder, images), _fashion_file(folder, labels))
        for images, labels in (FASHION[:2], FASHION[2:])
    )
    return Dataset("fashion-mnist", train, test, FASHION_CLASSES, _odd_counts(train, test, 60_000, 10_000))


def load_tiny(folder: Path) -> Dataset:
    """Read Tiny-ImageNet-200 from its zip or its unpacked folder; its val split is the test set.

    Classes are in the order of their sorted WordNet ids. The decoded images are kept beside the source, where the
    next call finds them.
    """
    archive, unpacked = folder / TINY.name, folder / "tiny-imagenet-200"
    names = [] if archive.exists() or not unpacked.is_dir() else _file_names(unpacked)
    source = f"zip {TINY.md5}" if archive.exists() else f"folder of {len(names)} files" if names else ""
    dataset = _read_cache(folder, source)
    if dataset:
        return dataset
    if archive.exists():
        download.verify(TINY, folder)
        with download.open_zip(archive) as file:
            dataset = _decode_tiny(_TinyFiles(archive, file.namelist(), file.read))
    elif names:
        dataset = _decode_tiny(_TinyFiles(unpacked, names, lambda name: (folder / name).read_bytes()))
    else:
        raise download.missing(TINY, folder)
    if not os.access(folder, os.W_OK):
        note = f"{folder} cannot be written to: the images will be decoded again each time"
        return replace(dataset, notes=(*dataset.notes, note))
    _write_cache(folder, source, dataset)
    return dataset


def load_sklearn_digits(folder: Path) -> Dataset:
    """Return scikit-learn's 8x8 digits; they need no file, and ``folder`` is not used.

    They come without a test split: in each class, in order, every 5th image is a test image.
    """
    from sklearn.datasets import load_digits  # here, because it takes a second that nobody else should wait

    values, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(np.round(values * 255 / 16).astype(np.uint8)).reshape(-1, 1, 8, 8)
    y = torch.from_numpy(labels.astype(np.int64))  # [n]
    one_hot = functional.one_hot(y)  # [n, 10]
    nth = one_hot.cumsum(0)[torch.arange(len(y)), y]  # [n], 1 for the first image of its class
    images, is_test = Images(x, y), nth % 5 == 0
    return Dataset("digits", images[~is_test], images[is_test], tuple(str(k) for k in range(10)))


@dataclass(frozen=True)
class _Cifar:
    """What the two CIFARs differ in."""

    remote: Remote
    top: str  # the folder in the archive
    train: tuple[str, ...]
    test: str
    names: str
    label_bytes: int  # the last of them is the label
    classes: int


def _cifar(folder: Path, kind: _Cifar) -> Dataset:
    place = _cifar_folder(folder, kind)
    classes = tuple((place / kind.names).read_text().split())
    if len(classes) != kind.classes:
        raise _Wrong(f"{place / kind.names} names {len(classes)} classes, not {kind.classes}")
    train = Images.cat([_cifar_file(place / name, kind) for name in kind.train])
    test = _cifar_file(place / kind.test, kind)
    return Dataset(kind.remote.dataset, train, test, classes, _odd_counts(train, test, 50_000, 10_000))


def _cifar_folder(folder: Path, kind: _Cifar) -> Path:
    """Return the folder of the binary files, unpacking the archive if they are not all there."""
    place = folder / kind.top
    wanted = (*kind.train, kind.test, kind.names)
    absent = [name for name in wanted if not (place / name).is_file()]
    if absent and (folder / kind.remote.name).exists():
        download.verify(kind.remote, folder)
        download.extract_tar(folder / kind.remote.name, folder, kind.top)
        absent = [name for name in wanted if not (place / name).is_file()]
    if absent and place.is_dir():
        raise EdblError(f"{place} lacks {', '.join(absent)}: run {download.fetch_command(kind.remote.dataset, folder)}")
    if absent:
        raise download.missing(kind.remote, folder)
    return place


def _cifar_file(path: Path, kind: _Cifar) -> Images:
    raw = np.fromfile(path, np.uint8)
    record = kind.label_bytes + 3 * 32 * 32
    if not raw.size or raw.size % record:
        raise _Wrong(f"{path} is truncated or a wrong file: {raw.size:,} bytes are not records of {record:,}")
    rows = torch.from_numpy(raw.reshape(-1, record))  # [n, record]
    y = rows[:, kind.label_bytes - 1].long()
    if int(y.max()) >= kind.classes:
        raise _Wrong(f"{path} is a wrong file: its label {int(y.max())} is beyond {kind.classes - 1}")
    return Images(rows[:, kind.label_bytes :].reshape(-1, 3, 32, 32), y)


def _odd_counts(train: Images, test: Images, official_train: int, official_test: int) -> tuple[str, ...]:
    """Return a note if a data set is whole files of images but not all of them."""
    if (len(train), len(test)) == (official_train, official_test):
        return ()
    return (
        f"{len(train):,} training and {len(test):,} test images were found; "
        f"the official set has {official_train:,} and {official_test:,}",
    )


def _fashion_file(folder: Path, remote: Remote) -> Path:
    places = [base / remote.name for base in (folder, *FASHION_FOLDERS)]
    for place in places:
        for path in (place, place.with_suffix("")):
            if path.is_file():
                return path
    raise download.missing(remote, folder)


def _fashion(images: Path, labels: Path) -> Images:
    x = _idx(images, magic=2051)  # [n, h, w]
    y = _idx(labels, magic=2049)  # [n]
    if x.shape != (len(y), 28, 28):
        raise _Wrong(f"{images} does not fit {labels}: its shape is {x.shape}, not {(len(y), 28, 28)}")
    if y.max() >= len(FASHION_CLASSES):
        raise _Wrong(f"{labels} is a wrong file: its label {y.max()} is beyond {len(FASHION_CLASSES) - 1}")
    padded = functional.pad(torch.from_numpy(x).unsqueeze(1), (2, 2, 2, 2))  # [n, 1, 32, 32]
    return Images(padded, torch.from_numpy(y).long())


def _idx(path: Path, magic: int) -> npt.NDArray[np.uint8]:
    """Read an idx file; the last byte of its magic number is the number of dimensions."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise _Wrong(f"{path} is damaged or truncated ({error})") from error
    start = 4 + 4 * (magic % 256)
    header = struct.unpack(f">{start // 4}I", raw[:start]) if len(raw) >= start else (0,)
    shape = header[1:]
    if header[0] != magic or len(raw) - start != math.prod(shape) or len(raw) == start:
        raise _Wrong(f"{path} is truncated or no idx file: {len(raw):,} bytes with magic number {header[0]}")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape).copy()


@dataclass(frozen=True)
class _TinyFiles:
    """The files of Tiny-ImageNet, in its zip or unpacked."""

    where: Path
    names: Sequence[str]
    read: Callable[[str], bytes]

    def content(self, name: str) -> bytes:
        try:
            return self.read(name)
        except (KeyError, FileNotFoundError) as error:
            raise _Wrong(f"{self.where} is incomplete: it has no {name}") from error
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise _Wrong(f"{self.where} is damaged at {name} ({error})") from error

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
            raise _Wrong(f"{self.where} has a damaged image, {name} ({error})") from error
        if pixels.shape != (3, 64, 64):
            raise _Wrong(f"{self.where} has an image that is not 64x64, {name}")
        return pixels


def _file_names(unpacked: Path) -> list[str]:
    """Return the files below ``unpacked`` as the zip would name them."""
    return [
        (Path(folder) / name).relative_to(unpacked.parent).as_posix()
        for folder, _, names in os.walk(unpacked)
        for name in names
    ]


def _decode_tiny(files: _TinyFiles) -> Dataset:
    wnids = sorted(fields[0] for fields in files.lines("wnids.txt"))
    label = {wnid: k for k, wnid in enumerate(wnids)}
    # tiny-imagenet-200/train/WNID/images/NAME.JPEG, which sorts by class first
    train = [(name, name.split("/")[2]) for name in sorted(files.names) if _is_training_image(name)]
    test = [(f"tiny-imagenet-200/val/images/{f[0]}", f[1]) for f in files.lines("val/val_annotations.txt") if f[1:]]
    for name, wnid in (*train, *test):
        if wnid not in label:
            raise _Wrong(f"{files.where} gives {name} the class {wnid}, which wnids.txt does not have")
    if not train or not test:
        raise _Wrong(f"{files.where} is incomplete: it has no training or no validation images")
    splits = [
        Images(
            _tiny_pixels(files, [name for name, _ in split], title), torch.tensor([label[wnid] for _, wnid in split])
        )
        for split, title in ((train, "Tiny-ImageNet training images"), (test, "Tiny-ImageNet test images"))
    ]
    return _tiny(splits[0], splits[1], _tiny_classes(files, wnids))


def _is_training_image(name: str) -> bool:
    parts = name.split("/")
    return parts[:2] == ["tiny-imagenet-200", "train"] and len(parts) == 5 and name.endswith(".JPEG")


def _tiny_pixels(files: _TinyFiles, names: Sequence[str], title: str) -> torch.Tensor:
    x = np.empty((len(names), 3, 64, 64), np.uint8)

    def fill(start: int) -> None:
        for k in range(start, min(start + TINY_CHUNK, len(names))):
            x[k] = files.image(names[k])

    in_threads(fill, range(0, len(names), TINY_CHUNK), title)
    return torch.from_numpy(x)


def _tiny_classes(files: _TinyFiles, wnids: Sequence[str]) -> tuple[str, ...]:
    """Return the first synonym of each class, with the WordNet id where two classes share it."""
    words = {fields[0]: fields[-1].split(",")[0].strip() for fields in files.lines("words.txt")}
    names = [words.get(wnid, wnid) for wnid in wnids]
    counts = Counter(names)
    return tuple(name if counts[name] == 1 else f"{name} ({wnid})" for name, wnid in zip(names, wnids, strict=True))


def _tiny(train: Images, test: Images, classes: tuple[str, ...]) -> Dataset:
    return Dataset("tiny-imagenet", train, test, classes, _odd_counts(train, test, 100_000, 10_000))


@dataclass(frozen=True)
class _Cached:
    """What the decoded images of Tiny-ImageNet were read from, and their classes."""

    source: str
    classes: tuple[str, ...]


def _read_cache(folder: Path, source: str) -> Dataset | None:
    """Return the decoded images kept in a folder if they are of this source, or if they are all there is."""
    found = store.find(folder, TINY_CACHE, _Cached, TINY_FORMAT)
    if found is None or source not in ("", found[0].source):
        return None
    cached, tensors = found
    train, test = (Images(tensors[f"{s}.x"], tensors[f"{s}.y"]) for s in ("train", "test"))
    return _tiny(train, test, cached.classes)


def _write_cache(folder: Path, source: str, dataset: Dataset) -> None:
    splits = {"train": dataset.train, "test": dataset.test}
    tensors = {f"{name}.{part}": getattr(images, part) for name, images in splits.items() for part in ("x", "y")}
    for left in folder.glob(f".{TINY_CACHE}.*.tmp"):
        if time.time() - left.stat().st_mtime > download.ABANDONED:
            left.unlink(missing_ok=True)
    try:
        store.save(folder, TINY_CACHE, _Cached(source, dataset.classes), tensors, TINY_FORMAT)
    except EdblError as error:
        raise EdblError(f"{error}\nmake room there, or set another data folder") from error


def _settings(
    augment: str,
    pad: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    backbone: str,
    memory: str,
    phases: int = 5,
) -> Mapping[str, object]:
    return {
        "data.augment": augment,
        "data.pad": pad,
        "data.mean": mean,
        "data.std": std,
        "net.backbone": backbone,
        "memory": memory,
        "stream.phases": phases,
    }


# One pair of statistics serves both CIFARs, as in the code nearest to the paper's.
CIFAR_MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
CIFAR_STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)
TINY_MEAN, TINY_STD = (0.4802, 0.4480, 0.3975), (0.2770, 0.2691, 0.2821)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

DATASETS: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "cifar10",
            "CIFAR-10: 50,000 + 10,000 images of 10 classes, 3x32x32",
            10,
            (CIFAR10,),
            load_cifar10,
            _settings("crop-flip", 4, CIFAR_MEAN, CIFAR_STD, "resnet32", "total=200"),
        ),
        Source(
            "cifar100",
            "CIFAR-100: 50,000 + 10,000 images of 100 classes, 3x32x32",
            100,
            (CIFAR100,),
            load_cifar100,
            _settings("crop-flip", 4, CIFAR_MEAN, CIFAR_STD, "resnet32", "total=2000"),
        ),
        Source(
            "tiny-imagenet",
            "Tiny-ImageNet-200: 100,000 + 10,000 images of 200 classes, 3x64x64",
            200,
            (TINY,),
            load_tiny,
            _settings("flip", 0, TINY_MEAN, TINY_STD, "resnet18", "per_class=20"),
        ),
        Source(
            "fashion-mnist",
            "Fashion-MNIST: 60,000 + 10,000 images of 10 classes, 1x28x28 padded to 1x32x32",
            10,
            FASHION,
            load_fashion,
            _settings("crop-flip", 4, (0.2190,), (0.3318,), "resnet32", "total=200"),
        ),
        Source(
            "digits",
            "scikit-learn's digits: 1,442 + 355 images of 10 classes, 1x8x8",
            10,
            (),
            load_sklearn_digits,
            _settings("crop", 1, (0.3,), (0.38,), "small", "total=50"),
        ),
        *(
            Source(
                f"cifar100-block{number}",
                f"block {number} of CIFAR-100: 10,000 + 2,000 images of 20 classes, 3x16x16",
                20,
                (CIFAR100,),
                partial(load_cifar100_block, number=number),
                _settings("crop-flip", 2, CIFAR_MEAN, CIFAR_STD, "small", "total=400"),
            )
            for number in range(blocks.BLOCKS)
        ),
        *(
            Source(
                f"cifar10-part{number}",
                f"part {number} of CIFAR-10: 10,000 + 10,000 images of 10 classes, 3x16x16",
                10,
                (CIFAR10,),
                partial(load_cifar10_part, number=number),
                _settings("crop-flip", 2, CIFAR_MEAN, CIFAR_STD, "small", "total=100"),
            )
            for number in range(blocks.PARTS)
        ),
    )
}
FOLDER_DEFAULTS = _settings("crop-flip", 4, IMAGENET_MEAN, IMAGENET_STD, "resnet32", "per_class=20", phases=2)
