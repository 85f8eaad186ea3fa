"""``make wheel``: the wheel, in an empty environment outside the repository, does what the README says."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PORT = 8765
PATIENCE = 60  # seconds for the server to answer


def main() -> None:
    """Build, install, use."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        source = folder / "source"  # so that nothing is built into the checkout
        shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "results", "build", "dist", "*.egg-info"))
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
        _call([*pip, "wheel", "--no-deps", "--wheel-dir", place, str(source)], folder)
        shutil.rmtree(source)
        wheel = next(folder.glob("edbl-*.whl"))
        venv.create(folder / "env", with_pip=True)
        python = folder / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
        constraints = str(ROOT / "constraints.txt")
        _call([str(python), *pip[1:], "install", "-c", constraints, f"{wheel}[photos,serve]"], folder)
        edbl = [str(python), "-m", "edbl"]
        _call([*edbl, "doctor"], folder)
        _call([*edbl, "demo", "--out", "demo"], folder)
        assert (folder / "demo" / "report.html").is_file()
        _call([*edbl, "run", "--recipe", "digits", "--preset", "quick", "--out", "run"], folder)
        record = json.loads((folder / "run" / "record.json").read_text())
        assert record["status"] == "done", record["status"]
        _served([*edbl, "serve", "pets", "--port", str(PORT)], folder)
    print("the wheel does what the README says")


def _call(command: list[str], folder: Path) -> None:
    print("+", " ".join(command), flush=True)
    subprocess.run(command, cwd=folder, check=True, env=_clean())


def _clean() -> dict[str, str]:
    """Return the environment without what would lead to the repository."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}


def _served(command: list[str], folder: Path) -> None:
    """Start the server, fetch its page, and end it."""
    print("+", " ".join(command), flush=True)
    with subprocess.Popen(command, cwd=folder, env=_clean()) as server:
        try:
            end = time.monotonic() + PATIENCE
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/", timeout=5) as page:
                        assert b"<html" in page.read().lower()
                    return
                except OSError:
                    if time.monotonic() > end or server.poll() is not None:
                        raise
                    time.sleep(0.2)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
