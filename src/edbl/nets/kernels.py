"""Triton kernels for small residual networks: 3x3 convolutions with what stands around them folded in.

Activations are ``[pixels, channels]``, the pixels of all images one after the other, row by row. The three taps of a
kernel row then lie side by side in memory, so a convolution is three matrix products: ``3 * channels`` values of the
row above, of the pixel's own row and of the row below. WIDTH is that number rounded up to a power of two.

``z`` is a raw convolution output, before batch normalisation; ``stats`` holds four rows for its normalisation: mean,
inverse standard deviation, and the scale and shift of ``z * scale + shift``. Sums over pixels are kept per program; the
program that ends last adds them up in a fixed order, so the same inputs give the same bits.
"""

import triton
import triton.language as tl


@triton.jit
def _pixel(p, SIDE: tl.constexpr):
    """Split pixel numbers into image, row and column."""
    return p // (SIDE * SIDE), p // SIDE % SIDE, p % SIDE


@triton.jit
def _patch(x, image, row, column, inside, SIDE: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """Load ``column - 1`` to ``column + 1`` of a row, all channels, zero where they lie outside."""
    k = tl.arange(0, WIDTH)
    across = column[:, None] + (k // CHANNELS - 1)[None, :]
    ok = (inside & (row >= 0) & (row < SIDE))[:, None] & (across >= 0) & (across < SIDE) & (k < 3 * CHANNELS)[None, :]
    start = ((image * SIDE + row) * SIDE + column - 1) * CHANNELS
    return tl.load(x + start[:, None] + k[None, :], mask=ok, other=0.0)


@triton.jit
def _convolve(
    x, w, image, row, column, inside,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, IN: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the convolution at some output pixels, ``[BLOCK, OUT]``."""
    k, out = tl.arange(0, WIDTH), tl.arange(0, OUT)
    total = tl.zeros([BLOCK, OUT], tl.float32)
    for above in tl.static_range(3):
        patch = _patch(x, image, row * STRIDE + above - 1, column * STRIDE, inside, SIDE, IN, WIDTH)
        weight = tl.load(w + (above * WIDTH + k[:, None]) * OUT + out[None, :])
        total = tl.dot(patch, weight, total)
    return total


@triton.jit
def _shortcut(x, image, row, column, inside, SIDE: tl.constexpr, OUT: tl.constexpr, MODE: tl.constexpr):
    """Return what a shortcut adds: the input (1), or option A's every other pixel between padding (2)."""
    out = tl.arange(0, OUT)
    if MODE == 1:
        start, channel, channels = ((image * SIDE + row) * SIDE + column) * OUT, out, OUT
    else:
        # The input has twice the side and half the channels; a quarter of the output's are padding on either side.
        start = ((image * 2 * SIDE + 2 * row) * 2 * SIDE + 2 * column) * (OUT // 2)
        channel, channels = out - OUT // 4, OUT // 2
    mask = inside[:, None] & (channel >= 0)[None, :] & (channel < channels)[None, :]
    return tl.load(x + start[:, None] + channel[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _last(sums, count, first, second, OUT: tl.constexpr, PARTS: tl.constexpr):
    """Store this program's sums; return whether it is the last to do so, and then all programs' sums."""
    out, part = tl.arange(0, OUT), tl.arange(0, PARTS)
    mine = sums + tl.program_id(0) * 2 * OUT
    tl.store(mine + out, first)
    tl.store(mine + OUT + out, second)
    tl.debug_barrier()
    programs = tl.num_programs(0)
    last = tl.atomic_add(count, 1, sem="acq_rel") == programs - 1
    if last:
        tl.store(count, 0)
        mask = (part < programs)[:, None] & (out >= 0)[None, :]
        place = sums + part[:, None] * 2 * OUT + out[None, :]
        first = tl.sum(tl.load(place, mask=mask, other=0.0, cache_modifier=".cg"), 0)
        second = tl.sum(tl.load(place + OUT, mask=mask, other=0.0, cache_modifier=".cg"), 0)
    return last, first, second


@triton.jit
def forward_kernel(
    x, w, z, sums, count, gamma, beta, running_mean, running_var, stats, pixels,
    SIDE_IN: tl.constexpr, SIDE_OUT: tl.constexpr, STRIDE: tl.constexpr,
    IN: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Convolve, and work out the normalisation of the output; update the running statistics."""
    out = tl.arange(0, OUT)
    first = tl.zeros([OUT], tl.float32)
    second = tl.zeros([OUT], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(pixels, BLOCK), tl.num_programs(0)):
        p = tile * BLOCK + tl.arange(0, BLOCK)
        inside = p < pixels
        image, row, column = _pixel(p, SIDE_OUT)
        value = _convolve(x, w, image, row, column, inside, SIDE_IN, STRIDE, IN, WIDTH, OUT, BLOCK)
        value = value.to(z.dtype.element_ty)
        tl.store(z + p[:, None] * OUT + out[None, :], value, mask=inside[:, None])
        rounded = value.to(tl.float32)
        first += tl.sum(rounded, 0)
        second += tl.sum(rounded * rounded, 0)
    last, first, second = _last(sums, count, first, second, OUT, PARTS)
    if last:
        mean = first / pixels
        variance = tl.maximum(second / pixels - mean * mean, 0.0)
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
    z, stats, x, y, pixels, SIDE: tl.constexpr, OUT: tl.constexpr, MODE: tl.constexpr, BLOCK: tl.constexpr
):
    """Normalise, add the shortcut (MODE 1 or 2), rectify."""
    out = tl.arange(0, OUT)
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = p < pixels
    place = p[:, None] * OUT + out[None, :]
    raw = tl.load(z + place, mask=inside[:, None], other=0.0).to(tl.float32)
    total = raw * tl.load(stats + 2 * OUT + out)[None, :] + tl.load(stats + 3 * OUT + out)[None, :]
    if MODE > 0:
        image, row, column = _pixel(p, SIDE)
        total += _shortcut(x, image, row, column, inside, SIDE, OUT, MODE)
    tl.store(y + place, tl.maximum(total, 0.0).to(y.dtype.element_ty), mask=inside[:, None])


@triton.jit
def infer_kernel(
    x, w, bias, shortcut, y, pixels,
    SIDE_IN: tl.constexpr, SIDE_OUT: tl.constexpr, STRIDE: tl.constexpr,
    IN: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, MODE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Convolve with the normalisation folded into weight and bias, add the shortcut, rectify."""
    out = tl.arange(0, OUT)
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = p < pixels
    image, row, column = _pixel(p, SIDE_OUT)
    total = _convolve(x, w, image, row, column, inside, SIDE_IN, STRIDE, IN, WIDTH, OUT, BLOCK)
    total += tl.load(bias + out)[None, :]
    if MODE > 0:
        total += _shortcut(shortcut, image, row, column, inside, SIDE_OUT, OUT, MODE)
    value = tl.maximum(total, 0.0).to(y.dtype.element_ty)
    tl.store(y + p[:, None] * OUT + out[None, :], value, mask=inside[:, None])


@triton.jit
def _normalise_backward(
    sums, count, first, second, gamma, stats, dgamma, dbeta, factors, pixels, OUT: tl.constexpr, PARTS: tl.constexpr
):
    """Turn sums into gradients of gamma and beta, and ``factors`` a, b, c with ``dz = a g + b z + c``."""
    last, first, second = _last(sums, count, first, second, OUT, PARTS)
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
    gradient, y, z, stats, g, sums, count, gamma, dgamma, dbeta, factors, pixels,
    SIDE: tl.constexpr, OUT: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Spread the gradient of average pooling over the pixels of the last block's output; then as `data_kernel`."""
    out = tl.arange(0, OUT)
    mean, inverse = tl.load(stats + out), tl.load(stats + OUT + out)
    first = tl.zeros([OUT], tl.float32)
    second = tl.zeros([OUT], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(pixels, BLOCK), tl.num_programs(0)):
        p = tile * BLOCK + tl.arange(0, BLOCK)
        mask = (p < pixels)[:, None] & (out >= 0)[None, :]
        place = p[:, None] * OUT + out[None, :]
        pooled = tl.load(gradient + (p // (SIDE * SIDE))[:, None] * OUT + out[None, :], mask=mask, other=0.0)
        alive = tl.load(y + place, mask=mask, other=0.0) > 0
        value = tl.where(alive, pooled.to(tl.float32) / (SIDE * SIDE), 0.0).to(g.dtype.element_ty)
        tl.store(g + place, value, mask=mask)
        rounded = value.to(tl.float32)
        raw = tl.load(z + place, mask=mask, other=0.0).to(tl.float32)
        first += tl.sum(rounded, 0)
        second += tl.sum(rounded * (raw - mean[None, :]) * inverse[None, :], 0)
    _normalise_backward(sums, count, first, second, gamma, stats, dgamma, dbeta, factors, pixels, OUT, PARTS)


@triton.jit
def data_kernel(
    dz, w, shortcut, y, z, stats, g, sums, count, gamma, dgamma, dbeta, factors, pixels,
    SIDE_IN: tl.constexpr, SIDE_OUT: tl.constexpr, STRIDE: tl.constexpr,
    IN: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, MODE: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Take a gradient back through a convolution, the shortcut beside it, and the ReLU and normalisation before it.

    ``y`` is the output of that ReLU, ``z`` and ``stats`` belong to that normalisation. ``g`` is the gradient at the
    normalisation's output.
    """
    channel, out = tl.arange(0, IN), tl.arange(0, OUT)
    mean, inverse = tl.load(stats + channel), tl.load(stats + IN + channel)
    first = tl.zeros([IN], tl.float32)
    second = tl.zeros([IN], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(pixels, BLOCK), tl.num_programs(0)):
        p = tile * BLOCK + tl.arange(0, BLOCK)
        inside = p < pixels
        image, row, column = _pixel(p, SIDE_IN)
        if STRIDE == 1:
            # Mirrored weights turn this way back into a way forward.
            total = _convolve(dz, w, image, row, column, inside, SIDE_OUT, 1, OUT, WIDTH, IN, BLOCK)
        else:
            total = tl.zeros([BLOCK, IN], tl.float32)
            for tap in tl.static_range(9):
                above, left = row + tap // 3 - 1, column + tap % 3 - 1
                ok = inside & (above >= 0) & (left >= 0) & (above % STRIDE == 0) & (left % STRIDE == 0)
                ok = ok & (above // STRIDE < SIDE_OUT) & (left // STRIDE < SIDE_OUT)
                start = ((image * SIDE_OUT + above // STRIDE) * SIDE_OUT + left // STRIDE) * OUT
                a = tl.load(dz + start[:, None] + out[None, :], mask=ok[:, None], other=0.0)
                k = (tap // 3) * WIDTH + (tap % 3) * OUT + out
                total = tl.dot(a, tl.load(w + k[:, None] * IN + channel[None, :]), total)
        place = p[:, None] * IN + channel[None, :]
        mask = inside[:, None] & (channel >= 0)[None, :]
        if MODE == 1:
            total += tl.load(shortcut + place, mask=mask, other=0.0).to(tl.float32)
        if MODE == 2:
            even = mask & ((row % 2 == 0) & (column % 2 == 0))[:, None]
            start = ((image * SIDE_OUT + row // 2) * SIDE_OUT + column // 2) * OUT + OUT // 4
            total += tl.load(shortcut + start[:, None] + channel[None, :], mask=even, other=0.0).to(tl.float32)
        alive = tl.load(y + place, mask=mask, other=0.0) > 0
        value = tl.where(alive, total, 0.0).to(g.dtype.element_ty)
        tl.store(g + place, value, mask=mask)
        rounded = value.to(tl.float32)
        raw = tl.load(z + place, mask=mask, other=0.0).to(tl.float32)
        first += tl.sum(rounded, 0)
        second += tl.sum(rounded * (raw - mean[None, :]) * inverse[None, :], 0)
    _normalise_backward(sums, count, first, second, gamma, stats, dgamma, dbeta, factors, pixels, IN, PARTS)


@triton.jit
def weight_kernel(
    x, g, z, factors, dz, dw, pixels, columns,
    SIDE_IN: tl.constexpr, SIDE_OUT: tl.constexpr, STRIDE: tl.constexpr,
    IN: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradient of a convolution's weights: one kernel row and one share of the pixels per program.

    On the way, ``dz = a g + b z + c`` takes the gradient back through the normalisation; `data_kernel` reads it.
    ``dw`` is ``[shares, columns]``: each program writes its sums beside those of the other layers.
    """
    k, out = tl.arange(0, WIDTH), tl.arange(0, OUT)
    above = tl.program_id(1)
    a, b, c = tl.load(factors + out), tl.load(factors + OUT + out), tl.load(factors + 2 * OUT + out)
    total = tl.zeros([WIDTH, OUT], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(pixels, BLOCK), tl.num_programs(0)):
        p = tile * BLOCK + tl.arange(0, BLOCK)
        inside = p < pixels
        image, row, column = _pixel(p, SIDE_OUT)
        place = p[:, None] * OUT + out[None, :]
        mask = inside[:, None] & (out >= 0)[None, :]
        gradient = tl.load(g + place, mask=mask, other=0.0)
        raw = tl.load(z + place, mask=mask, other=0.0).to(tl.float32)
        value = gradient.to(tl.float32) * a[None, :] + raw * b[None, :] + c[None, :]
        value = tl.where(mask, value, 0.0).to(gradient.dtype)
        if above == 1:
            tl.store(dz + place, value, mask=mask)
        patch = _patch(x, image, row * STRIDE + above - 1, column * STRIDE, inside, SIDE_IN, IN, WIDTH)
        total = tl.dot(tl.trans(patch), value, total)
    place = (above * WIDTH + k[:, None]) * OUT + out[None, :]
    tl.store(dw + tl.program_id(0) * columns + place, total)
