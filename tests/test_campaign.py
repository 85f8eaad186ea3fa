"""A slice of the campaign."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import edbl
from tests.campaign import __main__ as campaign
from tests.campaign.inputs import faults
from tests.campaign.moments import is_pythons

SLICE = ["inputs=1", "kills=3", "Ctrl-C=2", "surroundings=2", "writers=1", "servers=5"]


def test_a_slice_of_it_ends_well(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.campaign", "--out", str(tmp_path), "--take", *SLICE]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], env={**os.environ})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "20       0         input" in ended.stdout
    assert "3       0         kill" in ended.stdout
    assert "5       0         server" in ended.stdout


@pytest.mark.slow
def test_a_server_that_is_killed_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.campaign", "--out", str(tmp_path), "--take", "servers=100"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], env={**os.environ})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "100       0         server" in ended.stdout


def test_what_is_wrong_is_seen() -> None:
    assert faults(2, "error: x\n", (0, 2)) == []
    assert faults(1, "Traceback (most recent call last)", (0, 2)) == ["exit code 1", "traceback"]
    assert faults(-11, "\x1b[31m", (0, 2)) == ["exit code -11", "control character"]
    assert "1  kill, run, another result" in campaign.table(
        [{"kind": "kill", "what": "run", "wrong": ["another result"]}]
    )


def test_a_traceback_after_ctrl_c_is_excused_where_it_is_pythons_own() -> None:
    head = 'Traceback (most recent call last):\n  File "<frozen runpy>", line 198, in _run_module_as_main\n'
    ours = f'  File "{Path(edbl.__file__).parent / "cli" / "__init__.py"}", line 5, in <module>\n    import io\n'
    assert is_pythons(1, f"{head}KeyboardInterrupt\n")
    assert is_pythons(-2, "KeyboardInterrupt\n")
    assert not is_pythons(1, f"{head}{ours}KeyboardInterrupt\n")
    assert not is_pythons(1, f"{head}ValueError\n")
    assert not is_pythons(130, "interrupted\n")
