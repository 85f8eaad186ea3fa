"""Any folder of images, one sub-folder per class."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from edbl.data.decoding import EXTENSIONS, Decoded, decode
from edbl.data.images import Dataset, Images
from edbl.data.threads import in_threads
from edbl.errors import EdblError
from edbl.text import composed, count, first, shown

DEEPEST = 100  # folders, one in the other
DEFAULT_SIZE = 32
TEST_EVERY = 5  # where there is no test folder, every 5th image is a test image


@dataclass(frozen=True)
class _File:
    path: Path
    label: int
    test: bool


def load_folder(folder: Path, *, image_size: int = 0, skip_bad: bool = False) -> Dataset:
    """Read ``folder/train`` with ``folder/test`` (or ``val``), or one folder of classes that is split here.

    Every image becomes RGB, its centre square scaled to ``image_size`` (0: 32). Files that cannot be read are
    an error that names them; with ``skip_bad`` they are left out and named in the notes.
    """
    if image_size < 0:
        raise EdblError(f"the image size must be 1 or more, or 0 for {DEFAULT_SIZE}, not {image_size}")
    if not folder.is_dir():
        raise EdblError(f"there is no folder {folder}: give one that has a sub-folder of images per class")
    walk = Walk(folder)
    train, test = walk.layout()
    classes, files = _list_files(walk, train, test)
    size = image_size or DEFAULT_SIZE
    decoded = in_threads(lambda file: decode(file.path, size), files, "reading images")
    paths = [file.path.relative_to(folder) for file in files]
    notes = [*walk.notes(), *image_notes(f"in {folder}", paths, decoded, skip_bad)]
    good = [file for file, result in zip(files, decoded, strict=True) if result.pixels is not None]
    pixels = [result.pixels for result in decoded if result.pixels is not None]
    if test is None:
        good = _split_off(good, classes, folder)
        notes.insert(0, _split_note(good))
    else:
        _check_filled(good, classes, walk, (train, test))
    x, y = torch.from_numpy(np.stack(pixels)), torch.tensor([file.label for file in good])  # [n, 3, s, s], [n]
    is_test = torch.tensor([file.test for file in good])
    images = Images(x, y)
    return Dataset(shown(walk.root.name), images[~is_test], images[is_test], tuple(map(shown, classes)), tuple(notes))


class Walk:
    """The part of a folder that is looked at: nothing hidden, and no link that leads out of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = Path(os.path.realpath(folder))
        self.links: dict[Path, None] = {}  # an ordered set: a folder may be looked into twice
        self.loose: dict[Path, None] = {}  # files beside folders that are looked into
        self.others: list[Path] = []
        self.spare: Path | None = None  # a folder val beside test

    def visible(self, folder: Path) -> list[Path]:
        """Return what lies in ``folder``, sorted by name."""
        try:
            os.stat(os.path.join(folder, "."))  # fails where names can be listed, but nothing be opened
            paths = sorted(folder.iterdir())
        except PermissionError as error:
            raise EdblError(
                f"folder {shown(folder)} cannot be read: {error.strerror}\n"
                "change its permissions, or move it out of the folder that you give"
            ) from error
        found = []
        for path in paths:
            if path.name.startswith("."):
                continue
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(self.root):
                self.links[path] = None
            else:
                found.append(path)
        return found

    def folders(self, folder: Path) -> dict[str, Path]:
        """Return the sub-folders of ``folder`` by name."""
        paths = self.visible(folder)
        self.loose |= dict.fromkeys(path for path in paths if not path.is_dir())
        return {path.name: path for path in paths if path.is_dir()}

    def layout(self) -> tuple[Path, Path | None]:
        """Return the folder of the training classes and that of the test classes, if there is one."""
        top = self.folders(self.folder)
        # A folder 'train' without folders is a class of trains.
        if "train" in top and any(path.is_dir() for path in self.visible(top["train"])):
            if others := [shown(name) for name in top if name not in ("train", "test", "val")]:
                raise EdblError(
                    f"{self.folder} has a folder 'train' with a folder per class, and beside it {first(others)}\n"
                    "move these classes into it or elsewhere; if 'train' is a class itself, give it another name"
                )
            self.spare = top.get("val") if "test" in top else None
            return top["train"], top.get("test") or top.get("val")
        lonely = [name for name in ("test", "val") if name in top]
        if lonely:
            raise EdblError(f"{self.folder} has a folder '{lonely[0]}' but no folder 'train' with a folder per class")
        return self.folder, None

    def images(self, folder: Path, above: frozenset[str] = frozenset()) -> list[Path]:
        """Return the image files in ``folder`` and below it."""
        here = os.path.realpath(folder)
        if here in above:
            return []  # a link to a folder it lies in
        if len(above) > DEEPEST:
            raise EdblError(f"{shown(self.folder)} has folders more than {DEEPEST} deep; give one further down")
        found = []
        for path in self.visible(folder):
            if path.is_dir():
                found += self.images(path, above | {here})
            elif _is_image(path):
                found.append(path)
            else:
                self.others.append(path)
        return found

    def notes(self) -> list[str]:
        """Return what was left aside on the way, in words."""
        notes = []
        if self.links:
            links = list(self.links)
            notes.append(f"{count(links, 'link')} out of the folder not followed: {self.named(links)}")
        if self.spare:
            notes.append(f"folder {self.named([self.spare])} left out: there is a folder test")
        if loose := [path for path in self.loose if _is_image(path)]:
            notes.append(f"{count(loose, 'image')} outside of class folders left out: {self.named(loose)}")
        others = [*(path for path in self.loose if not _is_image(path)), *self.others]
        if odd := [path for path in others if not path.is_file()]:
            notes.append(f"{count(odd, 'pipe')} or other things that are no files ignored: {self.named(odd)}")
        if others := [path for path in others if path not in odd]:
            notes.append(f"{count(others, 'file')} without an image extension ignored: {self.named(others)}")
        return notes

    def unfollowed(self) -> str:
        """Return what was left aside where nothing was found, as an addition to a message."""
        told = [f"{count(list(self.links), 'link')} out of {shown(self.folder)} not followed"] if self.links else []
        if loose := [path for path in self.loose if _is_image(path)]:
            told.append(f"{count(loose, 'image')} outside of class folders left out: {self.named(loose)}")
        if self.others:
            told.append(f"{count(self.others, 'file')} without an image extension ignored: {self.named(self.others)}")
        return f" ({'; '.join(told)})" if told else ""

    def named(self, paths: Sequence[Path]) -> str:
        """Return the first few paths, relative to the folder."""
        return first([shown(path.relative_to(self.folder)) for path in paths])


def _is_image(path: Path) -> bool:
    return path.suffix[1:].lower() in EXTENSIONS and (path.is_file() or path.is_symlink())


def _list_files(walk: Walk, train: Path, test: Path | None) -> tuple[list[str], list[_File]]:
    classes = list(walk.folders(train))
    if len(classes) < 2:
        raise EdblError(
            f"{train} has {count(classes, 'class folder')}, at least 2 are needed{walk.unfollowed()}\n"
            "images belong in FOLDER/CLASS/, or in FOLDER/train/CLASS/ and FOLDER/test/CLASS/"
        )
    files = [_File(path, k, False) for k, name in enumerate(classes) for path in walk.images(train / name)]
    if test is None:
        _check_filled(files, classes, walk, (train,))
        return classes, files
    label = {composed(name): k for k, name in enumerate(classes)}
    folders = walk.folders(test)
    extra = [shown(name) for name in folders if composed(name) not in label]
    if extra:
        raise EdblError(f"{test} has classes that {train} has not: {first(extra)}")
    placed = [(label[composed(name)], path) for name, place in folders.items() for path in walk.images(place)]
    files += [_File(path, k, True) for k, path in placed]
    _check_filled(files, classes, walk, (train, test))
    return classes, files


def _check_filled(files: Sequence[_File], classes: Sequence[str], walk: Walk, places: Sequence[Path]) -> None:
    """Raise if a class has no image in one of the ``places``: the training and perhaps the test folder."""
    counts = Counter((file.test, file.label) for file in files)
    for is_test, place in enumerate(places):
        for k, name in enumerate(classes):
            if not counts[bool(is_test), k]:
                kind, where = "test" if is_test else "training", shown(place / name)
                raise EdblError(
                    f"class '{shown(name)}' has no {kind} image that can be read in {where}{walk.unfollowed()}\n"
                    f"images are files ending in {', '.join(EXTENSIONS)}; add some or remove the class"
                )


def _split_off(files: Sequence[_File], classes: Sequence[str], folder: Path) -> list[_File]:
    """Mark every 5th image of each class as a test image; a class of fewer gives its last."""
    counts = Counter(file.label for file in files)
    for k, name in enumerate(classes):
        if counts[k] < 2:
            raise EdblError(
                f"class '{shown(name)}' has {counts[k]} readable image(s) in {folder}: one for training and one for "
                "testing are needed\nadd images, remove the class, or make the folders train and test"
            )
    met: Counter[int] = Counter()
    marked = []
    for file in files:
        met[file.label] += 1
        every = min(TEST_EVERY, counts[file.label])
        marked.append(replace(file, test=met[file.label] % every == 0))
    return marked


def _split_note(files: Sequence[_File]) -> str:
    tests = sum(file.test for file in files)
    return (
        f"there is no test folder: every {TEST_EVERY}th image of each class, sorted by name, is a test image "
        f"({len(files) - tests:,} train, {tests:,} test)"
    )


def image_notes(where: str, paths: Sequence[Path], decoded: Sequence[Decoded], skip_bad: bool) -> list[str]:
    """Return what became of images, in words; those that cannot be used are an error unless ``skip_bad``."""
    pairs = list(zip(paths, decoded, strict=True))
    bad = [f"{shown(path)} ({result.bad})" for path, result in pairs if result.bad]
    if bad and not skip_bad:
        raise EdblError(
            f"{count(bad, 'image')} of {len(paths):,} {where} cannot be used: {first(bad)}\n"
            "repair or remove them, or leave them out with skip_bad"
        )
    notes = []
    if bad:
        notes.append(f"{count(bad, 'image')} left out: {first(bad)}")
    converted = [shown(path) for path, result in pairs if result.converted]
    if converted:
        were = "was not RGB and was" if len(converted) == 1 else "were not RGB and were"
        notes.append(f"{count(converted, 'image')} {were} converted: {first(converted)}")
    return notes
