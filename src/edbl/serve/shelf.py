"""The models that are served: one, or those of a folder."""

import re
from collections.abc import Callable
from pathlib import Path

from edbl.errors import EdblError
from edbl.serve.limits import Limits
from edbl.serve.model import Learning, Served
from edbl.serve.refusals import Refused

NAME = re.compile(r"[^\W_][\w .-]{0,63}")  # of a model: a folder's name that leads nowhere else
OF_MODEL = "model.json", "increment", "staged", ".writing"  # one of which lies in the folder of each
LOCK = ".lock"
MOST = 200  # models of a folder

Make = Callable[[str, Path], Served]


class Shelf:
    """Models by name; one is loaded when it is first wanted."""

    def __init__(self, place: Path, make: Make, limits: Limits, several: bool = False) -> None:
        self.place, self._make, self._limits = place, make, limits
        self._models: dict[str, Served] = {}
        self._used: dict[Served, None] = {}  # the latest last
        self.several = not place.is_file() and _several(place, several)
        self.writable = not place.is_file()
        if not self.several:
            name = place.resolve().stem if place.is_file() else place.resolve().name
            self._models[name if NAME.fullmatch(name) else "model"] = make(name, place)
            self._models = {key: self._named(model, key) for key, model in self._models.items()}

    @staticmethod
    def _named(model: Served, name: str) -> Served:
        model.name = name
        return model

    def names(self) -> list[str]:
        """Return the names of all models."""
        if not self.several:
            return list(self._models)
        found = [path.name for path in self.place.iterdir() if NAME.fullmatch(path.name) and is_model(path)]
        return sorted({*found, *self._models})

    def get(self, name: str) -> Served:
        """Return a model."""
        if name not in self._models:
            if name not in self.names():
                raise Refused(404, "there is no such model")
            self._models[name] = self._make(name, self.place / name)
        return self._models[name]

    def add(self, name: str) -> Served:
        """Return a new model, which is made by what it learns first."""
        if not self.several:
            raise Refused(409, "this server has one model; start it with a folder of models to have several")
        if not NAME.fullmatch(name) or name.endswith((" ", ".")):
            raise Refused(422, "the name of a model has letters, digits, spaces, dots and dashes; at most 64 of them")
        there = [*self.names(), *(path.name for path in self.place.iterdir() if not _empty(path))]
        if name.casefold() in (one.casefold() for one in there):  # which are one folder on some systems
            raise Refused(409, f"there is a model '{name}' already")
        if len(self.names()) >= MOST:
            raise Refused(409, f"there are {MOST} models already")
        self._models[name] = self._make(name, self.place / name)
        return self._models[name]

    def drop(self, name: str) -> None:
        """Let go of a model that could not be made."""
        self._models.pop(name, None)

    def used(self, model: Served) -> Served | None:
        """Note that a model was used, and return one that may rest, where that many others were used since."""
        self._used.pop(model, None)
        self._used[model] = None
        if len(self._used) <= self._limits.ready:
            return None
        first = next(iter(self._used))
        del self._used[first]
        return first

    def loaded(self) -> list[Served]:
        """Return the models that were wanted so far."""
        return list(self._models.values())

    def close(self) -> None:
        """Finish what all models do."""
        for model in self.loaded():
            model.close()


def is_model(place: Path) -> bool:
    """Tell whether a folder is a model, or will be: something is unfinished or staged there."""
    return any((place / name).exists() for name in OF_MODEL)


def _empty(place: Path) -> bool:
    """Tell whether nothing is in a folder but, perhaps, what a writer locks."""
    return place.is_dir() and all(path.name == LOCK for path in place.iterdir())


def _several(place: Path, wanted: bool) -> bool:
    """Tell whether a place is a folder of models, and refuse what is no place for any."""
    if place.suffix == ".onnx" and not place.exists():
        raise EdblError(f"'{place}' does not exist; `edbl export MODEL {place.name}` writes such a file")
    if wanted and (place.is_file() or is_model(place)):
        raise EdblError(f"'{place}' is one model, not several; give the folder in which models are to lie")
    if wanted:
        place.mkdir(parents=True, exist_ok=True)
    if not place.exists() or is_model(place):
        return False
    if not place.is_dir():
        raise EdblError(f"'{place}' is no folder; give a model, a folder of models, or a file that ends in .onnx")
    there = [path for path in place.iterdir() if path.name != LOCK and not _empty(path)]
    if any(is_model(path) for path in there):
        return True
    if there:
        raise EdblError(f"'{place}' holds other things than models, such as {there[0].name}; give an empty folder")
    return wanted


def learning_on(shelf: Shelf, name: str) -> Learning:
    """Return another model to join."""
    model = shelf.get(name)
    if not isinstance(model, Learning):
        raise Refused(409, f"'{name}' does not learn")
    return model
