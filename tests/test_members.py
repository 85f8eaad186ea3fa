"""What a method may have of its own: no memory, extras of exemplars, optimisers, augmentation, classifiers, logs."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from edbl import EdblError, Recipe, Record, records, resume, run
from edbl.app.estimator import EDBLClassifier
from edbl.data.datasets import load
from edbl.data.images import Images
from edbl.engine.progress import Count
from edbl.memory import Budget, Memory
from edbl.methods import methods
from tests.test_contract import Killed, Killer, last_state
from tests.test_safe import HEAD, recipe
from tests.vectors import images_of, same, seeded

# Replays logits: what the net said of an exemplar when it was kept.
REPLAYS = (
    HEAD
    + """
    keeps = "reservoir"

    def phases(self, task):
        self.data = self.draw(task).data
        yield from super().phases(task)

    def loss(self, batch):
        logits, loss = self.net(batch.x).logits, super().loss(batch)
        if "logits" in self.data.extra:
            then = self.data.extra["logits"][batch.index]
            assert then.shape[1] < logits.shape[1]
            gap = torch.where(then.isnan(), 0.0, logits[:, : then.shape[1]] - then.nan_to_num())
            self.log("replay", gap.square().mean())
            loss = loss + 0.1 * gap.square().mean()
        return loss

    def end(self, task):
        train = replace(task.train, extra={"logits": self.outputs(task.train).logits})
        self.memory.reservoir(train, task.before, self.generator("reservoir"))
"""
)
# Learns nothing by descent: means of features, and no exemplar.
MEANS = (
    HEAD
    + """
    keeps = "none"

    def phases(self, task):
        return []

    def end(self, task):
        features = self.features(task.train)
        new = torch.stack([features[task.train.y == k].mean(0) for k in range(task.old, task.seen)])
        self.state["means"] = torch.cat([self.state["means"], new]) if task.old else new

    def scores(self, output):
        return -torch.cdist(output.features, self.state["means"])

    def classifiers(self, output):
        return {"cosine": nn.functional.normalize(output.features) @ nn.functional.normalize(self.state["means"]).T}
"""
)
ADAM = (
    HEAD
    + """
    def main_phase(self, task, draw):
        slow, fast = list(self.net.backbone.parameters()), list(self.net.head.parameters())
        def groups(params):
            assert set(params) == {*slow, *fast}
            return torch.optim.AdamW([{"params": slow, "lr_scale": 0.1}, {"params": fast, "weight_decay": 0.0}])
        return replace(super().main_phase(task, draw), optimiser=groups)
"""
)
FLIPS = (
    HEAD
    + """
    def draw(self, task):
        def both(x, generator):
            upside_down = torch.rand((len(x), 1, 1, 1), generator=generator) < 0.5
            return torch.where(upside_down, self.normalise(x).flip(2), self.augment(x, generator))
        return replace(super().draw(task), augment=both)
"""
)
SHORT: dict[str, object] = {"schedule.epochs": 2, "net.backbone": "mlp", "stream.tasks": 3, "checkpoint_seconds": 0}


# A head that says no more than how it answers: by the cosine to the best of two rows of each class.
HEADED = (
    HEAD.replace("import Net,", "import Head, Net,").replace(
        "class Mine",
        """
class Best(Head):
    rows = 2

    def forward(self, features):
        cosines = nn.functional.normalize(features) @ nn.functional.normalize(self.weight).T
        return 8 * cosines.unflatten(1, (-1, self.rows)).amax(2)


class Mine""",
    )
    + "    head = Best\n"
)


def refused(tmp_path: Path, members: str, match: str) -> None:
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    folder.mkdir()
    with pytest.raises(EdblError, match=match):
        run(recipe(folder, HEAD + members), folder / "run")


@pytest.mark.parametrize(
    "text", [REPLAYS, MEANS, ADAM, FLIPS, HEADED], ids=["replays", "means", "adam", "flips", "headed"]
)
@pytest.mark.parametrize("at", [2, 20, 47, 60])
def test_killed_and_resumed_has_the_same_bits(text: str, at: int, tmp_path: Path) -> None:
    whole = run(recipe(tmp_path, text), tmp_path / "whole")
    try:
        run(recipe(tmp_path, text), tmp_path / "killed", progress=Killer(at))
    except Killed:
        killed = resume(tmp_path / "killed")
    else:
        assert text == MEANS  # no step, so nowhere to be killed
        return
    states = [last_state(tmp_path / name, record).tensors for name, record in (("whole", whole), ("killed", killed))]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(v.nan_to_num(7), states[1][k].nan_to_num(7)) for k, v in states[0].items())
    assert killed.losses == whole.losses


def test_extras_of_exemplars_stay_with_them(tmp_path: Path) -> None:
    record = run(recipe(tmp_path, REPLAYS), tmp_path / "run")
    kept = last_state(tmp_path / "run", record).tensors
    logits, seen = kept["memory.extra.logits"], torch.tensor([4, 7, 10])
    assert logits.shape == (50, 10)
    came = torch.tensor([seen[seen > int(y)][0] for y in kept["memory.y"]])
    assert torch.equal(logits.isnan(), torch.arange(10) >= came.unsqueeze(1))
    assert [sorted(losses) for losses in record.losses] == [["train"], *[["train", "train.replay"]] * 2]
    assert all(len(set(map(len, losses.values()))) == 1 for losses in record.losses)


def test_extras_go_wherever_images_go() -> None:
    def with_extra(images: Images, width: int) -> Images:
        number = torch.arange(len(images))
        return Images(images.x, images.y, {"number": number, "row": number.unsqueeze(1).repeat(1, width).float()})

    def rows(images: Images) -> list[list[float]]:
        return [[*row] for row in images.extra["row"].nan_to_num(-7).tolist()]

    some = with_extra(images_of([3, 2]), 2)
    assert some[torch.tensor([4, 0])].extra["number"].tolist() == [4, 0]
    assert some.of([1]).extra["number"].tolist() == [3, 4]
    pooled = Images.cat([some, with_extra(images_of([2], 2), 3), images_of([1], 3)])
    assert pooled.extra["number"].tolist() == [0, 1, 2, 3, 4, 0, 1, -1]
    assert rows(pooled)[4:] == [[4, 4, -7], [0, 0, 0], [1, 1, 1], [-7, -7, -7]]
    memory = Memory(Budget("per_class", 2))
    memory.update(some, lambda images: images.x)
    assert [len(images) for images in memory.classes] == [2, 2]
    assert all(torch.equal(some.x[i], x) for i, x in zip(memory.images.extra["number"], memory.images.x, strict=True))
    memory.update(images_of([4], 2), lambda images: images.x)
    assert memory.images.extra["number"].tolist()[4:] == [-1, -1]
    memory.remove(0)
    assert memory.images.extra["number"].tolist() == [*memory.classes[0].extra["number"].tolist(), -1, -1]
    reservoir = Memory(Budget("total", 4))
    reservoir.reservoir(some, 0, seeded())
    kept = reservoir.images
    assert all(torch.equal(some.x[i], x) for i, x in zip(kept.extra["number"], kept.x, strict=True))


def test_a_model_without_phases_and_memory_takes_more_of_known_classes(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MEANS)
    data = load("digits").train
    x, y = (tensor[data.y < 4].numpy() for tensor in (data.x, data.y))
    model = EDBLClassifier(method=str(tmp_path / "mine.py"), random_state=0)
    for part in (slice(0, 50), slice(50, 100)):  # of the same classes
        model.partial_fit(x[part], y[part])
    model.partial_fit(data.x[data.y >= 3].numpy(), data.y[data.y >= 3].numpy())  # of one of them, and of others
    assert model.score(x, y) > 0.3  # of ten classes, by a network that nobody trained
    assert len(model._learnt.model.memory) == 0


def test_a_bar_moves_with_tasks_where_there_is_no_phase(tmp_path: Path) -> None:
    shares: list[float] = []

    class Shares(Count):
        def learnt(self, task: int) -> None:
            super().learnt(task)
            shares.append(self.share)

    run(recipe(tmp_path, MEANS, memory="none"), tmp_path / "run", progress=Shares())
    assert shares == pytest.approx([1 / 3, 2 / 3, 1])


def test_without_a_memory_there_is_no_nearest_mean(tmp_path: Path) -> None:
    record = run(recipe(tmp_path, MEANS, memory="none"), tmp_path / "run")
    assert record.accuracy.keys() == {"cnn", "cosine"}
    assert record.kept[-1]["exemplars"] == record.kept[-1]["memory"] == 0
    assert record.kept[-1]["state"] == 10 * 128 * 4
    assert min(record.accuracy["cnn"]) > 0.5
    read = records.read(tmp_path / "run")
    assert (read.accuracy, read.kept) == (record.accuracy, record.kept)


@pytest.mark.parametrize("method", sorted(methods()))
def test_memory_none_is_for_those_that_keep_no_exemplars(method: str, tmp_path: Path) -> None:
    given = {**SHORT, "memory": "none"}
    if methods()[method].keeps in ("exemplars", "reservoir"):
        with pytest.raises(EdblError, match="so memory must not be none"):
            Recipe.build(method, "digits", preset="quick", **given)
        return
    record = run(Recipe.build(method, "digits", preset="quick", **given), tmp_path / "run")
    assert set(record.accuracy) == {"cnn"}
    assert record.kept[-1]["exemplars"] == 0


def test_the_record_says_what_was_kept(tmp_path: Path) -> None:
    made = Recipe.build("rkd", "digits", preset="quick", memory="total=30", **SHORT)
    record = run(made, tmp_path / "run")
    state = last_state(tmp_path / "run", record).tensors
    assert [kept["exemplars"] for kept in record.kept] == [30, 30, 30]
    assert record.kept[-1] == {
        "exemplars": 30,
        "net": sum(v.nbytes for k, v in state.items() if k.startswith("net.")),
        "memory": 30 * (64 + 8),
        "state": 0,
    }
    assert record.kept[0]["net"] < record.kept[-1]["net"]


def measured(tmp_path: Path, name: str, **given: object) -> Record:
    return run(Recipe.build("rkd", "digits", preset="quick", **{**SHORT, **given}), tmp_path / name)


def test_task_aware_accuracy_is_among_the_classes_of_the_task(tmp_path: Path) -> None:
    plain = measured(tmp_path, "plain")
    aware = measured(tmp_path, "aware", **{"evaluation.task_aware": True})
    assert {k: v for k, v in aware.accuracy.items() if k != "task-aware"} == plain.accuracy
    matrix = aware.confusions["task-aware"][-1]
    assert matrix[:4, 4:].sum() == matrix[4:7, :4].sum() == matrix[4:7, 7:].sum() == matrix[7:, :7].sum() == 0
    assert aware.accuracy["task-aware"][0] == aware.accuracy["cnn"][0]
    joint = Recipe.build("joint", "digits", preset="quick", **{**SHORT, "evaluation.task_aware": True})
    matrix = run(joint, tmp_path / "joint").confusions["task-aware"][-1]  # its head has all classes as one task
    assert matrix[:4, 4:].sum() == matrix[4:7, :4].sum() == 0
    assert aware.accuracy["task-aware"][-1] > aware.accuracy["cnn"][-1]


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_optimisers_by_name_learn_and_differ(name: str, tmp_path: Path) -> None:
    given = {"optim.kind": name, "schedule.lr": 0.01, "optim.clip": 1.0}
    record = measured(tmp_path, name, **given)
    assert record.losses[0]["train"][-1] < record.losses[0]["train"][0]
    other = measured(tmp_path, "free", **{**given, "optim.clip": 0.0})
    assert other.losses != record.losses


def test_gradients_are_clipped_to_the_given_norm(tmp_path: Path) -> None:
    text = """
    def main_phase(self, task, draw):
        def checked(params):
            made = torch.optim.SGD(params)
            made.register_step_pre_hook(lambda *_: self.check([p.grad for p in params]))
            return made
        return replace(super().main_phase(task, draw), optimiser=checked)

    def check(self, gradients):
        norm = nn.utils.get_total_norm(gradients)
        self.state["norm"] = torch.maximum(norm, self.state.get("norm", norm))
"""
    given: dict[str, Any] = {"optim.clip": 0.01}
    record = run(recipe(tmp_path, HEAD + text, **given), tmp_path / "run")
    largest = float(last_state(tmp_path / "run", record).tensors["state.norm"])
    assert largest == pytest.approx(0.01, rel=1e-3)


def test_what_is_no_fact_about_a_method_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, '    keeps = "nonsense"', "keeps is 'nonsense'; it may be exemplars")
    refused(tmp_path, '    readout = "boosted"', "mine reports 'boosted', which is not among cnn, nme")
    refused(tmp_path, "    def classifiers(self, output):\n        return {'cnn': output.logits}", "named 'cnn'")
    refused(tmp_path, "    def classifiers(self, output):\n        return {'A b': output.logits}", "named 'A b'")
    refused(tmp_path, "    def classifiers(self, output):\n        return {'x': output.features}", "'x' have shape")
    late = "return {'x': output.logits} if len(self.net.head.sizes) > 1 else {}"
    refused(
        tmp_path,
        f"    def classifiers(self, output):\n        {late}",
        "'x' is there after some tasks and not after others",
    )
    refused(tmp_path, "    def phases(self, task):\n        pass", "`phases` of mine gives None")


BUFFER = """
    def end(self, task):
        super().end(task)
        self.net.register_buffer("mean", torch.zeros(3))
"""
DROPS = """
    def phases(self, task):
        def finish():
            del self.net.more
        self.net.more = nn.Linear(2, 2)
        yield replace(self.main_phase(task, self.draw(task)), finish=finish)
"""


def test_what_could_not_be_resumed_fails_in_the_first_task(tmp_path: Path) -> None:
    refused(tmp_path, BUFFER, r"(?s)after task 1 its network is not what `build` and `grow` make.*mean")
    refused(tmp_path, DROPS, "`finish` of phase 'train' changes the structure of the network; do that in `end`")


def test_a_net_that_is_replaced_is_the_one_that_goes_on(tmp_path: Path) -> None:
    text = """
    def end(self, task):
        super().end(task)
        if task.old:
            student = self.net.frozen().requires_grad_(True)
            with torch.no_grad():
                student.head.bias.fill_(task.seen)
            self.net = student
"""
    record = run(recipe(tmp_path, HEAD + text), tmp_path / "run")
    assert last_state(tmp_path / "run", record).tensors["net.head.bias"].tolist() == [10.0] * 10


def test_a_head_of_ones_own_needs_forward_alone(tmp_path: Path) -> None:
    record = run(recipe(tmp_path, HEADED), tmp_path / "run")
    assert last_state(tmp_path / "run", record).tensors["net.head.weight"].shape == (20, 128)
    assert record.accuracy["cnn"][0] > 0.8
    model = EDBLClassifier(method=str(tmp_path / "mine.py"), epochs=3, random_state=0)
    data = load("digits").train
    model.fit(data.x[data.y < 4].numpy(), data.y[data.y < 4].numpy())
    assert model.score(data.x[data.y < 4].numpy(), data.y[data.y < 4].numpy()) > 0.8


def test_an_augmentation_of_ones_own_draws_by_the_seed(tmp_path: Path) -> None:
    one, two = (run(recipe(tmp_path, FLIPS), tmp_path / name) for name in ("one", "two"))
    assert same(last_state(tmp_path / "one", one).tensors, last_state(tmp_path / "two", two).tensors)
    plain = run(recipe(tmp_path, HEAD + "    pass"), tmp_path / "plain")
    assert not same(last_state(tmp_path / "one", one).tensors, last_state(tmp_path / "plain", plain).tensors)


@pytest.mark.parametrize("at", [0, 30])
def test_accuracy_within_a_task(at: int, tmp_path: Path) -> None:
    plain = measured(tmp_path, "plain", **{"schedule.epochs": 5, "first.task_epochs": 4})
    given = {**SHORT, "schedule.epochs": 5, "first.task_epochs": 4, "evaluation.every": 2}
    made = Recipe.build("rkd", "digits", preset="quick", **given)
    if at:
        with pytest.raises(Killed):
            run(made, tmp_path / "run", progress=Killer(at))
        record = resume(tmp_path / "run")
    else:
        record = run(made, tmp_path / "run")
    assert (record.accuracy, record.losses) == (plain.accuracy, plain.losses)  # looking changes nothing
    rows = [within["train"] for within in record.within]
    assert [[row[0] for row in task] for task in rows] == [[2, 4], [2, 4, 5], [2, 4, 5]]
    assert [task[-1][1] for task in rows] == pytest.approx(record.accuracy["cnn"])
    assert all(math.isnan(row[2]) for row in rows[0])
    everything, old, new = rows[2][0][1:]
    test = plain.confusions["cnn"][2].sum(1)
    assert everything == pytest.approx((old * test[:7].sum() + new * test[7:].sum()) / test.sum())
    assert repr(records.read(tmp_path / "run").within) == repr(record.within)


def test_what_means_nothing_to_an_optimiser_is_refused() -> None:
    with pytest.raises(EdblError, match=r"optim\.momentum does not apply to optim\.kind adam; leave it out"):
        Recipe.of({"optim.kind": "adam", "optim.momentum": 0.5})
