"""Changes to a model without new photos: what it forgets, and names that its classes get."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edbl.app import bundle as disk
from edbl.app import photos
from edbl.app.begin import now
from edbl.app.description import Bundle, Event, Kind, Known, Score
from edbl.app.exact import Exact, Unseen, right
from edbl.app.inputs import inputs_of, trained_on
from edbl.app.measuring import Told, judged, measure
from edbl.app.opening import held_out, leave_out, load, open_model
from edbl.data.decoding import Pixels
from edbl.data.threads import in_threads
from edbl.engine.environment import pick_device
from edbl.errors import EdblError, unknown
from edbl.nets.kept import Kept
from edbl.text import NAMED, class_name, first, shown


def forget(folder: Path, names: Sequence[str], device: str = "auto") -> Bundle:
    """Remove classes with all that is kept of their images, and return what is left."""
    names = list(dict.fromkeys(map(class_name, names)))
    with disk.changing(folder) as found:
        for name in names:
            known_class(found, name)
        if len(found.names) > 1 and set(names) == set(found.names):
            raise EdblError(f"these are all classes of {folder}; delete the model instead")
        if len(found.names) == 1:
            raise EdblError(f"'{names[0]}' is the only class of the model; delete the model instead")
        if found.settings.keep is None:
            return _forget_trained(folder, names, found, device)
        exact = _without(folder, found, names)
        images = sum(known.images for known in found.classes if known.name in names)
        found.classes = [known for known in found.classes if known.name not in names]
        commit(folder, found, exact, "forget", names, images)
        return found


def forget_photos(
    folder: Path, files: Sequence[Path], device: str = "auto", say: Callable[[str], None] = lambda note: None
) -> Bundle:
    """Remove photos, given as files, as if the model had never seen them; where it cannot be quite so, that is said."""
    with disk.changing(folder) as found:
        inputs_of(found.settings).refuse("forget photos", folder)
        digests, features = _digests(found, files, device)
        exact = _forget_known(folder, found, {shown(file): digest for file, digest in digests.items()}, features)
        if isinstance(exact.kept, Kept) and (worn := [exact.names[label] for label in exact.kept.worn]):
            say(
                f"note: so many photos of '{worn[0]}' were forgotten of which features are kept that the others choose "
                "shrinkage and calibration alone; forget the class and learn it again, and all is exact"
            )
        return found


def forget_known(folder: Path, digests: Mapping[str, str], features: Callable[[Sequence[str]], Tensor]) -> Bundle:
    """Remove photos, given by digest, each by what it is called; ``features`` computes those of some where wanted."""
    with disk.changing(folder) as found:
        inputs_of(found.settings).refuse("forget photos", folder)
        _forget_known(folder, found, digests, features)
        return found


def _forget_known(
    folder: Path, found: Bundle, digests: Mapping[str, str], features: Callable[[Sequence[str]], Tensor]
) -> Exact:
    owners = found.photos
    if strange := [file for file, digest in digests.items() if digest not in owners]:
        raise EdblError(f"{folder} has not learnt from {first(strange)}")
    gone: dict[str, list[str]] = {}
    for digest in dict.fromkeys(digests.values()):
        gone.setdefault(owners[digest].name, []).append(digest)
    if bare := [name for name, some in gone.items() if len(some) == known_class(found, name).images]:
        raise EdblError(f"class '{bare[0]}' would have no photo left; forget the class instead")
    exact = Exact.of(folder, load(folder, found))
    for name, some in gone.items():
        try:
            exact.drop(name, some)
        except Unseen:
            exact.drop(name, some, features(some))
        known = known_class(found, name)
        known.add([], some)
        known.exemplars = [file for file in known.exemplars if file.removesuffix(".png") not in some]
    commit(folder, found, exact, "forget", [], len(set(digests.values())))
    return exact


def _digests(
    found: Bundle, files: Sequence[Path], device: str
) -> tuple[dict[Path, str], Callable[[Sequence[str]], Tensor]]:
    """Return the digest of each photo, and what computes the features of some of them."""
    decoded = in_threads(lambda path: photos.read(path, found.settings.image_size), files, "reading images")
    if bad := [f"{shown(path)} ({one.bad})" for path, one in zip(files, decoded, strict=True) if one.pixels is None]:
        raise EdblError(f"cannot read {first(bad)}")
    pixels = {photos.digest(one.pixels): one.pixels for one in decoded if one.pixels is not None}

    def features(digests: Sequence[str]) -> Tensor:
        x = torch.from_numpy(np.stack([pixels[digest] for digest in digests]))
        inputs = inputs_of(found.settings)
        inputs.check()
        return inputs.asked(x, pick_device(device))[:, 0]

    names = [photos.digest(one.pixels) for one in decoded if one.pixels is not None]
    return dict(zip(files, names, strict=True)), features


def rename(folder: Path, old: str, new: str) -> Bundle:
    """Give a class another name, in the model's history too."""
    old, new = class_name(old), class_name(new)
    with disk.changing(folder) as bundle:
        contents = disk.load(folder, bundle=bundle)
        known = known_class(bundle, old)
        _check_free(bundle, old, new)
        known.name = new
        bundle.history = _renamed(bundle.history, old, new)
        last = bundle.history[-1]
        bundle.history.append(
            replace(
                last, kind="rename", date=now(), classes=[old, new], refreshed=[], images=0, seconds=0.0, asked="",
                before={}, after={},
            )
        )  # fmt: skip
        disk.write(folder, bundle, contents.tensors, {})
        return bundle


def merge(folder: Path, names: Sequence[str], new: str | None = None) -> Bundle:
    """Make one class of several; it is called ``new``, or as the first of them."""
    names = list(dict.fromkeys(map(class_name, names)))
    with disk.changing(folder) as found:
        classes = [known_class(found, name) for name in names]
        if len(names) < 2:
            raise EdblError("name two classes or more that are to be one")
        new = class_name(new) if new else names[0]
        if new not in names:
            _check_free(found, names[0], new)
        inputs_of(found.settings).refuse("merge", folder)
        exact = Exact.of(folder, load(folder, found))
        exact.merge(names, new)
        one = Known(new, classes[0].learnt, now())
        for known in classes:
            one.add(known.digests)
            one.exemplars += known.exemplars
        found.classes = [one, *(known for known in found.classes if known not in classes)]
        commit(folder, found, exact, "merge", [*names, new], 0)
        return found


def known_class(bundle: Bundle, name: str) -> Known:
    """Return a class by its name."""
    found = [known for known in bundle.classes if known.name == name]
    if found:
        return found[0]
    gone = {old.casefold(): (old, e.date) for e in bundle.history if e.kind == "forget" for old in e.classes}
    if name.casefold() in gone and name.casefold() not in {there.casefold() for there in bundle.names}:
        old, date = gone[name.casefold()]
        raise EdblError(f"unknown class '{name}': '{old}' was forgotten on {date[:10]}")
    raise unknown("class", name, bundle.names, most=NAMED)


def _check_free(bundle: Bundle, old: str, new: str) -> None:
    """Refuse a name that is none, or another class's."""
    if not new.strip() or new in bundle.names:
        what = "there is a class of that name already" if new.strip() else "a class needs a name"
        raise EdblError(f"'{old}' cannot be renamed to '{new}': {what}")


def commit(
    folder: Path,
    bundle: Bundle,
    exact: Exact,
    kind: Kind,
    classes: Sequence[str],
    number: int,
    images: Mapping[str, Pixels] | None = None,
) -> None:
    """Solve for a closed form that was changed, by a ``number`` of photos, and make it the next version."""
    started = time.monotonic()
    answers, left_out = exact.solve()
    bundle.classes.sort(key=lambda known: exact.names.index(known.name))
    bundle.sizes = [len(bundle.classes)]
    bundle.history.append(
        Event(
            kind=kind,
            date=now(),
            classes=list(classes),
            refreshed=[],
            images=number,
            exemplars=0,
            seconds=round(time.monotonic() - started, 2),
            scores=right(exact.names, left_out),
            before={},
            after={},
        )
    )
    disk.write(folder, bundle, exact.tensors(answers), images or {}, exact.files(bundle))
    exact.save_sums(folder, bundle)


def _without(folder: Path, found: Bundle, names: Sequence[str]) -> Exact:
    """Return a closed form without some classes, whose features may be lost."""
    try:
        exact = Exact.of(folder, load(folder, found))
        for name in names:
            exact.forget(name)
    except EdblError:
        contents = load(folder, found, without=names)
        left = [known for known in found.classes if known.name not in names]
        exact = Exact.of(folder, replace(contents, bundle=replace(found, classes=left)))
    return exact


def _forget_trained(folder: Path, names: Sequence[str], found: Bundle, device: str) -> Bundle:
    started = time.monotonic()
    try:
        contents, model = open_model(folder, device, found)
    except EdblError:  # such as lost images of the classes to forget
        contents, model = open_model(folder, device, found, without=names)
    contents = leave_out(contents, names)
    inputs = trained_on(contents.bundle.settings)
    x, labels = held_out(inputs, contents)
    before = measure(model, x, labels)
    for name in names:
        model.forget(name)
    told: Told = []
    model.factor = 1.0
    after = measure(model, x, labels, told=told)
    bundle = contents.bundle
    bundle.classes = [known for known in bundle.classes if known.name not in names]
    bundle.sizes = list(model.sizes)
    event = Event(
        kind="forget",
        date=now(),
        classes=list(names),
        refreshed=[],
        images=sum(known.images for known in found.classes if known.name in names),
        exemplars=len(model.memory),
        seconds=round(time.monotonic() - started, 2),
        scores=after,
        before={name: before[name] for name in model.names},
        after=after,
    )
    bundle.history.append(event)
    tensors = inputs.tensors(model, bundle, zip(labels, x, strict=True)) | judged(model.names, told)
    disk.write(folder, bundle, tensors, {})
    return bundle


def _renamed(history: Sequence[Event], old: str, new: str) -> list[Event]:
    """Return a history with another name for a class; events up to one that knew a class of that name stay."""

    def names(given: Sequence[str]) -> list[str]:
        return [new if name == old else name for name in given]

    def scores(given: Mapping[str, Score]) -> dict[str, Score]:
        return dict(zip(names(list(given)), given.values(), strict=True))

    def changed(e: Event) -> Event:
        e = replace(e, classes=names(e.classes), refreshed=names(e.refreshed))
        return replace(e, scores=scores(e.scores), before=scores(e.before), after=scores(e.after))

    known = [k for k, event in enumerate(history) if new in event.scores or new in event.before]
    since = known[-1] + 1 if known else 0
    return [*history[:since], *map(changed, history[since:])]
