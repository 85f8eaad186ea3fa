"""LwF.MC: iCaRL's loss on new images, read out by the net. Its loss is tested with that of iCaRL."""

import torch

from edbl.methods.icarl import ICaRL
from edbl.methods.lwf_mc import LwFMC
from tests.test_methods_unit import a_batch, after_first_task, make
from tests.vectors import seeded


def test_same_loss_as_icarl() -> None:
    losses = []
    for name in ("icarl", "lwf-mc"):
        method = make(name)
        after_first_task(method, [3, 3], [9, 9])
        method.net.eval()
        losses.append(method.loss(a_batch(4)).item())
    assert losses[0] == losses[1]
    assert LwFMC.Config is ICaRL.Config


def test_largest_output_decides() -> None:
    method = make("lwf-mc")
    after_first_task(method, [3, 3], [9, 9])
    output = method.net.eval()(a_batch(4).x)
    assert torch.equal(method.scores(output).argmax(1), output.logits.sigmoid().argmax(1))


def test_exemplars_are_never_learnt_from() -> None:
    method = make("lwf-mc")
    task = after_first_task(method, [4, 4], [9, 7])
    (phase,) = method.phases(task)
    assert torch.equal(phase.draw.data.x, task.train.x)
    index = phase.draw.sampler(seeded())
    assert set(phase.draw.data.y[index].flatten().tolist()) == {2, 3}
