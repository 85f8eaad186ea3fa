"""AutoAugment: its policy against the literal table of the paper, its changes against Pillow's."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from edbl.data.augment import Transform
from edbl.data.auto import OPS, POLICY, change, policy

# As torchvision, and FOSTER's own code, have it: operation, probability, magnitude, which some have no use for.
PAPER = """
Invert 0.1 -, Contrast 0.2 6
Rotate 0.7 2, TranslateX 0.3 9
Sharpness 0.8 1, Sharpness 0.9 3
ShearY 0.5 8, TranslateY 0.7 9
AutoContrast 0.5 -, Equalize 0.9 -
ShearY 0.2 7, Posterize 0.3 7
Color 0.4 3, Brightness 0.6 7
Sharpness 0.3 9, Brightness 0.7 9
Equalize 0.6 -, Equalize 0.5 -
Contrast 0.6 7, Sharpness 0.6 5
Color 0.7 7, TranslateX 0.5 8
Equalize 0.3 -, AutoContrast 0.4 -
TranslateY 0.4 3, Sharpness 0.2 6
Brightness 0.9 6, Color 0.2 8
Solarize 0.5 2, Invert 0.0 -
Equalize 0.2 -, AutoContrast 0.6 -
Equalize 0.2 -, Equalize 0.6 -
Color 0.9 9, Equalize 0.6 -
AutoContrast 0.8 -, Solarize 0.2 8
Brightness 0.1 3, Color 0.7 0
Solarize 0.4 5, AutoContrast 0.9 -
TranslateY 0.9 9, TranslateY 0.7 9
AutoContrast 0.9 -, Solarize 0.8 3
Equalize 0.8 -, Invert 0.1 -
TranslateY 0.7 9, AutoContrast 0.9 -
"""
NAMES = {
    **{"Invert": "invert", "Contrast": "mean-contrast", "Rotate": "turn", "TranslateX": "shift-x", "Color": "colour"},
    **{"TranslateY": "shift-y", "Sharpness": "sharpness", "ShearY": "shear-y", "AutoContrast": "auto-contrast"},
    **{"Equalize": "equalise", "Posterize": "bits", "Brightness": "brightness", "Solarize": "solarise"},
}
CPU = torch.device("cpu")


def test_the_policy_is_the_papers() -> None:
    lines = PAPER.strip().splitlines()
    assert len(lines) == len(POLICY) == 25
    for line, pair in zip(lines, POLICY, strict=True):
        for text, (name, chance, level) in zip(line.split(", "), pair, strict=True):
            told, share, magnitude = text.split()
            assert (NAMES[told], float(share)) == (name, chance)
            assert magnitude in ("-", str(level))


def images(channels: int = 3) -> Tensor:
    x = torch.randint(0, 256, (4, channels, 12, 11), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    x[1] //= 4  # dark, and few levels
    x[2] = 7  # all pixels the same
    return x


def once(x: Tensor, name: str, strength: float) -> Tensor:
    """Return images that are changed by one change and no other."""
    table = torch.zeros(1, 2, 4)
    table[0, 0] = torch.tensor([OPS.index(name), 1.0, strength, 0.0])
    return change(x, torch.zeros(len(x), dtype=torch.int64), torch.full((4, len(x)), 0.5), table)


@pytest.mark.parametrize("strength", [-1.0, -0.3, 0.0, 0.6, 1.0])
@pytest.mark.parametrize("name", ["sharpness", "mean-contrast", "equalise", "auto-contrast"])
def test_changes_are_pillows(name: str, strength: float) -> None:
    found = once(images(), name, strength).permute(0, 2, 3, 1)
    for x, changed in zip(images(), found, strict=True):
        image = Image.fromarray(x.permute(1, 2, 0).numpy())
        expected = {
            "sharpness": lambda: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * strength),  # noqa: B023
            "mean-contrast": lambda: ImageEnhance.Contrast(image).enhance(1 + 0.9 * strength),  # noqa: B023
            "equalise": lambda: ImageOps.equalize(image),  # noqa: B023
            "auto-contrast": lambda: ImageOps.autocontrast(image),  # noqa: B023
        }[name]()
        told = torch.from_numpy(np.array(expected)).float()
        assert (changed - told).abs().max() <= 1  # Pillow cuts off what is rounded here


def test_changes_come_as_often_and_as_strong_as_the_policy_says() -> None:
    table = policy(CPU)
    assert table.shape == (25, 2, 4)
    assert table[0, 0].tolist() == pytest.approx([OPS.index("invert"), 0.1, 1.0, 0.0])
    assert table[1, 1].tolist() == pytest.approx([OPS.index("shift-x"), 0.3, 150 / 331 / (10 / 32), 1.0])
    assert table[14, 0].tolist() == pytest.approx([OPS.index("invert"), 0.5, 2 / 9, 0.0])
    assert table[5, 1].tolist() == pytest.approx([OPS.index("bits"), 0.3, 7 / 9, 0.0])
    x = torch.full((2, 1, 4, 4), 100, dtype=torch.uint8)
    drawn = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.4, 0.6], [0.0, 0.0]])  # the first happens, either way
    pair = torch.tensor([13, 13])  # brightness at 6
    levels = change(x, pair, drawn, table)[:, 0, 0, 0].tolist()
    assert levels == [40.0, 160.0]


def test_a_transform_draws_pairs_and_the_same_again() -> None:
    transform = Transform.of("crop-flip-auto", 4, (0.5,), (0.25,), CPU)
    x = images().expand(4, 3, 12, 11)
    one, again, other = (transform.augment(x, torch.Generator().manual_seed(k)) for k in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    changes = transform.draw(torch.zeros(10_000, 1, 2, 2), torch.Generator().manual_seed(1))
    assert changes.op is not None
    assert torch.bincount(changes.op, minlength=25).min() > 300
    assert one.isfinite().all()
