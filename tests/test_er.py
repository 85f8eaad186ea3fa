"""ER: half a batch from a reservoir, half of it new."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from edbl import Recipe, run
from edbl.data.images import Images
from edbl.data.mixing import unmixed
from edbl.data.samplers import OldNew
from edbl.memory import Budget
from edbl.methods.er import ER
from tests.test_methods_unit import a_batch, after_first_task, images_of, make, task_of
from tests.vectors import seeded


@pytest.mark.parametrize(
    ("old", "new", "batch", "size", "steps"), [(50, 90, 16, 16, 5), (3, 40, 8, 8, 5), (9, 5, 8, 5, 1)]
)
def test_a_batch_is_half_old_half_new(old: int, new: int, batch: int, size: int, steps: int) -> None:
    sampler = OldNew.halves(old, new, batch)
    assert sampler == OldNew(old, new, size, size, steps)
    rows = sampler(seeded())
    assert rows.shape == (steps, 2 * size)
    assert bool((rows[:, :size] < old).all())
    assert bool((rows[:, size:] >= old).all())
    counts = torch.bincount(rows[:, :size].flatten(), minlength=old)
    assert int(counts.max() - counts.min()) <= 1, "the memory comes up evenly"
    counts = torch.bincount(rows[:, size:].flatten() - old, minlength=new)
    assert int(counts.max()) == 1, "a new image comes up once in an epoch"


def test_a_lone_image_comes_twice() -> None:
    assert OldNew.halves(1, 1, 8)(seeded()).tolist() == [[0, 0, 1, 1]]


def test_what_is_drawn() -> None:
    method = make("er", batch=8)
    task = after_first_task(method, [3, 0, 2], [9, 9])
    draw = method.draw(task)
    assert draw.data.y.tolist() == [0] * 3 + [2] * 2 + [3] * 9 + [4] * 9
    assert draw.sampler == OldNew(5, 18, 8, 8, steps=2)
    assert draw.mixing is unmixed


def test_loss_is_cross_entropy_of_all_images_over_all_classes() -> None:
    method = make("er")
    task = after_first_task(method, [3, 3], [9, 9])
    (phase,) = method.phases(task)
    assert phase.adjust is None
    assert phase.teacher is None
    batch = a_batch(4)
    method.net.eval()
    total = 0.0
    for logits, y in zip(method.net(batch.x).logits.tolist(), batch.y.tolist(), strict=True):
        normal = math.log(sum(math.exp(z) for z in logits))
        total += sum(share * (normal - z) for share, z in zip(y, logits, strict=True))
    assert phase.loss(batch).item() == pytest.approx(total / len(batch.x), rel=1e-5)


def memory_after(seed: int, budget: int = 12) -> Images:
    """Return the memory after a second task that began with a generator of this seed."""
    method = make("er", budget=Budget("total", budget))
    method.net.grow(2, seeded())
    method.memory.replace(images_of([6, 6]))
    task = replace(task_of(2, [9, 9]), before=12)
    method.begin(task, seeded(seed))
    method.end(task)
    return method.memory.images


def test_the_reservoir_depends_on_what_the_task_began_with_and_nothing_else() -> None:
    first, again, other = memory_after(1), memory_after(1), memory_after(2)
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.y, again.y)
    assert first.x.shape != other.x.shape or not torch.equal(first.x, other.x)
    assert len(first) == len(other) == 12


def test_the_reservoir_counts_the_images_of_earlier_tasks() -> None:
    # 12 images came before 18 new ones, so 2 of 5 kept images are old.
    old = sum(int((memory_after(seed).y < 2).sum()) for seed in range(400)) / 400
    assert old == pytest.approx(12 * 12 / 30, abs=0.25)


def test_paper_is_one_pass_of_plain_descent() -> None:
    recipe = Recipe.build("er", data="cifar100", preset="paper")
    assert (recipe.schedule.epochs, recipe.schedule.lr, recipe.schedule.milestones) == (1, 0.1, ())
    assert (recipe.optim.batch, recipe.optim.momentum, recipe.optim.weight_decay, recipe.optim.warmup) == (10, 0, 0, 0)
    assert recipe.data.augment == "none"


def test_classes_without_exemplars_do_not_stop_a_run(tmp_path: Path) -> None:
    given = {"memory": "total=10", "net.backbone": "mlp", "schedule.epochs": 2, "schedule.milestones": ()}
    record = run(Recipe.build("er", data="digits", preset="quick", **given), tmp_path / "run")
    assert ER.keeps == "reservoir"
    assert record.status == "done"
    last = record.confusions["nme"][-1]
    assert (last.sum(0) == 0).any(), "a class without exemplars is never named"
    assert record.accuracy["nme"][-1] > 0.2
