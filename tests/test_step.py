"""The training step, where the contract of methods does not look."""

import math
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from edbl import Recipe
from edbl.data import datasets
from edbl.data.samplers import Uniform
from edbl.data.stream import Stream
from edbl.engine.checkpoint import Checkpoints
from edbl.engine.fit import SGD, Step
from edbl.schedule import Optim
from tests.test_contract import learner_of


def test_a_slow_backbone(tmp_path: Path) -> None:
    """Its learning rate is a part of the head's: 0 keeps it as it was, 1 is as if nothing had been said."""
    small = {"net.backbone": "small", "optim.batch": 240, "data.augment": "none", "checkpoint_seconds": 1000}
    states: list[dict[str, torch.Tensor]] = []
    for given in ({}, {"optim.backbone_lr": 0.0}, {"optim.backbone_lr": 0.5}, {"optim.backbone_lr": 1.0}):
        learner = learner_of(Recipe.build("edbl", data="digits", preset="quick", **(small | given)))
        before = {k: v.clone() for k, v in learner.net.state_dict().items()}
        stream = Stream(datasets.load("digits"), range(10), [5, 5], torch.device("cpu"))
        for number in range(2):
            learner.learn(stream[number], Checkpoints(tmp_path / str(len(states))))
        states.append(learner.net.state_dict())
    plain, frozen, slow, same = states
    weights = [key for key in before if key.startswith("backbone.") and key.endswith("weight")]

    def moved(state: dict[str, torch.Tensor]) -> float:
        return sum(float((state[key] - before[key]).norm()) for key in weights)

    assert moved(frozen) == 0 < moved(slow) < 0.9 * moved(plain)
    assert all(torch.equal(plain[key], same[key]) for key in plain)
    assert moved(plain) > 0
    heads = [{k: v for k, v in state.items() if k.startswith("head.")} for state in (frozen, slow, plain)]
    assert all(not torch.equal(heads[0][k], heads[1][k]) for k in heads[0])


def test_each_epoch_and_task_draws_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Uniform.__call__
    drawn: list[list[int]] = []

    def watched(sampler: Uniform, generator: torch.Generator) -> torch.Tensor:
        batches = draw(sampler, generator)
        drawn.append(batches.flatten().tolist())
        return batches

    monkeypatch.setattr(Uniform, "__call__", watched)
    rows: list[torch.Tensor] = []
    for again in range(2):
        small = {"net.backbone": "mlp", "schedule.epochs": 3, "optim.batch": 1000, "schedule.lr": 0.0}
        learner = learner_of(Recipe.build("finetune", data="digits", preset="quick", **small))
        stream = Stream(datasets.load("digits"), range(10), [5, 5], torch.device("cpu"))
        for number in range(2):
            learner.learn(stream[number], Checkpoints(tmp_path / str(again)))
        rows += learner.net.head.weight.detach().split(5)
    assert drawn[:6] == drawn[6:], "by seed, epoch and task"
    assert len({tuple(epoch) for epoch in drawn}) == 6
    assert torch.equal(rows[0], rows[2])
    assert torch.equal(rows[1], rows[3])
    assert not torch.equal(rows[0], rows[1]), "new classes of each task begin elsewhere"


OPTIMS = [
    Optim(),
    Optim(nesterov=False, weight_decay=0.0),
    Optim(momentum=0.0),
    Optim(backbone_lr=0.1),
]


@pytest.mark.parametrize("optim", OPTIMS)
def test_updates_are_those_of_pytorch(optim: Optim) -> None:
    """Two layers, the first of them the backbone, for some steps at two learning rates; the third gets no gradient."""
    nets = [nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    parts = [[list(layer.parameters()) for layer in net if isinstance(layer, nn.Linear)] for net in nets]
    ours = SGD(list(nets[0].parameters()), parts[0][0], optim)
    theirs = torch.optim.SGD(
        [{"params": parts[1][0]}, {"params": parts[1][1] + parts[1][2]}],
        lr=1.0,
        momentum=optim.momentum,
        weight_decay=optim.weight_decay,
        nesterov=optim.nesterov and optim.momentum > 0,
        fused=True,
    )
    generator = torch.Generator().manual_seed(0)
    for rate in (0.1, 0.1, 0.02):
        x = torch.randn(8, 4, generator=generator)
        ours.set_rate(rate)
        for factor, group in zip((optim.backbone_lr, 1.0), theirs.param_groups, strict=True):
            group["lr"] = torch.tensor(factor * rate)
        for net, optimiser in ((nets[0], ours), (nets[1], theirs)):
            optimiser.zero_grad()
            net[1](net[0](x)).square().sum().backward()
            optimiser.step()
    assert all(torch.equal(p, q) for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True))
    kept = {number: theirs.state[p].get("momentum_buffer") for number, p in enumerate(nets[1].parameters())}
    assert set(ours.state()) == ({f"{number}.momentum" for number in range(4)} if optim.momentum else set())
    assert all(torch.equal(value, kept[int(name[0])]) for name, value in ours.state().items())


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("by_step", [False, True])
def test_a_rate_by_step_is_set_before_each_step(kind: str, by_step: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    step = Step._step

    def noted(self: Step) -> None:
        made: Any = self.optimiser
        rates.append(float(made.rates[1.0] if kind == "sgd" else made.optimiser.param_groups[-1]["lr"]))
        step(self)

    monkeypatch.setattr(Step, "_step", noted)
    given = {"optim.kind": kind, "optim.by_step": by_step, "schedule.epochs": 3, "optim.warmup": 1, "schedule.lr": 0.3}
    small = {"net.backbone": "mlp", "optim.batch": 128, "schedule.shape": "cosine"}
    learner = learner_of(Recipe.build("finetune", data="digits", preset="quick", **small, **given))
    stream = Stream(datasets.load("digits"), range(10), [5, 5], torch.device("cpu"))
    learner.learn(stream[0])
    steps = len(rates) // 3
    assert steps > 4
    times = [number / steps if by_step else number // steps for number in range(3 * steps)]
    expected = [0.1 + 0.2 * at if at < 1 else 0.15 * (1 + math.cos(math.pi * at / 3)) for at in times]
    assert rates == pytest.approx(expected)


def test_a_run_does_not_load_the_compiler(tmp_path: Path) -> None:
    """It would take as long as PyTorch itself does to load."""
    program = (
        "import sys; from edbl import Recipe, run\n"
        "small = {'stream.tasks': 2, 'net.backbone': 'mlp', 'optim.batch': 1000}\n"
        f"run(Recipe.build('edbl', data='digits', preset='quick', **small), {str(tmp_path / 'run')!r})\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0


def test_fixed_statistics(tmp_path: Path) -> None:
    """Batch normalisation keeps its statistics through all phases, and computes with them."""
    small = {"net.backbone": "small", "optim.batch": 240, "data.augment": "none", "optim.fixed_norm": True}
    for method, more in (("edbl", {"clean_norm": True}), ("podnet", {}), ("rkd", {})):
        learner = learner_of(Recipe.build(method, data="digits", preset="quick", **(small | more)))
        before = {k: v.clone() for k, v in learner.net.state_dict().items()}
        stream = Stream(datasets.load("digits"), range(10), [5, 5], torch.device("cpu"))
        for number in range(2):
            learner.learn(stream[number], Checkpoints(tmp_path / method))
        after = learner.net.state_dict()
        same = {key for key in before if torch.equal(before[key], after[key])}
        assert same == {key for key in before if key.endswith(("running_mean", "running_var", "num_batches_tracked"))}


@pytest.mark.parametrize("method", ["edbl", "bic"])
def test_what_a_phase_does_not_train_has_no_gradients(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be worked out in vain: without them the second phase ends with the same bits."""
    small = {"net.backbone": "small", "optim.batch": 240, "data.augment": "none"}
    head = {"balance_layers": "head", "balance_norm": "eval"} if method == "edbl" else {}
    stream = Stream(datasets.load("digits"), range(10), [5, 5], torch.device("cpu"))
    calls = Step.__call__
    states: list[dict[str, torch.Tensor]] = []
    learning: list[bool] = []  # whether the backbone asks for gradients in steps of the second phase

    def watch(self: Step) -> None:
        calls(self)
        if self.phase.name != "train":
            learning.append(any(p.requires_grad for p in learner.net.backbone.parameters()))

    monkeypatch.setattr(Step, "__call__", watch)
    for name in ("idle", "graded"):
        if name == "graded":
            monkeypatch.setattr("edbl.engine.fit.only", lambda net, params: nullcontext())
        learner = learner_of(Recipe.build(method, data="digits", preset="quick", **(small | head)))
        for number in range(2):
            learner.learn(stream[number], Checkpoints(tmp_path / name))
        states.append(learner.net.state_dict())
        assert all(p.requires_grad for p in learner.net.backbone.parameters())
    half = len(learning) // 2
    assert learning == [False] * half + [True] * half
    assert half
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
