"""Small drawings of fruit, each a little different: photos for tests of the page, and for its screenshots."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SIDE = 640  # drawn larger than saved, for soft edges
Draw = ImageDraw.ImageDraw
Colour = tuple[int, int, int]
Drawing = Callable[[Draw, np.random.Generator], None]


def shade(colour: Colour, change: float) -> Colour:
    red, green, blue = (int(min(255, max(0, part * change))) for part in colour)
    return red, green, blue


def around(x: float, y: float, width: float, height: float) -> tuple[float, float, float, float]:
    return (x - width, y - height, x + width, y + height)


def body(draw: Draw, shape: Callable[[float], list[tuple[float, float]]], colour: Colour) -> None:
    """Draw a shape in bands from dark at its rim to light within, as if lit from the upper left."""
    for step in range(24):
        part = 1 - step / 26
        points = [(x - 70 * (1 - part), y - 80 * (1 - part)) for x, y in shape(part)]
        draw.polygon(points, fill=shade(colour, 0.72 + 0.45 * (1 - part)))


def apple(draw: Draw, rng: np.random.Generator) -> None:
    red = (205, int(rng.integers(30, 70)), 50)
    turns = np.linspace(0, 2 * math.pi, 90)

    def shape(part: float) -> list[tuple[float, float]]:
        size = [190 * part * (1 - 0.22 * max(0.0, -math.sin(turn)) ** 7) for turn in turns]
        return [(320 + 1.05 * s * math.cos(t), 345 + s * math.sin(t)) for s, t in zip(size, turns, strict=True)]

    body(draw, shape, red)
    draw.line([(322, 210), (335, 165), (352, 140)], fill=(96, 62, 38), width=13, joint="curve")
    draw.ellipse(around(400, 160, 52, 20), fill=(96, 150, 62))


def lemon(draw: Draw, rng: np.random.Generator) -> None:
    yellow = (240, int(rng.integers(195, 222)), 60)
    turns = np.linspace(0, 2 * math.pi, 120)

    def shape(part: float) -> list[tuple[float, float]]:
        width = [part * (205 + 55 * abs(math.cos(turn)) ** 22) for turn in turns]
        return [(320 + w * math.cos(t), 330 + 145 * part * math.sin(t)) for w, t in zip(width, turns, strict=True)]

    body(draw, shape, yellow)


def grapes(draw: Draw, rng: np.random.Generator) -> None:
    violet = (int(rng.integers(88, 112)), 58, 128)
    draw.line([(320, 80), (320, 190)], fill=(104, 84, 50), width=12)
    draw.polygon([(330, 120), (420, 84), (486, 130), (440, 190), (372, 178)], fill=(88, 140, 66))
    for row, many in enumerate((4, 5, 4, 3, 2, 1)):
        for k in range(many):
            x, y = 320 + (k - (many - 1) / 2) * 76 + rng.normal(0, 4), 205 + row * 62

            def shape(part: float, x: float = x, y: float = y) -> list[tuple[float, float]]:
                turns = np.linspace(0, 2 * math.pi, 40)
                off = 1 - part
                return [(x + 52 * off + 43 * part * math.cos(t), y + 60 * off + 43 * part * math.sin(t)) for t in turns]

            body(draw, shape, violet)


def pear(draw: Draw, rng: np.random.Generator) -> None:
    green = (160, int(rng.integers(180, 200)), 70)
    turns = np.linspace(0, 2 * math.pi, 120)

    def shape(part: float) -> list[tuple[float, float]]:
        wide = [150 * part * (0.72 + 0.28 * math.sin(turn)) ** 0.8 for turn in turns]
        return [
            (320 + w * 1.15 * math.cos(t), 330 + 205 * part * math.sin(t)) for w, t in zip(wide, turns, strict=True)
        ]

    body(draw, shape, green)
    draw.line([(320, 145), (330, 105), (345, 85)], fill=(96, 62, 38), width=12, joint="curve")


FRUIT: dict[str, Drawing] = {"apple": apple, "lemon": lemon, "grapes": grapes, "pear": pear}


def picture(kind: str, number: int) -> Image.Image:
    """Return the same drawing for the same number: turned, moved, on a table of some colour."""
    rng = np.random.default_rng([sorted(FRUIT).index(kind), number])
    cloth = shade((226, 214, 198), float(rng.uniform(0.82, 1.1)))
    tint = [int(part + shift) for part, shift in zip(cloth, rng.integers(-14, 14, 3), strict=True)]
    ground = Image.new("RGB", (SIDE, SIDE), tuple(min(255, part) for part in tint))
    lying = Image.new("RGBA", (SIDE, SIDE), (0, 0, 0, 0))
    FRUIT[kind](ImageDraw.Draw(lying), rng)
    size = int(SIDE * rng.uniform(0.78, 1.0))
    lying = lying.resize((size, size)).rotate(float(rng.uniform(-35, 35)), Image.Resampling.BICUBIC)
    left, top = (int(SIDE / 2 - size / 2 + rng.integers(-35, 35)) for _ in range(2))
    alpha = lying.getchannel("A")
    shadow = Image.new("L", (SIDE, SIDE), 0)
    shadow.paste(alpha.point(lambda a: a // 3), (left + 22, top + 34))
    ground.paste((70, 60, 55), (0, 0), shadow.filter(ImageFilter.GaussianBlur(22)))
    ground.paste(lying, (left, top), lying)
    grain = rng.normal(0, 5, (SIDE, SIDE, 1))
    noisy = np.asarray(ground, np.float64) + grain
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).resize((SIDE // 2, SIDE // 2), Image.Resampling.LANCZOS)


def write_fruit(folder: Path, kind: str, numbers: Sequence[int]) -> list[Path]:
    """Write drawings as JPEG files, but for those that are there, and return where they are."""
    place = folder / kind
    place.mkdir(parents=True, exist_ok=True)
    paths = [place / f"{kind} {number:02}.jpg" for number in numbers]
    for path, number in zip(paths, numbers, strict=True):
        if not path.exists():
            picture(kind, number).save(path, quality=88)
    return paths
