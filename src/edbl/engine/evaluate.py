"""Evaluation: what each classifier makes of test images, as confusion matrices."""

import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from edbl import group
from edbl.data.augment import Transform, Views
from edbl.data.images import Images
from edbl.errors import EdblError
from edbl.memory import Memory
from edbl.methods.base import Method
from edbl.nets.net import Net, Output, linear
from edbl.nets.shared import apart

NAME = r"[a-z][a-z0-9-]{0,30}"  # of a classifier
PIXELS = 1_000_000  # of one batch: enough to keep a device busy, little enough for the memory of small ones


@torch.no_grad()
def outputs(net: Net, images: Images, transform: Transform | Views) -> Output:
    """Return the net's output for all images, in evaluation mode."""
    net.eval()
    size = images.x.shape[2:].numel() if images.x.ndim == 4 else images.x.shape[-1]
    parts = [net(transform.normalise(x)) for x in images.x.split(max(1, PIXELS // size))]
    more = {name: torch.cat([p.more[name] for p in parts]) for name in parts[0].more}
    return Output(torch.cat([p.logits for p in parts]), torch.cat([p.features for p in parts]), more)


@torch.no_grad()
def shared_outputs(net: Net, images: Images, transform: Transform | Views) -> Output:
    """Return the same; several processes share the images out."""
    number = len(images)
    if number < group.size():
        return outputs(net, images, transform)
    with apart():
        logits, features, more = outputs(net, images[group.own(number)], transform)
    parts = {name: group.gathered(part, number) for name, part in more.items()}
    return Output(group.gathered(logits, number), group.gathered(features, number), parts)


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


def accuracy_within(
    method: Method, test: Images, old: int, watched: Callable[[Output], Tensor] | None = None
) -> tuple[float, float, float]:
    """Return the accuracy over all, old and new classes by ``watched`` scores, or the net's logits; NaN over none.

    A method's own scores may need what it works out at the end of a task.
    """
    output = method.outputs(test)
    right = (watched(output) if watched else output.logits).argmax(1) == test.y
    parts = (right, right[test.y < old], right[test.y >= old])
    return tuple(float(part.float().mean()) for part in parts)  # type: ignore[return-value]  # three of them


def evaluate(method: Method, test: Images, flips: bool, tasks: Sequence[int] = ()) -> dict[str, Tensor]:
    """Return the confusion matrix of each classifier over all seen classes.

    They are ``cnn``, the method's scores; ``nme``, the nearest mean of exemplars, where there are any; ``task-aware``,
    the scores among the classes of the image's own task alone, if the numbers of classes that came with each of the
    ``tasks`` are given; and those of the method itself.
    """
    output = method.outputs(test)
    scores, seen = method.scores(output), method.net.head.classes
    answers = {"cnn": _best(scores, "cnn", (len(test), seen))}
    if len(method.memory):
        answers["nme"] = nearest(class_means(method.memory, method.features, flips), output.features)
    if tasks:
        sizes = torch.tensor(tasks, device=test.y.device)
        task = torch.arange(len(sizes), device=test.y.device).repeat_interleave(sizes)  # of each class
        answers["task-aware"] = scores.masked_fill(task[test.y].unsqueeze(1) != task, -torch.inf).argmax(1)
    more = method.classifiers(output)
    if not isinstance(more, Mapping):
        raise EdblError(f"`classifiers` of {method.name} gives {type(more).__name__}; return scores by name")
    for name, own in more.items():
        if name in answers or not re.fullmatch(NAME, name):
            raise EdblError(f"a classifier of {method.name} is named '{name}'; use a new name in small letters")
        answers[name] = _best(own, name, (len(test), seen))
    if method.readout not in answers:
        raise EdblError(f"{method.name} reports '{method.readout}', which is not among {', '.join(answers)}")
    return {name: confusion(test.y, predicted, seen) for name, predicted in answers.items()}


def _best(scores: Tensor, name: str, shape: tuple[int, int]) -> Tensor:
    """Return the class with the largest score of each image; not a number would be the largest."""
    is_tensor = isinstance(scores, Tensor)
    if not is_tensor or scores.shape != shape:
        are = f"have shape {list(scores.shape)}" if is_tensor else f"are of type {type(scores).__name__}"
        raise EdblError(f"scores of classifier '{name}' {are}, not {list(shape)}")
    if scores.isnan().any():
        raise EdblError(f"scores of classifier '{name}' are not all numbers")
    return scores.argmax(1)
