"""A model with a closed form that learns at once: photos that were read already, one or a few at a time, from memory.

It ends with the model that `edbl.app.learn` makes of the same photos. What it saves is everything around it: no
increment is begun on disk, what is kept of photos is not read again, and the page of the model is made when it is
wanted.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from edbl.app import bundle as disk
from edbl.app import honest
from edbl.app.begin import had, now
from edbl.app.description import Bundle, Event, Known, Score, Settings
from edbl.app.exact import Answers, Exact, right
from edbl.app.honest import Left
from edbl.app.inputs import inputs_of
from edbl.app.opening import load
from edbl.data.decoding import Pixels
from edbl.errors import EdblError


@dataclass(frozen=True)
class Given:
    """A photo with its class."""

    digest: str
    label: str
    file: str  # to name it
    features: Tensor | None = None  # ``[width]`` in half precision; None of one that the model keeps features of
    pixels: Pixels | None = None  # wanted where the model keeps photos


@dataclass(frozen=True)
class Doubt:
    """A photo whose label may be wrong."""

    given: Given
    looks_like: str
    probability: float
    words: str


@dataclass(frozen=True)
class Learnt:
    """What became of photos."""

    bundle: Bundle | None  # the model as it is now; None where nothing was learnt
    learnt: int = 0
    known: int = 0  # that the model had already
    refused: Sequence[tuple[Given, str]] = ()  # and why
    doubts: Sequence[Doubt] = ()  # if there are any, nothing was learnt


@dataclass(frozen=True)
class Solved:
    """A version of a model in memory: what is kept of its photos, and what it answers by."""

    bundle: Bundle
    exact: Exact
    answers: Answers | None = None  # where it was solved here
    left: Left | None = None


class AtOnce:
    """The model in a folder, whose last version stays in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last: Solved | None = None

    def solved(self) -> Solved:
        """Return the model as it is, solved, with its photos left out one by one."""
        found = self._found(disk.settle(self.folder))
        if found.answers is None:
            exact = _copy(found.exact)
            answers, told = exact.solve()
            left = honest.left(exact, answers, told)
            self._last = found = Solved(found.bundle, exact, answers, left)
        return found

    def drop(self) -> None:
        """Let go of what is held in memory."""
        self._last = None

    def teach(
        self, given: Sequence[Given], new: Settings | None = None, yes: bool = False, relabel: bool = False
    ) -> Learnt:
        """Learn from photos, or give those that the model has another class, and make the next version.

        ``new`` is what a model is made with that is not there yet. Without ``yes`` nothing is learnt where a new photo
        looks mislabelled; without ``relabel`` photos that the model has as another class are refused.
        """
        started = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        with disk.locked(self.folder) as found:
            if disk.begun(self.folder):
                raise disk.unfinished(self.folder)
            base = self._found(found) if found else None
            settings = base.bundle.settings if base else new
            if settings is None or settings.keep is None:
                raise EdblError("only a model with a closed form learns at once")
            inputs_of(settings).check()
            fresh, moved, known, refused = _sorted(base.bundle if base else None, given, relabel)
            if not fresh:
                return Learnt(base.bundle if base else None, 0, known, refused)
            exact = _copy(base.exact) if base else Exact.new(settings, _features(fresh).shape[1])
            fresh = _complete(exact, fresh)
            _take(exact, fresh, moved)
            answers, told = exact.solve((_features(fresh), [one.label for one in fresh]))
            left = honest.left(exact, answers, told)
            if not yes and (doubts := _doubts(exact, left, fresh)):
                return Learnt(base.bundle if base else None, 0, known, refused, doubts)
            scores = right(exact.names, told)
            seconds = round(time.monotonic() - started, 2)
            made = _described(settings, base.bundle if base else None, scores, fresh, moved, seconds)
            images = {f"{one.digest}.png": one.pixels for one in fresh if one.pixels is not None}
            try:
                disk.write(self.folder, made, exact.tensors(answers), images, exact.files(made))
            except BaseException:
                if base is None:  # nothing that would look like something else than a model
                    disk.discard(self.folder)
                raise
            exact.changed, exact.former = set(), answers.sure
            self._last = Solved(made, exact, answers, left)
            return Learnt(made, len(fresh), known, refused)

    def save_sums(self) -> None:
        """Keep on disk what saves work when the model is next read; for when there is time."""
        last = self._last
        if last is not None:
            with suppress(EdblError, OSError), disk.changing(self.folder) as found:
                if found.weights == last.bundle.weights:
                    last.exact.save_sums(self.folder, found)

    def _found(self, bundle: Bundle) -> Solved:
        if self._last is None or _key(self._last.bundle) != _key(bundle):
            contents = load(self.folder, bundle)
            self._last = Solved(contents.bundle, Exact.of(self.folder, contents))
        elif self._last.bundle.version != bundle.version:
            self._last = replace(self._last, bundle=bundle)
        return self._last


def _key(bundle: Bundle) -> tuple[str, list[tuple[str, str, str]]]:
    return bundle.weights, [(known.name, known.photos, known.features) for known in bundle.classes]


def _copy(exact: Exact) -> Exact:
    """Return what can be changed without changing the other: tensors are never changed in place."""
    return replace(exact, names=list(exact.names), changed=set())


def _sorted(
    bundle: Bundle | None, given: Sequence[Given], relabel: bool
) -> tuple[list[Given], dict[str, str], int, list[tuple[Given, str]]]:
    """Return photos to learn, the class of those that have another one so far, how many are known, and the refused."""
    classes = bundle.classes if bundle else []
    owners = {digest: known.name for known in classes for digest in had(known)}
    fresh: dict[str, Given] = {}
    moved: dict[str, str] = {}
    refused: list[tuple[Given, str]] = []
    known = 0
    for one in given:
        owner = fresh[one.digest].label if one.digest in fresh else owners.get(one.digest, one.label)
        if owner != one.label and (one.digest in fresh or not relabel):
            what = "it is given as" if one.digest in fresh else "the model has learnt it as"
            refused.append((one, f"{what} '{owner}', so it cannot be '{one.label}' too; relabel it"))
        elif one.digest in fresh or (owner == one.label and one.digest in owners):
            known += 1
        else:
            fresh[one.digest] = one
            if owner != one.label:
                moved[one.digest] = owner
    for bare in classes:
        if moved and not {*bare.digests} - moved.keys() and all(one.label != bare.name for one in fresh.values()):
            why = f"class '{bare.name}' would have no photo left; rename it, or merge it with another"
            refused += [(fresh.pop(digest), why) for digest in bare.digests]
            for digest in bare.digests:
                del moved[digest]
    return list(fresh.values()), moved, known, refused


def _complete(exact: Exact, fresh: Sequence[Given]) -> list[Given]:
    """Return photos with their features, which the model may keep."""
    kept = exact.features([one.digest for one in fresh if one.features is None])
    done = [one if one.features is not None else replace(one, features=kept.get(one.digest)) for one in fresh]
    if lost := [one for one in done if one.features is None]:
        raise EdblError(f"the model does not keep photo {lost[0].file}; give its file")
    return done


def _take(exact: Exact, fresh: Sequence[Given], moved: Mapping[str, str]) -> None:
    """Learn photos, those that were another class's before included."""
    for owner in dict.fromkeys(moved.values()):
        some = [one for one in fresh if moved.get(one.digest) == owner]
        exact.drop(owner, [one.digest for one in some], _features(some))
    exact.learn(_features(fresh), [one.digest for one in fresh], [one.label for one in fresh])


def _features(given: Sequence[Given]) -> Tensor:
    return torch.stack([one.features for one in given if one.features is not None])


def _doubts(exact: Exact, left: Left | None, fresh: Sequence[Given]) -> list[Doubt]:
    if left is None:
        return []
    new, names = {one.digest: one for one in fresh}, exact.names
    asked = exact.left_out(_features(fresh), list(new), [one.label for one in fresh])
    return [
        Doubt(new[one.digest], names[one.other], one.probability, honest.looks(names, one))
        for one in honest.suspects(left, asked)
    ]


def _described(
    settings: Settings,
    base: Bundle | None,
    scores: dict[str, Score],
    fresh: Sequence[Given],
    moved: Mapping[str, str],
    seconds: float,
) -> Bundle:
    """Return what is to be said of the new version."""
    date, old = now(), base.names if base else []
    names = list(dict.fromkeys(one.label for one in fresh))
    event = Event(
        kind="learn",
        date=date,
        classes=[name for name in names if name not in old],
        refreshed=[name for name in names if name in old],
        images=len(fresh),
        exemplars=0,
        seconds=seconds,
        scores=scores,
        before={},
        after={},
    )
    known = {one.name: replace(one) for one in base.classes} if base else {}
    for name in scores:
        entry = known.setdefault(name, Known(name, learnt=date))
        entry.add([one.digest for one in fresh if one.label == name], moved)
        entry.refreshed = date if name in event.refreshed else entry.refreshed
        entry.exemplars = [f"{digest}.png" for digest in entry.digests] if settings.keep == "photos" else []
    return Bundle(
        settings=settings,
        recipe={"method": settings.method, **settings.given},
        classes=list(known.values()),
        sizes=[len(known)],
        increments=(base.increments if base else 0) + 1,
        seen_images=sum(one.images for one in known.values()),
        history=[*(base.history if base else []), event],
        readout="cnn",
        version=base.version if base else 0,
    )
