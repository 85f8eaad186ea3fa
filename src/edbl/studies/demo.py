"""The demos: RKD and EDBL on scikit-learn's digits, with the same memory; and a model of photos of them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from edbl.data.example import photos
from edbl.engine.progress import Progress
from edbl.engine.run import resume, run
from edbl.nets import pretrained
from edbl.recipe import RECIPE, Recipe
from edbl.records import RECORD, Record
from edbl.rule import TaskFacts, epochs

INTRODUCTION = """\
Ten handwritten digits arrive two at a time. Each method may keep 50 old images, and must tell apart all digits so far.
  rkd   rehearsal with distillation: trains on old and new images, and on what the network answered before
  edbl  effective decision boundary learning: mixes old and new images, then balances the last layer
Two classifiers are measured: CNN, the network's highest output, and NME, the nearest mean of the kept images.
rkd trains for at least as many epochs; no choice was made on the test images."""
NEXT = """\
Next: `edbl demo photos` teaches a model of photos; `edbl run bic --data digits` runs another method, and
`edbl list methods` names all."""

LEAST_NEW = 284  # training images of two digits: with more, the rule gives fewer epochs


def recipes() -> list[Recipe]:
    """Return the demo's two recipes: RKD has as many epochs as the two phases of EDBL, at the rate of the rule."""
    digits = {"data.name": "digits"}
    edbl = Recipe.of(digits | {"method": "edbl"})
    balance = edbl.values()["options.balance.epochs"]
    longest = epochs(TaskFacts(new_images=LEAST_NEW, exemplars=50, old_classes=2, new_classes=2, size=8))
    return [Recipe.of(digits | {"method": "rkd", "schedule.epochs": longest + cast(int, balance)}), edbl]


def run_or_resume(recipe: Recipe, folder: Path, progress: Progress | None = None) -> Record:
    """Make one of the demo's runs, or go on with it where it was stopped."""
    if (folder / RECORD).exists() and Recipe.read(folder / RECIPE) == recipe:
        return resume(folder, progress=progress)
    return run(recipe, folder, progress=progress)


def free_folder(wanted: Path = Path("runs/demo")) -> Path:
    """Return ``wanted``, or the first of its name and a number that does not exist."""
    numbered = (wanted.with_name(f"{wanted.name}-{number}") for number in range(2, 10_000))
    return wanted if not wanted.exists() else next(path for path in numbered if not path.exists())


def photo_steps(folder: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield each step of teaching a model of photos: what is done, and what does it and says what came of it."""
    from edbl.app.opened import open as open_model

    model = open_model(folder / "model")
    options: dict[str, Any] = {} if pretrained.default() else {"backbone": "mlp", "image_size": 8}
    taught = photos(folder / "photos", classes=4, each=20)
    new = photos(folder / "new", classes=4, each=10, first=100)

    def learn(*classes: str) -> str:
        model.learn({name: taught[name] for name in classes}, **options)
        return f"{20 * len(classes)} photos learnt; the model has {', '.join(model.classes)}"

    def ask(name: str) -> str:
        answers = model.predict(new[name], top=1)
        right = sum(one.best[0][0] == name and not one.unknown for one in answers)
        unknown = sum(one.unknown for one in answers)
        return f"{right} of {len(answers)} right" + (f", {unknown} 'unknown'" if unknown else "")

    def correct() -> str:
        wrong = [
            one
            for name in model.classes
            for one in zip(new[name], model.predict(new[name], top=1), strict=True)
            if one[1].best[0][0] != name
        ]
        if not wrong:
            return "nothing to correct"
        path, before = wrong[0]
        model.learn([path], labels=[path.parent.name], yes=True)
        after = model.predict([path], top=1)[0]
        return f"{path.name} was {before.best[0][0]}, is {path.parent.name}; asked again, it is {after.best[0][0]}"

    yield "Teaching zero, one and two, 20 photos each", lambda: learn("zero", "one", "two")
    yield "Asking 10 new photos of two", lambda: ask("two")
    yield "Asking 10 photos of three, which it was not taught", lambda: ask("three")
    yield "Teaching three, without the photos of the others", lambda: learn("three")
    yield "Asking the photos of three again", lambda: ask("three")
    yield "Correcting one wrong answer", correct
