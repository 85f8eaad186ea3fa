"""Evaluation: both read-outs of a net over test images, as confusion matrices."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from edbl.data.augment import Transform, Views
from edbl.data.images import Images
from edbl.memory import Memory
from edbl.methods.base import Method
from edbl.nets.net import Net, Output, linear

PIXELS = 1_000_000  # of one batch: enough to keep a device busy, little enough for the memory of small ones


@torch.no_grad()
def outputs(net: Net, images: Images, transform: Transform | Views) -> Output:
    """Return the net's output for all images, in evaluation mode."""
    net.eval()
    size = images.x.shape[2:].numel() if images.x.ndim == 4 else images.x.shape[-1]
    parts = [net(transform.normalise(x)) for x in images.x.split(max(1, PIXELS // size))]
    return Output(torch.cat([p.logits for p in parts]), torch.cat([p.features for p in parts]))


def class_means(memory: Memory, features: Callable[[Images], Tensor], flips: bool) -> Tensor:
    """Return the normalised mean of each class's normalised exemplar features, ``[seen, width]``.

    With ``flips``, mirror images count as exemplars too. A class without exemplars has no mean: its row is infinite.
    """
    images = memory.images
    vectors = F.normalize(features(images))
    if flips and images.x.ndim == 4:
        vectors = vectors + F.normalize(features(Images(images.x.flip(3), images.y)))
    seen = len(memory.classes)
    members = (images.y == torch.arange(seen, device=images.y.device).unsqueeze(1)).float()  # [seen, n]
    return F.normalize(linear(members, vectors.T)).masked_fill(members.sum(1, keepdim=True) == 0, torch.inf)


def nearest(means: Tensor, features: Tensor) -> Tensor:
    """Return the class whose mean is nearest to each normalised feature (nearest mean of exemplars)."""
    return distances(means, features).argmin(1)


def distances(means: Tensor, features: Tensor) -> Tensor:
    """Return the squared distance of each normalised feature to each mean, ``[n, seen]``; infinite without a mean."""
    there = means.isfinite().all(1)
    means = means.where(there.unsqueeze(1), 0.0)
    return (1 + means.square().sum(1) - 2 * linear(F.normalize(features), means)).where(there, torch.inf)


def confusion(truth: Tensor, predicted: Tensor, seen: int) -> Tensor:
    """Return how often each class (row) was taken for each class (column), ``[seen, seen]``."""
    return torch.bincount(truth * seen + predicted, minlength=seen * seen).view(seen, seen)


def evaluate(method: Method, test: Images, transform: Transform | Views, flips: bool) -> dict[str, Tensor]:
    """Return the confusion matrices of the CNN and the nearest-mean read-out over all seen classes."""
    output = outputs(method.net, test, transform)
    seen = output.logits.shape[1]
    means = class_means(method.memory, method.features, flips)
    return {
        "cnn": confusion(test.y, method.scores(output).argmax(1), seen),
        "nme": confusion(test.y, nearest(means, output.features), seen),
    }
