"""RemixKD: Remix's images, RKD's loss."""

import math

import pytest
import torch

from edbl import Recipe
from edbl.data.mixing import Batch, RebalancedMixup
from edbl.methods.remix_kd import RemixKD
from edbl.methods.rkd import RKD
from tests.test_remix import a_method, a_task, cross_entropy
from tests.vectors import seeded


def test_loss_is_cross_entropy_and_distillation_of_the_mixed_image() -> None:
    method = a_method(RemixKD, [3, 3], temperature=2.0, kd_weight=0.7)
    task = a_task(2, [9, 9])
    method.begin(task, seeded(2))
    method.net.head.weight.data += torch.randn(
        method.net.head.weight.shape, generator=seeded(3)
    )  # away from the teacher
    (phase,) = method.phases(task)
    mixing = phase.draw.mixing
    assert isinstance(mixing, RebalancedMixup)
    assert mixing.counts.tolist() == [3, 3, 9, 9]
    batch = mixing(Batch(torch.randn(6, 1, 1, 1, generator=seeded(4)), torch.eye(4)[[0, 2, 1, 3, 2, 3]]), seeded(5))
    method.net.eval()
    student, teacher = method.net(batch.x).logits, method.teach(batch.x).logits
    assert teacher.shape == (6, 2)
    assert phase.teacher is method.teacher
    distilled = 0.0
    for z, t in zip(student.tolist(), teacher.tolist(), strict=True):
        p = [math.exp(v / 2) for v in z[:2]]
        q = [math.exp(v / 2) for v in t]
        distilled -= 4 * sum(q[c] / sum(q) * math.log(p[c] / sum(p)) for c in range(2)) / 6
    expected = cross_entropy(student.softmax(1).tolist(), batch.y) + 0.7 * distilled
    assert phase.loss(batch).item() == pytest.approx(expected, rel=1e-5)


def test_first_task_has_no_teacher() -> None:
    method = a_method(RemixKD, [])
    task = a_task(0, [9, 9])
    method.begin(task, seeded())
    assert method.teacher is None
    (phase,) = method.phases(task)
    x, y = torch.randn(4, 1, 1, 1, generator=seeded(4)), torch.eye(2)[[0, 1, 0, 1]]
    method.net.eval()
    assert phase.loss(Batch(x, y)).item() == pytest.approx(
        cross_entropy(method.net(x).logits.softmax(1).tolist(), y), rel=1e-5
    )


def test_options_are_those_of_both() -> None:
    own = {key for key in Recipe.keys("remix-kd") if key.startswith("options.")}
    assert own == {key for name in ("remix", "rkd") for key in Recipe.keys(name) if key.startswith("options.")}
    assert RemixKD.distils
    assert RemixKD.our_reading
    assert issubclass(RemixKD, RKD)
