"""The page of a model: `edbl.report.model` with what a model on disk says of photos that it had not learnt."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from edbl import store
from edbl.app import bundle as disk
from edbl.app import honest, importers, photos, places
from edbl.app.description import EXEMPLARS, VALIDATION, Bundle
from edbl.app.exact import Exact
from edbl.app.honest import Left, Suspect
from edbl.app.inputs import inputs_of, trained_on
from edbl.app.measuring import Asked, Held
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
    made = _page(folder, bundle, known or not_learnt(folder, bundle), pictures)
    place = place or folder / disk.PAGE
    store.write_output(place, html(made).encode())
    return place


def find(places: Sequence[Path], size: int) -> Pictures:
    """Return the photos of folders and lists, by digest; those that cannot be read are left out."""
    every = importers.find(places)[0] if places else []
    read = in_threads(lambda photo: photos.read(photo.path, size).pixels, every, "reading images")
    return {photos.digest(pixels): pixels for pixels in read if pixels is not None}


def not_learnt(folder: Path, bundle: Bundle, device: str = "auto") -> Left | Held | None:
    """Return the photos of a model on disk that it can be asked about as if it had not learnt them."""
    if bundle.settings.keep == "nothing":
        return None
    if bundle.settings.keep:
        exact = Exact.of(folder, load(folder, bundle))
        return honest.left(exact, *exact.solve())
    contents, model = open_model(folder, device, bundle)
    return Held(model, *held_out(trained_on(bundle.settings), contents))


def _page(folder: Path, bundle: Bundle, known: Left | Held | None, pictures: Pictures) -> Model:
    """Return what there is to say of a model."""
    if known is None:
        return _made(folder, bundle, [], NOTHING if bundle.settings.keep == "nothing" else "")
    told = known.asked(bundle)
    if isinstance(known, Left):
        return _of_left(folder, bundle, known, told, pictures)
    asked = _asked(folder, bundle, told, pictures) if told.digests else []
    return _made(folder, bundle, asked, HELD_OUT if asked else "No photo was held out.")


def _of_left(folder: Path, bundle: Bundle, left: Left, told: Asked, pictures: Pictures) -> Model:
    """Return what there is to say of a model whose photos were left out one by one."""
    names = bundle.names
    suspects = honest.suspects(left)
    asked = _asked(folder, bundle, told, pictures, suspects)
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


def _asked(
    folder: Path,
    bundle: Bundle,
    told: Asked,
    pictures: Pictures,
    suspects: Sequence[Suspect] = (),
) -> list[Photo]:
    """Return photos as they were asked; the odd ones and mistakes are fetched from where they were learnt from."""
    values, answers = told.scores.max(1)
    rows = list(zip(told.digests, told.y.tolist(), answers.tolist(), values.tolist(), strict=True))
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
    probable = asked and bundle.readout == "cnn"  # rather than a distance
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
