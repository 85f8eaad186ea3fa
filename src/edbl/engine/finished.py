"""Whether the record of a finished run, which may come from anywhere, is that of its recipe and of its data."""

import json
from pathlib import Path

from edbl.data import datasets
from edbl.data.download import at_home
from edbl.engine.prepare import of_data
from edbl.errors import EdblError
from edbl.methods import find_method, methods
from edbl.recipe import COMPLETE, HOW, RECIPE, Recipe, flat
from edbl.records import Record
from edbl.store import read_toml

SLOW = "imagenet"  # what the names of data sets begin with that are decoded before they are read


def check_finished(folder: Path, record: Record, data_dir: Path | None) -> None:
    """Refuse a record that is not of its recipe or its data.

    Data are read where they are here: those that edbl has by name, but for ImageNet, which takes minutes, those of a
    folder, and those of a file with code if that was named, for it runs.
    """
    try:
        file = flat(read_toml(folder / RECIPE))
    except (OSError, ValueError) as error:
        raise EdblError(f"{folder / RECIPE} of a finished run cannot be read ({error})") from error
    said = flat(record.recipe)
    if any(_plain(file.get(key)) != _plain(said.get(key)) for key in {*file, *said} - {COMPLETE, *HOW}):
        raise EdblError(f"{folder / RECIPE} is not the recipe of the record beside it; make the run anew")
    _compare(folder, record, _of_recipe(said))
    if record.data.startswith(SLOW):
        return
    try:
        recipe = Recipe.read(folder / RECIPE)
    except EdblError:  # it is that of an older edbl, or names a file with code
        return
    why = ""
    try:
        wanted = of_data(recipe, data_dir)
    except EdblError as error:
        if not (datasets.is_folder(record.data) and at_home(Path(record.data)).is_dir()):  # the data are not here
            return
        wanted, why = {}, f": {str(error).splitlines()[0]}"
    if wanted.get("data_fingerprint") != record.data_fingerprint:
        raise EdblError(
            f"the images of {record.data} are not those of run {folder}{why}\nput those back, or use another folder"
        )
    _compare(folder, record, wanted)


def _of_recipe(said: dict[str, object]) -> dict[str, object]:
    """Return what a record says that follows from its recipe alone."""
    keys = {"data": "data.name", "protocol": "stream.protocol", "memory": "memory", "seed": "seed"}
    wanted = {name: said[key] for name, key in keys.items() if key in said}
    if "stream.order" in said:
        wanted["order"] = order if isinstance(order := said["stream.order"], str) else "list"
    if (method := said.get("method")) in methods():
        wanted |= {"method": method, "our_reading": find_method(str(method)).our_reading}
    return wanted


def _compare(folder: Path, record: Record, wanted: dict[str, object]) -> None:
    if odd := [name for name, value in wanted.items() if getattr(record, name) != value]:
        raise EdblError(
            f"the record of run {folder} is not that of its recipe and data: {odd[0]} is another; make the run anew"
        )


def _plain(value: object) -> object:
    """Return a value as JSON and TOML both have it; TOML alone has dates."""
    return json.loads(json.dumps(value, default=str))
