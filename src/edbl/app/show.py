"""What commands print about a model: tables and plain values."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from edbl.app import bundle as disk
from edbl.app.description import EXEMPLARS, VALIDATION, Bundle, Event, Known, Readout, Score, total
from edbl.app.inputs import inputs_of
from edbl.app.predict import Prediction
from edbl.errors import command
from edbl.metrics import interval
from edbl.text import as_text, count, shown

ROWS = 40  # classes in a table before only the worst are shown
FEW = 3  # names of classes in a line of the history before the rest is only counted
TITLES: dict[Readout, str] = {"cnn": "CNN", "nme": "NME"}  # of the classifiers of a trained model
KEPT = {
    "features": "the features of each photo are kept, not the photos",
    "photos": "each photo is kept, scaled to the model's image size, and its features",
    "nothing": "nothing is kept of single photos but a digest to know each by: sums alone, so the covariance is not "
    "rid of a class that is forgotten, shrinkage is fixed, and probabilities are calibrated by the photos learnt last",
}


class Trained:
    """Words for a model whose classifier is trained: it keeps exemplars, and is measured on held-out images."""

    titles: Mapping[Readout, str] = TITLES  # of its classifiers, and of the columns with their accuracy
    exemplars: Sequence[str] = ("exemplars",)  # a column, if there is one
    measured: Sequence[str] = ("held out", *TITLES.values())  # columns of `found`
    how, none = "on held-out images", "no image was held out"

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle

    def found(self, score: Score) -> list[str]:
        """Return how many images were told right."""
        return [str(score.images), *(_percent(score, readout) for readout in self.titles)]

    def kept(self) -> list[str]:
        """Return what there is to say of what is kept of photos, once."""
        return []

    def memory(self, megabytes: str) -> str:
        """Return what is kept of photos, of so many MB."""
        images = sum(len(known.exemplars) for known in self.bundle.classes)
        note = " with their features" if self.bundle.settings.tune == "head" else ""
        return f"{count(images, 'image')}, {megabytes}{note} ({self.bundle.settings.memory})"

    def answers(self) -> list[str]:
        """Return by what predictions are made."""
        what = {"cnn": "the net's own classifier (CNN)", "nme": "the nearest mean of exemplars (NME)"}
        score = self.bundle.history[-1].total()
        told = f", {_percent(score, self.bundle.readout)} on held-out images" if score.images else ""
        return [f"predictions by {what[self.bundle.readout]}{told}"]

    def about(self) -> list[str]:
        """Return the same, for what a model is."""
        return self.answers()

    def chosen(self) -> list[str]:
        """Return settings that are no recipe's."""
        return [f"seed {self.bundle.settings.seed}, {self.bundle.settings.validation:.0%} of images held out"]


class Closed(Trained):
    """Words for a closed form: it has one classifier, and leaves out photos one by one to be measured."""

    titles: Mapping[Readout, str] = {"cnn": "right"}
    exemplars: Sequence[str] = ()
    measured: Sequence[str] = ("right", "95% interval")
    how, none = "with each photo left out in turn", "no image could be left out to measure with"

    def found(self, score: Score) -> list[str]:
        """Return the same as numbers, as few are no percents."""
        return [f"{score.cnn} of {score.images}", _interval(score)] if score.images else ["-", "-"]

    def kept(self) -> list[str]:
        """Return what is kept."""
        keep = self.bundle.settings.keep
        assert keep is not None
        return [KEPT[keep]]

    def memory(self, megabytes: str) -> str:
        """Return what is kept of photos."""
        if self.bundle.settings.keep == "nothing":
            return "no photo, and no features"
        what = "features" if self.bundle.settings.keep == "features" else "photos and features"
        return f"{what} of {count(self.bundle.images, 'image')}, {megabytes}"

    def answers(self) -> list[str]:
        """Return nothing: there is one classifier."""
        return []

    def about(self) -> list[str]:
        """Return its accuracy."""
        event = self.bundle.history[-1]
        return _accuracy(self, replace(event, classes=[]), event.total())[:1]

    def chosen(self) -> list[str]:
        """Return the seed."""
        return [f"seed {self.bundle.settings.seed}"]


def words(bundle: Bundle) -> Trained:
    """Return the words for a model."""
    return Closed(bundle) if bundle.settings.keep else Trained(bundle)


def report(folder: Path, bundle: Bundle) -> RenderableType:
    """Return what the last increment came to."""
    event = bundle.history[-1]
    score = event.total()
    learnt = f"learnt {count(event.classes, 'new class')}{_named(event.classes)} from {event.images:,} image"
    lines = [f"{f'made the model {folder}: ' if len(bundle.history) == 1 else ''}{learnt}{'s' * (event.images != 1)}"]
    if event.refreshed:
        lines.append(f"refreshed {count(event.refreshed, 'known class')}{_named(event.refreshed)}")
    own = words(bundle)
    if len(bundle.history) == 1:
        lines += own.kept()
    lines += _accuracy(own, event, score)
    if (before := total(event.before.values())).images:
        after = total(event.after.values())
        lost = ", ".join(f"{t} {_percent(before, r)} before and {_percent(after, r)} now" for r, t in TITLES.items())
        lines.append(f"known classes on the same {before.images:,} images: {lost}")
    if len(bundle.classes) == 1:
        lines.append("a model of one class always answers with it; add more classes")
    lines.append("; ".join([memory(folder, bundle), f"{event.seconds:,.1f} s", *own.answers()]))
    return Group(*(escape(line) for line in lines), *by_class(bundle, event))


def _accuracy(own: Trained, event: Event, score: Score) -> list[str]:
    if not score.images:
        return [own.none]
    old = [name for name in event.scores if name not in event.classes]
    parts = {"all": score}
    if event.classes:
        parts |= {"old": event.total(old), "new": event.total(event.classes)}
    return [
        f"accuracy {own.how}{f', {title}' if title != 'right' else ''}: "
        + ", ".join(
            f"{name} classes {_told(s, readout, name == 'all')}"
            for name, s in parts.items()
            if s.images and (name != "new" or len(event.classes) < len(own.bundle.classes))
        )
        for readout, title in own.titles.items()
    ]


def by_class(bundle: Bundle, event: Event) -> list[RenderableType]:
    """Return a table of the classes with their accuracy; of many, the worst alone."""
    table = Table(box=None, pad_edge=False)
    own = words(bundle)
    headings = ["class", "images", *own.exemplars, *own.measured]
    if event.before:
        headings.append(f"{own.titles[bundle.readout]} before")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "class" else "right", overflow="fold")
    known, rest = bundle.classes, list[Known]()
    if len(known) > ROWS:
        known = sorted(known, key=lambda k: _order(event.scores[k.name], bundle.readout))
        known, rest = known[:ROWS], known[ROWS:]
    for k in known:
        score = event.scores[k.name]
        row = [escape(k.name), f"{k.images:,}", *[str(len(k.exemplars))] * len(own.exemplars), *own.found(score)]
        if event.before:
            row.append(_percent(event.before.get(k.name, Score(0, 0, 0)), bundle.readout))
        table.add_row(*row)
    measured = [k for k in rest if event.scores[k.name].images]
    counts = {"of no worse accuracy": len(measured), "without held-out images": len(rest) - len(measured)}
    more = " and ".join(f"{number:,} {what}" for what, number in counts.items() if number)
    return [table, f"and {count(rest, 'more class')}: {more}"] if rest else [table]


def _order(score: Score, readout: Readout) -> float:
    share = score.share(readout)
    return math.inf if math.isnan(share) else share


def info(folder: Path, bundle: Bundle) -> RenderableType:
    """Return what a model is and has been through."""
    others = [number for number in disk.versions(folder) if number != bundle.version]
    s, own = bundle.settings, words(bundle)
    lines = [
        f"{folder}: {count(bundle.classes, 'class')}, {s.method} with {s.backbone}"
        + f"{inputs_of(s).backbone_note}, images of {s.image_size} x {s.image_size}"
        + (f", features by {s.engine}" if s.tune == "head" else ""),
        memory(folder, bundle),
        *own.kept(),
        *own.about(),
        ", ".join([*own.chosen(), *(f"{key}={value}" for key, value in s.given.items())]),
        f"version {bundle.version}"
        + (f"; {count(others, 'other version')}: {command('history', folder)} lists them" if others else ""),
    ]
    if left := disk.orphans(folder, bundle):
        lines.append(f"{count(left, 'file')} that the model does not keep any more could not be removed")
    if disk.begun(folder):
        lines.append(f"an update is unfinished: {command('learn', folder)} continues it")
    return Group(*(escape(line) for line in lines), "", _past(bundle), "", _classes(bundle))


def happened(event: Event) -> str:
    """Return what made a version, in words."""
    if event.kind in ("rename", "merge"):
        *names, new = event.classes
        return f"{event.kind}d {', '.join(names)} to {new}"
    if event.kind == "forget":
        return f"forgot{_named(event.classes, FEW)}" if event.classes else f"forgot {count(event.images, 'photo')}"
    done = "joined" if event.kind == "join" else "learnt"
    what = f"{done}{_named(event.classes, FEW)}"
    if event.refreshed:
        what = f"refreshed{_named(event.refreshed, FEW)}" + (f", {what}" if event.classes else "")
    return what


def _past(bundle: Bundle) -> Table:
    past, own = Table(box=None, pad_edge=False), words(bundle)
    for heading in ("date", "what", "images", *own.exemplars, *own.titles.values(), "seconds"):
        text = heading in ("date", "what")
        past.add_column(heading, justify="left" if text else "right", overflow="fold")
    for event in bundle.history:
        numbers = [f"{event.images:,}", *[f"{event.exemplars:,}"] * len(own.exemplars)]
        numbers += [_percent(event.total(), r) for r in own.titles]
        past.add_row(_when(event.date), escape(happened(event)), *numbers, f"{event.seconds:,.1f}")
    return past


def versions(now: Bundle, every: Sequence[Bundle]) -> Table:
    """Return the versions of a model as a table."""
    table = Table(box=None, pad_edge=False)
    for heading in ("version", "from", "date", "what", "classes", "images", ""):
        right_side = heading in ("version", "from", "classes", "images")
        table.add_column(heading, justify="right" if right_side else "left", no_wrap=heading != "what", overflow="fold")
    for one in every:
        event = one.history[-1]
        images = sum(known.images for known in one.classes)
        mark = "the model as it is" if one.version == now.version else ""
        row = [str(one.version), str(one.parent or ""), _when(event.date), escape(happened(event))]
        table.add_row(*row, f"{len(one.classes):,}", f"{images:,}", mark)
    return table


def version_values(now: Bundle, one: Bundle) -> dict[str, Any]:
    """Return a version for programs."""
    event = one.history[-1]
    return {
        "version": one.version,
        "from": one.parent or None,
        "date": event.date,
        "kind": event.kind,
        "classes": event.classes,
        "refreshed": event.refreshed,
        "current": one.version == now.version,
    }


def _classes(bundle: Bundle) -> Table:
    table, own = Table(box=None, pad_edge=False), words(bundle)
    for heading in ("class", "learnt", "refreshed", "images", *own.exemplars, *own.measured):
        text = heading in ("class", "learnt", "refreshed")
        table.add_column(heading, justify="left" if text else "right", overflow="fold")
    for k in bundle.classes:
        score = bundle.history[-1].scores[k.name]
        counts = f"{k.images:,}", *[str(len(k.exemplars))] * len(own.exemplars)
        days = [_when(date)[:10] if date else "" for date in (k.learnt, k.refreshed)]
        table.add_row(escape(k.name), *days, *counts, *own.found(score))
    return table


def info_values(folder: Path, bundle: Bundle) -> dict[str, Any]:
    """Return the same for programs."""
    values = dataclasses.asdict(bundle)
    values["exemplars"] = len(bundle.files(EXEMPLARS))
    values["exemplar_bytes"] = disk.memory_bytes(folder, bundle)
    values["bytes"] = disk.size(folder)
    values["increment_begun"] = disk.begun(folder)
    for known, entry in zip(bundle.classes, values["classes"], strict=True):
        entry["images"], entry["exemplars"] = known.images, len(known.files(EXEMPLARS))
        entry["validation"] = len(known.files(VALIDATION))
        del entry["photos"], entry["features"]
    for event, entry in zip(bundle.history, values["history"], strict=True):
        entry["accuracy"] = {r: _finite(event.total().share(r)) for r in words(bundle).titles}
    return values


def memory(folder: Path, bundle: Bundle) -> str:
    """Return what a model keeps of photos, and its size, in words."""
    megabytes = f"{disk.memory_bytes(folder, bundle) / 1e6:.2f} MB"
    return f"memory: {words(bundle).memory(megabytes)}; {disk.size(folder) / 1e6:.2f} MB in all"


def predictions(found: Sequence[Prediction]) -> Table:
    """Return predictions as a table."""
    table = Table(box=None, pad_edge=False)
    table.add_column("image", overflow="fold")
    some = any(p.unknown for p in found)
    if some:
        table.add_column("")
    top = max((len(p.best) for p in found), default=0)
    for place in range(top):
        table.add_column(f"class {place + 1}" if place else "class", overflow="fold")
        table.add_column("probability", justify="right")
    for p in found:
        if not p.bad:
            cells = [cell for name, score in p.best for cell in (escape(name), f"{score:.3f}")]
            table.add_row(escape(shown(p.path)), *(["unknown" if p.unknown else ""] if some else []), *cells)
    return table


def prediction_values(p: Prediction, readout: Readout | None) -> dict[str, Any]:
    """Return a prediction for programs."""
    values: dict[str, Any] = {"image": as_text(p.path)}
    if p.bad:
        return {**values, "unknown": False, "error": p.bad}
    how = {"readout": readout} if readout else {}
    classes = [{"class": n, "score": round(v, 6)} for n, v in p.best]
    return {**values, **how, "unknown": p.unknown, "classes": classes}


def csv_heading(top: int) -> list[str]:
    """Return the names of the columns of `csv_row`."""
    return ["image", *(f"{what}_{k + 1}" for k in range(top) for what in ("class", "score")), "unknown", "error"]


def csv_row(p: Prediction, top: int) -> list[str]:
    """Return a prediction as the cells of a line; they are empty but for the error if there is one."""
    cells = [cell for name, score in p.best for cell in (name, f"{score:.6f}")]
    return [shown(p.path), *(cells or [""] * 2 * top), "" if p.bad else str(p.unknown).lower(), p.bad]


def _when(date: str) -> str:
    """Return a date as the user's clock shows it."""
    try:
        return datetime.fromisoformat(date).astimezone().strftime("%Y-%m-%d %H:%M")
    except ValueError:  # of a model that was written by another hand
        return date[:16]


def _named(names: Sequence[str], most: int = 8) -> str:
    if not names:
        return ""
    return f" ({', '.join(names[:most])}{f' and {len(names) - most} more' if len(names) > most else ''})"


def _told(score: Score, readout: Readout, sure: bool) -> str:
    right_ones = score.cnn if readout == "cnn" else score.nme
    between = f"; 95% interval {_interval(score, readout)}" if sure else ""
    return f"{_percent(score, readout)} ({right_ones:,} of {score.images:,}{between})"


def _interval(score: Score, readout: Readout = "cnn") -> str:
    low, high = interval(score.cnn if readout == "cnn" else score.nme, score.images)
    return f"{low:.0%} to {high:.0%}"


def _percent(score: Score, readout: Readout) -> str:
    return f"{score.share(readout):.1%}" if score.images else "-"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
