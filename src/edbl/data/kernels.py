"""A Triton kernel for augmentation: all of it, and normalisation, in one pass over the pixels."""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from edbl.data.augment import Changes

BLOCK = 256


@triton.jit
def _move_kernel(
    x, shift, flipped, bright, hole, mean, std, out,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr, SIDE: tl.constexpr,
    CROP: tl.constexpr, FLIP: tl.constexpr, BRIGHT: tl.constexpr, STATS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take pixels of one image from where they were to where they go; outside the image they are 0."""
    image, images = tl.program_id(0), tl.num_programs(0)
    p = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row, column = p // WIDTH, p % WIDTH
    inside = row < HEIGHT
    seen = inside
    if SIDE:
        down = row - tl.load(hole + image).to(tl.int32) + SIDE // 2
        right = column - tl.load(hole + images + image).to(tl.int32) + SIDE // 2
        seen = (down < 0) | (down >= SIDE) | (right < 0) | (right >= SIDE)
    if FLIP:
        column = tl.where(tl.load(flipped + image) != 0, WIDTH - 1 - column, column)
    if CROP:
        row += tl.load(shift + image).to(tl.int32) - PAD
        column += tl.load(shift + images + image).to(tl.int32) - PAD
    there = inside & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
    for channel in tl.static_range(CHANNELS):
        value = tl.load(x + ((image * CHANNELS + channel) * HEIGHT + row) * WIDTH + column, mask=there, other=0)
        level = value.to(tl.float32)
        if BRIGHT:
            level = tl.minimum(level * tl.load(bright + image), 255.0)
        centred = level - tl.load(mean + channel % STATS)
        scaled = tl.div_rn(centred, tl.zeros_like(centred) + tl.load(std + channel % STATS))
        tl.store(out + (image * HEIGHT * WIDTH + p) * CHANNELS + channel, tl.where(seen, scaled, 0.0), mask=inside)


def move(x: Tensor, changes: "Changes", mean: Tensor, std: Tensor, pad: int, side: int) -> Tensor:
    """Return ``[n, c, h, w]`` images with their random changes, normalised."""
    n, channels, height, width = x.shape
    out = torch.empty(x.shape, device=x.device, memory_format=torch.channels_last)
    shift, flipped, bright, hole = (x if change is None else change for change in changes)
    _move_kernel[(n, triton.cdiv(height * width, BLOCK))](
        x.contiguous(), shift, flipped, bright, hole, mean, std, out,
        channels, height, width, pad, 0 if changes.hole is None else side,
        changes.shift is not None, changes.flipped is not None, changes.bright is not None, mean.numel(), BLOCK,
    )  # fmt: skip
    return out
