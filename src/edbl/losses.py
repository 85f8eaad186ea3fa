"""Losses: pure functions of tensors, each after its equation in the paper.

Labels ``y`` are distributions over the seen classes, so hard and mixed labels take the same path. Losses return one
value per sample. ``m`` is the number of old classes.
"""

from typing import Literal

from torch import Tensor

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


def _old_probabilities(logits: Tensor, m: int, over: Literal["old", "all"]) -> Tensor:
    return logits[:, :m].softmax(1) if over == "old" else logits.softmax(1)[:, :m]


def incremental_influence(
    logits: Tensor, y: Tensor, teacher: Tensor, features: Tensor, alpha: float, over: Literal["old", "all"]
) -> Tensor:
    """Eq. 13, and Eq. 15 for mixed labels: ``(||f - y||_1 + alpha ||f - f_old||_1) ||h||_1``.

    ``f_old`` has m entries. ``over="old"`` compares it with the softmax over the first m logits, which is the
    distribution that distillation (Eq. 3) acts on; ``"all"`` with the first m entries of the full softmax.
    """
    m = teacher.shape[1]
    drift = (_old_probabilities(logits, m, over) - teacher.softmax(1)).abs().sum(1)
    return influence(logits, y, features) + alpha * drift * features.abs().sum(1)


def coupled_influence(
    logits: Tensor, y: Tensor, teacher: Tensor, features: Tensor, over: Literal["old", "all"]
) -> Tensor:
    """Eq. 11: ``(||[2 f - y - f_old]_1..m||_1 + ||[f - y]_m+1..||_1) ||h||_1``.

    With ``over="all"`` as printed; with ``"old"`` the exact L1 norm of the last layer's gradient of Eq. 2 + Eq. 3 at
    temperature 1.
    """
    m = teacher.shape[1]
    error = logits.softmax(1) - y  # [batch, seen]
    old = error[:, :m] + _old_probabilities(logits, m, over) - teacher.softmax(1)
    return (old.abs().sum(1) + error[:, m:].abs().sum(1)) * features.abs().sum(1)
