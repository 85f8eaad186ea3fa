import io
import math
import re
import threading
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from edbl import metrics, records
from edbl.errors import EdblError
from edbl.recipe import Recipe
from edbl.records import Record
from edbl.report import plots
from edbl.report.files import write_report
from edbl.report.long import rows
from edbl.report.page import _summary_cells, html
from edbl.report.runs import Run, read_runs
from edbl.report.tables import METRICS, Stat, completed, groups, run_table
from edbl.text import duration


def make(method: str = "edbl", seed: int = 0, tasks: int = 3, **changes: Any) -> Record:
    """Return a record of three tasks with 3, 2 and 1 classes, its confusions drawn at random."""
    draw = np.random.default_rng([seed, *method.encode()])
    sizes = [3, 2, 1]
    confusions: dict[str, list[metrics.Confusion]] = {"cnn": [], "nme": []}
    for matrices in confusions.values():
        for task in range(tasks):
            seen = sum(sizes[: task + 1])
            matrices.append(draw.integers(0, 5, size=(seen, seen)) + 9 * np.eye(seen, dtype=np.int64))
    record = Record(
        method=method,
        data="digits",
        protocol="base0",
        phases=3,
        memory="total=20",
        order="natural",
        seed=seed,
        recipe={"method": method, "seed": seed, "schedule": {"epochs": 2}},
        classes=list("abcdef"),
        task_sizes=sizes,
        status="done",
        commit="abc123",
        versions={"torch": "2.9"},
        device="a small computer",
        started="2026-01-01T00:00:00+00:00",
        seconds=[4.0, 3.0, 2.0][:tasks],
        timings=[{"train": 3.0 - task, "evaluation": 0.5} for task in range(tasks)],
        confusions=confusions,
    )
    return replace(record, **changes)


def report(folder: Path, *runs: Record) -> str:
    places = []
    for number, run in enumerate(runs):
        records.write(run, folder / f"run{number}")
        places.append(folder / f"run{number}")
    return write_report(read_runs(places), folder / "out" / "report.html").read_text()


def terminal(runs: list[Record], width: int = 120) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(run_table(runs))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class Cells(HTMLParser):
    """Collects the text of each table cell, and checks that every tag is closed."""

    VOID = frozenset({"meta", "path", "use", "image", "rect", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag in self.VOID:
            return
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and {"td", "th"} & set(self.open):
            self.cells[-1] += data


def cells(page: str) -> list[str]:
    parser = Cells()
    parser.feed(page)
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids))
    return [cell.strip() for cell in parser.cells]


def test_stat() -> None:
    assert Stat.of([0.1, 0.3]) == pytest.approx((0.2, 0.1414213562, 2))
    assert Stat.of([0.1, 0.3]).percent() == "20.0 ± 14.1"
    assert Stat.of([0.5]).percent(2) == "50.00"
    assert Stat.of([]).percent() == "—"
    assert Stat.of([-0.00001]).percent() == "0.0"


def test_seeds_of_one_experiment_form_a_group() -> None:
    found = groups([make(seed=0), make("icarl"), make(seed=1), make(seed=2)])
    assert [(group.label, len(group.records)) for group in found] == [("edbl", 3), ("icarl", 1)]
    expected = Stat.of(record.accuracy["nme"][1] for record in found[0].records)
    assert found[0].accuracy("nme")[1] == expected
    summaries = [metrics.summary(record.confusions["cnn"], record.task_sizes) for record in found[0].records]
    for metric in METRICS:
        assert found[0].metric("cnn", metric.key) == Stat.of(summary[metric.key] for summary in summaries)


def test_an_option_that_is_newer_than_a_record_does_not_set_it_apart() -> None:
    new = dict(Recipe.build("edbl", "digits").values())
    old = {key: value for key, value in new.items() if key != "options.norm_share"}
    changed = {**new, "options.norm_share": "classes"}
    runs = [make(seed=0, recipe=old), make(seed=1, recipe=new), make(recipe=changed), make("icarl")]
    assert [(group.label, len(group.records)) for group in groups(completed(runs))] == [
        ("edbl · options.norm_share=drawn", 2),
        ("edbl · options.norm_share=classes", 1),
        ("icarl", 1),
    ]
    assert len(groups(runs)) == 4


def test_an_option_that_is_gone_sets_a_record_apart_where_it_was_not_the_default() -> None:
    new = dict(Recipe.build("edbl", "digits").values())
    old, other = ({**new, "options.factor": factor} for factor in ("decomposed", "coupled"))
    runs = [make(seed=0, recipe=old), make(seed=1, recipe=new), make(recipe=other)]
    assert [(group.label, len(group.records)) for group in groups(completed(runs))] == [
        ("edbl · options.factor=—", 2),
        ("edbl · options.factor=coupled", 1),
    ]


@pytest.mark.parametrize("method", ["gone.py", "of another time"])
def test_records_of_methods_that_are_not_there(tmp_path: Path, method: str) -> None:
    one, two = ({"method": method, "seed": 0, **more} for more in ({}, {"options.more": 1}))
    assert [g.label for g in groups(completed([make(method, recipe=one), make(method, recipe=two)]))] == [
        f"{method} · options.more=—",
        f"{method} · options.more=1",
    ]
    assert "options.more" in report(tmp_path, make(method, recipe=one), make(method, recipe=two))


def test_labels_say_what_differs_and_no_more() -> None:
    longer = {"method": "edbl", "seed": 0, "schedule": {"epochs": 20}}
    assert [g.label for g in groups([make(), make(recipe=longer), make("icarl")])] == [
        "edbl · schedule.epochs=2",
        "edbl · schedule.epochs=20",
        "icarl",
    ]
    other = make(data="cifar10", memory="total=200", phases=3)
    assert [g.label for g in groups([make(), other])] == ["edbl · digits", "edbl · cifar10"]
    assert [g.label for g in groups([make(), make(memory="per_class=20")])] == [
        "edbl · memory total=20",
        "edbl · memory per_class=20",
    ]


def test_labels_stay_short_and_unique() -> None:
    recipes = [{f"k{key}": value * (key + 1) for key in range(9)} for value in range(3)]
    labels = [group.label for group in groups([make(recipe=recipe) for recipe in recipes])]
    assert labels[1] == "edbl · k0=1 · k1=2 · k2=3"
    assert len(set(labels)) == 3
    path = make(data="/a/very/long/way/to/the/place/of/images")
    assert groups([make(), path])[1].label == "edbl · …/to/the/place/of/images"


def test_flat_and_nested_recipes_and_lists_and_tuples_are_the_same() -> None:
    nested = make(seed=1, recipe={"schedule": {"steps": [1, 2]}, "seed": 1})
    assert len(groups([make(recipe={"schedule.steps": (1, 2), "seed": 0}), nested])) == 1


def test_unfinished_runs_enter_no_mean() -> None:
    runs = [make(seed=0), make(seed=1), make(seed=2, tasks=2, status="running"), make(seed=3, status="failed", tasks=0)]
    assert [(group.label, len(group.records)) for group in groups(runs)] == [
        ("edbl", 2),
        ("edbl (unfinished, 2 of 3 tasks)", 1),
        ("edbl (failed, 0 of 3 tasks)", 1),
    ]


def test_parts_of_the_time() -> None:
    assert groups([make()])[0].parts() == pytest.approx({"train": 6.0, "evaluation": 1.5, "other": 1.5})
    assert groups([make(tasks=0)])[0].parts() == {}


def test_terminal_table() -> None:
    text = terminal([make(seed=0), make(seed=1), make("icarl"), make("lwf", tasks=0, status="running")])
    group = groups([make(seed=0), make(seed=1)])[0]
    for stat in [*group.accuracy("cnn"), group.metric("nme", "forgetting")]:
        assert stat.percent(sign="±") in text
    assert "no task finished" in text
    assert "sample standard deviation" in text


def test_terminal_table_of_a_single_run_in_a_narrow_window() -> None:
    text = terminal([make("[bold]x[/bold]")], width=60)
    assert "[bold]x" in text
    assert "±" not in text


def test_page_numbers_equal_metrics(tmp_path: Path) -> None:
    runs = [make(seed=0), make(seed=1), make("icarl")]
    found = cells(report(tmp_path, *runs))
    for group in groups(runs):
        for readout in ("cnn", "nme"):
            row = ["CNN" if readout == "cnn" else "NME"]
            accuracy = row + [stat.percent(1) for stat in group.accuracy(readout)]
            summary = row + [group.metric(readout, metric.key).percent(1) for metric in METRICS]
            for wanted in (accuracy, summary):
                assert any(found[start : start + len(wanted)] == wanted for start in range(len(found)))
            matrix = group.task_matrix(readout)
            assert f"{100 * matrix[2, 0]:.1f}" in found
    direct = metrics.average_incremental_accuracy(runs[2].confusions["cnn"])
    assert f"{100 * direct:.1f}" in found


def test_page_needs_nothing_else(tmp_path: Path) -> None:
    records.write_features(tmp_path / "run0", np.random.default_rng(0).normal(size=(24, 4)), np.arange(24) % 6)
    page = report(tmp_path, make(), make("icarl"))
    cells(page)
    assert "http:" not in page
    assert "https:" not in page
    assert "<script" not in page
    assert all(link.startswith(("#", "data:")) for link in re.findall(r'(?:href|src)="([^"]*)"', page))
    assert "t-SNE" in page
    assert "abc123" in page
    assert "torch 2.9" in page
    assert "a small computer" in page
    assert str(tmp_path) not in page


def test_same_records_same_page(tmp_path: Path) -> None:
    records.write_features(tmp_path / "run0", np.random.default_rng(0).normal(size=(24, 4)), np.arange(24) % 6)
    first = report(tmp_path, make(), make(seed=1))
    assert first == report(tmp_path, make(), make(seed=1))


def test_names_are_text(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    odd = [bad, '"><b id="x">', "_under", "$\\frac{1}{$", "猫\x00\udcff", "{{ 7 * 7 }}"]
    run = make(bad, classes=odd, message=bad, notes=[bad], status="failed", device=bad, recipe={bad: bad}, data=bad)
    records.write_features(tmp_path / "run0", np.random.default_rng(0).normal(size=(24, 4)), np.arange(24) % 6)
    page = report(tmp_path, run, make(data=bad, classes=odd))
    cells(page)
    assert "<script" not in page
    assert "<b " not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "_under" in page
    assert "{{ 7 * 7 }}" in page


def test_notes_name_the_runs_that_they_are_about(tmp_path: Path) -> None:
    page = report(tmp_path, make(notes=["all"]), make(seed=1, notes=["all", "two"]), make(seed=2, notes=["all", "two"]))
    assert "Note: all<" in page
    assert "Note: run1, run2: two<" in page


def test_unfinished_runs_are_marked(tmp_path: Path) -> None:
    failed = make("icarl", tasks=1, status="failed", message="out of memory")
    page = report(tmp_path, make(), failed, make("lwf", tasks=0, status="running"))
    assert "2 of 3 runs not finished" in page
    assert "out of memory" in page
    assert "icarl (failed, 1 of 3 tasks)" in page
    assert "no task finished" in page


def test_only_runs_without_a_finished_task(tmp_path: Path) -> None:
    page = report(tmp_path, make(tasks=0, status="running", task_sizes=[], classes=[]))
    assert "no task finished" in page
    assert "<svg" not in page


def test_mixed_data_sets_have_a_part_each(tmp_path: Path) -> None:
    page = report(tmp_path, make(), make(data="/some/where/photos", phases=2))
    assert re.findall(r"<h2>(.*) · base0", page) == ["digits", "photos"]


def test_recipes_show_what_differs(tmp_path: Path) -> None:
    longer = {"method": "edbl", "seed": 0, "schedule": {"epochs": 20}, "options": {"own": 5}}
    page = report(tmp_path, make(), make(recipe=longer))
    assert page.count("<mark>20</mark>") == 2
    assert page.count("<mark>5</mark>") == 1
    assert "<mark>edbl</mark>" not in page


def test_different_images_are_noted(tmp_path: Path) -> None:
    assert "did not all have the same images" in report(tmp_path, make(), make(seed=1, data_fingerprint="other"))
    held_out = {"method": "edbl", "data.holdout": 0.1}
    split = [make(seed=seed, data_fingerprint=str(seed), recipe=held_out) for seed in (0, 1)]
    assert "did not all have the same images" not in report(tmp_path / "held out", *split)
    assert [len(group.records) for group in groups(split)] == [2]


def test_runs_of_other_code_or_images_are_no_seeds_of_one_experiment() -> None:
    runs = [
        make(seed=0, code={"method": "a" * 64}, data_fingerprint="b" * 32),
        make(seed=1, code={"method": "c" * 64}, data_fingerprint="b" * 32),
        make(seed=2, code={"method": "a" * 64}, data_fingerprint="d" * 32),
    ]
    assert [group.label for group in groups(runs)] == [
        "edbl · code of method=aaaaaaaa · images=bbbbbbbb",
        "edbl · code of method=cccccccc · images=bbbbbbbb",
        "edbl · code of method=aaaaaaaa · images=dddddddd",
    ]


def test_a_run_that_repeats_another_counts_once() -> None:
    lost = make(seed=1, losses=[{"train": [0.5]}])
    (group,) = groups([make(), make(), make(seed=1), lost])
    assert [record.seed for record in group.records] == [0, 1, 1]


def test_run_with_one_readout(tmp_path: Path) -> None:
    run = make()
    run.confusions["nme"] = []
    found = cells(report(tmp_path, run))
    assert "NME" not in found


def test_report_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    with pytest.raises(EdblError, match="nothing to report"):
        write_report([], tmp_path / "x.html")
    records.write(make(), tmp_path / "run")
    with pytest.raises(EdblError, match="it is a folder"):
        write_report(read_runs([tmp_path / "run"]), tmp_path)
    with pytest.raises(EdblError, match="no such run folder"):
        read_runs([tmp_path / "none"])
    records.write_features(tmp_path / "run", np.zeros((3, 2)), np.array([0, 1, 6]))
    with pytest.raises(EdblError, match="has not seen"):
        write_report(read_runs([tmp_path / "run"]), tmp_path / "x.html")


def test_a_run_named_twice_counts_once(tmp_path: Path) -> None:
    records.write(make(), tmp_path / "run")
    out = write_report(read_runs([tmp_path / "run", tmp_path / "run" / ".." / "run"]), tmp_path / "report.html")
    assert "1 run of 1 method" in out.read_text()


def test_figures_are_svg_and_repeatable() -> None:
    found = groups([make(seed=0), make(seed=1), make("icarl"), make("lwf", tasks=0)])
    before = dict(dict.items(matplotlib.rcParams))  # as it is stored: looking a backend up would choose one
    for draw in (plots.accuracy_curves, plots.timings):
        svg = draw(found)
        assert svg == draw(found)
        root = ElementTree.fromstring(svg)
        assert root.tag.endswith("svg")
        assert "currentColor" in svg
        assert ">icarl</text>" in svg
        assert "date" not in svg
    assert dict(dict.items(matplotlib.rcParams)) == before


def test_confusion_names_few_classes_only() -> None:
    few = plots.confusion(np.eye(20, dtype=np.int64), [f"class {k}" for k in range(20)], [10, 10])
    many = plots.confusion(np.eye(21, dtype=np.int64), [f"class {k}" for k in range(21)], [11, 10])
    assert "class 19" in few
    assert "class" not in many.replace("true class", "")
    ElementTree.fromstring(many)
    assert "NaN" not in plots.confusion(np.zeros((3, 3), dtype=np.int64), list("abc"), [2, 1])


@pytest.mark.parametrize(
    "features",
    [
        np.zeros((30, 4), dtype=np.float32),
        np.full((30, 4), np.nan, dtype=np.float16),
        np.random.default_rng(0).normal(size=(30, 1)),
        np.random.default_rng(0).normal(size=(5, 200)).astype(np.float16),
        np.zeros((0, 4), dtype=np.float32),
    ],
)
def test_tsne_of_odd_features(features: Any) -> None:
    svg = plots.tsne(features, np.arange(len(features)) % 3, list("abc"), [2, 1])
    ElementTree.fromstring(svg)
    assert "nan" not in svg
    assert ("too few" in svg) == (not np.isfinite(features).any())


def test_tsne_marks_the_newest_task() -> None:
    features = np.random.default_rng(0).normal(size=(40, 3))
    labels = np.arange(40) % 4
    old = plots.tsne(features, labels, list("abcd"), [2, 2])
    assert old == plots.tsne(features, labels, list("abcd"), [2, 2])
    assert old != plots.tsne(features, labels, list("abcd"), [3, 1])
    many = plots.tsne(features, labels, [str(name) for name in range(30)], [20, 10])
    ElementTree.fromstring(many)


def test_even_subset_takes_as_many_of_each_class() -> None:
    labels = np.array([0] * 50 + [1] * 3 + [2] * 50)
    chosen = plots.even_subset(labels, 23)
    assert np.bincount(labels[chosen]).tolist() == [10, 3, 10]
    assert len(plots.even_subset(labels, 1000)) == 103


def test_save_curves(tmp_path: Path) -> None:
    found = groups([make(), make("icarl")])
    plots.save_curves(found, tmp_path / "curves.png")
    plots.save_curves(found, tmp_path / "curves.svg")
    with Image.open(tmp_path / "curves.png") as image:
        assert image.width > 800
    ElementTree.parse(tmp_path / "curves.svg")
    assert "currentColor" not in (tmp_path / "curves.svg").read_text()
    with pytest.raises(EdblError, match=r"\.svg or \.png"):
        plots.save_curves(found, tmp_path / "curves.gif")


def test_more_groups_than_colours() -> None:
    found = groups([make(f"method{number}") for number in range(14)])
    assert "method13" in plots.accuracy_curves(found)


def test_figures_can_be_drawn_outside_the_main_thread() -> None:
    drawn: list[str] = []
    thread = threading.Thread(target=lambda: drawn.append(plots.accuracy_curves(groups([make()]))))
    thread.start()
    thread.join()
    assert drawn == [plots.accuracy_curves(groups([make()]))]


def test_duration() -> None:
    assert [duration(seconds) for seconds in (1.25, 125, 12000, float("nan"))] == [
        "1.2 s",
        "2 min 05 s",
        "3 h 20 min",
        "—",
    ]


@pytest.mark.parametrize(("tasks", "old"), [(3, 5), (2, 3), (1, 0)])
def test_true_share_of_new_images_is_that_of_the_truth(tasks: int, old: int) -> None:
    record = make(tasks=tasks)
    last = record.confusions["cnn"][-1]
    assert groups([record])[0].true_share_new == last.sum(1)[old:].sum() / last.sum()
    assert tasks == 1 or last.sum(1)[old:].sum() != last.sum(0)[old:].sum()


def test_runs_with_other_readouts_form_a_group_of_their_own() -> None:
    whole, alone = make(seed=0), make(seed=1)
    alone = replace(alone, confusions={"cnn": alone.confusions["cnn"]})
    found = groups([whole, alone])
    assert [group.readouts for group in found] == [["cnn", "nme"], ["cnn"]]
    assert terminal([whole, alone])


def test_a_run_that_failed_after_its_last_task_enters_no_mean() -> None:
    found = groups([make(seed=0), make(seed=1, status="failed")])
    assert [group.label for group in found] == ["edbl", "edbl (failed, 3 of 3 tasks)"]


def test_times_are_means_over_runs() -> None:
    slow = make(seed=1, seconds=[8.0, 5.0, 2.0])
    (group,) = groups([make(), slow])
    assert [(stat.mean, stat.n) for stat in group.seconds()] == [(6.0, 2), (4.0, 2), (2.0, 2)]
    assert group.parts() == pytest.approx({"train": 6.0, "evaluation": 1.5, "other": 4.5})
    short = make(seed=1, seconds=[1.0, 1.0, 1.0])  # less than its parts took
    (group,) = groups([make(), short])
    assert group.parts() == pytest.approx({"train": 6.0, "evaluation": 1.5, "other": 0.75})


def test_recipes_are_compared_within_a_setting_alone() -> None:
    longer = {"method": "edbl", "seed": 0, "schedule": {"epochs": 20}}
    found = groups([make(), make(data="cifar10", recipe=longer)])
    assert [group.label for group in found] == ["edbl · digits", "edbl · cifar10"]


def test_a_label_stands_in_the_first_row_of_its_experiment_alone() -> None:
    rows = [line for line in terminal([make()]).splitlines() if "CNN" in line or "NME" in line]
    assert ["edbl" in row for row in rows] == [True, False]


def test_stat_leaves_nan_out() -> None:
    assert Stat.of([0.1, float("nan"), 0.3]) == Stat.of([0.1, 0.3])
    assert Stat.of([float("nan")]).percent() == "—"


def test_the_matrix_of_tasks_is_a_mean_over_runs() -> None:
    runs = [make(seed=0), make(seed=1)]
    first, second = (metrics.task_matrix(run.confusions["nme"], run.task_sizes) for run in runs)
    np.testing.assert_allclose(groups(runs)[0].task_matrix("nme"), (first + second) / 2)


def boosted(**changes: Any) -> Record:
    """Return a record with classifiers of the method's own."""
    record = make(**changes)
    draw = np.random.default_rng(9)
    own: dict[str, list[metrics.Confusion]] = {
        name: [matrix + 3 * draw.integers(0, 5, size=matrix.shape) for matrix in record.confusions["cnn"]]
        for name in ("boosted", "odd <b>")
    }
    return replace(record, confusions=record.confusions | own)


def held(*runs: Record) -> list[Run]:
    return [Run(Path(f"run{number}"), record, f"run{number}") for number, record in enumerate(runs)]


def test_classifiers_of_a_method_s_own_go_by_their_names(tmp_path: Path) -> None:
    runs = [boosted(seed=0), boosted(seed=1), make("icarl")]
    own, other = groups(runs)
    assert (own.readouts, other.readouts) == (["cnn", "nme", "boosted", "odd <b>"], ["cnn", "nme"])
    page = report(tmp_path, *runs)
    assert "classifiers that a method adds" in page
    assert "classifiers that a method adds" not in html(held(make()))
    shown = cells(page)
    for readout, name in (("cnn", "CNN"), ("boosted", "boosted"), ("odd <b>", "odd <b>")):
        row = [name, *(own.metric(readout, metric.key).percent(1) for metric in METRICS)]
        assert any(shown[start : start + len(row)] == row for start in range(len(shown)))
        assert own.metric(readout, "last_accuracy").percent(sign="±") in terminal(runs)
    svg = plots.accuracy_curves([own])
    assert [f">{name}</text>" in svg for name in ("CNN", "NME", "boosted", "odd &lt;b&gt;")] == [True] * 4


def test_curves_name_the_readouts_that_are_there() -> None:
    record = make()
    alone = plots.accuracy_curves(groups([replace(record, confusions={"cnn": record.confusions["cnn"], "nme": []})]))
    assert ">CNN</text>" in alone
    assert ">NME</text>" not in alone
    assert ">CNN</text>" not in plots.accuracy_curves(groups([make(tasks=0)]))


def test_a_readout_that_was_not_measured_after_all_tasks() -> None:
    record = boosted()
    record.confusions["boosted"].pop()
    assert "boosted" in html(held(record))
    numbers = [row for row in rows(held(record)) if row["readout"] == "boosted" and row["metric"] == "accuracy"]
    assert [row["seen"] for row in numbers] == [3, 5]


def test_what_is_told_the_task_is_never_the_best() -> None:
    record = make()
    told = [np.diag(matrix.sum(1)) for matrix in record.confusions["cnn"]]  # all right
    page = html(held(replace(record, confusions=record.confusions | {"task-aware": told}), make("icarl")))
    assert '<td class="best">' in page
    assert re.search(r"<td>100\.0</td>", page)
    assert '<td class="best">100.0</td>' not in page
    assert "task-aware: these scores among" in page
    assert "classifiers that a method adds" not in page


def test_a_stream_whose_classes_come_back(tmp_path: Path) -> None:
    usual = make()
    matrices = {readout: [found[0], found[0], found[1]] for readout, found in usual.confusions.items()}
    back: dict[str, Any] = {"confusions": matrices, "task_sizes": [3, 0, 2], "returning": [[], [0, 2], [1]]}
    page = report(tmp_path, replace(usual, **back))
    assert "3 tasks, 3 + 0 + 2 new classes" in page
    assert "classes come back" in page
    assert "<th>task 1</th><th>task 2</th><th>task 3</th>" in page
    assert "nan" not in page.lower().replace("nano", "")
    assert "classes come back" not in report(tmp_path / "usual", usual)
    (group,) = groups([replace(usual, **back)])
    assert group.places == [1, 2, 3]
    ends_with_none = {**back, "task_sizes": [3, 2, 0], "returning": [[], [], [1]]}
    ends_with_none["confusions"] = {readout: [*found[:2], found[1]] for readout, found in usual.confusions.items()}
    (group,) = groups([replace(usual, **ends_with_none)])
    assert math.isnan(group.true_share_new)
    assert "of its new classes." not in report(tmp_path / "none", replace(usual, **ends_with_none))


def test_a_page_begins_with_what_was_found_and_how_sure_it_is(tmp_path: Path) -> None:
    runs = [make(seed=0), make("icarl", seed=0)]
    last = {run.method: metrics.last_accuracy(run.confusions["cnn"]) for run in runs}
    first, second = sorted(last, key=lambda name: -last[name])
    page = unescape(report(tmp_path, *runs))
    weight = 100 / next(run for run in runs if run.method == first).confusions["cnn"][-1].sum()
    told = (
        f"With CNN, after {len(runs[0].classes)} classes, {first} gets {100 * last[first]:.1f}% right, {second} "
        f"{100 * last[second]:.1f}%. One seed each, so chance is not measured; "
        f"one test image weighs {weight:.2f} points."
    )
    assert told in page
    paired = unescape(report(tmp_path, *runs, make(seed=1), make("icarl", seed=1)))
    assert "Over 2 pairs of the same seed the difference is" in paired
    assert "cannot be told apart" in paired


def test_where_one_image_decides_nothing_is_bold() -> None:
    one, other = make(seed=0), make("icarl", seed=0)
    for matrices in other.confusions.values():
        for place, matrix in enumerate(one.confusions["cnn"]):
            matrices[place] = matrix.copy()
    other.confusions["cnn"][-1][0, 0] += 1
    other.confusions["cnn"][-1][0, 1] -= 1
    assert not any(bold for cells in _summary_cells(groups([one, other])) for _, bold in cells["cnn"])
