"""The documentation as a site: it builds without a warning, and needs nothing from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import edbl

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("furo", reason="edbl[docs] is not installed")
    out = tmp_path_factory.mktemp("site")
    folders = [str(out / "trees"), str(ROOT / "docs"), str(out / "html")]
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", *folders]
    built = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=ROOT, check=False)
    assert built.returncode == 0, built.stderr
    return out / "html"


def test_every_page_is_there_and_can_be_searched(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    for page in ROOT.glob("docs/**/*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        if name.parts[0] != "generated":
            assert (site / name).with_suffix(".html").is_file()
            assert f'"{name}"' in index, name


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe)[^>]+src=\"([^\"]+)|<link[^>]+href=\"([^\"]+)", page.read_text())
        assert not [one for pair in loaded for one in pair if one.startswith(("http:", "https:", "//"))], page


def test_the_reference_has_every_command_and_public_name(site: Path) -> None:
    commands = (site / "commands.html").read_text()
    assert "edbl learn" in commands
    assert "--relabel" in commands
    api = (site / "api.html").read_text()
    public = [f"edbl.{name}" for name in edbl.__all__ if name != "__version__"]
    for name in (*public, "edbl.methods.base.Method.phases", "edbl.losses.influence"):
        assert f'id="{name}"' in api, name
