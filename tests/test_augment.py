import math
from collections import Counter

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edbl.data.augment import Transform, draw_boxes, scaled
from tests.vectors import seeded

CPU = torch.device("cpu")
MEAN, STD = (0.3, 0.5, 0.7), (0.2, 0.25, 0.4)


def transform(augment: str, pad: int = 2, channels: int = 3) -> Transform:
    return Transform.of(augment, pad, MEAN[:channels], STD[:channels], CPU)


def levels(x: Tensor) -> Tensor:
    """Undo the normalisation: return the 0..255 levels of images that went through a transform."""
    channels = x.shape[1]
    mean, std = (torch.tensor(v[:channels]).view(-1, 1, 1) for v in (MEAN, STD))
    raw = (x * std + mean) * 255
    whole = raw.round()
    assert (raw - whole).abs().max() < 1e-2
    return whole.to(torch.uint8)


def distinct_images(n: int, channels: int, height: int, width: int) -> Tensor:
    """Return images without two equal or black pixels in a channel, so that any shift or mirroring shows."""
    generator = seeded(9)
    images = torch.empty(n, channels, height, width, dtype=torch.uint8)
    for k in range(n):
        for c in range(channels):
            pixels = 1 + torch.randperm(255, generator=generator)[: height * width]
            images[k, c] = pixels.view(height, width).to(torch.uint8)
    return images


def variants(image: Tensor, pad: int) -> dict[tuple[int, int, bool], Tensor]:
    """Return every crop of the black-padded image and its mirror image, by offset of rows and columns."""
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * pad, width + 2 * pad, dtype=torch.uint8)
    padded[:, pad : pad + height, pad : pad + width] = image
    found = {}
    for row in range(2 * pad + 1):
        for column in range(2 * pad + 1):
            crop = padded[:, row : row + height, column : column + width]
            mirrored = crop.clone()
            for j in range(width):
                mirrored[:, :, j] = crop[:, :, width - 1 - j]
            found[row, column, False], found[row, column, True] = crop, mirrored
    return found


def recover(images: Tensor, changed: Tensor, pad: int) -> list[tuple[int, int, bool]]:
    """Return what happened to each image, by trying everything that could have."""
    happened = []
    for image, result in zip(images, changed, strict=True):
        fits = [how for how, variant in variants(image, pad).items() if torch.equal(variant, result)]
        assert len(fits) == 1
        happened += fits
    return happened


def recover_one(image: Tensor, changed: Tensor, pad: int) -> Counter[tuple[int, int, bool]]:
    """Return how often each thing happened to many copies of one image."""
    known = {variant.numpy().tobytes(): how for how, variant in variants(image, pad).items()}
    return Counter(known[result.numpy().tobytes()] for result in changed)


@pytest.mark.parametrize(("channels", "height", "width"), [(3, 8, 8), (1, 8, 8), (3, 5, 9), (2, 9, 4)])
@pytest.mark.parametrize("pad", [1, 3])
def test_crop_and_flip_are_a_crop_and_a_flip(channels: int, height: int, width: int, pad: int) -> None:
    images = distinct_images(60, channels, height, width)
    changed = transform("crop-flip", pad, channels).augment(images, seeded())
    assert changed.shape == images.shape
    happened = recover(images, levels(changed), pad)
    assert len(set(happened)) > 10


def test_all_offsets_and_both_mirror_states_occur_evenly() -> None:
    pad, n = 2, 2500
    images = distinct_images(1, 1, 6, 6).expand(n, -1, -1, -1)
    happened = recover_one(images[0], levels(transform("crop-flip", pad, 1).augment(images, seeded())), pad)
    assert len(happened) == 2 * (2 * pad + 1) ** 2  # 50 of each are to be expected
    assert all(20 <= count <= 85 for count in happened.values())
    flipped = sum(count for (_, _, mirrored), count in happened.items() if mirrored)
    assert abs(flipped - n / 2) < 5 * (n / 4) ** 0.5


def test_padding_of_4_as_in_the_paper() -> None:
    n = 6000
    images = distinct_images(1, 1, 10, 10).expand(n, -1, -1, -1)
    happened = recover_one(images[0], levels(transform("crop", 4, 1).augment(images, seeded())), 4)
    assert {(row, column) for row, column, _ in happened} == {(r, c) for r in range(9) for c in range(9)}


def test_crop_alone_never_mirrors() -> None:
    images = distinct_images(100, 3, 7, 7)
    happened = recover(images, levels(transform("crop").augment(images, seeded())), 2)
    assert not any(mirrored for _, _, mirrored in happened)
    assert len({row for row, _, _ in happened}) == len({column for _, column, _ in happened}) == 5


@pytest.mark.parametrize("width", [4, 7])
def test_flip_alone_never_shifts(width: int) -> None:
    images = distinct_images(100, 3, 5, width)
    happened = recover(images, levels(transform("flip", pad=2).augment(images, seeded())), 2)
    assert set(happened) == {(2, 2, False), (2, 2, True)}


def test_crop_without_padding_changes_nothing() -> None:
    images = distinct_images(20, 3, 5, 5)
    assert torch.equal(levels(transform("crop", pad=0).augment(images, seeded())), images)


def test_padding_is_black_before_normalisation() -> None:
    white = torch.full((300, 3, 6, 6), 255, dtype=torch.uint8)
    changed = transform("crop-flip", 2).augment(white, seeded())
    for c in range(3):
        black, full = (0 - MEAN[c]) / STD[c], (1 - MEAN[c]) / STD[c]
        values = changed[:, c].unique()
        torch.testing.assert_close(values, torch.tensor([black, full]))


@pytest.mark.parametrize("augment", ["none", "crop-flip", "flip"])
def test_normalise_is_per_channel(augment: str) -> None:
    images = distinct_images(4, 3, 5, 6)
    normal = transform(augment).normalise(images)
    assert normal.dtype == torch.float32
    for k in range(4):
        for c in range(3):
            expected = (images[k, c].float() / 255 - MEAN[c]) / STD[c]
            torch.testing.assert_close(normal[k, c], expected)


def test_images_get_brighter_and_darker_up_to_white() -> None:
    images = torch.tensor([10, 200, 255], dtype=torch.uint8).view(1, 1, 1, 3).expand(500, -1, -1, -1)
    brighter = Transform.of("none", 0, (0.0,), (1 / 255,), CPU, brightness=0.5).augment(images, seeded()).squeeze()
    factor = brighter[:, 0] / 10
    assert 0.5 <= factor.min() < 0.52
    assert 1.48 < factor.max() <= 1.5
    torch.testing.assert_close(brighter[:, 1], (200 * factor).clamp(max=255))
    torch.testing.assert_close(brighter[:, 2], (255 * factor).clamp(max=255))


@pytest.mark.parametrize("side", [1, 4, 5, 16])
def test_cutout_blanks_a_square_wherever_its_centre_falls(side: int) -> None:
    images = distinct_images(1, 3, 7, 9).expand(3000, -1, -1, -1)
    plain = transform("none")
    cut = Transform.of("none", 0, MEAN, STD, CPU, cutout=side).augment(images, seeded())
    found = set()
    for changed, whole in zip(cut, plain.normalise(images), strict=True):
        blank = (changed == 0).all(0)
        assert torch.equal(changed[:, ~blank], whole[:, ~blank])
        found.add(tuple(blank.flatten().tolist()))
    expected = set()
    for row in range(7):
        for column in range(9):
            mask = torch.zeros(7, 9, dtype=torch.bool)
            top, left = row - side // 2, column - side // 2
            mask[max(0, top) : top + side, max(0, left) : left + side] = True
            expected.add(tuple(mask.flatten().tolist()))
    assert found == expected


def test_none_is_pure_normalisation() -> None:
    images = distinct_images(30, 3, 5, 5)
    plain, generator = transform("none"), seeded()
    before = generator.get_state()
    assert torch.equal(plain.augment(images, generator), plain.normalise(images))
    assert torch.equal(generator.get_state(), before)


def test_statistics_of_one_channel_serve_all() -> None:
    images = distinct_images(3, 3, 4, 4)
    normal = Transform.of("none", 0, (0.5,), (0.25,), CPU).normalise(images)
    torch.testing.assert_close(normal, (images.float() / 255 - 0.5) / 0.25)


@pytest.mark.parametrize("augment", ["crop-flip", "crop", "flip", "none"])
def test_vectors_pass_unchanged(augment: str) -> None:
    vectors = torch.randn(7, 12, generator=seeded())
    assert torch.equal(transform(augment).augment(vectors, seeded()), vectors)
    assert torch.equal(transform(augment).normalise(vectors), vectors)


def test_images_are_changed_independently_and_by_seed() -> None:
    images = distinct_images(1, 1, 6, 6).expand(200, -1, -1, -1)
    change = transform("crop-flip", 2, 1)
    first, again, other = (change.augment(images, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(first.unique(dim=0)) > 40
    generator = seeded(1)
    assert not torch.equal(change.augment(images, generator), change.augment(images, generator))


def test_input_is_left_alone() -> None:
    images = distinct_images(5, 3, 6, 6)
    before = images.clone()
    transform("crop-flip").augment(images, seeded())
    assert torch.equal(images, before)


def test_parts_are_drawn_as_torchvision_draws_them() -> None:
    """A literal transcription of `RandomResizedCrop.get_params`, fed with the same uniform numbers."""
    shape = (50, 3, 40, 40)
    drawn = torch.rand(4, 10, 50, generator=seeded(3))
    boxes = draw_boxes(shape, seeded(3))
    tries = []
    for image in range(50):
        for number in range(10):
            size, form, across, down = drawn[:, number, image]
            area = 1600 * (0.08 + 0.92 * size)
            low, high = torch.log(torch.tensor([3 / 4, 4 / 3]))
            ratio = torch.exp(low + (high - low) * form)
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if w <= 40 and h <= 40:
                tries.append(number)
                assert boxes[:, image].tolist() == [int(across * (40 - w + 1)), int(down * (40 - h + 1)), w, h]
                break
        else:
            assert boxes[:, image].tolist() == [0, 0, 40, 40]
    assert len(set(tries)) > 1


def test_parts_are_scaled_as_pytorch_scales_them() -> None:
    x = torch.randint(0, 256, (3, 2, 20, 20), dtype=torch.uint8, generator=seeded())
    whole = torch.tensor([[0.0, 0.0, 20.0, 20.0]] * 3).T
    flipped = torch.tensor([[True], [False], [True]])
    wanted = F.interpolate(x.float(), (12, 12), mode="bilinear", align_corners=False)
    torch.testing.assert_close(scaled(x, whole, None, 12), wanted, rtol=0, atol=1e-3)
    mirrored = wanted.where(~flipped.view(-1, 1, 1, 1), wanted.flip(3))
    torch.testing.assert_close(scaled(x, whole, flipped, 12), mirrored, rtol=0, atol=1e-3)
    part = torch.tensor([[4.0, 6.0, 10.0, 8.0]] * 3).T
    inner = F.interpolate(x[:, :, 6:14, 4:14].float(), (16, 16), mode="bilinear", align_corners=False)
    found = scaled(x, part, None, 16)[:, :, 1:-1, 1:-1]  # at its edge a part has neighbours, which its copy lacks
    torch.testing.assert_close(found, inner[:, :, 1:-1, 1:-1], rtol=0, atol=1e-3)


def test_what_the_network_sees_of_larger_images() -> None:
    x = torch.randint(0, 256, (4, 3, 20, 20), dtype=torch.uint8, generator=seeded())
    resized = Transform.of("resize-flip", 0, (0.5,), (0.25,), CPU, view=12)
    assert resized.seen((3, 20, 20)) == (3, 12, 12)
    assert torch.equal(resized.normalise(x), (x[:, :, 4:16, 4:16].float() - 127.5) / 63.75)
    assert resized.augment(x, seeded()).shape == (4, 3, 12, 12)
    plain = Transform.of("flip", 0, (0.5,), (0.25,), CPU, view=12)
    seen = plain.augment(x, seeded())
    centre = resized.normalise(x)
    assert all(
        torch.equal(one, other) or torch.equal(one, other.flip(2)) for one, other in zip(seen, centre, strict=True)
    )


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("augment", ["crop-flip-trivial", "crop-flip", "crop", "flip", "none"])
@pytest.mark.parametrize(("brightness", "cutout"), [(0.0, 0), (0.3, 0), (0.0, 4)])
def test_a_cpu_gives_the_bits_and_the_layout_of_other_devices(
    augment: str, channels: int, brightness: float, cutout: int
) -> None:
    for n, height, width, pad in ((256, 7, 9, 2), (1, 8, 8, 3), (37, 1, 5, 0), (2, 6, 6, 7)):
        change = Transform.of(augment, pad, MEAN[:channels], STD[:channels], CPU, brightness, cutout)
        images = torch.randint(0, 256, (n, channels, height, width), dtype=torch.uint8, generator=seeded(n))
        changes = change.draw(images, seeded())
        here, there = change.change(images, changes), change.change(images.short(), changes)  # which goes the usual way
        assert torch.equal(here, there)
        assert here.stride() == there.stride()
        for same in (images.contiguous(memory_format=torch.channels_last), images[:1].expand(n, -1, -1, -1)):
            assert torch.equal(change.change(same, changes), change.change(same.short(), changes))
