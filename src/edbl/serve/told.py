"""What a model in a folder says of itself, as the answers of the API have it."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from edbl.app import bundle as disk
from edbl.app.description import EXEMPLARS, VALIDATION, Bundle, Readout, Score, Settings, total
from edbl.app.inputs import inputs_of
from edbl.app.show import happened
from edbl.metrics import interval
from edbl.serve.model import Values


def accuracy(score: Score, readout: Readout) -> Values | None:
    """Return how often it is right, with the 95% interval of the share."""
    if not score.images:
        return None
    right = score.cnn if readout == "cnn" else score.nme
    low, high = interval(right, score.images)
    return {"right": right, "of": score.images, "low": _number(low), "high": _number(high)}


def classes(bundle: Bundle) -> list[Values]:
    """Return the classes."""
    scores = bundle.history[-1].scores
    return [
        {
            "name": known.name,
            "photos": known.images,
            "accuracy": accuracy(scores[known.name], bundle.readout),
            "photo": _photo([*known.exemplars, *known.validation]),
        }
        for known in bundle.classes
    ]


def info(folder: Path, bundle: Bundle | None, settings: Settings) -> Values:
    """Return what a model is; ``settings`` are those that it is made with where it is not there yet."""
    return {
        "exists": bundle is not None,
        "version": bundle.version if bundle else 0,
        "method": settings.method,
        "backbone": settings.backbone,
        "keep": settings.keep,
        "image_size": settings.image_size,
        "learns": inputs_of(settings).learns,
        "classes": classes(bundle) if bundle else [],
        "photos": sum(known.images for known in bundle.classes) if bundle else 0,
        "accuracy": accuracy(total(bundle.history[-1].scores.values()), bundle.readout) if bundle else None,
        "memory_mb": round(disk.memory_bytes(folder, bundle) / 1e6, 3) if bundle else 0.0,
    }


def history(now: Bundle, every: Sequence[Bundle]) -> list[Values]:
    """Return the versions."""
    return [
        {
            "version": one.version,
            "what": happened(one.history[-1]),
            "when": one.history[-1].date,
            "classes": len(one.classes),
            "current": one.version == now.version,
        }
        for one in every
    ]


def pictures(folder: Path, bundle: Bundle) -> Mapping[str, Path]:
    """Return the files of photos that the model keeps, by id."""
    return {
        name.removesuffix(".png"): folder / kind / name
        for kind in (EXEMPLARS, VALIDATION)
        for name in bundle.files(kind)
    }


def _photo(files: Sequence[str]) -> str | None:
    return files[0].removesuffix(".png") if files else None


def _number(value: float) -> float:
    return round(value, 6) if math.isfinite(value) else 0.0
