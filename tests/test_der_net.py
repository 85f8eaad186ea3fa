"""DER-Net: what is frozen, what is kept when the net grows, what each stage trains."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor, nn

from edbl import Recipe, run
from edbl.data.images import Images
from edbl.data.mixing import Batch
from edbl.data.samplers import Uniform
from edbl.data.stream import Task
from edbl.engine.checkpoint import Checkpoints
from edbl.engine.fit import only
from edbl.engine.progress import Progress
from edbl.memory import Budget, Memory
from edbl.methods.base import Phase
from edbl.methods.der_net import DERNet, auxiliary_loss, balanced
from edbl.nets.backbones import Backbone, build
from edbl.nets.expanding import ExpandingNet
from edbl.schedule import FirstTask, Optim, Schedule
from tests.vectors import same, seeded, state, tools

SHAPE = (1, 6, 6)
WIDTH = 32  # of backbone small


def small(generator: Generator) -> Backbone:
    return build("small", SHAPE, generator)


def some(count: int = 8, seed: int = 0) -> Tensor:
    return torch.randn(count, *SHAPE, generator=seeded(seed))


def grown(*sizes: int, seed: int = 0) -> ExpandingNet:
    net = ExpandingNet(small, seeded(seed))
    for number, size in enumerate(sizes):
        net.grow(size, seeded(seed + number + 1))
        if number < len(sizes) - 1:
            train_a_little(net)
    return net


def train_a_little(net: ExpandingNet, loss: Callable[[ExpandingNet, Tensor], Tensor] | None = None) -> None:
    net.train()
    optimiser = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    for step in range(3):
        x = some(seed=step)
        value = loss(net, x) if loss else net(x).logits.square().mean()
        optimiser.zero_grad()
        value.backward()
        optimiser.step()


def images_of(counts: list[int], first: int = 0) -> Images:
    y = torch.tensor([first + k for k, count in enumerate(counts) for _ in range(count)])
    x = torch.randint(256, (len(y), *SHAPE), generator=seeded(first), dtype=torch.uint8)
    return Images(x, y)


def a_task(old: int, new: list[int]) -> Task:
    train = images_of(new, old)
    return Task(int(old > 0), old, len(new), train)


def begun(exemplars: list[int], new: list[int], **options: object) -> tuple[DERNet, Task]:
    """Return a method that knows a class for each number of exemplars, at the begin of a task, and the task."""
    net = ExpandingNet(small, seeded())
    memory = Memory(Budget("total", 12))
    if exemplars:
        net.grow(len(exemplars), seeded(1))
        train_a_little(net)
        memory.replace(images_of(exemplars))
    method = DERNet(
        net,
        memory,
        DERNet.Config(**{"tune": Schedule(3, 0.02, (1,)), **options}),  # type: ignore[arg-type]
        Schedule(4, 0.2, (2,)),
        Optim(batch=8, warmup=5),
        tools(lambda images: net.eval()(images.x.float() / 255).features.detach()),
    )
    task = a_task(len(exemplars), new)
    method.begin(task, seeded(2))
    return method, task


def test_features_stand_side_by_side() -> None:
    net = grown(2, 3, 2).eval()
    x = some()
    logits, features, _ = net(x)
    assert features.shape == (8, 3 * WIDTH)
    assert logits.shape == (8, 7)
    parts = [*net.old, net.backbone]
    for k, part in enumerate(parts):
        assert torch.equal(features[:, k * WIDTH : (k + 1) * WIDTH], part(x))
    expected = [
        [
            sum(features[b, i].item() * net.head.weight[c, i].item() for i in range(3 * WIDTH))
            + net.head.bias[c].item()
            for c in range(7)
        ]
        for b in range(2)
    ]
    torch.testing.assert_close(logits[:2], torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_a_task_of_training_leaves_old_features_as_they_were() -> None:
    net = grown(2, 3)
    before = state(net.old)
    x = some(seed=7)
    net.eval()
    old = net(x).features[:, :WIDTH].clone()
    newest, head = state(net.backbone), net.head.weight.detach().clone()
    train_a_little(net, lambda n, x: DERNet.loss(method_of(n), Batch(x, torch.eye(5)[[0, 1, 2, 3, 4, 2, 3, 4]])))
    net.eval()
    assert torch.equal(net(x).features[:, :WIDTH], old)
    assert same(state(net.old), before)  # running statistics too
    assert not same(state(net.backbone), newest)
    assert not torch.equal(net.head.weight[:, :WIDTH], head[:, :WIDTH])  # what is made of old features is learnt


def method_of(net: ExpandingNet, **options: object) -> DERNet:
    config = DERNet.Config(**options)  # type: ignore[arg-type]
    return DERNet(net, Memory(Budget("total", 12)), config, Schedule(), Optim(), tools(lambda images: images.x))


def test_the_auxiliary_head_learns_as_fast_as_the_head() -> None:
    method, task = begun([4, 4], [9, 9])
    phase = next(iter(method.phases(task)))
    slow = set(phase.backbone)
    assert slow == set(method.net.backbone.parameters())
    assert method.net.aux is not None
    assert slow.isdisjoint(method.net.aux.parameters())
    assert set(method.net.aux.parameters()) <= set(phase.params)


@pytest.mark.parametrize("mode", [True, False])
def test_old_backbones_stay_in_evaluation_mode(mode: bool) -> None:
    net = grown(2, 2, 2)
    assert net.train(mode) is net
    assert not any(module.training for module in net.old.modules())
    assert all(module.training is mode for module in net.backbone.modules())
    assert net.head.training is mode
    assert not any(p.requires_grad for p in net.old.parameters())
    assert all(p.requires_grad for p in net.backbone.parameters())


def test_growth_keeps_the_head_and_starts_from_the_last_backbone() -> None:
    net = grown(2)
    train_a_little(net)
    backbone, weight, bias = state(net.backbone), net.head.weight.detach().clone(), net.head.bias.detach().clone()
    net.grow(3, seeded(5))
    assert net.head.sizes == [2, 3]
    assert same(state(net.old[0]), backbone)
    assert same(state(net.backbone), backbone)
    assert all(
        a.data_ptr() != b.data_ptr() for a, b in zip(net.old.parameters(), net.backbone.parameters(), strict=True)
    )
    assert torch.equal(net.head.weight[:2, :WIDTH], weight)
    assert torch.equal(net.head.bias[:2], bias)
    fresh = torch.cat([net.head.weight[:2, WIDTH:].flatten(), net.head.weight[2:].flatten()])
    bound = 1 / math.sqrt(2 * WIDTH)
    assert fresh.abs().max() <= bound
    assert fresh.abs().max() > 0.9 * bound
    assert len(fresh.unique()) > 0.9 * len(fresh)  # drawn, not zero
    # The next time, the block is that of both backbones.
    weight = net.head.weight.detach().clone()
    net.grow(1, seeded(6))
    assert net.head.weight.shape == (6, 3 * WIDTH)
    assert torch.equal(net.head.weight[:5, : 2 * WIDTH], weight)


def test_new_backbones_are_where_the_net_is() -> None:
    net = grown(2).to("meta")
    net.grow(3, seeded(5))
    assert {p.device.type for p in net.parameters()} == {"meta"}


def test_the_auxiliary_head_is_new_in_each_task() -> None:
    assert not any("aux" in key for key in grown(2).state_dict())
    for sizes, outputs in (((2, 3), 4), ((2, 3, 1), 2)):
        net = grown(*sizes)
        assert net.aux is not None
        assert net.aux.weight.shape == (outputs, WIDTH)


def test_auxiliary_loss_literally() -> None:
    logits = torch.randn(5, 4, generator=seeded())
    y = torch.eye(8)[[0, 4, 5, 6, 7]]
    y[1] = torch.tensor([0.1, 0.0, 0.0, 0.2, 0.0, 0.3, 0.4, 0.0])  # mixed
    found = auxiliary_loss(logits, y)
    for b in range(5):
        exps = [math.exp(v) for v in logits[b].tolist()]
        target = [sum(y[b, :5].tolist()), *y[b, 5:].tolist()]
        expected = -sum(t * math.log(e / sum(exps)) for t, e in zip(target, exps, strict=True))
        assert found[b].item() == pytest.approx(expected, rel=1e-5)
    # A hard label of an old class is class 0, the first new one class 1.
    for label, place in ((0, 0), (4, 0), (5, 1), (7, 3)):
        one = auxiliary_loss(logits[:1], torch.eye(8)[[label]])
        assert one.item() == pytest.approx(-logits[0].log_softmax(0)[place].item(), rel=1e-5)


@pytest.mark.parametrize("weight", [0.0, 1.0, 0.3])
def test_loss_is_both_heads_cross_entropy(weight: float) -> None:
    method, _ = begun([3, 3], [9, 9], aux_weight=weight)
    net = method.net.eval()
    for parameter in net.backbone.parameters():  # which starts as a copy
        parameter.data += 0.1
    batch = Batch(some(4), torch.eye(4)[[0, 1, 2, 3]])
    logits, features, _ = net(batch.x)
    assert net.aux is not None
    aux = nn.functional.linear(features[:, WIDTH:], net.aux.weight, net.aux.bias)
    expected = 0.0
    for b in range(4):
        expected -= logits[b].log_softmax(0)[b].item() / 4
        expected -= weight * aux[b].log_softmax(0)[max(0, b - 1)].item() / 4
    assert method.loss(batch).item() == pytest.approx(expected, rel=1e-5)
    method.loss(batch).backward()
    assert all(p.grad is None for p in net.old.parameters())
    assert all(p.grad is not None for p in net.backbone.parameters())
    assert net.head.weight.grad is not None


def test_first_task_is_plain() -> None:
    method, task = begun([], [9, 9])
    (phase,) = method.phases(task)
    assert method.teacher is None
    assert len(method.net.old) == 0
    assert {id(p) for p in phase.params} == {id(p) for p in method.net.parameters()}
    batch = Batch(some(4), torch.eye(2)[[0, 1, 0, 1]])
    method.net.eval()
    expected = -sum(row.log_softmax(0)[b % 2].item() for b, row in enumerate(method.net(batch.x).logits)) / 4
    assert phase.loss(batch).item() == pytest.approx(expected, rel=1e-5)
    assert phase.schedule.epochs == 4


def walk(method: DERNet, task: Task) -> list[Phase]:
    """Go through the phases as the engine does; training moves all that a phase trains."""
    phases = []
    for phase in method.phases(task):
        phases.append(phase)
        for parameter in phase.params:
            parameter.data += 0.1
    return phases


def test_stage_2_retrains_a_fresh_head_on_balanced_images() -> None:
    method, task = begun([3, 2], [9, 7, 8])
    net = method.net
    phases = method.phases(task)
    train = next(phases)
    assert train.draw.sampler == Uniform(29, 8)
    assert {id(p) for p in train.params} == {id(p) for p in net.parameters() if p.requires_grad}
    assert net.aux is not None
    assert id(net.aux.weight) in {id(p) for p in train.params}
    for parameter in train.params:
        parameter.data += 0.1
    trained = net.head.weight.detach().clone()
    tune = next(phases)
    assert tune.name == "tune"
    assert tune.schedule == Schedule(3, 0.02, (1,))
    assert tune.optim == replace(train.optim, warmup=0)
    assert not tune.train_mode
    assert {id(p) for p in tune.params} == {id(net.head.weight), id(net.head.bias)}
    assert tune.draw.data.counts(5).tolist() == [2] * 5
    bound = 1 / math.sqrt(2 * WIDTH)
    assert net.head.weight.abs().max() <= bound < trained.abs().max()
    assert next(phases, None) is None


def test_tune_loss_has_a_temperature_and_reaches_the_head_alone() -> None:
    method, _ = begun([3, 3], [9, 9], temperature=5.0)
    method.net.eval()
    batch = Batch(some(4), torch.eye(4)[[0, 1, 2, 3]])
    logits = method.net(batch.x).logits.tolist()
    expected = 0.0
    for b, row in enumerate(logits):
        exps = [math.exp(v / 5) for v in row]
        expected -= math.log(exps[b] / sum(exps)) / 4
    with only(method.net, list(method.net.head.parameters())):
        loss = method.tune_loss(batch)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    learning = {name for name, p in method.net.named_parameters() if p.grad is not None}
    assert learning == {"head.weight", "head.bias"}


def test_what_stands_between_the_phases_does_the_same_each_time() -> None:
    results = []
    for _ in range(2):
        method, task = begun([3, 3], [9, 9])
        phases = method.phases(task)
        next(phases)
        tune = next(phases)
        results.append((state(method.net.head), tune.draw.data))
    assert same(results[0][0], results[1][0])
    assert torch.equal(results[0][1].x, results[1][1].x)


def test_balanced_images_are_drawn_from_all() -> None:
    images = images_of([5, 9, 20])
    drawn = balanced(images, 3, seeded())
    assert drawn.y.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    index = [(images.x == x).flatten(1).all(1).nonzero().item() for x in drawn.x]
    assert len(set(index)) == 15
    assert all(images.y[int(i)] == y for i, y in zip(index, drawn.y, strict=True))
    assert sorted(index[:5]) == list(range(5))
    assert max(index[10:]) > 19  # not the first ones
    assert torch.equal(drawn.x, balanced(images, 3, seeded()).x)
    assert not torch.equal(drawn.x, balanced(images, 3, seeded(1)).x)


def test_restored_net_is_the_same() -> None:
    net = grown(2, 3, 2)
    train_a_little(net)
    other = ExpandingNet(small, seeded(50))
    for size in (2, 3, 2):
        other.grow(size, seeded(51))
    other.load_state_dict(net.state_dict())
    assert [n for n, p in other.named_parameters() if p.requires_grad] == [
        n for n, p in net.named_parameters() if p.requires_grad
    ]
    x = some(seed=3)
    assert torch.equal(other.eval()(x).logits, net.eval()(x).logits)


def test_a_frozen_copy_stays_while_the_net_grows() -> None:
    net = grown(2, 3)
    x = some(seed=3)
    copied, before = net.frozen(), net.eval()(x).logits.detach()
    net.grow(2, seeded(9))
    train_a_little(net)
    assert torch.equal(copied(x).logits, before)
    assert not any(p.requires_grad for p in copied.parameters())
    again = copy.deepcopy(net)
    again.grow(1, seeded(9))
    assert len(again.old) == 3
    assert len(net.old) == 2


def test_restart_leaves_one_backbone() -> None:
    net = grown(2, 3)
    net.restart(seeded(8))
    assert net.head.classes == 0
    assert not any(key.startswith(("old", "aux")) for key in net.state_dict())
    net.grow(4, seeded(9))
    assert net(some()).logits.shape == (8, 4)
    assert net(some()).features.shape == (8, WIDTH)
    assert all(p.requires_grad for p in net.parameters())


def test_a_run_never_changes_a_backbone_once_it_is_old(tmp_path: Path) -> None:
    class Keep(Progress):
        """Keep the state after each task, which the run itself forgets."""

        def say(self, text: str) -> None:
            found = Checkpoints(tmp_path / "run" / "checkpoints").newest_task(below=10)
            if found:
                states[found[0]] = found[1].parts("net.")[0]

    states: dict[int, dict[str, Tensor]] = {}
    given = {"stream.tasks": 3, "memory": "total=25", "net.backbone": "mlp", "schedule.epochs": 2, "tune.epochs": 2}
    run(Recipe.build("der-net", data="digits", preset="quick", **given), tmp_path / "run", progress=Keep())
    assert sorted(states) == [0, 1, 2]

    def backbone(task: int, prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v for k, v in states[task].items() if k.startswith(prefix)}

    first, second = backbone(0, "backbone."), backbone(1, "backbone.")
    assert same(backbone(1, "old.0."), first)
    assert same(backbone(2, "old.0."), first)
    assert same(backbone(2, "old.1."), second)
    assert not same(first, second)


def test_preset_paper() -> None:
    recipe = Recipe.build("der-net", data="cifar100", preset="paper")
    # The rate falls 100 and 120 epochs after the warm-up.
    assert recipe.schedule == Schedule(170, 0.1, (110, 130), decay=0.1, shape="steps")
    assert recipe.optim == Optim(batch=128, momentum=0.9, nesterov=False, weight_decay=5e-4, warmup=10)
    assert recipe.first == FirstTask()
    assert (recipe.data.augment, recipe.data.pad, recipe.data.brightness) == ("crop-flip", 4, 63 / 255)
    tune = Schedule(30, 0.1, (15,), decay=0.1, shape="steps")
    assert recipe.options == DERNet.Config(aux_weight=1.0, temperature=5.0, tune=tune)
    assert recipe.memory == "total=2000"


def test_rates_of_both_stages_under_preset_paper() -> None:
    recipe = Recipe.build("der-net", data="cifar100", preset="paper")
    method, task = begun([3, 3], [9, 9], tune=Schedule(30, 0.1, (15,)))
    method.optim, method.schedule = recipe.optim, recipe.schedule
    train, tune = walk(method, task)
    rates = [[p.schedule.rate(epoch, p.optim.warmup) for epoch in range(p.schedule.epochs)] for p in (train, tune)]
    assert len(rates[0]) == 170
    assert rates[0][0] < 0.05
    assert [round(rates[0][k], 9) for k in (10, 109, 110, 129, 130, 169)] == [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    assert [round(rate, 9) for rate in rates[1]] == [0.1] * 15 + [0.01] * 15
    assert train.optim.weight_decay == tune.optim.weight_decay == 5e-4


def test_a_third_backbone_starts_from_the_second() -> None:
    net = grown(2, 2)
    train_a_little(net)
    second = state(net.backbone)
    net.grow(1, seeded(9))
    assert same(state(net.backbone), second)
    assert not same(state(net.backbone), state(net.old[0]))
