"""A model with a closed form that learns at once: photos that were read already, one or a few at a time, from memory.

It ends with the model that `edbl.app.learn` makes of the same photos. What it saves is everything around it: no
increment is begun on disk, what is kept of photos is not read again, and the page of the model is made when it is
wanted. One more photo is answered by before the model is solved with it: until then it waits as a lesson.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from edbl import store
from edbl.app import bundle as disk
from edbl.app import honest, lessons
from edbl.app.begin import now
from edbl.app.description import Bundle, Event, Known, Score, Settings, had
from edbl.app.exact import Answers, Exact, LeftOut, right
from edbl.app.honest import Left
from edbl.app.inputs import inputs_of
from edbl.app.lessons import FEATURES, PIXELS, Lesson
from edbl.app.opening import load
from edbl.app.soon import Sooner
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


@dataclass(frozen=True)
class Waits:
    """A photo that waits to be learnt."""

    name: str  # of its entry on disk
    given: Given
    date: str


@dataclass(frozen=True)
class Now:
    """What is answered by: the model on disk, or that with the photos that wait."""

    bundle: Bundle  # with the version that it will be
    answers: Answers
    sooner: Sooner
    file: object  # which `model.json` it goes by


class AtOnce:
    """The model in a folder, whose last version stays in memory.

    What changes it is called by one thread at a time; `ahead` may work in another meanwhile.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last: Solved | None = None
        self._now: Now | None = None
        self._waiting: list[Waits] = []
        self._solving = threading.Lock()

    def solved(self) -> Solved:
        """Return the model as it is, solved, with its photos left out one by one."""
        found = self._found(disk.settle(self.folder))
        if found.answers is None:
            exact = _copy(found.exact)
            with self._solving:
                answers, told = exact.solve()
            left = honest.left(exact, answers, told)
            self._last = found = Solved(found.bundle, exact, answers, left)
            self._follow()
        return found

    def drop(self) -> None:
        """Let go of what is held in memory."""
        self._last, self._now, self._waiting = None, None, []

    @property
    def now(self) -> Now | None:
        """What is answered by, where it is held in memory, and nobody else has changed the model since."""
        found = self._now
        return found if found and found.file == file_of(self.folder) else None

    def teach(
        self, given: Sequence[Given], new: Settings | None = None, yes: bool = False, relabel: bool = False
    ) -> Learnt:
        """Learn from photos, or give those that the model has another class, and make the next version.

        ``new`` is what a model is made with that is not there yet. Without ``yes`` nothing is learnt where a new photo
        looks mislabelled; without ``relabel`` photos that the model has as another class are refused.
        """
        self.finish()
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
            made, fresh = self._solve(base, settings, fresh, moved, now(), started)
            if not yes and (doubts := _doubts(made, fresh)):
                return Learnt(base.bundle if base else None, 0, known, refused, doubts)
            try:
                self._write(made, fresh)
            except BaseException:
                if base is None:  # nothing that would look like something else than a model
                    disk.discard(self.folder)
                raise
            self._follow()
            return Learnt(made.bundle, len(fresh), known, refused)

    def soon(self, given: Sequence[Given], yes: bool = False) -> Learnt | None:
        """Take in one more photo, and answer by it from now on; the next version is made by `ahead` or `finish`.

        None where it takes a solution: of several photos, of one that the model has, or without a solution in memory.
        """
        found, one = self.now, given[0]
        if len(given) != 1 or found is None or one.features is None:
            return None
        while (sooner := found.sooner.more(one.features, one.label)) is None and self._waiting:
            self.finish(0)
            found = self.now or found
        if sooner is None or any(one.digest in known.photos for known in found.bundle.classes):  # across two, at worst
            return None
        if self._last is None or self._last.left is None or len(found.sooner) != len(self._waiting):
            return None
        inputs_of(found.bundle.settings).check()
        told = found.sooner.told(one.features, one.digest, one.label, found.answers)
        if told is not None and not yes and (doubts := _named(self._last.left, told, found.bundle.names, [one])):
            return Learnt(found.bundle, doubts=doubts)
        date = now()
        then = self._with(found, sooner, one, date)
        with store.lock(self.folder):
            others = lessons.wait(self.folder) and not self._waiting
            if disk.begun(self.folder) or others or found.file != file_of(self.folder):
                return None
            name = lessons.add(self.folder, Lesson(one.digest, one.label, one.file, date), _tensors(one))
            self._waiting.append(Waits(name, one, date))
            self._now = then
        return Learnt(then.bundle, 1)

    def ahead(self) -> Callable[[], None] | None:
        """Solve with the first photo that waits, and return what makes that the next version; None if none waits."""
        if not self._waiting:
            return None
        first, base = self._waiting[0], self._found(disk.settle(self.folder))
        fresh, moved, *_ = _sorted(base.bundle, [first.given], relabel=False)
        started = time.monotonic()
        made = self._solve(base, base.bundle.settings, fresh, moved, first.date, started)[0] if fresh else None

        def write() -> None:
            if not self._waiting or self._waiting[0] is not first:
                return
            with disk.locked(self.folder) as found:
                if found is None or _key(found) != _key(base.bundle) or found.version != base.bundle.version:
                    return
                if made is not None:
                    self._write(made, fresh)
                self._waiting = self._waiting[1:]
                lessons.drop(self.folder, first.name)
                self._follow()

        return write

    def finish(self, seconds: float = math.inf) -> int:
        """Make versions of all photos that wait, or of at least one for some ``seconds``; return how many it made."""
        end, number = time.monotonic() + seconds, 0
        while (not number or time.monotonic() < end) and self._waits() and (write := self.ahead()) is not None:
            write()
            number += 1
        return number

    def save_sums(self) -> None:
        """Keep on disk what saves work when the model is next read; for when there is time."""
        last = self._last
        if last is not None:
            with suppress(EdblError, OSError), disk.changing(self.folder) as found:
                if found.weights == last.bundle.weights:
                    last.exact.save_sums(self.folder, found)

    def _solve(
        self,
        base: Solved | None,
        settings: Settings,
        fresh: Sequence[Given],
        moved: Mapping[str, str],
        date: str,
        started: float,
    ) -> tuple[Solved, list[Given]]:
        """Return the next version, which is not on disk yet, and photos with their features."""
        exact = _copy(base.exact) if base else Exact.new(settings, _features(fresh).shape[1])
        fresh = _complete(exact, fresh)
        _take(exact, fresh, moved)
        with self._solving:
            answers, told = exact.solve((_features(fresh), [one.label for one in fresh]))
        left = honest.left(exact, answers, told)
        seconds, before = round(time.monotonic() - started, 2), base.bundle if base else None
        made = _described(settings, before, right(exact.names, told), fresh, moved, seconds, date)
        return Solved(made, exact, answers, left), fresh

    def _write(self, made: Solved, fresh: Sequence[Given]) -> None:
        assert made.answers is not None
        exact, images = made.exact, {f"{one.digest}.png": one.pixels for one in fresh if one.pixels is not None}
        disk.write(self.folder, made.bundle, exact.tensors(made.answers), images, exact.files(made.bundle))
        exact.changed, exact.former = set(), made.answers.sure
        self._last = made

    def _follow(self) -> None:
        """Answer by the last version, and by the photos that wait."""
        last, self._now = self._last, None
        if last is None or last.answers is None:
            return
        found = Now(last.bundle, last.answers, Sooner.of(last.exact, last.answers), file_of(self.folder))
        for one in self._waiting:
            assert one.given.features is not None
            sooner = found.sooner.more(one.given.features, one.given.label)
            if sooner is None:
                break
            found = self._with(found, sooner, one.given, one.date)
        self._now = found

    def _with(self, found: Now, sooner: Sooner, one: Given, date: str) -> Now:
        """Return what is answered by with one more photo."""
        before, scores = found.bundle, found.bundle.history[-1].scores
        scores = {name: scores.get(name, Score(0, 0)) for name in sooner.names}
        made = _described(before.settings, before, scores, [one], {}, 0.0, date)
        made.parent, made.version = before.version, 1 + max([before.version, *disk.versions(self.folder)])
        return Now(made, sooner.answers(), sooner, found.file)

    def _waits(self) -> list[Waits]:
        """Return the photos that wait; those of a process that was killed, too."""
        if not self._waiting and lessons.wait(self.folder):
            wanted = _wanted(self._found(disk.settle(self.folder)))
            for name, lesson, tensors in lessons.every(self.folder, wanted):
                self._waiting.append(Waits(name, _given(lesson, tensors), lesson.date))
            if not self._waiting:
                with store.lock(self.folder):
                    lessons.tidy(self.folder, wanted)
        return self._waiting

    def _found(self, bundle: Bundle) -> Solved:
        if self._last is None or _key(self._last.bundle) != _key(bundle):
            contents = load(self.folder, bundle)
            self._last, self._now = Solved(contents.bundle, Exact.of(self.folder, contents)), None
        elif self._last.bundle.version != bundle.version:
            self._last = replace(self._last, bundle=bundle)
        return self._last


def file_of(folder: Path) -> object:
    """Return what tells the file that says what a model is from any other; None if it is not there."""
    try:
        found = (folder / disk.MODEL).stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _tensors(one: Given) -> dict[str, Tensor]:
    """Return what is written of a photo that waits."""
    assert one.features is not None
    pixels = {} if one.pixels is None else {PIXELS: torch.from_numpy(one.pixels.copy())}
    return {FEATURES: one.features, **pixels}


def _wanted(base: Solved) -> dict[str, Tensor]:
    """Return tensors of the shapes and types that are written of a photo that waits."""
    keep, size = base.bundle.settings.keep, base.bundle.settings.image_size
    pixels = {PIXELS: torch.empty(3, size, size, dtype=torch.uint8)} if keep == "photos" else {}
    return {FEATURES: torch.empty(base.exact.kept.means.shape[1], dtype=torch.float16), **pixels}


def _given(lesson: Lesson, tensors: Mapping[str, Tensor]) -> Given:
    pixels = tensors[PIXELS].numpy() if PIXELS in tensors else None
    return Given(lesson.digest, lesson.label, lesson.file, tensors[FEATURES], pixels)


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


def _doubts(made: Solved, fresh: Sequence[Given]) -> list[Doubt]:
    if made.left is None:
        return []
    exact = made.exact
    asked = exact.left_out(_features(fresh), [one.digest for one in fresh], [one.label for one in fresh])
    return _named(made.left, asked, exact.names, fresh)


def _named(left: Left, asked: LeftOut, names: Sequence[str], fresh: Sequence[Given]) -> list[Doubt]:
    new = {one.digest: one for one in fresh}
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
    date: str,
) -> Bundle:
    """Return what is to be said of the new version."""
    old = base.names if base else []
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
