"""TrivialAugment (Müller and Hutter, ICCV 2021): each image gets one change, drawn at random, of random strength.

Without the changes that look at more than a pixel (sharpness, equalising, automatic contrast); contrast is that to
mid-grey. Strengths are those of RandAugment, the narrower of the two spaces in the paper.
"""

import torch
from torch import Tensor

OPS = ("none", "shear-x", "shear-y", "shift-x", "shift-y", "turn", "brightness", "colour", "contrast", "bits", "invert")
SHEAR = 0.3  # most pixels across for one down, and the other way round
SHIFT = 10 / 32  # of the side
TURN = 0.5235987755982988  # 30 degrees
TONE = 0.9  # most by which brightness, colour and contrast grow or shrink, as a share
BITS = 4  # most low bits of a level that are cleared
LUMA = (0.299, 0.587, 0.114)


def change(x: Tensor, op: Tensor, strength: Tensor) -> Tensor:
    """Return ``[n, c, h, w]`` images in levels 0..255, each changed by its ``op``, by -1 to 1 of the most; [n] both."""
    return _toned(_warped(x, op, strength), op, strength)


def _warped(x: Tensor, op: Tensor, strength: Tensor) -> Tensor:
    """Take each pixel from the nearest of where it was; outside the image it is black."""
    n, _, height, width = x.shape
    rows, columns = (place.long() for place in sources(op, strength, height, width))
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    images = torch.arange(n, device=x.device).view(n, 1, 1)
    # Advanced indices around the channel slice move it last: [n, height, width, c].
    picked = x[images, :, rows.clamp(0, height - 1), columns.clamp(0, width - 1)].permute(0, 3, 1, 2)
    return picked * inside.unsqueeze(1)


def sources(op: Tensor, strength: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the row and column that each pixel comes from, whole numbers as floats, inside or not, [n, h, w]."""

    def amount(name: str) -> Tensor:
        return torch.where(op == OPS.index(name), strength, 0.0).view(-1, 1, 1)

    down = torch.arange(height, device=op.device).view(1, height, 1) - (height - 1) / 2
    across = torch.arange(width, device=op.device).view(1, 1, width) - (width - 1) / 2
    turn = TURN * amount("turn")
    cos, sin = turn.cos(), turn.sin()
    rows = cos * down + (SHEAR * amount("shear-y") + sin) * across + SHIFT * height * amount("shift-y")
    columns = cos * across + (SHEAR * amount("shear-x") - sin) * down + SHIFT * width * amount("shift-x")
    return (rows + height / 2).floor(), (columns + width / 2).floor()


def _toned(x: Tensor, op: Tensor, strength: Tensor) -> Tensor:
    """Change the levels of pixels, each by itself."""
    op, strength = op.view(-1, 1, 1, 1), strength.view(-1, 1, 1, 1)
    given = x = x.float()
    for name, tone in TONES.items():
        x = torch.where(op == OPS.index(name), tone(given, strength), x)
    return x.clamp(0, 255)


def _brightness(x: Tensor, strength: Tensor) -> Tensor:
    return x * (1 + TONE * strength)


def _colour(x: Tensor, strength: Tensor) -> Tensor:
    grey = x if x.shape[1] != 3 else sum(share * x[:, k : k + 1] for k, share in enumerate(LUMA))
    return grey + (1 + TONE * strength) * (x - grey)


def _contrast(x: Tensor, strength: Tensor) -> Tensor:
    return 127.5 + (1 + TONE * strength) * (x - 127.5)


def _bits(x: Tensor, strength: Tensor) -> Tensor:
    step = torch.exp2((BITS * strength.abs()).round())
    return (x / step).floor() * step


def _invert(x: Tensor, strength: Tensor) -> Tensor:
    return torch.where(x >= 256 * (1 - strength.abs()), 255 - x, x)


# What changes levels, by name; of images that all have it, ``[n, c, h, w]``, by strengths ``[n, 1, 1, 1]``.
TONES = {"brightness": _brightness, "colour": _colour, "contrast": _contrast, "bits": _bits, "invert": _invert}
