"""A model from Python: `edbl.open`."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from edbl.app import bundle as disk
from edbl.app import edit, versions
from edbl.app.at_once import AtOnce, file_of
from edbl.app.at_once import Given as Taught
from edbl.app.description import Bundle
from edbl.app.inputs import inputs_of
from edbl.app.learn import increment
from edbl.app.photos import Photo, digest
from edbl.app.predict import PART, UNKNOWN, Prediction, Predictor
from edbl.app.settings import Request
from edbl.data.decoding import Decoded, squared
from edbl.ending import all_of
from edbl.engine.environment import pick_device
from edbl.engine.progress import Progress
from edbl.errors import EdblError
from edbl.text import class_name, shown

# A file, an image of Pillow, or an array of 8-bit pixels, ``[h, w]``, ``[h, w, 3]`` or ``[h, w, 4]``.
Given = str | PathLike[str] | Image.Image | NDArray[Any]


def open(folder: str | PathLike[str], device: str = "auto") -> "Opened":
    """Return the model in a folder; it is made by its first `Opened.learn` if it is not there yet."""
    return Opened(Path(folder), device)


class Opened:
    """A model in a folder, which every call finds as it is by then: others may change it, and each change is there."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self.device = folder, device
        self._asked: tuple[object, Predictor] | None = None  # what answered last, and by what
        self._at_once = AtOnce(folder)

    def __repr__(self) -> str:
        """Return how to open it."""
        return f"edbl.open({str(self.folder)!r})"

    @property
    def classes(self) -> list[str]:
        """The names of its classes."""
        return self._bundle.names

    @property
    def version(self) -> int:
        """The number of the version that it is at."""
        return self._bundle.version

    @property
    def _bundle(self) -> Bundle:
        now = self._at_once.now
        return now.bundle if now else disk.settle(self.folder)

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def predict(self, images: Given | Sequence[Given], top: int = 3, unknown: float = UNKNOWN) -> list[Prediction]:
        """Return the ``top`` classes of images, a folder of images or one image, in order.

        Of an image that is no file, ``path`` is its place among those given. At most the share ``unknown`` of photos of
        known classes is called unknown.
        """
        if not isinstance(top, int) or top < 1:
            raise EdblError(f"top={top} must be a whole number of 1 or more")
        predictor, notes = self._predictor(unknown), list[str]()
        found: list[Prediction] = []
        size = predictor.settings.image_size
        numbered = enumerate(_listed(images))
        for files, group in groupby(numbered, key=lambda one: isinstance(one[1], str | PathLike)):
            some = list(group)
            if files:
                found += predictor([Path(one) for _, one in some], top, notes.append, quiet=True)
                continue
            for start in range(0, len(some), PART):
                part = some[start : start + PART]
                decoded = [Decoded(squared(_image(one), size)) for _, one in part]
                found += predictor.told([Path(str(number)) for number, _ in part], decoded, top)
        _warn(notes)
        return found

    def learn(
        self,
        images: str | PathLike[str] | Sequence[Given] | NDArray[Any] | Mapping[str, Iterable[Given]],
        labels: Sequence[str] | None = None,
        yes: bool = False,
        **options: Any,
    ) -> None:
        """Learn from images and the class of each, from a mapping of classes to images, or from folders of classes.

        ``options`` are those of `edbl learn`: ``method``, ``keep``, ``backbone``, ``tune``, ``image_size``, ``memory``,
        ``memory_mb``, ``seed``, ``validation``, ``engine``, ``mirror``, ``skip_bad``, ``relabel``, ``start`` (a
        version), and ``given``, values of a recipe by key. With ``yes`` it learns images too that look mislabelled.
        """
        if unknown := sorted(options.keys() - Request.__dataclass_fields__.keys() | options.keys() & {"folders"}):
            raise EdblError(f"there is no option {unknown[0]} to learn with")
        self.finish()
        folders, given = _to_learn(images, labels)
        request, notes = Request(folders=[str(Path(folder).resolve()) for folder in folders], **options), list[str]()
        with increment(self.folder, request, device=self.device, yes=yes, say=notes.append, given=given) as begun:
            if begun is not None:
                begun.prepare()
                begun.commit(begun.learn(Progress()))
        _warn(notes)

    def teach(self, image: Given, label: str, yes: bool = False) -> None:
        """Learn one more image of a class at once, new or known: `predict` answers by it from now on.

        That is for models with a closed form that exist. The image is on the disk when this returns; what takes longer,
        the next version with its shrinkage and calibration, is made by `finish`, which every other change calls first.
        """
        bundle, photo = self._bundle, _photo(image, label, 0)
        settings = bundle.settings
        if settings.keep is None:
            raise EdblError(f"{settings.method} is trained, and learns by `learn` alone")
        pixels = photo.read(settings.image_size).pixels
        if pixels is None:
            raise EdblError(f"{shown(photo.path)} cannot be read as an image")
        inputs = inputs_of(settings)
        inputs.check()
        features = inputs.asked(torch.from_numpy(pixels[None].copy()), pick_device(self.device))[0, 0]
        kept = pixels if settings.keep == "photos" else None
        given = [Taught(digest(pixels), photo.name, shown(photo.path), features, kept)]
        done = self._at_once.soon(given, yes) or self._at_once.teach(given, yes=yes)
        why = [f"may have a wrong label: it {one.words}; right as it is: yes=True" for one in done.doubts]
        if why := [*why, *(f"is not learnt: {words}" for _, words in done.refused)]:
            raise EdblError(f"{shown(photo.path)} {why[0]}")

    def finish(self) -> None:
        """Make a version for each image that was taught."""
        if disk.exists(self.folder):
            self._at_once.finish()

    def forget(self, *classes: str, photos: Sequence[str | PathLike[str]] = ()) -> None:
        """Forget classes, or photos, given as files."""
        if bool(classes) == bool(photos):
            raise EdblError("name classes to forget, or photos; one of both")
        self.finish()
        if classes:
            edit.forget(self.folder, classes, self.device)
        else:
            edit.forget_photos(self.folder, [Path(one) for one in photos], self.device)

    def undo(self, to: int | None = None) -> None:
        """Go back to the version before the last change, or to any that is kept."""
        self.finish()
        versions.undo(self.folder, to)

    def _predictor(self, unknown: float) -> Predictor:
        now = self._at_once.now
        seen = file_of(self.folder), now.bundle.version if now else None, unknown
        if self._asked is None or self._asked[0] != seen:
            same = now and self._asked and self._asked[1].unknown == unknown
            found = self._asked[1] if same and self._asked else None
            found = found or Predictor(self.folder, None, self.device, unknown, keep=True)
            self._asked = seen, found.by(now.answers, now.bundle) if now else found
        return self._asked[1]


def _to_learn(images: Any, labels: Sequence[str] | None) -> tuple[list[Any], list[Photo]]:
    """Return folders to learn from, and single images."""
    if isinstance(images, Mapping):
        if labels is not None:
            raise EdblError("images are given by class already; leave out labels")
        pairs = [(name, one) for name in images for one in all_of(images[name])]
        return [], [_photo(one, name, k) for k, (name, one) in enumerate(pairs)]
    one = isinstance(images, str | PathLike)
    if labels is None:
        folders = [images] if one else _listed(images)
        if not all(isinstance(folder, str | PathLike) for folder in folders):
            raise EdblError("images need labels: the name of the class of each")
        return folders, []
    found, named = _listed(images), all_of(labels)
    if len(found) != len(named) or isinstance(labels, str):
        raise EdblError(f"there are {len(found):,} images and {len(named):,} labels; give one for each")
    return [], [_photo(one, name, k) for k, (one, name) in enumerate(zip(found, named, strict=True))]


def _photo(given: Any, name: object, number: int) -> Photo:
    if not isinstance(name, str) or not name.strip():
        raise EdblError(f"label {name!r} is no name of a class")
    if isinstance(given, str | PathLike):
        return Photo(Path(given), class_name(name))
    return Photo(Path(str(number)), class_name(name), _image(given))


def _listed(images: Any) -> list[Any]:
    """Return one image, or several, as several."""
    if isinstance(images, str | PathLike | Image.Image):
        return [images]
    if isinstance(images, np.ndarray):
        single = images.ndim == 2 or (images.ndim == 3 and images.shape[2] in (3, 4))
        return [images] if single else list(images)
    return all_of(images)


def _image(given: Any) -> Image.Image:
    """Return an image of Pillow."""
    if isinstance(given, Image.Image):
        return given
    array = np.asarray(given)
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise EdblError(
            f"an image is a file, an image of Pillow, or an array of uint8 [h, w], [h, w, 3] or [h, w, 4], not "
            f"{type(given).__name__} of {array.dtype} {list(array.shape)}"
        )
    return Image.fromarray(array)


def _warn(notes: Sequence[str]) -> None:
    """Tell the caller of who calls this what the command would print as notes."""
    for note in notes:
        warnings.warn(note.removeprefix("note: "), stacklevel=3)
