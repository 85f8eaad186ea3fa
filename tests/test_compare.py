"""Two experiments over pairs of runs: what is a pair, what is not, and what is said about it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edbl import EdblError, metrics, records
from edbl.metrics import Difference
from edbl.records import Record
from edbl.report import compare as comparing
from edbl.report.compare import compare, notes
from tests.conftest import Cli
from tests.test_report import boosted, make


def write(folder: Path, *runs: Record) -> list[Path]:
    places = [folder / f"{run.method}-seed{run.seed}" for run in runs]
    for run, place in zip(runs, places, strict=True):
        records.write(run, place)
    return places


def seeds(method: str, number: int = 3, **changes: Any) -> list[Record]:
    return [make(method, seed, **changes) for seed in range(number)]


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.mark.parametrize("how", ["folders", "every run", "all of a folder", "methods"])
def test_pairs_are_of_the_same_seed_however_they_are_named(tmp_path: Path, how: str) -> None:
    one, other = seeds("edbl"), seeds("rkd")[::-1]
    places = [*write(tmp_path / "a", *one), *write(tmp_path / "b", *other)]
    found = {
        "folders": lambda: compare([tmp_path / "a", tmp_path / "b"]),
        "every run": lambda: compare(places),
        "all of a folder": lambda: compare([tmp_path]),
        "methods": lambda: compare([tmp_path], ["edbl", "rkd"]),
    }[how]()
    assert (found.one.name, found.other.name, found.seeds) == ("edbl", "rkd", [0, 1, 2])
    for readout in ("cnn", "nme"):
        for measure, number in (("average", metrics.average_incremental_accuracy), ("last", metrics.last_accuracy)):
            both = [[number(make(name, seed).confusions[readout]) for seed in range(3)] for name in ("edbl", "rkd")]
            assert found.difference(readout, measure) == Difference.of(*both)


def test_methods_give_the_order(tmp_path: Path) -> None:
    write(tmp_path, *seeds("edbl"), *seeds("rkd"), *seeds("icarl"))
    there, back = (compare([tmp_path], names).difference("cnn", "last") for names in (["edbl", "rkd"], ["rkd", "edbl"]))
    assert there.mean == pytest.approx(-back.mean)
    assert there.mean != 0


def test_the_command_prints_what_a_paper_needs(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, *seeds("edbl", 4), *seeds("rkd", 4))
    done = cli("compare", tmp_path, "--methods", "edbl,rkd")
    assert done.code == 0, done.err
    assert done.out.startswith("edbl minus rkd, digits · base0 · 3 tasks: 4 pairs, seeds 0, 1, 2, 3\n")
    difference = compare([tmp_path], ["edbl", "rkd"]).difference("nme", "average")
    row = next(line for line in words(done.out) if line[:2] == ["NME", "average"])
    low, high = difference.mean - difference.half, difference.mean + difference.half
    interval = [f"{100 * low:+.2f}", "to", f"{100 * high:+.2f}"]
    tests = [f"{difference.t_test:.4f}", f"{difference.wilcoxon:.4f}"]
    assert row[4:] == [f"{100 * difference.mean:+.2f}", *interval, *tests, "4"]
    assert "with 4 pairs Wilcoxon's p cannot be below 0.125" in done.out


@pytest.mark.parametrize(("larger", "told"), [(1_090_000, False), (2_000_000, True)])
def test_other_bytes_are_told(cli: Cli, tmp_path: Path, larger: int, told: bool) -> None:
    kept = [[{"exemplars": 5, "net": size, "memory": 0, "state": 0}] * 3 for size in (1_000_000, larger)]
    runs = [replace(make(name), kept=sizes) for name, sizes in zip(("edbl", "rkd"), kept, strict=True)]
    done = cli("compare", *write(tmp_path, *runs))
    assert ("edbl keeps 1.0 MB after the last task, and rkd 2.0 MB" in done.out) is told
    assert ("kept, MB" in cli("report", tmp_path).out) is True


def test_one_pair_gives_no_interval(cli: Cli, tmp_path: Path) -> None:
    one, other = write(tmp_path, make(), make("rkd"))
    done = cli("compare", one, other)
    assert done.code == 0, done.err
    assert "one pair gives no interval and no test: run more seeds" in done.out
    row = next(line for line in words(done.out) if line[:2] == ["CNN", "average"])
    assert row[5:] == ["—", "—", "—", "1"]


def test_many_pairs_need_no_word_about_their_number(tmp_path: Path) -> None:
    write(tmp_path, *seeds("edbl", 6), *seeds("rkd", 6))
    assert len(notes(compare([tmp_path]))) == 1


def test_settings_of_one_method_are_compared_by_folders(tmp_path: Path) -> None:
    longer = {"method": "edbl", "seed": 0, "schedule": {"epochs": 20}}
    write(tmp_path / "short", *seeds("edbl"))
    write(tmp_path / "long", *seeds("edbl", recipe=longer))
    found = compare([tmp_path / "short", tmp_path / "long"])
    assert (found.one.name, found.other.name) == ("edbl · schedule.epochs=2", "edbl · schedule.epochs=20")
    assert "their recipes differ in schedule.epochs" in notes(found)
    write(tmp_path, *seeds("rkd"))
    with pytest.raises(EdblError, match=r"edbl has runs of 2 experiments, edbl · schedule\.epochs"):
        compare([tmp_path], ["edbl", "rkd"])


def test_the_same_runs_before_and_after_go_by_their_folders(tmp_path: Path) -> None:
    for name in ("before", "after"):
        write(tmp_path / name, *seeds("edbl", losses=[{"train": [float(len(name))]}] * 3))
    found = compare([tmp_path / "before", tmp_path / "after"])
    assert (found.one.name, found.other.name) == (str(tmp_path / "before"), str(tmp_path / "after"))
    assert set(found.difference("cnn", "last").values) == {0.0}
    assert comparing.table(found).row_count == 4


def test_readouts_that_one_has_alone_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one, other = write(tmp_path, make(), make("rkd"))
    read = {one: boosted(), other: replace(make("rkd"), confusions={"cnn": make("rkd").confusions["cnn"]})}
    monkeypatch.setattr("edbl.report.runs.read", lambda folder: read[folder])
    found = compare([one, other])
    assert found.readouts == ["cnn"]
    assert "only edbl has NME, boosted, odd <b>" in notes(found)
    read[other] = replace(make("rkd"), confusions={})
    with pytest.raises(EdblError, match="no classifier in common"):
        compare([one, other])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data_fingerprint": "f" * 32}, "edbl has images digits, and rkd digits ffffffff"),
        ({"task_sizes": [2, 2, 2]}, r"edbl has task sizes 3 \+ 2 \+ 1, and rkd 2 \+ 2 \+ 2"),
        ({"task_sizes": [3, 2, 1, 1]}, r"task sizes .* \+ 1 \+ 1"),
        ({"classes": list("fedcba"), "order": "1993"}, "edbl has class order natural, and rkd 1993"),
        ({"memory": "total=50"}, "edbl has memory total=20, and rkd total=50"),
        ({"recipe": {"method": "rkd", "seed": 0, "stream.shots": 5}}, r"edbl has stream\.shots 0, and rkd 5"),
    ],
)
def test_what_differs_in_more_than_the_method_is_no_pair(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    one, other = write(tmp_path, make(seed=2), make("rkd", 2))
    read = {one: make(seed=2), other: make("rkd", 2, **changes)}
    monkeypatch.setattr("edbl.report.runs.read", lambda folder: read[folder])
    with pytest.raises(EdblError, match=f"^not paired: at seed 2, .*{words}$"):
        compare([tmp_path], ["edbl", "rkd"])


def test_images_held_out_by_seed_are_pairs(tmp_path: Path) -> None:
    for method in ("edbl", "rkd"):
        held = {"method": method, "data.holdout": 0.1}
        write(tmp_path, *(make(method, seed, data_fingerprint=str(seed), recipe=held) for seed in (0, 1)))
    assert compare([tmp_path]).seeds == [0, 1]


def test_seeds_must_be_the_same(tmp_path: Path) -> None:
    write(tmp_path / "a", *seeds("edbl", 3))
    write(tmp_path / "b", *seeds("rkd", 4))
    with pytest.raises(EdblError, match=r"not paired: seed 3 is of .*b alone; name runs of the same seeds"):
        compare([tmp_path / "a", tmp_path / "b"])


def test_a_seed_twice_is_refused_and_a_copy_is_not(tmp_path: Path) -> None:
    write(tmp_path / "b", make("rkd"))
    write(tmp_path / "a", make())
    write(tmp_path / "a" / "copy", make())
    assert compare([tmp_path / "a", tmp_path / "b"]).seeds == [0]
    write(tmp_path / "a" / "other", make(losses=[{"train": [1.0]}] * 3))
    with pytest.raises(EdblError, match="has two runs of seed 0, with other results"):
        compare([tmp_path / "a", tmp_path / "b"])


def test_unfinished_runs_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", make(), make(seed=1, tasks=2, status="running"))
    write(tmp_path / "b", *seeds("rkd", 2))
    with pytest.raises(EdblError, match=r"edbl-seed1 is not done: go on by `edbl resume .*`, or leave it out"):
        compare([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "runs of 3 experiments, edbl, icarl, rkd: name two folders, or `edbl compare"),
        (["--methods", "edbl"], "--methods takes two methods with a comma between them, not 'edbl'"),
        (["--methods", "edbl,edbl"], "--methods takes two methods"),
        (["--methods", "edbl,rkd,icarl"], "--methods takes two methods"),
        (["--methods", "edbl,rk"], "unknown method 'rk': did you mean 'rkd'?"),
        (["nowhere"], "no such run folder: 'nowhere'"),
    ],
)
def test_two_experiments_must_be_named(cli: Cli, tmp_path: Path, arguments: list[str], words: str) -> None:
    write(tmp_path, make(), make("rkd"), make("icarl"))
    done = cli("compare", tmp_path, *arguments)
    assert done.code == 2
    assert words in done.err


def test_one_experiment_alone_is_nothing_to_compare(tmp_path: Path) -> None:
    write(tmp_path, *seeds("edbl"))
    with pytest.raises(EdblError, match="runs of 1 experiment, edbl: name two folders"):
        compare([tmp_path])
