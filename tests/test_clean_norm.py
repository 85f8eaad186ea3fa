"""Batch normalisation whose statistics, after a task, are those of unmixed images."""

from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from edbl import Recipe
from edbl.data import datasets
from edbl.data.images import Images
from edbl.data.samplers import Uniform
from edbl.data.stream import Stream, Task
from edbl.engine.checkpoint import Checkpoints, Saved
from edbl.engine.fit import SHOWN, Loop
from edbl.engine.learner import Learner
from edbl.engine.progress import Progress
from edbl.methods.base import Draw, Method
from edbl.nets.backbones import build
from edbl.nets.net import LinearHead, Net
from edbl.seeds import Seeds
from tests.test_contract import learner_of

CPU = torch.device("cpu")


def learnt(tasks: int, folder: Path, method: str = "edbl", **given: object) -> Learner:
    small = {"net.backbone": "small", "optim.batch": 240, "data.augment": "crop", "checkpoint_seconds": 1000}
    learner = learner_of(Recipe.build(method, data="digits", preset="quick", **(small | given)))
    stream = Stream(datasets.load("digits"), range(10), [5, 5], CPU)
    for number in range(tasks):
        learner.learn(stream[number], Checkpoints(folder))
    return learner


def test_images_are_shown_and_nothing_is_learnt(tmp_path: Path) -> None:
    learner = learnt(1, tmp_path)
    backbone = build("small", (1, 8, 8), torch.Generator().manual_seed(0))
    net = Net(backbone, LinearHead(backbone.width))
    images: Images = Stream(datasets.load("digits"), range(10), [10], CPU)[0].train
    x = learner.loop.transform.normalise(images.x)
    for norm in (module for module in net.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.running_mean = torch.full_like(norm.weight.detach(), 7.0)
    params = [p.clone() for p in net.parameters()]
    loop = Loop(learner.loop.transform, Seeds(0), Progress(), bf16=False, graph=False)

    def off() -> float:
        """Tell how far evaluation is from what training computes, for all images at once."""
        with torch.no_grad():
            seen = net.eval()(x).features
            kept = {k: v.clone() for k, v in net.state_dict().items()}
            own: Tensor = net.train()(x).features
            net.load_state_dict(kept)
        return float((seen - own).norm() / own.norm())

    assert off() > 0.9
    loop.show(net, Draw(images, Uniform(len(images), 128)), ("task", 0, "clean"))
    assert not net.training
    assert off() < 0.2
    assert all(torch.equal(p, q) for p, q in zip(params, net.parameters(), strict=True))


@pytest.mark.parametrize("method", ["vanilla-mkd", "re-mkd", "edbl"])
def test_after_a_task_only_statistics_differ(method: str, tmp_path: Path) -> None:
    with_it, again, without = (
        learnt(1, tmp_path / name, method, clean_norm=name != "without") for name in ("with", "again", "without")
    )
    states = [learner.net.state_dict() for learner in (with_it, again, without)]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    differ = {key for key in states[0] if not torch.equal(states[0][key], states[2][key])}
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    assert differ == {key for key in states[0] if key.endswith(statistics)}


@pytest.mark.parametrize("reading", ["batch", "epoch", "concat"])
def test_later_tasks_show_old_and_new_images(reading: str, tmp_path: Path) -> None:
    learner = learnt(2, tmp_path, memory="total=20", clean_norm=True, reading=reading)
    stream = Stream(datasets.load("digits"), range(10), [5, 5], CPU)
    draw = learner.method.norm_statistics(stream[1], learner.method.draw(stream[1]))
    assert draw is not None
    shown = draw.data.y[draw.sampler(torch.Generator().manual_seed(0)).unique()]
    assert set(shown.tolist()) == set(range(10))


def test_a_teacher_has_the_statistics_that_it_learnt_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learnt(1, tmp_path / "with", clean_norm=True)
    plain = learnt(1, tmp_path / "without", clean_norm=False).net.state_dict()
    statistics = [key for key in plain if "running_" in key]
    assert not any(torch.equal(plain[key], learner.net.state_dict()[key]) for key in statistics)
    seen = {}
    begin = Method.begin

    def watch(method: Method, task: Task, generator: torch.Generator) -> None:
        seen.update({key: value.clone() for key, value in method.net.state_dict().items()})
        begin(method, task, generator)

    monkeypatch.setattr(Method, "begin", watch)
    learner.learn(Stream(datasets.load("digits"), range(10), [5, 5], CPU)[1], Checkpoints(tmp_path / "with"))
    assert statistics
    assert all(torch.equal(plain[key], seen[key]) for key in statistics)


def test_images_are_those_that_were_learnt_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learnt(1, tmp_path / "a", clean_norm=True)
    kept = learner.memory.images.y.clone()
    shown: list[Draw] = []
    monkeypatch.setattr(Loop, "show", lambda loop, net, draw, place: shown.append(draw))
    task = Stream(datasets.load("digits"), range(10), [5, 5], CPU)[1]
    learner.learn(task, Checkpoints(tmp_path / "b"))
    assert torch.equal(shown[0].data.y.sort().values, torch.cat([kept, task.train.y]).sort().values)


def test_a_state_that_is_saved_and_loaded_learns_the_same(tmp_path: Path) -> None:
    learner = learnt(1, tmp_path / "a", clean_norm=True)
    other = learner_of(learner.training)
    other.load(Saved({k: v.clone() for k, v in learner.tensors().items()}, {}), [5])
    task = Stream(datasets.load("digits"), range(10), [5, 5], CPU)[1]
    for name, one in (("b", learner), ("c", other)):
        one.learn(task, Checkpoints(tmp_path / name))
    states = learner.net.state_dict(), other.net.state_dict()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_statistics_of_a_task_before_the_last_do_not_come_back(tmp_path: Path) -> None:
    """Without the option in the second task, a third one starts from what the second gave."""
    learner = learnt(1, tmp_path / "a", clean_norm=True)
    other = learner_of(Recipe.of({**learner.training.values(), "options.clean_norm": False}))
    other.load(Saved({k: v.clone() for k, v in learner.tensors().items()}, {}), [5])
    assert other.learnt
    other.learn(Stream(datasets.load("digits"), range(10), [5, 5], CPU)[1], Checkpoints(tmp_path / "b"))
    assert not other.learnt


def test_what_is_shown_is_augmented_drawn_by_its_place_and_no_more_than_needed() -> None:
    images: Images = Stream(datasets.load("digits"), range(10), [10], CPU)[0].train
    assert len(images) // 8 > SHOWN
    seeds = []
    for place in ("here", "there"):
        transform, net = Mock(), Mock()
        loop = Loop(transform, Seeds(0), Progress(), bf16=False, graph=False)
        loop.show(net, Draw(images, Uniform(len(images), 8)), (place,))
        assert net.call_count == transform.augment.call_count == SHOWN
        assert all(call.args == (transform.augment.return_value,) for call in net.call_args_list)
        seeds.append(transform.augment.call_args.args[1].initial_seed())
    assert seeds == [Seeds(0).number("here"), Seeds(0).number("there")]
