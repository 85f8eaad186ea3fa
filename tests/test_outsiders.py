"""What somebody else has put into a folder that is served, or into one that is very deep."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edbl import EdblError, scratch, store
from edbl.app import begin
from edbl.app import bundle as disk
from edbl.app.learn import increment
from edbl.app.settings import Request
from edbl.cli import studies
from edbl.engine.progress import Progress
from edbl.fleet.many import HERE
from edbl.report.runs import read_runs
from edbl.serve.run import Server, Wanted
from edbl.serve.staged import Staged, Waiting
from edbl.studies.shelf import Shelf
from tests.conftest import Cli
from tests.photos import write_digits
from tests.serving import NEW, TRAINED, M, lesson, png, served

pytestmark = pytest.mark.usefixtures("stand_in")


def test_a_staged_folder_that_is_a_link_is_not_served(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / f"{'0' * 32}.png").write_bytes(b"an exemplar")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / disk.STAGED).symlink_to(other)
    with pytest.raises(EdblError, match="staged is a link"):
        Server(Wanted(tmp_path / "m", port=0, device="cpu"))


@pytest.mark.parametrize("whole", [True, False])
def test_nor_is_one_that_becomes_a_link_meanwhile(tmp_path: Path, whole: bool) -> None:
    other, place = tmp_path / "other", tmp_path / "m" / disk.STAGED
    other.mkdir()
    name = f"{'0' * 32}.png"
    (other / name).write_bytes(png(Image.new("RGB", (8, 8))))
    before = (other / name).read_bytes()
    with served(tmp_path / "m", **TRAINED) as call:
        assert call.form(f"{M}/teach", *lesson({0: 2})).json["staged"] == 2
        if whole:
            shutil.rmtree(place)
            place.symlink_to(other)
        else:
            (place / name).symlink_to(other / name)
        answers = [
            call.form(f"{M}/teach", *lesson({1: 2})),
            call("DELETE", f"{M}/learn"),
            call("POST", f"{M}/learn", {}),
        ]
        answers += [call.form(f"{M}/teach", *lesson({1: 2})), call("GET", f"{M}/photos/{name[:32]}")]
        assert all(400 <= answer.status < 500 for answer in answers), [answer.status for answer in answers]
    assert [path.name for path in other.iterdir()] == [name]
    assert (other / name).read_bytes() == before


def test_a_staged_photo_of_another_size_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path / "m", **TRAINED) as call:
        assert call.form(f"{M}/teach", *lesson({0: 1})).json["staged"] == 1
        photo = next((tmp_path / "m" / disk.STAGED).glob("*.png"))
    with served(tmp_path / "m", **TRAINED) as call:
        assert call("GET", f"{M}/photos/{photo.stem}").status == 200
        photo.write_bytes(png(Image.new("RGB", (4000, 4000))))
        monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
        assert call("GET", f"{M}/photos/{photo.stem}").status == 404


def deep(place: Path) -> None:
    """Make folders in each other, more than Python calls itself."""
    place.mkdir(exist_ok=True)
    here = os.getcwd()
    os.chdir(place)
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(here)


@pytest.fixture
def bottomless(tmp_path: Path) -> Iterator[Path]:
    deep(tmp_path / "deep")
    yield tmp_path / "deep"
    for _ in range(1500):  # what removes folders may call itself too
        inner = tmp_path / "deep" / "d" / "d"
        if not inner.exists():
            break
        inner.rename(tmp_path / "next")
        (tmp_path / "deep" / "d").rmdir()
        (tmp_path / "next").rename(tmp_path / "deep" / "d")


def test_very_deep_folders_are_refused_or_left_aside(bottomless: Path, cli: Cli) -> None:
    with pytest.raises(EdblError, match="nested deeper than 30"):
        store.refuse_links(bottomless)
    store.sweep(bottomless)
    assert disk.strangers(bottomless.parent) == []
    assert disk.size(bottomless) == 0
    assert Shelf(bottomless).runs == []
    with pytest.raises(EdblError, match="no run in"):
        read_runs([bottomless])


@pytest.mark.parametrize("command", [["info"], ["forget", "digit 1"], ["prune"], ["learn", "--discard"], ["undo"]])
def test_a_very_deep_model_is_one_message(bottomless: Path, tmp_path: Path, cli: Cli, command: list[str]) -> None:
    photos = write_digits(tmp_path / "photos", {0: 3, 1: 3})
    assert cli("learn", tmp_path / "m", photos, "--backbone", "stand-in", "--device", "cpu").code == 0
    bottomless.rename(tmp_path / "m" / disk.VERSIONS)
    try:
        found = cli(command[0], tmp_path / "m", *command[1:])
    finally:
        (tmp_path / "m" / disk.VERSIONS).rename(bottomless)
    assert found.code == 2
    assert "nested deeper than 30" in found.err


def test_what_a_killed_export_has_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    left = tmp_path / "temporary" / f"{scratch.SCRATCH}left"
    left.mkdir(parents=True)
    (left / store.LOCK).touch()
    (left / "model.onnx").write_bytes(b"secret")
    with served(tmp_path / "m", **NEW) as call:
        assert call.form(f"{M}/teach?yes=true", *lesson({0: 3, 1: 3})).json["learnt"] == 6
        assert call("GET", f"{M}/export").status == 200
    assert list((tmp_path / "temporary").glob("edbl-*")) == []


def test_what_killed_runs_have_left_is_removed_where_nothing_is_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"{scratch.SCRATCH}left").mkdir()
    (tmp_path / f"{scratch.SCRATCH}left" / store.LOCK).touch()
    studies._make([], Shelf(tmp_path / "results"), tmp_path / "runs", 1, True, None, HERE)
    assert list(tmp_path.glob("edbl-*")) == []


Values = dict[str, Any]

FORGED: dict[str, Callable[[Values], object]] = {
    "an escape": lambda v: v["names"].__setitem__(0, "a\x1b[31m"),
    "a newline": lambda v: v["names"].__setitem__(0, "a\nb"),
    "half a character": lambda v: v["names"].__setitem__(0, "\ud800"),
    "no name": lambda v: v["names"].__setitem__(0, ""),
    "a long name": lambda v: v["names"].__setitem__(0, "a" * 100_000),
    "a name twice": lambda v: v.update(names=[v["names"][1]] * 2),
    "a class without photos": lambda v: v["names"].append("ghost"),
    "a class that is held out whole": lambda v: v.update(
        train=[row for row in v["train"] if v["labels"][row]], held=[row for row in v["train"] if not v["labels"][row]]
    ),
    "nothing to learn": lambda v: v.update(train=[]),
    "rows twice": lambda v: v.update(train=v["train"] * 2),
    "rows that are held out too": lambda v: v.update(held=v["train"][:1]),
    "a file elsewhere": lambda v: v.update(digests=["../../x", *v["digests"][1:]], train=[0, *v["train"][1:]], held=[]),
    "moved elsewhere": lambda v: v.update(moved=["../../x"]),
    "another number": lambda v: v.update(number=10**18),
    "a number below 0": lambda v: v.update(number=-5),
    "of another version": lambda v: v.update(base=7),
    "much held out": lambda v: v["settings"].update(validation=5),
    "many copies": lambda v: v["settings"].update(copies=10**9),
    "no memory": lambda v: v["settings"].update(memory="x"),
    "a seed below 0": lambda v: v["settings"].update(seed=-1),
}


@pytest.fixture(scope="module", params=[False, True], ids=["first", "second"])
def unfinished(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder with the first or second update of a model, whose photos are read."""
    place = tmp_path_factory.mktemp("unfinished")
    short = Request(backbone="mlp", image_size=8, given={"schedule.epochs": 1})
    for number in range(2 if request.param else 1):
        photos = write_digits(place / f"photos {number}", {2 * number: 6, 2 * number + 1: 6})
        asked = replace(short if number == 0 else Request(), folders=[str(photos)])
        with increment(place / "model", asked, device="cpu", say=lambda line: None) as update:
            assert update is not None
            if request.param and number == 0:
                update.prepare()
                update.commit(update.learn(Progress()))
    return place / "model"


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_update_is_refused(unfinished: Path, tmp_path: Path, cli: Cli, name: str) -> None:
    model = shutil.copytree(unfinished, tmp_path / "model")
    place = model / disk.INCREMENT
    values, _ = store.load(place, begin.NAME, dict[str, object])
    FORGED[name](values)
    store.save(place, begin.NAME, values)
    found = cli("learn", model)
    assert found.code == 2
    assert "discard" in found.err
    assert len(found.err) < 1000
    assert cli("learn", model, "--discard").code == 0


def test_an_update_that_nobody_forged_continues(unfinished: Path, tmp_path: Path, cli: Cli) -> None:
    model = shutil.copytree(unfinished, tmp_path / "model")
    assert cli("learn", model, "--device", "cpu").code == 0
    assert cli("info", model).code == 0


@pytest.mark.parametrize("label", ["", " ", "a" * 100_000, "a\nb", "\x1b[31m"])
def test_a_staged_photo_of_no_class_does_not_wait(tmp_path: Path, label: str) -> None:
    staged, pixels = Staged(tmp_path), np.zeros((3, 8, 8), np.uint8)
    staged.add([(Waiting("0" * 32, label, "x"), pixels), (Waiting("1" * 32, "cat", "y"), pixels)])
    assert [one.label for one in staged.waiting().values()] == ["cat"]


@pytest.mark.parametrize("version", [10**9, 10**300])
def test_a_version_beyond_nine_digits_is_damage(unfinished: Path, tmp_path: Path, cli: Cli, version: int) -> None:
    model = shutil.copytree(unfinished, tmp_path / "model")
    if not disk.exists(model):
        pytest.skip("there is no model yet")
    values, tensors = store.load(model, disk.NAME, dict[str, object])
    store.save(model, disk.NAME, values | {"version": version}, tensors)
    found = cli("info", model)
    assert found.code == 2
    assert "its version is above" in found.err


def test_a_model_without_a_number_left_stays_as_it_is(unfinished: Path, tmp_path: Path, cli: Cli) -> None:
    model = shutil.copytree(unfinished, tmp_path / "model")
    if not disk.exists(model):
        pytest.skip("there is no model yet")
    (model / disk.VERSIONS).mkdir(exist_ok=True)
    (model / disk.VERSIONS / "999999999.json").write_text("{}")
    found = cli("learn", model, "--device", "cpu")
    assert found.code == 2
    assert "no number left for another version" in found.err
    assert cli("info", model).code == 0


def test_a_version_that_cannot_be_opened_does_not_become_the_model(unfinished: Path, tmp_path: Path, cli: Cli) -> None:
    model = shutil.copytree(unfinished, tmp_path / "model")
    if not disk.exists(model):
        pytest.skip("there is no model yet")
    assert cli("learn", model, "--device", "cpu").code == 0
    values, tensors = store.load(model / disk.VERSIONS, "1", dict[str, object])
    store.save(model / disk.VERSIONS, "1", values, {key: value.flatten()[:1] for key, value in tensors.items()})
    found = cli("undo", model)
    assert found.code == 2
    assert "is damaged" in found.err
    assert disk.read(model).version == 2
    assert cli("info", model).code == 0
