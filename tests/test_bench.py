"""The benchmark runs, and the engine adds next to nothing to the bare network. Ratios only, within one run."""

import json

import torch

from edbl.bench import bare, engine, seconds
from tests.conftest import Cli

CPU = torch.device("cpu")


def test_the_engine_adds_next_to_nothing_to_the_bare_network() -> None:
    ours, theirs = engine(CPU, "resnet32", 32, bf16=False, graph=False), bare(CPU, "resnet32", 32)
    # The best of several turns each: whatever else the machine does can only add.
    ratios = [seconds(ours, 2, CPU) / seconds(theirs, 2, CPU) for _ in range(4)]
    assert min(ratios) < 1.05


def test_the_command_prints_json(cli: Cli) -> None:
    finished = cli(
        "bench", "--backbone", "mlp", "--batch", 8, "--steps", 1, "--workers", 0, "--device", "cpu", "--json"
    )
    found = json.loads(finished.out)
    assert [row["name"] for row in found["rows"]][:2] == ["edbl", "bare network"]
    assert all(row["milliseconds"] > 0 for row in found["rows"])
    assert found["device"].startswith("CPU")


def test_the_command_prints_a_table(cli: Cli) -> None:
    shown = cli("bench", "--backbone", "mlp", "--batch", 8, "--steps", 1, "--workers", 0, "--device", "cpu").out
    assert "plain loop, 0 workers" in shown
    assert "torch" in shown
