"""What augmentation does to levels of pixels on a CPU: the bits of what all devices compute, in less of its time.

Images are copied row by row rather than pixel by pixel, and a change of TrivialAugment is made of the images that have
it alone.
"""

import torch
from torch import Tensor

from edbl.data import trivial

LAST_WARP = trivial.OPS.index("turn")  # warps come before tones


def moved(x: Tensor, shift: Tensor | None, flipped: Tensor | None, pad: int) -> Tensor:
    """Return images cropped out of a black frame at ``shift``, and mirrored where they are ``flipped``."""
    n, channels, height, width = x.shape
    images = torch.arange(n)
    if shift is not None:
        framed = _framed(x, pad)
        image, channel, row, _ = framed.stride()
        last = (n - 1) * image + 2 * pad * (row + 1)
        crops = framed.as_strided((last + 1, channels, height, width), (1, channel, row, 1))  # one from each place
        x = crops.index_select(0, images * image + (shift[0] * row + shift[1]).squeeze(1))
    if flipped is not None:
        x = torch.cat([x, x.flip(3)]).index_select(0, images + n * flipped.squeeze(1))
    return x


def _framed(x: Tensor, pad: int) -> Tensor:
    """Return images in a black frame, in the usual layout."""
    n, channels, height, width = x.shape
    framed = x.new_zeros(n, channels, height + 2 * pad, width + 2 * pad)
    framed[:, :, pad : pad + height, pad : pad + width] = x
    return framed


def _warped(x: Tensor, op: Tensor, strength: Tensor) -> Tensor:
    """Take each pixel from where it was, or out of a black frame."""
    _, channels, height, width = x.shape
    rows, columns = (place.long() + 1 for place in trivial.sources(op, strength, height, width))
    places = rows.clamp_(0, height + 1) * (width + 2) + columns.clamp_(0, width + 1)
    return _framed(x, 1).flatten(2).gather(2, places.flatten(1).unsqueeze(1).expand(-1, channels, -1)).view(x.shape)


def changed(x: Tensor, op: Tensor, strength: Tensor) -> Tensor:
    """Return what `trivial.change` does."""
    order = op.argsort()
    sizes = op.bincount(minlength=len(trivial.OPS)).tolist()
    x, strength = x.index_select(0, order), strength[order]
    done = x.float()
    still, warped = sizes[0], sum(sizes[: LAST_WARP + 1])
    turned = slice(still, warped)
    done[turned] = _warped(x[turned], op[order[turned]], strength[turned])
    at = warped
    for name, size in zip(trivial.OPS[LAST_WARP + 1 :], sizes[LAST_WARP + 1 :], strict=True):
        own = slice(at, at + size)
        done[own] = trivial.TONES[name](done[own], strength[own].view(-1, 1, 1, 1))
        at += size
    return done.clamp_(0, 255).index_select(0, order.argsort())
