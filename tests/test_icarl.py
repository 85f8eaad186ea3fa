"""iCaRL and LwF.MC: sigmoids and their targets, what is learnt from, who decides."""

import math

import pytest
import torch

from edbl import Recipe
from edbl.data.mixing import Batch
from edbl.methods.icarl import ICaRL, binary_cross_entropy
from edbl.methods.lwf_mc import LwFMC
from tests.test_methods_unit import after_first_task, make, task_of
from tests.vectors import Vector, seeded

BOTH = ["icarl", "lwf-mc"]


def sigmoid(v: float) -> float:
    return 1 / (1 + math.exp(-v))


def slow_bce(z: Vector, label: int, teacher: Vector) -> float:
    """Return the loss of one image, sigmoid by sigmoid: old targets are the old net's, whatever the label."""
    loss = 0.0
    for c in range(len(z)):
        if c < len(teacher):
            target = sigmoid(teacher[c])
        elif c == label:
            target = 1.0
        else:
            target = 0.0
        g = sigmoid(z[c])
        loss += -target * math.log(g) - (1 - target) * math.log(1 - g)
    return loss


def icarl(name: str = "icarl", **options: object) -> ICaRL:
    method = make(name, **options)  # type: ignore[arg-type]
    assert isinstance(method, ICaRL)
    return method


def a_batch(labels: list[int], seen: int) -> Batch:
    return Batch(torch.randn(len(labels), 1, 1, 1, generator=seeded(1)), torch.eye(seen)[labels])


def move(method: ICaRL) -> None:
    """Bring the net away from its teacher, as training would."""
    method.net.head.weight.data += 0.3 * torch.randn(method.net.head.weight.shape, generator=seeded(3))
    method.net.eval()


@pytest.mark.parametrize(("m", "n"), [(0, 3), (1, 1), (3, 2), (2, 5)])
def test_binary_cross_entropy_number_by_number(m: int, n: int) -> None:
    logits = 3 * torch.randn(8, m + n, generator=seeded(), dtype=torch.float64)
    teacher = 3 * torch.randn(8, m, generator=seeded(2), dtype=torch.float64) if m else None
    labels = torch.randint(m + n, (8,), generator=seeded(4)).tolist()  # old classes too: exemplars
    y = torch.eye(m + n, dtype=torch.float64)[labels]
    lessons = [[] for _ in labels] if teacher is None else teacher.tolist()
    expected = [slow_bce(*row) for row in zip(logits.tolist(), labels, lessons, strict=True)]
    found = binary_cross_entropy(logits, y, teacher)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_binary_cross_entropy_stands_large_logits() -> None:
    logits = torch.tensor([[200.0, -200.0, 200.0]], requires_grad=True)
    loss = binary_cross_entropy(logits, torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[-200.0]]))
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([200.0])
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_targets_keep_the_precision_of_labels() -> None:
    """A net in bf16 must not round its lessons: sigmoid(5.2) is 0.9945, and 0.9961 in bf16."""
    teacher, y = torch.tensor([[5.1875]], dtype=torch.bfloat16), torch.tensor([[0.0, 1.0]])
    logits = torch.zeros(1, 2, requires_grad=True)
    binary_cross_entropy(logits, y, teacher).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, 0].item() == pytest.approx(0.5 - sigmoid(5.1875), abs=1e-6)


@pytest.mark.parametrize("name", BOTH)
def test_loss_is_the_batch_mean_of_sums_over_classes(name: str) -> None:
    method = icarl(name)
    after_first_task(method, [3, 3, 3], [9, 9])
    move(method)
    labels = [0, 3, 4, 1, 4]
    batch = a_batch(labels, 5)
    rows = zip(method.net(batch.x).logits.tolist(), labels, method.teach(batch.x).logits.tolist(), strict=True)
    expected = [slow_bce(*row) for row in rows]
    torch.testing.assert_close(method.loss(batch), torch.tensor(sum(expected) / len(expected)))


def test_the_label_of_an_exemplar_is_not_used() -> None:
    method = icarl()
    after_first_task(method, [3, 3, 3], [9, 9])
    move(method)
    losses = [method.loss(a_batch(labels, 5)).item() for labels in ([0, 3], [2, 3], [0, 4])]
    assert losses[0] == losses[1]  # another old label
    assert losses[0] != losses[2]  # another new label


def test_an_exemplar_pushes_new_outputs_down() -> None:
    method = icarl()
    after_first_task(method, [3, 3], [9, 9])
    move(method)
    logits = torch.zeros(1, 4, requires_grad=True)
    batch = a_batch([1], 4)
    binary_cross_entropy(logits, batch.y, method.teach(batch.x).logits).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, 2:].tolist() == [0.5, 0.5]  # sigmoid(0) - 0


def test_old_outputs_are_at_rest_where_the_net_is_its_teacher() -> None:
    for name in BOTH:
        method = icarl(name)
        after_first_task(method, [3, 3], [9, 9])
        method.net.eval()
        method.loss(a_batch([2, 3, 2, 0], 4)).backward()
        gradient = method.net.head.weight.grad
        assert gradient is not None
        assert gradient[:2].abs().max() < 1e-6
        assert gradient[2:].abs().max() > 1e-2


@pytest.mark.parametrize("name", BOTH)
def test_first_task_has_labels_alone(name: str) -> None:
    method = icarl(name)
    method.begin(task_of(0, [9, 9, 9]), seeded())
    method.net.eval()
    labels = [0, 2, 1, 1]
    batch = a_batch(labels, 3)
    rows = zip(method.net(batch.x).logits.tolist(), labels, strict=True)
    slow = [slow_bce(z, c, []) for z, c in rows]
    torch.testing.assert_close(method.loss(batch), torch.tensor(sum(slow) / len(slow)))


def test_icarl_learns_from_exemplars_and_lwf_mc_does_not() -> None:
    for name, classes in (("icarl", {0, 1, 2, 3}), ("lwf-mc", {2, 3})):
        method = icarl(name)
        task = after_first_task(method, [4, 4], [9, 7])
        (phase,) = method.phases(task)
        assert set(phase.draw.data.y.tolist()) == classes


def test_who_decides() -> None:
    assert (ICaRL.readout, ICaRL.keeps) == ("nme", "exemplars")
    assert (LwFMC.readout, LwFMC.keeps) == ("cnn", "none")


@pytest.mark.parametrize("name", BOTH)
def test_preset_paper_is_the_official_recipe_for_a_sum_over_classes(name: str) -> None:
    recipe = Recipe.build(name, data="cifar100", preset="paper")
    outputs, rate, penalty = 100, 2.0, 1e-5  # of the released code, whose loss is a mean over all outputs
    assert recipe.schedule.lr == pytest.approx(rate / outputs)
    shrinkage = rate * 2 * penalty  # of weights in one step: the penalty's gradient is twice the weight
    assert recipe.schedule.lr * recipe.optim.weight_decay == pytest.approx(shrinkage)
    assert (recipe.schedule.epochs, recipe.schedule.milestones) == (70, (49, 63))
    assert recipe.schedule.rate(49, 0) == pytest.approx(0.02 / 5)
    assert recipe.schedule.rate(69, 0) == pytest.approx(0.02 / 25)
    assert (recipe.optim.batch, recipe.optim.nesterov, recipe.optim.warmup) == (128, False, 0)
    assert recipe.evaluation.nme_flips


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("preset", ["default", "tuned", "quick"])
def test_schedule_is_the_common_one_unless_paper(name: str, preset: str) -> None:
    ours, theirs = (Recipe.build(method, data="cifar100", preset=preset) for method in (name, "rkd"))
    assert (ours.schedule, ours.optim, ours.evaluation) == (theirs.schedule, theirs.optim, theirs.evaluation)
