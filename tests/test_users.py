"""Code of users: found in files, in packages and under names; what it consists of; where it crashed."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from edbl import EdblError, Recipe, records, register, resume, run, users
from edbl.data import datasets
from edbl.methods import find_method
from edbl.methods.rkd import RKD
from tests.conftest import Cli
from tests.test_cli import refused

QUICK = ("--data", "digits", "--preset", "quick", "--set", "net.backbone=mlp", "--set", "optim.batch=100")
SMALL: Any = {"net.backbone": "mlp", "optim.batch": 100, "stream.tasks": 2}
MINE = """
from edbl.methods.rkd import RKD
import helper
from inner.deep import more
from .beside import here


class Mine(RKD):
    name = "mine"
    title = "Mine"
    source = "me"

    def loss(self, batch):
        return helper.scaled(super().loss(batch), batch)
"""
HELPER = "def scaled(x, batch):\n    return 2 * x\n"
CRASH = "def scaled(x, batch):\n    if batch.y.shape[1] > 5:\n        raise ValueError('boom')\n    return 2 * x\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a method that imports its neighbours; forget names after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(users, "_registered", {kind: {} for kind in users.GROUPS})
    Path("mine.py").write_text(MINE)
    Path("helper.py").write_text(HELPER)
    Path("beside.py").write_text("here = 1\n")
    Path("inner").mkdir()
    Path("inner/deep.py").write_text("from . import deepest\nmore = 1\n")
    Path("inner/deepest.py").write_text("import torch\n")
    Path("unused.py").write_text("")
    return tmp_path


def digest(name: str = "mine.py") -> str:
    return users.digest(users.METHOD, name, {})


# Files.


def test_a_file_may_import_its_neighbours_by_any_name() -> None:
    before = list(sys.path)
    assert find_method("mine.py").name == "mine"
    assert sys.path == before
    assert find_method("mine.py") is find_method("mine.py")
    assert not Path("__pycache__").exists()


@pytest.mark.parametrize("name", ["mine.py", "helper.py", "beside.py", "inner/deep.py", "inner/deepest.py"])
def test_all_files_that_a_file_imports_count(name: str) -> None:
    before = digest()
    Path(name).write_text(Path(name).read_text() + "# changed\n")
    assert digest() != before


def test_files_that_it_does_not_import_do_not_count() -> None:
    before = digest()
    Path("unused.py").write_text("changed = 1\n")
    assert digest() == before


def test_a_neighbour_is_taken_as_it_is_now_and_not_that_of_another_folder(folder: Path) -> None:
    def scale(name: str) -> object:
        return sys.modules[find_method(name).__module__].__dict__["helper"].scaled(1, None)

    assert scale("mine.py") == 2
    Path("helper.py").write_text(HELPER.replace("2", "3"))  # as long as before, and within the same second
    assert scale("mine.py") == 3
    other = folder / "other"
    other.mkdir()
    for name in ("mine.py", "beside.py"):
        (other / name).write_text(Path(name).read_text())
    (other / "helper.py").write_text(HELPER.replace("2", "5"))
    (other / "inner").mkdir()
    (other / "inner" / "deep.py").write_text("more = 1\n")
    assert scale("other/mine.py") == 5
    assert scale("mine.py") == 3


def test_of_several_methods_in_a_file_one_is_named() -> None:
    Path("two.py").write_text(MINE + "\n\nclass Other(Mine):\n    name = 'other'\n")
    with pytest.raises(EdblError, match="exactly one"):
        find_method("two.py")
    assert find_method("two.py:Other").name == "other"
    assert Recipe.build("two.py:Other").method == f"{Path('two.py').resolve()}:Other"
    with pytest.raises(EdblError, match=r"unknown name in .*two.py 'Othr': did you mean 'Other'"):
        find_method("two.py:Othr")
    with pytest.raises(EdblError, match="int is no subclass of"):
        find_method("two.py:here")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("mine.py", "import torch\n\nx = {}['nothing']\n", r"mine.py cannot be imported: .*mine.py, line 3: KeyError"),
        ("helper.py", "\n1 / 0\n", r"mine.py cannot be imported: .*helper.py, line 2: ZeroDivisionError"),
        ("helper.py", "x = (\n", r"mine.py cannot be imported: .*helper.py, line 1: SyntaxError"),
        ("mine.py", "raise SystemExit(3)\n", r"mine.py cannot be imported: .*mine.py, line 1: SystemExit"),
        (
            "mine.py",
            MINE.replace("import helper\n", "helper = __import__('helper')\n"),
            "which it hides; write `import",
        ),
    ],
)
def test_what_cannot_be_imported_is_told_by_file_and_line(file: str, text: str, message: str) -> None:
    Path(file).write_text(text)
    with pytest.raises(EdblError, match=message) as caught:
        find_method("mine.py")
    assert len(str(caught.value).splitlines()) == 1


def test_data_and_backbone_from_files_are_watched(cli: Cli) -> None:
    Path("data.py").write_text(
        "from edbl.data.datasets import load\n\n\ndef make():\n    return load('digits')\n\n\nnumber = 3\n"
    )
    Path("net.py").write_text(
        "from torch import nn\nfrom sizes import WIDTH\n\n\n"
        "def Net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH))\n"
    )
    Path("sizes.py").write_text("WIDTH = 16\n")
    options = ["--preset", "quick", "--set", "optim.batch=100", "--set", "net.backbone=net.py:Net", "--tasks", "2"]
    assert cli("run", "finetune", "--data", "data.py:make", *options, "--out", "run").code == 0
    record = records.read(Path("run"))
    assert sorted(record.code) == ["data.name", "net.backbone"]
    assert record.recipe["data.name"] == f"{Path('data.py').resolve()}:make"
    for file in ("data.py", "sizes.py"):
        record.status = "running"
        records.write(record, Path("run"))
        text = Path(file).read_text()
        Path(file).write_text(text + "# changed\n")
        refused(cli("resume", "run"), "has changed since run run began")
        Path(file).write_text(text)
        assert cli("resume", "run").code == 0
    refused(cli("run", "rkd", "--data", "data.py", *options, "--out", "x"), "say which function", "data.py:make")
    refused(cli("run", "rkd", "--data", "data.py:mak", *options, "--out", "x"), "did you mean 'make'")
    refused(
        cli("run", "rkd", "--data", "data.py:number", *options, "--out", "x"), "an object of type int; give a Dataset"
    )
    refused(cli("run", "rkd", "--data", "no.py:make", *options, "--out", "x"), "no file at")
    refused(cli("run", "rkd", *QUICK[:4], "--set", "net.backbone=net.py", "--out", "x"), "say which class or function")
    assert not Path("x").exists()


# Names and packages.


def test_names_in_this_process() -> None:
    class Registered(RKD):
        name = "other"

    register("mine", method=Registered, data=lambda: datasets.load("digits"), backbone=lambda: nn.Flatten())
    register("mine", stream=lambda labels: [range(len(labels) // 2), range(len(labels) // 2, len(labels))])
    record = run(Recipe.build("mine", "mine", preset="quick", **SMALL | {"net.backbone": "mine"}), "run")
    assert (record.method, record.data) == ("other", "mine")
    assert sorted(record.code) == ["data.name", "method", "net.backbone"]
    record.status = "running"
    records.write(record, Path("run"))
    assert resume("run").status == "done"
    own: dict[str, Any] = {"net.backbone": "mlp", "stream.protocol": "own", "stream.given": "mine"}
    of_stream = Recipe.build("acil", preset="quick", **own)
    assert run(of_stream, "stream").code.keys() == {"stream.given"}
    users._registered["method"].clear()
    record.status = "running"
    records.write(record, Path("run"))
    with pytest.raises(EdblError, match="method of run run, 'mine', was registered in Python, or is of a package"):
        resume("run")


def test_names_that_cannot_be_registered() -> None:
    for name in ("", "mine.py", "given:x"):
        with pytest.raises(EdblError, match="a name to register is a text"):
            register(name, method=RKD)
    with pytest.raises(EdblError, match="there is nothing to register as 'x'"):
        register("x")
    register("rkd", method=RKD)
    with pytest.raises(EdblError, match="method 'rkd' is one of edbl's; register yours under another name"):
        find_method("rkd")
    register("net", backbone=3)
    with pytest.raises(EdblError, match="backbone net is an object of type int"):
        run(Recipe.build("finetune", **{"net.backbone": "net"}), "run")


def test_packages_bring_methods_data_and_backbones(folder: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    site = folder / "site"
    (site / "extra-1.5.dist-info").mkdir(parents=True)
    (site / "extra-1.5.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.5\n")
    (site / "extra-1.5.dist-info" / "entry_points.txt").write_text(
        "[edbl.methods]\nextra = extra:Extra\n[edbl.data]\nmade = extra:make\n"
        "[edbl.backbones]\nflat = torch.nn:Flatten\n"
    )
    (site / "extra.py").write_text(
        "from edbl.data.datasets import load\nfrom edbl.methods.rkd import RKD\n\n\n"
        "class Extra(RKD):\n    name = 'extra'\n    title = 'More'\n\n"
        "    def end(self, task):\n        super().end(task)\n        assert not task.index\n\n\n"
        "def make():\n    return load('digits')\n"
    )
    monkeypatch.syspath_prepend(site)
    users._entries.cache_clear()
    try:
        made = cli(
            "run", "extra", "--data", "made", *QUICK[2:4], *QUICK[6:], "--set", "net.backbone=flat", "--out", "run"
        )
        assert made.code == 1
        assert made.err.startswith("error: in `end`, task 2\n  File")
        assert "typer" not in made.err
        assert records.read(Path("run")).code == dict.fromkeys(("method", "data.name", "net.backbone"), "extra 1.5")
        assert {"extra", "made"} <= set(f"{cli('list', 'methods').out} {cli('list', 'data').out}".split())
        (site / "extra-1.5.dist-info" / "entry_points.txt").write_text("[edbl.methods]\nbroken = nowhere:X\n")
        users._entries.cache_clear()
        refused(cli("run", "broken"), "method 'broken' of extra 1.5 cannot be imported: ModuleNotFoundError")
        refused(cli("run", "brok"), "did you mean 'broken'")
    finally:
        users._entries.cache_clear()


# Crashes.


def test_a_crash_shows_the_users_frames_and_goes_on_when_it_is_mended(cli: Cli) -> None:
    Path("helper.py").write_text(CRASH)
    crashed = cli("run", "mine.py", *QUICK, "--tasks", 2, "--out", "run")
    assert crashed.code == 1
    lines = crashed.err.splitlines()
    assert lines[0] == "error: in `loss`, task 2, phase train, epoch 1"
    assert re.findall(r'/(\w+\.py)", line (\d+)', crashed.err) == [("mine.py", "14"), ("helper.py", "3")]
    assert lines[-2:] == [
        "ValueError: boom",
        f"run run goes on from its last checkpoint with `edbl resume run --method {Path.cwd() / 'mine.py'} --changed`",
    ]
    record = records.read(Path("run"))
    assert (record.status, record.message) == ("failed", "in `loss`, task 2, phase train, epoch 1: ValueError: boom")
    before = record.code["method"]
    Path("helper.py").write_text(HELPER)
    refused(cli("resume", "run"), "mine.py has changed since run run began", "--changed")
    assert cli("resume", "run", "--changed").code == 0
    record = records.read(Path("run"))
    assert (record.status, record.message, record.code["method"]) == ("done", "", digest())
    assert record.notes == [f"from task 2 on, method is {digest()[:16]}, and was {before[:16]} before"]
    assert run(Recipe.build("mine.py", preset="quick", **SMALL), "whole").losses == record.losses


def test_a_crash_with_all_frames(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("helper.py").write_text(CRASH)
    monkeypatch.setenv(users.FULL, "1")
    crashed = cli("run", "mine.py", *QUICK, "--tasks", 2, "--out", "run")
    assert "Traceback" in crashed.err
    assert "engine/fit.py" in crashed.err


def test_a_crash_in_python_is_the_error_itself_with_its_place() -> None:
    Path("helper.py").write_text(CRASH)
    with pytest.raises(ValueError, match="boom") as caught:
        run(Recipe.build("mine.py", preset="quick", **SMALL), "run")
    assert caught.value.__notes__[0] == "in `loss`, task 2, phase train, epoch 1"
    assert records.read(Path("run")).status == "failed"


def test_several_runs_show_a_crash_once(cli: Cli) -> None:
    Path("helper.py").write_text(CRASH)
    crashed = cli("run", "mine.py", *QUICK, "--tasks", 2, "--seeds", 2, "--at-once", 1, "--out", "all")
    assert crashed.code == 2
    assert crashed.out.count("ValueError: boom") == 1
    assert crashed.out.count("crashed in the same way") == 1
    assert "Traceback" not in crashed.out + crashed.err
    assert records.read(Path("all/mine-seed1")).message.endswith("ValueError: boom")


def test_a_crash_that_is_not_the_users_stays_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("edbl.engine.run.evaluate", broken)
    with pytest.raises(ZeroDivisionError) as caught:
        run(Recipe.build("finetune", preset="quick", **SMALL), "run")
    assert users.told(caught.value) == ""
    assert records.read(Path("run")).message == "in task 1: ZeroDivisionError: ours"


def test_the_command_does_not_wait_for_pytorch() -> None:
    code = "import sys, edbl; edbl.register; import edbl.users; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
