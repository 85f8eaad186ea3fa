"""What a method of one's own cannot do by mistake: draw unseeded, keep too much, see what it must not see."""

from pathlib import Path

import pytest
import torch

from edbl import EdblError, Recipe, Record, resume, run
from tests.test_contract import Killed, Killer, last_state
from tests.vectors import same

HEAD = """
from dataclasses import replace
import torch
from torch import nn
from edbl.methods.base import Method
from edbl.nets.net import Net, Output


class Mine(Method):
    name, title, source = "mine", "Mine", "me"
"""
# Draws from PyTorch's global generator where ordinary code does: in a new module, dropout, between phases, at the end.
DRAWS = (
    HEAD
    + """
    @classmethod
    def build(cls, make, generator):
        net = super().build(make, generator)
        net.projector = nn.Sequential(nn.Linear(net.backbone.width, net.backbone.width), nn.Dropout(0.5))
        return net

    def loss(self, batch):
        output = self.net(batch.x)
        scores = self.net.head(self.net.projector(output.features))
        return -(batch.y * scores.log_softmax(1)).sum(1).mean()

    def phases(self, task):
        yield from super().phases(task)
        with torch.no_grad():
            self.net.projector[0].bias.add_(torch.rand_like(self.net.projector[0].bias))
        yield replace(self.main_phase(task, self.draw(task)), name="again")

    def end(self, task):
        super().end(task)
        with torch.no_grad():
            self.net.projector[0].weight.add_(1e-3 * torch.randn_like(self.net.projector[0].weight))
"""
)
# Keeps means of features, by which it answers.
COUNTS = (
    HEAD
    + """
    def end(self, task):
        super().end(task)
        self.state["tasks"] = self.state.get("tasks", torch.zeros(())) + 1
        self.state["means"] = torch.stack([self.features(images).mean(0) for images in self.memory.classes])

    def scores(self, output):
        return output.features @ self.state["means"].T / self.state["tasks"]
"""
)
GREEDY = (
    HEAD
    + """
    def end(self, task):
        self.memory.replace(task.train if not task.old else type(task.train).cat([self.memory.images, task.train]))
"""
)
PEEKS = (
    HEAD
    + """
    def loss(self, batch):
        self.task.test
        return super().loss(batch)

    def begin(self, task, generator):
        self.task = task
        super().begin(task, generator)
"""
)
CHEATS = (
    HEAD
    + """
    def draw(self, task):
        return replace(super().draw(task), data=task.joint())
"""
)


def recipe(tmp_path: Path, text: str, seed: int = 0, **given: object) -> Recipe:
    (tmp_path / "mine.py").write_text(text)
    short = {"stream.tasks": 3, "net.backbone": "mlp", "schedule.epochs": 2, "checkpoint_seconds": 0, "seed": seed}
    return Recipe.build(str(tmp_path / "mine.py"), "digits", preset="quick", **(short | given))


# Draws where nothing is trained: in its answers, as it is made, and in a module whose values no checkpoint has.
ELSEWHERE = (
    HEAD
    + """
    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.shift = torch.randn(())

    def begin(self, task, generator):
        super().begin(task, generator)
        if not hasattr(self.net, "noise"):
            self.net.noise = torch.randn(10)

    def loss(self, batch):
        logits = self.net(batch.x).logits * self.shift + self.net.noise[: batch.y.shape[1]]
        return -(batch.y * logits.log_softmax(1)).sum(1).mean()

    def scores(self, output):
        return output.logits + 5 * torch.randn_like(output.logits)

    def classifiers(self, output):
        return {"guess": torch.rand_like(output.logits)}
"""
)


@pytest.mark.parametrize("at", [0, 30, 60])
def test_what_draws_elsewhere_follows_the_seed_too(at: int, tmp_path: Path) -> None:
    torch.manual_seed(5)
    one = run(recipe(tmp_path, ELSEWHERE), tmp_path / "one")
    torch.manual_seed(6)
    if at:
        with pytest.raises(Killed):
            run(recipe(tmp_path, ELSEWHERE), tmp_path / "two", progress=Killer(at))
        two = resume(tmp_path / "two")
    else:
        two = run(recipe(tmp_path, ELSEWHERE), tmp_path / "two")
    assert two.losses == one.losses
    assert two.accuracy == one.accuracy
    assert run(recipe(tmp_path, ELSEWHERE, 1), tmp_path / "other").accuracy["guess"] != one.accuracy["guess"]


# A network that draws something in `grow` that is no parameter and no buffer.
GROWS = (
    HEAD
    + """
    class Growing(Net):
        def grow(self, new, generator):
            if not self.head.sizes:
                self.noise = torch.randn(10)
            super().grow(new, generator)

    @classmethod
    def build(cls, make, generator):
        backbone = make(generator)
        return cls.Growing(backbone, cls.head(backbone.width))

    def scores(self, output):
        return output.logits + self.net.noise[: self.net.head.classes]

    def loss(self, batch):
        logits = self.net(batch.x).logits + self.net.noise[: batch.y.shape[1]]
        return -(batch.y * logits.log_softmax(1)).sum(1).mean()
"""
)


def test_what_a_network_draws_as_it_grows_is_the_same_after_a_kill(tmp_path: Path) -> None:
    whole = run(recipe(tmp_path, GROWS), tmp_path / "whole")
    with pytest.raises(Killed):
        run(recipe(tmp_path, GROWS), tmp_path / "killed", progress=Killer(60))
    torch.manual_seed(7)
    killed = resume(tmp_path / "killed")
    assert killed.losses == whole.losses
    assert killed.accuracy == whole.accuracy


def test_ordinary_pytorch_code_follows_the_seed(tmp_path: Path) -> None:
    made: dict[str, Record] = {}
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        torch.manual_seed(len(made))  # whatever was drawn before
        made[name] = run(recipe(tmp_path, DRAWS, seed), tmp_path / name)
    states = {name: last_state(tmp_path / name, record).tensors for name, record in made.items()}
    assert same(states["one"], states["same"])
    assert not same(states["one"], states["other"])


@pytest.mark.parametrize("at", [3, 30, 45, 60, 95, 130])
def test_and_goes_on_with_the_same_bits(at: int, tmp_path: Path) -> None:
    whole = run(recipe(tmp_path, DRAWS), tmp_path / "whole")
    with pytest.raises(Killed):
        run(recipe(tmp_path, DRAWS), tmp_path / "killed", progress=Killer(at))
    torch.manual_seed(at)
    killed = resume(tmp_path / "killed")
    assert same(last_state(tmp_path / "whole", whole).tensors, last_state(tmp_path / "killed", killed).tensors)


@pytest.mark.parametrize("at", [30, 60, 80])
def test_state_survives_a_kill(at: int, tmp_path: Path) -> None:
    whole = run(recipe(tmp_path, COUNTS), tmp_path / "whole")
    with pytest.raises(Killed):
        run(recipe(tmp_path, COUNTS), tmp_path / "killed", progress=Killer(at))
    killed = resume(tmp_path / "killed")
    kept = last_state(tmp_path / "whole", whole).tensors
    assert same(kept, last_state(tmp_path / "killed", killed).tensors)
    assert kept["state.tasks"] == 3
    assert killed.accuracy == whole.accuracy


@pytest.mark.parametrize("at", [22, 40, 75])
def test_state_that_a_loss_changes_survives_a_kill_inside_a_phase(at: int, tmp_path: Path) -> None:
    counts = """
    def begin(self, task, generator):
        super().begin(task, generator)
        self.state.setdefault("steps", torch.zeros(()))

    def loss(self, batch):
        self.state["steps"] += 1
        self.state["last"] = batch.y.sum(0).detach()
        return super().loss(batch) * (1 + 0.01 * self.state["steps"])
"""
    whole = run(recipe(tmp_path, HEAD + counts), tmp_path / "whole")
    with pytest.raises(Killed):
        run(recipe(tmp_path, HEAD + counts), tmp_path / "killed", progress=Killer(at))
    killed = resume(tmp_path / "killed")
    kept = last_state(tmp_path / "whole", whole).tensors
    assert same(kept, last_state(tmp_path / "killed", killed).tensors)
    assert killed.losses == whole.losses
    assert kept["state.steps"] > at


@pytest.mark.parametrize(
    ("top", "line", "name"),
    [
        ("SEEN = {}", "SEEN[len(SEEN)] = 0", "SEEN"),
        ("SEEN = [torch.zeros(3)]", "SEEN[0] += 1", "SEEN"),
        ("import numpy\nSEEN = numpy.zeros(3)", "SEEN[0] += 1", "SEEN"),
        ("SEEN = 0", "global SEEN; SEEN += 1", "SEEN"),
        ("SEEN = torch.zeros(3)", "SEEN.add_(1)", "SEEN"),
        ("MANY, SEEN = range(10**12), [[]]", "SEEN[0].append(1)", "SEEN"),
        ("class Bank:\n    rows = None\nSEEN = Bank()", "SEEN.rows = [torch.ones(1)]", "SEEN"),
        ("class Bank:\n    __slots__ = ()\nBANK = Bank()\ndef seen(rows=[]): rows.append(1)", "seen()", "seen"),
        ("class Bank(torch.nn.Module): pass\nSEEN = Bank()", "SEEN.register_buffer('x', torch.ones(1))", "SEEN"),
    ],
)
def test_what_a_file_holds_and_changes_is_refused(top: str, line: str, name: str, tmp_path: Path) -> None:
    text = f"import torch\n{top}\n{HEAD}    def begin(self, task, generator):\n        {line}\n"
    text += "        super().begin(task, generator)\n"
    with pytest.raises(EdblError, match=f"`mine.{name}` has changed in task 1"):
        run(recipe(tmp_path, text), tmp_path / "run")


OPTIMISER = """
class Counting(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, lr=0.1)
        for group in self.param_groups:
            group["k"] = 0
        {}

    def step(self, closure=None):
        {}
        for group in self.param_groups:
            group["k"] += 1
            group["weight_decay"] = 1e-3 * group["k"]
        super().step(closure)
"""
OWN = """
    def phases(self, task):
        yield replace(self.main_phase(task, self.draw(task)), optimiser=Counting)
"""


@pytest.mark.parametrize("at", [22, 40])
def test_numbers_of_an_optimisers_groups_survive_a_kill(at: int, tmp_path: Path) -> None:
    text = HEAD + OWN + OPTIMISER.format("pass", "pass")
    whole = run(recipe(tmp_path, text), tmp_path / "whole")
    with pytest.raises(Killed):
        run(recipe(tmp_path, text), tmp_path / "killed", progress=Killer(at))
    killed = resume(tmp_path / "killed")
    assert same(last_state(tmp_path / "whole", whole).tensors, last_state(tmp_path / "killed", killed).tensors)
    assert killed.losses == whole.losses


@pytest.mark.parametrize(
    ("first", "later", "what"),
    [
        ("self.steps = 0", "self.steps += 1", "keeps `steps`"),
        ("pass", "self.param_groups[0].setdefault('seen', []).append(1)", "keeps `group.0.seen`"),
        ("pass", "self.state[self.param_groups[0]['params'][0]]['name'] = 'mine'", "keeps `state.0.name`"),
    ],
)  # fmt: skip
def test_an_optimiser_that_no_checkpoint_holds_is_refused(first: str, later: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(EdblError, match=what):
        run(recipe(tmp_path, HEAD + OWN + OPTIMISER.format(first, later)), tmp_path / "run")


def test_an_attribute_that_would_be_lost_on_resume_is_lost_in_a_whole_run_too(tmp_path: Path) -> None:
    forgets = """
    def begin(self, task, generator):
        assert not hasattr(self, "sums"), "it is made anew for each task"
        super().begin(task, generator)

    def end(self, task):
        super().end(task)
        self.sums = torch.zeros(3)
"""
    assert run(recipe(tmp_path, HEAD + forgets), tmp_path / "run").status == "done"


def test_the_callers_generator_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    run(recipe(tmp_path, DRAWS), tmp_path / "run")
    assert torch.equal(torch.rand(3), expected)


def test_more_exemplars_than_the_memory_holds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EdblError, match=r"the method keeps .* exemplars where the memory holds 50"):
        run(recipe(tmp_path, GREEDY), tmp_path / "run")


@pytest.mark.parametrize("seen", [11, 10_000])
def test_classes_that_were_not_seen_bring_no_room(seen: int, tmp_path: Path) -> None:
    text = f"{HEAD}    def end(self, task):\n        self.memory.replace(task.train, {seen})\n"
    with pytest.raises(EdblError, match=rf"the memory has {seen} classes where \d were seen"):
        run(recipe(tmp_path, text, memory="per_class=5"), tmp_path / "run")


@pytest.mark.parametrize(("text", "error"), [(PEEKS, AttributeError), (CHEATS, RuntimeError)])
def test_test_images_and_those_of_other_tasks_are_not_to_be_had(
    text: str, error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        run(recipe(tmp_path, text), tmp_path / "run")
