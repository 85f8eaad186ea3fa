"""`edbl doctor`: what it says is so, and nothing that can be installed is missing from it."""

import json
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from edbl.bench import doctor
from edbl.bench.doctor import EXTRAS, examine
from edbl.data.datasets import CIFAR100
from edbl.nets import cache
from tests.conftest import Cli

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def told(what: str, data: Path) -> doctor.Finding:
    return next(finding for finding in examine(data) if finding.what == what)


def test_each_extra_is_there() -> None:
    assert EXTRAS.keys() == PROJECT["optional-dependencies"].keys()


def test_what_an_extra_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stated = ["torch>=2", "timm>=1.0; extra == 'timm'", 'onnx>=1.17; extra == "export"', "x[y]>1; extra == 'export'"]
    monkeypatch.setattr(doctor, "requires", lambda name: stated)
    assert doctor.needed("export") == ["onnx", "x"]
    there = {"onnx": "1.17"}

    def version(name: str) -> str:
        if name not in there:
            raise PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(doctor, "version", version)
    assert told("edbl[export]", tmp_path).state == "missing"
    assert "pip install 'edbl[export]' installs x" in told("edbl[export]", tmp_path).told
    there["x"] = "2"
    assert told("edbl[export]", tmp_path) == ("edbl[export]", "ok", EXTRAS["export"])
    assert "install again" in told("edbl[photos]", tmp_path).told


def test_data_sets_that_are_there_are_told_from_those_that_are_not(tmp_path: Path) -> None:
    assert {finding.state for finding in examine(tmp_path) if finding.what == "data sets"} == {"none"}
    (tmp_path / CIFAR100.name).touch()
    here, lacking = (finding for finding in examine(tmp_path) if finding.what == "data sets")
    assert here.told == f"in {tmp_path}: cifar100"
    assert "cifar10," in lacking.told
    assert "cifar100" not in lacking.told  # nor its blocks, which are the same file


@pytest.mark.parametrize(
    ("built", "driver", "why"),
    [
        (None, None, "built without GPUs"),
        ("13.0", None, "no NVIDIA driver"),
        ("13.0", "/usr/bin/nvidia-smi", "sees no GPU"),
    ],
)
def test_why_there_is_no_gpu(
    built: str | None, driver: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr("shutil.which", lambda name: driver)
    assert why in told("device", tmp_path).told


def test_the_cache_and_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    assert told("features", tmp_path).told.endswith("0 MB")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "one").write_bytes(bytes(3_000_000))
    assert told("features", tmp_path).told == f"kept in {tmp_path / 'cache'}: 3 MB"
    monkeypatch.setenv(cache.MOST, "0")
    assert told("features", tmp_path).state == "none"


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    shown = cli("doctor", "--data-dir", tmp_path)
    assert shown.code == 0
    assert f"torch {torch.__version__}" in shown.out
    listed = json.loads(cli("doctor", "--data-dir", tmp_path, "--json").out)
    assert [row["what"] for row in listed] == [finding.what for finding in examine(tmp_path)]
