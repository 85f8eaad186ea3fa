"""Where a run may start: in a folder that is not there, or that holds nothing of worth; and how it goes."""

from pathlib import Path

import pytest

from edbl import EdblError, Recipe, run
from edbl.data import datasets
from edbl.engine.prepare import Prepared
from edbl.engine.progress import Progress
from edbl.store import lock
from tests.conftest import full_disk
from tests.crossings import Crossings


def recipe() -> Recipe:
    small = {"stream.tasks": 2, "net.backbone": "mlp", "optim.batch": 256}
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


TWICE = """
from edbl.methods.rkd import RKD

class Twice(RKD):
    name = "twice"

    def phases(self, task):
        for _ in range(2):
            yield self.main_phase(task, self.draw(task))
"""


def test_two_phases_of_one_name_would_draw_the_same(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(TWICE)
    small = {"net.backbone": "mlp", "schedule.epochs": 1}
    twice = Recipe.build(str(tmp_path / "twice.py"), data="digits", preset="quick", **small)
    with pytest.raises(EdblError, match="two phases of a task are named 'train'; give each a name of its own"):
        run(twice, tmp_path / "run")


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


def test_held_out_images_stand_in_for_the_test_images(tmp_path: Path) -> None:
    small: dict[str, object] = {"schedule.epochs": 1, "net.backbone": "mlp", "device": "cpu", "data.holdout": 0.2}
    made = [run(Recipe.build("finetune", "digits", preset="quick", seed=k, **small), tmp_path / f"{k}") for k in (0, 1)]
    train = datasets.load("digits", None).train
    for record in made:
        order = [record.classes.index(name) for name in map(str, range(10))]
        rows = record.confusions["cnn"][-1].sum(1)
        assert [int(rows[k]) for k in order] == [round(0.2 * int((train.y == k).sum())) for k in range(10)]
        assert any("held out, stand in for the test images" in note for note in record.notes)
    assert made[0].data_fingerprint != made[1].data_fingerprint


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.brightness", 0.5),
        ("data.cutout", 3),
        ("first.task_lr", 0.01),
        ("optim.weight_decay", 0.01),
        ("optim.nesterov", False),
        ("precision", "bf16"),
        ("net.backbone", "small"),
    ],
)
def test_what_a_recipe_says_reaches_training(key: str, value: object, tmp_path: Path) -> None:
    values: dict[str, object] = {"schedule.epochs": 2, "net.backbone": "mlp", "device": "cpu", "stream.tasks": 5}
    plain, other = (Recipe.build("finetune", "digits", preset="quick", **values | more) for more in ({}, {key: value}))
    assert run(plain, tmp_path / "plain").losses != run(other, tmp_path / "other").losses


def test_mirror_images_count_for_nearest_means(tmp_path: Path) -> None:
    values: dict[str, object] = {"schedule.epochs": 2, "net.backbone": "mlp", "device": "cpu", "stream.tasks": 5}
    found = []
    for flips in (False, True):
        recipe = Recipe.build("icarl", "digits", preset="quick", **values, **{"evaluation.nme_flips": flips})
        found.append(run(recipe, tmp_path / f"{flips}"))
    assert all((a == b).all() for a, b in zip(*(record.confusions["cnn"] for record in found), strict=True))
    assert not all((a == b).all() for a, b in zip(*(record.confusions["nme"] for record in found), strict=True))


class SecondTask(Progress):
    """Count crossings while the second task is learnt, from one message to the next."""

    def __init__(self) -> None:
        self.crossings = Crossings()

    def say(self, message: str) -> None:
        if "task 1/" in message:
            self.crossings.start()
        elif "task 2/" in message:
            self.crossings.stop()


def test_a_task_crosses_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader who follows a task of four steps, from its images to its checkpoint, turns the page so often.

    That a fresh learner is made for each task, from the checkpoint, is left out.
    """
    monkeypatch.setattr(Prepared, "go_on_afresh", lambda *_: None)
    short = {"net.backbone": "mlp", "optim.batch": 160, "schedule.epochs": 1, "options.balance.epochs": 1}
    second = SecondTask()
    try:
        run(Recipe.build("edbl", data="digits", preset="quick", **short), tmp_path / "run", progress=second)
    finally:
        second.crossings.stop()
    assert 100 < second.crossings.total <= 191
    assert len(second.crossings.files) <= 27
