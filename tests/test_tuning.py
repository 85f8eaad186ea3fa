"""Searches: where they look, on which images, that kills lose nothing, and what they leave."""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from edbl import EdblError, Recipe, records, run
from edbl.config import Search, toml_value
from edbl.engine.progress import Progress
from edbl.errors import Diverged
from edbl.fleet.jobs import Lost
from edbl.methods import methods
from edbl.store import turn
from edbl.tuning import results
from edbl.tuning import space as spaces
from edbl.tuning.elsewhere import Trials
from edbl.tuning.search import Plan, Searcher, Tally, folder_of
from edbl.tuning.storage import LINES
from tests.conftest import Cli
from tests.test_contract import Killed, Killer

METHODS = sorted(methods())
SMALL: dict[str, object] = {
    "method": "finetune",
    "data.name": "digits",
    "preset": "quick",
    "net.backbone": "mlp",
    "schedule.epochs": 1,
    "stream.tasks": 3,
    "checkpoint_seconds": 0,
}


def plan(search: Path | None = None, **given: object) -> Plan:
    return Plan.of({**SMALL, **given}, None, search)


def work(searcher: Searcher, trials: int, progress: Progress | None = None) -> list[str]:
    said: list[str] = []
    searcher.work(trials, lambda: nullcontext(progress), said.append)
    return said


@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_where_to_look(method: str) -> None:
    space, leaves = spaces.declared(method), Recipe.keys(method)
    assert set(methods()[method].searched) <= space.keys()
    assert 2 <= len(space) <= 12
    for key, where in space.items():
        assert spaces.check(key, where, leaves[key]) == where
        if not where.among and not key.endswith(".lr"):  # what it looks around is there to be found
            default: Any = leaves[key].default
            assert where.low <= default <= where.high or key.startswith(("first.", "options.comp")), key
        if where.among:
            assert leaves[key].default in where.among


class Ends:
    """A trial of Optuna that chooses the one end of everything, or the other."""

    def __init__(self, high: bool) -> None:
        self.high = high

    def suggest_float(self, key: str, low: float, high: float, log: bool) -> float:
        return high if self.high else low

    def suggest_int(self, key: str, low: int, high: int, log: bool) -> int:
        return high if self.high else low

    def suggest_categorical(self, key: str, names: Sequence[str]) -> str:
        return names[-1 if self.high else 0]


CHEAP = ("acil", "bic", "edbl", "er", "lda", "lwf", "wa")
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in METHODS if name not in CHEAP]


@pytest.mark.parametrize("method", [*CHEAP, *OTHERS])
def test_both_ends_of_all_that_is_searched_can_be_run(method: str, tmp_path: Path) -> None:
    """The least values and the largest, all at once; a rate that is too large for others may diverge, and says so."""
    space, leaves = spaces.declared(method), Recipe.keys(method)
    short = {"options." + key: 1 for key in ("balance.epochs", "bias.epochs", "tune.epochs", "compress.epochs")}
    short = {key: value for key, value in {**short, "options.exemplars.epochs": 1}.items() if key in leaves}
    backbone = "small" if methods()[method].needs == "blocks" else "mlp"
    for high in (False, True):
        chosen = {key: spaces.suggest(Ends(high), key, where, leaves[key]) for key, where in space.items()}
        given = {**SMALL, **short, "method": method, "net.backbone": backbone, "stream.tasks": 2, "memory": "total=50"}
        try:
            record = run(Recipe.of(given, chosen, {"data.holdout": 0.2}), tmp_path / f"{high}")
        except EdblError as error:
            assert high and "schedule.lr" in str(error), error  # noqa: PT017, PT018
        else:
            assert record.status == "done"


FILE = """
sampler = "random"
pruner = "none"
classifier = "nme"

[settings]
stream.tasks = 2
data.holdout = 0.3

[space]
schedule.lr = { low = 0.01, high = 0.1, log = true }
"optim.warmup" = { low = 0, high = 2 }
optim.nesterov = [true, false]
"""


def test_a_search_file_says_what_is_searched_and_shared(tmp_path: Path) -> None:
    file = tmp_path / "search.toml"
    file.write_text(FILE)
    made = plan(file, **{"stream.tasks": 4})
    assert made.found.sampler == "random"
    assert made.classifier == "nme"
    assert made.found.space == {
        "schedule.lr": Search(0.01, 0.1, log=True),
        "optim.warmup": Search(0, 2),
        "optim.nesterov": Search(among=(True, False)),
    }
    recipe = made.recipe({"schedule.lr": 0.05})
    assert recipe.stream.tasks == 4  # a command wins over the file
    assert (recipe.data.holdout, recipe.schedule.lr) == (0.3, 0.05)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x", "is not valid TOML"),
        ("sample = 'tpe'", "unknown key in search .*: did you mean 'sampler'"),
        ("sampler = 'cmaes'", "unknown sampler in search .* 'cmaes'"),
        ("pruner = 3", "unknown pruner"),
        ("classifier = 3", "classifier must be a text"),
        ("space = 3", "space must be a table"),
        ("[space]", r"\[space\] is empty"),
        ("[space]\nschedule.lrr = [0.1]", "schedule.lrr"),
        ("[space]\nschedule.lr = 0.1", "schedule.lr takes a range"),
        ("[space]\nschedule.lr = { low = 0.1 }", "schedule.lr takes a range"),
        ("[space]\nschedule.lr = { low = 0.1, high = nan }", "schedule.lr takes a range"),
        ("[space]\nschedule.lr = { low = 0.1, high = true }", "schedule.lr takes a range"),
        ("[space]\nschedule.lr = { low = 0.1, high = 1, logg = true }", "unknown key of schedule.lr 'logg'"),
        ("[space]\nschedule.lr = { low = 1, high = 0.1 }", "nothing between low = 1 and high = 0.1"),
        ("[space]\nschedule.lr = { low = 0, high = 1, log = true }", "has no logarithm"),
        ("[space]\nschedule.lr = { low = -1, high = 1 }", "schedule.lr = -1.0 is too small"),
        ("[space]\noptim.batch = { low = 1.5, high = 8 }", "optim.batch = 1.5 is not a whole number"),
        ("[space]\noptim.kind = { low = 1, high = 8 }", "is not a number, so it takes a list"),
        ("[space]\noptim.kind = ['sgd', 'sdg']", "unknown value of optim.kind 'sdg'"),
        ("[space]\noptim.kind = []", "optim.kind has an empty list"),
        ("[space]\noptim.batch = [8, 8]", "has a value twice"),
        ("[space]\nlr = [0.1]\nschedule.lr = [0.1]", "schedule.lr is given twice"),
        ("[space]\nstream.tasks = [2, 5]", "stream.tasks says what is learnt or measured"),
        ("[space]\nseed = [2, 5]", "seed says what is learnt"),
        ("[settings]\nschedule.lr = 0.1\n[space]\nschedule.lr = [0.1, 0.2]", "both in"),
        ("[settings]\nschedule.lrr = 0.1", "schedule.lrr"),
        ("[settings]\ndata.holdout = 0", "data.holdout must be above 0"),
    ],
)
def test_bad_search_files_are_one_line(text: str, why: str, tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "search.toml"
    file.write_text(text)
    with pytest.raises(EdblError, match=why):
        plan(file)
    done = cli("tune", "finetune", "--data", "digits", "--search", file, "--out", tmp_path / "out")
    assert done.code == 2
    assert len(done.err.strip().splitlines()) <= 2
    assert not (tmp_path / "out").exists()


def test_other_mistakes_are_one_line(tmp_path: Path, cli: Cli) -> None:
    for words, why in (
        (["finetune", "--search", tmp_path / "none.toml"], "cannot read search"),
        (["finetun"], "did you mean 'finetune'"),
        (["finetune", "--data", "digit"], "digit"),
        (["finetune", "--set", "data.holdout=0"], "data.holdout must be above 0"),
        (["finetune", "--set", "schedule.lr=0.1", "--set", "optim.weight_decay=0.1"], "every setting that could"),
        (["finetune", "--storage", "nonsense://x"], "cannot use the storage"),
        (["finetune", "--log", "x"], "unknown log"),
        (["finetune", "--data", "digits", "--set", "data.name=x"], "given twice"),
    ):
        done = cli("tune", *words, "--out", tmp_path / "out")
        assert (done.code, why in done.err, "Traceback" in done.err) == (2, True, False), done.err


def test_without_optuna_one_line_says_what_to_install(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = cli("tune", "finetune", "--data", "digits", "--out", tmp_path / "out")
    assert (done.code, "pip install 'edbl[tune]'" in done.err) == (2, True)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """A search of five trials, before which none is compared with others."""
    searcher = Searcher(plan(), tmp_path_factory.mktemp("search") / "out")
    work(searcher, 5)
    results.write(searcher)
    return searcher


def test_trials_are_ordinary_runs_on_held_out_images(searched: Searcher) -> None:
    assert searched.tally() == Tally(5, 0, 0, 0)
    for trial in searched.trials():
        record = records.read(folder_of(searched.folder, trial.number))
        assert record.status == "done"
        assert trial.value == record.average_incremental_accuracy["cnn"]
        assert list(trial.intermediate_values) == [0, 1, 2]
        assert record.recipe["data.holdout"] == 0.2
        assert any("held out, stand in for the test images" in note for note in record.notes)
        assert {key: record.recipe[key] for key in trial.params} == trial.params
    images = {records.read(folder_of(searched.folder, number)).data_fingerprint for number in range(5)}
    assert len(images) == 1


def test_the_best_recipe_can_be_run_with_all_training_images(searched: Searcher, tmp_path: Path, cli: Cli) -> None:
    text = (searched.folder / results.BEST).read_text()
    best = searched.best()
    assert best is not None
    assert best.value == max(trial.value for trial in searched.trials())
    assert text.startswith(f"# {searched.sentence()}\n# This is trial {best.number}, of {100 * best.value:.2f}%")
    assert "Chosen from 5 trials (5 to their end, 0 stopped early, 0 failed) of finetune on digits" in text
    assert "commit: " in text
    done = cli("run", "--recipe", searched.folder / results.BEST, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    record = records.read(tmp_path / "run")
    assert record.recipe["data.holdout"] == 0.0
    assert {key: record.recipe[key] for key in best.params} == best.params
    trial = records.read(folder_of(searched.folder, best.number))
    assert sum(map(sum, record.confusions["cnn"][-1])) != sum(map(sum, trial.confusions["cnn"][-1]))


def test_the_page_has_all_of_it_and_loads_nothing(searched: Searcher) -> None:
    page = (searched.folder / results.PAGE).read_text()
    assert searched.sentence() in page
    assert page.count("<svg") == 3 + len(searched.plan.found.space)  # with importances
    assert "What counted" in page
    assert f"edbl run --recipe {searched.folder / results.BEST}" in page
    assert not re.search(r"(?:src|href)=\"(?!#)|<script|@import|url\(h", page)


def test_the_same_command_goes_on_to_as_many_trials_as_it_says(searched: Searcher, tmp_path: Path) -> None:
    shutil.copytree(searched.folder, tmp_path / "out")
    again = Searcher(plan(), tmp_path / "out")
    assert work(again, 5) == []
    work(again, 6)
    assert again.tally().all == 6
    # A search in one go draws the same.
    whole = Searcher(plan(), tmp_path / "whole")
    work(whole, 6)
    assert [trial.params for trial in whole.trials()] == [trial.params for trial in again.trials()]
    assert [trial.value for trial in whole.trials()] == [trial.value for trial in again.trials()]


def test_another_search_is_refused(searched: Searcher, tmp_path: Path) -> None:
    with pytest.raises(EdblError, match=r"holds another search: its stream.tasks is 3, not 2; use another folder"):
        Searcher(plan(None, **{"stream.tasks": 2}), searched.folder)
    with pytest.raises(EdblError, match="holds another search"):
        Searcher(plan(None, **{"schedule.lr": 0.1}), searched.folder)
    file = tmp_path / "search.toml"
    file.write_text('pruner = "none"')
    with pytest.raises(EdblError, match="its pruner is median, not none"):
        Searcher(plan(file), searched.folder)


@pytest.mark.parametrize("at", [12, 40])
def test_a_trial_that_was_killed_goes_on_where_it_was(at: int, searched: Searcher, tmp_path: Path) -> None:
    killed = Searcher(plan(), tmp_path / "out")
    with suppress(Killed):
        work(killed, 2, Killer(at))
    assert killed.tally().running == 1
    assert len(list((tmp_path / "out" / "workers").iterdir())) == 1
    again = Searcher(plan(), tmp_path / "out")
    work(again, 2)
    assert again.tally() == Tally(2, 0, 0, 0)
    assert not list((tmp_path / "out" / "workers").iterdir())
    assert [t.params for t in again.trials()] == [t.params for t in searched.trials()[:2]]
    assert [t.value for t in again.trials()] == [t.value for t in searched.trials()[:2]]


def test_trials_that_look_bad_stop_early_and_can_be_told(tmp_path: Path) -> None:
    file = tmp_path / "search.toml"
    file.write_text('sampler = "random"\n[space]\nschedule.lr = { low = 1e-4, high = 0.3 , log = true }\n')
    searcher = Searcher(plan(file), tmp_path / "out")
    work(searcher, 14)
    pruned = [trial for trial in searcher.trials() if trial.state.name == "PRUNED"]
    assert pruned
    for trial in pruned:
        record = records.read(folder_of(searcher.folder, trial.number))
        assert (record.status, record.finished) == ("running", 2)
        assert trial.value == record.average_incremental_accuracy["cnn"]
    assert f"{len(pruned)} stopped early" in searcher.sentence()
    results.write(searcher)
    assert "early" in (searcher.folder / results.PAGE).read_text()


def test_trials_that_fail_count_and_three_in_a_row_end_it(tmp_path: Path) -> None:
    file = tmp_path / "search.toml"
    file.write_text("[space]\nschedule.lr = [1e20, 1e21]\n")
    searcher = Searcher(plan(file), tmp_path / "diverges")
    work(searcher, 4)  # which training does, and nothing is wrong with the rest
    assert searcher.tally() == Tally(0, 0, 4, 0)
    assert searcher.best() is None
    assert [path.name for path in results.write(searcher)] == [results.PAGE]
    assert "No trial has come to its end" in (searcher.folder / results.PAGE).read_text()
    file.write_text('classifier = "nmee"\n[space]\nschedule.lr = [0.1, 0.2]\n')
    other = Searcher(plan(file), tmp_path / "wrong")
    with pytest.raises(EdblError, match="3 trials in a row failed; the last one: unknown classifier 'nmee'"):
        work(other, 9)


def test_a_trial_that_a_cluster_lost_is_left_to_the_next_command(tmp_path: Path) -> None:
    said: list[str] = []
    lost = Lost("its node died, 3 times; it can continue")
    for _ in range(2):
        trials = Trials(Searcher(plan(), tmp_path / "out"), 2, said.append)
        with suppress(Lost), trials.search.working():
            assert trials.next() == (0, None)
            trials.over(0, lost)
            pytest.fail("it was told nobody")
        assert trials.search.tally() == Tally(0, 0, 0, 1)
    trials = Trials(Searcher(plan(), tmp_path / "out"), 2, said.append)
    with trials.search.working():
        assert trials.next() == (0, None)
        assert trials.next() == (1, None)
        assert trials.next() is None
        assert trials.over(0, Diverged("the loss became nan")) == "the loss became nan"
        assert trials.over(1, EdblError("bad")) == "bad"
    assert trials.search.tally() == Tally(0, 0, 2, 0)


def test_a_journal_that_was_cut_off_is_mended(searched: Searcher, tmp_path: Path) -> None:
    shutil.copytree(searched.folder, tmp_path / "out")
    journal = tmp_path / "out" / "journal" / LINES
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 4, "worker')
    again = Searcher(plan(), tmp_path / "out")
    assert again.tally().all == 5
    work(again, 6)
    assert journal.read_bytes().startswith(whole)
    assert all(json.loads(line) for line in journal.read_bytes().splitlines())
    journal.write_bytes(b"no json\n" + whole)
    with pytest.raises(EdblError, match="is damaged"):
        Searcher(plan(), tmp_path / "out")


def test_locks_are_lifted_where_others_wait(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from edbl.store import turn\nwith turn(Path(sys.argv[1])): pass"
    began = time.monotonic()
    with turn(tmp_path):
        other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
        time.sleep(0.3)
        assert other.poll() is None
    assert other.wait(60) == 0
    assert time.monotonic() - began > 0.3


def test_a_database_holds_a_search_too(tmp_path: Path, cli: Cli) -> None:
    url = f"sqlite:///{tmp_path / 'trials.db'}"
    given = [word for key, value in SMALL.items() if "." in key for word in ("--set", f"{key}={toml_value(value)}")]
    words = ("tune", "finetune", "--preset", "quick", *given, "--storage", url, "--out", tmp_path / "out")
    assert cli(*words, "--trials", 1).code == 0
    done = cli(*words, "--trials", 2)
    assert done.code == 0, done.err
    assert "Chosen from 2 trials" in done.out
    assert "trial 0:" not in done.out
    assert not (tmp_path / "out" / "journal").exists()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a search of two trials."""
    place = tmp_path_factory.mktemp("database")
    work(Searcher(plan(), place / "out", f"sqlite:///{place / 'trials.db'}"), 2)
    return place / "trials.db"


@pytest.mark.parametrize(
    ("table", "column", "value", "why"),
    [
        ("trials", "number", 2**62, "trial 1 of .* is none of a search"),
        ("trials", "number", -1, "trial 0 of .* is none of a search"),
        ("trials", "number", "one", "cannot be used"),
        ("trials", "state", "WAITING", "trial 1 of .* is none of a search"),
        ("trials", "state", "x" * 10**6, "cannot be used .* \\.\\.\\."),
        ("trials", "state", "\x1b[31m", "cannot be used"),
        ("trials", "datetime_start", "9999-99-99", "cannot be used"),
        ("trial_values", "value", 1.5, "trial 1 of .* is none of a search"),
        ("trial_values", "value_type", "INF_POS", "cannot be used|is none of a search"),
        ("trial_values", "value", b"\xff", "cannot be used|is none of a search"),
        ("trial_values", "objective", 7, "cannot be used"),
        ("trial_intermediate_values", "intermediate_value", -1e308, "trial 1 of .* is none of a search"),
        ("trial_intermediate_values", "intermediate_value", "x", "cannot be used|is none of a search"),
        ("trial_params", "param_value", 1e308, "trial 1 of .* chose what is not searched"),
        ("trial_params", "param_name", "data.name", "trial 1 of .* chose what is not searched: data.name"),
        ("trial_params", "distribution_json", "[" * 10**5, "cannot be used"),
        ("trial_params", "distribution_json", '{"name": "os.system", "attributes": {}}', "cannot be used"),
        ("trial_user_attributes", "value_json", "3", "trial 1 of .* is none of a search"),
        ("trial_user_attributes", "value_json", "no json", "cannot be used"),
        ("study_user_attributes", "value_json", "3", "holds another search|cannot be used"),
        ("study_directions", "direction", "MINIMIZE", "holds a search for the least accuracy"),
    ],
)
def test_a_database_of_somebody_else_is_refused_in_a_line_or_two(
    table: str, column: str, value: object, why: str, database: Path, tmp_path: Path, cli: Cli
) -> None:
    place = tmp_path / "trials.db"
    shutil.copy(database, place)
    connection = sqlite3.connect(place)
    with connection:
        last = f"(SELECT max(rowid) FROM {table})"
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = {last}", (value,))
    connection.close()
    given = [word for key, word in SMALL.items() if "." in key for word in ("--set", f"{key}={toml_value(word)}")]
    words = ("finetune", "--preset", "quick", *given, "--storage", f"sqlite:///{place}", "--out", tmp_path / "out")
    done = cli("tune", *words, "--trials", 2)
    assert done.code == 2, done.out
    assert re.search(why, done.err), done.err
    assert len(done.err.strip().splitlines()) <= 2
    assert len(done.err) < 500
    assert "\x1b" not in done.err


def test_a_database_that_is_no_file_of_one_is_refused(tmp_path: Path, cli: Cli) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("no database at all")
    for name, why in (
        ("pipe", "it is not a regular file"),
        ("text", "file is not a database"),
        (".", "Is a directory"),
    ):
        words = ("tune", "finetune", "--preset", "quick", "--storage", f"sqlite:///{tmp_path / name}")
        done = cli(*words, "--out", tmp_path / "out")
        assert (done.code, why in done.err, len(done.err.splitlines())) == (2, True, 1), done.err


def test_a_database_has_as_many_trials_as_are_ever_made(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edbl.tuning.storage.MOST_TRIALS", 1)
    with pytest.raises(EdblError, match="has over 1 trials; use another one"):
        Searcher(plan(), tmp_path / "out", f"sqlite:///{database}").trials()


COMMAND = ("-W", "error", "-m", "edbl", "tune", "edbl", "--data", "digits", "--preset", "quick", "--trials", "6")


@pytest.mark.slow
def test_processes_share_a_search_and_one_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    given = ("--set", "net.backbone=mlp", "--tasks", "4", "--set", "checkpoint_seconds=0", "--out", str(folder))
    both = [subprocess.Popen([sys.executable, *COMMAND, *given]) for _ in range(2)]
    for _ in range(1200):
        begun = [path for path in folder.glob("trials/*/record.json") if json.loads(path.read_text())["seconds"]]
        if begun:
            break
        time.sleep(0.05)
    os.kill(both[0].pid, signal.SIGKILL)
    both[0].wait()
    assert both[1].wait(250) == 0
    assert subprocess.run([sys.executable, *COMMAND, *given], check=False).returncode == 0
    done = [records.read(path.parent) for path in sorted(folder.glob("trials/*/record.json"))]
    assert len(done) == 6
    text = (folder / results.BEST).read_text()
    assert "Chosen from 6 trials" in text
    assert "running" not in text.splitlines()[0]
    assert not list((folder / "workers").iterdir())
