"""Where a run may start: in a folder that is not there, or that holds nothing of worth."""

from pathlib import Path

import pytest

from edbl import EdblError, Recipe, run
from edbl.files import lock
from tests.conftest import full_disk


def recipe() -> Recipe:
    small = {"stream.phases": 2, "net.backbone": "mlp", "optim.steps": 2}
    return Recipe.build("finetune", data="digits", preset="quick", **small)


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_run_that_ended_before_its_record_begins_anew(written: int, tmp_path: Path) -> None:
    with full_disk(after=written), pytest.raises(EdblError, match="No space left"):
        run(recipe(), tmp_path)
    names = {".lock", "recipe.toml", "confusions.npz"}
    assert {path.name for path in tmp_path.iterdir()} <= names
    (tmp_path / f".record.json.{'0' * 32}.tmp").touch()
    assert run(recipe(), tmp_path).status == "done"
    assert not list(tmp_path.glob(".*.tmp"))


def test_another_process_that_is_about_to_write_its_record_is_not_disturbed(tmp_path: Path) -> None:
    with lock(tmp_path), pytest.raises(EdblError, match="another process is working"):
        run(recipe(), tmp_path)


@pytest.mark.parametrize("names", [["recipe.toml"], [".lock", "notes.txt"], [".lock", "recipe.toml", "record.json"]])
def test_what_others_put_there_stays(names: list[str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_text("mine")
    with pytest.raises(EdblError, match="exists already"):
        run(recipe(), tmp_path)
    assert [(tmp_path / name).read_text() for name in names] == ["mine"] * len(names)
