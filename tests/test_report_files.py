"""From records to a paper: all runs below a folder, and their numbers as CSV, LaTeX, Markdown and a data frame."""

import csv
import io
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import edbl
from edbl import EdblError, metrics, records
from edbl.report.files import write_report
from edbl.report.long import COLUMNS, as_csv
from edbl.report.paste import latex, markdown
from edbl.report.runs import read_runs
from edbl.report.tables import BRIEF, groups
from tests.conftest import Cli
from tests.test_report import boosted, held, make


def write_all(folder: Path) -> None:
    """Write three runs, not all at the same depth, with files beside them."""
    for name, record in (("a/edbl-seed0", make()), ("a/edbl-seed1", make(seed=1)), ("icarl", make("icarl"))):
        records.write(record, folder / name)
    (folder / "report.html").write_text("an older one")
    (folder / "a" / "notes.txt").touch()


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_all_runs_below_a_folder(tmp_path: Path) -> None:
    write_all(tmp_path)
    assert [run.name for run in read_runs([tmp_path])] == ["a/edbl-seed0", "a/edbl-seed1", "icarl"]
    assert [run.name for run in read_runs([tmp_path / "icarl", tmp_path])] == ["icarl", "a/edbl-seed0", "a/edbl-seed1"]
    assert len(read_runs(sorted(tmp_path.iterdir()))) == 3  # as a shell names them, report.html among them


def test_a_folder_without_runs_and_files_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EdblError, match=r"no run in .* or below it: a run is a folder with record\.json"):
        read_runs([tmp_path])
    for name in ("file", "nowhere"):
        with pytest.raises(EdblError, match="no such run folder"):
            read_runs([tmp_path / name])


def test_a_broken_run_below_a_folder_is_named(tmp_path: Path) -> None:
    write_all(tmp_path)
    (tmp_path / "icarl" / "record.json").write_text("{")
    with pytest.raises(EdblError, match=r"broken run '.*icarl'"):
        read_runs([tmp_path])


@pytest.mark.parametrize("name", ["report", "t.pdf", "t.csv.gz", ".csv"])
def test_a_suffix_that_says_of_no_kind_is_refused_before_anything_else(cli: Cli, tmp_path: Path, name: str) -> None:
    write_all(tmp_path)
    found = cli("report", tmp_path, "--out", tmp_path / name)
    assert (found.code, found.out) == (2, "")
    assert f"{name}': end its name in .html, .csv, .tex or .md" in found.err
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("name", "begin"), [("t.csv", "run,"), ("t.TEX", "% Needs"), ("t.md", "digits"), ("t.html", "<")]
)
def test_the_suffix_says_of_which_kind_a_report_is(cli: Cli, tmp_path: Path, name: str, begin: str) -> None:
    write_all(tmp_path)
    found = cli("report", tmp_path, "--out", tmp_path / "new" / name)
    assert found.code == 0
    assert "icarl" in found.out
    assert (tmp_path / "new" / name).read_text().startswith(begin)
    assert (tmp_path / "report.html").read_text() == "an older one"


def test_the_page_of_a_folder_lies_in_it(cli: Cli, tmp_path: Path) -> None:
    write_all(tmp_path)
    assert cli("report", tmp_path).code == 0
    assert "3 runs of 2 methods" in (tmp_path / "report.html").read_text()


def test_csv_has_a_row_for_each_number() -> None:
    runs = [make(seed=0), boosted(seed=1), make("icarl", tasks=2, status="running"), make("lwf", tasks=0)]
    found = table(as_csv(held(*runs)))
    assert tuple(found[0]) == COLUMNS
    assert len(found) == 2 * (3 + 8) + 4 * (3 + 8) + 2 * (2 + 8)
    of_run = [row for row in found if row["run"] == "run1" and row["readout"] == "boosted"]
    assert {row["experiment"] for row in of_run} == {"edbl"}
    after = [(row["task"], row["seen"], float(row["value"])) for row in of_run if row["metric"] == "accuracy"]
    matrices = runs[1].confusions["boosted"]
    assert after == list(zip("123", "356", metrics.accuracies(matrices), strict=True))
    whole = {row["metric"]: float(row["value"]) for row in of_run if not row["task"]}
    assert whole == metrics.summary(matrices, [3, 2, 1])
    about = ("edbl", "digits", "base0", "3", "total=20", "natural", "1", "done")
    assert tuple(of_run[0][key] for key in COLUMNS[2:10]) == about
    assert {row["experiment"] for row in found if row["method"] == "icarl"} == {"icarl (unfinished, 2 of 3 tasks)"}


def test_what_was_kept_has_rows_of_its_own() -> None:
    record = replace(make(tasks=2), kept=[{"exemplars": 5, "net": 100, "memory": 20, "state": 3}] * 2)
    rows = [row for row in table(as_csv(held(record))) if row["metric"].startswith("kept")]
    assert [(row["readout"], row["metric"], row["task"], row["value"]) for row in rows] == [
        ("", metric, task, value) for task in "12" for metric, value in (("kept_exemplars", "5"), ("kept_bytes", "123"))
    ]


def test_what_does_not_exist_is_an_empty_cell() -> None:
    (row,) = [row for row in table(as_csv(held(make(tasks=1)))) if "first" in row["metric"] and row["readout"] == "nme"]
    assert (row["metric"], row["value"]) == ("average_without_first", "")


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", '=HYPERLINK("x")'])
def test_a_spreadsheet_computes_no_name(name: str) -> None:
    record = make(name, data=name, order=name)
    record = replace(record, confusions={name: record.confusions["cnn"]})
    for row in table(as_csv(held(record))):
        assert [row[key] for key in ("method", "data", "order", "readout", "experiment")] == [f"'{name}"] * 5
        assert float(row["value"]) <= 1
    negative = [row["value"] for row in table(as_csv(held(record))) if row["metric"] == "backward_transfer"]
    assert negative[0][0] in "-0"


def test_odd_names_break_no_line(tmp_path: Path) -> None:
    odd = 'a,"b"\nc\x00\t|\udcff'
    record = replace(make(), method=odd)
    written = as_csv(held(record))
    assert {row["method"] for row in table(written)} == {'a,"b"\\nc\\x00\\t|\\udcff'}
    for text in (latex, markdown):
        assert len(text(held(record)).splitlines()) == len(text(held(make())).splitlines())
    write_report(held(record), tmp_path / "t.csv")


def test_a_copy_of_a_run_is_no_other_run() -> None:
    assert len(table(as_csv(held(make(), make())))) == len(table(as_csv(held(make()))))


def test_frame_has_the_rows_of_the_csv(tmp_path: Path) -> None:
    import pandas

    write_all(tmp_path)
    found = edbl.frame(tmp_path)
    written = pandas.read_csv(write_report(read_runs([tmp_path]), tmp_path / "t.csv"), dtype=found.dtypes.to_dict())
    pandas.testing.assert_frame_equal(found, written)
    last = found[(found.metric == "last_accuracy") & (found.readout == "cnn")].groupby("experiment").value.mean()
    group = groups([make(), make(seed=1)])[0]
    assert last["edbl"] == pytest.approx(group.metric("cnn", "last_accuracy").mean)
    assert found[found.metric == "accuracy"].task.max() == 3
    assert len(edbl.frame(str(tmp_path / "icarl"))) == 22


def test_frame_of_runs_without_a_finished_task(tmp_path: Path) -> None:
    records.write(make(tasks=0, status="running"), tmp_path / "run")
    assert list(edbl.frame(tmp_path).columns) == list(COLUMNS)
    assert edbl.frame(tmp_path).empty


def test_without_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(EdblError, match=r"needs pandas: run `pip install 'edbl\[pandas\]'`"):
        edbl.frame(tmp_path)


def test_latex_table() -> None:
    runs = [make(seed=0), make(seed=1), make("icarl"), make("lwf", tasks=0, status="failed")]
    lines = latex(held(*runs)).splitlines()
    assert lines[2:6] == [
        "% digits · base0 · 3 tasks",
        "\\begin{tabular}{llrrrr}",
        "\\toprule",
        "Method & Classifier & n & Average & Last & Forgetting \\\\",
    ]
    assert lines[-2:] == ["\\bottomrule", "\\end{tabular}"]
    edbl_, icarl = groups(runs[:3])
    numbers = [edbl_.metric("nme", metric.key).percent(2).replace("±", "\\pm") for metric in BRIEF]
    row = next(line for line in lines if line.startswith(" & NME & 2"))
    assert re.sub(r"\\mathbf\{([^}]*)\}", r"\1", row) == f" & NME & 2 & {' & '.join(f'${n}$' for n in numbers)} \\\\"
    best = max(group.metric(readout, "last_accuracy").mean for group in (edbl_, icarl) for readout in ("cnn", "nme"))
    assert sum(line.split(" & ")[4].startswith("$\\mathbf") for line in lines[7:11]) == 1
    assert any(f"$\\mathbf{{{100 * best:.2f}" in line.split(" & ")[4] for line in lines[7:11])
    assert not any("lwf" in line for line in lines)


def test_a_table_for_each_stream() -> None:
    runs = held(make(), make(data="/a/b/photos", phases=2))
    assert [line for line in latex(runs).splitlines() if line.startswith("% ")][1:] == [
        "% digits · base0 · 3 tasks",
        "% photos · base0 · 2 tasks",
    ]
    assert markdown(runs).count("| Method |") == 2


def test_names_are_escaped_for_latex() -> None:
    record = replace(make(r"a_b\c{d}$e&f#g%h~i^j<k>|"), data="x%y")
    text = latex(held(record))
    assert (
        r"a\_b\textbackslash{}c\{d\}\$e\&f\#g\%h\textasciitilde{}i\textasciicircum{}j\textless{}k\textgreater{}"
        r"\textbar{} & CNN" in text
    )
    assert "edbl $\\cdot$ digits & CNN" not in latex(held(make()))
    two = latex(held(make(), make(memory="per_class=2")))
    assert "edbl $\\cdot$ memory per\\_class=2 & CNN" in two


def test_markdown_table() -> None:
    text = markdown(held(make("a|b_c*<i>`"), boosted()))
    lines = text.splitlines()
    assert lines[2] == "| Method | Classifier | n | Average | Last | Forgetting |"
    assert lines[3] == "| --- | --- | ---: | ---: | ---: | ---: |"
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines[4:]]
    assert {len(row) for row in rows} == {6}
    assert rows[0][0].strip() == r"a\|b\_c\*\<i\>\`"
    assert [row[1].strip() for row in rows] == ["CNN", "NME", "CNN", "NME", "boosted", r"odd \<b\>"]
    assert text.count("**") == 6


def test_a_number_that_does_not_exist_is_a_dash() -> None:
    record = make(tasks=1)
    record.confusions["cnn"] = [0 * record.confusions["cnn"][0]]
    assert math.isnan(metrics.last_accuracy(record.confusions["cnn"]))
    assert "CNN & 1 & -- & -- & $0.00$" in latex(held(record))
