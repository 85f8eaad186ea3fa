"""What held-out images tell of a model whose classifier is trained: how often it is right, and how sure it may be."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from edbl.app.description import VALIDATION, Bundle, Score
from edbl.app.model import Model
from edbl.nets.closed import calibrated

SURE = "sure.judged"  # the largest probability of each image that was held out, ascending
FACTOR = "sure.factor"  # by which logits are multiplied, so that probabilities are calibrated
ENOUGH = 50  # images that were held out, to find it by
LEAST = 1e-30  # probability, of which the logarithm is taken

Told = list[tuple[Tensor, Sequence[str]]]  # probabilities of images, and their classes


class Asked(NamedTuple):
    """What a model said of photos that it had not learnt."""

    scores: Tensor  # [n, classes], probabilities or other such shares
    y: Tensor  # [n], their classes
    digests: Sequence[str]  # of the photos


class Held(NamedTuple):
    """Photos that were held out, as a model takes them, and their classes."""

    model: Model
    x: Tensor
    labels: Sequence[str]

    def asked(self, bundle: Bundle) -> Asked:
        """Return what the model says of them."""
        digests = [file.removesuffix(".png") for file in bundle.files(VALIDATION)]
        if not digests:
            return Asked(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64), digests)
        names = bundle.names
        y = torch.tensor([names.index(name) for name in self.labels])
        return Asked(self.model.readouts(self.x)[bundle.readout == "nme"], y, digests)


def measure(
    model: Model,
    x: Tensor,
    labels: Sequence[str],
    before: Mapping[str, Score] | None = None,
    told: Told | None = None,
) -> dict[str, Score]:
    """Return how often both read-outs are right on images of each class, and on others ``before`` them.

    Their probabilities are added to what was ``told``.
    """
    scores = dict(before or dict.fromkeys(model.names, Score(0, 0, 0)))
    if not len(x):
        return scores
    probabilities, nearness = model.readouts(x)
    if told is not None:
        told.append((probabilities, labels))
    cnn, nme = (found.argmax(1).tolist() for found in (probabilities, nearness))
    for name, one, other in zip(labels, cnn, nme, strict=True):
        scores[name] += Score(1, int(model.names[one] == name), int(model.names[other] == name))
    return scores


def judged(names: Sequence[str], told: Told) -> dict[str, Tensor]:
    """Return what is saved to calibrate probabilities and to tell unknown images by, of what was told by factor 1."""
    factor, sure = 1.0, torch.zeros(0)
    if told:
        logs = torch.cat([probabilities for probabilities, _ in told]).double().clamp(min=LEAST).log()
        y = torch.tensor([names.index(name) for _, labels in told for name in labels])
        if len(y) >= ENOUGH and len(names) > 1:
            _, factor = calibrated(logs, y)
        sure = (factor * logs).softmax(1).amax(1).sort().values.float()
    return {SURE: sure, FACTOR: torch.tensor(factor).double()}


def factor_of(tensors: Mapping[str, Tensor]) -> float:
    """Return the factor that `judged` has found; what is saved may come from anywhere."""
    found = tensors.get(FACTOR, torch.tensor(1.0))
    if found.numel() != 1 or not found.is_floating_point() or not 0 < float(found) < float("inf"):
        raise ValueError(f"{FACTOR} is no positive number")
    return float(found)
