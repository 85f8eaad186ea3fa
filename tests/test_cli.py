"""The command line: what users type, and what they get when they type it wrong."""

import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import typer.core
import typer.main
from PIL import Image
from rich.console import Console

import edbl
from edbl import Recipe, records
from edbl.cli import app
from edbl.cli.examples import DATA, PANELS
from edbl.cli.options import with_flags
from edbl.data import datasets
from edbl.data.stream import Stream
from edbl.engine import environment
from edbl.engine.fit import Step
from edbl.methods import find_method
from edbl.rule import TaskFacts
from edbl.studies.demo import recipes as demo_recipes
from tests.conftest import Cli, Finished

QUICK = ["--data", "digits", "--preset", "quick", "--set", "net.backbone=mlp", "--set", "optim.batch=256"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDBL_DATA", str(tmp_path / "data"))


def refused(finished: Finished, *words: str) -> None:
    """Check for exit code 2 and a message of one or two lines that holds all ``words``."""
    assert finished.code == 2, finished
    message = finished.err
    assert "Traceback" not in message
    assert len(message.strip().splitlines()) <= 2, message
    for word in words:
        assert word in message, (word, message)


def test_run_report_resume(cli: Cli) -> None:
    finished = cli("run", "rkd", *QUICK, "--tasks", 2, "--memory", "total=20", "--order", 1993, "--seed", 3)
    assert finished.code == 0, finished
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("rkd-digits-base0-2-seed3-")
    record = records.read(folder)
    assert (record.protocol, record.phases, record.memory, record.order, record.seed) == (
        "base0",
        2,
        "total=20",
        "1993",
        3,
    )
    assert record.classes == [str(k) for k in (4, 2, 7, 6, 0, 3, 5, 8, 9, 1)]
    for readout in ("cnn", "nme"):
        assert f"{100 * record.accuracy[readout][-1]:.1f}" in finished.out
    assert (folder / "report.html").is_file()
    assert Recipe.read(folder / "recipe.toml").values() == Recipe.of(record.recipe).values()
    assert cli("resume", folder).code == 0
    again = cli("run", "finetune", *QUICK, "--tasks", 2, "--out", "other")
    assert again.code == 0
    both = cli("report", folder, "other", "--out", "both.html")
    assert both.code == 0
    page = Path("both.html").read_text()
    assert "rkd" in page
    assert "finetune" in page


def test_a_table_is_folded_in_a_narrow_terminal_only(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("run", "rkd", *QUICK, "--out", "run").code == 0
    numbers = " ".join(f"{100 * share:.1f}" for share in records.read(Path("run")).accuracy["cnn"])
    for terminal in (False, True):
        monkeypatch.setattr("edbl.cli.terminal.console", Console(width=50, force_terminal=terminal))
        assert (numbers in cli("report", "run").out) is not terminal
        listed = cli("list", "options", "edbl").out.splitlines()
        assert (len(listed) == 1 + len(Recipe.keys("edbl"))) is not terminal


def test_a_saved_recipe_runs_again_to_the_same_result(cli: Cli) -> None:
    assert cli("run", "edbl", *QUICK, "--out", "first").code == 0
    assert cli("run", "--recipe", "first/recipe.toml", "--out", "second").code == 0
    first, second = records.read(Path("first")), records.read(Path("second"))
    assert first.recipe == second.recipe
    assert first.accuracy == second.accuracy


def test_a_class_order_from_a_file_travels_in_the_recipe(cli: Cli) -> None:
    Path("order.txt").write_text("\n".join("9876543210"))
    assert cli("run", "finetune", *QUICK, "--order", "order.txt", "--out", "run").code == 0
    Path("order.txt").unlink()
    assert records.read(Path("run")).classes == list("9876543210")
    assert cli("run", "--recipe", "run/recipe.toml", "--out", "again").code == 0


def test_any_base_and_step_and_explicit_tasks(cli: Cli) -> None:
    step = ["--protocol", "base-step", "--set", "base=4", "--set", "stream.step=5"]
    assert cli("run", "finetune", *QUICK, *step, "--out", "step").code == 0
    assert records.read(Path("step")).task_sizes == [4, 5, 1]
    tasks = ["--protocol", "tasks", "--set", 'tasks=[["7","1"],["0","2","3","4","5"],["6","8","9"]]']
    assert cli("run", "finetune", *QUICK, *tasks, "--out", "tasks").code == 0
    record = records.read(Path("tasks"))
    assert record.task_sizes == [2, 5, 3]
    assert record.classes[:3] == ["7", "1", "0"]


def test_help_waits_for_nothing_that_computes() -> None:
    code = (
        "import sys; sys.argv = ['edbl', '--help']; from edbl.cli import main\n"
        "try: main()\nfinally: print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    slow = {"torch", "numpy", "PIL", "matplotlib", "sklearn", "rich.progress", "edbl.recipe", "edbl.text"}
    assert not slow & set(loaded)
    assert {name for name in loaded if name.startswith("edbl.") and not name.startswith("edbl.cli")} == {
        "edbl.errors",
        "edbl.group",
    }


def test_list(cli: Cli) -> None:
    listed = cli("list", "methods").out
    for name in ("finetune", "joint", "rkd", "vanilla-mkd", "re-mkd", "ib", "iib", "iib-kd", "edbl"):
        assert re.search(rf"^{name}\s", listed, re.MULTILINE)
    listed = cli("list", "data").out
    for name in ("cifar10", "cifar100", "tiny-imagenet", "fashion-mnist", "digits"):
        assert re.search(rf"^{name}\s", listed, re.MULTILINE)
    assert "cifar100-base0-5" in cli("list", "recipes").out


def test_messages_name_the_option_behind_a_setting() -> None:
    assert with_flags("use stream.tasks of 1 to 5") == "use stream.tasks (--tasks) of 1 to 5"
    for told in ("--order x: stream.order is odd", "write `stream.tasks = 2`", "stream.tasks=2", "my.stream.tasks"):
        assert with_flags(told) == told


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"edbl {edbl.__version__}\n"


def test_options_are_listed_with_values_and_meanings(cli: Cli, tmp_path: Path) -> None:
    listed = " ".join(cli("list", "options", "edbl", "--data", "cifar100", "--preset", "paper").out.split())
    assert set(Recipe.keys("edbl")) <= set(listed.split())
    assert "options.gamma 300.0 preset paper (Table 6) scale of the class weights lambda_k; Table 6 (A5)" in listed
    counts = (
        'options.counts "raw" preset paper (as printed) n_k: raw images, or effective label mass after re-sampling (A6)'
    )
    assert f"{counts} (raw, effective)" in listed
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom edbl.config import option\nfrom edbl.methods.base import Method\n\n\n"
        "class Mine(Method):\n    name = 'mine'\n    title = 'Mine'\n    source = 'me'\n\n"
        "    @dataclass(frozen=True)\n    class Config(Method.Config):\n"
        "        deep: int = option(7, 'how [deep] it is')\n"
    )
    assert "options.deep 7 built in how [deep] it is" in " ".join(
        cli("list", "options", tmp_path / "mine.py").out.split()
    )


def test_data_verify_digits(cli: Cli) -> None:
    finished = cli("data", "verify", "digits")
    assert finished.code == 0
    assert "1,442 training and 355 test images of 10 classes" in finished.out


def test_a_demo_that_was_stopped_goes_on(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"net.backbone": "mlp", "schedule.epochs": 1, "optim.batch": 256}
    made = [Recipe.build(name, "digits", preset="quick", **small) for name in ("rkd", "edbl")]
    monkeypatch.setattr("edbl.studies.demo.recipes", lambda: made)
    with monkeypatch.context() as patch:
        patch.setattr(Step, "__call__", Mock(side_effect=KeyboardInterrupt))
        found = cli("demo", "--out", "here")
    assert (found.code, found.err) == (130, "interrupted; `edbl demo --out here` continues\n")
    assert cli("demo", "--out", "here").code == 0
    assert [records.read(Path("here", name)).status for name in ("rkd", "edbl")] == ["done", "done"]
    assert Path("here/report.html").is_file()


def test_the_demo_compares_fairly() -> None:
    rkd, edbl = demo_recipes()
    assert rkd.memory == edbl.memory
    assert (rkd.data, rkd.stream, rkd.net, rkd.optim, rkd.seed) == (
        edbl.data,
        edbl.stream,
        edbl.net,
        edbl.optim,
        edbl.seed,
    )
    assert rkd.data.holdout == 0
    data = datasets.load("digits")
    for task in list(Stream(data, range(10), [2] * 5, torch.device("cpu")))[1:]:
        facts = TaskFacts(len(task.train), 50, task.old, task.new, size=8)
        balance = edbl.ruled(facts).values()["options.balance.epochs"]
        assert isinstance(balance, int)
        assert rkd.schedule.epochs >= edbl.ruled(facts).schedule.epochs + balance
        assert rkd.ruled(facts).schedule.lr == edbl.ruled(facts).schedule.lr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "icarll"], ["unknown method 'icarll'"]),
        (["run", "edbll"], ["unknown method 'edbll'", "did you mean 'edbl'"]),
        (["run"], ["name a method"]),
        (["run", "edbl", "--data", "cifar1000"], ["unknown data set 'cifar1000'", "did you mean 'cifar100'"]),
        (["run", "edbl", "--set", "gama=3"], ["unknown key 'gama'", "did you mean 'gamma'"]),
        (["run", "edbl", "--set", "zzzz=3"], ["unknown key 'zzzz': `edbl list options edbl` names all"]),
        (["list", "options"], ["name a method, as in `edbl list options edbl`"]),
        (["list", "options", "nope"], ["unknown method 'nope'"]),
        (["list", "options", "edbl", "--data", "nope"], ["unknown data set 'nope'"]),
        (["list", "methods", "edbl"], ["do not apply to `edbl list methods`"]),
        (["list", "data", "--preset", "paper"], ["do not apply to `edbl list data`"]),
        (["run", "rkd", "--set", "gamma=3"], ["unknown key 'gamma': it is an option of edbl, ib, iib, iib-kd, not of"]),
        (
            ["run", "edbl", "rkd", "--set", "balance.epochs=3"],
            ["rkd: unknown key 'balance.epochs': it is an option of"],
        ),
        (["run", "edbl", "rkd", "--set", "gama=3"], ["edbl: unknown key 'gama'", "did you mean 'gamma'"]),
        (["run", "edbl", "--set", "epochs=3"], ["ambiguous", "schedule.epochs", "options.balance.epochs"]),
        (["run", "edbl", "--set", "epochs"], ["KEY=VALUE"]),
        (["run", "edbl", "--set", "counts=efective"], ["unknown value of options.counts", "did you mean 'effective'"]),
        (["run", "edbl", "--set", "gamma=many"], ["options.gamma", "is not a finite number"]),
        (["run", "edbl", "--set", "schedule.epochs=0"], ["schedule.epochs = 0 is too small"]),
        (["run", "edbl", "--set", "backbone=resnet33"], ["unknown backbone", "resnet32"]),
        (["run", "edbl", "--preset", "papers"], ["did you mean 'paper'"]),
        (["run", "edbl", "--protocol", "basehalf"], ["did you mean 'base-half'"]),
        (["run", "edbl", "--device", "gpu"], ["unknown value of device 'gpu'"]),
        (["run", "edbl", "--memory", "2000"], ["write total=2000, per_class=20 or none"]),
        (["run", "edbl", "--memory", "total=9"], ["smaller than one image for each of 10 classes", "total=10"]),
        (["run", "edbl", "--memory", "per_class=0"], ["per_class=1"]),
        (["run", "edbl", "--tasks", "11"], ["11 tasks do not fit", "use stream.tasks (--tasks) of 1 to 10"]),
        (["run", "edbl", "--protocol", "base-half", "--tasks", "6"], ["6 tasks do not fit", "1 to 5"]),
        (
            ["run", "edbl", "--protocol", "base-step", "--tasks", "5"],
            ["stream.tasks (--tasks) does not apply to", "base-step"],
        ),
        (
            ["run", "edbl", "--protocol", "tasks", "--order", "1993"],
            ["stream.order (--order) does not apply to protocol tasks"],
        ),
        (["run", "edbl", "--set", "stream.tasks=[[1],[2]]"], ["protocol base0 needs a number as stream.tasks"]),
        (["run", "edbl", "--set", "step=2"], ["stream.step does not apply to protocol base0"]),
        (
            ["run", "edbl", "--tasks", "5", "--set", "protocol=tasks"],
            ["protocol tasks needs stream.tasks (--tasks) to list the tasks"],
        ),
        (
            ["run", "edbl", "--tasks", "5", "--set", "phases=2"],
            ["stream.tasks (--tasks) is given twice, once as 'phases'"],
        ),
        (["run", "edbl", "--seed", "3", "--set", "seed=4"], ["seed is given twice, once by --set"]),
        (["run", "rkd", "--set", "method=edbl"], ["method is given twice, once by --set"]),
        (["run", "rkd", "--set", "epochs=1", "--set", "epochs=2"], ["--set gives epochs twice"]),
        (["run", "edbl", "--order", "nowhere.txt"], ["nowhere.txt"]),
        (["run", "edbl", "--recipe", "nowhere.toml"], ["cannot read recipe nowhere.toml"]),
        (["run", "edbl", "--recipe", "digit"], ["did you mean 'digits'"]),
        (["run", "edbl", "--recipe", ""], ["unknown recipe ''"]),
        (["run", "edbl", "--seed", "9" * 400], ["seed", "a whole number"]),
        (["run", "edbl", "--set", "temperature=" + "9" * 400], ["temperature", "a finite number"]),
        (["run", "edbl", "--set", "seed=" + "9" * 5000], ["seed", "a whole number"]),
        (["results", "page"], ["must end in .md"]),
        (["run", "edbl", "--data", "./nowhere"], ["nowhere"]),
        (["run", "edbl", "--data", "cifar100"], ["cifar-100-binary.tar.gz", "https://", "edbl data fetch cifar100"]),
        (["run", "nowhere.py"], ["no file at"]),
        (["run", "edbl", "--set", "mean=[0.1, 0.2]"], ["data.mean", "1 values"]),
        (["resume", "nowhere"], ["nowhere"]),
        (["report", "nowhere"], ["nowhere"]),
        (["data", "verify", "cifar11"], ["did you mean 'cifar10'"]),
        (["run", "edbl", "--set", "memory=total=8"], ["memory total=8"]),
        (["run", "edbl", "--memory", "total=9", "--set", "memory=total=8"], ["memory is given twice"]),
        (["data", "verify", "cifar10"], ["cifar-10-binary.tar.gz", "edbl data fetch cifar10"]),
    ],
)
def test_bad_input_gets_one_clear_message_and_leaves_nothing(cli: Cli, arguments: list[str], words: list[str]) -> None:
    refused(cli(*arguments), *words)
    assert not Path("runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there(cli: Cli) -> None:
    refused(cli("run", "edbl", "--device", "cuda"), "no GPU", "use device auto or cpu")


def test_a_data_folder_that_cannot_be_made(cli: Cli) -> None:
    Path("file").write_text("")
    refused(cli("data", "fetch", "cifar10", "--data-dir", "file/data"), "Not a directory", "file/data")


def test_a_broken_recipe_file(cli: Cli) -> None:
    Path("broken.toml").write_text("method = \n")
    refused(cli("run", "--recipe", "broken.toml"), "broken.toml is not valid TOML")
    Path("odd.toml").write_text('method = "edbl"\n[schedul]\nepochs = 3\n')
    refused(cli("run", "--recipe", "odd.toml"), "recipe odd.toml: ", "schedul.epochs", "schedule.epochs")
    Path("many.toml").write_text('method = "edbl"\nschedule.epochs = "many"\n')
    refused(cli("run", "--recipe", "many.toml"), "recipe many.toml: schedule.epochs")


def test_an_output_folder_that_exists_is_not_touched(cli: Cli) -> None:
    Path("out").mkdir()
    Path("out/mine.txt").write_text("precious")
    refused(cli("run", "finetune", *QUICK, "--out", "out"), "exists already; use another folder")
    assert [p.name for p in Path("out").iterdir()] == ["mine.txt"]
    Path("file").write_text("precious")
    refused(cli("run", "finetune", *QUICK, "--out", "file"), "exists already")


def test_the_same_command_goes_on_with_a_run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["run", "finetune", *QUICK]
    for place in ([], ["--out", "run"]):
        with monkeypatch.context() as patch:
            patch.setattr(records, "write_features", Mock(side_effect=KeyboardInterrupt))
            assert cli(*command, *place).code == 130
        (folder,) = [path.parent for path in Path().rglob("record.json") if records.read(path.parent).status != "done"]
        assert cli(*command, *place).code == 0
        assert records.read(folder).status == "done"
        kept = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        shown = cli(*command, *place)
        assert shown.code == 0
        assert f"report: {folder}/report.html" in shown.out
        assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == kept
    refused(cli("run", "rkd", *QUICK, "--out", "run"), "run holds another run, of finetune; use another folder")
    refused(cli(*command, "--seed", 1, "--out", "run"), "run holds another run, of finetune")
    assert {path.name: path.read_bytes() for path in Path("run").iterdir() if path.is_file()} == kept


def test_a_single_run_joins_those_in_its_output_folder(cli: Cli) -> None:
    several = ["run", "rkd", *QUICK, "--seeds", 2, "--at-once", 1, "--out", "all"]
    assert cli(*several).code == 0
    assert cli("run", "finetune", *QUICK, "--seed", 1, "--out", "all").code == 0
    names = ["finetune-seed1", "report.html", "rkd-seed0", "rkd-seed1"]
    assert sorted(path.name for path in Path("all").iterdir()) == names
    assert not Path("all/finetune-seed1/report.html").exists()
    page = Path("all/report.html").read_text()
    assert "3 runs of 2 methods (finetune, rkd)" in page
    assert cli(*several).code == 0
    assert "3 runs of 2 methods (rkd, finetune)" in Path("all/report.html").read_text()
    done = cli("run", "finetune", *QUICK, "--seed", 1, "--out", "all")
    assert done.code == 0
    assert "rkd" in done.out
    refused(
        cli("run", "finetune", *QUICK, "--seed", 1, "--memory", "total=30", "--out", "all"),
        "all/finetune-seed1 holds another run, of finetune; use another folder",
    )
    assert Path("all/report.html").read_text() == page


def test_an_output_folder_that_cannot_be_made(cli: Cli) -> None:
    Path("file").write_text("")
    refused(cli("run", "finetune", *QUICK, "--out", "file/out"), "cannot make output folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_folder_that_cannot_be_written(cli: Cli) -> None:
    Path("locked").mkdir()
    Path("locked").chmod(stat.S_IRUSR | stat.S_IXUSR)
    refused(cli("run", "finetune", *QUICK, "--out", "locked/out"), "cannot make output folder")


def folder_of_images(root: Path, classes: int = 4, each: int = 6) -> None:
    for split in ("train", "test"):
        for k in range(classes):
            folder = root / split / f"class {k}"
            folder.mkdir(parents=True)
            for i in range(each):
                Image.new("RGB", (40 + k, 36), (50 * k, 10 * i, 90)).save(folder / f"{i}.png")


def test_an_image_folder_end_to_end(cli: Cli, tmp_path: Path) -> None:
    folder_of_images(tmp_path / "photos")
    settings = ["--set", "net.backbone=small", "--preset", "quick", "--tasks", 2, "--memory", "per_class=2"]
    finished = cli("run", "edbl", "--data", tmp_path / "photos", *settings, "--out", "run")
    assert finished.code == 0, finished
    record = records.read(Path("run"))
    assert record.classes == [f"class {k}" for k in range(4)]
    assert record.status == "done"
    (tmp_path / "photos/train/class 1/broken.jpg").write_bytes(b"not an image")
    again = ["run", "edbl", "--data", tmp_path / "photos", *settings, "--out", "again"]
    refused(cli(*again), "broken.jpg", "leave them out with skip_bad (--skip-bad)")
    assert not Path("again").exists()
    assert cli(*again, "--skip-bad").code == 0
    assert any("broken.jpg" in note for note in records.read(Path("again")).notes)


def test_classes_of_few_images_and_few_classes_run(cli: Cli, tmp_path: Path) -> None:
    folder_of_images(tmp_path / "photos", classes=2, each=1)
    settings = ["--set", "net.backbone=mlp", "--preset", "quick", "--tasks", 2, "--memory", "per_class=5"]
    assert cli("run", "edbl", "--data", tmp_path / "photos", *settings, "--out", "run").code == 0


def test_help_is_quick_to_read_and_names_all_commands(cli: Cli) -> None:
    shown = cli("--help").out
    for command in ("demo", "run", "resume", "report", "list", "data"):
        assert command in shown


MINE = '''from __future__ import annotations
from edbl.methods.rkd import RKD

class Mine(RKD):
    """Mine."""
    name = "mine"
    title = "Mine"
    source = "me"
'''


def test_a_method_of_ones_own_is_watched_and_found_again(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.py").write_text(MINE)
    assert cli("run", "mine.py", *QUICK, "--out", "run").code == 0
    record = records.read(Path("run"))
    assert record.method == "mine"
    record.status = "running"
    records.write(record, Path("run"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cli("resume", "../run").code == 0
    record.status = "running"
    records.write(record, Path("../run"))
    Path("../mine.py").write_text(MINE + "# changed\n")
    refused(
        cli("resume", "../run"),
        "mine.py has changed since run ../run began; undo that, remove ../run to begin it anew, or go on with",
        f"`edbl resume ../run --method {tmp_path / 'mine.py'} --changed`",
    )


def test_runs_of_a_method_file_that_was_changed_are_not_taken_for_done(cli: Cli) -> None:
    Path("mine.py").write_text(MINE)
    assert cli("run", "mine.py", *QUICK, "--seeds", 2, "--at-once", 1, "--out", "all").code == 0
    Path("mine.py").write_text(MINE + "# changed\n")
    again = cli("run", "mine.py", *QUICK, "--seeds", 3, "--at-once", 1, "--out", "all")
    refused(again, "mine.py has changed since run all/mine-seed0 began")
    assert not Path("all/mine-seed2").exists()


def test_a_method_file_is_taken_as_it_is_now() -> None:
    for title in ("one", "other"):
        Path("m.py").write_text(MINE.replace("class ", f"TITLE = '{title}'\n\n\nclass ", 1))
        assert title == sys.modules[find_method("m.py").__module__].TITLE
    assert find_method("m.py") is find_method("m.py")


def test_method_files_of_the_same_name(cli: Cli) -> None:
    for folder, title in (("a", "one"), ("b", "other")):
        Path(folder).mkdir()
        Path(folder, "m.py").write_text(MINE.replace("class ", f"TITLE = '{title}'\n\n\nclass ", 1))
    refused(cli("run", "a/m.py", "b/m.py", *QUICK, "--out", "all"), "the same name")
    one, other = (sys.modules[find_method(f"{folder}/m.py").__module__] for folder in ("a", "b"))
    assert (one.TITLE, other.TITLE) == ("one", "other")


def test_a_method_file_that_is_named_or_written_oddly(cli: Cli) -> None:
    Path("m\udcff.py").write_text(MINE)
    refused(cli("run", "m\udcff.py", *QUICK, "--out", "run"), "is not valid text; rename the file")
    plain = "\n    @dataclass(frozen=True)\n    class Config(RKD.Config):\n        x: int = 3\n"
    imported = MINE.replace("from edbl", "from dataclasses import dataclass\nfrom edbl", 1)
    Path("plain.py").write_text(imported.rstrip("\n") + "\n" + plain)
    refused(cli("run", "plain.py", *QUICK, "--out", "run"), "Config.x must be an option")
    Path("bare.py").write_text(MINE.rstrip("\n") + "\n\n    class Config(RKD.Config):\n        x: int = 3\n")
    refused(cli("run", "bare.py", *QUICK, "--out", "run"), "Config is not a dataclass: write @dataclass(frozen=True)")
    assert not Path("run").exists()


def test_a_run_is_counted_once_and_kept(cli: Cli) -> None:
    assert cli("run", "finetune", *QUICK, "--out", "run").code == 0
    page = Path("run/report.html").read_bytes()
    refused(cli("run", "rkd", *QUICK, "--seeds", 2, "--out", "run"), "is that of one run")
    assert Path("run/report.html").read_bytes() == page
    done = cli("run", "finetune", *QUICK, "--seeds", 2, "--out", "run")
    assert done.code == 0, done.err
    assert (Path("run/finetune-seed1/record.json").is_file(), Path("run/finetune-seed0").exists()) == (True, False)
    assert "2 runs" in Path("run/report.html").read_text()
    once, twice = cli("report", "run", "--out", "a.html"), cli("report", "run", "./run", "--out", "b.html")
    assert twice.out.replace("b.html", "a.html") == once.out


def test_a_method_file_that_fails(cli: Cli) -> None:
    Path("broken.py").write_text("import nonsense_that_is_not_there\n")
    refused(cli("run", "broken.py"), "broken.py cannot be imported", "nonsense_that_is_not_there")
    Path("empty.py").write_text("")
    refused(cli("run", "empty.py"), "exactly one subclass")


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_let_go_of_busy_cores(given: dict[str, str], spins: str | None) -> None:
    code = "import os, sys, edbl; print(os.environ.get('GOMP_SPINCOUNT')); assert 'torch' not in sys.modules"
    env = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", code], env=env | given, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(spins)


def test_an_interrupted_run_says_how_to_go_on(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Step, "__call__", interrupt)
        finished = cli("run", "finetune", *QUICK, "--out", "run")
    assert finished.code == 130
    assert "edbl resume run" in finished.err
    assert cli("resume", "run").code == 0
    with monkeypatch.context() as patch:
        patch.setattr("edbl.data.datasets.load", interrupt)
        finished = cli("run", "finetune", *QUICK, "--out", "never")
    assert finished.code == 130
    assert "the same command starts again" in finished.err


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("name", ["o[old]", "p[/x]"])
def test_names_with_brackets_are_printed_as_they_are(cli: Cli, name: str, seeds: int) -> None:
    done = cli("run", "finetune", *QUICK, "--seeds", seeds, "--out", name)
    assert done.code == 0, done.err
    assert f"report: {name}/report.html" in done.out


def test_precision_and_graph_are_options(cli: Cli) -> None:
    bf16 = environment.computes_bf16(torch.device("cpu"))
    done = cli("run", "finetune", *QUICK, "--precision", "bf16", "--no-graph", "--out", "run")
    assert done.code == (0 if bf16 else 2)
    if not bf16:
        refused(done, "use precision auto or fp32")
        return
    recipe = Recipe.read(Path("run/recipe.toml"))
    assert recipe.precision == "bf16"
    assert not recipe.graph
    refused(cli("run", "finetune", "--precision", "fp16"), "unknown value of precision 'fp16'")


@pytest.mark.parametrize("delay", [0.5, 1.0, 2.0])
def test_ctrl_c_at_any_moment_is_one_line(tmp_path: Path, delay: float) -> None:
    command = [
        sys.executable,
        "-m",
        "edbl",
        "run",
        "rkd",
        "finetune",
        "--data",
        "digits",
        "--out",
        str(tmp_path / "run"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    assert re.fullmatch(r"interrupted(; .*)?\n", process.communicate(timeout=20)[1])
    assert process.returncode == 130


def test_a_reader_that_leaves_ends_no_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edbl", "run", "rkd", "--data", "digits", "--preset", "quick", "--out", "run"]
    process = subprocess.Popen([*command, "--set", "net.backbone=mlp"], stdout=subprocess.PIPE, cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=120) == 0
    assert json.loads((tmp_path / "run" / "record.json").read_text())["status"] == "done"


def test_an_empty_argument_is_not_the_current_folder(cli: Cli) -> None:
    found = cli("predict", "model", "")
    assert found.code == 2
    assert "an argument is empty" in found.err


def of_help() -> Mapping[str, tuple[str, ...]]:
    """Return the examples of each command by its words."""
    shown = {word: examples for panel in PANELS.values() for word, examples in panel.items()}
    return shown | {f"data {word}": examples for word, examples in DATA.items()}


def test_every_command_is_in_a_panel_with_two_examples() -> None:
    top = typer.main.get_command(app)
    assert isinstance(top, typer.core.TyperGroup)
    data = top.commands["data"]
    assert isinstance(data, typer.core.TyperGroup)
    assert of_help().keys() == top.commands.keys() - {"data"} | {f"data {word}" for word in data.commands}
    assert {len(examples) for examples in of_help().values()} == {2}


@pytest.mark.parametrize("words", of_help())
def test_examples_of_the_help_are_commands(words: str) -> None:
    for example in of_help()[words]:
        program, *arguments = shlex.split(example)
        assert (program, arguments[: len(words.split())]) == ("edbl", words.split())
        command = typer.main.get_command(app)
        for word in words.split():
            assert isinstance(command, typer.core.TyperGroup)
            command = command.commands[word]
        made = command.make_context(words, arguments[len(words.split()) :])
        assert made.args == []


def test_values_that_the_shell_completes_are_those_of_recipes() -> None:
    of_recipes = Recipe.keys("finetune")
    for name, key in (("preset", "preset"), ("protocol", "stream.protocol"), ("precision", "precision")):
        command = typer.main.get_command(app)
        assert isinstance(command, typer.core.TyperGroup)
        shown = next(param for param in command.commands["run"].params if param.name == name).metavar
        assert shown is not None
        assert set(shown.split("|")) <= set(of_recipes[key].choices)
