"""The shape of the package: data flows one way, and there is one training loop."""

import ast
import re
from pathlib import Path

import pytest

import edbl

ROOT = Path(edbl.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# What a part may import of this package, beside itself. Nothing flows back.
LAYERS = {
    "errors": [],
    "store": ["errors", "config"],
    "seeds": [],
    "config": ["errors"],
    "schedule": ["config"],
    "losses": [],
    "metrics": [],
    "data": ["errors", "seeds", "store"],
    "nets": ["errors"],
    "memory": ["errors", "data"],
    "methods": ["errors", "config", "schedule", "losses", "data", "nets", "memory"],
    "presets": ["config", "schedule", "memory"],
    "recipe": ["errors", "config", "schedule", "presets", "data", "memory", "methods", "nets"],
    "records": ["errors", "config", "store", "metrics"],
    "experiments": ["recipe"],
    "calibration": ["experiments"],
    "report": ["errors", "store", "metrics", "records", "experiments", "calibration", "recipe"],
    "demo": ["config", "methods", "recipe"],
}


def part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "edbl":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("edbl."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("edbl.")}
    return found


@pytest.mark.parametrize("path", [p for p in FILES if part(p) in LAYERS], ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_line(path: Path) -> None:
    assert imported(path) <= {*LAYERS[part(path)], part(path)}


def test_every_part_has_its_place() -> None:
    assert {part(p) for p in FILES} == {*LAYERS, "engine", "app", "bench", "cli", "__init__", "__main__"}


def test_there_is_one_training_loop() -> None:
    loops = [p.name for p in FILES if ".backward(" in p.read_text()]
    assert loops == ["bench.py", "step.py"]  # and the one that it is measured against


@pytest.mark.parametrize("path", [p for p in FILES if part(p) in ("methods", "losses")], ids=lambda p: p.name)
def test_methods_and_losses_never_wait_for_the_device(path: Path) -> None:
    assert not re.search(r"\.(item|cpu|tolist|numpy|nonzero)\(", path.read_text())


@pytest.mark.parametrize("path", [p for p in FILES if part(p) in ("methods", "losses")], ids=lambda p: p.name)
def test_methods_and_losses_know_nothing_of_how_a_step_is_computed(path: Path) -> None:
    assert not re.search(r"autocast|bfloat16|bf16|fused|cuda|triton|Stream\(", path.read_text())


# Published weights come as a pickle. They are read in one place, as tensors only and once their checksum is right.
UNPICKLES = {"app/extractor.py": "torch.load(io.BytesIO(data), weights_only=True)"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_is_unpickled(path: Path) -> None:
    text = path.read_text()
    allowed = UNPICKLES.get(path.relative_to(ROOT).as_posix())
    if allowed:
        before, call, after = text.partition(allowed)
        assert before.rpartition("\ndef ")[2].count("if found != SHA256:\n        raise") == 1  # in the same function
        assert call
        text = before + after
    assert not re.search(r"import pickle|(?<!safetensors\.)torch\.load|allow_pickle=True", text)


@pytest.mark.parametrize("path", [p for p in FILES if part(p) == "app"], ids=lambda p: p.name)
def test_messages_name_settings_not_flags(path: Path) -> None:
    """A Python caller has no flags; commands that can be pasted are made by `command`, and have theirs apart."""
    texts = [n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)]
    flags = [text for text in texts if isinstance(text, str) and re.search(r"(^|[ (])--[a-z]", text)]
    assert [text for text in flags if text != "--discard" and "`pip install" not in text] == []
