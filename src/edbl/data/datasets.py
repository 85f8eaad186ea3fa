"""The data sets that have a name, and the one way to load any data set."""

import gzip
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from edbl import users
from edbl.data import blocks, download, imagenet, tiny
from edbl.data.download import Remote, Wrong
from edbl.data.folder import load_folder
from edbl.data.given import as_dataset
from edbl.data.images import Dataset, Images, odd_counts
from edbl.errors import EdblError, unknown
from edbl.store import MOST_TEXT, read_file

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


GIVEN = "given"  # the name of data that a call is given, until their fingerprint is known


@dataclass(frozen=True)
class Source:
    """A data set with a name: its files, how it is read, and the recipe settings that are facts of its images."""

    name: str
    title: str
    classes: int
    files: tuple[Remote, ...]
    load: Callable[[Path], Dataset]
    defaults: Mapping[str, object]


def is_folder(name: str) -> bool:
    """Tell whether ``name`` means a folder of images rather than a data set of the registry."""
    if name in DATASETS or not name or users.is_known(users.DATA, name):
        return False
    separators = [mark for mark in (os.sep, os.altsep) if mark]
    return any(mark in name for mark in separators) or name.startswith((".", "~")) or Path(name).is_dir()


def is_known(name: str) -> bool:
    """Tell whether there is such a data set or folder of images."""
    return name in DATASETS or is_folder(name) or users.is_known(users.DATA, name)


def source(name: str) -> Source:
    """Return the data set of ours of that name."""
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return DATASETS[name]


def defaults(name: str) -> Mapping[str, object]:
    """Return the recipe settings that are facts of a data set or a folder of images, by dotted key."""
    if name in DATASETS:
        return DATASETS[name].defaults
    if is_folder(name):
        return FOLDER_DEFAULTS
    if name != GIVEN:
        users.check(users.DATA, name, [*DATASETS, GIVEN])
    return GIVEN_DEFAULTS


def load(name: str, data_dir: Path | None = None, *, image_size: int = 0, skip_bad: bool = False) -> Dataset:
    """Load a data set by name, ours or a user's, or a folder of images by path.

    ``data_dir`` is where the files of named data sets lie. ``image_size`` and ``skip_bad`` are for folders only.
    """
    if (held := _held.get((name, image_size, skip_bad))) is not None:
        return held
    if is_folder(name):
        return load_folder(download.at_home(Path(name)), image_size=image_size, skip_bad=skip_bad)
    if image_size:
        raise EdblError(f"the image size can only be set for a folder of images, and {name} is none: leave it out")
    if name == GIVEN:
        raise EdblError(f"data.name = {GIVEN} stands for data that a call is given: `edbl.run(recipe, out, data=...)`")
    found = users.find(users.DATA, name, DATASETS)
    if not isinstance(found, Source):
        if isinstance(found, ModuleType):
            raise EdblError(f"say which function of {name} makes the data, as in {name}:make")
        with users.calling(name):
            return as_dataset(found, name)
    folder = download.data_dir(data_dir)
    try:
        return found.load(folder)
    except Wrong as error:
        raise EdblError(f"{error}\ndelete it and run {download.fetch_command(name, folder)}") from error


_held: dict[tuple[str, int, bool], Dataset] = {}  # what need not be loaded, by the arguments of `load`


@contextmanager
def holding(name: str, image_size: int, skip_bad: bool, dataset: Dataset) -> Iterator[None]:
    """Let `load` return a data set meanwhile that another process loaded."""
    _held[name, image_size, skip_bad] = dataset
    try:
        yield
    finally:
        del _held[name, image_size, skip_bad]


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
    return Dataset("fashion-mnist", train, test, FASHION_CLASSES, odd_counts(train, test, 60_000, 10_000))


def load_imagenet(folder: Path, name: str, classes: int) -> Dataset:
    """Read ImageNet's folders of JPEG files, or those of a hundred classes, from a store of decoded images."""
    return imagenet.load(folder, name, classes)


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
    try:
        classes = tuple(read_file(place / kind.names, MOST_TEXT).decode().split())
    except UnicodeDecodeError as error:
        raise Wrong(f"{place / kind.names} is damaged: it is not text") from error
    if len(classes) != kind.classes or len(set(classes)) != kind.classes:
        raise Wrong(f"{place / kind.names} names {len(set(classes))} classes, not {kind.classes}")
    train = Images.cat([_cifar_file(place / name, kind) for name in kind.train])
    test = _cifar_file(place / kind.test, kind)
    return Dataset(kind.remote.dataset, train, test, classes, odd_counts(train, test, 50_000, 10_000))


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
    raw = np.frombuffer(bytearray(read_file(path)), np.uint8)
    record = kind.label_bytes + 3 * 32 * 32
    if not raw.size or raw.size % record:
        raise Wrong(f"{path} is truncated or a wrong file: {raw.size:,} bytes are not records of {record:,}")
    rows = torch.from_numpy(raw.reshape(-1, record))  # [n, record]
    y = rows[:, kind.label_bytes - 1].long()
    if int(y.max()) >= kind.classes:
        raise Wrong(f"{path} is a wrong file: its label {int(y.max())} is beyond {kind.classes - 1}")
    return Images(rows[:, kind.label_bytes :].reshape(-1, 3, 32, 32), y)


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
        raise Wrong(f"{images} does not fit {labels}: its shape is {x.shape}, not {(len(y), 28, 28)}")
    if y.max() >= len(FASHION_CLASSES):
        raise Wrong(f"{labels} is a wrong file: its label {y.max()} is beyond {len(FASHION_CLASSES) - 1}")
    padded = functional.pad(torch.from_numpy(x).unsqueeze(1), (2, 2, 2, 2))  # [n, 1, 32, 32]
    return Images(padded, torch.from_numpy(y).long())


def _idx(path: Path, magic: int) -> npt.NDArray[np.uint8]:
    """Read an idx file; the last byte of its magic number is the number of dimensions."""
    raw = read_file(path)
    if path.suffix == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise Wrong(f"{path} is damaged or truncated ({error})") from error
    start = 4 + 4 * (magic % 256)
    header = struct.unpack(f">{start // 4}I", raw[:start]) if len(raw) >= start else (0,)
    shape = header[1:]
    if header[0] != magic or len(raw) - start != math.prod(shape) or len(raw) == start:
        raise Wrong(f"{path} is truncated or no idx file: {len(raw):,} bytes with magic number {header[0]}")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape).copy()


def _settings(
    augment: str,
    pad: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    view: int = 0,
) -> Mapping[str, object]:
    return {
        **({"data.view": view} if view else {}),
        "data.augment": augment,
        "data.pad": pad,
        "data.mean": mean,
        "data.std": std,
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
            _settings("crop-flip", 4, CIFAR_MEAN, CIFAR_STD),
        ),
        Source(
            "cifar100",
            "CIFAR-100: 50,000 + 10,000 images of 100 classes, 3x32x32",
            100,
            (CIFAR100,),
            load_cifar100,
            _settings("crop-flip", 4, CIFAR_MEAN, CIFAR_STD),
        ),
        Source(
            "tiny-imagenet",
            "Tiny-ImageNet-200: 100,000 + 10,000 images of 200 classes, 3x64x64",
            200,
            (tiny.FILE,),
            tiny.load,
            _settings("flip", 0, TINY_MEAN, TINY_STD),
        ),
        Source(
            "fashion-mnist",
            "Fashion-MNIST: 60,000 + 10,000 images of 10 classes, 1x28x28 padded to 1x32x32",
            10,
            FASHION,
            load_fashion,
            _settings("crop-flip", 4, (0.2190,), (0.3318,)),
        ),
        *(
            Source(
                name,
                f"{title}: about {train:,} + {test:,} images of {classes:,} classes, 3x256x256, seen as 3x224x224",
                classes,
                (),
                partial(load_imagenet, name=name, classes=classes),
                _settings("resize-flip", 0, IMAGENET_MEAN, IMAGENET_STD, view=imagenet.VIEW),
            )
            for name, title, classes, train, test in (
                ("imagenet100", "ImageNet-100", 100, 129_000, 5_000),
                ("imagenet", "ImageNet-1000", 1000, 1_281_167, 50_000),
            )
        ),
        Source(
            "digits",
            "scikit-learn's digits: 1,442 + 355 images of 10 classes, 1x8x8",
            10,
            (),
            load_sklearn_digits,
            _settings("crop", 1, (0.3,), (0.38,)),
        ),
        *(
            Source(
                f"cifar100-block{number}",
                f"block {number} of CIFAR-100: 10,000 + 2,000 images of 20 classes, 3x16x16",
                20,
                (CIFAR100,),
                partial(load_cifar100_block, number=number),
                _settings("crop-flip", 2, CIFAR_MEAN, CIFAR_STD),
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
                _settings("crop-flip", 2, CIFAR_MEAN, CIFAR_STD),
            )
            for number in range(blocks.PARTS)
        ),
    )
}
FOLDER_DEFAULTS = _settings("crop-flip", 4, IMAGENET_MEAN, IMAGENET_STD)
# Nobody knows what users' data are: nothing is done to images that might change their class.
GIVEN_DEFAULTS = _settings("none", 4, (0.5,), (0.25,))
