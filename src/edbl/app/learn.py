"""One increment, from photos to a committed model; killed at any moment, it can go on."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from edbl.app import bundle as store
from edbl.app import photos as files
from edbl.app.bundle import (
    BEGUN,
    CHECKPOINTS,
    EXEMPLARS,
    IMAGES,
    INCREMENT,
    VALIDATION,
    VIEWS,
    Bundle,
    Contents,
    Event,
    Known,
    Readout,
    Score,
    Settings,
)
from edbl.app.model import Model
from edbl.app.opening import held_out, leave_out, load, restore
from edbl.app.settings import Request, build, change, choose, frozen, pretrained, recipe
from edbl.data.folder import Pixels, image_notes
from edbl.data.threads import in_threads
from edbl.engine.environment import pick_device
from edbl.engine.progress import Progress
from edbl.errors import Diverged, EdblError, command
from edbl.files import LOCK, write_atomic
from edbl.memory import Budget
from edbl.recipe import Recipe
from edbl.seeds import Seeds
from edbl.text import bar, count, first, shown

HELD_FROM = 5  # images that a class needs to give any for validation
HELD_KEPT = 10  # held-out images of a class that stay with the model
PART = 64  # images whose features are computed between two saves
CPU = torch.device("cpu")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Begun:
    """An increment that was begun: what was asked for, and what its images are."""

    request: Request
    began: str
    number: int  # increments before it
    base: str  # SHA-256 of the weights that it starts from; empty for a new model
    settings: Settings
    names: list[str]
    labels: list[int]  # of each row of the images, a number into ``names``
    digests: list[str]  # of each row; empty for a file that could not be read
    train: list[int]  # rows to learn from
    held: list[int]  # rows to measure with
    moved: list[str]  # files of images that the model keeps as another class than they are given


@contextmanager
def increment(
    folder: Path, request: Request, *, device: str = "auto", discard: bool = False, say: Say = print
) -> Iterator["Increment | None"]:
    """Begin an increment, or go on with the one that was begun; None if there is nothing to learn.

    The model is locked meanwhile.
    """
    request.check()
    pick_device(device)
    there = folder.exists()
    made = _make(folder, request)
    with store.locked(folder):
        try:
            yield _begin(folder, request, device, discard, say)
        finally:  # still locked: else what lies there might be another process's
            if made and not store.exists(folder) and not store.begun(folder):
                store.discard(folder)
                with suppress(OSError):
                    (folder / LOCK).unlink()
                    if not there:
                        folder.rmdir()


def _make(folder: Path, request: Request) -> bool:
    """Make the folder of a new model, or see that it is one; tell whether it is new."""
    if folder.exists() and not folder.is_dir():
        raise EdblError(f"{folder} is a file; give the name of a model, or of a folder that does not exist yet")
    there = store.exists(folder) or store.begun(folder)
    if others := _others(folder, there):
        raise EdblError(
            f"{folder} holds other things than a model, such as {shown(others[0])}\n"
            "move them elsewhere, or give the name of a model, or of a folder that does not exist yet"
        )
    if inside := [name for name in request.folders if Path(name).resolve().is_relative_to(folder.resolve())]:
        raise EdblError(f"{inside[0]} lies in the model {folder}, which changes; move the photos elsewhere")
    if around := [name for name in request.folders if folder.resolve().is_relative_to(Path(name).resolve())]:
        raise EdblError(f"the model {folder} lies among the photos in {around[0]}; give it a place elsewhere")
    if models := [name for name in request.folders if store.exists(Path(name))]:
        raise EdblError(f"{models[0]} is a model; give a folder that has a sub-folder of images for each class")
    if there:
        return False
    if not request.folders:
        raise EdblError(f"there is no model {folder} yet; {command('learn', folder, 'FOLDER')} makes one from photos")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EdblError(f"cannot make the folder {folder}: {error.strerror}") from error
    return True


def _others(folder: Path, there: bool) -> list[Path]:
    """Return what is not of a model: in its begun increment, which will be removed and, if none is there, beside it."""
    found = store.strangers(folder)
    if folder.is_dir() and not there:
        found += [path for path in folder.iterdir() if path.name not in (LOCK, INCREMENT)]
    return found


def _begin(folder: Path, request: Request, device: str, discard: bool, say: Say) -> "Increment | None":
    base = load(folder) if store.exists(folder) else None
    if discard:
        if not request.folders and request != Request():
            raise EdblError("--discard alone drops what was begun; with other options, name folders to learn from")
        if not store.begun(folder):
            say("no increment was begun")
        if not request.folders:
            _drop(folder, say)
            return None
    begun = None if discard else _read_begun(folder)
    if begun and base and begun.number < base.bundle.increments:  # killed after the commit
        store.discard(folder)
        if _same(request, begun.request):
            say(f"that increment is complete: {command('info', folder)} shows it")
            return None
        begun = None
    fresh = begun is None
    if begun is None:
        if not request.folders:
            raise EdblError(f"{folder} has no begun increment to go on with; name folders with photos to learn from")
        begun = _read_photos(folder, request, base, device, say)
    elif not _same(request, begun.request):
        raise EdblError(
            f"{folder} has an increment that was begun {begun.began} and not finished ({_some(begun.names)})\n"
            f"{command('learn', folder)} goes on with it; --discard drops it"
        )
    elif begun.base != (base.bundle.weights if base else ""):
        raise EdblError(
            f"the increment begun in {folder} belongs to another state of the model; drop it with --discard"
        )
    else:
        say(f"going on with the increment begun {begun.began} ({_some(begun.names)})")
    made = Increment(folder, begun, base, device)
    if not fresh:
        made.check()
    return made


def _drop(folder: Path, say: Say) -> None:
    if store.begun(folder):
        say("the increment that was begun is dropped")
    store.discard(folder)


def _same(request: Request, begun: Request) -> bool:
    """Tell whether a command asks for what was begun; one without folders and options always does."""
    asked = request if request.folders else replace(request, folders=begun.folders)
    return request == Request() or asked == begun


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _read_begun(folder: Path) -> Begun | None:
    if not store.begun(folder):
        return None
    try:
        stored = json.loads((folder / INCREMENT / BEGUN).read_bytes())
    except (ValueError, RecursionError) as error:
        raise _unusable(folder) from error
    if not isinstance(stored, dict) or stored.pop("sha256", None) != store.checksum(stored):
        raise _unusable(folder)
    try:
        begun = store.typed(Begun, stored, folder, f"{INCREMENT}/{BEGUN}")
    except EdblError as error:
        raise _unusable(folder) from error
    if store.foreign(begun.settings):
        raise _unusable(folder)
    return begun


def _unusable(folder: Path) -> EdblError:
    return EdblError(
        f"the increment begun in {folder} is damaged; drop it with {command('learn', folder, '--discard')}"
    )


def _read_photos(folder: Path, request: Request, base: Contents | None, device: str, say: Say) -> Begun:
    """Read all photos, and choose what to learn from and what to hold out."""
    place = folder / INCREMENT
    found, notes = files.find([Path(name) for name in request.folders])
    settings = change(base.bundle.settings, request) if base else choose(request, found, device)
    _drop(folder, say)  # only now, when the new one makes sense
    place.mkdir()
    try:
        begun = _choose(folder, request, base, settings, found, notes)
    except BaseException:
        store.discard(folder)  # no copies of photos stay that nobody will learn from
        raise
    for note in notes:
        say(f"note: {note}")
    return begun


def _choose(
    folder: Path,
    request: Request,
    base: Contents | None,
    settings: Settings,
    found: Sequence[files.Photo],
    notes: list[str],
) -> Begun:
    """Read the photos that were found, and begin an increment with them."""
    place = folder / INCREMENT
    results = files.read_into(place / IMAGES, found, settings.image_size)
    notes += image_notes("given", [shown(p.path) for p in found], [r for r, _ in results], request.skip_bad)
    names = list(dict.fromkeys(photo.name for photo in found))
    notes += files.alike(names, base.bundle.names if base else [])
    number = {name: k for k, name in enumerate(names)}
    labels, digests = [number[photo.name] for photo in found], [d for _, d in results]
    readable = {label for label, d in zip(labels, digests, strict=True) if d}
    if empty := [name for name in names if number[name] not in readable]:
        raise EdblError(f"class '{empty[0]}' has no image that can be read; add some or remove its folder")
    _check_twins(found, digests)
    moved = _moved(folder, request, found, digests, base.bundle) if base else []
    train, held = _split(names, labels, digests, settings, base)
    known = base.bundle.names if base else []
    if not train:
        raise EdblError("there is nothing to learn: the model knows all these images already, or holds them out")
    if repeated := sum(map(bool, digests)) - len(train) - len(held):
        notes.append(f"{count(range(repeated), 'image')} left out: given twice, or kept by the model already")
    Budget.parse(settings.memory).check(len({*known, *names}))
    recipe(settings, len(train))  # what --set makes impossible is said before anything is begun
    begun = Begun(
        request=request,
        began=now(),
        number=base.bundle.increments if base else 0,
        base=base.bundle.weights if base else "",
        settings=settings,
        names=names,
        labels=labels,
        digests=digests,
        train=train,
        held=held,
        moved=moved,
    )
    values = dataclasses.asdict(begun)
    write_atomic(place / BEGUN, json.dumps({"sha256": store.checksum(values), **values}).encode())
    return begun


def _check_twins(found: Sequence[files.Photo], digests: Sequence[str]) -> None:
    """Refuse images that are given as those of two classes."""
    met: dict[str, files.Photo] = {}
    twins = []
    for photo, digest in zip(found, digests, strict=True):
        if digest and (other := met.setdefault(digest, photo)).name != photo.name:
            twins.append(f"{shown(photo.path)} as '{photo.name}' and {shown(other.path)} as '{other.name}'")
    if twins:
        raise EdblError(f"the same image is given as two classes: {first(twins)}\nremove it from one of them")


def _moved(
    folder: Path, request: Request, found: Sequence[files.Photo], digests: Sequence[str], bundle: Bundle
) -> list[str]:
    """Return the files of images that the model keeps as another class than they are given, which must be wanted."""
    owners: dict[str, list[str]] = {}
    for known in bundle.classes:
        for file in known.exemplars + known.validation:
            owners.setdefault(file.removesuffix(".png"), []).append(known.name)
    moved = [
        (photo, digest, names[0])
        for photo, digest in zip(found, digests, strict=True)
        if photo.name not in (names := owners.get(digest, [photo.name]))
    ]
    if moved and not request.relabel:
        photo, _, name = moved[0]
        named = first([f"{shown(p.path)}, given as '{p.name}', kept as '{owner}'" for p, _, owner in moved])
        renamed = f"; or, if the class has a new name, {command('rename', folder, name, photo.name)} first"
        raise EdblError(
            f"the model keeps an image as another class than it is given: {named}\nremove it; or give it its new class "
            f"with --relabel{renamed if photo.name not in bundle.names else ''}"
        )
    gone = {f"{digest}.png" for _, digest, _ in moved}
    if bare := [known.name for known in bundle.classes if known.exemplars and gone.issuperset(known.exemplars)]:
        raise EdblError(
            f"with --relabel, class '{bare[0]}' would keep no image: leave it some\n"
            f"or, if it is no class of its own, {command('forget', folder, bare[0])} first"
        )
    return sorted(gone)


def _split(
    names: Sequence[str], labels: Sequence[int], digests: Sequence[str], settings: Settings, base: Contents | None
) -> tuple[list[int], list[int]]:
    """Return the rows to learn from and those to hold out.

    Left out are repeated images and those that the model keeps: an image that it measures with is never learnt from,
    and one that it may have learnt from, as whatever class, is not measured with. The choice depends on pixels and seed
    alone, not on the names or the order of files, and is the same for the same images when they come again.
    """
    known = base.bundle.classes if base else []
    kept = {k.name: {file.removesuffix(".png") for file in k.exemplars + k.validation} for k in known}
    learnt = {file.removesuffix(".png") for k in known for file in k.exemplars}
    below = _held_below(settings, base)
    train, held = [], []
    for label, name in enumerate(names):
        rows = {d: row for row, d in enumerate(digests) if labels[row] == label and d}
        share = max(1, round(settings.validation * len(rows))) if settings.validation and len(rows) >= HELD_FROM else 0
        places = {d: _place(settings, d) for d in rows}
        first = sorted(rows.keys() - learnt, key=places.__getitem__)[:share]
        chosen = {d for d in first if name not in below or places[d] < below[name]}
        new = rows.keys() - kept.get(name, set())
        held += sorted(rows[d] for d in new & chosen)
        train += sorted(rows[d] for d in new - chosen)
    return train, held


def _place(settings: Settings, digest: str) -> str:
    """Return the place of an image in the order in which images are held out."""
    return hashlib.sha256(f"{settings.seed} {digest}".encode()).hexdigest()


def _held_below(settings: Settings, base: Contents | None) -> dict[str, str]:
    """Return for each known class below which place no image was learnt from; in the order of another seed, none."""
    if base is None:
        return {}
    same = base.bundle.settings.seed == settings.seed
    return {known.name: known.held_below if same else "" for known in base.bundle.classes}


class Increment:
    """An increment whose photos are read."""

    def __init__(self, folder: Path, begun: Begun, base: Contents | None, device: str) -> None:
        self.folder = folder
        self.place = folder / INCREMENT
        self.begun = begun
        self.base = leave_out(base, images=begun.moved) if base else None
        self.device = device
        self.settings = begun.settings
        self.started = time.monotonic()
        n, side = len(begun.labels), self.settings.image_size
        try:
            pixels = np.load(self.place / IMAGES, mmap_mode="c", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise _unusable(folder) from error
        if pixels.shape != (n, 3, side, side) or pixels.dtype != np.uint8:
            raise _unusable(folder)
        self.pixels: files.Array = pixels

    def check(self) -> None:
        """Refuse images that are not those it was begun with."""
        rows = self.begun.train + self.begun.held
        found = in_threads(lambda row: files.digest(self.pixels[row]), rows, "checking images")
        if found != [self.begun.digests[row] for row in rows]:
            raise _unusable(self.folder)

    def prepare(self) -> None:
        """Compute the features of all images, where the backbone is frozen."""
        self.train, self.held = self._seen(self.begun.train, "train"), self._seen(self.begun.held, "held")

    def learn(self, progress: Progress) -> Contents:
        """Learn and measure, and return the new model, which is not on disk yet."""
        begun, base = self.begun, self.base
        made_by = self._recipe()
        model = build(self.settings, made_by, self.device, progress)
        old = list(base.bundle.names) if base else []
        kept, kept_labels = held_out(base) if base else (self._empty(), list[str]())
        if base:
            restore(self.folder, model, base)
        before = measure(model, kept, kept_labels)
        names = [begun.names[begun.labels[row]] for row in begun.train]
        new = [name for name in begun.names if name not in old]
        epochs = model.learner.epochs(new=bool(new), first=not old)
        progress.run(f"learning {count(begun.names, 'class')}", [*[0] * begun.number, epochs], begun.number)
        try:
            model.learn(self.train, names, self.place / CHECKPOINTS)
        except Diverged as error:  # to go on would lead to the same
            store.discard(self.folder)
            again = "learn from the same folders with other values, such as a smaller --set schedule.lr"
            raise EdblError(f"{error}\nwhat was begun is dropped, and the model is as it was: {again}") from error
        progress.busy("measuring")
        held_labels = [begun.names[begun.labels[row]] for row in begun.held]
        after = measure(model, kept, kept_labels)
        fresh = measure(model, self.held, held_labels)
        scores = {name: after[name] + fresh[name] for name in model.names}
        made = self._bundle(model, made_by, new)
        event = Event(
            kind="learn",
            date=now(),
            classes=new,
            refreshed=[name for name in begun.names if name in old and name in names],
            images=len(begun.train),
            exemplars=len(model.memory),
            seconds=round(time.monotonic() - self.started, 2),
            scores=scores,
            before={name: before[name] for name in old},
            after={name: after[name] for name in old},
        )
        made.history.append(event)
        made.readout = better(event.total(), model.method.readout)
        return Contents(made, self._tensors(model, made, kept, kept_labels), self._images(model, made))

    def commit(self, learnt: Contents) -> Bundle:
        """Replace the model by the new one."""
        store.write(self.folder, learnt.bundle, learnt.tensors, learnt.images)
        store.discard(self.folder)
        return learnt.bundle

    def _seen(self, rows: Sequence[int], kind: str) -> Tensor:
        """Return images as the model takes them: pixels or, of a frozen backbone, features."""
        if self.settings.tune == "all":
            return torch.from_numpy(self.pixels[np.array(rows, dtype=np.int64)])
        copies = self.settings.copies if kind == "train" else 0
        extractor = frozen(self.settings)
        if extractor is None:
            raise _unusable(self.folder)
        seeds, place, device = Seeds(self.settings.seed), self.place / VIEWS, pick_device(self.device)
        place.mkdir(exist_ok=True)
        parts = [torch.empty(0, 1 + copies, extractor.width, dtype=torch.float16)]
        with bar("computing features", len(rows)) as say:
            for part in range(0, len(rows), PART):
                chosen = rows[part : part + PART]
                path = place / f"{kind}-{part}.safetensors"
                views = _saved(path)
                if views is None or views.shape != (len(chosen), 1 + copies, extractor.width):
                    generator = seeds.generator(CPU, "views", self.begun.number, kind, part)
                    x = torch.from_numpy(self.pixels[np.array(chosen)])
                    views = extractor.views(x, copies, generator, partial(_add, say, part), device)
                    write_atomic(path, safetensors.torch.save({"views": views.contiguous(), "sum": _sum(views)}))
                say(part + len(chosen))
                parts.append(views)
        return torch.cat(parts)

    def _empty(self) -> Tensor:
        """Return no images, as the model takes them."""
        if self.settings.tune == "all":
            return torch.empty(0, 3, self.settings.image_size, self.settings.image_size, dtype=torch.uint8)
        extractor = pretrained(self.settings.backbone)
        return torch.empty(0, 1, extractor.width if extractor else 0, dtype=torch.float16)

    def _recipe(self) -> Recipe:
        images = len(self.train) + (len(self.base.bundle.files(EXEMPLARS)) if self.base else 0)
        if self.settings.tune == "all":
            return recipe(self.settings, images)
        square = float(self.train[:, 0].float().square().sum(1).mean())
        return recipe(self.settings, images, max(square, 1e-6) ** 0.5)

    def _bundle(self, model: Model, made_by: Recipe, new: Sequence[str]) -> Bundle:
        begun, base = self.begun, self.base
        known = {k.name: replace(k) for k in base.bundle.classes} if base else {}
        below = _held_below(self.settings, base)
        date = now()
        exemplars = self._exemplars(model)
        for k, name in enumerate(model.names):
            entry = known.setdefault(name, Known(name, learnt=date))
            learnt = [begun.digests[row] for row in begun.train if begun.names[begun.labels[row]] == name]
            entry.images += len(learnt)
            entry.refreshed = date if learnt and name not in new else entry.refreshed
            places = [_place(self.settings, digest) for digest in learnt]
            entry.held_below = min([*places, below[name]] if name in below else places)
            entry.exemplars = exemplars[k]
            fresh = [f"{begun.digests[r]}.png" for r in begun.held if begun.names[begun.labels[r]] == name]
            entry.validation = (entry.validation + fresh)[:HELD_KEPT]
        return Bundle(
            settings=self.settings,
            recipe=made_by.values(),
            classes=[known[name] for name in model.names],
            sizes=list(model.sizes),
            increments=model.increments,
            seen_images=model.seen_images,
            history=list(base.bundle.history) if base else [],
            readout="cnn",
            weights="",
        )

    def _exemplars(self, model: Model) -> list[list[str]]:
        """Return the files of each class's exemplars."""
        if self.settings.tune == "all":
            return [[f"{files.digest(p)}.png" for p in images.x.cpu().numpy()] for images in model.memory.classes]
        names = {_key(v): f"{self.begun.digests[row]}.png" for v, row in zip(self.train, self.begun.train, strict=True)}
        if self.base:
            old = self.base.tensors["memory.x"], self.base.bundle.files(EXEMPLARS)
            names |= {_key(views): name for views, name in zip(*old, strict=True)}
        return [[names[_key(views)] for views in images.x.cpu()] for images in model.memory.classes]

    def _images(self, model: Model, made: Bundle) -> dict[str, Pixels]:
        """Return the images that the new model keeps, by file name."""
        kept = set(made.files(EXEMPLARS)) | set(made.files(VALIDATION))
        images = {f"{d}.png": self.pixels[row] for row, d in enumerate(self.begun.digests) if f"{d}.png" in kept}
        if self.settings.tune == "all":  # a method may have changed them
            for known, exemplars in zip(made.classes, model.memory.classes, strict=True):
                images |= dict(zip(known.exemplars, exemplars.x.cpu().numpy(), strict=True))
        return images

    def _tensors(self, model: Model, made: Bundle, kept: Tensor, kept_labels: Sequence[str]) -> dict[str, Tensor]:
        tensors = model.tensors()
        if self.settings.tune == "all":
            return {name: tensor for name, tensor in tensors.items() if not name.startswith("memory.")}
        old = iter(zip(kept_labels, kept, strict=True))
        views: dict[str, list[Tensor]] = {name: [] for name in made.names}
        for name, view in old:
            views[name].append(view)
        for row, view in zip(self.begun.held, self.held, strict=True):
            views[self.begun.names[self.begun.labels[row]]].append(view)
        of_kept = [view for known in made.classes for view in views[known.name][: len(known.validation)]]
        tensors["validation.x"] = torch.stack(of_kept) if of_kept else self._empty()
        return {name: tensor for name, tensor in tensors.items() if name != "memory.y"}


def _add(say: Callable[[int], None], before: int, done: int) -> None:
    say(before + done)


def _key(views: Tensor) -> bytes:
    return hashlib.sha256(views.contiguous().numpy().tobytes()).digest()


def _saved(path: Path) -> Tensor | None:
    try:
        stored = safetensors.torch.load(path.read_bytes())
        return stored["views"] if torch.equal(_sum(stored["views"]), stored["sum"]) else None
    except (OSError, SafetensorError, KeyError, ValueError):
        return None


def _sum(views: Tensor) -> Tensor:
    return torch.frombuffer(bytearray(_key(views)), dtype=torch.uint8)


def measure(model: Model, x: Tensor, labels: Sequence[str]) -> dict[str, Score]:
    """Return how often both read-outs are right on images of each class."""
    scores = dict.fromkeys(model.names, Score(0, 0, 0))
    if not len(x):
        return scores
    cnn, nme = (answers.argmax(1).tolist() for answers in model.readouts(x))
    for name, one, other in zip(labels, cnn, nme, strict=True):
        scores[name] += Score(1, int(model.names[one] == name), int(model.names[other] == name))
    return scores


def better(score: Score, own: Readout) -> Readout:
    """Return the read-out with more right answers; the method's own where they are equal."""
    if score.cnn == score.nme:
        return own
    return "cnn" if score.cnn > score.nme else "nme"


def now() -> str:
    """Return the date and time, as a model's history has them."""
    return datetime.now(UTC).isoformat(timespec="seconds")
