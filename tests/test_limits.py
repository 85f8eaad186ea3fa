"""What a method could do wrong without a word ends its run, with what is wrong and what to do instead."""

from pathlib import Path

import pytest

from edbl import EdblError, resume, run
from edbl.engine.learner import Learner
from tests.test_contract import Killed, Killer, last_state
from tests.test_safe import HEAD, recipe
from tests.vectors import same

LOSS = "    def loss(self, batch):\n        output = self.net(batch.x)\n        {}\n"
PHASE = (
    "    def phases(self, task):\n"
    "        for phase in super().phases(task):\n"
    "            params = phase.params\n"
    "            yield replace(phase, {})\n"
)
DRAW = "    def draw(self, task):\n        return replace(super().draw(task), {})\n"
END = "    def end(self, task):\n        super().end(task)\n        {}\n"
BUILD = "    @classmethod\n    def build(cls, make, generator):\n        return make(generator, {})\n"
LAYER = "nn.Linear(3, 3)"
WRONG = {
    # what nothing keeps
    "class": ("    sums = {}\n" + END.format("self.sums[task.index] = 1"), "`Mine.sums` has changed.*self.state"),
    "class number": ("    n = 0\n" + END.format("Mine.n += 1"), "`Mine.n` has changed in task 1"),
    "frozen": (END.format("self.net.backbone.requires_grad_(False)"), "is frozen is lost after task 1; freeze in `beg"),
    "stranger": (PHASE.format(f"params=[*params, *{LAYER}.parameters()]"), "trains 2 parameters that are not in `self"),
    "own step": (
        PHASE.format("adjust=lambda _, own=torch.optim.AdamW(params): own.step()"),
        "`adjust` of phase 'train' changes parameters.*`Phase.optimiser`",
    ),
    "list in state": (END.format("self.state['x'] = [1]"), r"`self.state\['x'\]` of mine is an object of type list"),
    "number in state": (END.format("self.state[3] = torch.ones(1)"), "has 3 as a name"),
    "sparse state": (END.format("self.state['x'] = torch.eye(3).to_sparse()"), "dense tensors"),
    "no state": (END.format("self.state = None"), "`self.state` of mine is None"),
    "late log": (END.format("self.log('x', torch.ones(()))"), "'x' is logged outside of a loss"),
    # what is not what it should be
    "vector loss": (LOSS.format("return output.logits"), r"`loss` of phase 'train' returns a tensor \[32, 4\]"),
    "no loss": (LOSS.format("pass"), "`loss` of phase 'train' returns None"),
    "constant loss": (LOSS.format("return batch.x.mean()"), "does not hang on any parameter"),
    "float log": (LOSS.format("self.log('x', 3.0); return output.logits.mean()"), "an object of type float as 'x'"),
    "odd log": (LOSS.format("self.log('<b>', batch.x.mean()); return output.logits.mean()"), "under the name '<b>'"),
    "no phase": ("    def phases(self, task):\n        return [3]\n", "`phases` of mine yields an object of type int"),
    "odd phase": (PHASE.format("name='<b>'"), "is named '<b>'"),
    "params once": (PHASE.format("params=self.net.parameters()"), "`params` of .* not of type Sequence"),
    "no params": (PHASE.format("params=[]"), "has no parameter that can learn"),
    "optim": (PHASE.format("optim=torch.optim.AdamW(params)"), "not of type Optim; give a function"),
    "made optimiser": (PHASE.format("optimiser=torch.optim.AdamW(params)"), "give a function that makes one"),
    "no optimiser": (PHASE.format("optimiser=lambda p: 3"), "makes an object of type int"),
    "other optimiser": (PHASE.format(f"optimiser=lambda p: torch.optim.AdamW({LAYER}.parameters())"), "differ in"),
    "numbers": (DRAW.format("sampler=lambda g: torch.full((2, 32), 5000)"), "gives image 5000 of 578"),
    "float numbers": (DRAW.format("sampler=lambda g: torch.rand(2, 32)"), r"float32 \[2, 32\]; it must give int64"),
    "no numbers": (DRAW.format("sampler=lambda g: torch.zeros(0, 32).long()"), r"int64 \[0, 32\]"),
    "other numbers": (
        DRAW.format("sampler=lambda g, n=[]: n.append(0) or torch.zeros(len(n), 32).long()"),
        "the shape must stay the same",
    ),
    "bytes": (DRAW.format("augment=lambda x, g: x"), r"`augment` of phase 'train' gives torch.uint8"),
    "no head": ("    head = nn.Linear\n", "Mine.head is Linear; derive a head from"),
    "no mixing": (DRAW.format("mixing=lambda b, g: b.x"), "`mixing` of phase 'train' gives Tensor; return a Batch"),
    "no augment": (DRAW.format("augment=lambda x, g: None"), "gives NoneType for 32 images"),
    "no scores": ("    def scores(self, output):\n        return 3\n", "'cnn' are of type int, not"),
    "no classifiers": ("    def classifiers(self, output):\n        return 3\n", "`classifiers` of mine gives int;"),
    "no statistics": ("    def norm_statistics(self, task, draw):\n        return 3\n", "`norm_statistics` of mine"),
    "wide": (BUILD.format("width=3.5"), "cannot be made 3.5 features wide; give a whole number"),
    "narrow": (BUILD.format("width=-8"), "cannot be made -8 features wide"),
    "head": ("    head = lambda width: nn.Linear(width, 10)\n", "the head of mine is an object of type Linear; derive"),
    "no begin": ("    def begin(self, task, generator):\n        pass\n", "has 0 classes after `begin`"),
    "net": (END.format(f"self.net = {LAYER}"), "after `end` the network of mine is an object of type Linear"),
    "scores": ("    def scores(self, output):\n        return output.logits[:, :1]\n", r"'cnn' have shape \[142, 1\]"),
    "nan": ("    def scores(self, output):\n        return output.logits * torch.nan\n", "'cnn' are not all numbers"),
    "streams": ("    streams = {'returnign'}\n", "Mine.streams is {'returnign'}; it is a set of nothing"),
    "stream": ("    streams = 'returning'\n", "Mine.streams is 'returning'"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_it_ends_the_run_and_says_why(what: str, tmp_path: Path) -> None:
    text, message = WRONG[what]
    with pytest.raises(EdblError, match=f"(?s){message}"):
        run(recipe(tmp_path, HEAD + text), tmp_path / "run")


KEPT_BY_ITSELF = (
    HEAD
    + """
    def begin(self, task, generator):
        assert not hasattr(self, "sums"), "the method is made anew for each task"
        assert not hasattr(self.net, "sums"), "the net is made anew for each task too"
        assert torch.equal(self.state.get("head", torch.zeros(0)), self.net.head.weight[: task.old]) or not task.old
        super().begin(task, generator)

    def loss(self, batch):
        away = self.net.head.weight[: len(self.state["head"])] - self.state["head"] if self.state else torch.zeros(1)
        return super().loss(batch) + away.square().sum()

    def end(self, task):
        super().end(task)
        self.sums = self.net.sums = 3
        self.state["head"] = self.net.head.weight  # which goes on to change, and is the net's
"""
)


def test_a_whole_run_is_as_one_that_goes_on(tmp_path: Path) -> None:
    whole = run(recipe(tmp_path, KEPT_BY_ITSELF), tmp_path / "whole")
    with pytest.raises(Killed):
        run(recipe(tmp_path, KEPT_BY_ITSELF), tmp_path / "killed", progress=Killer(60))
    killed = resume(tmp_path / "killed")
    states = [last_state(tmp_path / name, record).tensors for name, record in (("whole", whole), ("killed", killed))]
    assert same(*states)
    assert killed.losses == whole.losses


def test_each_task_but_the_first_is_learnt_by_a_learner_that_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: dict[str, list[object]] = {"load": [], "learn": []}

    def noted(name: str) -> None:
        function = getattr(Learner, name)

        def noting(self: Learner, *given: object) -> object:
            called[name].append(self)
            return function(self, *given)

        monkeypatch.setattr(Learner, name, noting)

    noted("load")
    noted("learn")
    run(recipe(tmp_path, HEAD + "    pass"), tmp_path / "run")
    assert len(called["learn"]) == 3
    assert called["learn"][1:] == called["load"]
