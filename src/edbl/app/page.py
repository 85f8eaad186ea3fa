"""The page of a model: `edbl.report.model` with what a model on disk says of photos that it had not learnt."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from edbl import store
from edbl.app import bundle as disk
from edbl.app import honest, importers, photos, places
from edbl.app.description import EXEMPLARS, VALIDATION, Bundle
from edbl.app.exact import Exact
from edbl.app.honest import Left, Suspect
from edbl.app.inputs import inputs_of, trained_on
from edbl.app.model import Model as Learnt
from edbl.app.opening import held_out, load, open_model
from edbl.data.decoding import Pixels
from edbl.data.threads import in_threads
from edbl.metrics import calibration_error
from edbl.report.model import Model, Odd, Photo, Row, html
from edbl.text import count

LEFT_OUT = "Each photo was asked of a model that had learnt all others: none was given up to measure with."
HELD_OUT = "Measured with photos that were held out: none of them was learnt."
NOTHING = "The model keeps nothing of photos, so none can be left out to measure with."
SOME = "Of classes with many photos some were left out, chosen by chance."
NEEDS = (
    "What twice the photos of a class would bring it, in points, with the 95% interval: foretold for the mean over "
    "classes, by what the last doubling brought and what doublings usually bring. A single class may gain more or "
    "less; where it cannot be told, nothing is said."
)

Pictures = Mapping[str, Pixels]  # photos at hand, by digest


class Held(NamedTuple):
    """Photos that were held out, as a model takes that has just learnt, and their classes."""

    model: Learnt
    x: Tensor
    labels: Sequence[str]


def write(
    folder: Path,
    bundle: Bundle,
    known: Left | Held | None = None,
    pictures: Pictures | None = None,
    place: Path | None = None,
) -> Path:
    """Write the page of a model and return its place. What is ``known`` of it saves reading and solving it again."""
    pictures = dict(pictures or {})
    for kind in (EXEMPLARS, VALIDATION):
        if any(file.removesuffix(".png") not in pictures for file in bundle.files(kind)):
            images = disk.load(folder, [kind], bundle=bundle).images
            pictures |= {file.removesuffix(".png"): pixels for file, pixels in images.items()}
    if bundle.settings.keep:
        made = _closed(folder, bundle, known if isinstance(known, Left) else None, pictures)
    else:
        made = _trained(folder, bundle, known if isinstance(known, Held) else _held(folder, bundle), pictures)
    place = place or folder / disk.PAGE
    store.write_output(place, html(made).encode())
    return place


def find(places: Sequence[Path], size: int) -> Pictures:
    """Return the photos of folders and lists, by digest; those that cannot be read are left out."""
    every = importers.find(places)[0] if places else []
    read = in_threads(lambda photo: photos.read(photo.path, size).pixels, every, "reading images")
    return {photos.digest(pixels): pixels for pixels in read if pixels is not None}


def _closed(folder: Path, bundle: Bundle, left: Left | None, pictures: Pictures) -> Model:
    """Return what there is to say of a model whose classifier has a closed form."""
    if left is None and bundle.settings.keep != "nothing":
        exact = Exact.of(folder, load(folder, bundle))
        left = honest.left(exact, *exact.solve())
    if left is None:
        return _made(folder, bundle, [], NOTHING if bundle.settings.keep == "nothing" else "")
    names = bundle.names
    suspects = honest.suspects(left)
    asked = _asked(folder, bundle, left.told.scores.softmax(1), left.y, left.told.digests, pictures, suspects)
    of = {photo.digest: photo for photo in asked}
    odd = [Odd(of[one.digest], honest.looks(names, one)) for one in suspects]
    needs = {one.label: one for one in honest.needs(left)}
    more = {
        names[k]: f"about {count(need.photos, 'more photo')}: {need.points:.1f} points "
        f"({need.low:.1f} to {need.high:.1f})"
        for k, need in needs.items()
    }
    unknown = [
        (f"{one.alarms:.0%}", f"{one.missed:.0%}", f"{names[one.worst]} ({one.worst_missed:.0%})")
        for one in honest.unknowns(left)
    ]
    how = LEFT_OUT if len(asked) == bundle.images else f"{LEFT_OUT} {SOME}"
    return _made(folder, bundle, asked, how, odd, more, unknown)


def _held(folder: Path, bundle: Bundle) -> Held:
    """Return the photos that were held out from a model, and the model, as they are on disk."""
    contents, model = open_model(folder, bundle=bundle)
    return Held(model, *held_out(trained_on(bundle.settings), contents))


def _trained(folder: Path, bundle: Bundle, held: Held, pictures: Pictures) -> Model:
    """Return what there is to say of a model whose classifier is trained."""
    if not len(held.x):
        return _made(folder, bundle, [], "No photo was held out.")
    cnn, near = held.model.readouts(held.x)
    scores = cnn if bundle.readout == "cnn" else near
    y = torch.tensor([bundle.names.index(name) for name in held.labels])
    digests = [file.removesuffix(".png") for file in bundle.files(VALIDATION)]
    return _made(folder, bundle, _asked(folder, bundle, scores, y, digests, pictures), HELD_OUT)


def _asked(
    folder: Path,
    bundle: Bundle,
    scores: Tensor,
    y: Tensor,
    digests: Sequence[str],
    pictures: Pictures,
    suspects: Sequence[Suspect] = (),
) -> list[Photo]:
    """Return photos as they were asked; the odd ones and mistakes are fetched from where they were learnt from."""
    values, answers = scores.max(1)
    rows = list(zip(digests, y.tolist(), answers.tolist(), values.tolist(), strict=True))
    shown = [*(one.digest for one in suspects), *(digest for digest, label, answer, _ in rows if label != answer)]
    missing = [digest for digest in dict.fromkeys(shown) if digest not in pictures]
    pictures = {**pictures, **places.pictures(folder, missing, bundle.settings.image_size)}
    return [Photo(digest, label, answer, value, pictures.get(digest)) for digest, label, answer, value in rows]


def _made(
    folder: Path,
    bundle: Bundle,
    asked: Sequence[Photo],
    how: str,
    odd: Sequence[Odd] = (),
    more: Mapping[str, str] | None = None,
    unknown: Sequence[tuple[str, str, str]] = (),
) -> Model:
    s, more = bundle.settings, more or {}
    sure = torch.tensor([photo.probability for photo in asked]).double()
    right = torch.tensor([photo.answer == photo.label for photo in asked])
    probable = asked and (s.keep or bundle.readout == "cnn")  # rather than a distance
    return Model(
        name=folder.resolve().name,
        made=f"{count(bundle.classes, 'class')}, version {bundle.version}, {s.method} with {s.backbone}"
        f"{inputs_of(s).backbone_note}",
        how=how,
        classes=[Row(known.name, known.images, more.get(known.name, "")) for known in bundle.classes],
        photos=asked,
        probable=bool(probable),
        error=calibration_error(sure.numpy(), right.numpy()) if probable else None,
        odd=odd,
        needs=NEEDS if more else "",
        unknown=unknown,
    )
