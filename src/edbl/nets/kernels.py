"""Triton kernels for small residual networks: 3x3 convolutions with what stands around them folded in.

Activations are ``[pixels, channels]``, the pixels of all images one after the other, row by row. What a kernel row
covers then lies side by side in memory, so a convolution is three matrix products: with the row above, the pixel's own
row and the row below. GROUP neighbouring pixels are worked out together: two of them need four neighbours instead of
twice three. TALL is 2 where the pixels below them are worked out too, from four rows instead of twice three. With many
channels, a row is multiplied in three PIECES, one neighbour after the other, which takes fewer registers. WIDTH is the
number of values that a product takes of one row, rounded up to a power of two.

``z`` is a raw convolution output, before batch normalisation; ``stats`` holds four rows for its normalisation: mean,
inverse standard deviation, and the scale and shift of ``z * scale + shift``. Programs add their sums over pixels to
common whole numbers, whose order of addition does not matter: the same inputs give the same bits. The program that ends
last works with the totals and sets them back to zero. A CHAINED kernel is started while the one before it ends, which
saves the time between two kernels.

`product` is for the head behind the network.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

TILE, DEPTH = 16, 32  # of a product: rows and columns that a program works out, terms that it adds at a time


@triton.jit
def _after(CHAINED: tl.constexpr):
    """Wait for the kernel before, which let this one start early, and let the next one start early."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _pixel(p, SIDE: tl.constexpr, GROUP: tl.constexpr, TALL: tl.constexpr):
    """Split numbers of groups into image, row, and column of the first pixel."""
    across: tl.constexpr = SIDE // GROUP
    down: tl.constexpr = SIDE // TALL
    return p // (down * across), p // across % down * TALL, p % across * GROUP


@triton.jit
def _place(image, row, column, SIDE: tl.constexpr, CHANNELS: tl.constexpr):
    """Return where a pixel's first channel is."""
    return ((image * SIDE + row) * SIDE + column) * CHANNELS


@triton.jit
def _keep(y, place, value, inside):
    """Store values, and return them as they were rounded."""
    value = value.to(y.dtype.element_ty)
    tl.store(y + place, value, mask=inside[:, None])
    return value.to(tl.float32)


@triton.jit
def _patch(
    x, image, row, column, inside,
    SIDE: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """Load the neighbours in a row, from the one before ``column`` on, all channels, zero where they lie outside."""
    k = tl.arange(0, WIDTH)
    neighbours: tl.constexpr = (GROUP + 2) // PIECES
    across = column[:, None] + (k // CHANNELS - 1)[None, :]
    ok = (inside & (row >= 0) & (row < SIDE))[:, None] & (across >= 0) & (across < SIDE)
    if neighbours * CHANNELS != WIDTH:
        ok = ok & (k < neighbours * CHANNELS)[None, :]
    start = _place(image, row, column - 1, SIDE, CHANNELS)
    return tl.load(x + start[:, None] + k[None, :], mask=ok, other=0.0)


@triton.jit
def _convolve(
    x, w, image, row, column, inside,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, IN: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    GROUP: tl.constexpr, PIECES: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the convolution at some groups of output pixels, ``[BLOCK, GROUP * OUT]``, and at those below them."""
    k, out = tl.arange(0, WIDTH), tl.arange(0, GROUP * OUT)
    total = tl.zeros([BLOCK, GROUP * OUT], tl.float32)
    below = tl.zeros([BLOCK, GROUP * OUT], tl.float32)
    for step in tl.static_range((2 + TALL) * PIECES):
        above, piece = step // PIECES, step % PIECES
        patch = _patch(
            x, image, row * STRIDE + above - 1, column * STRIDE + piece, inside, SIDE, IN, WIDTH, GROUP, PIECES
        )
        if above < 3:
            weight = tl.load(w + (step * WIDTH + k[:, None]) * (GROUP * OUT) + out[None, :])
            total = tl.dot(patch, weight, total)
        if TALL == 2 and above > 0:
            weight = tl.load(w + ((step - PIECES) * WIDTH + k[:, None]) * (GROUP * OUT) + out[None, :])
            below = tl.dot(patch, weight, below)
    return total, below


@triton.jit
def _shortcut(
    x, image, row, column, inside, SIDE: tl.constexpr, OUT: tl.constexpr, MODE: tl.constexpr, GROUP: tl.constexpr
):
    """Return what a shortcut adds: the input (1), or option A's every other pixel between padding (2)."""
    n = tl.arange(0, GROUP * OUT)
    if MODE == 1:
        start = _place(image, row, column, SIDE, OUT)
        place, mask = start[:, None] + n[None, :], inside[:, None] & (n >= 0)[None, :]
    else:
        # The input has twice the side and half the channels; a quarter of the output's are padding on either side.
        start = ((image * 2 * SIDE + 2 * row) * 2 * SIDE + 2 * column) * (OUT // 2)
        channel = n % OUT - OUT // 4
        place = start[:, None] + (n // OUT * OUT + channel)[None, :]
        mask = inside[:, None] & (channel >= 0)[None, :] & (channel < OUT // 2)[None, :]
    return tl.load(x + place, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _last(totals, first, second, OUT: tl.constexpr, GROUP: tl.constexpr, SCALE: tl.constexpr):
    """Add this program's sums to the totals; return whether it is the last to do so, and then the totals.

    They are float64: the variance is the small difference of two of them.
    """
    n, out = tl.arange(0, GROUP * OUT), tl.arange(0, OUT)
    tl.atomic_add(totals + 1 + n % OUT, (first.to(tl.float64) * SCALE).to(tl.int64))
    tl.atomic_add(totals + 1 + OUT + n % OUT, (second.to(tl.float64) * SCALE).to(tl.int64))
    tl.debug_barrier()
    last = tl.atomic_add(totals, 1, sem="acq_rel") == tl.num_programs(0) - 1
    all_first = tl.zeros([OUT], tl.float64)
    all_second = tl.zeros([OUT], tl.float64)
    if last:
        all_first = tl.load(totals + 1 + out, cache_modifier=".cg").to(tl.float64) / SCALE
        all_second = tl.load(totals + 1 + OUT + out, cache_modifier=".cg").to(tl.float64) / SCALE
        tl.debug_barrier()
        tl.store(totals, 0)
        tl.store(totals + 1 + out, tl.zeros([OUT], tl.int64))
        tl.store(totals + 1 + OUT + out, tl.zeros([OUT], tl.int64))
    return last, all_first, all_second


@triton.jit
def forward_kernel(
    x, w, z, totals, gamma, beta, running_mean, running_var, stats, pixels,
    SIDE_IN: tl.constexpr, SIDE_OUT: tl.constexpr, STRIDE: tl.constexpr,
    IN: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, GROUP: tl.constexpr, PIECES: tl.constexpr,
    TALL: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Convolve, and work out the normalisation of the output; update the running statistics."""
    _after(CHAINED)
    n, out = tl.arange(0, GROUP * OUT), tl.arange(0, OUT)
    first = tl.zeros([GROUP * OUT], tl.float32)
    second = tl.zeros([GROUP * OUT], tl.float32)
    groups = pixels // (GROUP * TALL)
    for tile in range(tl.program_id(0), tl.cdiv(groups, BLOCK), tl.num_programs(0)):
        p = tile * BLOCK + tl.arange(0, BLOCK)
        inside = p < groups
        image, row, column = _pixel(p, SIDE_OUT, GROUP, TALL)
        total, below = _convolve(
            x, w, image, row, column, inside, SIDE_IN, STRIDE, IN, WIDTH, OUT, GROUP, PIECES, TALL, BLOCK
        )
        place = _place(image, row, column, SIDE_OUT, OUT)[:, None] + n[None, :]
        rounded = _keep(z, place, total, inside)
        first += tl.sum(rounded, 0)
        second += tl.sum(rounded * rounded, 0)
        if TALL == 2:
            rounded = _keep(z, place + SIDE_OUT * OUT, below, inside)
            first += tl.sum(rounded, 0)
            second += tl.sum(rounded * rounded, 0)
    # To 2^-30, which leaves room for sums of up to 2^33.
    last, all_first, all_second = _last(totals, first, second, OUT, GROUP, 2.0**30)
    if last:
        mean = all_first / pixels
        variance = tl.maximum(all_second / pixels - mean * mean, 0.0)
        inverse = 1 / tl.sqrt(variance + 1e-5)
        scale = tl.load(gamma + out) * inverse
        tl.store(stats + out, mean)
        tl.store(stats + OUT + out, inverse)
        tl.store(stats + 2 * OUT + out, scale)
        tl.store(stats + 3 * OUT + out, tl.load(beta + out) - mean * scale)
        unbiased = variance * (pixels / (pixels - 1.0))
        tl.store(running_mean + out, 0.9 * tl.load(running_mean + out) + 0.1 * mean)
        tl.store(running_var + out, 0.9 * tl.load(running_var + out) + 0.1 * unbiased)


@triton.jit
def activate_kernel(
    z, stats, x, y, pixels,
    SIDE: tl.constexpr, OUT: tl.constexpr, MODE: tl.constexpr, RELU: tl.constexpr,
    BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Normalise, add the shortcut (MODE 1 or 2), rectify unless told not to."""
    _after(CHAINED)
    out = tl.arange(0, OUT)
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = p < pixels
    place = p[:, None] * OUT + out[None, :]
    raw = tl.load(z + place, mask=inside[:, None], other=0.0).to(tl.float32)
    total = raw * tl.load(stats + 2 * OUT + out)[None, :] + tl.load(stats + 3 * OUT + out)[None, :]
    if MODE > 0:
        image, row, column = _pixel(p, SIDE, 1, 1)
        total += _shortcut(x, image, row, column, inside, SIDE, OUT, MODE, 1)
    if RELU:
        total = tl.maximum(total, 0.0)
    tl.store(y + place, total.to(y.dtype.element_ty), mask=inside[:, None])


@triton.jit
def infer_kernel(
    x, w, bias, shortcut, y, pixels,
    SIDE_IN: tl.constexpr, SIDE_OUT: tl.constexpr, STRIDE: tl.constexpr,
    IN: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, GROUP: tl.constexpr, PIECES: tl.constexpr,
    MODE: tl.constexpr, RELU: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Convolve with the normalisation folded into weight and bias, add the shortcut, rectify unless told not to."""
    _after(CHAINED)
    n = tl.arange(0, GROUP * OUT)
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = p < pixels // (GROUP * TALL)
    image, row, column = _pixel(p, SIDE_OUT, GROUP, TALL)
    total, below = _convolve(
        x, w, image, row, column, inside, SIDE_IN, STRIDE, IN, WIDTH, OUT, GROUP, PIECES, TALL, BLOCK
    )
    place = _place(image, row, column, SIDE_OUT, OUT)[:, None] + n[None, :]
    for down in tl.static_range(TALL):
        value = (below if down else total) + tl.load(bias + n % OUT)[None, :]
        if MODE > 0:
            value += _shortcut(shortcut, image, row + down, column, inside, SIDE_OUT, OUT, MODE, GROUP)
        if RELU:
            value = tl.maximum(value, 0.0)
        _keep(y, place + down * SIDE_OUT * OUT, value, inside)


@triton.jit
def _normalise_backward(
    totals, my_first, my_second, gamma, stats, dgamma, dbeta, factors, pixels,
    OUT: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Turn sums into gradients of gamma and beta, and ``factors`` a, b, c with ``dz = a g + b z + c``."""
    # To 2^-40, since gradients are small, which leaves room for sums of up to 2^23.
    last, first, second = _last(totals, my_first, my_second, OUT, GROUP, 2.0**40)
    if last:
        out = tl.arange(0, OUT)
        mean, inverse = tl.load(stats + out), tl.load(stats + OUT + out)
        scale = tl.load(gamma + out) * inverse
        slope = -scale * inverse * second / pixels
        tl.store(dgamma + out, second)
        tl.store(dbeta + out, first)
        tl.store(factors + out, scale)
        tl.store(factors + OUT + out, slope)
        tl.store(factors + 2 * OUT + out, -scale * first / pixels - slope * mean)


@triton.jit
def pool_kernel(
    gradient, y, z, stats, g, totals, gamma, dgamma, dbeta, factors, pixels,
    SIDE: tl.constexpr, OUT: tl.constexpr, RELU: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Spread the gradient of average pooling over the pixels of the last block's output; then as `data_kernel`."""
    _after(CHAINED)
    out = tl.arange(0, OUT)
    mean, inverse = tl.load(stats + out), tl.load(stats + OUT + out)
    first = tl.zeros([OUT], tl.float32)
    second = tl.zeros([OUT], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(pixels, BLOCK), tl.num_programs(0)):
        p = tile * BLOCK + tl.arange(0, BLOCK)
        mask = (p < pixels)[:, None] & (out >= 0)[None, :]
        place = p[:, None] * OUT + out[None, :]
        pooled = tl.load(gradient + (p // (SIDE * SIDE))[:, None] * OUT + out[None, :], mask=mask, other=0.0)
        spread = pooled.to(tl.float32) / (SIDE * SIDE)
        if RELU:
            spread = tl.where(tl.load(y + place, mask=mask, other=0.0) > 0, spread, 0.0)
        value = spread.to(g.dtype.element_ty)
        tl.store(g + place, value, mask=mask)
        rounded = value.to(tl.float32)
        raw = tl.load(z + place, mask=mask, other=0.0).to(tl.float32)
        first += tl.sum(rounded, 0)
        second += tl.sum(rounded * (raw - mean[None, :]) * inverse[None, :], 0)
    _normalise_backward(totals, first, second, gamma, stats, dgamma, dbeta, factors, pixels, OUT, 1)


@triton.jit
def data_kernel(
    dz, w, shortcut, y, z, stats, g, totals, gamma, dgamma, dbeta, factors, pixels,
    SIDE_IN: tl.constexpr, SIDE_OUT: tl.constexpr, STRIDE: tl.constexpr,
    IN: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, GROUP: tl.constexpr, PIECES: tl.constexpr,
    MODE: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Take a gradient back through a convolution, the shortcut beside it, and the ReLU and normalisation before it.

    ``y`` is the output of that ReLU, ``z`` and ``stats`` belong to that normalisation. ``g`` is the gradient at the
    normalisation's output.
    """
    _after(CHAINED)
    n, channel, out = tl.arange(0, GROUP * IN), tl.arange(0, IN), tl.arange(0, OUT)
    mean, inverse = tl.load(stats + n % IN), tl.load(stats + IN + n % IN)
    first = tl.zeros([GROUP * IN], tl.float32)
    second = tl.zeros([GROUP * IN], tl.float32)
    groups = pixels // (GROUP * TALL)
    for tile in range(tl.program_id(0), tl.cdiv(groups, BLOCK), tl.num_programs(0)):
        p = tile * BLOCK + tl.arange(0, BLOCK)
        inside = p < groups
        image, row, column = _pixel(p, SIDE_IN, GROUP, TALL)
        if STRIDE == 1:
            # Mirrored weights turn this way back into a way forward.
            total, below = _convolve(
                dz, w, image, row, column, inside, SIDE_OUT, 1, OUT, WIDTH, IN, GROUP, PIECES, TALL, BLOCK
            )
        else:
            total = tl.zeros([BLOCK, IN], tl.float32)
            below = total
            for tap in tl.static_range(9):
                above, left = row + tap // 3 - 1, column + tap % 3 - 1
                ok = inside & (above >= 0) & (left >= 0) & (above % STRIDE == 0) & (left % STRIDE == 0)
                ok = ok & (above // STRIDE < SIDE_OUT) & (left // STRIDE < SIDE_OUT)
                start = ((image * SIDE_OUT + above // STRIDE) * SIDE_OUT + left // STRIDE) * OUT
                a = tl.load(dz + start[:, None] + out[None, :], mask=ok[:, None], other=0.0)
                k = (tap // 3 * PIECES + tap % PIECES) * WIDTH + tap % (3 // PIECES) * OUT + out
                total = tl.dot(a, tl.load(w + k[:, None] * IN + channel[None, :]), total)
        mask = inside[:, None] & (n >= 0)[None, :]
        for down in tl.static_range(TALL):
            value = below if down else total
            place = _place(image, row + down, column, SIDE_IN, IN)[:, None] + n[None, :]
            if MODE == 1:
                value += tl.load(shortcut + place, mask=mask, other=0.0).to(tl.float32)
            if MODE == 2:
                even = mask & ((row % 2 == 0) & (column % 2 == 0))[:, None]
                start = _place(image, row // 2, column // 2, SIDE_OUT, OUT) + OUT // 4
                value += tl.load(shortcut + start[:, None] + channel[None, :], mask=even, other=0.0).to(tl.float32)
            alive = tl.load(y + place, mask=mask, other=0.0) > 0
            rounded = _keep(g, place, tl.where(alive, value, 0.0), inside)
            raw = tl.load(z + place, mask=mask, other=0.0).to(tl.float32)
            first += tl.sum(rounded, 0)
            second += tl.sum(rounded * (raw - mean[None, :]) * inverse[None, :], 0)
    _normalise_backward(totals, first, second, gamma, stats, dgamma, dbeta, factors, pixels, IN, GROUP)


@triton.jit
def _raw_gradient(g, z, dz, place, mask, a, b, c, store):
    """Return, and store if asked to, the gradient before the normalisation: ``dz = a g + b z + c``."""
    gradient = tl.load(g + place, mask=mask, other=0.0)
    raw = tl.load(z + place, mask=mask, other=0.0).to(tl.float32)
    value = gradient.to(tl.float32) * a[None, :] + raw * b[None, :] + c[None, :]
    value = tl.where(mask, value, 0.0).to(gradient.dtype)
    if store:
        tl.store(dz + place, value, mask=mask)
    return value


@triton.jit
def weight_kernel(
    x, g, z, factors, dz, dw, pixels, columns,
    SIDE_IN: tl.constexpr, SIDE_OUT: tl.constexpr, STRIDE: tl.constexpr,
    IN: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, GROUP: tl.constexpr, PIECES: tl.constexpr,
    ROWS: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Gradient of a convolution's weights: a share of the pixels, and one kernel row or all three, per program.

    On the way the gradient is taken back through the normalisation; `data_kernel` reads it in ``dz``. ``dw`` is
    ``[shares, columns]``: each program writes its sums beside those of the other layers, ``[3, 3, IN, OUT]``.
    """
    _after(CHAINED)
    k, n = tl.arange(0, WIDTH), tl.arange(0, GROUP * OUT)
    mine = tl.program_id(1)
    a, b, c = tl.load(factors + n % OUT), tl.load(factors + OUT + n % OUT), tl.load(factors + 2 * OUT + n % OUT)
    # Of three kernel rows, or of three pieces of one.
    first = tl.zeros([WIDTH, GROUP * OUT], tl.float32)
    second = tl.zeros([WIDTH, GROUP * OUT], tl.float32)
    third = tl.zeros([WIDTH, GROUP * OUT], tl.float32)
    groups = pixels // (GROUP * TALL)
    for tile in range(tl.program_id(0), tl.cdiv(groups, BLOCK), tl.num_programs(0)):
        p = tile * BLOCK + tl.arange(0, BLOCK)
        inside = p < groups
        image, row, column = _pixel(p, SIDE_OUT, GROUP, TALL)
        place = _place(image, row, column, SIDE_OUT, OUT)[:, None] + n[None, :]
        mask = inside[:, None] & (n >= 0)[None, :]
        value = _raw_gradient(g, z, dz, place, mask, a, b, c, mine == 0)
        row, column = row * STRIDE + mine - 1, column * STRIDE
        patch = _patch(x, image, row, column, inside, SIDE_IN, IN, WIDTH, GROUP, PIECES)
        first = tl.dot(tl.trans(patch), value, first)
        if PIECES == 3:
            patch = _patch(x, image, row, column + 1, inside, SIDE_IN, IN, WIDTH, GROUP, PIECES)
            second = tl.dot(tl.trans(patch), value, second)
            patch = _patch(x, image, row, column + 2, inside, SIDE_IN, IN, WIDTH, GROUP, PIECES)
            third = tl.dot(tl.trans(patch), value, third)
        if ROWS == 3:
            patch = _patch(x, image, row + 1, column, inside, SIDE_IN, IN, WIDTH, GROUP, PIECES)
            second = tl.dot(tl.trans(patch), value, second)
            if TALL == 2:
                lower = _raw_gradient(g, z, dz, place + SIDE_OUT * OUT, mask, a, b, c, True)
                first = tl.dot(tl.trans(patch), lower, first)
            patch = _patch(x, image, row + 2, column, inside, SIDE_IN, IN, WIDTH, GROUP, PIECES)
            third = tl.dot(tl.trans(patch), value, third)
            if TALL == 2:
                second = tl.dot(tl.trans(patch), lower, second)
                patch = _patch(x, image, row + 3, column, inside, SIDE_IN, IN, WIDTH, GROUP, PIECES)
                third = tl.dot(tl.trans(patch), lower, third)
    # The second pixel of a pair has the same weights one place further; its sums are added to those of the first.
    pixel = (n // OUT)[None, :]
    mask = (k[:, None] >= pixel * IN) & (k[:, None] < (3 // PIECES + pixel) * IN)
    place = dw + tl.program_id(0) * columns + mine * 3 * IN * OUT
    place += (k[:, None] - pixel * IN) * OUT + (n % OUT)[None, :]
    further: tl.constexpr = 3 * IN * OUT // PIECES
    tl.store(place, first, mask=mask & (pixel == 0))
    if ROWS * PIECES == 3:
        tl.store(place + further, second, mask=mask & (pixel == 0))
        tl.store(place + 2 * further, third, mask=mask & (pixel == 0))
    if GROUP == 2:
        tl.debug_barrier()
        tl.atomic_add(place, first, mask=mask & (pixel == 1), sem="relaxed")
        if ROWS == 3:
            tl.atomic_add(place + further, second, mask=mask & (pixel == 1), sem="relaxed")
            tl.atomic_add(place + 2 * further, third, mask=mask & (pixel == 1), sem="relaxed")


def product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``a @ b.T + bias`` in float32; neither matrix is empty."""
    (rows, width), columns = a.shape, len(b)
    y = torch.empty(rows, columns, device=a.device)
    grid = triton.cdiv(rows, TILE), triton.cdiv(columns, TILE)
    product_kernel[grid](
        a, b, y if bias is None else bias, y, rows, columns, width, *a.stride(), *b.stride(),
        bias is not None, TILE, DEPTH, num_warps=2,
    )  # fmt: skip
    return y


@triton.jit
def product_kernel(
    a, b, bias, y, rows, columns, width, a_row, a_column, b_row, b_column,
    BIAS: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Write a tile of a product, each sum taken from its first term to its last."""
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros([TILE, TILE], tl.float32)
    for first in range(0, width, DEPTH):
        k = first + tl.arange(0, DEPTH)
        left = tl.load(
            a + row[:, None] * a_row + k[None, :] * a_column,
            mask=(row < rows)[:, None] & (k < width)[None, :],
            other=0.0,
        )
        right = tl.load(
            b + column[None, :] * b_row + k[:, None] * b_column,
            mask=(column < columns)[None, :] & (k < width)[:, None],
            other=0.0,
        )
        total = tl.dot(left, right, total, input_precision="ieee")
    if BIAS:
        total += tl.load(bias + column, mask=column < columns, other=0.0)[None, :]
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(y + row[:, None] * columns + column[None, :], total, mask=inside)
