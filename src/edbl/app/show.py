"""What commands print about a model: tables and plain values."""

import dataclasses
import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from edbl.app import bundle as disk
from edbl.app.bundle import Bundle, Event, Known, Readout, Score, total
from edbl.app.inputs import inputs_of
from edbl.app.predict import Prediction
from edbl.errors import command
from edbl.text import as_text, count, shown

ROWS = 40  # classes in a table before only the worst are shown
READOUTS: tuple[Readout, ...] = ("cnn", "nme")


def report(folder: Path, bundle: Bundle) -> RenderableType:
    """Return what the last increment came to."""
    event = bundle.history[-1]
    score = event.total()
    learnt = f"learnt {count(event.classes, 'new class')}{_named(event.classes)} from {event.images:,} image"
    lines = [f"{f'made the model {folder}: ' if len(bundle.history) == 1 else ''}{learnt}{'s' * (event.images != 1)}"]
    if event.refreshed:
        lines.append(f"refreshed {count(event.refreshed, 'known class')}{_named(event.refreshed)}")
    lines += _accuracy(event, score) if score.images else ["no image was held out"]
    if (before := total(event.before.values())).images:
        after = total(event.after.values())
        lost = ", ".join(f"{r.upper()} {_percent(before, r)} before and {_percent(after, r)} now" for r in READOUTS)
        lines.append(f"known classes on the same {before.images:,} images: {lost}")
    if len(bundle.classes) == 1:
        lines.append("a model of one class always answers with it; add more classes")
    lines.append(f"{memory(folder, bundle)}; {event.seconds:,.1f} s; predictions by {_readout(bundle, score)}")
    return Group(*(escape(line) for line in lines), *by_class(bundle, event))


def _accuracy(event: Event, score: Score) -> list[str]:
    old = [name for name in event.scores if name not in event.classes]
    parts = {"all": score, "old": event.total(old), "new": event.total(event.classes)}
    return [
        f"accuracy on held-out images, {readout.upper()}: "
        + ", ".join(f"{name} classes {_percent(s, readout)}" for name, s in parts.items() if s.images)
        for readout in READOUTS
    ]


def by_class(bundle: Bundle, event: Event) -> list[RenderableType]:
    """Return a table of the classes with their accuracy; of many, the worst alone."""
    table = Table(box=None, pad_edge=False)
    headings = ["class", "images", "exemplars", "held out", "CNN", "NME"]
    if event.before:
        headings.append(f"{bundle.readout.upper()} before")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "class" else "right", overflow="fold")
    known, rest = bundle.classes, list[Known]()
    if len(known) > ROWS:
        known = sorted(known, key=lambda k: _order(event.scores[k.name], bundle.readout))
        known, rest = known[:ROWS], known[ROWS:]
    for k in known:
        score = event.scores[k.name]
        row = [escape(k.name), f"{k.images:,}", str(len(k.exemplars)), str(score.images)]
        row += [_percent(score, readout) for readout in READOUTS]
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
    s = bundle.settings
    lines = [
        f"{folder}: {count(bundle.classes, 'class')}, {s.method} with {s.backbone}"
        + f"{inputs_of(s).backbone_note}, images of {s.image_size} x {s.image_size}",
        memory(folder, bundle),
        f"predictions by {_readout(bundle, bundle.history[-1].total())}",
        f"seed {s.seed}, {s.validation:.0%} of images held out"
        + "".join(f", {key}={value}" for key, value in s.given.items()),
    ]
    if left := disk.orphans(folder, bundle):
        lines.append(f"{count(left, 'image')} that the model does not keep any more could not be removed")
    if disk.begun(folder):
        lines.append(f"an increment was begun and not finished: {command('learn', folder)} goes on with it")
    past = Table(box=None, pad_edge=False)
    for heading in ("date", "what", "images", "exemplars", "CNN", "NME", "seconds"):
        text = heading in ("date", "what")
        past.add_column(heading, justify="left" if text else "right", overflow="fold")
    for event in bundle.history:
        what = f"forgot{_named(event.classes)}" if event.kind == "forget" else f"learnt{_named(event.classes)}"
        if event.refreshed:
            what = f"refreshed{_named(event.refreshed)}" + (f", {what}" if event.classes else "")
        numbers = [f"{event.images:,}", f"{event.exemplars:,}", *(_percent(event.total(), r) for r in READOUTS)]
        past.add_row(_when(event.date), escape(what), *numbers, f"{event.seconds:,.1f}")
    table = Table(box=None, pad_edge=False)
    for heading in ("class", "learnt", "refreshed", "images", "exemplars", "held out", "CNN", "NME"):
        text = heading in ("class", "learnt", "refreshed")
        table.add_column(heading, justify="left" if text else "right", overflow="fold")
    for k in bundle.classes:
        score = bundle.history[-1].scores[k.name]
        counts = f"{k.images:,}", str(len(k.exemplars)), str(score.images)
        days = [_when(date)[:10] if date else "" for date in (k.learnt, k.refreshed)]
        table.add_row(escape(k.name), *days, *counts, *(_percent(score, r) for r in READOUTS))
    return Group(*(escape(line) for line in lines), "", past, "", table)


def info_values(folder: Path, bundle: Bundle) -> dict[str, Any]:
    """Return the same for programs."""
    values = dataclasses.asdict(bundle)
    values["exemplars"] = len(bundle.files(disk.EXEMPLARS))
    values["exemplar_bytes"] = disk.memory_bytes(folder, bundle)
    values["increment_begun"] = disk.begun(folder)
    for known, entry in zip(bundle.classes, values["classes"], strict=True):
        entry["exemplars"], entry["validation"] = len(known.exemplars), len(known.validation)
    for event, entry in zip(bundle.history, values["history"], strict=True):
        entry["accuracy"] = {r: _finite(event.total().share(r)) for r in READOUTS}
    return values


def memory(folder: Path, bundle: Bundle) -> str:
    """Return what a model remembers, in words."""
    images = sum(len(known.exemplars) for known in bundle.classes)
    megabytes = f"{disk.memory_bytes(folder, bundle) / 1e6:.2f} MB"
    note = inputs_of(bundle.settings).memory_note
    return f"memory: {count(images, 'image')}, {megabytes}{note} ({bundle.settings.memory})"


def predictions(found: Sequence[Prediction], readout: Readout) -> Table:
    """Return predictions as a table."""
    table = Table(box=None, pad_edge=False)
    table.add_column("image", overflow="fold")
    top = max((len(p.best) for p in found), default=0)
    for place in range(top):
        table.add_column("class" if not place else f"{place + 1}.", overflow="fold")
        table.add_column(("probability" if readout == "cnn" else "cosine") if not place else "", justify="right")
    for p in found:
        if not p.bad:
            cells = [cell for name, score in p.best for cell in (escape(name), f"{score:.3f}")]
            table.add_row(escape(shown(p.path)), *cells)
    return table


def prediction_values(p: Prediction, readout: Readout) -> dict[str, Any]:
    """Return a prediction for programs."""
    values: dict[str, Any] = {"image": as_text(p.path)}
    if p.bad:
        return {**values, "error": p.bad}
    return {**values, "readout": readout, "classes": [{"class": n, "score": round(v, 6)} for n, v in p.best]}


def csv_heading(top: int) -> list[str]:
    """Return the names of the columns of `csv_row`."""
    return ["image", *(f"{what}_{k + 1}" for k in range(top) for what in ("class", "score")), "error"]


def csv_row(p: Prediction, top: int) -> list[str]:
    """Return a prediction as the cells of a line; they are empty but for the error if there is one."""
    cells = [cell for name, score in p.best for cell in (name, f"{score:.6f}")]
    return [shown(p.path), *(cells or [""] * 2 * top), p.bad]


def _readout(bundle: Bundle, score: Score) -> str:
    what = {"cnn": "the net's own read-out (CNN)", "nme": "the nearest mean of exemplars (NME)"}[bundle.readout]
    return what + (f", {_percent(score, bundle.readout)} on held-out images" if score.images else "")


def _when(date: str) -> str:
    """Return a date as the user's clock shows it."""
    try:
        return datetime.fromisoformat(date).astimezone().strftime("%Y-%m-%d %H:%M")
    except ValueError:  # of a model that was written by another hand
        return date[:16]


def _named(names: Sequence[str]) -> str:
    if not names:
        return ""
    return f" ({', '.join(names[:8])}{f' and {len(names) - 8} more' if len(names) > 8 else ''})"


def _percent(score: Score, readout: Readout) -> str:
    return f"{score.share(readout):.1%}" if score.images else "-"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
