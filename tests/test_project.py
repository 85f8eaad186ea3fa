"""What stands around the package: workflows, metadata, the citation, words."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import oldest, prose

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(workflow.read_text())["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows(workflow: Path) -> None:
    """Actions are pinned to commits, and nothing may be written that a job does not ask for."""
    text = workflow.read_text()
    assert yaml.safe_load(text)["permissions"] == {}
    assert all(PINNED.search(line) for line in text.splitlines() if "uses:" in line)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {found for step in steps(workflow) for found in re.findall(r"\bmake (\w+)", step.get("run", ""))}
    assert called <= targets


def test_a_release_is_published_without_a_token_from_what_was_attested() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert jobs["publish"]["needs"] == "attest"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert "id-token" not in jobs["build"]["permissions"]


def test_every_python_that_is_tested_is_named() -> None:
    matrix = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]["systems"]["strategy"]
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert matrix["matrix"]["python"] == named


def test_the_oldest_versions_cover_all_dependencies() -> None:
    names = {re.match(r"[\w.-]+", line)[0] for line in PROJECT["dependencies"]}  # type: ignore[index]
    assert names <= {line.partition("==")[0] for line in oldest.constraints()}


def test_the_citation_names_the_paper_and_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["preferred-citation"]["year"] == 2023
    assert citation["preferred-citation"]["identifiers"][0]["value"] == "arXiv:2301.05180"
    assert citation["repository-code"] == PROJECT["urls"]["Source"]


def test_prose_that_is_refused_is_found() -> None:
    page = "# Title\n\nThe `classifier` of code is left alone.\nEDBL is ahead for good.\n"
    assert [line.partition(":")[2] for line in prose.wrong([("page.md", page)])] == [
        "4: 'for good' is an idiom of ours: write cannot be changed later (house)",
    ]


def test_messages_are_read_too() -> None:
    code = 'x = 1\nraise EdblError(f"the run {x} goes on with `classifiers`")\n'
    assert [line.split(": ")[0] for line in prose.wrong([("a.py", prose.messages(code))])] == ["a.py:2"]
