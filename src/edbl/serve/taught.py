"""A model in a folder, loaded once: what it is asked, and each change of it, by what the command line does too."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from edbl import store
from edbl.app import bundle as disk
from edbl.app import edit, honest, joining, lessons, page, versions
from edbl.app.at_once import AtOnce, Given, Learnt, file_of
from edbl.app.description import Bundle, Settings
from edbl.app.export import export_folder
from edbl.app.honest import Left
from edbl.app.inputs import Frozen, inputs_of
from edbl.app.measuring import Held
from edbl.app.photos import Photo
from edbl.app.predict import UNKNOWN, Predictor
from edbl.app.settings import Request, choose
from edbl.engine.environment import pick_device
from edbl.errors import EdblError
from edbl.nets.sure import threshold
from edbl.serve import told
from edbl.serve.held import Room, Said, Shown, thumbnail
from edbl.serve.limits import Limits
from edbl.serve.model import Learning, Values
from edbl.serve.refusals import Refused, refusal
from edbl.serve.staged import Staged, Waiting
from edbl.serve.updates import Updates

STOPPING = 10.0  # seconds that an update may take to end when the server does
LAST = 2.0  # seconds in which photos that are answered by already are then still learnt
USUAL = 1024  # pixels of a side of the photos that a new model may expect


@dataclass(frozen=True)
class New:
    """What a model is made with that is not there yet."""

    keep: str | None = None
    method: str | None = None
    backbone: str | None = None

    def request(self, relabel: bool = False) -> Request:
        """Return it as the command line would ask for it."""
        return Request(keep=self.keep, method=self.method, backbone=self.backbone, relabel=relabel)


class Taught(Learning):
    """A model in a folder, or one that will be there once it has learnt something."""

    def __init__(
        self, name: str, folder: Path, limits: Limits, new: New, device: str = "auto", room: Room | None = None
    ) -> None:
        super().__init__(name, folder, limits, room)
        self.folder, self.device, self.new = folder, pick_device(device), new
        store.refuse_links(folder)
        self._asked: tuple[object, Predictor] | None = None  # what the files were, and what answers by them
        self._loading = threading.Lock()
        self._chosen: Settings | None = None
        self._at_once = AtOnce(folder)
        self._staged = Staged(folder)
        self._updates = Updates(folder, device, self._has_learnt, self._words)
        self.settings  # noqa: B018 - what cannot be is said now
        if disk.exists(folder):
            self._drop_known()
            if lessons.wait(folder):  # a server was killed, or another one is at it
                with suppress(EdblError, OSError):
                    self._at_once.finish()

    @property
    def settings(self) -> Settings:
        """What it was made with, or will be."""
        if disk.exists(self.folder):
            asked = self._asked
            return asked[1].settings if asked else disk.settle(self.folder).settings
        if self._chosen is None:
            usual = Photo(Path(), "", Image.new("RGB", (USUAL, USUAL)))
            wanted = self.new.request()
            wanted.check()
            self._chosen = choose(wanted, [usual], self.device)
        return self._chosen

    @property
    def learns(self) -> str:  # type: ignore[override]
        """How it learns."""
        return inputs_of(self.settings).learns

    @property
    def image_size(self) -> int:
        """The side of the images that it takes."""
        return self.settings.image_size

    def made_with(self, new: New) -> None:
        """Choose anew what it is made with, as long as it is not there."""
        if disk.exists(self.folder) or self._staged.waiting():
            raise Refused(409, f"the model '{self.name}' is there already")
        before, self.new, self._chosen = self.new, new, None
        try:
            self.settings  # noqa: B018
        except EdblError:
            self.new, self._chosen = before, None
            raise

    # What it is asked.

    def ask(self, shown: Sequence[Shown]) -> Sequence[Shown]:
        """Ask the model of now: of each photo the features are computed once."""
        predictor = self._predictor()
        x = self._taken(shown, predictor.settings if predictor else self.settings)
        if predictor is None:
            for one in shown:
                one.said = Said(0, [], [], 0.0, _never)
            return shown
        probabilities, sure = predictor.answer(x)
        least = lru_cache(16)(lambda rate: threshold(predictor.judged, rate))
        for one, row, value in zip(shown, probabilities.numpy(), sure.tolist(), strict=True):
            one.said = Said(predictor.version, predictor.names, row, value, least, UNKNOWN)
        return shown

    def _taken(self, shown: Sequence[Shown], settings: Settings) -> Tensor:
        """Return photos as the model takes them; features of a frozen backbone are computed once of each."""
        inputs = inputs_of(settings)
        if not shown:
            return torch.empty(0)
        if not isinstance(inputs, Frozen):
            return inputs.asked(_pixels(shown), self.device)
        if new := [one for one in shown if one.features is None]:
            inputs.check()
            for one, features in zip(new, inputs.asked(_pixels(new), self.device), strict=True):
                one.features = features
        return torch.stack([one.features for one in shown])

    def _predictor(self) -> Predictor | None:
        """Return what answers, by the files as they are: others may change the model too."""
        if (file := file_of(self.folder)) is None:
            return None
        with self._loading:
            asked, now = self._asked, self._at_once.now
            seen = file, now.bundle.version if now else None
            if asked is None or asked[0] != seen:
                found = asked[1] if asked and now else Predictor(self.folder, None, str(self.device))
                self._asked = asked = seen, found.by(now.answers, now.bundle) if now else found
            return asked[1]

    def info(self) -> Values:
        """Return what the model is."""
        now = self._at_once.now
        bundle = now.bundle if now else disk.settle(self.folder) if disk.exists(self.folder) else None
        values = told.info(self.folder, bundle, bundle.settings if bundle else self.settings)
        staged = len(self._staged.waiting())
        return {"name": self.name, **values, "staged": staged, "updating": self._updates.running}

    # What changes it.

    def teach(self, photos: Sequence[tuple[Shown, str]], yes: bool, relabel: bool) -> Values:
        """Learn at once, or stage for an update."""
        if self.learns == "by updates":
            return self._stage([(Waiting(one.id, label, one.file, relabel), one) for one, label in photos])
        features, pixels = self._taken([one for one, _ in photos], self.settings), self.settings.keep == "photos"
        given = [
            Given(s.id, label, s.file, x[0], s.pixels if pixels else None)
            for (s, label), x in zip(photos, features, strict=True)
        ]
        done = self._at_once.soon(given, yes) or self._at_once.teach(given, self.settings, yes, relabel)
        if not done.doubts:
            refused = {one.digest for one, _ in done.refused}
            for one, _ in photos:
                one.taught = one.id not in refused
        return self._taught(done)

    def relabel(self, photos: Sequence[tuple[str, str]]) -> Values:
        """Give photos another class: those that the model keeps features of, or that are still held."""
        there = [(self.held.get(id), id, label) for id, label in photos]
        if self.learns == "by updates":
            return self.teach([(one, label) for one, _, label in there if one], True, True) | {
                "errors": [{"file": id, "error": GONE} for one, id, _ in there if one is None]
            }
        owned = disk.settle(self.folder).photos
        lost = [(Given(id, label, id), GONE) for one, id, label in there if one is None and id not in owned]
        held = [one for one, _, _ in there if one]
        self._taken(held, self.settings)
        pixels = self.settings.keep == "photos"
        given = [
            Given(id, label, one.file if one else id, one.features[0] if one else None,
                  one.pixels if one and pixels else None)
            for one, id, label in there
            if one or id in owned
        ]  # fmt: skip
        done = self._at_once.teach(given, None, True, True) if given else Learnt(None)
        for one in held:
            one.taught = True
        return self._taught(done, lost)

    def _stage(self, photos: Sequence[tuple[Waiting, Shown]]) -> Values:
        waiting = self._staged.waiting()
        if len(waiting) + len(photos) > self.limits.staged:
            raise Refused(413, f"at most {self.limits.staged:,} photos wait for an update; start one")
        owners: dict[str, str] = {}
        if disk.exists(self.folder):
            owners = {digest: known.name for digest, known in disk.settle(self.folder).photos.items()}
        new, errors, known_already = [], [], 0
        for one, shown in photos:
            owner = owners.get(one.id, one.label)
            if owner != one.label and not one.relabel:
                errors.append({"file": one.file, "error": f"the model has learnt it as '{owner}'; relabel it"})
            elif one.id in owners and owner == one.label:
                known_already += 1
                shown.taught = True
            else:
                new.append((one, shown.pixels))
                shown.taught = True
        if new:
            self._staged.add(new)
        info = self.info()
        counts = {"learnt": 0, "staged": len(new), "known": known_already}
        return {"version": info["version"], **counts, "errors": errors, "suspicious": [], "info": info}

    def _taught(self, done: Learnt, lost: Sequence[tuple[Given, str]] = ()) -> Values:
        info = self.info()
        doubts = [
            {"id": d.given.digest, "file": d.given.file, "label": d.given.label, "looks_like": d.looks_like,
             "probability": round(d.probability, 6), "why": d.words}
            for d in done.doubts
        ]  # fmt: skip
        errors = [{"file": one.file, "error": why} for one, why in [*done.refused, *lost]]
        counts = {"learnt": done.learnt, "staged": 0, "known": done.known}
        return {"version": info["version"], **counts, "errors": errors, "suspicious": doubts, "info": info}

    def learn(self) -> None:
        """Start an update, or continue an unfinished one."""
        if disk.begun(self.folder):
            self._updates.start(Request(), ())
            return
        photos = self._staged.photos()
        if not photos:
            raise Refused(409, "nothing is staged: teach photos first")
        relabel = any(one.relabel for one in self._staged.waiting().values())
        new = self.new.request(relabel) if not disk.exists(self.folder) else Request(relabel=relabel)
        self._updates.start(new, photos)

    def discard(self) -> None:
        """Drop what is staged, and an unfinished update."""
        self._updates.stop()
        if disk.begun(self.folder):
            with disk.locked(self.folder):
                disk.discard(self.folder)
        self._staged.drop(self._staged.waiting().keys())

    def events(self, seconds: float) -> Iterator[tuple[str, Values]]:
        """Yield news of an update."""
        return self._updates.events(seconds)

    def _has_learnt(self, digests: Sequence[str]) -> None:
        self._staged.drop(digests)

    def _drop_known(self) -> None:
        """Drop staged photos that were learnt before the server was killed."""
        learnt = {(digest, known.name) for digest, known in disk.settle(self.folder).photos.items()}
        if done := [one.id for one in self._staged.waiting().values() if (one.id, one.label) in learnt]:
            self._staged.drop(done)

    def rename(self, old: str, new: str) -> None:
        """Give a class another name."""
        edit.rename(self.folder, old, new)

    def merge(self, classes: Sequence[str], into: str | None) -> None:
        """Make one class of several."""
        edit.merge(self.folder, classes, into)

    def join(self, other: Learning) -> None:
        """Take in what another model has learnt."""
        other.finish()
        joining.take_in(self.folder, other.place)

    def forget(self, classes: Sequence[str]) -> None:
        """Forget classes; nothing of their photos stays in memory either."""
        gone = {digest for digest, known in disk.settle(self.folder).photos.items() if known.name in classes}
        edit.forget(self.folder, classes, str(self.device))
        self.held.drop(gone)
        self._at_once.drop()

    def forget_photos(self, ids: Sequence[str]) -> None:
        """Forget photos; those that are held give the features where the model keeps none."""

        def features(digests: Sequence[str]) -> Tensor:
            held = [self.held.get(digest) for digest in digests]
            shown = [one for one in held if one is not None]
            if len(shown) < len(held):
                raise EdblError("the model keeps no features of a photo that is to be forgotten; send the photo")
            return self._taken(shown, self.settings)[:, 0]

        edit.forget_known(self.folder, {id: id for id in ids}, features)
        self.held.drop(ids)
        self._at_once.drop()

    def undo(self, to: int | None, of: int | None = None) -> None:
        """Go back to a version; photos that it has not learnt can be taught again."""
        if of is not None and (now := self.info()["version"]) != of:
            raise Refused(409, f"the model is at version {now}, not {of}; nothing was undone")
        now = versions.undo(self.folder, to)
        self.held.mark(set(now.photos))

    def prune(self) -> int:
        """Remove all other versions."""
        return versions.prune(self.folder)

    # What it tells.

    def history(self) -> list[Values]:
        """Return the versions."""
        return told.history(*versions.history(self.folder)) if disk.exists(self.folder) else []

    def mistakes(self) -> list[Values]:
        """Return photos that the model would get wrong if it had not learnt them."""
        if not disk.exists(self.folder):
            return []
        bundle = disk.settle(self.folder)
        names, known = bundle.names, self._not_learnt(bundle)
        if known is None:
            return []
        scores, y, digests = known.asked(bundle)
        values, answers = scores.max(1)
        wrong = (answers != y).nonzero().squeeze(1)
        order = wrong[values[wrong].argsort(descending=True)].tolist()
        there = told.pictures(self.folder, bundle)
        return [
            {"id": digests[row], "label": names[int(y[row])], "said": names[int(answers[row])],
             "probability": round(float(values[row]), 6), "thumbnail": self._pictured(digests[row], there)}
            for row in order
        ]  # fmt: skip

    def _not_learnt(self, bundle: Bundle) -> Left | Held | None:
        """Return the photos that the model can be asked about as if it had not learnt them."""
        if self.learns == "at once":
            return self._at_once.solved().left
        return page.not_learnt(self.folder, bundle, str(self.device))

    def suspicious(self) -> list[Values]:
        """Return photos whose class may be wrong."""
        if not disk.exists(self.folder) or self.learns == "by updates":
            return []
        solved = self._at_once.solved()
        if solved.left is None:
            return []
        left, names, there = solved.left, solved.bundle.names, told.pictures(self.folder, solved.bundle)
        return [
            {"id": one.digest, "label": names[one.label],
             "looks_like": None if one.far else names[one.other], "probability": round(one.probability, 6),
             "thumbnail": self._pictured(one.digest, there)}
            for one in honest.suspects(left)
        ]  # fmt: skip

    def _pictured(self, id: str, kept: object) -> bool:
        return id in kept or self.held.get(id) is not None  # type: ignore[operator]

    def report(self) -> bytes:
        """Return the page of the model, made now if it is not there."""
        bundle = disk.settle(self.folder)
        place = self.folder / disk.PAGE
        if not place.is_file():
            page.write(self.folder, bundle, self._not_learnt(bundle))
        return place.read_bytes()

    def photo(self, id: str) -> bytes | None:
        """Return a small JPEG of a photo that is held, staged or kept."""
        if (held := super().photo(id)) is not None:
            return held
        places = [self._staged.picture(id)]
        if disk.exists(self.folder):
            places += [one for name, one in told.pictures(self.folder, disk.settle(self.folder)).items() if name == id]
        for place in places:
            if place.is_file() and (pixels := disk.pixels_of(place, self.image_size)) is not None:
                return thumbnail(pixels)
        return None

    def export(self, place: Path) -> None:
        """Write the model as an ONNX file."""
        export_folder(self.folder, place)

    def finish(self) -> None:
        """Learn the photos that are answered by already."""
        self._at_once.finish()

    def ahead(self) -> Callable[[], None] | None:
        """Solve with the first of them, and return what makes that a version."""
        return self._at_once.ahead()

    def rest(self) -> None:
        """Let go of tensors; what is asked or taught next reads them again."""
        with suppress(EdblError, OSError):
            self.finish()
        self._asked = None
        self._at_once.drop()

    def idle(self) -> None:
        """Do what was put off."""
        self._at_once.save_sums()

    def close(self) -> None:
        """Stop an update, and write what saves work the next time."""
        self._updates.stop(STOPPING)
        with suppress(EdblError, OSError):  # what is left waits on the disk
            self._at_once.finish(LAST)
        self._at_once.save_sums()

    def _words(self, error: EdblError | OSError) -> str:
        return refusal(error, self.places).why


GONE = "the server does not hold this photo any more; send it again"


def _never(rate: float) -> float:
    return 0.0


def _pixels(shown: Sequence[Shown]) -> Tensor:
    return torch.from_numpy(np.stack([one.pixels for one in shown]))
