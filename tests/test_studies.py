"""The paper's tables and figures: what they take, what they show, and that the page in the docs is up to date."""

import csv
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from edbl import EdblError, records, run
from edbl.methods.options import Balancing
from edbl.recipe import Recipe
from edbl.report.tables import completed, groups
from edbl.store import lock
from edbl.studies import pages
from edbl.studies.paper import EXPERIMENTS, Column, Experiment, Row, planned, recipe_of
from edbl.studies.shelf import Shelf, key
from edbl.studies.study import SHARED, read, read_all
from tests.conftest import Cli
from tests.shelf import SHELF

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DIGITS = Column(
    "digits, 2 tasks",
    "digits-2",
    {
        "data.name": "digits",
        "preset": "quick",
        "stream.tasks": 2,
        "net.backbone": "mlp",
        "schedule.epochs": 1,
        "schedule.milestones": (),
    },
)
ROWS = (
    Row("Baseline", "rkd", "cnn", ((0.5, 1.5),)),
    Row("Remix-NME", "remix", "nme", ((),), quoted=True),
    Row("Long", "rkd", "cnn", ((),), options={"options.temperature": 3.0}, name="rkd-hot"),
)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_are_whole(name: str) -> None:
    experiment = EXPERIMENTS[name]
    runs = planned(experiment, [0, 1])
    assert len({run.folder for run in runs}) == len(runs)
    assert {run.recipe.seed for run in runs} == {0, 1}
    assert {run.recipe.method for run in runs} == {row.method for row in experiment.rows}
    assert all(run.recipe.preset == "tuned" for run in runs)
    if experiment.drawn == "table":
        for row in experiment.rows:
            assert len(row.printed) == len(experiment.columns)
            assert all(1 < number < 100 for cell in row.printed for number in cell)


def test_settings_are_the_papers() -> None:
    found = {run.folder: run.recipe for name in EXPERIMENTS for run in planned(EXPERIMENTS[name], [0])}
    base0 = found["cifar100-base0-5-total2000/edbl-seed0"]
    assert (base0.memory, base0.stream.tasks, base0.stream.order) == ("total=2000", 5, "1993")
    assert found["cifar10-base0-5-total200/edbl-seed0"].stream.order == "natural"
    assert found["tiny-imagenet-base-half-10-per_class20/edbl-seed0"].memory == "per_class=20"
    assert found["cifar100-base0-5-total200/icarl-seed0"].memory == "total=200"
    assert found["cifar10-base0-5-total200/iib-kd-alpha-0.001-seed0"].values()["options.alpha"] == 1e-3
    long = found["cifar100-base0-5-total2000/rkd-240-epochs-seed0"]
    options = base0.options
    assert isinstance(options, Balancing)
    assert long.schedule.epochs == 240 > base0.schedule.epochs + options.balance.epochs
    assert long.first == base0.first


def test_studies_of_the_calibration_never_see_test_images() -> None:
    studies = read_all(ROOT / "studies" / "calibration")
    assert len(studies) == 30
    for study in studies:
        runs = planned(study.experiment, [0])
        assert all(run.recipe.data.holdout == 0.1 for run in runs)
        assert len({key(run.recipe) for run in runs}) == len(runs), "two candidates that are the same"
        assert all(run.folder.startswith(f"calibration/{study.name}/") for run in runs)
        assert study.decision


def test_a_study_may_ask_what_bf16_changes() -> None:
    runs = planned(read(ROOT / "studies" / "small" / "bf16.toml").experiment, range(3))
    assert [run.recipe.precision for run in runs[:4]] == ["fp32", "bf16"] * 2
    assert len({(key(run.recipe), run.recipe.seed) for run in runs}) == 12
    fp32 = runs[0].recipe
    assert key(replace(fp32, precision="auto")) == key(fp32) != key(replace(fp32, precision="bf16"))


STUDY = """
question = "Which temperature?"
method = "rkd"
include = ["quick"]
rule = "The best sum of both classifiers."
settings.seed = 3
[streams."digits, 2 tasks"]
data.name = "digits"
data.holdout = 0.2
stream.tasks = 2
[candidates."2, as usual"]
[candidates.4]
options.temperature = 4.0
[candidates.mixed]
method = "vanilla-mkd"
"""
QUICK = """
[quick]
preset = "quick"
net.backbone = "mlp"
schedule = {epochs = 1, milestones = []}
"""


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    file = tmp_path / "mine" / "temperature.toml"
    file.parent.mkdir()
    file.write_text(STUDY)
    file.with_name(SHARED).write_text(QUICK)
    return file


def test_a_study_runs_what_is_missing_and_shows_its_candidates(cli: Cli, tmp_path: Path, study_file: Path) -> None:
    study = read(study_file)
    runs = {plan.folder: plan.recipe for plan in planned(study.experiment, [0])}
    assert list(runs) == [f"mine/temperature/{name}-seed0" for name in ("2-as-usual", "4", "mixed")]
    assert [recipe.method for recipe in runs.values()] == ["rkd", "rkd", "vanilla-mkd"]
    assert runs["mine/temperature/4-seed0"].values()["options.temperature"] == 4.0
    words = ["study", study_file, "--runs", tmp_path / "runs", "--results", tmp_path / "results", "--at-once", 1]
    first = cli(*words)
    assert first.code == 0, first.err
    assert "rule: The best sum of both classifiers." in first.out
    accuracy = Shelf(tmp_path / "results").runs[0].record.average_incremental_accuracy
    assert f"{100 * accuracy['cnn']:.1f} {100 * accuracy['nme']:.1f} (1)" in first.out
    again = cli(*words)
    assert (again.code, "done" in again.out) == (0, False), "what is there is not run again"
    moved = tmp_path / "results" / "elsewhere"
    (tmp_path / "results" / "mine" / "temperature" / "4-seed0").rename(moved)
    assert "done" not in cli(*words).out, "and it is found wherever it lies"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('question = "Which temperature?"', "", "needs a question, at least one of"),
        ('question = "Which temperature?"', "question = 3", "question must be a text"),
        ("[candidates.4]", "[kandidates.4]", "unknown key in study"),
        ('include = ["quick"]', 'include = ["quikc"]', "did you mean 'quick'"),
        ('include = ["quick"]', 'include = "quick"', "include must be a list of names"),
        ("data.holdout = 0.2", "", "needs data.holdout above 0"),
        ("[candidates.4]", '[candidates."2 as usual"]', "tells its folder from others"),
        ("[candidates.mixed]", "[candidates]\nmixed = 3", "'mixed' must be a table"),
        ("[candidates.4]", "[candidates.4", "not valid TOML"),
        ("settings.seed = 3", "settings = 3", "settings must be a table"),
        ("options.temperature = 4.0", "options.temprature = 4.0", "did you mean"),
    ],
)
def test_mistakes_in_a_study_are_explained(old: str, new: str, message: str, cli: Cli, study_file: Path) -> None:
    assert old in STUDY
    study_file.write_text(STUDY.replace(old, new))
    done = cli("study", study_file, "--runs", study_file.parent, "--results", study_file.parent)
    assert done.code == 2
    assert message in done.err


def test_a_study_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    done = cli("study", tmp_path / "none.toml")
    assert (done.code, "cannot read study" in done.err) == (2, True)


def test_records_are_found_by_todays_recipes_of_their_cells() -> None:
    assert len(SHELF.runs) == len(list((ROOT / "results").rglob("record.json")))
    assert all(kept.record.seed == kept.recipe.seed for kept in SHELF.runs)
    cells = [
        one for e in EXPERIMENTS.values() for preset in ("tuned", "paper") for one in planned(e, [0, 1, 2], preset)
    ]
    there = [one for one in cells if (ROOT / "results" / one.folder / "record.json").is_file()]
    assert len(there) > 80
    for one in there:
        assert ROOT / "results" / one.folder in [kept.folder for kept in SHELF.of(one.recipe)], one.folder


def test_names_of_records_are_short() -> None:
    assert max(len(part) for path in (ROOT / "results").rglob("*") for part in path.relative_to(ROOT).parts) <= 60


def test_notes_on_shared_first_tasks_name_runs_that_are_there() -> None:
    named, results = 0, ROOT / "results"
    for kept in Shelf(results).runs:
        for note in kept.record.notes:
            _, shared, name = note.partition("shared with ")
            name = name.removeprefix("a run that was not kept").removeprefix("; ").split(" ")[0]
            if shared and name:
                # Runs of one table name each other, and those of the small scale leave its folder out.
                places = (kept.folder.parent / name, results / name, kept.folder.parents[1] / name)
                other = next(place for place in places if place.is_dir())
                assert other != kept.folder, note
                assert records.read(other).losses[0] == kept.record.losses[0], note
                named += 1
    assert named > 100


def test_a_run_never_takes_the_place_of_another(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    one, two = (ROOT / "results" / "cifar10-base0-5-total200" / name for name in ("rkd-seed0", "rkd-seed1"))
    assert shelf.keep(one, "cell/rkd") == tmp_path / "cell" / "rkd"
    assert shelf.keep(one, "cell/rkd") == tmp_path / "cell" / "rkd"
    assert shelf.keep(two, "cell/rkd") == tmp_path / "cell" / "rkd-2"
    assert [run.record.seed for run in shelf.of(Recipe.read(one / "recipe.toml"))] == [0, 1]


def test_records_before_and_after_a_setting_went_are_of_one_cell(tmp_path: Path) -> None:
    shelf, results = Shelf(tmp_path), ROOT / "results" / "cifar10-base0-5-total200"
    for name in ("rkd-seed0", "rkd-seed1"):
        shelf.keep(results / name, name)
    before, after = tmp_path / "rkd-seed0", tmp_path / "rkd-seed1"
    text, made = (after / "recipe.toml").read_text(), records.read(after)
    assert "\nsteps = 0\n" in (before / "recipe.toml").read_text()
    assert records.read(before).recipe["optim.steps"] == 0
    (after / "recipe.toml").write_text(text.replace("\nsteps = 0\n", "\n"))
    records.write(replace(made, recipe={k: v for k, v in made.recipe.items() if k != "optim.steps"}), after)
    recipe = Recipe.read(after / "recipe.toml")
    assert "optim.steps" not in recipe.values()
    assert [run.folder for run in Shelf(tmp_path).of(recipe)] == [before, after]
    (group,) = groups(completed([run.record for run in Shelf(tmp_path).runs]))
    assert sorted(record.seed for record in group.records) == [0, 1]


def test_neighbours_of_another_task() -> None:
    angles = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 3.0])
    features = np.stack([np.cos(angles), np.sin(angles)], 1) * np.arange(1, 13)[:, None]
    labels = np.array([0] * 6 + [1] * 6)
    near = np.argsort(np.abs(angles[:, None] - angles), axis=1)[:, 1:11]
    expected = (labels[near] != labels[:, None]).mean()
    assert pages.foreign_neighbours(features, labels, [1, 1]) == pytest.approx(expected)


def test_printed_numbers() -> None:
    """A few cells against the paper's text, of each table."""
    table = {name: {row.label: row.printed for row in EXPERIMENTS[name].rows} for name in EXPERIMENTS}
    assert table["table1"]["BiC*"] == ((59.36,), (54.2,), (), ())
    assert table["table1"]["EDBL-NME"] == ((66.65,), (64.73,), (50.99,), (49.97,))
    assert table["table2"]["PODNet-CNN"] == ((), (76.27,), (), (66.72,), (57.88,))
    assert table["table3"]["+ Re-MKD"][1] == pytest.approx((86.24, 76.1, 57.44, 58.82, 56.29))
    assert table["table4"]["SSIL-NME"] == ((), (49.84,), (52.17,), (53.71,))
    assert table["table5"]["alpha = 1e-05, CNN"] == ((63.09,), (50.18,))
    assert table["table5"]["alpha = 0, NME"] == ((64.24,), (50.15,))


@pytest.mark.parametrize("name", ["fig2", "fig4"])
def test_seeds_of_a_method_are_one_curve(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Mock()
    monkeypatch.setattr("edbl.report.plots.save_curves", drawn)
    titles = pages.figure(EXPERIMENTS[name], SHELF, tmp_path)
    assert len(titles) == drawn.call_count > 0
    for call in drawn.call_args_list:
        methods = [group.first.method for group in call.args[0]]
        assert len(methods) == len(set(methods)), "an option that came between two seeds does not part them"
    assert ["(EDBL only" in title for title in titles] == [
        [group.first.method for group in call.args[0]] == ["edbl"] for call in drawn.call_args_list
    ]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        "tiny": Experiment("tiny", "Tiny table", "phases", (DIGITS,), ROWS),
        "curve": Experiment("curve", "Curves", "phases", (DIGITS,), ROWS[:1], "curves"),
        "map": Experiment("map", "Maps", "last", (DIGITS,), (replace(ROWS[0], printed=((1.0,), (2.0,))),), "tsne"),
    }
    monkeypatch.setattr("edbl.studies.pages.EXPERIMENTS", made)


def seeds_of(results: Path, column: Column, row: Row) -> list[int]:
    return [run.record.seed for run in Shelf(results).of(recipe_of(column, row))]


@pytest.mark.usefixtures("tiny")
def test_figures_stay_until_the_page_is_made(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results"
    broken = results / "digits-2" / "rkd-seed0" / "record.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    broken.with_name("recipe.toml").write_text(recipe_of(DIGITS, ROWS[0]).toml())
    figures = tmp_path / "page"
    figures.mkdir()
    for name in ("curve-of-before.svg", "fig1-of-a-user.svg"):
        (figures / name).touch()
    with pytest.raises(EdblError, match="not valid JSON"):
        pages.write_all([page], results, None)
    assert len(list(figures.iterdir())) == 2
    broken.unlink()
    pages.write_all([page], results, None)
    assert [figure.name for figure in figures.iterdir()] == ["fig1-of-a-user.svg"]


@pytest.mark.usefixtures("tiny")
def test_reproduce_runs_what_is_missing_and_shows_it_beside_what_was_printed(cli: Cli, tmp_path: Path) -> None:
    places = ["--runs", tmp_path / "runs", "--results", tmp_path / "results", "--at-once", 1]
    first = cli("reproduce", "tiny", "--only", "rkd", "--seeds", 2, *places)
    assert first.code == 0, first.err
    kept = sorted(str(p.parent.relative_to(tmp_path / "results")) for p in (tmp_path / "results").rglob("record.json"))
    assert kept == [f"digits-2/rkd{option}-seed{seed}" for option in ("-hot", "") for seed in (0, 1)]
    plain = [records.read(tmp_path / "results" / name).accuracy["cnn"] for name in kept[2:]]
    means = [f"{50 * (one + two):.1f}±" for one, two in zip(*plain, strict=True)]
    assert " 0.5 1.5" in first.out
    assert "ours, then printed" in first.out
    assert "Remix-NME (quoted)" in first.out
    assert all(mean in first.out for mean in means)
    second = cli("reproduce", "tiny", *places)
    assert second.code == 0, second.err
    assert "remix-seed0: done" in second.out
    assert "rkd-seed0: done" not in second.out, "what is there is not run again"
    assert "(reconstructed)" in second.out
    folder, (plan, *_) = tmp_path / "results" / "digits-2" / "rkd-seed0", planned(pages.find("tiny"), [0])
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(text.replace("kd_growth = 0.0\n", ""))  # older than that option
    results = tmp_path / "results"
    assert Shelf(results).has(plan.recipe)
    assert not Shelf(results).has(Recipe.of(plan.recipe.values(), {"options.kd_growth": 0.5}))
    assert seeds_of(results, DIGITS, ROWS[0]) == [0, 1]
    records.write(replace(records.read(folder), status="running"), folder)
    assert not Shelf(results).has(plan.recipe)
    assert seeds_of(results, DIGITS, ROWS[0]) == [1]


def test_what_is_kept_counts_once_all_of_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ROOT / "results" / "cifar10-four" / "edbl-seed0"
    write = Mock()
    monkeypatch.setattr("edbl.studies.shelf.write_atomic", write)
    Shelf(tmp_path / "results").keep(kept, "cell/edbl")
    written = [call.args[0].name for call in write.call_args_list]
    assert len(written) > 1
    assert written.index("record.json") == len(written) - 1


@pytest.mark.usefixtures("tiny")
def test_beginning_anew_loses_nothing_that_cannot_be_begun(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = ["--runs", tmp_path / "runs", "--results", tmp_path / "results", "--at-once", 1]
    begun = tmp_path / "runs" / "digits-2" / "rkd-seed0"
    run(planned(pages.find("curve"), [0])[0].recipe, begun)
    with lock(begun):
        locked = cli("reproduce", "curve", "--no-resume", *places)
    assert (locked.code, "another process is working" in locked.err) == (75, True)

    def missing(*_: object, **__: object) -> None:
        raise EdblError("no such data")

    with monkeypatch.context() as patch:
        patch.setattr("edbl.data.datasets.load", missing)
        assert cli("reproduce", "curve", "--no-resume", *places).code == 2
    assert records.read(begun).status == "done"
    before = records.read(begun).started
    assert cli("reproduce", "curve", "--no-resume", *places).code == 0
    assert records.read(begun).started >= before


def test_a_page_that_is_no_text(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "readme.md").write_bytes(b"\xe4")
    (tmp_path / "results").mkdir()
    done = cli("results", tmp_path / "p.md", tmp_path / "readme.md", "--results", tmp_path / "results")
    assert (done.code, "is not UTF-8" in done.err) == (2, True)
    assert not (tmp_path / "p.md").exists()


@pytest.mark.usefixtures("tiny")
def test_a_page_with_tables_curves_and_maps(cli: Cli, tmp_path: Path) -> None:
    places = ["--runs", tmp_path / "runs", "--results", tmp_path / "results"]
    (tmp_path / "results").mkdir()
    assert cli("results", tmp_path / "empty.md", "--results", tmp_path / "results").code == 0
    assert "Not run yet." in (tmp_path / "empty.md").read_text()
    reproduced = cli("reproduce", "map", *places)
    assert reproduced.code == 0, reproduced.err
    assert f"figure: {tmp_path / 'runs' / 'map-rkd.svg'}" in reproduced.out
    assert (tmp_path / "runs" / "map-rkd.svg").is_file()
    assert "printed" not in reproduced.out
    done = cli("results", tmp_path / "page.md", "--results", tmp_path / "results")
    assert done.code == 0, done.err
    text = (tmp_path / "page.md").read_text()
    for name in ("curve-digits-2.svg", "map-rkd.svg"):
        assert f"(page/{name})" in text
        assert (tmp_path / "page" / name).read_text().startswith("<?xml")
    assert re.search(r"\| rkd: [\d.]+% of the 10 nearest neighbours are of the other task \|", text)
    assert "| Baseline | " in text
    folder = tmp_path / "results" / "digits-2" / "rkd-seed0"
    records.write(replace(records.read(folder), notes=["one", "two, too"]), folder)
    assert cli("results", tmp_path / "page.md", "--results", tmp_path / "results").code == 0
    heads, line = csv.reader((tmp_path / "results" / "runs.csv").read_text().splitlines())
    listed, record = dict(zip(heads, line, strict=True)), records.read(folder)
    assert (listed["folder"], listed["notes"]) == ("digits-2/rkd-seed0", "one; two, too")
    assert listed["average nme"] == f"{100 * record.average_incremental_accuracy['nme']:.2f}"
    assert listed["last cnn"] == f"{100 * record.accuracy['cnn'][-1]:.2f}"


@pytest.mark.usefixtures("tiny")
def test_a_record_of_another_recipe_does_not_count(cli: Cli, tmp_path: Path) -> None:
    places = ["--runs", tmp_path / "runs", "--results", tmp_path / "results"]
    assert cli("reproduce", "curve", *places).code == 0
    assert seeds_of(tmp_path / "results", DIGITS, ROWS[0]) == [0]
    other = Column(DIGITS.label, DIGITS.name, {**DIGITS.settings, "memory": "total=30"})
    assert seeds_of(tmp_path / "results", other, ROWS[0]) == []


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table9"], "unknown table or figure 'table9'"),
        (["tiny", "--only", "rkd,lwf"], "unknown method in tiny 'lwf'"),
        (["tiny", "--only", "rkd,"], "unknown method in tiny ''"),
        (["tiny", "--only", ""], "unknown method in tiny ''"),
        (["tiny", "--data", "cifar10"], "tiny has nothing on cifar10"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], message: str, cli: Cli, tmp_path: Path) -> None:
    done = cli("reproduce", *arguments, "--runs", tmp_path / "runs", "--results", tmp_path / "results")
    assert done.code == 2
    assert message in done.err


def test_tables_between_marks_are_written_anew(cli: Cli, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(
        "Before.\n<!-- results -->\nold\n<!-- end of results -->\nAfter.\n"
        "<!-- ablation -->\nold\n<!-- end of ablation -->\nEnd.\n"
    )
    older = tmp_path / "README" / "fig2-of-other-runs.svg"
    older.parent.mkdir(parents=True)
    older.touch()
    done = cli("results", readme, "--results", tmp_path)
    assert done.code == 0, done.err
    assert not older.exists()
    text = readme.read_text()
    assert text.startswith("Before.\n<!-- results -->\n|  | paper | as printed | the rule |")
    assert (
        "| *53.8 50.0* | - | - | - | - | 0 |\n<!-- end of results -->\nAfter.\n<!-- ablation -->\n|  | CIFAR-10: CNN"
        in text
    )
    assert text.endswith("| - |\n<!-- end of ablation -->\nEnd.\n")
    mistyped = cli("results", readme, "--results", tmp_path / "resluts")
    assert mistyped.code == 2
    assert "there is no folder of results" in mistyped.err
    assert readme.read_text() == text
    readme.write_text("No marks.")
    refused = cli("results", tmp_path / "page.md", readme, "--results", tmp_path)
    assert refused.code == 2
    assert "has no place for a table" in refused.err
    assert readme.read_text() == "No marks."
    assert not (tmp_path / "page.md").exists()


@pytest.mark.usefixtures("tiny")
def test_a_page_of_the_users_is_not_overwritten(cli: Cli, tmp_path: Path, study_file: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "mine.md").write_text("My notes.")
    words = ["results", tmp_path / "page.md", "--results", tmp_path / "results", "--studies", study_file.parent]
    done = cli(*words)
    assert (done.code, "mine.md is not by `edbl results`" in done.err) == (2, True)
    assert (tmp_path / "mine.md").read_text() == "My notes."
    assert not (tmp_path / "page.md").exists()
    (tmp_path / "mine.md").unlink()
    for _ in range(2):
        assert cli(*words).code == 0
    made = (tmp_path / "mine.md").read_text()
    assert "## Which temperature?\n\nThe rule, set before the runs: The best sum" in made
    assert "| 2, as usual | - |" in made
    assert "Not decided yet." in made


def test_the_pages_of_results_are_up_to_date(tmp_path: Path) -> None:
    again = "run `edbl results docs/results.md README.md docs/methods/README.md --studies studies/calibration`"
    shelf, folder = SHELF, tmp_path / "docs" / "results"
    for name in ("docs/results.md", "README.md", "docs/methods/README.md"):
        text = (ROOT / name).read_text()
        assert pages.filled(text, shelf, folder, tmp_path / "docs") == text, again
    assert pages.studies_page(read_all(ROOT / "studies/calibration"), shelf) == (DOCS / "calibration.md").read_text()
    assert pages.index(shelf) == (ROOT / "results" / "runs.csv").read_text(), again
    assert {path.name for path in folder.iterdir()} == {path.name for path in (DOCS / "results").glob("*")}
