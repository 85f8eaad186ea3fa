"""The training step, where the contract of methods does not look."""

from pathlib import Path

import torch

from edbl import Recipe
from edbl.data import datasets
from edbl.data.stream import Stream
from edbl.engine.checkpoint import Checkpoints
from tests.test_contract import learner_of


def test_a_slow_backbone(tmp_path: Path) -> None:
    """Its learning rate is a part of the head's: 0 keeps it as it was, 1 is as if nothing had been said."""
    small = {"net.backbone": "small", "optim.steps": 3, "data.augment": "none", "checkpoint_seconds": 1000}
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
