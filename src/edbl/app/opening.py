"""Opening a model: what is on disk of it, and the model as it was."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path

import torch
from torch import Tensor

from edbl.app import bundle as disk
from edbl.app.bundle import FEATURES, Contents
from edbl.app.description import EXEMPLARS, VALIDATION, Bundle, Known
from edbl.app.inputs import Trained, inputs_of, trained_on
from edbl.app.measuring import factor_of
from edbl.app.model import Model
from edbl.engine.environment import pick_device
from edbl.errors import EdblError
from edbl.training import Training


def open_model(
    folder: Path, device: str = "auto", bundle: Bundle | None = None, without: Sequence[str] = (), pixels: bool = False
) -> tuple[Contents, Model]:
    """Return a model whose classifier is trained, and what is on disk of it.

    A ``bundle`` is what was read of it before. Images of classes ``without`` may be missing. With ``pixels``, those of
    exemplars are read also where the model has no use for them.
    """
    contents = load(folder, bundle or disk.settle(folder), without, [EXEMPLARS] if pixels else [])
    contents = leave_out(contents, without)
    try:
        made = Training.of(contents.bundle.recipe, complete=True)
        made.data.check(channels=3)
    except EdblError as error:
        raise disk.damaged(folder, disk.MODEL, f"its recipe: {error}") from error
    inputs = trained_on(contents.bundle.settings)
    model = inputs.model(made, pick_device(device))
    restore(folder, inputs, model, contents)
    try:
        model.factor = factor_of(contents.tensors)
    except ValueError as error:
        raise disk.damaged(folder, disk.WEIGHTS, str(error)) from error
    return contents, model


def load(
    folder: Path,
    bundle: Bundle,
    without: Sequence[str] = (),
    also: Sequence[str] = (),
    predict: bool = False,
) -> Contents:
    """Return what is on disk of a model; of kinds of files, those named ``also`` and what it learns from.

    Or it is what it needs to ``predict``.
    """
    inputs = inputs_of(bundle.settings)
    contents = disk.load(folder, {*(inputs.asked_by if predict else inputs.read), *also}, without, bundle)
    if fault := inputs.fault(contents):
        raise disk.damaged(folder, disk.WEIGHTS, fault)
    return contents


def restore(folder: Path, inputs: Trained, model: Model, contents: Contents) -> None:
    """Bring a model back as it was."""
    bundle = contents.bundle
    labels = [k for k, known in enumerate(bundle.classes) for _ in known.exemplars]
    exemplars = inputs.kept(contents, EXEMPLARS)
    tensors = {**contents.tensors, "memory.x": exemplars, "memory.y": torch.tensor(labels, dtype=torch.int64)}
    try:
        model.load(tensors, bundle.names, bundle.sizes)
    except (RuntimeError, KeyError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise disk.damaged(folder, disk.WEIGHTS, f"its weights do not fit this model ({reason})") from error
    model.increments, model.seen_images = bundle.increments, bundle.seen_images


def held_out(inputs: Trained, contents: Contents) -> tuple[Tensor, list[str]]:
    """Return the held-out images that stay with a model, as it takes them, and their classes."""
    labels = [known.name for known in contents.bundle.classes for _ in known.validation]
    return inputs.kept(contents, VALIDATION), labels


def leave_out(contents: Contents, names: Collection[str] = (), images: Collection[str] = ()) -> Contents:
    """Return a model without all images of classes ``names``, which stay in the net, and without some other images."""
    if not names and not images:
        return contents

    def left(known: Known, kind: str) -> list[bool]:
        return [known.name not in names and file not in images for file in known.files(kind)]

    tensors, classes = dict(contents.tensors), contents.bundle.classes
    for kind, key in FEATURES.items():
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
    bundle = replace(contents.bundle, classes=thinned)
    bundle.weights = contents.bundle.weights
    return replace(contents, bundle=bundle, tensors=tensors)
