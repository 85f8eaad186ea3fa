"""Data that come as objects: our own `Dataset`, arrays or tensors, and what PyTorch and Hugging Face call data sets."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from edbl.data.images import Dataset, Images
from edbl.ending import all_of
from edbl.errors import EdblError
from edbl.seeds import Seeds

NAME = "the given data"
KEYS = (("image", "img"), ("label", "labels", "fine_label"))  # what dictionaries call an image and its label
SEED = 0  # of what draws, such as a function that splits at random: runs of all seeds have the same images
TWICE = 16  # images that are asked for again, as random changes would show then
WANTED = "a Dataset, (X, y, X_test, y_test), or (train, test) that give images and labels by number"


class _Part(NamedTuple):
    """Images and labels as they come."""

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]  # [n], numbers or texts
    names: Sequence[str] | None  # of labels 0, 1, ..., where they are known


@Seeds(SEED).everywhere("data")
def as_dataset(given: object, name: str = NAME) -> Dataset:
    """Return as a data set what a user gives as one, or what a function of the user's returns."""
    if callable(given) and not hasattr(given, "__getitem__"):
        given = given()
    if isinstance(given, Dataset):
        return given
    if isinstance(given, Mapping) and {"train", "test"} <= given.keys():
        given = (given["train"], given["test"])
    whats = [f"the {which} images of {name}" for which in ("training", "test")]
    if isinstance(given, tuple | list) and len(given) == 4:
        x, y, x_test, y_test = given
        parts = [_Part(_array(x), _labels(y), None), _Part(_array(x_test), _labels(y_test), None)]
    elif isinstance(given, tuple | list) and len(given) == 2:
        parts = [_read(one, what) for one, what in zip(given, whats, strict=True)]
    else:
        raise EdblError(f"{name} cannot be read from {_kind(given)}; give {WANTED}")
    for part, what in zip(parts, whats, strict=True):
        if part.y.ndim != 1 or part.y.shape != part.x.shape[:1]:
            raise EdblError(
                f"{what} are {list(part.x.shape)} with labels {list(part.y.shape)}; give one label for each"
            )
        if not len(part.y):
            raise EdblError(f"{what} are none")
    classes, numbers = _classes(parts, name)
    train, test = (
        Images(_pixels(part.x, what), torch.from_numpy(y)) for part, what, y in zip(parts, whats, numbers, strict=True)
    )
    if train.x.shape[1:] != test.x.shape[1:]:
        raise EdblError(
            f"{name} has training images {list(train.x.shape[1:])} and test images {list(test.x.shape[1:])}"
        )
    return Dataset(name, train, test, classes, _notes(parts))


def _notes(parts: Sequence[_Part]) -> tuple[str, ...]:
    rounded = any(part.x.ndim > 2 and part.x.dtype.kind == "f" for part in parts)
    return ("images that were given as numbers from 0 to 1 are kept as bytes",) if rounded else ()


def _kind(thing: object) -> str:
    """Return what a thing is, never what is in it."""
    shape = getattr(thing, "shape", None)
    of = (
        f" of shape {list(shape)}"
        if shape is not None
        else f" of {len(thing)}"
        if isinstance(thing, tuple | list)
        else ""
    )
    return f"an object of type {type(thing).__name__}{of}"


def _array(x: object) -> npt.NDArray[Any]:
    """Return an array or a tensor as an array."""
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)


def _labels(y: object) -> npt.NDArray[Any]:
    found = _array(y)
    return found.reshape(-1) if found.ndim == 2 and found.shape[1] == 1 else found


def _pixels(x: npt.NDArray[Any], what: str) -> Tensor:
    """Return images as bytes, channels first, where it is certain how they are meant; vectors as float32."""
    if x.dtype.kind == "f" and x.ndim in (3, 4):
        if not (x.size and x.min() >= 0 and x.max() <= 1):
            raise EdblError(f"{what} are {x.dtype}, not all from 0 to 1, so black and white are not known; give uint8")
        x = np.round(x * 255).astype(np.uint8)
    if x.ndim == 2 and x.dtype.kind == "f":
        x = x.astype(np.float32)
    if x.ndim == 3:
        x = x[:, None]
    if x.ndim == 4 and _channels(x.shape, what) == 3:
        x = x.transpose(0, 3, 1, 2)
    if x.dtype.kind not in "uif":
        raise EdblError(f"{what} are of type {x.dtype}; give uint8")
    return torch.from_numpy(np.ascontiguousarray(x))


def _channels(shape: Sequence[int], what: str) -> int:
    """Return which axis has the channels: that of 1 or 3, or else that which leaves squares."""
    for found in ([axis for axis in (1, 3) if shape[axis] in (1, 3)], [k for k in (1, 3) if shape[2] == shape[4 - k]]):
        if len(found) == 1:
            return found[0]
    raise EdblError(
        f"{what} are {list(shape)}, which axis has the channels is not certain; give uint8 in an edbl Dataset"
    )


def _classes(parts: Sequence[_Part], name: str) -> tuple[tuple[str, ...], list[npt.NDArray[np.int64]]]:
    """Return the names of the classes, and the labels of each part as their numbers."""
    for part in parts:
        if part.y.dtype.kind not in "iuU":
            raise EdblError(f"{name} has labels of type {part.y.dtype}; give whole numbers or texts")
    train, test = parts
    if train.names is not None and train.y.dtype.kind != "U":
        return tuple(map(str, train.names)), [part.y.astype(np.int64) for part in parts]
    classes = np.unique(train.y)
    if not np.isin(test.y, classes).all():
        odd = test.y[~np.isin(test.y, classes)][0]
        raise EdblError(f"{name} has test images of class '{odd}', but no training image of it")
    return tuple(map(str, classes)), [np.searchsorted(classes, part.y).astype(np.int64) for part in parts]


# Data sets that give an image and its label by number.


def _read(data: Any, what: str) -> _Part:
    """Read all images and labels of a data set."""
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__") or isinstance(data, np.ndarray | Tensor | str):
        raise EdblError(f"{what} cannot be read from {_kind(data)}; give {WANTED}")
    items = all_of(_items(data, what))
    images = [image for image, _ in items]
    for image, (again, _) in zip(images[:TWICE], _items(data, what), strict=False):
        if not np.array_equal(again, image):
            raise EdblError(f"{what} are others each time; leave out random changes: data.augment makes them")
    if not images:
        raise EdblError(f"{what} are none")
    if any(image.ndim > 2 for image in images):  # a grey one among others in colour
        images = [np.repeat(one[..., None], 3, -1) if one.ndim == 2 else one for one in images]
    if odd := next((n for n, image in enumerate(images) if image.shape != images[0].shape), 0):
        raise EdblError(
            f"{what} differ in size: {_size(images[0])}, and number {odd} {_size(images[odd])}; resize them"
        )
    return _Part(np.stack(images), _labels([label for _, label in items]), _names(data))


def _size(image: npt.NDArray[Any]) -> str:
    return " x ".join(map(str, image.shape))


def _items(data: Any, what: str) -> Iterator[tuple[npt.NDArray[Any], object]]:
    """Yield images, as arrays, and their labels."""
    for number in range(len(data)):
        item = data[number]
        if isinstance(item, Mapping):
            keys = [next((key for key in some if key in item), None) for some in KEYS]
            if None in keys:
                raise EdblError(f"{what} are dictionaries of {', '.join(map(str, item))}; image and label are needed")
            item = tuple(item[key] for key in keys)
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise EdblError(f"{what} come as {_kind(item)}; an image and its label are needed")
        image, label = item
        if isinstance(image, Image.Image):
            image = image.convert("L" if image.mode in ("1", "L") else "RGB")
        yield _array(image), label.item() if isinstance(label, Tensor) else label


def _names(data: Any) -> Sequence[str] | None:
    """Return the names of classes that a data set knows, or the one that it is a part of."""
    if (names := getattr(data, "classes", None)) is not None:
        return cast(Sequence[str], names)
    features = getattr(data, "features", None)
    if isinstance(features, Mapping):
        named = [features[key].names for key in KEYS[1] if hasattr(features.get(key), "names")]
        return cast(Sequence[str], named[0]) if named else None
    inner = getattr(data, "dataset", None)
    return None if inner is None else _names(inner)
