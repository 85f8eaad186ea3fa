"""The queue: what is to be run, in which order, what it takes, and that it stops in time and goes on."""

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

from edbl import Recipe, records, run
from edbl.fleet.many import Job, run_many
from edbl.fleet.turns import Limit, Turns
from edbl.records import Record
from edbl.rule import RULED
from edbl.studies import pages, queue, small
from edbl.studies.paper import EXPERIMENTS, Column, Experiment, Planned, Row, planned
from edbl.studies.queue import Entry, Item, Times, everything, images, plan
from edbl.studies.shelf import Run, Shelf, key
from edbl.studies.study import read_all
from tests.conftest import Cli
from tests.shelf import SHELF
from tests.test_contract import Killed, Killer
from tests.test_many import FRAGILE

ROOT = Path(__file__).parents[1]
QUIET = Console(quiet=True)
H200 = "NVIDIA H200, 33% of it"
SMALL = {"data.name": "digits", "preset": "quick", "stream.tasks": 2, "net.backbone": "mlp", "schedule.epochs": 1}


def recipe(method: str = "rkd", seed: int = 0, given: Mapping[str, object] = SMALL) -> Recipe:
    return Recipe.of({"method": method, "seed": seed, **SMALL}, given)


def a_plan(name: str, made: Recipe) -> Planned:
    return Planned(name, made)


def endless(seed: int = 0, method: str = "rkd") -> Recipe:
    return recipe(method, seed, {"schedule.epochs": 100_000, "schedule.milestones": (), "checkpoint_seconds": 0.1})


@pytest.fixture(scope="module")
def shelf() -> Shelf:
    return SHELF


ORDER = [
    "as printed",
    "distillation",
    "partners",
    "the rule",
    "EDBL",
    "parts",
    "points",
    "rates-of-rivals",
    "rivals, the rule",
    "rivals",
    "rivals, their own recipes",
    "parts, as printed",
    "parts, the rule",
    "class order natural",
    "Tiny-ImageNet, the rule",
    "Tiny-ImageNet, as printed",
    "Tiny-ImageNet, EDBL",
    "Tiny-ImageNet",
    "Tiny-ImageNet, rivals, the rule",
    "Tiny-ImageNet, rivals, their own recipes",
    "other systems",
    "seed 1",
    "seed 2",
    "class order 1994",
    "class order 1995",
]


def test_the_queue_has_every_run_of_all_tables_once_in_order_of_value() -> None:
    items = everything(studies=read_all(ROOT / "studies" / "rule"))
    runs = [one for item in items for one in item.runs]
    assert [item.name for item in items] == ORDER
    assert all(item.why for item in items)
    whole = {(key(one.recipe), one.recipe.seed) for one in runs}
    assert len(whole) == len(runs) == len({one.folder for one in runs})
    for preset in ("tuned", "default", "paper"):
        wanted = [one for e in EXPERIMENTS.values() for one in planned(printed_rows(e), [0, 1, 2], preset)]
        there = whole >= {(key(one.recipe), one.recipe.seed) for one in wanted if one.folder[:12] != "cifar10-four"}
        assert there, f"all systems by preset {preset}"
    tables = [one for e in EXPERIMENTS.values() for one in planned(e, [0, 1, 2])]
    assert whole >= {(key(one.recipe), one.recipe.seed) for one in tables}, "controls too"
    first = items[0].runs
    assert {(one.recipe.method, one.recipe.preset) for one in first} == {("edbl", "paper")}
    assert len({one.folder.partition("/")[0] for one in first}) == len(first) == 10
    before = ORDER.index("Tiny-ImageNet, the rule")
    assert {one.recipe.data.name for item in items[:before] for one in item.runs} == {"cifar10", "cifar100"}
    assert {one.recipe.by_rule for one in items[3].runs} == {tuple(RULED)}
    orders = [{one.recipe.stream.order for one in item.runs} for item in items if item.name.startswith("class order")]
    assert orders == [{"natural"}, {"1994"}, {"1995"}]
    tested = [one for item in items[:21] for one in item.runs if not one.recipe.data.holdout]
    assert {one.recipe.seed for one in tested} == {0}
    assert len(items[21].runs) == len(items[22].runs) == len(tested)
    once = [item.name for item in everything(seeds=1)]
    assert once == [name for n, name in enumerate(ORDER) if n not in (1, 2, 6, 7) and not name.startswith("seed")]
    assert {one.folder for one in runs if one.features} == {
        f"cifar10-four/{method}{preset}-seed{seed}"
        for method in ("edbl", "rkd")
        for preset in ("", "-default")
        for seed in range(3)
    }


def printed_rows(experiment: Experiment) -> Experiment:
    return replace(experiment, rows=tuple(row for row in experiment.rows if any(row.printed)))


def test_rivals_have_as_many_settings_held_out_as_edbl() -> None:
    studies = [study for study in read_all(ROOT / "studies" / "rule") if study.name != "points"]  # was held out before
    asked = Counter(row.method for study in studies for row in study.experiment.rows)
    asked["edbl"] -= 1  # the rule itself, which both studies have
    assert asked == dict.fromkeys({"edbl"} | queue.RIVALS, 4)
    systems = {row.method for name in ("table1", "table2", "table4", "fig4") for row in EXPERIMENTS[name].rows}
    assert systems == queue.RIVALS | {"edbl"}


def test_runs_by_the_rule_wait_for_the_studies_that_may_change_it(tmp_path: Path) -> None:
    studies = read_all(ROOT / "studies" / "rule")
    undecided = [study.name for study in studies if not study.decision]
    assert undecided == ["distillation", "partners", "rates-of-rivals"], "once one is decided: see below"
    everybody = {one.folder: one for item in everything(1, studies) for one in item.runs}
    assert everybody["cifar100-base0-5-total2000/edbl-default-seed0"].waits.endswith("rule/distillation.toml first")
    for one in everybody.values():
        ruled = set(one.recipe.by_rule)
        waits = not one.recipe.data.holdout and (
            "options.kd_weight" in ruled or (one.recipe.method == "edbl" and ruled)
        )
        assert bool(one.waits) == bool(waits), one.folder
    items = [Item("", "", [one for one in everybody.values() if one.recipe.method in ("edbl", "icarl")])]
    left = [entry for entry in plan(items, Shelf(tmp_path), tmp_path, "CPU") if entry.obstacle]
    assert left
    assert all(entry.run.recipe.method == "edbl" and entry.run.recipe.by_rule and not entry.todo for entry in left)
    assert not any(one.waits for item in everything(1) for one in item.runs)
    (partners,) = (study for study in studies if study.name == "partners")
    half = [replace(study, decision="the rule") for study in studies if study != partners]
    waiting = {one.recipe.method for item in everything(1, [*half, partners]) for one in item.runs if one.waits}
    assert waiting == {"edbl"}, "partners of old images are a question of EDBL alone"
    both = [replace(study, decision="the rule") for study in studies]
    assert not any(one.waits for item in everything(1, both) for one in item.runs)


class Told(Shelf):
    """A shelf where each run of a study has the accuracy that a function of its recipe says."""

    def __init__(self, accuracy: Callable[[Recipe], float | None]) -> None:
        super().__init__(Path("nowhere"))
        self.accuracy = accuracy

    def of(self, recipe: Recipe) -> list[Run]:
        found = self.accuracy(recipe)
        record = SimpleNamespace(average_incremental_accuracy={"cnn": found, "nme": found}, seed=0)
        return [] if found is None else [Run(self.folder, recipe, cast(Record, record))]


def test_rivals_run_once_more_with_a_better_rate() -> None:
    def accuracy(made: Recipe) -> float | None:
        ruled = "schedule.lr" in made.by_rule
        if made.method == "bic":
            return 0.6 + (made.schedule.lr == 0.01) / 8 - (made.data.name == "cifar10") / 8  # on one stream alone
        if made.method == "icarl":
            return 0.5 if ruled or made.schedule.lr == 0.1 else 0.25  # of equals the rule's
        if made.method == "podnet" and made.data.name == "cifar10" and not ruled:
            return None  # some of its runs are not there
        return 0.5 if ruled else 0.25

    study = next(s for s in read_all(ROOT / "studies" / "rule") if s.name == "rates-of-rivals")
    decided = replace(study, decision="by the rule")
    assert queue.better_rates(study, Told(accuracy)) == {}, "it is not decided"
    assert queue.better_rates(decided, Told(accuracy)) == {"bic": 0.01}
    items = {item.name: item for item in everything(1, [decided], Told(accuracy))}
    runs = [*items["rivals, better rates"].runs, *items["Tiny-ImageNet, rivals, better rates"].runs]
    streams = {column.name for e in EXPERIMENTS.values() for column in e.columns if "bic" in {r.method for r in e.rows}}
    assert {one.folder for one in runs} == {f"{name}/bic-rate-0.01-default-seed0" for name in streams}
    assert len(streams) == 9
    for one in runs:
        assert (one.recipe.method, one.recipe.schedule.lr, one.recipe.data.holdout) == ("bic", 0.01, 0)
        assert one.recipe.by_rule == ("schedule.epochs",)
    order = list(items)
    assert order.index("rivals, the rule") < order.index("rivals, better rates") < order.index("rivals")
    names = {item.name for item in everything(1, [study], Told(accuracy))}
    assert "rivals, better rates" not in names


def test_published_systems_come_after_natural_order_and_tiny_imagenet() -> None:
    items = everything(seeds=1)
    names = [item.name for item in items]
    before = ("class order natural", "Tiny-ImageNet, rivals, their own recipes")
    assert [names.index(name) for name in before] < [names.index("other systems")] * 2
    assert names.index("other systems") == names.index("Tiny-ImageNet, rivals, their own recipes") + 1
    runs = {one.folder: one.recipe for one in items[names.index("other systems")].runs}
    foster = {folder: recipe for folder, recipe in runs.items() if recipe.method == "foster"}
    assert {(r.stream.protocol, r.stream.tasks, r.memory) for r in foster.values()} == {
        ("base0", 5, "total=2000"),
        ("base0", 10, "total=2000"),
        ("base-half", 5, "per_class=20"),
        ("base-half", 10, "per_class=20"),
    }
    assert {(r.data.augment, r.data.cutout) for r in foster.values()} == {("crop-flip-trivial", 16)}
    for made in foster.values():
        later = made.stream.number - (made.stream.protocol == "base0")
        betas = made.values()["options.boost_betas"]
        assert isinstance(betas, tuple)
        assert len(betas) in (1, later)
        assert betas[-1] == 0.94
    wa = runs["cifar100-base0-10-total2000/wa-two-paper-seed0"].values()
    assert (wa["options.weighting"], wa["options.clip"], wa["schedule.epochs"]) == ("two", False, 170)
    analytic = {folder.partition("/")[2]: r for folder, r in runs.items() if r.method == "acil"}
    assert {name: r.values()["options.compensation"] for name, r in analytic.items()} == {
        "acil-paper-seed0": 0.0,
        "ds-al-paper-seed0": 0.6,
    }
    assert {(r.stream.protocol, r.stream.tasks, r.memory) for r in analytic.values()} == {("base-half", 25, "none")}
    assert {r.preset for r in runs.values()} == {"paper"}
    assert all(images(r) is not None for r in runs.values())


def test_open_studies_are_held_out() -> None:
    items = everything(seeds=1, studies=read_all(ROOT / "studies" / "rule"))
    held_out = [item for item in items if any(one.recipe.data.holdout for one in item.runs)]
    assert [item.name for item in held_out] == ["distillation", "partners", "points", "rates-of-rivals"]
    assert [{one.recipe.seed for one in item.runs} for item in held_out] == [{0, 1, 2}, {0, 1, 2}, {0}, {0}]
    assert all(one.recipe.data.holdout for item in held_out for one in item.runs)


def test_the_small_scale_is_a_queue_too() -> None:
    (tuning,) = [item for item in queue.small_scale() if item.name == small.TUNING]
    assert len(tuning.runs) == 54
    assert images(tuning.runs[0].recipe) is not None


def test_a_run_counts_for_the_first_item_that_has_it() -> None:
    one, two = a_plan("one", recipe()), a_plan("two", recipe("finetune"))
    items = queue.once(
        [Item("a", "", [one, one]), Item("b", "", [one]), Item("c", "", [replace(one, folder="x"), two])]
    )
    assert [(item.name, list(item.runs)) for item in items] == [("a", [one]), ("c", [two])]


def test_states_times_and_first_tasks(tmp_path: Path) -> None:
    made = {
        "done": recipe(seed=1),
        "begun": recipe(seed=2),
        "missing": recipe("edbl"),
        "alike": recipe("re-mkd"),
        "another": recipe("finetune"),
        "absent": Recipe.build("rkd", "cifar10"),
    }
    results, runs = Shelf(tmp_path / "results"), tmp_path / "runs"
    run(made["done"], runs / "done")
    results.keep(runs / "done", "elsewhere")
    with pytest.raises(Killed):
        run(made["begun"], runs / "begun", progress=Killer(30))
    run(recipe(seed=5), runs / "another")
    device = records.read(runs / "done").device
    items = [Item("all", "", [a_plan(name, one) for name, one in made.items()])]
    found = {e.run.folder: e for e in plan(items, results, runs, device, lambda data: data[: 5 * (data == "cifar10")])}
    assert [entry.state for entry in found.values()] == [
        "done",
        "unfinished",
        "missing",
        "missing",
        "missing",
        "missing",
    ]
    assert [entry.todo for entry in found.values()] == [False, True, True, True, False, False]
    assert found["absent"].obstacle == "cifar"
    assert "another holds another run" in found["another"].obstacle
    assert (found["missing"].others, found["alike"].start) == (1, "missing")
    took = records.read(runs / "done").seconds
    whole, machine = Times(results, device).left(made["begun"], 0)
    assert (whole, machine) == (sum(took), "")
    left = found["begun"].seconds
    assert left == pytest.approx(sum(took[records.read(runs / "begun").finished :]))
    assert found["alike"].seconds is not None
    assert found["alike"].seconds < (Times(results, device).left(made["alike"], 0)[0] or 0), "without its first task"
    assert found["absent"].seconds is None, "of its network nothing is known"
    assert [e.machine for e in plan(items, results, runs, "GPU, 33% of it")][1] == device.partition(",")[0]


def test_times_are_about_those_of_records(shelf: Shelf) -> None:
    there = [run for run in shelf.runs if queue.machine_of(run.record.device) == queue.machine_of(H200)]
    times = Times(shelf, H200)
    took = times.here
    ratios: dict[bool, list[float]] = {True: [], False: []}  # whether at small scale
    for one in there:
        times.here = [other for other in took if other.key != key(one.recipe)]
        told, machine = times.left(one.recipe, 0)
        assert told is not None
        assert machine == ""
        ratios["small" in one.folder.parts].append(told / sum(one.record.seconds))
    near = [sum(1 / 1.5 < ratio < 1.5 for ratio in ratios[small]) / len(ratios[small]) for small in (False, True)]
    said = "{:.0%} of ours at full scale and {:.0%} at small scale come within a factor of 1.5".format(*near)
    assert said in re.sub(r"\s+", " ", (ROOT / "docs" / "commands.md").read_text())
    assert all(0.8 < median(found) < 1.25 for found in ratios.values())


def test_times_of_the_same_recipe_are_what_it_took(shelf: Shelf) -> None:
    edbl = Recipe.read(ROOT / "results" / "cifar100-base0-5-total2000" / "edbl-seed0" / "recipe.toml")
    took = [sum(one.record.seconds) for one in shelf.of(edbl)]
    assert Times(shelf, H200).left(edbl, 0)[0] == pytest.approx(sum(took) / len(took))
    assert Times(shelf, H200).left(edbl, 0)[1] == ""
    assert Times(shelf, "CPU").left(edbl, 0)[1] == "NVIDIA H200"
    assert Times(shelf, H200).left(Recipe.build("edbl", "tiny-imagenet"), 0) == (None, "")
    assert Times(shelf, H200).left(Recipe.build("edbl", "./photos"), 0) == (None, "")


def test_images_that_are_trained() -> None:
    plain = recipe(given={"memory": "total=40", "schedule.epochs": 3})
    assert images(plain) == pytest.approx([721 / 16 * 3, (721 + 40 / 1) / 16 * 3], rel=0.01)
    half = replace(plain, data=replace(plain.data, holdout=0.5))
    assert (images(half) or [])[0] == pytest.approx(721 / 32 * 3)
    assert images(Recipe.build("rkd", "./photos")) is None
    printed = {"method": "edbl", "data.name": "cifar10", "preset": "paper"}
    limited, free = (Recipe.of({**printed, "options.max_rounds": most}) for most in (1, 0))
    one, other = images(limited) or [], images(free) or []
    assert one[0] == other[0]
    assert other[1] > 5 * one[1], "N/2 mixings of few exemplars"


def test_what_is_begun_comes_first_and_parts_of_a_gpu_are_not_spoilt() -> None:
    cifar = {"data.name": "cifar100", "net.backbone": "resnet32"}
    made = {name: a_plan(name, Recipe.of({"method": name, **cifar})) for name in ("podnet", "rkd", "tpcil", "icarl")}
    entries = [
        Entry("a", made["podnet"], "missing"),
        Entry("a", made["rkd"], "missing"),
        Entry("b", made["tpcil"], "unfinished"),
        Entry("b", made["icarl"], "missing"),
        Entry("b", made["rkd"], "done"),
        Entry("b", made["rkd"], "missing", obstacle="no data"),
    ]
    names = [[one.folder for one in batch] for batch in queue.batches(entries, gpu=False)]
    assert names == [["tpcil", "podnet", "rkd", "icarl"]]
    names = [[one.folder for one in batch] for batch in queue.batches(entries, gpu=True)]
    assert names == [["tpcil"], ["rkd"], ["podnet"], ["icarl"]]


def test_only_what_can_be_had_in_time_waits_for_it() -> None:
    times = {"short": 10.0, "long": 90.0, "unknown": None}
    entries = [Entry("a", a_plan(name, recipe()), "missing", seconds) for name, seconds in times.items()]
    entries.append(Entry("a", a_plan("elsewhere", recipe()), "missing", 5.0, machine="GPU"))
    entries.append(Entry("a", a_plan("begun", recipe()), "unfinished", 5.0))
    assert queue.in_time(entries, Path("runs"), 60.0) == {Path("runs/short"): 10.0}


def turns(jobs: list[Job], folder: Path, limit: Limit | None = None) -> Turns:
    return Turns(jobs, range(len(jobs)), [job.folder.name for job in jobs], folder, limit)


def test_a_run_that_would_not_end_in_time_leaves_its_turn_and_its_first_task_to_others(tmp_path: Path) -> None:
    jobs = [Job(recipe(given={"memory": f"total={k}"}), tmp_path / str(k)) for k in (20, 30, 40)]
    usual = turns(jobs, tmp_path / "kept")
    assert (usual.next() or [None])[0] == 0
    assert usual.next() is None, "the others wait for its first task"
    usual.ended(0)
    assert [usual.next(), usual.next(), usual.next()] == [(1, None), (2, None), None]
    limited = turns(
        jobs, tmp_path / "kept", Limit(time.monotonic() + 60, {tmp_path / "20": 90.0, tmp_path / "30": 30.0})
    )
    assert (limited.next() or [None])[0] == 1
    assert limited.next() is None
    assert turns(jobs, tmp_path / "kept", Limit(time.monotonic() - 1, {})).next() is None


def test_runs_are_stopped_in_time_and_go_on(tmp_path: Path) -> None:
    jobs = [Job(recipe(), tmp_path / "short"), Job(endless(), tmp_path / "endless"), Job(endless(1), tmp_path / "late")]
    begun = time.monotonic()
    done: list[str] = []
    limit = Limit(begun + 15, {tmp_path / "late": 1000.0})
    found = run_many(jobs, 1, QUIET, done=lambda job: done.append(job.folder.name), limit=limit)
    assert time.monotonic() - begun < 30
    assert ([record.status for record in found], done) == (["done"], ["short"])
    assert not (tmp_path / "late").exists()
    assert records.read(tmp_path / "endless").status == "running"
    epochs = {int(path.stem.split("-")[-1]) for path in (tmp_path / "endless/checkpoints").glob("*epoch-*.json")}
    assert epochs
    run_many(jobs[1:2], 1, QUIET, limit=Limit(time.monotonic() + 10, {}))
    later = {int(path.stem.split("-")[-1]) for path in (tmp_path / "endless/checkpoints").glob("*epoch-*.json")}
    assert max(later) > max(epochs), "it went on where it was stopped"


def test_a_process_that_is_killed_meanwhile_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    method = tmp_path / "fragile.py"
    method.write_text(FRAGILE.replace("TIMES", "1"))
    jobs = [Job(recipe(str(method)), tmp_path / "killed"), Job(recipe("finetune"), tmp_path / "beside")]
    found = run_many(jobs, 1, QUIET, limit=Limit(time.monotonic() + 300, {}))
    assert [record.status for record in found] == ["done", "done"]
    assert list((tmp_path / "marks").iterdir())


COLUMN = Column("digits, 2 tasks", "digits-2", {k: v for k, v in SMALL.items() if k != "seed"})
ROWS = (
    Row("Mixed", "vanilla-mkd", "cnn", ((0.5,),)),
    Row("Ours", "re-mkd", "cnn", ((0.5,),)),
    Row("Cifar", "rkd", "cnn", ((0.5,),), options={"data.name": "cifar10"}, name="cifar"),
)
TABLE = Experiment("tiny", "Tiny table", "last", (COLUMN,), ROWS)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    monkeypatch.setattr(pages, "EXPERIMENTS", {"tiny": TABLE})
    items = [Item("mixed", "to test", planned(TABLE, [0])), Item("seed 1", "to test", planned(TABLE, [1]))]
    monkeypatch.setattr(queue, "everything", lambda seeds, studies, shelf: items[:seeds])
    to = {"--runs": "runs", "--results": "results", "--data-dir": "data"}
    return [*(word for option, name in to.items() for word in (option, tmp_path / name)), "--at-once", 1]


def test_a_dry_run_lists_all_and_runs_nothing(cli: Cli, tmp_path: Path, places: list[object]) -> None:
    done = cli("reproduce", "all", "--dry-run", *places)
    assert done.code == 0, done.err
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[0] == "item run seed state left first task"
    assert lines[1] == "mixed digits-2/vanilla-mkd-seed0 0 missing ? for 1 other"
    assert lines[2] == "mixed digits-2/re-mkd-seed0 0 missing ? from digits-2/vanilla-mkd-seed0"
    assert lines[3] == "mixed digits-2/cifar-seed0 0 missing, cannot be run ?"
    assert lines[4].startswith("seed 1 digits-2/vanilla-mkd-seed1 1 missing ? for 1 other")
    assert lines[7].startswith("2 runs left out: cifar-10-binary.tar.gz is not in")
    assert lines[8] == "6 runs: 0 done, 0 unfinished, 6 missing"
    assert not (tmp_path / "runs").exists()
    one = cli("reproduce", "tiny", "--dry-run", "--only", "re-mkd", *places)
    assert "1 run: 0 done, 0 unfinished, 1 missing" in one.out


def test_a_queue_is_worked_off_and_shares_first_tasks(cli: Cli, tmp_path: Path, places: list[object]) -> None:
    done = cli("reproduce", "all", "--seeds", 1, "--minutes", 5, *places)
    assert done.code == 0, done.err
    assert "1 run left out: cifar-10-binary.tar.gz is not in" in done.out
    assert "3 runs: 2 done, 0 unfinished, 1 missing" in done.out
    shared = records.read(tmp_path / "results" / "digits-2" / "re-mkd-seed0")
    assert "first task shared with vanilla-mkd-seed0" in shared.notes
    again = cli("reproduce", "tiny", "--minutes", 5, *places)
    assert again.code == 0, again.err
    assert ": done" not in again.out
    assert "Tiny table" in again.out
    listed = " ".join(cli("reproduce", "all", "--dry-run", *places).out.split())
    assert "digits-2/re-mkd-seed0 0 done seed" not in listed
    assert "digits-2/vanilla-mkd-seed1 1 missing 1 min for 1 other" in listed


def test_minutes_end_a_run_that_goes_on_the_next_time(
    cli: Cli, tmp_path: Path, places: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [Item("long", "to test", [a_plan("digits/long", endless())])]
    monkeypatch.setattr(queue, "everything", lambda seeds, studies, shelf: items)
    begun = time.monotonic()
    done = cli("reproduce", "all", "--minutes", 0.2, *places)
    assert time.monotonic() - begun < 35
    assert done.code == 0, done.err
    assert "stopped, as the time is over; it can go on" in done.out
    assert "1 run: 0 done, 1 unfinished, 0 missing" in done.out
    assert records.read(tmp_path / "runs" / "digits" / "long").status == "running"
    assert "digits/long 0 unfinished ?" in " ".join(cli("reproduce", "all", "--dry-run", *places).out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["all", "--minutes", "0"], "--minutes 0: it takes more than 0"),
        (["all", "--minutes", "nan"], "--minutes nan: it takes more than 0"),
        (["tiny", "--minutes", "-3"], "--minutes -3: it takes more than 0"),
        (["all", "--minutes", "3", "--no-resume"], "leave --no-resume out"),
        (["all", "--only", "icral"], "unknown method in all 'icral'"),
        (["all", "--data", "cifar100"], "all has nothing on cifar100"),
        (["al"], "unknown table or figure 'al'"),
        (["all", "--seeds", "0"], "--seeds"),
    ],
)
def test_mistakes_are_explained(words: list[str], message: str, cli: Cli, places: list[object]) -> None:
    done = cli("reproduce", *words, *places)
    assert done.code == 2
    assert message in done.err
