"""Several models with closed forms as one, as if it had learnt all their photos."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edbl import store
from edbl.app import bundle as disk
from edbl.app.description import EXEMPLARS, Bundle
from edbl.app.edit import commit
from edbl.app.exact import UNIT, Exact
from edbl.app.inputs import inputs_of
from edbl.app.opening import load
from edbl.data.decoding import Pixels
from edbl.errors import EdblError
from edbl.text import shown

SAME = ("method", "backbone", "backbone_weights", "image_size", "keep", "engine", "ranges")  # settings that must agree


def join(out: Path, models: Sequence[Path]) -> Bundle:
    """Make the model ``out`` of several; classes of one name become one."""
    if len(models) < 2:
        raise EdblError("name two models or more that are to be one")
    if out.is_dir() and (out / disk.WRITING).exists() and not disk.exists(out) and not disk.strangers(out):
        with store.lock(out):  # it was killed before its commit
            store.sweep(out)
            disk.discard(out)
    if out.exists() and (not out.is_dir() or any(path.name != store.LOCK for path in out.iterdir())):
        raise EdblError(f"{shown(out)} is there already; give the name of a folder that does not exist yet")
    bundles = [disk.settle(model) for model in models]
    _check(models, bundles)
    first = bundles[0]
    made = Bundle(first.settings, first.recipe, [], [], 0, 0, [], "cnn")
    exact: Exact | None = None
    owners: dict[str, str] = {}
    images: dict[str, Pixels] = {}
    for model, bundle in zip(models, bundles, strict=True):
        contents = load(model, bundle, also=[EXEMPLARS])
        other, images = Exact.of(model, contents), images | contents.images
        _note(made, bundle, owners)
        if exact is None:
            exact = other
        else:
            try:
                exact.join(other)
            except ValueError as error:
                raise _in_common(model) from error
    assert exact is not None
    made.seen_images, made.increments = made.images, len(models)
    out.mkdir(parents=True, exist_ok=True)
    with store.lock(out):
        commit(out, made, exact, "join", made.names, made.seen_images, images)
    return made


def take_in(folder: Path, other: Path) -> Bundle:
    """Make the next version of a model, with all that another one has learnt besides."""
    theirs = disk.settle(other)
    with disk.changing(folder) as found:
        _check([folder, other], [found, theirs])
        contents, more = load(folder, found), load(other, theirs, also=[EXEMPLARS])
        exact = Exact.of(folder, contents)
        _note(found, theirs, {digest: known.name for known in found.classes for digest in known.digests})
        try:
            exact.join(Exact.of(other, more))
        except ValueError as error:
            raise _in_common(other) from error
        found.seen_images, found.increments = sum(known.images for known in found.classes), found.increments + 1
        commit(folder, found, exact, "join", theirs.names, sum(known.images for known in theirs.classes), more.images)
        return found


def _in_common(model: Path) -> EdblError:
    return EdblError(f"{model} has photos in common with the others, of a class of so many that sums are kept of it")


def _check(models: Sequence[Path], bundles: Sequence[Bundle]) -> None:
    """Refuse models that do not go together."""
    first = bundles[0].settings
    for model, bundle in zip(models, bundles, strict=True):
        s = bundle.settings
        inputs_of(s).refuse("join", model)
        for key in SAME:
            if getattr(s, key) != getattr(first, key):
                raise EdblError(
                    f"{models[0]} has {key}={getattr(first, key)}, {model} has {getattr(s, key)}; they cannot be joined"
                )
        if s.given.get(UNIT, True) != first.given.get(UNIT, True):
            raise EdblError(f"{models[0]} and {model} differ in {UNIT}; they cannot be joined")


def _note(made: Bundle, bundle: Bundle, owners: dict[str, str]) -> None:
    """Add the classes of a model to what is to be said of the new one."""
    for known in bundle.classes:
        for digest in known.digests:
            if (name := owners.setdefault(digest, known.name)) != known.name:
                raise EdblError(
                    f"the same photo is of class '{name}' in one model and of '{known.name}' in another; rename the "
                    "class, or forget the photo in one of them"
                )
        there = [one for one in made.classes if one.name == known.name]
        if there:
            there[0].add(known.digests)
            there[0].exemplars = list(dict.fromkeys([*there[0].exemplars, *known.exemplars]))
        else:
            made.classes.append(replace(known, features=""))  # whose file is yet to be written
