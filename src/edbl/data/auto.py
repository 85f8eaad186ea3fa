"""AutoAugment (Cubuk et al., CVPR 2019) with the policy that it found for CIFAR-10: two changes in a row of each image.

One of 25 pairs is drawn for each image, and each of its two changes happens with a probability of its own, at one of
ten strengths. Changes that TrivialAugment has too are its own; strengths are in its units.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from edbl.data import trivial

# Table 7 of the paper: change, probability, strength from 0 to 9.
POLICY = (
    (("invert", 0.1, 7), ("mean-contrast", 0.2, 6)),
    (("turn", 0.7, 2), ("shift-x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear-y", 0.5, 8), ("shift-y", 0.7, 9)),
    (("auto-contrast", 0.5, 8), ("equalise", 0.9, 2)),
    (("shear-y", 0.2, 7), ("bits", 0.3, 7)),
    (("colour", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalise", 0.6, 5), ("equalise", 0.5, 1)),
    (("mean-contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("colour", 0.7, 7), ("shift-x", 0.5, 8)),
    (("equalise", 0.3, 7), ("auto-contrast", 0.4, 8)),
    (("shift-y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("colour", 0.2, 8)),
    (("solarise", 0.5, 2), ("invert", 0.0, 3)),
    (("equalise", 0.2, 0), ("auto-contrast", 0.6, 0)),
    (("equalise", 0.2, 8), ("equalise", 0.6, 4)),
    (("colour", 0.9, 9), ("equalise", 0.6, 6)),
    (("auto-contrast", 0.8, 4), ("solarise", 0.2, 8)),
    (("brightness", 0.1, 3), ("colour", 0.7, 0)),
    (("solarise", 0.4, 5), ("auto-contrast", 0.9, 3)),
    (("shift-y", 0.9, 9), ("shift-y", 0.7, 9)),
    (("auto-contrast", 0.9, 2), ("solarise", 0.8, 3)),
    (("equalise", 0.8, 8), ("invert", 0.1, 3)),
    (("shift-y", 0.7, 9), ("auto-contrast", 0.9, 1)),
)
OWN = ("mean-contrast", "sharpness", "equalise", "auto-contrast")  # beside those of TrivialAugment
OPS = (*trivial.OPS, *OWN)
SHIFT = 150 / 331  # of the side, the largest
TWO_SIDED = {"turn", "shift-x", "shift-y", "shear-y", "brightness", "colour", "mean-contrast", "sharpness"}


def policy(device: torch.device) -> Tensor:
    """Return the policy as numbers: of each change its op, probability, strength, and whether it has a sign."""
    rows = [[_numbers(*change) for change in pair] for pair in POLICY]
    return torch.tensor(rows, device=device)


def _numbers(name: str, chance: float, level: int) -> tuple[float, ...]:
    op, strength = {"solarise": ("invert", level / 9), "invert": ("invert", 1.0)}.get(name, (name, level / 9))
    if name in ("shift-x", "shift-y"):
        strength *= SHIFT / trivial.SHIFT
    return float(OPS.index(op)), chance, strength, float(name in TWO_SIDED)


def change(x: Tensor, pairs: Tensor, drawn: Tensor, table: Tensor) -> Tensor:
    """Return ``[n, c, h, w]`` images in levels 0..255, each changed by its pair of ``table``.

    ``drawn``, ``[4, n]``, are numbers from 0 to 1: whether either change happens, and their signs.
    """
    for step in range(2):
        op, chance, strength, signed = table[pairs, step].unbind(1)
        op = torch.where(drawn[step] < chance, op, 0.0).long()  # 0 is none
        strength = torch.where((drawn[2 + step] < 0.5) & (signed > 0), -strength, strength)
        x = _own(trivial.change(x, op, strength).round(), op, 1 + trivial.TONE * strength.view(-1, 1, 1, 1))
    return x


def _own(x: Tensor, op: Tensor, factor: Tensor) -> Tensor:
    """Change images by what TrivialAugment does not have."""
    grey = x if x.shape[1] != 3 else sum(share * x[:, k : k + 1] for k, share in enumerate(trivial.LUMA))
    mean = torch.as_tensor(grey).round().mean((1, 2, 3), keepdim=True).round()
    blurred = _blurred(x)
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    results = {
        "mean-contrast": mean + factor * (x - mean),
        "sharpness": blurred + factor * (x - blurred),
        "equalise": _equalised(x),
        "auto-contrast": torch.where(high > low, (x - low) * (255 / (high - low).clamp(min=1)), x),
    }
    for name, result in results.items():
        x = torch.where(op.view(-1, 1, 1, 1) == OPS.index(name), result, x)
    return x.round().clamp(0, 255)


def _blurred(x: Tensor) -> Tensor:
    """Return the mean of each pixel, five times, and its eight neighbours; at the border the pixel itself."""
    inner = (9 * F.avg_pool2d(x, 3, 1) + 4 * x[:, :, 1:-1, 1:-1]) / 13
    return torch.cat([x[:, :, :1], torch.cat([x[:, :, 1:-1, :1], inner, x[:, :, 1:-1, -1:]], 3), x[:, :, -1:]], 2)


def _equalised(x: Tensor) -> Tensor:
    """Spread the levels of each channel so that they are about equally frequent, as Pillow does."""
    levels = x.long().flatten(2).flatten(0, 1)  # [n c, pixels]
    counts = torch.zeros(len(levels), 256, dtype=torch.int64, device=x.device)
    counts = counts.scatter_add(1, levels, torch.ones_like(levels))
    last = counts.gather(1, levels.amax(1, keepdim=True))
    step = (levels.shape[1] - last) // 255
    table = ((counts.cumsum(1) - counts + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.gather(1, levels), levels).view(x.shape).to(x.dtype)
