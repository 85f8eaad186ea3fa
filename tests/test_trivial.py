"""TrivialAugment against pixel-by-pixel transcriptions."""

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from edbl.data.augment import Transform
from edbl.data.trivial import OPS, change

HEIGHT, WIDTH = 9, 12
STRENGTHS = (-1.0, -0.62, -0.13, 0.0, 0.21, 0.55, 1.0)


def images(channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    shape = (len(STRENGTHS), channels, HEIGHT, WIDTH)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def changed(x: Tensor, name: str) -> Tensor:
    return change(x, torch.full((len(x),), OPS.index(name)), torch.tensor(STRENGTHS))


def source(name: str, s: float, row: int, column: int) -> tuple[int, int]:
    """Return where a pixel comes from."""
    y, x = row - (HEIGHT - 1) / 2, column - (WIDTH - 1) / 2
    if name == "shear-x":
        x += 0.3 * s * y
    if name == "shear-y":
        y += 0.3 * s * x
    if name == "shift-x":
        x += 10 / 32 * WIDTH * s
    if name == "shift-y":
        y += 10 / 32 * HEIGHT * s
    if name == "turn":
        angle = math.radians(30) * s
        x, y = math.cos(angle) * x - math.sin(angle) * y, math.sin(angle) * x + math.cos(angle) * y
    return math.floor(y + HEIGHT / 2), math.floor(x + WIDTH / 2)


@pytest.mark.parametrize("name", ["none", "shear-x", "shear-y", "shift-x", "shift-y", "turn"])
def test_pixels_come_from_where_they_should(name: str) -> None:
    x = images()
    result = changed(x, name)
    for k, s in enumerate(STRENGTHS):
        for row in range(HEIGHT):
            for column in range(WIDTH):
                i, j = source(name, s, row, column)
                inside = 0 <= i < HEIGHT and 0 <= j < WIDTH
                expected = x[k, :, i, j].float() if inside else torch.zeros(3)
                assert torch.equal(result[k, :, row, column], expected), (s, row, column)
    if name != "none":
        assert not torch.equal(result[0], result[-1]), "the sign is a direction"


def tone(name: str, s: float, pixel: list[float]) -> list[float]:
    """Return a pixel's levels after a change."""
    if name == "brightness":
        pixel = [level * (1 + 0.9 * s) for level in pixel]
    if name == "colour":
        grey = 0.299 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2]
        pixel = [grey + (1 + 0.9 * s) * (level - grey) for level in pixel]
    if name == "contrast":
        pixel = [127.5 + (1 + 0.9 * s) * (level - 127.5) for level in pixel]
    if name == "bits":
        pixel = [int(level) >> round(4 * abs(s)) << round(4 * abs(s)) for level in pixel]
    if name == "invert":
        pixel = [255 - level if level >= 256 * (1 - abs(s)) else level for level in pixel]
    return [min(max(level, 0), 255) for level in pixel]


@pytest.mark.parametrize("name", ["none", "brightness", "colour", "contrast", "bits", "invert"])
def test_levels_change_as_they_should(name: str) -> None:
    x = images()
    result = changed(x, name).permute(0, 2, 3, 1)
    expected = [
        [[tone(name, s, pixel) for pixel in row] for row in image.permute(1, 2, 0).tolist()]
        for s, image in zip(STRENGTHS, x.float(), strict=True)
    ]
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float32), atol=1e-3, rtol=0)
    still = STRENGTHS.index(0.0)
    torch.testing.assert_close(result[still], x[still].permute(1, 2, 0).float(), atol=1e-3, rtol=0)


def test_colour_does_nothing_to_grey_images() -> None:
    x = images(channels=1)
    assert torch.equal(changed(x, "colour"), x.float())


def test_each_change_is_as_likely_as_any_other() -> None:
    transform = Transform.of("crop-flip-trivial", 4, (0.5,), (0.25,), torch.device("cpu"))
    changes = transform.draw(torch.zeros(22_000, 1, 2, 2), torch.Generator().manual_seed(1))
    assert changes.op is not None
    assert changes.strength is not None
    counts = Counter(changes.op.tolist())
    assert set(counts) == set(range(len(OPS)))
    assert all(1800 < count < 2200 for count in counts.values())
    assert changes.strength.min() < -0.99
    assert changes.strength.max() > 0.99
    assert abs(changes.strength.mean()) < 0.02
