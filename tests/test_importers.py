"""Lists of photos: tables and exports of labelling tools give what folders give, and bad ones say what to do."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edbl.app import importers, photos
from edbl.data.decoding import decode
from edbl.errors import EdblError
from tests.conftest import Cli
from tests.photos import QUICK, write_digits


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with three photos, one of them further down."""
    for name in ("a.png", "b.png", "below/c.png"):
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
    return tmp_path / "set"


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def named(path: Path) -> list[tuple[str, str]]:
    found, _ = importers.find([path])
    return [(photo.path.relative_to(path.parent).as_posix(), photo.name) for photo in found]


WANTED = [("a.png", "cat"), ("below/c.png", "cat"), ("b.png", "dog")]  # class by class, as folders give them


def task(image: str, *choices: str, **more: object) -> dict[str, object]:
    result = [{"type": "choices", "value": {"choices": list(choices)}}] if choices else []
    return {"id": 1, "data": {"image": image}, "annotations": [{"result": result}], **more}


def test_a_table(place: Path) -> None:
    rows = "Path, label ,note\r\na.png,cat,x\r\n\r\nb.png, dog ,\r\nbelow/c.png,cat,\r\na.png,cat,again\r\n"
    assert named(written(place / "list.csv", "\ufeff" + rows)) == WANTED


def test_an_export_of_label_studio(place: Path) -> None:
    (place / "upload" / "3").mkdir(parents=True)
    os.rename(place / "b.png", place / "upload" / "3" / "b one.png")
    tasks = [
        task("/data/local-files/?d=a.png", "cat"),
        task("/data/upload/3/b%20one.png", "dog"),
        task("below/c.png", "cat"),
        task("not-there.png"),  # without a label, so nobody looks for it
    ]
    tasks[0]["annotations"] = [*tasks[0]["annotations"], {"was_cancelled": True, "result": "junk"}]  # type: ignore[misc]
    path = written(place / "export.json", json.dumps(tasks))
    assert named(path) == [("a.png", "cat"), ("below/c.png", "cat"), ("upload/3/b one.png", "dog")]
    assert importers.find([path])[1] == [f"1 photo of {path} without a label left out"]
    least = [{"image": "a.png", "choice": "cat"}, {"image": "b.png", "choice": {"choices": ["cat"]}}]
    os.rename(place / "upload" / "3" / "b one.png", place / "b.png")
    assert named(written(place / "min.json", json.dumps(least))) == [("a.png", "cat"), ("b.png", "cat")]


def test_an_export_of_cvat(place: Path) -> None:
    (place / "images" / "train").mkdir(parents=True)
    os.rename(place / "b.png", place / "images" / "train" / "b.png")
    text = """<?xml version="1.0" encoding="utf-8"?><annotations><version>1.1</version>
    <meta><task><labels><label><name>cat</name></label></labels></task></meta>
    <image id="0" name="a.png" width="8" height="8"><tag label="cat" source="manual"></tag></image>
    <image id="1" name="b.png" subset="train"><tag label="dog"/><box label="cat" xtl="1"/></image>
    <image id="2" name="below/c.png"><tag label="cat"><attribute name="tag">x</attribute></tag></image>
    <image id="3" name="d.png"></image></annotations>"""
    path = written(place / "annotations.xml", text)
    assert named(path) == [("a.png", "cat"), ("below/c.png", "cat"), ("images/train/b.png", "dog")]
    assert importers.find([path])[1] == [f"1 photo of {path} without a label left out"]


def test_folders_and_lists_together(place: Path, tmp_path: Path) -> None:
    folder = write_digits(tmp_path / "photos", {1: 2})
    table = written(place / "list.csv", "path,label\na.png,digit 1\nb.png,dog\n")
    found, _ = importers.find([table, folder])
    assert [photo.name for photo in found] == ["digit 1"] * 3 + ["dog"]
    assert importers.find([folder]) == photos.find([folder])
    with pytest.raises(EdblError, match="is a file: give a folder"):
        importers.find([place / "a.png"])


BOMB = '<!DOCTYPE a [<!ENTITY b "ha">' + "".join(f'<!ENTITY b{k} "{f"&b{k or str()};" * 9}">' for k in range(9)) + "]>"
OUTSIDE = '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>'
BAD = {
    "no header": ("x.csv", "a.png,cat\n", "its first line must name the columns: path,label"),
    "semicolons": ("x.csv", "path;label\na.png;cat\n", "with a comma between them"),
    "two columns of a name": ("x.csv", "path,label,label\n", "its first line must name"),
    "an empty table": ("x.csv", "", "its first line must name"),
    "no rows": ("x.csv", "path,label\n", "names no photo with a label"),
    "a short line": ("x.csv", "path,label\na.png\n", "line 2 has 1 value, and the first 2"),
    "quotes": ("x.csv", 'path,label\n"a.png"x,cat\n', "line 2: "),
    "a long value": ("x.csv", f"path,label\na.png,{'x' * 200_000}\n", "line 2: field larger"),
    "a very long label": ("x.csv", f"path,label\na.png,{'x' * 100_000}\n", "or one of over 2,000 characters"),
    "a path of half a character": ("x.json", '[{"image": "\\ud800.png", "choice": "x"}]', "that is not there"),
    "brackets that hold no address": ("x.json", '[{"image": "//[", "choice": "x"}]', "is no path"),
    "an empty label": ("x.csv", "path,label\na.png, \n", "line 2 has an empty label"),
    "missing": ("x.csv", "path,label\nno.png,cat\na.png,cat\n", "names 1 photo that is not there: line 2: no.png"),
    "a folder": ("x.csv", "path,label\nbelow,cat\n", "not there: line 2: below"),
    "no path": ("x.csv", "path,label\n,cat\n", "not there: line 2: "),
    "a null": ("x.json", json.dumps([task("a\0.png", "cat")]), "not there: task 1"),
    "above": ("x.csv", "path,label\n../x.csv,cat\n", "names 1 photo outside of its own folder: line 2: ../x.csv"),
    "elsewhere": ("x.csv", "path,label\n/etc/passwd,cat\n", "outside of its own folder: line 2: /etc/passwd"),
    "twice": ("x.csv", "path,label\na.png,cat\n./a.png,dog\n", "line 3 is in it twice, as 'dog' and as another class"),
    "no json": ("x.json", "{", "it is not valid JSON"),
    "deep json": ("x.json", "[" * 100_000, "it is not valid JSON"),
    "other json": ("x.json", '{"images": []}', "it is no export of Label Studio, which is a list of tasks"),
    "no image": ("x.json", '[{"data": {"text": "a"}}]', "task 1 has no image"),
    "several choices": ("x.json", json.dumps([task("a.png", "cat", "dog")]), "1 photo with several labels, such as"),
    "the web": ("x.json", json.dumps([task("https://a.b/a.png", "cat")]), "is not on this disk; download"),
    "odd types": ("x.json", json.dumps([task("a.png", annotations=3)]), "names no photo with a label"),
    "no xml": ("x.xml", "<annotations>", "it is not valid XML"),
    "other xml": ("x.xml", "<a/>", "it is no export of CVAT"),
    "deep xml": ("x.xml", "<annotations>" + "<a>" * 99, "it is nested too deep"),
    "several tags": (
        "x.xml",
        '<annotations><image name="a.png"><tag label="a"/><tag label="b"/></image></annotations>',
        "1 photo with several labels, such as image a.png: 'a', 'b'",
    ),
    "a bomb": ("x.xml", f'{BOMB}<annotations><image name="&b8;"/></annotations>', "it has a document type"),
    "a file in xml": ("x.xml", f'{OUTSIDE}<annotations><image name="&b;"/></annotations>', "it has a document type"),
    "an encoding": ("x.xml", '<?xml version="1.0" encoding="x"?><annotations/>', "it is not valid XML"),
    "a zip": ("x.zip", "", "is packed: unpack it"),
}


@pytest.mark.parametrize(("name", "text", "message"), BAD.values(), ids=BAD.keys())
def test_bad_lists(place: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(EdblError) as error:
        importers.find([written(place / name, text)])
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) <= 2


def no_text(path: Path) -> None:
    path.write_bytes(b"path,label\n\xff\xfe,x\n")


def huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(2**40)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (no_text, "it is not UTF-8 text"),
        (huge, "at most 67,108,864 are read"),
        (os.mkfifo, "it is not a regular file"),
        (lambda path: None, "cannot read"),
    ],
)
def test_files_that_are_no_lists(place: Path, make: Callable[[Path], object], message: str) -> None:
    make(place / "x.csv")
    with pytest.raises(EdblError, match=message):
        importers.find([place / "x.csv"])


def test_a_link_out_of_the_folder_is_not_followed(place: Path, tmp_path: Path) -> None:
    os.rename(place / "a.png", tmp_path / "a.png")
    (place / "a.png").symlink_to(tmp_path / "a.png")
    with pytest.raises(EdblError, match=r"outside of its own folder: line 2: a\.png"):
        importers.find([written(place / "x.csv", "path,label\na.png,cat\n")])


def test_a_model_from_a_table(tmp_path: Path, cli: Cli) -> None:
    folder = write_digits(tmp_path / "photos", {1: 4, 2: 4})
    paths = sorted(folder.rglob("*.png"))
    rows = "".join(f"{path.relative_to(folder)},{path.parent.name}\n" for path in paths)
    table = written(folder / "list.csv", f"path,label\n{rows}")
    found = cli("learn", tmp_path / "model", table, *QUICK, "--set", "schedule.epochs=1")
    assert found.code == 0, found.err
    assert "learnt 2 new classes (digit 1, digit 2)" in found.out


def test_photos_of_phones_need_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    (tmp_path / "a.HEIC").write_bytes(b"a photo")
    assert decode(tmp_path / "a.HEIC", 8).bad == "HEIC: run `pip install 'edbl[heic]'`"


def test_photos_of_phones(tmp_path: Path) -> None:
    library = pytest.importorskip("pillow_heif")
    library.register_heif_opener()
    picture = Image.fromarray(np.repeat(np.array([[[250, 0, 0]], [[0, 0, 250]]], np.uint8), 32, 0).repeat(64, 1))
    turned = picture.getexif()
    turned[0x112] = 6
    picture.save(tmp_path / "a.heic", exif=turned.tobytes())
    picture.save(tmp_path / "a.jpg", exif=turned.tobytes(), quality=95)
    one, other = (decode(tmp_path / name, 8).pixels for name in ("a.heic", "a.jpg"))
    assert one is not None
    assert other is not None
    assert np.abs(one.astype(int) - other).max() <= 12
