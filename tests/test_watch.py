"""The table of `edbl watch`: runs that go on, wait, were killed, failed or are done, on terminals of any size."""

import io
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from edbl import EdblError, Recipe, pulse, records, run
from edbl.pulse import Pulse
from edbl.report import sparks
from edbl.report.watch import View, Watcher
from tests.conftest import Cli

SMALL: dict[str, object] = {"net.backbone": "mlp", "schedule.epochs": 1, "stream.tasks": 3}
DEAD = {"pid": 2**40}
NAMES = ["a-done", "b-running", "c-stopped", "d-failed", "e-waiting", "f-broken"]


@pytest.fixture(scope="module")
def _all(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in each state, made of one."""
    folder = tmp_path_factory.mktemp("runs")
    record = run(Recipe.build("rkd", "digits", preset="quick", **SMALL), folder / "a-done")
    shutil.rmtree(folder / "a-done" / "checkpoints")
    for name in NAMES[1:4]:
        two = replace(record, status="failed" if "failed" in name else "running")
        two.message = "the loss became nan\nlower the rate" if "failed" in name else ""
        two.confusions = {k: v[:2] for k, v in record.confusions.items()}
        two.seconds, two.timings, two.losses = record.seconds[:2], record.timings[:2], record.losses[:2]
        two.kept, two.within = record.kept[:2], record.within[:2]
        records.write(two, folder / name)
    for name in NAMES[4:]:
        (folder / name).mkdir()
    (folder / "f-broken" / records.RECORD).write_text("{")
    (folder / "notes").mkdir()
    (folder / "notes" / "x.txt").write_text("x")
    return folder


@pytest.fixture
def runs(_all: Path) -> Path:
    """The same, with pulses that beat now."""
    where = {"task": 2, "tasks": 3, "phase": "train", "epoch": 3, "epochs": 8}
    going = Pulse("running", "rkd on digits", left=75.0, speed=12345.6, losses=[3.0, 2.0, 1.0], **where)  # type: ignore[arg-type]
    pulse.write(_all / "b-running", going)
    pulse.write(_all / "c-stopped", replace(going, **DEAD))  # type: ignore[arg-type]
    pulse.write(_all / "e-waiting", Pulse("waiting", "edbl on digits"))
    return _all


def drawn(view: View, width: int = 160, height: int = 50, terminal: bool = True, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    console = Console(file=file, width=width, height=height, force_terminal=terminal, color_system=None, emoji=False)
    console.print(view)
    file.flush()
    return re.sub(r"\x1b\[[0-9;]*m", "", raw.getvalue().decode(encoding))


def test_each_state_is_told(runs: Path) -> None:
    view = Watcher([runs]).look()
    assert [(one.name, one.state) for one in view.runs] == [
        ("a-done", "done"),
        ("b-running", "running"),
        ("c-stopped", "stopped"),
        ("d-failed", "failed"),
        ("e-waiting", "waiting"),
        ("f-broken", "unreadable"),
    ]
    text = drawn(view)
    assert "6 runs: 1 running, 1 waiting, 1 failed, 1 unreadable, 1 stopped, 1 done" in text
    lines = {line.split()[0]: line for line in text.splitlines() if line[:2] in ("a-", "b-", "c-", "d-", "e-", "f-")}
    record = records.read(runs / "a-done")
    assert f"cnn {100 * record.accuracy['cnn'][2]:.1f}  nme {100 * record.accuracy['nme'][2]:.1f}" in lines["a-done"]
    assert f"cnn {100 * record.accuracy['cnn'][1]:.1f}" in lines["b-running"]
    for part in (
        "rkd on digits",
        "2/3",
        "task 3: train 3/8",
        "█▄▁" if "█▄▁" in text else "█▅▁",
        "12,346",
        "1 min 15 s left",
    ):
        assert part in lines["b-running"], part
    assert "task 3: train 3/8" in lines["c-stopped"]
    assert "left" not in lines["c-stopped"]
    assert "the loss became nan" in lines["d-failed"]
    assert "edbl on digits" in lines["e-waiting"]
    assert "broken run" in lines["f-broken"]
    assert "accuracy after each task" in text


def test_runs_come_and_go_while_they_are_watched(runs: Path, tmp_path: Path) -> None:
    watcher = Watcher([tmp_path])
    assert drawn(watcher.look()) == "no runs yet\n"
    (tmp_path / "x").mkdir()
    pulse.write(tmp_path / "x", Pulse("waiting", "rkd on digits"))
    assert [one.state for one in watcher.look().runs] == ["waiting"]
    pulse.write(tmp_path / "x", Pulse("waiting", "rkd on digits", **DEAD))  # type: ignore[arg-type]
    assert [one.state for one in watcher.look().runs] == []  # nothing came of it
    shutil.copytree(runs / "b-running", tmp_path / "y" / "z")
    assert [(one.name, one.state) for one in watcher.look().runs] == [("y/z", "running")]
    pulse.remove(tmp_path / "y" / "z")
    assert [one.state for one in watcher.look().runs] == ["stopped"]
    for path in (runs / "a-done").iterdir():
        shutil.copy(path, tmp_path / "y" / "z")
    assert [one.state for one in watcher.look().runs] == ["done"]
    shutil.rmtree(tmp_path / "y")
    assert watcher.look().runs == []


def test_a_record_is_read_once_until_it_changes(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = Watcher([runs, runs / "a-done"])
    first = watcher.look()
    assert len(first.runs) == 6  # each once
    monkeypatch.setattr(records, "read", lambda folder: pytest.fail(f"{folder} was read again"))
    watcher._known.pop(runs / "f-broken", None)
    (runs / "f-broken" / records.RECORD).rename(runs / "f-broken" / "x")
    assert [one.name for one in watcher.look().runs] == NAMES[:5]
    (runs / "f-broken" / "x").rename(runs / "f-broken" / records.RECORD)


@pytest.mark.parametrize("width", [20, 40, 59, 60, 79, 80, 100, 130, 200])
@pytest.mark.parametrize("height", [5, 24])
def test_no_line_is_longer_than_the_terminal(width: int, height: int, runs: Path) -> None:
    text = drawn(Watcher([runs]).look(), width, height)
    assert max(map(len, text.splitlines())) <= width
    assert "running" in text


def test_of_many_runs_those_that_go_on_are_shown(runs: Path, tmp_path: Path) -> None:
    for number in range(30):
        shutil.copytree(runs / ("b-running" if number == 29 else "a-done"), tmp_path / f"{number:02}")
    text = drawn(Watcher([tmp_path]).look(), height=12)
    assert len(text.splitlines()) <= 12
    assert "30 runs: 1 running, 29 done" in text
    assert re.search(r"^29 +running", text, re.MULTILINE)
    assert "and 22 more" in text
    whole = drawn(replace(Watcher([tmp_path]).look(), whole=True), height=12)
    assert len(re.findall(r"^\d\d ", whole, re.MULTILINE)) >= 30


def test_terminals_with_ascii_alone_have_curves_too(runs: Path) -> None:
    text = drawn(Watcher([runs]).look(), encoding="ascii")
    assert re.search(r"rkd on digits +2/3 .*[#*+=~.-]", text)


def test_names_that_hold_anything_are_text(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "a-done", tmp_path / "[red]x[/red]\x1b[2J")
    text = drawn(Watcher([tmp_path]).look())
    assert "[red]x[/red]\\x1b[2J" in text


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path, cli: Cli) -> None:
    with pytest.raises(EdblError, match="no such folder"):
        Watcher([tmp_path / "x"])
    done = cli("watch", tmp_path / "x")
    assert (done.code, "no such folder" in done.err) == (2, True)


def test_once_and_into_a_pipe_it_ends(runs: Path, cli: Cli) -> None:
    for words in (["--once"], []):
        done = cli("watch", runs, *words)
        assert done.code == 0
        assert "6 runs: 1 running" in done.out


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([0, 1], 4, "▁█"),
        ([1, 1], 4, "▁▁"),
        ([], 4, ""),
        ([float("nan"), 3.0, float("inf")], 4, "▁"),
        (range(8), 8, "▁▂▃▄▅▆▇█"),
        (range(100), 2, "▁█"),
        ([1], 0, ""),
        ([-1e308, 0, 1e308], 4, "▁▅█"),
    ],
)
def test_sparks(values: list[float], width: int, line: str) -> None:
    assert sparks.spark(values, width) == line
    assert sparks.plain(line).isascii()
    assert sparks.spark([-1, 0.5, 2], 3, 0.0, 1.0) == "▁▅█"


def test_a_plot_has_its_curves_where_they_are() -> None:
    lines = sparks.plot([[0.0, 1.0], [1.0]], 10, 4, 0.0, 1.0).plain.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith(" 100 ⠁")  # where the second curve has its only point
    assert lines[3].startswith("   0 ")
    assert all(lines[3 - k][5 + 2 * k + 1] != " " for k in range(4))
    assert sparks.plot([], 4, 2, 0.0, 1.0).plain.split() == ["100", "0"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(24, 80), (10, 30)])
def test_a_terminal_shows_it_live_until_it_is_interrupted(size: tuple[int, int], runs: Path) -> None:
    ours, theirs = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")} | {"TERM": "xterm"}
    command = [sys.executable, "-m", "edbl", "watch", str(runs), "--every", "0.2"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True)
    os.close(theirs)
    seen, end = b"", time.monotonic() + 60
    try:
        while time.monotonic() < end and seen.count(b"6 runs: 1 running") < 3:
            if select.select([ours], [], [], 0.2)[0]:
                seen += os.read(ours, 65536)
        assert seen.count(b"6 runs: 1 running") >= 3
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        os.close(ours)
