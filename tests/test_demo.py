"""`edbl demo photos` and `edbl data example`: what they print is what happened."""

import re
from pathlib import Path

import pytest
from PIL import Image

from edbl.data import example
from edbl.errors import EdblError
from edbl.nets import pretrained
from tests.conftest import Cli


def test_a_model_is_taught_asked_and_corrected(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "default", lambda: None)  # the small network, which trains for seconds
    done = cli("demo", "photos", "--out", tmp_path / "demo")
    assert done.code == 0, done
    assert "the model has zero, one, two, three" in done.out
    assert "Asking 10 photos of three, which it was not taught: 0 of 10 right" in done.out
    again = re.search(r"Asking the photos of three again: (\d+) of 10 right", done.out)
    assert again
    assert int(again[1]) >= 5
    assert f"edbl predict {tmp_path / 'demo' / 'model'}" in done.out


def test_photos_to_try_things_with(cli: Cli, tmp_path: Path) -> None:
    done = cli("data", "example", tmp_path / "photos", "--classes", 3, "--photos", 5)
    assert done.out == f"{tmp_path / 'photos'}: 15 photos of 3 classes\n"
    files = sorted((tmp_path / "photos").rglob("*.png"))
    assert {file.parent.name for file in files} == {"zero", "one", "two"}
    for file in files:
        with Image.open(file) as image:
            assert image.size == (64, 64)
    later = example.photos(tmp_path / "later", classes=3, each=5, first=5)
    assert not {file.name for file in files} & {file.name for of in later.values() for file in of}


def test_more_photos_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(EdblError, match="there are 170 photos of each digit"):
        example.photos(tmp_path, each=100, first=100)
    with pytest.raises(EdblError, match="there are 10 classes"):
        example.photos(tmp_path, classes=11)
    (tmp_path / "file").touch()
    with pytest.raises(EdblError, match="cannot make the folder"):
        example.photos(tmp_path / "file", each=1)
