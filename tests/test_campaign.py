"""A slice of the campaign."""

from pathlib import Path

import pytest

from tests import campaign


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("campaign") / "base"
    campaign.prepare(folder)
    assert any((folder / "checkpoints").glob("task-1-phase-0-epoch-*.safetensors"))
    return folder


@pytest.mark.parametrize("number", range(6))
def test_a_case_ends_well(base: Path, tmp_path: Path, number: int) -> None:
    found = campaign.case(number, 0, base, tmp_path / "case")
    assert found["wrong"] == [], found


def test_what_is_wrong_is_seen() -> None:
    assert campaign.faults(2, "error: x\n", (0, 2)) == []
    assert campaign.faults(1, "Traceback (most recent call last)", (0, 2)) == ["exit code 1", "traceback"]
    assert campaign.faults(-11, "\x1b[31m", (0, 2)) == ["exit code -11", "control character"]
    assert campaign.faults(-1, "hang", (0, 2)) == ["hang"]
