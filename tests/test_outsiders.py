"""What somebody else has put into a folder that is served, or into one that is very deep."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from edbl import EdblError, store
from edbl.app import bundle as disk
from edbl.nets import pretrained
from edbl.report.runs import read_runs
from edbl.serve.run import Server, Wanted
from edbl.studies.shelf import Shelf
from tests.conftest import Cli
from tests.photos import write_digits
from tests.serving import Stand, lesson, png, served
from tests.test_serve import NEW, TRAINED, M


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "find", lambda name: Stand())


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
    left = tmp_path / "temporary" / f"{store.SCRATCH}left"
    left.mkdir(parents=True)
    (left / store.LOCK).touch()
    (left / "model.onnx").write_bytes(b"secret")
    with served(tmp_path / "m", **NEW) as call:
        assert call.form(f"{M}/teach?yes=true", *lesson({0: 3, 1: 3})).json["learnt"] == 6
        assert call("GET", f"{M}/export").status == 200
    assert list((tmp_path / "temporary").glob("edbl-*")) == []
