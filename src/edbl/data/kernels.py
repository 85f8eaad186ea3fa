"""A Triton kernel for augmentation: all of it, and normalisation, in one pass over the pixels."""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from edbl.data import trivial

if TYPE_CHECKING:
    from edbl.data.augment import Changes

BLOCK = 256
_NONE, SHEAR_X, SHEAR_Y, SHIFT_X, SHIFT_Y, TURN, BRIGHTNESS, COLOUR, CONTRAST, BITS, INVERT = (
    tl.constexpr(number) for number in range(len(trivial.OPS))
)
MOST_SHEAR, MOST_SHIFT, MOST_TURN, MOST_TONE, MOST_BITS = (
    tl.constexpr(most) for most in (trivial.SHEAR, trivial.SHIFT, trivial.TURN, trivial.TONE, trivial.BITS)
)
RED, GREEN, BLUE = (tl.constexpr(share) for share in trivial.LUMA)


@triton.jit
def _warped(row, column, op, strength, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Return where pixels come from in the image before TrivialAugment, as `edbl.data.trivial` does."""
    down, across = row - (HEIGHT - 1) / 2, column - (WIDTH - 1) / 2
    turn = tl.where(op == TURN, strength, 0.0) * MOST_TURN
    cos, sin = tl.cos(turn), tl.sin(turn)
    shear_x = tl.where(op == SHEAR_X, strength, 0.0) * MOST_SHEAR
    shear_y = tl.where(op == SHEAR_Y, strength, 0.0) * MOST_SHEAR
    rows = cos * down + (shear_y + sin) * across + tl.where(op == SHIFT_Y, strength, 0.0) * (MOST_SHIFT * HEIGHT)
    columns = cos * across + (shear_x - sin) * down + tl.where(op == SHIFT_X, strength, 0.0) * (MOST_SHIFT * WIDTH)
    return tl.floor(rows + HEIGHT / 2).to(tl.int32), tl.floor(columns + WIDTH / 2).to(tl.int32)


@triton.jit
def _toned(level, grey, op, strength):
    """Return the levels of pixels after TrivialAugment."""
    factor, size = 1 + strength * MOST_TONE, tl.abs(strength)
    step = tl.exp2(tl.floor(size * MOST_BITS + 0.5))
    level = tl.where(op == BRIGHTNESS, level * factor, level)
    level = tl.where(op == COLOUR, grey + factor * (level - grey), level)
    level = tl.where(op == CONTRAST, 127.5 + factor * (level - 127.5), level)
    level = tl.where(op == BITS, tl.floor(level / step) * step, level)
    level = tl.where((op == INVERT) & (level >= 256 * (1 - size)), 255 - level, level)
    return tl.minimum(tl.maximum(level, 0.0), 255.0)


@triton.jit
def _move_kernel(
    x, shift, flipped, bright, hole, ops, strengths, mean, std, out,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr, SIDE: tl.constexpr,
    CROP: tl.constexpr, FLIP: tl.constexpr, BRIGHT: tl.constexpr, TRIVIAL: tl.constexpr,
    MEANS: tl.constexpr, STDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take pixels of one image from where they were to where they go; outside the image they are 0."""
    image, images = tl.program_id(0), tl.num_programs(0)
    p = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row, column = p // WIDTH, p % WIDTH
    inside = row < HEIGHT
    seen, there = inside, inside
    if SIDE:
        down = row - tl.load(hole + image).to(tl.int32) + SIDE // 2
        right = column - tl.load(hole + images + image).to(tl.int32) + SIDE // 2
        seen = (down < 0) | (down >= SIDE) | (right < 0) | (right >= SIDE)
    if TRIVIAL:
        op, strength = tl.load(ops + image), tl.load(strengths + image)
        row, column = _warped(row, column, op, strength, HEIGHT, WIDTH)
        there = there & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
    if FLIP:
        column = tl.where(tl.load(flipped + image) != 0, WIDTH - 1 - column, column)
    if CROP:
        row += tl.load(shift + image).to(tl.int32) - PAD
        column += tl.load(shift + images + image).to(tl.int32) - PAD
        there = there & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
    place = x + (image * CHANNELS * HEIGHT + row) * WIDTH + column
    grey = tl.zeros([BLOCK], tl.float32)
    if TRIVIAL and CHANNELS == 3:
        grey = tl.load(place, mask=there, other=0).to(tl.float32) * RED
        grey += tl.load(place + HEIGHT * WIDTH, mask=there, other=0).to(tl.float32) * GREEN
        grey += tl.load(place + 2 * HEIGHT * WIDTH, mask=there, other=0).to(tl.float32) * BLUE
    for channel in tl.static_range(CHANNELS):
        level = tl.load(place + channel * HEIGHT * WIDTH, mask=there, other=0).to(tl.float32)
        if TRIVIAL:
            level = _toned(level, grey if CHANNELS == 3 else level, op, strength)
        if BRIGHT:
            level = tl.minimum(level * tl.load(bright + image), 255.0)
        centred = level - tl.load(mean + channel % MEANS)
        scaled = tl.div_rn(centred, tl.zeros_like(centred) + tl.load(std + channel % STDS))
        tl.store(out + (image * HEIGHT * WIDTH + p) * CHANNELS + channel, tl.where(seen, scaled, 0.0), mask=inside)


def move(x: Tensor, changes: "Changes", mean: Tensor, std: Tensor, pad: int, side: int) -> Tensor:
    """Return ``[n, c, h, w]`` images with their random changes, normalised."""
    n, channels, height, width = x.shape
    out = torch.empty(x.shape, device=x.device, memory_format=torch.channels_last)
    moved = changes[:6]  # a part that is scaled is not done here
    crop, flip, bright, hole, some, _ = (change is not None for change in moved)
    _move_kernel[(n, triton.cdiv(height * width, BLOCK))](
        x.contiguous(), *(x if change is None else change for change in moved), mean, std, out,
        channels, height, width, pad, side if hole else 0, crop, flip, bright, some, mean.numel(), std.numel(), BLOCK,
    )  # fmt: skip
    return out
