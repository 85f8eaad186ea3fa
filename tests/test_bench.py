"""The benchmark runs, and the engine adds next to nothing to the bare network. Ratios only, within one run."""

import json
import time
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Generator, Tensor

from edbl.bench import step as bench
from edbl.bench.step import BARE, ROUNDS, Row, Way, bare, data_path, engine, in_turns, rows, seconds
from edbl.data.samplers import Uniform
from edbl.engine import environment
from tests.conftest import Cli

CPU = torch.device("cpu")
BOUND = 1.05
SMALL_BOUND = 1.25  # of the smallest network, beside which making a batch counts most
PLANTED = 0.025  # seconds
QUICK = "bench", "--backbone", "mlp", "--workers", 0, "--device", "cpu"


def of_bare(step: Callable[[], None], backbone: str = "resnet32", batch: int = 16, bound: float = BOUND) -> float:
    """Return how many times the bare network's step this one takes.

    Time is that of this process alone, at its best in many turns: whatever else the machine does can only add. Where
    the ratio is above the bound, more turns are taken, a few times.
    """
    ours, theirs = Way(step, 1, 0), Way(bare(CPU, backbone, batch), 1, 0)
    taken: list[tuple[float, float]] = []
    ratio = bound
    while ratio >= bound and len(taken) < 40:
        taken += [(seconds(ours, CPU, time.process_time), seconds(theirs, CPU, time.process_time)) for _ in range(10)]
        ratio = min(t for t, _ in taken) / min(t for _, t in taken)
    return ratio


def test_the_engine_adds_next_to_nothing_to_the_bare_network() -> None:
    assert of_bare(engine(CPU, "resnet32", 16, bf16=False, graph=False)) < BOUND


def test_a_batch_costs_little_beside_a_small_network() -> None:
    step = engine(CPU, "mlp", 128, bf16=False, graph=False)
    assert of_bare(step, "mlp", 128, SMALL_BOUND) < SMALL_BOUND


def test_a_slower_engine_would_be_seen() -> None:
    step = engine(CPU, "resnet32", 16, bf16=False, graph=False)

    def slower() -> None:
        end = time.process_time() + PLANTED
        while time.process_time() < end:
            pass
        step()

    assert of_bare(slower) > BOUND


def test_the_bare_network_has_the_engines_batch_and_update(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def training_step(method: object, device: torch.device, *, fused: bool) -> Callable[[Tensor, Tensor], None]:
        return lambda x, y: seen.append((x, fused))

    monkeypatch.setattr(bench, "training_step", training_step)
    bare(CPU, "mlp", 8)()
    ((x, fused),) = seen
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert fused


def test_the_ways_take_turns() -> None:
    calls: list[str] = []
    ways = {name: Way(partial(calls.append, name), 2, 1) for name in ("one", "other")}
    taken = in_turns(ways, CPU)
    assert calls == (["one"] * 3 + ["other"] * 3) * ROUNDS
    assert [len(times) for times in taken.values()] == [ROUNDS] * 2


def test_ratios_are_those_of_rounds() -> None:
    first, second = rows({"edbl": [1.0, 8.0, 4.0], BARE: [2.0, 5.0, 8.0]}, 8)
    assert first == Row("edbl", 4000.0, 2.0, 0.5)
    assert second == Row(BARE, 5000.0, 1.6, 1.0)


def test_the_data_path_draws_each_epoch_and_mixes(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    draw = Uniform.__call__

    def watched(sampler: Uniform, generator: Generator) -> Tensor:
        drawn.append(draw(sampler, generator))
        return drawn[-1]

    monkeypatch.setattr(Uniform, "__call__", watched)
    step = data_path(CPU, 4000, "crop-flip")
    batches = [step() for _ in range(6)]
    assert len(drawn) == 2
    assert all(0 < batch.y.max(1).values.min() < 1 for batch in batches)
    assert all(batch.x.shape == (4000, 3, 32, 32) and batch.x.is_floating_point() for batch in batches)


def test_the_command_prints_json(cli: Cli) -> None:
    found = json.loads(cli(*QUICK, "--batch", 8, "--steps", 1, "--json").out)
    assert [row["name"] for row in found["rows"]][:2] == ["edbl", "bare network"]
    assert all(row["milliseconds"] > 0 for row in found["rows"])
    assert found["device"].startswith("CPU")


def test_the_command_prints_a_table(cli: Cli) -> None:
    shown = cli(*QUICK, "--batch", 8, "--steps", 1).out
    assert "plain loop, 0 workers" in shown
    assert "torch" in shown


def test_a_batch_is_no_larger_than_the_data(cli: Cli) -> None:
    finished = cli(*QUICK, "--batch", 12_001, "--steps", 1)
    assert finished.code == 2
    assert finished.err == "error: a batch of 12001 is more than the benchmark has images; use 12000 or less\n"


@pytest.mark.parametrize("steps", [0, -3])
def test_there_is_at_least_one_step(cli: Cli, steps: int) -> None:
    finished = cli(*QUICK, "--batch", 8, "--steps", steps)
    assert finished.code == 2
    assert "--steps" in finished.err


def test_bf16_on_a_cpu_has_a_row_of_its_own(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def engine(*_: object, **how: bool) -> Callable[[], None]:
        made.append((how["bf16"], how["graph"]))
        return lambda: None

    monkeypatch.setattr(bench, "engine", engine)
    monkeypatch.setattr(environment, "computes_bf16", lambda device: True)
    found = json.loads(cli(*QUICK, "--batch", 8, "--steps", 1, "--precision", "bf16", "--json").out)
    assert [row["name"] for row in found["rows"]][:3] == ["edbl", "edbl, bf16", BARE]
    assert made == [(False, False), (True, False)]


def test_a_precision_that_is_not_there_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "computes_bf16", lambda device: False)
    for precision, told in (("bf16", "precision bf16 is wanted"), ("fp16", "unknown value of precision 'fp16'")):
        finished = cli(*QUICK, "--batch", 8, "--steps", 1, "--precision", precision)
        assert finished.code == 2
        assert told in finished.err
