"""Changes to a model without photos: classes that it forgets, and names that they get."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edbl.app import bundle as disk
from edbl.app.begin import now
from edbl.app.bundle import Bundle, Event, Score
from edbl.app.inputs import inputs_of
from edbl.app.learn import better, measure
from edbl.app.opening import held_out, leave_out, open_model
from edbl.errors import EdblError, unknown
from edbl.text import class_name


def forget(folder: Path, names: Sequence[str], device: str = "auto") -> Bundle:
    """Remove classes with all their images, and return what is left."""
    names = [class_name(name) for name in names]
    with disk.changing(folder) as found:
        started = time.monotonic()
        for name in names:
            if name not in found.names:
                raise unknown("class", name, found.names)
        if len(found.names) > 1 and set(names) == set(found.names):
            raise EdblError(f"these are all classes of {folder}; delete the model instead")
        try:
            contents, model = open_model(folder, device, found)
        except EdblError:  # such as lost images of the classes to forget
            contents, model = open_model(folder, device, found, without=names)
        contents = leave_out(contents, names)
        inputs = inputs_of(contents.bundle.settings)
        x, labels = held_out(inputs, contents)
        before = measure(model, x, labels)
        for name in dict.fromkeys(names):
            model.forget(name)
        after = measure(model, x, labels)
        bundle = contents.bundle
        bundle.classes = [known for known in bundle.classes if known.name not in names]
        bundle.sizes = list(model.sizes)
        event = Event(
            kind="forget",
            date=now(),
            classes=list(dict.fromkeys(names)),
            refreshed=[],
            images=0,
            exemplars=len(model.memory),
            seconds=round(time.monotonic() - started, 2),
            scores=after,
            before={name: before[name] for name in model.names},
            after=after,
        )
        bundle.history.append(event)
        bundle.readout = better(event.total(), model.method.readout)
        tensors = inputs.tensors(model, bundle, zip(labels, x, strict=True))
        disk.write(folder, bundle, tensors, {})
        return bundle


def rename(folder: Path, old: str, new: str) -> Bundle:
    """Give a class another name, in the model's history too."""
    old, new = class_name(old), class_name(new)
    with disk.changing(folder) as found:
        contents = disk.load(folder, bundle=found)
        bundle = contents.bundle
        if old not in bundle.names:
            raise unknown("class", old, bundle.names)
        if not new.strip() or new in bundle.names:
            what = "there is a class of that name already" if new.strip() else "a class needs a name"
            raise EdblError(f"'{old}' cannot be renamed to '{new}': {what}")
        next(known for known in bundle.classes if known.name == old).name = new
        bundle.history = _renamed(bundle.history, old, new)
        disk.write(folder, bundle, contents.tensors, {})
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
