"""Opening a model: what is on disk of it, and the model as it was."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path

import torch
from torch import Tensor

from edbl.app import bundle as store
from edbl.app.bundle import EXEMPLARS, VALIDATION, Contents, Known
from edbl.app.model import Model
from edbl.app.settings import build
from edbl.errors import EdblError
from edbl.recipe import Recipe


def restore(folder: Path, model: Model, contents: Contents) -> None:
    """Bring a model back as it was."""
    bundle = contents.bundle
    labels = [k for k, known in enumerate(bundle.classes) for _ in known.exemplars]
    exemplars = contents.tensors.get("memory.x")
    if exemplars is None:
        exemplars = store.pick(contents.images, bundle.files(EXEMPLARS), bundle.settings.image_size)
    tensors = {**contents.tensors, "memory.x": exemplars, "memory.y": torch.tensor(labels, dtype=torch.int64)}
    try:
        model.load(tensors, bundle.names, bundle.sizes)
    except (RuntimeError, KeyError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise store.damaged(folder, store.WEIGHTS, f"its weights do not fit this model ({reason})") from error
    model.increments, model.seen_images = bundle.increments, bundle.seen_images


def held_out(contents: Contents) -> tuple[Tensor, list[str]]:
    """Return the held-out images that stay with a model, as it takes them, and their classes."""
    bundle = contents.bundle
    labels = [known.name for known in bundle.classes for _ in known.validation]
    x = contents.tensors.get("validation.x")
    if x is None:
        x = store.pick(contents.images, bundle.files(VALIDATION), bundle.settings.image_size)
    return x, labels


def open_model(folder: Path, device: str = "auto", without: Sequence[str] = ()) -> tuple[Contents, Model]:
    """Return a model and what is on disk of it; images of classes ``without`` may be missing."""
    contents = load(folder, without)
    contents = leave_out(contents, without)
    try:
        made = Recipe.of(contents.bundle.recipe)
        made.data.check(channels=3)
    except EdblError as error:
        raise store.damaged(folder, store.MODEL, f"its recipe: {error}") from error
    model = build(contents.bundle.settings, made, device)
    restore(folder, model, contents)
    return contents, model


def load(folder: Path, without: Sequence[str] = ()) -> Contents:
    """Return what is on disk of a model; pixels only where the model takes them."""
    frozen = store.read(folder).settings.tune == "head"
    return store.load(folder, () if frozen else (EXEMPLARS, VALIDATION), without)


def leave_out(contents: Contents, names: Collection[str] = (), images: Collection[str] = ()) -> Contents:
    """Return a model without all images of classes ``names``, which stay in the net, and without some other images."""
    if not names and not images:
        return contents

    def left(known: Known, kind: str) -> list[bool]:
        return [known.name not in names and file not in images for file in store.of_kind(known, kind)]

    tensors, classes = dict(contents.tensors), contents.bundle.classes
    for key, kind in (("memory.x", EXEMPLARS), ("validation.x", VALIDATION)):
        if key in tensors:
            stay = [one for known in classes for one in left(known, kind)]
            tensors[key] = tensors[key][torch.tensor(stay, dtype=torch.bool)]
    thinned = [
        replace(
            known,
            exemplars=list(compress(known.exemplars, left(known, EXEMPLARS))),
            validation=list(compress(known.validation, left(known, VALIDATION))),
        )
        for known in classes
    ]
    return Contents(replace(contents.bundle, classes=thinned), tensors, contents.images)
