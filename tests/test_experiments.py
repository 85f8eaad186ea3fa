"""The paper's tables and figures: what they take, what they show, and that the page in the docs is up to date."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from edbl import EdblError, records, run
from edbl.calibration import (
    BASE,
    BASE_HALF,
    CIFAR_10,
    DECIDED,
    EDBL,
    EPOCH,
    FASTER_BALANCE,
    FEW_OLD,
    FIRST_HEAVY,
    FORTY,
    QUESTIONS,
    RATIO,
    SLOWER,
    SLOWEST,
    SOFT,
    STRONG,
    TWO,
    experiment,
)
from edbl.experiments import EXPERIMENTS, Column, Experiment, Row, planned
from edbl.methods.balancing import Balancing
from edbl.recipe import Recipe
from edbl.report import paper
from edbl.report.tables import groups
from edbl.store import lock
from tests.conftest import Cli

ROOT = Path(__file__).parents[1]
DIGITS = Column(
    "digits, 2 phases",
    "digits-2",
    {
        "data.name": "digits",
        "preset": "quick",
        "stream.phases": 2,
        "net.backbone": "mlp",
        "schedule.epochs": 1,
        "schedule.milestones": (),
    },
)
ROWS = (
    Row("Baseline", "rkd", "cnn", ((0.5, 1.5),)),
    Row("Remix-NME", "remix", "nme", ((),), quoted=True),
    Row("Long", "rkd", "cnn", ((),), options={"options.temperature": 3.0}, tag="hot"),
)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_are_whole(name: str) -> None:
    experiment = EXPERIMENTS[name]
    runs = planned([experiment], [0, 1])
    assert len({run.folder for run in runs}) == len(runs)
    assert {run.recipe.seed for run in runs} == {0, 1}
    assert {run.recipe.method for run in runs} == {row.method for row in experiment.rows}
    assert all(run.recipe.preset == "default" for run in runs)
    if experiment.drawn == "table":
        for row in experiment.rows:
            assert len(row.printed) == len(experiment.columns)
            assert all(1 < number < 100 for cell in row.printed for number in cell)


def test_settings_are_the_papers() -> None:
    found = {run.folder: run.recipe for name in EXPERIMENTS for run in planned([EXPERIMENTS[name]], [0])}
    base0 = found["cifar100-base0-5-total2000/edbl-seed0"]
    assert (base0.memory, base0.stream.phases, base0.stream.order) == ("total=2000", 5, "1993")
    assert found["cifar10-base0-5-total200/edbl-seed0"].stream.order == "natural"
    assert found["tiny-imagenet-base-half-10-per_class20/edbl-seed0"].memory == "per_class=20"
    assert found["cifar100-base0-5-total200/icarl-seed0"].memory == "total=200"
    assert found["cifar10-base0-5-total200/iib-kd-alpha-0.001-seed0"].values()["options.alpha"] == 1e-3
    long = found["cifar100-base0-5-total2000/rkd-240-epochs-seed0"]
    options = base0.options
    assert isinstance(options, Balancing.Config)
    assert long.schedule.epochs == 240 > base0.schedule.epochs + options.balance.epochs
    assert long.first == base0.first


def test_questions_of_the_calibration() -> None:
    runs = {run.folder: run.recipe for run in planned(paper.find("calibration"), [0])}
    assert all(recipe.data.holdout == 0.1 for recipe in runs.values()), "never on test images"
    assert runs["calibration/edbl-weight_decay-0.002-seed0"].optim.weight_decay == 2e-3
    assert "calibration/edbl-base-seed0" in runs
    for name in runs:
        assert re.fullmatch(r"calibration/[\w.-]+", name)
    for question in QUESTIONS:
        start = {**BASE, **(EDBL if question.method == "edbl" else {}), **question.start}
        found = planned([experiment(question)], [0])
        for values, plan in zip(question.answers.values(), found, strict=True):
            assert sum(start.get(key) != value for key, value in values.items()) <= 4, plan.folder
            told = {**start, **values}
            assert {key: plan.recipe.values()[key] for key in told} == told
    with pytest.raises(EdblError, match="did you mean 'calibration'"):
        paper.find("calibratio")


@pytest.mark.parametrize("preset", ["default", "aligned"])
@pytest.mark.parametrize(
    ("data", "settings", "decided"),
    [
        ("cifar100", {}, {}),
        ("cifar100", {"memory": "total=1000"}, {**FEW_OLD, **SLOWER}),
        ("cifar100", {"memory": "total=500"}, {**FEW_OLD, **SLOWER}),
        ("cifar100", {"stream.protocol": "base-half"}, {**BASE_HALF, **RATIO, **SLOWEST}),
        ("cifar10", {"memory": "total=200"}, FEW_OLD),
        ("cifar10", {"stream.protocol": "base-half"}, {**BASE_HALF, **RATIO, **SLOWEST, **FEW_OLD}),
    ],
)
def test_preset_default_is_what_calibration_decided(
    data: str, preset: str, settings: dict[str, object], decided: Mapping[str, object]
) -> None:
    wanted = {**BASE, **EDBL, **DECIDED, **settings, **decided, "data.name": data, "data.holdout": 0.0}
    recipe = Recipe.build("edbl", data, preset=preset, order="1993", **settings).values()
    assert {key: recipe[key] for key in wanted} == wanted


def test_preset_default_is_what_calibration_decided_for_two_phases() -> None:
    asked = {**DECIDED, **CIFAR_10, **FEW_OLD, **TWO, **SLOWEST, **STRONG, **SOFT}
    chosen = {**EPOCH, **FIRST_HEAVY, **FASTER_BALANCE, **FORTY}
    milestones = {"schedule.milestones": (16, 27, 35)}  # a cosine does not ask for them
    wanted = {**BASE, **EDBL, **asked, **chosen, **milestones, "data.holdout": 0.0}
    recipe = Recipe.build("edbl", "cifar10", phases=2, memory="total=200").values()
    assert {key: recipe[key] for key in wanted} == wanted


def test_records_are_of_the_runs_that_are_planned() -> None:
    found = [*EXPERIMENTS.values(), *paper.find("calibration")]
    plans = {run.folder: run.recipe for run in planned(found, range(3))}
    results = ROOT / "results"
    kept = [path for pattern in ("calibration", "cifar*") for path in results.glob(f"{pattern}/*/recipe.toml")]
    assert kept
    for path in kept:
        assert Recipe.read(path) == plans[str(path.parent.relative_to(results))], path


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
def test_seeds_of_a_method_are_one_curve_though_options_came_between_them(name: str) -> None:
    experiment = EXPERIMENTS[name]
    several = 0
    for column in experiment.columns:
        for row in {row.method: row for row in experiment.rows}.values():
            runs = paper.found(ROOT / "results", column, row)
            assert len(groups(runs)) == bool(runs)
            several += len(runs) > 1
    assert several


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        "tiny": Experiment("tiny", "Tiny table", "phases", (DIGITS,), ROWS),
        "curve": Experiment("curve", "Curves", "phases", (DIGITS,), ROWS[:1], "curves"),
        "map": Experiment("map", "Maps", "last", (DIGITS,), (replace(ROWS[0], printed=((1.0,), (2.0,))),), "tsne"),
    }
    monkeypatch.setattr("edbl.experiments.EXPERIMENTS", made)
    monkeypatch.setattr("edbl.report.paper.EXPERIMENTS", made)


@pytest.mark.usefixtures("tiny")
def test_figures_stay_until_the_page_is_made(tmp_path: Path) -> None:
    broken = tmp_path / "results" / "digits-2" / "rkd-seed0" / "record.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    figures = tmp_path / "figures"
    figures.mkdir()
    for name in ("curve-of-before.svg", "fig1-of-a-user.svg"):
        (figures / name).touch()
    with pytest.raises(EdblError, match="not valid JSON"):
        paper.page(tmp_path / "results", figures)
    assert len(list(figures.iterdir())) == 2
    broken.unlink()
    paper.page(tmp_path / "results", figures)
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
    assert "(our reading)" in second.out
    folder, (plan, *_) = tmp_path / "results" / "digits-2" / "rkd-seed0", planned(paper.find("tiny"), [0])
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(text.replace("kd_growth = 0.0\n", ""))  # older than that option
    assert paper.is_kept(folder, plan.recipe)
    assert not paper.is_kept(folder, Recipe.of(plan.recipe.values(), {"options.kd_growth": 0.5}))
    assert [found.seed for found in paper.found(tmp_path / "results", DIGITS, ROWS[0])] == [0, 1]
    records.write(replace(records.read(folder), status="running"), folder)
    assert not paper.is_kept(folder, plan.recipe)
    assert [found.seed for found in paper.found(tmp_path / "results", DIGITS, ROWS[0])] == [1]


def test_what_is_kept_counts_once_all_of_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ROOT / "results" / "cifar10-four" / "edbl-seed0"
    write = Mock()
    monkeypatch.setattr("edbl.report.paper.write_atomic", write)
    paper.keep(kept, tmp_path / "results", EXPERIMENTS["table3"])
    written = [call.args[0].name for call in write.call_args_list]
    assert len(written) > 1
    assert written.index("record.json") == len(written) - 1


@pytest.mark.usefixtures("tiny")
def test_beginning_anew_loses_nothing_that_cannot_be_begun(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = ["--runs", tmp_path / "runs", "--results", tmp_path / "results", "--at-once", 1]
    begun = tmp_path / "runs" / "digits-2" / "rkd-seed0"
    run(planned(paper.find("curve"), [0])[0].recipe, begun)
    with lock(begun):
        locked = cli("reproduce", "curve", "--no-resume", *places)
    assert (locked.code, "another process is working" in locked.err) == (2, True)

    def missing(*_: object, **__: object) -> None:
        raise EdblError("no such data")

    with monkeypatch.context() as patch:
        patch.setattr("edbl.data.datasets.load", missing)
        assert cli("reproduce", "curve", "--no-resume", *places).code == 2
    assert records.read(begun).status == "done"
    before = records.read(begun).started
    assert cli("reproduce", "curve", "--no-resume", *places).code == 0
    assert records.read(begun).started >= before


def test_a_readme_that_is_no_text(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "readme").write_bytes(b"\xe4")
    (tmp_path / "results").mkdir()
    done = cli(
        "results", "--results", tmp_path / "results", "--out", tmp_path / "p.md", "--readme", tmp_path / "readme"
    )
    assert (done.code, "is not UTF-8" in done.err) == (2, True)
    assert not (tmp_path / "p.md").exists()


@pytest.mark.usefixtures("tiny")
def test_a_page_with_tables_curves_and_maps(cli: Cli, tmp_path: Path) -> None:
    places = ["--runs", tmp_path / "runs", "--results", tmp_path / "results"]
    (tmp_path / "results").mkdir()
    assert "Not run yet." in paper.page(tmp_path / "results", tmp_path / "none")
    reproduced = cli("reproduce", "map", *places)
    assert reproduced.code == 0, reproduced.err
    assert f"figure: {tmp_path / 'runs' / 'map-rkd.svg'}" in reproduced.out
    assert (tmp_path / "runs" / "map-rkd.svg").is_file()
    assert "printed" not in reproduced.out
    done = cli("results", "--results", tmp_path / "results", "--out", tmp_path / "page.md")
    assert done.code == 0, done.err
    text = (tmp_path / "page.md").read_text()
    for name in ("curve-digits-2.svg", "map-rkd.svg"):
        assert f"(page/{name})" in text
        assert (tmp_path / "page" / name).read_text().startswith("<?xml")
    assert "| Baseline | " in text
    assert "`edbl run --recipe results/digits-2/rkd-seed0/recipe.toml` | - |" in text
    folder = tmp_path / "results" / "digits-2" / "rkd-seed0"
    records.write(replace(records.read(folder), notes=["one", "two"]), folder)
    noted = paper.page(tmp_path / "results", tmp_path / "page")
    assert "`edbl run --recipe results/digits-2/rkd-seed0/recipe.toml` | one; two |" in noted


@pytest.mark.usefixtures("tiny")
def test_a_record_of_another_recipe_does_not_count(cli: Cli, tmp_path: Path) -> None:
    places = ["--runs", tmp_path / "runs", "--results", tmp_path / "results"]
    assert cli("reproduce", "curve", *places).code == 0
    assert len(paper.found(tmp_path / "results", DIGITS, ROWS[0])) == 1
    other = Column(DIGITS.label, DIGITS.name, {**DIGITS.settings, "memory": "total=30"})
    assert paper.found(tmp_path / "results", other, ROWS[0]) == []


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


def test_the_table_of_a_readme_is_written_anew(cli: Cli, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    places = ["--results", tmp_path, "--out", tmp_path / "docs" / "page.md", "--readme", readme]
    readme.write_text(
        "Before.\n<!-- results -->\nold\n<!-- end of results -->\nAfter.\n"
        "<!-- ablation -->\nold\n<!-- end of ablation -->\nEnd.\n"
    )
    older = tmp_path / "docs" / "page" / "fig2-of-other-runs.svg"
    older.parent.mkdir(parents=True)
    older.touch()
    done = cli("results", *places)
    assert done.code == 0, done.err
    assert not older.exists()
    text = readme.read_text()
    assert text.startswith("Before.\n<!-- results -->\n| | EDBL, CNN |")
    assert "*50.0* |\n<!-- end of results -->\nAfter.\n<!-- ablation -->\n|  | CIFAR-10, 5 phases |" in text
    assert text.endswith("| Baseline, 240 epochs | - | - |\n<!-- end of ablation -->\nEnd.\n")
    mistyped = cli("results", *places, "--results", tmp_path / "resluts")
    assert mistyped.code == 2
    assert "there is no folder of results" in mistyped.err
    assert readme.read_text() == text
    readme.write_text("No marks.")
    refused = cli("results", "--readme", readme, "--out", tmp_path / "fresh" / "page.md")
    assert refused.code == 2
    assert "there is no place for the table" in refused.err
    assert readme.read_text() == "No marks."
    assert not (tmp_path / "fresh").exists()


@pytest.mark.usefixtures("tiny")
def test_a_page_of_the_users_is_not_overwritten(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "calibration.md").write_text("My notes.")
    words = ["results", "--results", tmp_path / "mine", "--out", tmp_path / "page.md"]
    done = cli(*words)
    assert (done.code, "calibration.md is not by `edbl results`" in done.err) == (2, True)
    assert (tmp_path / "calibration.md").read_text() == "My notes."
    assert not (tmp_path / "page.md").exists()
    (tmp_path / "calibration.md").unlink()
    for _ in range(2):
        assert cli(*words).code == 0


def test_the_page_of_results_is_up_to_date(tmp_path: Path) -> None:
    made = paper.page(ROOT / "results", tmp_path / "results")
    assert made == (ROOT / "docs" / "results.md").read_text(), "run `edbl results --readme README.md`"
    readme = (ROOT / "README.md").read_text()
    assert paper.with_tables(readme, ROOT / "results") == readme, "run `edbl results --readme README.md`"
    assert paper.calibration_page(ROOT / "results") == (ROOT / "docs" / "calibration.md").read_text()
    assert {p.name for p in (tmp_path / "results").iterdir()} == {p.name for p in (ROOT / "docs/results").glob("*")}
