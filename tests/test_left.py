"""What is left of a command that is killed, by `benchmarks/left.py`."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "left.py"
WRITES = "import time; open('a.csv', 'w').write('12345'); open('old', 'a').write('x'); print('there'); time.sleep(60)"


def test_it_prints_what_was_made_or_changed(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("before")
    (tmp_path / "same").write_text("before")
    words = ["--seconds", "1.5", "--folder", str(tmp_path), "--", sys.executable, "-c", WRITES]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "left after 1.5 s and SIGKILL: 2 files" in done.stdout
    assert done.stdout.split()[-4:] == ["5", "a.csv", "7", "old"]


def test_it_says_if_the_command_was_faster(tmp_path: Path) -> None:
    words = ["--folder", str(tmp_path), "--", sys.executable, "-c", "raise SystemExit(3)"]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=60)
    assert "it ended by itself, with code 3: give fewer --seconds" in done.stdout
    assert "0 files" in done.stdout
