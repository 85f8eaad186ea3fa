"""The small scale: its runs are those of the protocol, no test image is seen too early, and what it concludes."""

import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from edbl import EdblError, losses
from edbl.methods.options import Balancing
from edbl.metrics import Difference
from edbl.recipe import Recipe
from edbl.studies import pages, small, small_page
from edbl.studies.paper import NO_INFLUENCE, Planned, planned, recipe_of
from edbl.studies.shelf import Run, Shelf, key
from edbl.studies.small_page import verdict
from edbl.studies.study import read
from tests.conftest import Cli
from tests.shelf import SHELF
from tests.test_methods_unit import a_batch, after_first_task, balance_loss, balancing, class_weights

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "studies" / "small" / "tuning.toml"
PROTOCOL = (ROOT / "studies" / "small" / "protocol.md").read_text()
ANY = dict.fromkeys(small.SYSTEMS, 0.1)


def new_runs() -> dict[str, list[Planned]]:
    """Return the runs of each table that no table before it has."""
    seen: set[str] = set()
    found = {}
    for table in small.tables(ANY):
        found[table.name] = [plan for plan in table.plans() if plan.folder not in seen]
        seen |= {plan.folder for plan in found[table.name]}
    return found


def test_the_tables_are_those_of_the_plan() -> None:
    runs = new_runs()
    assert {name: len(plans) for name, plans in runs.items()} == {
        "table3": 36,
        "table3-cifar10": 18,
        "table5": 16,
        "table2": 101,
        "table4": 84,
        "table1": 72,
    }
    every = [plan for plans in runs.values() for plan in plans]
    assert len({key(plan.recipe) for plan in every}) == len(every) == 327, "no two runs are the same"
    assert {plan.recipe.method for plan in every} == small.SYSTEMS.keys()
    assert f"{len(every)} runs" in PROTOCOL
    assert all(len(part) <= 60 for plan in every for part in plan.folder.split("/"))


def test_block_0_is_for_tuning_alone() -> None:
    tested = {plan.recipe.data.name for plans in new_runs().values() for plan in plans}
    assert tested == {f"cifar100-block{k}" for k in (1, 2, 3, 4)} | {f"cifar10-part{k}" for k in (0, 1, 2)}
    assert not any(plan.recipe.data.holdout for plans in new_runs().values() for plan in plans)
    tuned = planned(small.tuning(), [0])
    assert {(plan.recipe.data.name, plan.recipe.data.holdout) for plan in tuned} == {("cifar100-block0", 0.2)}


def test_every_system_has_the_same_rights() -> None:
    tuned = planned(small.tuning(), [0])
    assert Counter(plan.recipe.method for plan in tuned) == dict.fromkeys(small.SYSTEMS, 3)
    shared = ("schedule", "first", "optim", "data", "net", "evaluation", "memory", "stream")
    one = tuned[0].recipe
    for plan in tuned:
        values = {k: v for k, v in plan.recipe.values().items() if k.startswith(shared) and k != "schedule.lr"}
        assert values.items() <= one.values().items(), plan.folder
    text = [text for text in PROTOCOL.splitlines() if text.startswith("| `")]
    told = {line.split("`")[1]: line.split("`")[3] for line in text if line.count("`") == 4}
    assert told.keys() >= {"optim.batch", "schedule.epochs", "first.task_epochs", "options.balance.epochs"}
    edbl = Recipe.of(recipe_of(small.tables(ANY)[0].streams[0].columns[0], small.tables(ANY)[0].row("edbl")).values())
    for name, value in told.items():
        assert edbl.values()[name] == tomllib.loads(f"x = {value}")["x"], name


def test_no_value_comes_from_a_preset() -> None:
    for table in small.tables(ANY):
        for row in table.rows:
            given = {"method": row.method, "seed": 0, "preset": "default"}
            for stream in table.streams:
                origins = Recipe.origins({**given, **stream.columns[0].settings}, row.options)
                assert {origin for _, origin in origins.values()} <= {
                    "built in",
                    "given",
                    f"data set {stream.columns[0].settings['data.name']}",
                }


def test_the_study_of_the_rates_is_the_tuning() -> None:
    study = read(STUDY)
    assert planned(study.experiment, [0]) == planned(small.tuning(), [0])
    assert "best sum of CNN and NME" in study.rule
    assert "of equals the larger rate" in study.rule


def test_rates_are_what_the_tuning_chose() -> None:
    assert small.chosen(SHELF) == small.RATES
    assert bool(read(STUDY).decision) == bool(small.RATES)


def row(name: str) -> Recipe:
    table = small.tables(ANY)[0]
    return recipe_of(table.streams[0].columns[0], table.row(name))


def test_the_control_learns_from_as_many_images_as_edbl() -> None:
    longer, edbl = row("rkd-longer"), row("edbl")
    assert isinstance(edbl.options, Balancing)
    steps = (400 + 2000) // 128  # of an epoch, both for RKD and for EDBL
    mixed = 32 + 32 + (128 - round(128 * 400 / 2400))  # old with old, old with new, new with new
    images = steps * mixed * (edbl.schedule.epochs + edbl.options.balance.epochs)
    assert 1 <= steps * 128 * longer.schedule.epochs / images < 1.05


def test_as_printed_is_the_letter_of_the_paper() -> None:
    letter = Recipe.build("edbl", "cifar100", preset="paper", **{"stream.tasks": 5}).values()
    ours = row("edbl-as-printed").values()
    differ = {k for k, v in ours.items() if k.startswith("options.") and letter[k] != v}
    assert differ == {f"options.balance.{part}" for part in ("epochs", "milestones", "shape")}, "schedules are shared"


def test_without_influence_every_image_is_divided_by_the_same_number() -> None:
    features = torch.rand(500, 32) * 8  # L1 norms of 128: a trained net has 20, the largest is 34
    logits, teacher = torch.randn(500, 20) * 9, torch.randn(500, 16) * 9
    y = torch.eye(20)[torch.arange(500) % 20]
    factor = losses.incremental_influence(logits, y, teacher, features, alpha=5e-6, over="old")
    divisor = factor + float(str(NO_INFLUENCE["options.epsilon"]))
    assert (divisor.max() - divisor.min()) / divisor.min() < 1e-3
    own = {k.removeprefix("options."): v for k, v in NO_INFLUENCE.items()}
    method = balancing("iib-kd", **own)
    task = after_first_task(method, [3, 3], [9, 6])
    batch, weights = a_batch(task.seen), class_weights(method, method.draw(task), task)
    output = method.net(batch.x)
    assert method.teacher is not None
    old = method.teacher.answer(batch.x).logits
    mean_one = weights / weights.mean()
    expected = 2 * losses.weighted_cross_entropy(output.logits, batch.y, mean_one, "inside")
    expected = expected + losses.distillation(output.logits, old, 2.0, "t2")
    torch.testing.assert_close(balance_loss(method, batch, weights), expected.mean(), rtol=1e-3, atol=0)


def test_verdicts() -> None:
    above, open_, below = (Difference((mean - 0.1, mean, mean + 0.1)) for mean in (2.0, 0.05, -2.0))
    told = [verdict(difference, "higher") for difference in (above, open_, below)]
    assert told == ["confirmed", "cannot be told", "refuted"]
    assert [verdict(difference, "open") for difference in (above, below)] == ["higher", "lower"]


def test_contrasts_name_rows_of_their_table_and_stand_in_the_protocol() -> None:
    found = {table.name: table for table in small.tables(ANY)}
    for contrast in small.contrasts():
        labels = [found[contrast.table].row(name).label for name in (contrast.one, contrast.other)]
        assert len(set(labels)) == 2
    numbers = sum(4 * len(found[contrast.table].streams) for contrast in small.contrasts())
    assert f"{numbers} intervals" in PROTOCOL


class Told(Shelf):
    """A shelf with every run, whose accuracies are told by method and data set."""

    def __init__(self, accuracy: Mapping[tuple[str, str], float], without: str = "nothing") -> None:
        super().__init__(Path("nowhere"))
        self.accuracy, self.without = accuracy, without

    def of(self, recipe: Recipe) -> list[Run]:
        if recipe.data.name == self.without:
            return []
        value = self.accuracy.get((recipe.method, recipe.data.name), 0.5)
        average, last = ({"cnn": value + extra, "nme": value / 2 + extra} for extra in (0.0, -0.1))
        record = Mock(
            average_incremental_accuracy=average, accuracy={k: [v] for k, v in last.items()}, seed=recipe.seed
        )
        return [Run(Path("nowhere"), recipe, record)]


def test_what_is_complete_is_shown_and_what_is_not_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    gains = {("edbl", f"cifar100-block{k}"): 0.5 + 0.01 * (k + 1) for k in (1, 2, 3, 4)}  # 2 to 5 points
    monkeypatch.setattr(small, "RATES", ANY)
    shelf = Told(gains, without="cifar10-part2")
    text = small_page.page(shelf)
    assert "**Table 3: ablation, CIFAR-100**\n\n|  | CIFAR-100, 5 tasks |" in text
    assert "Table 3: ablation, CIFAR-10: 12 of 18 runs are there." in text
    assert "**Table 3: ablation, CIFAR-10**" not in text
    assert "| EDBL | 53.5 43.5 / 26.8 16.8 (4) |" in text
    text = small_page.differences(shelf)
    both = "**+3.5±2.1** **+3.5±2.1**<br>**+1.8±1.0** **+1.8±1.0**"
    assert f"| EDBL - Baseline | {both} |" in text
    assert f"| EDBL - IIB-KD | {both} |" in text
    none = "+0.0±0.0 +0.0±0.0<br>+0.0±0.0 +0.0±0.0"
    assert f"| Re-MKD - Baseline | {none} |" in text
    assert f"| EDBL as printed - EDBL | {none} |" in text
    assert f"| EDBL - iCaRL | {both} | {both} |" in text, "Table 1; Table 2 lacks runs"
    assert "*-3.5±2.1*" in small_page.differences(Told({k: 1 - v for k, v in gains.items()}))
    monkeypatch.setattr(small, "RATES", {})
    assert "Table 3: ablation, CIFAR-100: 0 of 36 runs are there." in small_page.page(Told(gains)), "no rates, no look"
    assert small_page.differences(Told(gains)) == "Not run yet."


def test_the_larger_of_equal_rates_is_chosen() -> None:
    assert small.chosen(Told({})) == dict.fromkeys(small.SYSTEMS, 0.1)
    assert small.chosen(Told({}, without="cifar100-block0")) == {}

    class Better(Told):
        def of(self, recipe: Recipe) -> list[Run]:
            better = recipe.method == "bic" and recipe.schedule.lr == 0.03
            return Told({(recipe.method, recipe.data.name): 0.6 if better else 0.5}).of(recipe)

    assert small.chosen(Better({})) == {**ANY, "bic": 0.03}


def test_the_page_has_a_place_for_it(tmp_path: Path) -> None:
    places = "".join(f"<!-- {name} -->\n<!-- end of {name} -->\n" for name in ("small", "small-tuning"))
    text = pages.filled(places, Shelf(tmp_path), tmp_path, tmp_path)
    assert "Table 2: Base-0: 0 of 108 runs are there." in text
    assert "<!-- small-tuning -->\nNot run yet." in text


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """Write a CIFAR-100 of ten training and four test images of each class, whose colour tells it."""
    place = tmp_path / "data" / "cifar-100-binary"
    place.mkdir(parents=True)
    colours = np.random.default_rng(0).integers(0, 256, (100, 3, 1), np.uint8)
    image = [b"\0" + bytes([k]) + np.repeat(colours[k], 1024, 1).tobytes() for k in range(100)]
    (place / "train.bin").write_bytes(b"".join(image) * 10)
    (place / "test.bin").write_bytes(b"".join(image) * 4)
    (place / "fine_label_names.txt").write_text("\n".join(f"class_{k}" for k in range(100)))
    return place.parent


def test_a_slice_of_it(cli: Cli, cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, tenth in (("FIRST", 6), ("LATER", 3), ("SECOND", 1)):
        monkeypatch.setattr(small, name, tenth)
    monkeypatch.setattr(small, "RATES", {})
    places = ["--runs", tmp_path / "runs", "--results", tmp_path / "results", "--data-dir", cifar, "--at-once", 1]
    early = cli("reproduce", "table3", "--scale", "small", *places)
    assert early.code == 2
    assert "run `edbl reproduce tuning --scale small` first" in early.err
    assert not (tmp_path / "runs").exists()
    tuned = cli("reproduce", "tuning", "--scale", "small", "--only", "rkd", *places)
    assert (tuned.code, "rkd, 0.03" in tuned.out) == (0, True), tuned.err
    assert "chosen" not in tuned.out, "not before all systems have had their runs"
    monkeypatch.setattr(small, "RATES", ANY)
    words = ["reproduce", "table3", "--scale", "small", "--only", "rkd,edbl", "--data", "cifar100-block1", *places]
    done = cli(*words)
    assert done.code == 0, done.err
    shelf = Shelf(tmp_path / "results")
    found = {run.folder.name: run for run in shelf.runs if run.recipe.data.name == "cifar100-block1"}
    assert found.keys() == {f"{name}-seed0" for name in ("rkd", "rkd-longer", "edbl", "edbl-as-printed")}
    assert all(run.record.task_sizes == [4] * 5 for run in found.values())
    assert found["edbl-seed0"].record.average_incremental_accuracy["cnn"] > 0.3, "colours are easy"
    assert "done" not in cli(*words).out, "what is there is not run again"
    assert "Table 3: ablation, CIFAR-100: 4 of 36 runs are there." in small_page.page(shelf)


def test_an_unknown_table(cli: Cli) -> None:
    done = cli("reproduce", "fig2", "--scale", "small")
    assert (done.code, "unknown table at small scale 'fig2'" in done.err) == (2, True)


def test_systems_that_the_paper_does_not_compare_with_come_last_and_by_the_same_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert list(small.experiments())[-2:] == [small.OTHERS_TUNING, "others"]
    tuned = planned(small.find(small.OTHERS_TUNING), [0])
    assert Counter(plan.recipe.method for plan in tuned) == dict.fromkeys(small.OTHERS, 3)
    assert {(plan.recipe.data.name, plan.recipe.data.holdout) for plan in tuned} == {("cifar100-block0", 0.2)}
    assert small.chosen(Told({}), small.OTHERS) == dict.fromkeys(small.OTHERS, 0.1)
    assert small.chosen(SHELF, small.OTHERS) == small.OTHERS_RATES
    monkeypatch.setattr(small, "OTHERS_RATES", {})
    with pytest.raises(EdblError, match="no rates are chosen"):
        small.find("others")
    monkeypatch.setattr(small, "OTHERS_RATES", dict.fromkeys(small.OTHERS, 0.03))
    runs = planned(small.find("others"), [0])
    assert len({key(plan.recipe) for plan in runs}) == len(runs) == 48
    assert {plan.recipe.method for plan in runs} == {*small.OTHERS, *small.ANALYTIC}
    assert not {plan.folder for plan in runs} & {plan.folder for plans in new_runs().values() for plan in plans}
    assert all(plan.recipe.schedule.lr == (0.03 if plan.recipe.method in small.OTHERS else 0.1) for plan in runs)
    shared = small.settings().keys() - {"preset", "by_rule"}
    assert all(plan.recipe.values()[k] == small.settings()[k] for plan in runs for k in shared - {"schedule.lr"})
    assert "(`others`, 48)" in PROTOCOL
    assert "`others-tuning`, 9 runs" in PROTOCOL
