"""A Triton kernel for augmentation: crop, flip and normalisation in one pass over the pixels."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


@triton.jit
def _move_kernel(
    x, shift, flipped, mean, std, out,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr,
    CROP: tl.constexpr, FLIP: tl.constexpr, STATS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take pixels of one image from where they were to where they go; outside the image they are 0."""
    image, images = tl.program_id(0), tl.num_programs(0)
    p = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row, column = p // WIDTH, p % WIDTH
    inside = row < HEIGHT
    if FLIP:
        column = tl.where(tl.load(flipped + image) != 0, WIDTH - 1 - column, column)
    if CROP:
        row += tl.load(shift + image).to(tl.int32) - PAD
        column += tl.load(shift + images + image).to(tl.int32) - PAD
    there = inside & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
    for channel in tl.static_range(CHANNELS):
        value = tl.load(x + ((image * CHANNELS + channel) * HEIGHT + row) * WIDTH + column, mask=there, other=0)
        centred = value.to(tl.float32) - tl.load(mean + channel % STATS)
        scaled = tl.div_rn(centred, tl.zeros_like(centred) + tl.load(std + channel % STATS))
        tl.store(out + (image * HEIGHT * WIDTH + p) * CHANNELS + channel, scaled, mask=inside)


def move(x: Tensor, shift: Tensor | None, flipped: Tensor | None, mean: Tensor, std: Tensor, pad: int) -> Tensor:
    """Return ``[n, c, h, w]`` images, cropped by ``shift`` and mirrored where ``flipped``, normalised."""
    n, channels, height, width = x.shape
    out = torch.empty(x.shape, device=x.device, memory_format=torch.channels_last)
    _move_kernel[(n, triton.cdiv(height * width, BLOCK))](
        x.contiguous(), x if shift is None else shift, x if flipped is None else flipped, mean, std, out,
        channels, height, width, pad, shift is not None, flipped is not None, mean.numel(), BLOCK,
    )  # fmt: skip
    return out
