"""Lists of photos with their classes: tables, and exports of tools for labelling. They give what folders would.

A list comes from anywhere. It may name photos beside it and below, and none elsewhere: what it names ends up in a model
and on pages, which others may see.
"""

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.parsers import expat

from edbl import store
from edbl.app import photos
from edbl.app.photos import Photo
from edbl.data.decoding import EXTENSIONS
from edbl.errors import EdblError
from edbl.text import LONGEST, class_name, count, first, is_class_name, shown


@dataclass(frozen=True)
class _Row:
    """A photo in a list: where it is named, the paths that it may have, and its labels."""

    where: str
    paths: list[str]  # the first one that is there counts
    labels: list[str]


def find(places: Sequence[Path]) -> tuple[list[Photo], list[str]]:
    """Return the photos of folders and lists, class by class, and notes on what was left aside."""
    lists = [place for place in places if place.suffix.lower() in (*READERS, ".zip") and not place.is_dir()]
    folders = [place for place in places if place not in lists]
    found, notes = photos.find(folders) if folders or not lists else ([], [])
    for place in lists:
        more, left = _listed(place)
        found += more
        notes += left
    classes: dict[str, list[Photo]] = {}
    for photo in found:
        classes.setdefault(photo.name, []).append(photo)
    return [photo for some in classes.values() for photo in some], notes


def _listed(place: Path) -> tuple[list[Photo], list[str]]:
    """Return the photos of a list, each once, and a note on those that have no label."""
    if place.suffix.lower() == ".zip":
        raise EdblError(f"{shown(place)} is packed: unpack it, and give its folder of classes or its annotations.xml")
    try:
        rows = list(READERS[place.suffix.lower()](store.read_file(place, store.MOST_VALUES)))
    except OSError as error:
        raise EdblError(f"cannot read {shown(place)}: {error.strerror or error}") from error
    except _Odd as error:
        raise EdblError(f"{shown(place)}: {error}") from error
    if several := [row for row in rows if len(set(row.labels)) > 1]:
        named = ", ".join(repr(shown(label)) for label in dict.fromkeys(several[0].labels))
        raise EdblError(
            f"{shown(place)}: {count(several, 'photo')} with several labels, such as {several[0].where}: {named}\n"
            "a photo shows one class; leave it one label, or leave it out"
        )
    labelled = [row for row in rows if row.labels]
    found = _found(place, labelled)
    if not found:
        raise EdblError(f"{shown(place)} names no photo with a label")
    left = count(len(rows) - len(labelled), "photo")
    return found, [f"{left} of {shown(place)} without a label left out"] if len(rows) > len(labelled) else []


def _found(place: Path, rows: Sequence[_Row]) -> list[Photo]:
    """Return the photos of rows, which must be there, in the folder of the list or below it."""
    root = Path(os.path.realpath(place.parent))
    found: dict[str, Photo] = {}  # by where they really are
    outside: list[str] = []
    missing: list[str] = []
    for row in rows:
        name = class_name(row.labels[0])
        if not is_class_name(name):
            raise EdblError(f"{shown(place)}: {row.where} has an empty label, or one of over {LONGEST:,} characters")
        places = [place.parent / path for path in row.paths if _may_be(path)]
        inside = [path for path in places if Path(os.path.realpath(path)).is_relative_to(root)]
        there = next((path for path in inside if os.path.isfile(path)), None)
        told = f"{row.where}: {shown(row.paths[0])}"
        if there is None:
            (missing if inside or not places else outside).append(told)
        elif found.setdefault(os.path.realpath(there), Photo(there, name)).name != name:
            raise EdblError(f"{shown(place)}: {row.where} is in it twice, as '{name}' and as another class")
    if outside:
        raise EdblError(
            f"{shown(place)} names {count(outside, 'photo')} outside of its own folder: {first(outside)}\n"
            f"move them below {shown(place.parent)}, or the list to a folder above them"
        )
    if missing:
        raise EdblError(
            f"{shown(place)} names {count(missing, 'photo')} that {'is' if len(missing) == 1 else 'are'} not there: "
            f"{first(missing)}\npaths count from the folder of the list; put it where they lead"
        )
    return list(found.values())


def _may_be(path: str) -> bool:
    """Tell whether a system can have a path: half a character, or none at all, it cannot."""
    try:
        return bool(path) and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


class _Odd(Exception):
    """Why a list cannot be read."""


def _table(data: bytes) -> Iterator[_Row]:
    """Read comma-separated values with the columns ``path`` and ``label``."""
    try:
        lines = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        heading = [name.strip().lower() for name in next(lines, [])]
        if sorted(name for name in heading if name in ("path", "label")) != ["label", "path"]:
            raise _Odd("its first line must name the columns: path,label (with a comma between them)")
        for cells in lines:
            if not cells:
                continue
            if len(cells) != len(heading):
                raise _Odd(f"line {lines.line_num} has {count(len(cells), 'value')}, and the first {len(heading)}")
            row = dict(zip(heading, cells, strict=True))
            yield _Row(f"line {lines.line_num}", [row["path"].strip()], [row["label"]])
    except UnicodeDecodeError as error:
        raise _Odd("it is not UTF-8 text; save it as CSV UTF-8") from error
    except csv.Error as error:
        raise _Odd(f"line {lines.line_num}: {error}") from error


def _label_studio(data: bytes) -> Iterator[_Row]:
    """Read an export of Label Studio: JSON, or JSON-MIN with its usual names ``image`` and ``choice``."""
    try:
        tasks = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _Odd(f"it is not valid JSON ({shown(str(error))})") from error
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise _Odd("it is no export of Label Studio, which is a list of tasks; export it as JSON there")
    for number, task in enumerate(tasks, 1):
        where = f"task {shown(str(task.get('id', number)))[:40]}"
        if isinstance(task.get("data"), dict):
            yield _Row(where, _of_label_studio(_image(task["data"], where)), _choices(task))
        else:
            choice = task.get("choice")
            given = choice.get("choices") if isinstance(choice, dict) else choice
            yield _Row(where, _of_label_studio(_image(task, where)), _texts(given))


def _image(values: dict[str, Any], where: str) -> str:
    """Return what a task names as its image."""
    texts = {key: value for key, value in values.items() if isinstance(value, str)}
    named = [value for value in texts.values() if value.lower().endswith(tuple(f".{e}" for e in EXTENSIONS))]
    if "image" in texts:
        return texts["image"]
    if len(named) != 1:
        raise _Odd(f"{where} has no image, or more than one: name it 'image' in the data of the task")
    return named[0]


def _choices(task: dict[str, Any]) -> list[str]:
    """Return what annotators chose for a task; what they skipped, and regions, do not count."""
    found = []
    notes = task.get("annotations", [])
    for note in notes if isinstance(notes, list) else []:
        results = note.get("result", []) if isinstance(note, dict) and not note.get("was_cancelled") else []
        for result in results if isinstance(results, list) else []:
            value = result.get("value") if isinstance(result, dict) and result.get("type") == "choices" else None
            found += _texts(value.get("choices")) if isinstance(value, dict) else []
    return found


def _texts(value: object) -> list[str]:
    """Return one text or several as a list."""
    return [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]


def _of_label_studio(image: str) -> list[str]:
    """Return the paths that an image may have beside an export; the web is not looked at."""
    try:
        parts = urlsplit(image.replace("\\", "/")) if "\0" not in image else urlsplit("")
    except ValueError as error:  # brackets that hold no address
        raise _Odd(f"{shown(image)} is no path ({shown(str(error))})") from error
    if parts.scheme and parts.scheme != "file":
        raise _Odd(f"{shown(image)} is not on this disk; download the images, and export with paths to them")
    if "d" in (query := parse_qs(parts.query)):  # served from a folder: /data/local-files/?d=PATH
        return [query["d"][0]]
    path = unquote(parts.path)
    if path.startswith("/data/"):  # uploaded: /data/upload/1/NAME
        name = path.rsplit("/", 1)[-1]
        return [path.removeprefix("/data/"), f"media/{path.removeprefix('/data/')}", f"images/{name}", name]
    return [path]


def _cvat(data: bytes) -> Iterator[_Row]:
    """Read an export of CVAT: "CVAT for images 1.1", whose tags are the classes.

    A document type is refused, and with it entities that name other files or grow without end.
    """
    rows: list[_Row] = []
    open_tags: list[str] = []

    def start(tag: str, values: dict[str, str]) -> None:
        if not open_tags and tag != "annotations":
            raise _Odd('it is no export of CVAT; export it as "CVAT for images 1.1" there')
        if len(open_tags) >= store.DEEPEST:
            raise _Odd("it is nested too deep")
        open_tags.append(tag)
        if tag == "image":
            name, subset = values.get("name", ""), values.get("subset", "")
            paths = [name, f"images/{name}", *([f"images/{subset}/{name}"] if subset else [])]
            rows.append(_Row(f"image {shown(name)}", paths, []))
        elif tag == "tag" and open_tags[-2] == "image":
            rows[-1].labels.append(values.get("label", ""))

    def end(tag: str) -> None:
        open_tags.pop()

    def refuse(*_: object) -> None:
        raise _Odd("it has a document type, which may hold entities; exports of CVAT have none")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler, parser.StartDoctypeDeclHandler = start, end, refuse
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise _Odd(f"it is not valid XML ({shown(str(error))})") from error
    yield from rows


READERS: dict[str, Callable[[bytes], Iterator[_Row]]] = {".csv": _table, ".json": _label_studio, ".xml": _cvat}
