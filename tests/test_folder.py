import os
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images

from edbl.data import decoding
from edbl.data.decoding import decode
from edbl.data.folder import load_folder
from edbl.errors import EdblError

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
Colour = tuple[int, int, int]


def save(path: Path, colour: Colour = RED, size: tuple[int, int] = (8, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def fill(folder: Path, counts: dict[str, int]) -> None:
    """Write images whose red value is their number."""
    for name, count in counts.items():
        for k in range(count):
            save(folder / name / f"{k:02}.png", (k, 0, 0))


def reds(x: torch.Tensor) -> list[int]:
    return [int(v) for v in x[:, 0, 0, 0]]


def message(folder: Path, **options: int) -> str:
    with pytest.raises(EdblError) as caught:
        load_folder(folder, image_size=options.get("image_size", 8), skip_bad=bool(options.get("skip_bad")))
    text = str(caught.value)
    assert len(text.splitlines()) <= 2
    return text


@pytest.mark.parametrize("second", ["test", "val"])
def test_train_with_test_or_val(tmp_path: Path, second: str) -> None:
    fill(tmp_path / "pets" / "train", {"dog": 3, "cat": 2})
    fill(tmp_path / "pets" / second, {"cat": 1, "dog": 2})
    data = load_folder(tmp_path / "pets")
    assert data.name == "pets"
    assert data.classes == ("cat", "dog")
    assert data.train.x.shape == (5, 3, 32, 32)
    assert data.train.x.dtype == torch.uint8
    assert data.train.y.tolist() == [0, 0, 1, 1, 1]
    assert data.test.y.tolist() == [0, 1, 1]
    assert data.notes == ()


def test_test_is_preferred_to_val(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"a": 1, "b": 1})
    fill(tmp_path / "test", {"a": 1, "b": 1})
    fill(tmp_path / "val", {"a": 3, "b": 3})
    assert len(load_folder(tmp_path).test) == 2


@pytest.mark.parametrize("top", ["", "train"])
def test_without_test_folder_every_fifth_image_is_split_off(tmp_path: Path, top: str) -> None:
    fill(tmp_path / top, {"a": 11, "b": 3, "c": 5})
    data = load_folder(tmp_path, image_size=8)
    assert reds(data.test.x) == [4, 9, 2, 4]
    assert data.test.y.tolist() == [0, 0, 1, 2]
    assert reds(data.train.x) == [0, 1, 2, 3, 5, 6, 7, 8, 10, 0, 1, 0, 1, 2, 3]
    assert len(data.notes) == 1
    assert "there is no test folder: every 5th image of each class" in data.notes[0]
    assert "(15 train, 4 test)" in data.notes[0]


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    fill(tmp_path, {"train": 5, "plane": 5})
    data = load_folder(tmp_path)
    assert data.classes == ("plane", "train")
    assert len(data.notes) == 1  # on the split


def test_classes_beside_a_folder_train_with_folders_are_not_dropped(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"steam": 2, "diesel": 2})
    fill(tmp_path, {"car": 2, "bus": 2, ".hidden": 2})
    text = message(tmp_path)
    assert f"{tmp_path} has a folder 'train' with a folder per class, and beside it bus, car\n" in text
    assert "if 'train' is a class itself" in text


def test_one_image_cannot_be_split(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 5, "lonely": 1})
    assert "class 'lonely' has 1 readable image(s)" in message(tmp_path)


def test_hidden_files_are_ignored_and_nested_folders_followed(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 2, "b": 2, ".cache": 2})
    (tmp_path / "a" / ".hidden.png").write_bytes(b"")
    save(tmp_path / "a" / "more" / "deep" / "x.PNG")
    save(tmp_path / "a" / ".thumbs" / "x.png")
    (tmp_path / "b" / "readme.txt").write_text("no image")
    data = load_folder(tmp_path, image_size=8)
    assert data.classes == ("a", "b")
    assert (len(data.train), len(data.test)) == (3, 2)
    assert data.notes[1] == "1 file without an image extension ignored: b/readme.txt"


def test_what_lies_beside_the_classes_is_noted(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"a": 2, "b": 2})
    for second in ("test", "val"):
        fill(tmp_path / second, {"a": 1, "b": 1})
    save(tmp_path / "train" / "stray.png")
    save(tmp_path / "test" / "loose.jpg")
    save(tmp_path / "cover.png")
    (tmp_path / "readme.txt").write_text("no image")
    (tmp_path / "test" / "a" / "labels.csv").write_text("no image")
    (tmp_path / ".hidden.png").write_bytes(b"")
    data = load_folder(tmp_path, image_size=8)
    assert data.notes == (
        "folder val left out: there is a folder test",
        "3 images outside of class folders left out: cover.png, train/stray.png, test/loose.jpg",
        "2 files without an image extension ignored: readme.txt, test/a/labels.csv",
    )


@pytest.mark.parametrize("extension", ["jpg", "JPEG", "png", "webp", "bmp", "gif", "tif", "TIFF", "ppm", "pgm"])
def test_every_extension_is_read(tmp_path: Path, extension: str) -> None:
    fill(tmp_path, {"a": 2, "b": 1})
    (tmp_path / "b" / "x").parent.mkdir(exist_ok=True)
    grey = Image.new("L", (8, 8), 200)
    grey.save(tmp_path / "b" / f"x.{extension}")
    data = load_folder(tmp_path, image_size=8)
    assert data.test.y.tolist() == [0, 1]
    assert abs(int(data.test.x[1].float().mean()) - 200) <= 2


def test_missing_folder(tmp_path: Path) -> None:
    assert f"there is no folder {tmp_path / 'no'}" in message(tmp_path / "no")


def test_negative_image_size(tmp_path: Path) -> None:
    assert "image size must be 1 or more" in message(tmp_path, image_size=-1)


def test_too_few_classes(tmp_path: Path) -> None:
    assert "has 0 class folders, at least 2 are needed" in message(tmp_path)
    fill(tmp_path, {"a": 3})
    assert "has 1 class folder, at least 2 are needed" in message(tmp_path)
    assert "FOLDER/train/CLASS/" in message(tmp_path)


def test_test_folder_without_train_folder(tmp_path: Path) -> None:
    fill(tmp_path / "test", {"a": 3, "b": 3})
    assert "has a folder 'test' but no folder 'train'" in message(tmp_path)


def test_accents_may_be_written_in_two_ways(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"a": 3, "caf\u00e9": 3})
    fill(tmp_path / "test", {"a": 1, "cafe\u0301": 2})
    assert load_folder(tmp_path).test.y.tolist() == [0, 1, 1]


def test_test_class_that_is_not_in_train(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"a": 3, "b": 3})
    fill(tmp_path / "test", {"a": 3, "b": 3, "zebra": 1})
    assert message(tmp_path) == f"{tmp_path / 'test'} has classes that {tmp_path / 'train'} has not: zebra"


def test_train_class_without_test_images(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"a": 3, "b": 3})
    fill(tmp_path / "test", {"a": 3})
    assert "class 'b' has no test image" in message(tmp_path)
    (tmp_path / "test" / "b").mkdir()
    assert "class 'b' has no test image" in message(tmp_path)


def test_empty_class_folder(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "c").mkdir()
    text = message(tmp_path)
    assert f"class 'c' has no training image that can be read in {tmp_path / 'c'}" in text
    assert "files ending in jpg, jpeg, png" in text


@pytest.mark.parametrize("shape", [(20, 60), (90, 30), (5, 5), (4, 400)])
def test_the_short_side_is_scaled_and_the_centre_kept(tmp_path: Path, shape: tuple[int, int]) -> None:
    fill(tmp_path, {"a": 1, "b": 2})
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8))
    image.save(tmp_path / "a" / "zz.png")
    scale = 10 / min(shape)
    scaled = np.asarray(image.resize((round(shape[1] * scale), round(shape[0] * scale)), Image.Resampling.BICUBIC))
    top, left = (scaled.shape[0] - 10) // 2, (scaled.shape[1] - 10) // 2
    found = load_folder(tmp_path, image_size=10).test.x[0].permute(1, 2, 0).numpy()
    assert np.abs(found.astype(int) - scaled[top : top + 10, left : left + 10]).max() <= 1


def test_images_of_the_right_size_stay_as_they_are(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 1, "b": 2})
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a" / "zz.png")
    data = load_folder(tmp_path, image_size=16)
    assert np.array_equal(data.test.x[0].permute(1, 2, 0).numpy(), pixels)


def test_scaling_down_is_antialiased(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 1, "b": 2})
    checks = np.indices((64, 64)).sum(0) % 2 * 255
    Image.fromarray(checks.astype(np.uint8)).convert("RGB").save(tmp_path / "a" / "zz.png")
    data = load_folder(tmp_path, image_size=8)
    assert (data.test.x[0].int() - 127).abs().max() <= 3


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 1, "b": 2})
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:, 8:] = 255  # bright on the right, which orientation 6 (turn clockwise) makes the bottom
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "a" / "zz.png", exif=exif)
    x = load_folder(tmp_path, image_size=16).test.x[0]
    assert int(x[:, :8].max()) == 0
    assert int(x[:, 8:].min()) == 255


@pytest.mark.parametrize(("tag", "value"), [(0x011A, "72"), (0x0128, "in"), (0x0100, "8x8")])
def test_odd_tags_do_not_spoil_a_turned_photo(tmp_path: Path, tag: int, value: str) -> None:
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:, 8:] = 255
    entry = struct.pack("<HHI4s", tag, 2, len(value) + 1, value.encode())
    turned = struct.pack("<HHI4s", 0x0112, 3, 1, struct.pack("<HH", 6, 0))
    block = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 2) + b"".join(sorted([entry, turned])) + bytes(4)
    Image.fromarray(pixels).save(tmp_path / "odd.jpg", exif=block, quality=100)
    found = decode(tmp_path / "odd.jpg", 16).pixels
    assert found is not None
    assert found[:, :6].max() < 60
    assert found[:, 10:].min() > 190


@pytest.mark.parametrize("orientation", range(10))
def test_photos_are_turned_as_pillow_turns_them(tmp_path: Path, orientation: int) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 12, 3)).astype(np.uint8))
    exif = image.getexif()
    exif[0x0112] = orientation
    for end in ("png", "tif", "webp"):
        path = tmp_path / f"turned.{end}"
        image.save(path, exif=exif, lossless=True)  # which PNG and TIFF are anyway
        with Image.open(path) as stored:
            right = np.asarray(ImageOps.exif_transpose(stored).convert("RGB"))
        found = decode(path, 12).pixels
        assert found is not None
        np.testing.assert_array_equal(found.transpose(1, 2, 0), right)


@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
def test_a_large_jpeg_is_scaled_while_it_is_read(
    tmp_path: Path, orientation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To no less than twice the size that is asked for: nearly the same pixels, turned as the camera says."""
    path, sizes = tmp_path / "large.jpg", []
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(load_sample_images().images[0])  # 640 x 427
    stored.save(path, exif=exif, quality=95)
    turned = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    resize = Image.Image.resize

    def noted(self: Image.Image, *arguments: Any, **options: Any) -> Image.Image:
        sizes.append(self.size)
        return resize(self, *arguments, **options)

    monkeypatch.setattr(Image.Image, "resize", noted)
    found, whole = (decode(path, 32, draft=draft).pixels for draft in (True, False))
    assert found is not None
    assert whole is not None
    wide = orientation in (1, 3)
    assert sizes == ([(160, 107), (640, 427)] if wide else [(107, 160), (427, 640)])
    away = abs(found.astype(int) - whole)
    assert away.mean() < 2  # of 255 levels
    assert away.max() < 30
    short = min(turned.size)
    left, top = (turned.width - short) // 2, (turned.height - short) // 2
    square = turned.crop((left, top, left + short, top + short)).resize((32, 32), Image.Resampling.BICUBIC)
    assert abs(whole.transpose(1, 2, 0).astype(int) - np.asarray(square)).mean() < 0.2


@pytest.mark.parametrize("size", [107, 108, 213, 428, 600])
def test_a_jpeg_that_is_not_much_larger_is_decoded_as_it_is(tmp_path: Path, size: int) -> None:
    path = tmp_path / "photo.jpg"
    Image.fromarray(load_sample_images().images[1][:427, :428]).save(path)
    found, whole = (decode(path, size, draft=draft).pixels for draft in (True, False))
    assert found is not None
    assert whole is not None
    assert found.shape == (3, size, size)
    assert (size > 106) == np.array_equal(found, whole)


def write_cmyk(path: Path) -> None:
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(path.with_suffix(".tif"))


def write_rgba(path: Path) -> None:
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(path)  # nothing but the white behind it is seen


def write_palette(path: Path) -> None:
    Image.new("RGB", (8, 8), GREEN).quantize(4).save(path)


def write_palette_transparency(path: Path) -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.save(path, transparency=b"\xff\x00")


def write_16_bit(path: Path) -> None:
    Image.fromarray(np.full((8, 8), 257 * 100, np.uint16)).save(path)


def write_16_bit_transparency(path: Path) -> None:
    Image.fromarray(np.full((8, 8), 257 * 100, np.uint16)).save(path, transparency=257 * 100)


def write_16_bit_pgm(path: Path) -> None:
    raw = np.full((8, 8), 257 * 100, ">u2").tobytes()
    path.with_suffix(".pgm").write_bytes(b"P5 8 8 65535\n" + raw)


def write_bilevel(path: Path) -> None:
    Image.new("1", (8, 8), 1).save(path)


def write_animation(path: Path) -> None:
    frames = [Image.new("P", (8, 8), k) for k in (0, 1)]
    for frame in frames:
        frame.putpalette([0, 0, 255, 255, 0, 0])
    frames[0].save(path.with_suffix(".gif"), save_all=True, append_images=frames[1:])


@pytest.mark.parametrize(
    ("write", "colour"),
    [
        (write_cmyk, RED),
        (write_rgba, (255, 255, 255)),
        (write_palette, GREEN),
        (write_palette_transparency, (255, 255, 255)),
        (write_16_bit, (100, 100, 100)),
        (write_16_bit_transparency, (255, 255, 255)),
        (write_16_bit_pgm, (100, 100, 100)),
        (write_bilevel, (255, 255, 255)),
        (write_animation, BLUE),
    ],
)
def test_other_modes_become_rgb_and_are_counted(tmp_path: Path, write: Callable[[Path], None], colour: Colour) -> None:
    fill(tmp_path, {"a": 1, "b": 2})
    write(tmp_path / "a" / "zz.png")
    data = load_folder(tmp_path, image_size=8)
    assert (data.test.x[0, :, 4, 4].int() - torch.tensor(colour)).abs().max() <= 1
    (file,) = (tmp_path / "a").glob("zz.*")
    assert data.notes[1] == f"1 image was not RGB and was converted: a/{file.name}"


def test_many_converted_images_are_counted_but_not_all_named(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 2, "b": 2})
    for k in range(7):
        Image.new("L", (8, 8)).save(tmp_path / "b" / f"grey{k}.png")
    notes = load_folder(tmp_path).notes
    assert notes[1].startswith("7 images were not RGB and were converted: b/grey0.png, b/grey1.png")
    assert notes[1].endswith("b/grey4.png and 2 more")


def png_of_size(width: int, height: int) -> bytes:
    """Return a PNG that claims a size and has hardly any content."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def noise(extension: str, tmp_path: Path) -> bytes:
    path = tmp_path / f"noise.{extension}"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(path)
    content = path.read_bytes()
    path.unlink()
    return content


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"this is text, not an image", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "not an image"),
        (png_of_size(12_000, 10_000), "more than 100 million pixels"),
        (png_of_size(60_000, 60_000), "more than 178 million pixels"),
    ],
)
def test_bad_files_are_named_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    fill(tmp_path, {"a": 2, "b": 2})
    (tmp_path / "a" / "bad.png").write_bytes(content)
    text = message(tmp_path)
    assert f"1 image of 5 in {tmp_path} cannot be used: a/bad.png ({reason})" in text
    assert "leave them out with skip_bad" in text


@pytest.mark.parametrize("extension", ["jpg", "png", "bmp", "gif", "tif", "ppm", "webp"])
def test_truncated_files_are_bad(tmp_path: Path, extension: str) -> None:
    content = noise(extension, tmp_path)
    fill(tmp_path, {"a": 2, "b": 2})
    (tmp_path / "a" / f"bad.{extension}").write_bytes(content[: len(content) // 2])
    assert f"a/bad.{extension} (" in message(tmp_path)


def test_truncated_is_called_truncated(tmp_path: Path) -> None:
    content = noise("jpg", tmp_path)
    fill(tmp_path, {"a": 2, "b": 2})
    (tmp_path / "a" / "bad.jpg").write_bytes(content[: len(content) // 2])
    assert "a/bad.jpg (truncated)" in message(tmp_path)


def test_pixels_of_unknown_range_are_bad(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 2, "b": 2})
    Image.fromarray(np.full((8, 8), 0.5, np.float32)).save(tmp_path / "a" / "float.tif")
    Image.fromarray(np.full((8, 8), 70_000, np.int32)).save(tmp_path / "a" / "int.tif")
    text = message(tmp_path)
    assert "a/float.tif (floating-point pixels of unknown range)" in text
    assert "a/int.tif (32-bit pixels of unknown range)" in text


def test_only_the_first_bad_files_are_named(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 2, "b": 2})
    for k in range(8):
        (tmp_path / "b" / f"bad{k}.jpg").write_bytes(b"")
    text = message(tmp_path)
    assert "8 images of 12" in text
    assert "b/bad4.jpg (empty file) and 3 more" in text
    assert "bad5" not in text


def test_bad_files_can_be_skipped(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 6, "b": 5})
    (tmp_path / "a" / "00.png").write_bytes(b"")
    data = load_folder(tmp_path, image_size=8, skip_bad=True)
    assert reds(data.test.x) == [5, 4]
    assert reds(data.train.x) == [1, 2, 3, 4, 0, 1, 2, 3]
    assert data.notes[1] == "1 image left out: a/00.png (empty file)"


def test_a_class_of_nothing_but_bad_files_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"a": 2, "b": 2})
    fill(tmp_path / "test", {"a": 2, "b": 1})
    (tmp_path / "test" / "b" / "00.png").write_bytes(b"")
    assert "class 'b' has no test image that can be read" in message(tmp_path, skip_bad=1)
    fill(tmp_path / "plain", {"a": 2, "b": 2})
    (tmp_path / "plain" / "b" / "00.png").write_bytes(b"")
    (tmp_path / "plain" / "b" / "01.png").write_bytes(b"")
    assert "class 'b' has 0 readable image(s)" in message(tmp_path / "plain", skip_bad=1)


def test_large_images_below_the_limit_are_read_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, {"a": 2, "b": 2})
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)  # 8x8 images are above it and below twice as much
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(load_folder(tmp_path).train) == 2


def test_a_large_jpeg_counts_as_large_as_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MAX_PIXELS", 100 * 100)
    for extension in ("jpg", "png"):
        save(tmp_path / f"x.{extension}", size=(400, 300))
    assert decode(tmp_path / "x.jpg", 8, draft=True).pixels is not None
    assert decode(tmp_path / "x.jpg", 8).bad == "more than 0.01 million pixels"
    assert decode(tmp_path / "x.png", 8, draft=True).bad == "more than 0.01 million pixels"
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50_000)  # half of what Pillow opens
    assert decode(tmp_path / "x.jpg", 8, draft=True).bad == "more than 178 million pixels"


def test_links_that_lead_out_are_not_followed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    fill(inside, {"a": 2, "b": 2})
    fill(outside, {"c": 3})
    (inside / "c").symlink_to(outside / "c")
    (inside / "a" / "zz.png").symlink_to(outside / "c" / "00.png")
    (inside / "b" / "zz.png").symlink_to(inside / "a" / "00.png")  # stays inside
    data = load_folder(inside, image_size=8)
    assert data.classes == ("a", "b")
    assert len(data.train) + len(data.test) == 5
    assert data.notes[1] == "2 links out of the folder not followed: c, a/zz.png"


def test_a_class_of_nothing_but_such_links_says_so(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    fill(inside, {"a": 2, "b": 0, "c": 2})
    fill(outside, {"x": 1})
    (inside / "b").mkdir()
    (inside / "b" / "zz.png").symlink_to(outside / "x" / "00.png")
    assert f"(1 link out of {inside} not followed)" in message(inside)


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 2, "b": 2})
    (tmp_path / "a" / "up").symlink_to(tmp_path / "a")
    (tmp_path / "b" / "self.png").symlink_to("self.png")
    assert "b/self.png (Too many levels of symbolic links)" in message(tmp_path)
    data = load_folder(tmp_path, skip_bad=True)
    assert len(data.train) + len(data.test) == 4


def test_pipes_are_not_opened(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 2, "b": 2})
    os.mkfifo(tmp_path / "a" / "pipe.png")
    assert len(load_folder(tmp_path).train) == 2


def test_a_name_that_is_no_text_can_be_printed(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 2, "b": 2})
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/a/\xff.png")).write_bytes(b"")
    except OSError:
        pytest.skip("this file system wants names to be text")
    assert "a/\\udcff.png (empty file)" in message(tmp_path).encode().decode()


def test_a_name_does_not_move_the_cursor(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 2, "b\x1b[2J": 2})
    (tmp_path / "a" / "1\x1b[31m\n猫\x9b.png").write_bytes(b"")
    assert "a/1\\x1b[31m\\n猫\\x9b.png (empty file)" in message(tmp_path)
    assert load_folder(tmp_path, skip_bad=True).classes == ("a", "b\\x1b[2J")
