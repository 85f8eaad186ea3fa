"""Losses: pure functions of tensors, each after its equation in the paper, and those that several other methods share.

Labels ``y`` are distributions over the seen classes, so hard and mixed labels take the same path. Losses return one
value per sample. ``m`` is the number of old classes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

SumTo = Literal["classes", "one"]


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Eq. 2 (and Eq. 17 for hard labels): ``-sum_c y_c log softmax(logits)_c``, ``[batch]``."""
    return -(y * logits.log_softmax(1)).sum(1)


def weighted_cross_entropy(logits: Tensor, y: Tensor, weights: Tensor, place: Literal["inside", "outside"]) -> Tensor:
    """``lambda_k`` times Eq. 2 (numerator of Eq. 7 and 14), ``[batch]``.

    For a mixed label the class weights stand ``inside`` the sum, each with its own term, or ``outside`` of it as one
    mean weight; for a hard label both are the same.
    """
    if place == "inside":
        return cross_entropy(logits, y * weights)
    return (y * weights).sum(1) * cross_entropy(logits, y)


def distillation(logits: Tensor, teacher: Tensor, temperature: float, scale: Literal["t2", "none"]) -> Tensor:
    """Eq. 3 (and Eq. 18 at temperature 1): cross-entropy of the student to the teacher over the first m logits.

    ``scale="t2"`` multiplies by the squared temperature, which keeps the gradient's size as temperature grows.
    """
    m = teacher.shape[1]
    target = (teacher / temperature).softmax(1)
    sums = (target * (logits[:, :m] / temperature).log_softmax(1)).sum(1)
    return -sums if scale == "none" else sums * -(temperature**2)


def grown(weight: float, old: int, seen: int, power: float) -> float:
    """Return a weight of distillation that grows as old over new classes to some power; the paper's does not.

    No new class counts as one.
    """
    return float(weight * (old / max(1, seen - old)) ** power)


def by_share(logits: Tensor, teacher: Tensor, y: Tensor, temperature: float, scale: Literal["t2", "none"]) -> Tensor:
    """``(1 - s)`` cross-entropy plus ``s`` distillation, s being the share of old classes (BiC, WA), ``[batch]``."""
    share = teacher.shape[1] / logits.shape[1]
    return share * distillation(logits, teacher, temperature, scale) + (1 - share) * cross_entropy(logits, y)


def class_weights(counts: Tensor, gamma: float, sum_to: SumTo) -> Tensor:
    """Eq. 7's ``lambda_k = gamma n_k^-1 / sum_i n_i^-1``, ``[seen]``.

    ``sum_to="one"`` is the printed formula; ``"classes"`` multiplies by the number of classes, as released code of
    the influence-balanced loss does, so that the mean weight is gamma.
    """
    inverse = 1 / counts.float()
    weights = gamma * inverse / inverse.sum()
    return weights * len(counts) if sum_to == "classes" else weights


def influence(logits: Tensor, y: Tensor, features: Tensor) -> Tensor:
    """Eq. 6: ``||f - y||_1 ||h||_1``, the L1 norm of the gradient of Eq. 2 in the last layer's weights."""
    return (logits.softmax(1) - y).abs().sum(1) * features.abs().sum(1)


def incremental_influence(
    logits: Tensor, y: Tensor, teacher: Tensor, features: Tensor, alpha: float, over: Literal["old", "all"]
) -> Tensor:
    """Eq. 13, and Eq. 15 for mixed labels: ``(||f - y||_1 + alpha ||f - f_old||_1) ||h||_1``.

    The two norms are those of Eq. 12, of the gradients of Eq. 2 and of Eq. 3 at temperature 1. Eq. 11, the norm of the
    sum of both gradients, is where the paper starts from and is not computed: it is at most Eq. 13 with ``alpha=1``.

    ``f_old`` has m entries. ``over="old"`` compares it with the softmax over the first m logits, which is the
    distribution that distillation (Eq. 3) acts on; ``"all"`` with the first m entries of the full softmax.
    """
    m = teacher.shape[1]
    f = logits[:, :m].softmax(1) if over == "old" else logits.softmax(1)[:, :m]
    drift = (f - teacher.softmax(1)).abs().sum(1)
    return influence(logits, y, features) + alpha * drift * features.abs().sum(1)


def task_distillation(
    logits: Tensor, teacher: Tensor, sizes: Sequence[int], temperature: float, scale: Literal["t2", "none"]
) -> Tensor:
    """Eq. 3 of each task under a softmax of its own, summed over tasks (EEIL, SS-IL), ``[batch]``.

    ``sizes`` are the classes of each of the teacher's tasks.
    """
    tasks = zip(logits[:, : teacher.shape[1]].split(list(sizes), 1), teacher.split(list(sizes), 1), strict=True)
    return torch.stack([distillation(own, target, temperature, scale) for own, target in tasks]).sum(0)


def less_forget(features: Tensor, teacher: Tensor) -> Tensor:
    """``1 - cos(h, h_old)`` (LUCIR, PODNet), ``[batch]``."""
    return 1 - F.cosine_similarity(features.float(), teacher.float())


def fisher(logits: Callable[[Tensor], Tensor], params: Mapping[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return the mean over images of the squared gradient of their label's log-likelihood, by parameter (EWC)."""
    total = {k: torch.zeros_like(p) for k, p in params.items()}
    for image, label in zip(x.split(1), y.split(1), strict=True):
        gradients = torch.autograd.grad(F.cross_entropy(logits(image), label), list(params.values()))
        for k, gradient in zip(params, gradients, strict=True):
            total[k] += gradient.square() / len(y)
    return total
