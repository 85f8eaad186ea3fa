"""A finished run that is given again: its data are those that it was made of, as far as they are here."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from edbl import EdblError, users
from edbl.engine.run import resume, run
from edbl.recipe import Recipe
from tests.conftest import Cli, Finished
from tests.photos import write_digits

SHORT = {"data.name": "./photos", "data.image_size": 8, "preset": "quick", "net.backbone": "mlp", "schedule.epochs": 1,
         "stream.tasks": 2, "memory": "total=8", "device": "cpu"}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with photos, and a run of them."""
    place = tmp_path_factory.mktemp("made")
    write_digits(place / "photos", {1: 5, 2: 5, 3: 5, 4: 5})
    with contextlib.chdir(place):
        run(Recipe.of({"method": "finetune", **SHORT}), Path("run"))
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


def given(cli: Cli) -> Finished:
    """Give the command again that made the run."""
    values = {key: value for key, value in SHORT.items() if "." in key and key != "data.name"}
    told = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    words = ["run", "finetune", "--data", "./photos", "--preset", "quick", "--memory", "total=8", "--device", "cpu"]
    return cli(*words, *told, "--out", "run")


def turned(photos: Path) -> None:
    """Change the pixels of a photo."""
    path = min(photos.rglob("*.png"))
    with Image.open(path) as image:
        ImageOps.invert(image.convert("L")).save(path)


def damaged(photos: Path) -> None:
    """Make a photo one that cannot be read."""
    min(photos.rglob("*.png")).write_bytes(b"none")


CHANGED: dict[str, Callable[[Path], object]] = {
    "other pixels": turned,
    "a photo more": lambda p: shutil.copy(min(p.rglob("*1.png")), min(p.rglob("*1.png")).with_name("more.png")),
    "a photo less": lambda p: min(p.rglob("*.png")).unlink(),
    "a class more": lambda p: write_digits(p, {5: 5}),
    "a damaged photo": damaged,
}


@pytest.mark.parametrize("how", CHANGED)
def test_photos_that_have_changed_are_said(place: Path, cli: Cli, how: str) -> None:
    assert given(cli).code == 0
    CHANGED[how](place / "photos")
    record = (place / "run" / "record.json").read_bytes()
    for done in (given(cli), cli("resume", "run")):
        assert done.code == 2
        assert "the images of ./photos are not those of run run" in done.err
        assert "put those back, or use another folder" in done.err
        assert len(done.err.splitlines()) == 2
    assert ("cannot be used" in done.err) == (how == "a damaged photo")
    assert (place / "run" / "record.json").read_bytes() == record


def test_a_date_in_a_recipe_is_no_traceback(place: Path, cli: Cli) -> None:
    text = (place / "run" / "recipe.toml").read_text()
    (place / "run" / "recipe.toml").write_text(text.replace('memory = "total=8"', "memory = 1979-05-27"))
    done = cli("resume", "run")
    assert done.code == 2
    assert "is not the recipe of the record beside it" in done.err


def test_photos_that_are_not_here_are_not_missed(place: Path, cli: Cli) -> None:
    shutil.rmtree(place / "photos")
    assert cli("resume", "run").code == 0


def test_data_of_a_file_are_compared_where_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (
        "import numpy as np\n\n\ndef make():\n"
        "    x = np.load('x.npy')\n    return x, np.arange(20) % 4, x, np.arange(20) % 4\n"
    )
    (tmp_path / "own.py").write_text(text)
    np.save("x.npy", np.random.default_rng(0).random((20, 6), np.float32))
    values = {key: value for key, value in SHORT.items() if key != "data.image_size"}
    users.trust({"data": "own.py:make"})
    run(Recipe.of({"method": "finetune", **values, "data.name": "own.py:make"}), Path("run"))
    assert resume("run", data="own.py:make").status == "done"
    np.save("x.npy", np.zeros((20, 6), np.float32))
    with pytest.raises(EdblError, match=r"own\.py:make are not those of run run"):
        resume("run", data="own.py:make")
