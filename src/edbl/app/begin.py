"""The beginning of an increment: photos are read, and what to learn from and what to hold out is chosen."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from edbl import store
from edbl.app import bundle as disk
from edbl.app import features, importers, mirror, photos
from edbl.app.bundle import IMAGES, INCREMENT, Contents
from edbl.app.description import IMAGE, Bundle, Settings, foreign, had, odd_settings
from edbl.app.photos import Array, Photo
from edbl.app.settings import AUGMENT, Request, change, choose
from edbl.data.decoding import Pixels
from edbl.data.folder import image_notes
from edbl.errors import EdblError, command
from edbl.memory import Budget
from edbl.text import count, first, is_class_name, shown

NAME = "begun"  # of the entry that an increment is
HELD_FROM = 5  # images that a class needs to give any for validation

Say = Callable[[str], None]


@dataclass(frozen=True)
class Begun:
    """An increment that was begun: what was asked for, and what its images are."""

    request: Request
    began: str
    number: int  # increments before it
    base: int  # the version that it starts from; 0 for a new model
    settings: Settings
    names: list[str]
    labels: list[int]  # of each row of the images, a number into ``names``
    files: list[str]  # of each row, to name it
    digests: list[str]  # of each row; empty for a file that could not be read
    train: list[int]  # rows to learn from
    held: list[int]  # rows to measure with
    moved: list[str]  # files of images that the model has, or has learnt from, as another class than they are given
    asked: str  # digest of the request and of all images

    def images(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Return the class of each image, and the file that it has if it is kept: of those to learn from, and held."""
        every = [(self.names[label], f"{digest}.png") for label, digest in zip(self.labels, self.digests, strict=True)]
        return [every[row] for row in self.train], [every[row] for row in self.held]


class Complete(EdblError):
    """What is asked for is what the model has just learnt."""


def read(folder: Path) -> Begun | None:
    """Return the increment that was begun in a model's folder, if one was."""
    if not disk.begun(folder):
        return None
    try:
        begun = store.read(folder / INCREMENT, NAME, Begun).value
    except EdblError as error:
        raise unusable(folder) from error
    if foreign(begun.settings) or odd_settings(begun.settings) or not _fits_itself(begun):
        raise unusable(folder)
    return begun


def _fits_itself(begun: Begun) -> bool:
    """Tell whether rows, names and digests are what they can be, and fit each other."""
    names, used, rows = begun.names, begun.train + begun.held, range(len(begun.labels))
    return (
        len(begun.digests) == len(begun.files) == len(rows)
        and bool(begun.train)
        and all(row in rows for row in used)
        and len(used) == len({begun.digests[row] for row in used})  # of rows, too
        and all(map(is_class_name, names))
        and len(set(names)) == len(names)
        and set(begun.labels) == set(range(len(names)))
        and all(IMAGE.fullmatch(f"{begun.digests[row]}.png") for row in used)
        and all(map(IMAGE.fullmatch, begun.moved))
        and begun.number >= 0
    )


def fits(begun: Begun, base: Contents | None) -> bool:
    """Tell whether an increment can be one of this version: its numbers, settings, and photos of new classes."""
    learnt = {begun.names[begun.labels[row]] for row in begun.train}
    if base is None:
        return begun.number == begun.base == 0 and learnt == {*begun.names}
    bundle, now = base.bundle, begun.settings
    free = replace(bundle.settings, memory=now.memory, seed=now.seed, validation=now.validation, given=now.given)
    return (
        (begun.number, begun.base) == (bundle.increments, bundle.version)
        and now == free
        and learnt >= {*begun.names} - {*bundle.names}
    )


def unusable(folder: Path) -> EdblError:
    """Return the error for a begun increment that is damaged."""
    return EdblError(
        f"the unfinished update in {folder} is damaged; discard it with {command('learn', folder, '--discard')}"
    )


def pixels(folder: Path, begun: Begun) -> photos.Array:
    """Return the images that an increment was begun with."""
    path, side = folder / INCREMENT / IMAGES, begun.settings.image_size
    try:
        if not path.is_file():  # a pipe would be waited for
            raise unusable(folder)
        kept: photos.Array = np.lib.format.open_memmap(path, mode="c")
    except (OSError, *store.ODD_ARRAY) as error:
        raise unusable(folder) from error
    if kept.shape != (len(begun.labels), 3, side, side) or kept.dtype != np.uint8:
        raise unusable(folder)
    return kept


def pictures(begun: Begun, images: photos.Array) -> dict[str, Pixels]:
    """Return by digest what an increment learns and is measured with."""
    return {begun.digests[row]: images[row] for row in begun.train + begun.held}


def begin(
    folder: Path, request: Request, base: Contents | None, device: torch.device, say: Say, given: Sequence[Photo] = ()
) -> Begun:
    """Read all photos, those in folders and those ``given``, and choose what to learn from and what to hold out."""
    found, notes = importers.find([Path(name) for name in request.folders])
    found += given
    settings = change(base.bundle.settings, request) if base else choose(request, found, device)
    drop(folder, say)  # only now, when the new one makes sense
    (folder / INCREMENT).mkdir()
    try:
        begun = _read(folder, request, base, settings, found, notes)
    except BaseException:
        disk.discard(folder)  # no copies of photos stay that nobody will learn from
        raise
    for note in notes:
        say(f"note: {note}")
    return begun


def drop(folder: Path, say: Say) -> None:
    """Drop what was begun, if anything was, and say so."""
    if disk.discard(folder):
        say("the unfinished update is discarded")


def _read(
    folder: Path,
    request: Request,
    base: Contents | None,
    settings: Settings,
    found: Sequence[Photo],
    notes: list[str],
) -> Begun:
    """Read the photos that were found, and begin an increment with them."""
    place = folder / INCREMENT
    results = photos.read_into(place / IMAGES, found, settings.image_size)
    notes += image_notes("given", [photo.path for photo in found], [r for r, _ in results], request.skip_bad)
    names, known = list(dict.fromkeys(photo.name for photo in found)), base.bundle.names if base else []
    notes += photos.alike(names, known)
    number = {name: k for k, name in enumerate(names)}
    labels, digests = [number[photo.name] for photo in found], [d for _, d in results]
    readable = {label for label, d in zip(labels, digests, strict=True) if d}
    if empty := [name for name in names if number[name] not in readable]:
        raise EdblError(f"class '{empty[0]}' has no image that can be read; add some or remove its folder")
    given = sorted((photo.name, digest) for photo, digest in zip(found, digests, strict=True))
    asked = hashlib.sha256(repr((replace(request, folders=[]), given)).encode()).hexdigest()
    if base and base.bundle.history[-1].asked == asked:
        raise Complete(f"that update is complete: {command('info', folder)} shows it")
    _check_twins(found, digests)
    moved = _moved(folder, request, found, digests, base.bundle) if base else []
    train, held = _split(names, labels, digests, settings, base)
    if not train:
        raise EdblError("there is nothing to learn: the model has all these images already, or holds them out")
    if repeated := sum(map(bool, digests)) - len(train) - len(held):
        notes.append(f"{count(range(repeated), 'image')} left out: given twice, or in the model already")
    Budget.parse(settings.memory).check(len({*known, *names}))
    if not base:
        settings = _of_photos(settings, request, np.load(place / IMAGES, mmap_mode="r"), train, labels, notes)
    begun = Begun(
        request=request,
        began=now(),
        number=base.bundle.increments if base else 0,
        base=base.bundle.version if base else 0,
        settings=settings,
        names=names,
        labels=labels,
        files=[shown(photo.path) for photo in found],
        digests=digests,
        train=train,
        held=held,
        moved=moved,
        asked=asked,
    )
    store.save(place, NAME, begun)
    return begun


def _of_photos(
    settings: Settings, request: Request, pixels: Array, train: Sequence[int], labels: Sequence[int], notes: list[str]
) -> Settings:
    """Return the settings of a new model with what is decided by its first photos."""
    settings = replace(settings, ranges=features.ranges(settings, pixels, train))
    if settings.keep or request.mirror is not None or AUGMENT in settings.given:
        return settings
    found = mirror.look(pixels, train, labels)
    if found.harms:
        notes.append(
            f"no mirrored copies are learnt (mirror=true does): with them a simple classifier told {found.plain} of "
            f"{found.photos:,} held-out images wrong that it told right without, {found.mirrored} the other way round"
        )
    return replace(settings, mirror=not found.harms)


def _check_twins(found: Sequence[Photo], digests: Sequence[str]) -> None:
    """Refuse images that are given as those of two classes."""
    met: dict[str, Photo] = {}
    twins = []
    for photo, digest in zip(found, digests, strict=True):
        if digest and (other := met.setdefault(digest, photo)).name != photo.name:
            twins.append(f"{shown(photo.path)} as '{photo.name}' and {shown(other.path)} as '{other.name}'")
    if twins:
        raise EdblError(f"the same image is given as two classes: {first(twins)}\nremove it from one of them")


def _moved(folder: Path, request: Request, found: Sequence[Photo], digests: Sequence[str], bundle: Bundle) -> list[str]:
    """Return the files of images that the model has as another class than they are given, which must be wanted."""
    owners: dict[str, list[str]] = {}
    for known in bundle.classes:
        for digest in had(known):
            owners.setdefault(digest, []).append(known.name)
    moved = [
        (photo, digest, names[0])
        for photo, digest in zip(found, digests, strict=True)
        if photo.name not in (names := owners.get(digest, [photo.name]))
    ]
    if moved and not request.relabel:
        photo, _, name = moved[0]
        named = first([f"{shown(p.path)}, given as '{p.name}', known as '{owner}'" for p, _, owner in moved])
        renamed = f"; or, if the class has a new name, {command('rename', folder, name, photo.name)} first"
        raise EdblError(
            f"the model has an image under another class: {named}\nremove it; or give it its new class "
            f"with relabel=true{renamed if photo.name not in bundle.names else ''}"
        )
    gone = {f"{digest}.png" for _, digest, _ in moved}
    kept = {known.name: known.exemplars or [f"{digest}.png" for digest in known.digests] for known in bundle.classes}
    if bare := [name for name, files in kept.items() if files and gone.issuperset(files)]:
        raise EdblError(
            f"with relabel=true, class '{bare[0]}' would keep no image: leave it some\n"
            f"or, if it is no class of its own, {command('forget', folder, bare[0])} first"
        )
    return sorted(gone)


def _split(
    names: Sequence[str], labels: Sequence[int], digests: Sequence[str], settings: Settings, base: Contents | None
) -> tuple[list[int], list[int]]:
    """Return the rows to learn from and those to hold out.

    Left out are repeated images and those that the model has learnt from as this class, or measures with: what it
    measures with is never learnt from, and what it may have learnt from, as whatever class, is not measured with. The
    choice depends on pixels and seed alone, not on the names or the order of files, and is the same for the same images
    when they come again.
    """
    known = base.bundle.classes if base else []
    kept = {k.name: had(k) for k in known}
    learnt = {digest for k in known for digest in k.digests}
    below = held_below(settings, base)
    train, held = [], []
    for label, name in enumerate(names):
        rows = {d: row for row, d in enumerate(digests) if labels[row] == label and d}
        share = max(1, round(settings.validation * len(rows))) if settings.validation and len(rows) >= HELD_FROM else 0
        places = {d: _place(settings, d) for d in rows}
        first = sorted(rows.keys() - learnt, key=places.__getitem__)[:share]
        chosen = {d for d in first if name not in below or places[d] < below[name]}
        new = rows.keys() - kept.get(name, set())
        held += sorted(rows[d] for d in new & chosen)
        train += sorted(rows[d] for d in new - chosen)
    return train, held


def _place(settings: Settings, digest: str) -> str:
    """Return the place of an image in the order in which images are held out."""
    return hashlib.sha256(f"{settings.seed} {digest}".encode()).hexdigest()


def held_below(
    settings: Settings, base: Contents | None, learnt: Mapping[str, Sequence[str]] | None = None
) -> dict[str, str]:
    """Return for each class below which place no image was learnt from, neither before nor now, as file of ``learnt``.

    In the order of another seed than before, that is none.
    """
    same = base is not None and base.bundle.settings.seed == settings.seed
    below = {known.name: known.held_below if same else "" for known in base.bundle.classes} if base else {}
    for name, files in (learnt or {}).items():
        places = [_place(settings, file.removesuffix(".png")) for file in files]
        below[name] = min([*places, below[name]] if name in below else places)
    return below


def now() -> str:
    """Return the date and time, as a model's history has them."""
    return datetime.now(UTC).isoformat(timespec="seconds")
