"""One page about a model: what it takes for what, and what would help. A single HTML file that needs nothing else."""

import base64
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edbl.metrics import interval
from edbl.report.filling import filled
from edbl.text import count

SIDE, QUALITY = 96, 72  # of a small picture, and of its JPEG
SHOWN = 400  # mistakes with a picture
SQUARES = 40  # classes of a confusion matrix; of more, those with the most mistakes

Pixels = NDArray[np.uint8]  # [3, size, size]


@dataclass(frozen=True)
class Photo:
    """A photo that a model was asked about."""

    digest: str
    label: int
    answer: int
    probability: float  # of the answer
    pixels: Pixels | None = None  # of those that are at hand


@dataclass(frozen=True)
class Odd:
    """A photo whose label may be wrong."""

    photo: Photo
    looks: str


@dataclass(frozen=True)
class Row:
    """What is said of a class beside its answers."""

    name: str
    images: int  # learnt from
    more: str = ""  # what more photos would bring


@dataclass(frozen=True)
class Model:
    """All that a page says."""

    name: str
    made: str  # of what, in a line
    how: str  # its answers were found
    classes: Sequence[Row]
    photos: Sequence[Photo]  # that it was asked about
    probable: bool  # whether probabilities are known, not distances
    error: float | None  # of calibration, 0 to 1
    odd: Sequence[Odd]
    needs: str  # what the last column of classes means
    unknown: Sequence[tuple[str, str, str]]  # false alarms, misses, and the class that is missed most


def html(model: Model) -> str:
    """Return the page of a model."""
    right = sum(photo.answer == photo.label for photo in model.photos)
    return filled(
        "model.html",
        {
            "model": model,
            "right": told(right, len(model.photos)),
            "error": "" if model.error is None else f"{model.error:.3f}",
            "rows": _rows(model),
            "matrix": _matrix(model),
            "pairs": _pairs(model),
            "odd": [(_picture(one.photo), model.classes[one.photo.label].name, one.looks) for one in model.odd],
            "some": any(photo.pixels is None for photo in model.photos if photo.answer != photo.label),
        },
    )


def told(right: int, images: int) -> str:
    """Return how many were right, with the 95% interval of the share."""
    if not images:
        return "not measured"
    low, high = interval(right, images)
    return f"{right:,} of {images:,} ({right / images:.1%}; 95% interval {low:.0%} to {high:.0%})"


def _rows(model: Model) -> list[dict[str, Any]]:
    """Return the classes, the worst first."""
    rows = []
    for label, row in enumerate(model.classes):
        mine = [photo for photo in model.photos if photo.label == label]
        right = sum(photo.answer == label for photo in mine)
        low, high = interval(right, len(mine))
        others = Counter(photo.answer for photo in mine if photo.answer != label).most_common(2)
        rows.append(
            {
                "row": row,
                "told": f"{right} of {len(mine)}" if mine else "-",
                "share": right / len(mine) if mine else None,
                "low": 100 * low,
                "high": 100 * high,
                "others": ", ".join(f"{model.classes[k].name} ({n})" for k, n in others),
            }
        )
    return sorted(rows, key=lambda row: 2.0 if row["share"] is None else row["share"])


def _matrix(model: Model) -> dict[str, Any]:
    """Return the confusion matrix, of many classes that of those with the most mistakes."""
    counts = Counter((photo.label, photo.answer) for photo in model.photos)
    wrong: Counter[int] = Counter()
    for (label, answer), number in counts.items():
        if label != answer:
            wrong.update({label: number, answer: number})
    labels = list(range(len(model.classes)))
    if len(labels) > SQUARES:
        labels = sorted(label for label, _ in wrong.most_common(SQUARES))
    most = max((number for (label, answer), number in counts.items() if label != answer), default=1)
    cells = [
        [(answer, counts[label, answer], min(100, round(100 * counts[label, answer] / most))) for answer in labels]
        for label in labels
    ]
    return {"labels": labels, "cells": cells, "left": count(len(model.classes) - len(labels), "class")}


def _pairs(model: Model) -> list[dict[str, Any]]:
    """Return mistakes by what was taken for what, the most frequent first."""
    found: dict[tuple[int, int], list[Photo]] = {}
    for photo in model.photos:
        if photo.answer != photo.label:
            found.setdefault((photo.label, photo.answer), []).append(photo)
    pairs, left = [], SHOWN
    for (label, answer), photos in sorted(found.items(), key=lambda item: -len(item[1])):
        pictures = [_picture(photo) for photo in photos[: max(left, 0)]]
        left -= len(pictures)
        pairs.append({"label": label, "answer": answer, "number": len(photos), "pictures": pictures})
    return pairs


def _picture(photo: Photo) -> dict[str, str]:
    """Return a small picture as a page takes it, and what is said of it."""
    about = {"name": photo.digest[:12], "probability": f"{photo.probability:.0%}", "data": ""}
    if photo.pixels is not None:
        buffer = io.BytesIO()
        image = Image.fromarray(np.ascontiguousarray(photo.pixels.transpose(1, 2, 0)))
        image.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR)
        image.save(buffer, "JPEG", quality=QUALITY)
        about["data"] = base64.b64encode(buffer.getvalue()).decode()
    return about
