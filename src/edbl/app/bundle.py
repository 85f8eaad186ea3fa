"""A model on disk: one folder that is whole at every moment.

It is an entry of `edbl.store` that names the files of what is kept of photos. Its replacement is the commit: files are
written before it, and the model as it was becomes a version in `versions/`, so that a crash leaves the old model or the
new one. Files that no version names are removed by `heal`, whoever next opens the model.
"""

import hashlib
import io
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from torch import Tensor

from edbl import store
from edbl.app import lessons
from edbl.app.description import EXEMPLARS, KINDS, NEWEST, VALIDATION, VECTORS, Bundle, fault
from edbl.app.photos import digest
from edbl.data.decoding import Pixels
from edbl.data.threads import in_threads
from edbl.errors import EdblError, command
from edbl.text import count

NAME, FORMAT = "model", 1  # of the entry
MODEL, WEIGHTS, NEW = "model.json", "model.safetensors", "model.safetensors.new"
INCREMENT, BEGUN = "increment", "begun.json"
VERSIONS, WRITING = "versions", ".writing"  # the model as it was; a sign that files may lie there that none names
STAGED = "staged"  # photos that wait for an update of a model that is served
PAGE = "report.html"  # about the model as it is
IMAGES, VIEWS, CHECKPOINTS = "images.npy", "views", "checkpoints"  # of an increment
ENTRY = r"\.(json|safetensors(\.new)?)"
OWN = re.compile(  # what an increment consists of, by path in its folder
    rf"{re.escape(BEGUN)}|{re.escape(IMAGES)}|{VIEWS}(/(train|held)-\d+{ENTRY})?"
    rf"|{CHECKPOINTS}(/task-[\w-]+{ENTRY})?|(.+/)?{store.TEMPORARY.pattern}"
)
FEATURES = {EXEMPLARS: "memory.x", VALIDATION: "validation.x"}  # tensors of images whose backbone is frozen
VERSION = re.compile(r"([1-9][0-9]{0,8})\.json")

Pack = Mapping[str, Tensor]  # what is kept of a class's photos


@contextmanager
def locked(folder: Path) -> Iterator[Bundle | None]:
    """Keep other writers out of a folder, finish what a killed one left to do, and give the model, if there is one."""
    with store.lock(folder):
        yield heal(folder)


@contextmanager
def changing(folder: Path) -> Iterator[Bundle]:
    """Do the same for a model that must be there, and have nothing unfinished."""
    if not exists(folder):
        raise _missing(folder)
    with locked(folder) as found:
        if found is None:
            raise _missing(folder)
        if begun(folder):
            raise unfinished(folder)
        if lessons.wait(folder):
            raise lessons.waiting(folder)
        yield found


def settle(folder: Path) -> Bundle:
    """Return what a model's folder says, and finish before what a killed writer left to do.

    Not where another process works, or none may write. A model in order is not locked, so that a reader never keeps a
    writer out.
    """
    found = read(folder)
    with suppress(EdblError, OSError):
        if (folder / NEW).exists() or (folder / WRITING).exists() or _abandoned(folder):
            with locked(folder) as healed:
                return healed or found
    return found


def exists(folder: Path) -> bool:
    """Tell whether there is a model."""
    return (folder / MODEL).is_file()


def begun(folder: Path) -> bool:
    """Tell whether an update is unfinished."""
    return (folder / INCREMENT / BEGUN).is_file()


def unfinished(folder: Path) -> EdblError:
    """Return the error for a model that cannot be changed, as an increment was begun."""
    return EdblError(
        f"{folder} has an unfinished update\n"
        f"{command('learn', folder)} continues it; {command('learn', folder, '--discard')} discards it"
    )


def _missing(folder: Path) -> EdblError:
    """Return the error for a folder that holds no model."""
    if begun(folder):
        return EdblError(
            f"{folder} has learnt nothing yet: its first update is unfinished\n{command('learn', folder)} continues it"
        )
    if folder.exists() and not folder.is_dir():
        return EdblError(f"{folder} is a file; give the folder of a model")
    what = "holds no model: it has no model.json" if folder.is_dir() else "does not exist"
    return EdblError(f"{folder} {what}; {command('learn', folder, 'FOLDER')} makes one")


def read(folder: Path) -> Bundle:
    """Return what a model's folder says of it, every value checked: it may come from anywhere."""
    if not exists(folder):
        raise _missing(folder)
    store.refuse_links(folder)
    return _described(folder, folder, NAME)


def read_version(folder: Path, number: int) -> Bundle:
    """Return what a model said of itself as it was."""
    if number not in versions(folder):
        kept = ", ".join(map(str, versions(folder))) or "none"
        raise EdblError(f"{folder} has no earlier version {number}; kept: {kept}")
    return _described(folder, folder / VERSIONS, str(number))


def _described(folder: Path, place: Path, name: str) -> Bundle:
    try:
        entry = store.read(place, name, Bundle, FORMAT)
    except store.Damaged as error:
        raise damaged(folder, error.file, error.why) from error
    bundle = entry.value
    bundle.weights = entry.tensors
    if wrong := fault(bundle):
        raise damaged(folder, f"{name}.json", wrong)
    return bundle


def versions(folder: Path) -> list[int]:
    """Return the numbers of the versions that are kept beside the model as it is."""
    place = folder / VERSIONS
    found = [VERSION.fullmatch(path.name) for path in place.iterdir()] if place.is_dir() else []
    return sorted(int(one[1]) for one in found if one)


def write(
    folder: Path,
    bundle: Bundle,
    tensors: Mapping[str, Tensor],
    images: Mapping[str, Pixels],
    packs: Mapping[str, bytes] | None = None,
    over: int | None = None,
) -> None:
    """Make the next version of a model, from the one whose number it has.

    ``images`` and ``packs`` have at least the files that are new, by name. The model as it is has number ``over``, if
    not that one; 0 if there is none.
    """
    over = bundle.version if over is None else over
    number = 1 + max([bundle.version, over, *versions(folder)])
    if number > NEWEST:
        raise EdblError(f"{folder} has no number left for another version; learn a new model")
    (folder / WRITING).touch()
    wanted: list[Path] = []
    for kind in KINDS:
        if names := dict.fromkeys(bundle.files(kind)):
            (folder / kind).mkdir(exist_ok=True)
            wanted += [folder / kind / name for name in names]
    missing = [path for path in wanted if not path.exists()]
    new = packs or {}
    in_threads(
        lambda path: store.write_atomic(path, new[path.name] if path.name in new else _png(images[path.name])),
        missing,
        "saving images",
    )
    _archive(folder, over)
    bundle.parent, bundle.version = bundle.version, number
    bundle.weights = store.save(folder, NAME, bundle, tensors, FORMAT)
    (folder / WRITING).unlink()


def restore(folder: Path, number: int, over: int) -> Bundle:
    """Make a version the model as it is; the one that it is now, ``over``, becomes a version beside it."""
    bundle = read_version(folder, number)
    tensors = _tensors(folder, bundle)
    _archive(folder, over)
    bundle.weights = store.save(folder, NAME, bundle, tensors, FORMAT)
    return bundle


def _archive(folder: Path, number: int) -> None:
    """Keep the model as it is as a version; 0 if there is none. The page about it goes."""
    store.delete(folder.resolve(), [PAGE])
    if not number:
        return
    (folder / VERSIONS).mkdir(exist_ok=True)
    copy = folder / VERSIONS / f"{number}{store.TENSORS}"
    if copy.exists():  # of a writer that was killed
        copy.unlink()
    try:
        os.link(folder / WEIGHTS, copy)
    except OSError:  # a file system without links
        store.write_atomic(copy, store.read_file(folder / WEIGHTS, own=True))
    store.write_atomic(folder / VERSIONS / f"{number}.json", store.read_file(folder / MODEL, own=True))


def prune(folder: Path, bundle: Bundle) -> int:
    """Remove all versions but the model as it is, and what they alone keep of photos; return how many bytes."""
    (folder / WRITING).touch()
    place = folder / VERSIONS
    before = size(folder)
    if place.is_dir():
        own = re.compile(rf"{VERSION.pattern}|[0-9]+{re.escape(store.TENSORS)}")
        store.delete(place, [path.name for path in place.iterdir() if own.fullmatch(path.name)])
        with suppress(OSError):
            place.rmdir()
    _tidy(folder, bundle)
    return before - size(folder)


def size(folder: Path) -> int:
    """Return the bytes of a model's files, each counted once, however many names it has."""
    found = {
        (s.st_dev, s.st_ino): s.st_size
        for s in (e.stat(follow_symlinks=False) for e in store.below(folder) if e.is_file())
    }
    return sum(found.values())


def heal(folder: Path) -> Bundle | None:
    """Finish what a killed writer left to do, and return the model, if there is one."""
    store.sweep(folder)
    first = not exists(folder) and not begun(folder) and (folder / WRITING).exists()  # its writer was killed
    if first or _abandoned(folder):
        discard(folder)
    if not exists(folder):
        return None
    bundle = read(folder)
    store.settle(folder, NAME, bundle.weights)
    if (folder / WRITING).exists():
        _tidy(folder, bundle)
    return bundle


def _tidy(folder: Path, bundle: Bundle) -> None:
    """Remove files that no version refers to."""
    for path in orphans(folder, bundle):
        try:
            store.delete(path.parent, [path.name])
        except OSError as error:
            raise EdblError(
                f"{path}, which the model does not keep any more, cannot be removed: {error.strerror}\n"
                f"make {path.parent} writable; the next command removes what is left"
            ) from error
    (folder / WRITING).unlink()


def orphans(folder: Path, bundle: Bundle) -> list[Path]:
    """Return files that no version refers to, where a writer may have left some."""
    if not (folder / WRITING).exists():
        return []
    kept = [bundle, *(read_version(folder, number) for number in versions(folder))]
    found = []
    for kind, own in KINDS.items():
        wanted = {name for one in kept for name in one.files(kind)}
        there = (folder / kind).iterdir() if (folder / kind).is_dir() else ()
        found += [path for path in there if own.fullmatch(path.name) and path.name not in wanted]
    return found


def strangers(folder: Path) -> list[Path]:
    """Return what lies in the folder of an increment and is not of one."""
    place = folder / INCREMENT
    found = [Path(entry.path) for entry in store.below(place)]
    return [path for path in found if not OWN.fullmatch(path.relative_to(place).as_posix())]


def _abandoned(folder: Path) -> bool:
    """Tell whether photos were being read for an increment that was not begun in the end."""
    place = folder / INCREMENT
    return place.is_dir() and not begun(folder) and not strangers(folder)


def discard(folder: Path) -> bool:
    """Drop a begun increment and, if it was the first, what it has put in its place already; tell whether one was."""
    found = begun(folder)
    shutil.rmtree(folder / INCREMENT, ignore_errors=True)
    if exists(folder):
        return found
    store.delete(folder.resolve(), [NEW, WRITING])
    for kind, own in KINDS.items():
        if (place := folder / kind).is_dir():
            store.delete(place, [path.name for path in place.iterdir() if own.fullmatch(path.name)])
            with suppress(OSError):
                place.rmdir()
    return found


@dataclass(frozen=True)
class Contents:
    """A model as read from disk."""

    bundle: Bundle
    tensors: dict[str, Tensor]  # of ``model.safetensors``
    images: dict[str, Pixels]  # by file name, those asked for
    packs: dict[str, Pack] = field(default_factory=dict)  # what is kept in place of pixels, by class, if asked for
    files: dict[str, bytes] = field(default_factory=dict)  # such files that are to be written, by name

    def pixels(self, kind: str) -> Tensor:
        """Return the exemplars or the held-out images, class by class, ``[n, 3, size, size]``."""
        size = self.bundle.settings.image_size
        pixels = [self.images[name] for name in self.bundle.files(kind)]
        return torch.from_numpy(np.array(pixels, np.uint8).reshape(-1, 3, size, size))


def load(
    folder: Path, kinds: Collection[str] = (), without: Sequence[str] = (), bundle: Bundle | None = None
) -> Contents:
    """Return a model with its images of some ``kinds``; those of classes ``without`` may be missing.

    A ``bundle`` is what was read of it before. A model that is replaced while it is read is read again.
    """
    bundle = bundle or read(folder)
    for _ in range(store.TRIES):
        try:
            return _load(folder, bundle, kinds, without)
        except EdblError:
            before, bundle = bundle, read(folder)
            if before.weights == bundle.weights:
                raise
    raise store.busy(folder)


def _load(folder: Path, bundle: Bundle, kinds: Collection[str], without: Sequence[str]) -> Contents:
    tensors = _tensors(folder, bundle)
    wanted: dict[str, Path] = {}
    lost: dict[Path, str] = {}  # images that are not there, or damaged, and their classes
    owners = bundle.owners()
    for (kind, name), owner in owners.items():
        path = folder / kind / name
        if owner not in without and not path.is_file():
            lost[path] = owner
        elif owner not in without and kind in kinds:
            wanted[name] = path
    size = bundle.settings.image_size
    found = in_threads(lambda path: _kept(path, size), list(wanted.values()), "reading the model")
    lost |= {
        path: owners[path.parent.name, path.name]
        for path, one in zip(wanted.values(), found, strict=True)
        if one is None
    }
    if lost:
        path, owner = next(iter(lost.items()))
        what = "damaged" if path.is_file() else "missing"
        more = f", and so {'is 1 more' if len(lost) == 2 else f'are {len(lost) - 1:,} more'}" if len(lost) > 1 else ""
        classes = list(dict.fromkeys([*without, *lost.values()]))
        some = f"{command('forget', folder, *classes)} and learn {count(classes, 'class')} again"
        raise EdblError(
            f"{path}, {_called(path)} of class '{owner}', is {what}{more}: restore what is lost from a copy of the "
            "model,\n"
            f"or {some if len(classes) < len(bundle.classes) else 'delete the model and learn all its classes again'}"
        )
    kept = dict(zip(wanted, found, strict=True))
    images = {name: one for name, one in kept.items() if isinstance(one, np.ndarray)}
    packs: dict[str, Pack] = {owners[VECTORS, name]: one for name, one in kept.items() if isinstance(one, dict)}
    return Contents(bundle, tensors, images, packs)


def _tensors(folder: Path, bundle: Bundle) -> dict[str, Tensor]:
    """Return the tensors of a version, wherever it lies."""
    try:
        return store.tensors_of(folder, NAME, bundle.weights)
    except store.Damaged as error:
        with suppress(store.Damaged):
            return store.tensors_of(folder / VERSIONS, str(bundle.version), bundle.weights)
        raise damaged(folder, error.file, error.why) from error


def memory_bytes(folder: Path, bundle: Bundle) -> int:
    """Return the size of what is kept of photos to learn from on disk: images, and features of a frozen backbone."""
    paths = [folder / kind / name for kind in (EXEMPLARS, VECTORS) for name in set(bundle.files(kind))]
    size = sum(path.stat().st_size for path in paths if path.is_file())
    if (folder / WEIGHTS).is_file():
        with suppress(OSError, SafetensorError), safe_open(folder / WEIGHTS, "pt") as file:
            size += file.get_tensor(FEATURES[EXEMPLARS]).nbytes  # an error where it learns from pixels
    return size


def damaged(folder: Path, file: str, why: str) -> EdblError:
    """Return the error for a file that cannot be used."""
    return EdblError(f"the model {folder} is damaged: {file}: {why}\nrestore the folder from a copy")


def packed(tensors: Pack) -> tuple[str, bytes]:
    """Return the file of what is kept of a class's photos: SHA-256, by which it is named, and bytes."""
    data = store.bytes_of(tensors)
    return hashlib.sha256(data).hexdigest(), data


def _kept(path: Path, size: int) -> Pixels | Pack | None:
    """Return what a file keeps of photos, or None if it is not what its name says."""
    try:
        return pixels_of(path, size) if path.suffix == ".png" else _unpacked(path)
    except OSError as error:
        what = f"cannot read {path}, {_called(path)} of the model: {error.strerror}"
        raise EdblError(f"{what}\nmake it readable") from error


def _called(path: Path) -> str:
    return "an image" if path.suffix == ".png" else "the features"


def _unpacked(path: Path) -> Pack | None:
    data = store.read_file(path, own=True)
    if hashlib.sha256(data).hexdigest() != path.stem:
        return None
    try:
        return store.tensors_in(data)
    except ValueError:
        return None


def _png(pixels: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).save(buffer, "PNG")
    return buffer.getvalue()


def pixels_of(path: Path, size: int) -> Pixels | None:
    """Return the pixels of a file that is named after them, of this side, or None if it is not what its name says."""
    try:
        data = store.read_file(path, store.MOST_VALUES, own=True)
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            if image.size != (size, size) or image.mode != "RGB":
                return None
            pixels = np.asarray(image).transpose(2, 0, 1)
    except Exception as error:  # Pillow's readers answer damaged files with exceptions of every kind
        if isinstance(error, OSError) and error.errno:
            raise
        return None
    return pixels if digest(pixels) == path.stem else None
