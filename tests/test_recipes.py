"""The recipes that come with the package: each is a column of the paper, and what `edbl reproduce` runs."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from edbl.recipe import Recipe, find_recipe, shipped_recipes
from edbl.studies.paper import EXPERIMENTS, Column, planned, recipe_of
from edbl.studies.shelf import key
from tests.conftest import Cli
from tests.heads import experiments, head, of_paper
from tests.shelf import SHELF

COLUMNS = {column.name: column for experiment in EXPERIMENTS.values() for column in experiment.columns}


def test_every_column_has_a_recipe_and_every_recipe_a_column() -> None:
    assert sorted(Column.of(name).name for name in of_paper()) == sorted(COLUMNS)
    assert shipped_recipes().keys() - of_paper().keys() == {"digits"}


@pytest.mark.parametrize("name", of_paper())
def test_a_recipe_is_the_run_that_reproduce_makes(name: str) -> None:
    column = Column.of(name)
    assert tomllib.loads(find_recipe(name).read_text())["method"] == "edbl"
    for experiment in experiments(column):
        theirs = [plan for plan in planned(experiment, [0, 1]) if plan.folder.startswith(f"{column.name}/")]
        alone = {row.method for row in experiment.rows} - {row.method for row in experiment.rows if row.options}
        for method in alone:
            seeds = [plan.recipe for plan in theirs if plan.recipe.method == method]
            assert seeds == [Recipe.read(find_recipe(name), {"method": method, "seed": seed}) for seed in (0, 1)]
    mine = Recipe.read(find_recipe(name))
    assert any(key(plan.recipe) == key(mine) for experiment in experiments(column) for plan in planned(experiment, [0]))


@pytest.mark.parametrize("name", of_paper())
def test_a_recipe_has_a_head_with_what_is_printed_and_what_our_records_say(name: str) -> None:
    lines = find_recipe(name).read_text().splitlines()
    wanted = head(name, SHELF)
    assert lines[: len(wanted)] == wanted, "run `python -m tests.heads`"
    assert 4 <= sum(line.startswith("#") for line in lines) == len(wanted) <= 6


@pytest.mark.parametrize("name", of_paper())
def test_a_recipe_has_the_records_that_its_head_names(name: str) -> None:
    text = find_recipe(name).read_text()
    seeds = [run.record.seed for run in SHELF.of(Recipe.read(find_recipe(name)))]
    said = re.search(r"\(seeds? ([\d, ]+);", text)
    assert seeds == ([] if said is None else [int(seed) for seed in said[1].split(", ")])
    assert (said is None) == ("not run yet" in text)


def test_another_method_has_the_values_that_it_has_in_the_table() -> None:
    table = EXPERIMENTS["table2"]
    rows = {row.method: row for row in table.rows}
    mine = Recipe.read(find_recipe("cifar100-base0-5"), {"method": "icarl"})
    assert mine == recipe_of(table.columns[3], rows["icarl"])
    assert mine.options == Recipe.build("icarl", "cifar100").options


def test_numbers_of_a_head_are_the_papers() -> None:
    """A few heads against the paper's text."""
    for name, printed in (
        ("cifar100-base0-5", "CNN and NME: 72.2 and 69.33"),
        ("cifar10-base0-5", "CNN and NME: 77.42 and 78.51 (again in Appendix D: 80.4 and 81.9)"),
        ("tiny-imagenet-base-half-10", "CNN and NME: 53.8 and 49.97"),
        ("cifar100-base0-5-200", "after the last task, CNN: 42.68"),
        ("cifar10-four", "none is printed"),
    ):
        assert f"{printed}\n" in find_recipe(name).read_text(), name


def test_the_list_of_recipes_says_what_each_is(cli: Cli) -> None:
    listed = " ".join(cli("list", "recipes").out.split())
    for name, path in shipped_recipes().items():
        assert f"{name} {path.read_text().splitlines()[0].lstrip('# ')}" in listed


def test_a_run_of_a_recipe_by_name_is_the_planned_one(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Recipe] = []
    monkeypatch.setattr("edbl.cli.runs._run_one", lambda job, *_: made.append(job.recipe))
    table = EXPERIMENTS["table1"]
    for words in (["--seed", 1], ["podnet", "--seed", 1]):
        assert cli("run", *words, "--recipe", "cifar100-base-half-5", "--out", tmp_path).code == 0
    rows = {row.method: row for row in table.rows}
    assert made == [recipe_of(table.columns[0], rows[method], 1) for method in ("edbl", "podnet")]
    assert replace(made[0], seed=0) == Recipe.read(find_recipe("cifar100-base-half-5"))
