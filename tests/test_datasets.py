import gzip
import hashlib
import io
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import SafetensorError
from sklearn.datasets import load_digits

from edbl import presets
from edbl.data import blocks, datasets, tiny
from edbl.data.datasets import DATASETS, FOLDER_DEFAULTS, load
from edbl.data.download import Remote
from edbl.data.stream import class_order
from edbl.errors import EdblError

KEYS = {"data.augment", "data.pad", "data.mean", "data.std"}
RNG = np.random.default_rng(0)


def message(name: str, folder: Path) -> str:
    with pytest.raises(EdblError) as caught:
        load(name, folder)
    text = str(caught.value)
    assert len(text.splitlines()) <= 2
    return text


def official(monkeypatch: pytest.MonkeyPatch, constant: str, path: Path, module: ModuleType = datasets) -> None:
    """Make the archive a test wrote the official one."""
    remote: Remote = getattr(module, constant)
    monkeypatch.setattr(module, constant, replace(remote, md5=hashlib.md5(path.read_bytes()).hexdigest()))


@pytest.mark.parametrize("name", [*DATASETS, "./folder"])
def test_defaults_have_the_same_keys(name: str) -> None:
    settings = datasets.defaults(name)
    assert set(settings) - {"data.view"} == KEYS  # which large images alone have
    mean, std = settings["data.mean"], settings["data.std"]
    assert isinstance(mean, tuple)
    assert isinstance(std, tuple)
    assert len(mean) == len(std) in (1, 3)
    assert all(0 < value < 1 for value in (*mean, *std))


def test_presets_know_the_data_sets() -> None:
    wanted = [row.when["data"] for row in presets.USUAL]
    named = {name for names in wanted for name in (names if isinstance(names, tuple) else (names,))}
    assert named == DATASETS.keys() - {"cifar100"} | {presets.FOLDER, presets.OTHER}  # but for what is built in


def test_registry() -> None:
    whole = ["cifar10", "cifar100", "tiny-imagenet", "fashion-mnist", "imagenet100", "imagenet", "digits"]
    pieces = [*(f"cifar100-block{k}" for k in range(5)), *(f"cifar10-part{k}" for k in range(3))]
    assert list(DATASETS) == [*whole, *pieces]
    for name, source in DATASETS.items():
        assert source.name == name
        assert all(remote.dataset == name.split("-block")[0].split("-part")[0] for remote in source.files)
        assert all(len(remote.md5) == 32 for remote in source.files)
    assert DATASETS["digits"].files == ()
    assert datasets.defaults("./folder") is FOLDER_DEFAULTS


def test_is_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pets").mkdir()
    (tmp_path / "digits").mkdir()
    assert all(datasets.is_folder(name) for name in ("pets", "./x", "~/x", "a/b", "..", "./digits"))
    assert not any(datasets.is_folder(name) for name in ("digits", "cifar10", "unknown"))


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(EdblError, match="unknown data set 'cifar-100': did you mean 'cifar100'"):
        datasets.defaults("cifar-100")
    assert "did you mean 'fashion-mnist'" in message("fashion-mnits", tmp_path)


def test_load_reads_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for k in range(3):
            Image.new("RGB", (9, 9)).save(tmp_path / "pets" / name / f"{k}.png")
    (tmp_path / "pets" / "a" / "bad.png").write_bytes(b"")
    monkeypatch.setenv("HOME", str(tmp_path))
    data = load("~/pets", image_size=16, skip_bad=True)
    assert data.train.x.shape == (4, 3, 16, 16)
    with pytest.raises(EdblError, match="leave them out with skip_bad"):
        load(str(tmp_path / "pets"))


def test_the_image_size_is_for_folders_only() -> None:
    with pytest.raises(EdblError, match="the image size can only be set for a folder of images, and digits is none"):
        load("digits", image_size=16)


def test_digits() -> None:
    data = load("digits")
    values, labels = load_digits(return_X_y=True)
    assert (len(data.train), len(data.test)) == (1442, 355)
    assert data.train.x.shape[1:] == (1, 8, 8)
    assert data.train.x.dtype == torch.uint8
    assert data.classes == tuple("0123456789")
    sevens = np.flatnonzero(labels == 7)
    assert torch.equal(data.test.of([7]).x[1].flatten(), torch.tensor(np.round(values[sevens[9]] * 255 / 16)).byte())
    assert torch.equal(data.train.of([7]).x[4].flatten(), torch.tensor(np.round(values[sevens[5]] * 255 / 16)).byte())
    x = data.train.x.double() / 255
    assert float(x.mean()) == pytest.approx(0.3, abs=0.01)
    assert float(x.std()) == pytest.approx(0.38, abs=0.01)


def cifar_records(labels: list[int], label_bytes: int) -> tuple[bytes, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    pixels = RNG.integers(0, 256, (len(labels), 3, 32, 32), np.uint8)
    coarse = b"\x13" * (label_bytes - 1)
    return b"".join(coarse + bytes([y]) + image.tobytes() for y, image in zip(labels, pixels, strict=True)), pixels


def write_cifar10(folder: Path) -> Path:
    place = folder / "cifar-10-batches-bin"
    place.mkdir(parents=True)
    for k in range(1, 6):
        (place / f"data_batch_{k}.bin").write_bytes(cifar_records([k, 9], 1)[0])
    (place / "test_batch.bin").write_bytes(cifar_records([0, 1, 2], 1)[0])
    (place / "batches.meta.txt").write_text("\n".join(f"class{k}" for k in range(10)) + "\n\n")
    return place


def write_cifar100(folder: Path) -> Path:
    place = folder / "cifar-100-binary"
    place.mkdir(parents=True)
    (place / "train.bin").write_bytes(cifar_records([5, 99, 0, 5], 2)[0])
    (place / "test.bin").write_bytes(cifar_records([7], 2)[0])
    (place / "fine_label_names.txt").write_text("\n".join(f"class_{k}" for k in range(100)))
    return place


def pack(folder: Path, place: Path, archive: str) -> Path:
    with tarfile.open(folder / archive, "w:gz") as tar:
        tar.add(place, place.name)
    return folder / archive


def test_cifar10(tmp_path: Path) -> None:
    place = write_cifar10(tmp_path)
    content, pixels = cifar_records([3, 4], 1)
    (place / "data_batch_1.bin").write_bytes(content)
    data = load("cifar10", tmp_path)
    assert data.name == "cifar10"
    assert data.train.y.tolist() == [3, 4, 2, 9, 3, 9, 4, 9, 5, 9]
    assert data.test.y.tolist() == [0, 1, 2]
    assert np.array_equal(data.train.x[:2].numpy(), pixels)
    assert data.train.x.is_contiguous()
    assert data.classes[0] == "class0"
    assert data.notes == ("10 training and 3 test images were found; the official set has 50,000 and 10,000",)


def test_cifar100_uses_the_fine_labels(tmp_path: Path) -> None:
    place = write_cifar100(tmp_path)
    content, pixels = cifar_records([42], 2)
    (place / "test.bin").write_bytes(content)
    data = load("cifar100", tmp_path)
    assert data.train.y.tolist() == [5, 99, 0, 5]
    assert data.test.y.tolist() == [42]
    assert np.array_equal(data.test.x.numpy(), pixels)
    assert len(data.classes) == 100


@pytest.mark.parametrize("content", [b"", b"\0" * 3072, b"\0" * (3073 * 2 + 1)])
def test_cifar_file_of_a_wrong_size(tmp_path: Path, content: bytes) -> None:
    path = write_cifar10(tmp_path) / "data_batch_3.bin"
    path.write_bytes(content)
    text = message("cifar10", tmp_path)
    assert f"{path} is truncated or a wrong file: {len(content):,} bytes" in text
    assert f"delete it and run `edbl data fetch cifar10 --data-dir {tmp_path}`" in text


def test_cifar_label_out_of_range(tmp_path: Path) -> None:
    path = write_cifar100(tmp_path) / "train.bin"
    path.write_bytes(cifar_records([3, 100], 2)[0])
    assert f"{path} is a wrong file: its label 100 is beyond 99" in message("cifar100", tmp_path)


def test_cifar_with_too_few_names(tmp_path: Path) -> None:
    path = write_cifar10(tmp_path) / "batches.meta.txt"
    path.write_text("cat\ndog\n")
    assert f"{path} names 2 classes, not 10" in message("cifar10", tmp_path)


def test_cifar_that_is_not_there(tmp_path: Path) -> None:
    text = message("cifar10", tmp_path)
    assert f"cifar-10-binary.tar.gz is not in {tmp_path}" in text
    assert f"run `edbl data fetch cifar10 --data-dir {tmp_path}`" in text
    assert "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz" in text


def test_cifar_that_lacks_a_file(tmp_path: Path) -> None:
    place = write_cifar10(tmp_path)
    (place / "data_batch_2.bin").unlink()
    assert f"{place} lacks data_batch_2.bin: run `edbl data fetch cifar10 --data-dir" in message("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("name", "constant", "write"), [("cifar10", "CIFAR10", write_cifar10), ("cifar100", "CIFAR100", write_cifar100)]
)
def test_cifar_archive_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, constant: str, write: Callable[[Path], Path]
) -> None:
    place = write(tmp_path / "made")
    archive = pack(tmp_path, place, DATASETS[name].files[0].name)
    official(monkeypatch, constant, archive)
    data = load(name, tmp_path)
    assert torch.equal(data.train.x, load(name, tmp_path / "made").train.x)
    next((tmp_path / place.name).glob("t*.bin")).unlink()
    assert torch.equal(load(name, tmp_path).test.x, data.test.x)  # the archive completes the folder


def test_cifar_archive_with_a_wrong_checksum(tmp_path: Path) -> None:
    archive = pack(tmp_path, write_cifar10(tmp_path / "made"), "cifar-10-binary.tar.gz")
    assert f"{archive} is damaged or not the official file" in message("cifar10", tmp_path)
    assert not (tmp_path / "cifar-10-batches-bin").exists()


def test_cifar_archive_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write_cifar10(tmp_path / "made")
    (place / "test_batch.bin").unlink()
    official(monkeypatch, "CIFAR10", pack(tmp_path, place, "cifar-10-binary.tar.gz"))
    assert "lacks test_batch.bin" in message("cifar10", tmp_path)


def test_a_pixel_of_16x16_is_the_rounded_mean_of_four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "PER_CLASS", 1)
    place = write_cifar10(tmp_path)
    for k in range(1, 6):
        (place / f"data_batch_{k}.bin").write_bytes(cifar_records(list(range(10)), 1)[0])
    content, pixels = cifar_records([3], 1)
    pixels[0, 0, :2, :4] = [[0, 0, 255, 255], [0, 2, 255, 254]]  # means 0.5 and 254.75
    pixels[0, 0, 30:, 30:] = [[9, 9], [9, 10]]  # 9.25
    (place / "test_batch.bin").write_bytes(content[:1] + pixels.tobytes())
    test = load("cifar10-part0", tmp_path).test
    assert test.x.shape == (1, 3, 16, 16)
    assert test.x.dtype == torch.uint8
    assert test.x[0, 0, 0, :2].tolist() == [1, 255]
    assert int(test.x[0, 0, 15, 15]) == 9
    means = pixels.reshape(1, 3, 16, 2, 16, 2).mean((3, 5))
    assert np.array_equal(test.x.numpy(), np.floor(means + 0.5))


def test_blocks_of_cifar100_share_no_class_and_leave_none_out(tmp_path: Path) -> None:
    place = write_cifar100(tmp_path)
    (place / "train.bin").write_bytes(cifar_records([k for _ in range(3) for k in range(100)], 2)[0])
    (place / "test.bin").write_bytes(cifar_records([*range(100), *range(100)], 2)[0])
    whole = load("cifar100", tmp_path)
    found = [load(f"cifar100-block{k}", tmp_path) for k in range(5)]
    order = [whole.classes[k] for k in class_order("1993", whole.classes)]
    assert [name for data in found for name in data.classes] == order
    for k, data in enumerate(found):
        assert data.name == f"cifar100-block{k}"
        assert data.train.counts(20).tolist() == [3] * 20
        assert data.test.counts(20).tolist() == [2] * 20
        first = whole.train.of([whole.classes.index(data.classes[0])])
        halved = first.x.double().reshape(3, 3, 16, 2, 16, 2).mean((3, 5)).add(0.5).floor()
        assert torch.equal(data.train.of([0]).x.double(), halved), "images keep their classes"
        assert "official set has 50,000" in data.notes[0]


def test_parts_of_cifar10_share_no_training_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write_cifar10(tmp_path)
    for k in range(1, 6):
        (place / f"data_batch_{k}.bin").write_bytes(cifar_records([*range(10), *range(9, -1, -1)], 1)[0])
    assert "cifar10-part1 needs 3,000 training images of each class" in message("cifar10-part1", tmp_path)
    monkeypatch.setattr(blocks, "PER_CLASS", 3)
    found = [load(f"cifar10-part{k}", tmp_path) for k in range(3)]
    for data in found:
        assert data.train.counts(10).tolist() == [3] * 10
        assert data.test.y.tolist() == [0, 1, 2]
    images = torch.cat([data.train.x for data in found]).flatten(1)
    assert len(images.unique(dim=0)) == len(images) == 90


@pytest.mark.parametrize("name", ["cifar100-block3", "cifar10-part2"])
def test_a_piece_that_is_not_there_is_fetched_as_the_whole(name: str, tmp_path: Path) -> None:
    assert f"run `edbl data fetch {name.partition('-')[0]} --data-dir {tmp_path}`" in message(name, tmp_path)


def idx(magic: int, *shape: int, values: bytes) -> bytes:
    return struct.pack(f">{1 + len(shape)}I", magic, *shape) + values


@pytest.fixture
def fashion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write three training and two test images, packed, where the data folder has them."""
    monkeypatch.setattr(datasets, "FASHION_FOLDERS", (tmp_path / "system",))
    place = tmp_path / "fashion-mnist"
    place.mkdir()
    for split, labels in (("train", [9, 0, 4]), ("t10k", [1, 2])):
        images = idx(2051, len(labels), 28, 28, values=bytes([255]) * (784 * len(labels)))
        (place / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (place / f"{split}-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(idx(2049, len(labels), values=bytes(labels)))
        )
    return place


def test_fashion(fashion: Path) -> None:
    data = load("fashion-mnist", fashion.parent)
    assert data.train.x.shape == (3, 1, 32, 32)
    assert data.train.y.tolist() == [9, 0, 4]
    assert data.test.y.tolist() == [1, 2]
    assert data.classes[9] == "Ankle boot"
    assert int(data.train.x[0, 0, 2:30, 2:30].min()) == 255
    assert int(data.train.x.long().sum()) == 3 * 784 * 255  # the border is zero
    assert "official set has 60,000 and 10,000" in data.notes[0]


def test_fashion_unpacked(fashion: Path) -> None:
    for path in list(fashion.iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert len(load("fashion-mnist", fashion.parent).train) == 3


def test_fashion_from_the_system(fashion: Path, tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    fashion.rename(tmp_path / "system" / "fashion-mnist")
    assert len(load("fashion-mnist", tmp_path).train) == 3


def test_fashion_that_is_not_there(fashion: Path) -> None:
    (fashion / "t10k-labels-idx1-ubyte.gz").unlink()
    text = message("fashion-mnist", fashion.parent)
    assert "fashion-mnist/t10k-labels-idx1-ubyte.gz is not in" in text
    assert f"run `edbl data fetch fashion-mnist --data-dir {fashion.parent}`" in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(idx(2049, 3, 28, 28, values=bytes(3 * 784))), "no idx file: 2,368 bytes with magic number 2049"),
        (gzip.compress(idx(2051, 3, 28, 28, values=bytes(3 * 784 - 1))), "truncated or no idx file"),
        (gzip.compress(idx(2051, 0, 28, 28, values=b"")), "truncated or no idx file"),
        (gzip.compress(b"abc"), "truncated or no idx file"),
        (gzip.compress(idx(2051, 4, 28, 28, values=bytes(4 * 784))), "does not fit"),
        (gzip.compress(idx(2051, 3, 14, 56, values=bytes(3 * 784))), "does not fit"),
        (gzip.compress(RNG.bytes(3000))[:1500], "is damaged or truncated"),
        (b"<html>", "is damaged or truncated"),
    ],
    ids=["labels", "cut", "none", "no header", "one too many", "other shape", "cut gzip", "no gzip"],
)
def test_fashion_with_wrong_images(fashion: Path, content: bytes, words: str) -> None:
    path = fashion / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    text = message("fashion-mnist", fashion.parent)
    assert str(path) in text
    assert words in text
    assert f"delete it and run `edbl data fetch fashion-mnist --data-dir {fashion.parent}`" in text


def test_fashion_with_a_wrong_label(fashion: Path) -> None:
    path = fashion / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx(2049, 3, values=bytes([0, 10, 1]))))
    assert f"{path} is a wrong file: its label 10 is beyond 9" in message("fashion-mnist", fashion.parent)


def jpeg(value: int, mode: str = "RGB", size: int = 64) -> bytes:
    out = io.BytesIO()
    Image.new(mode, (size, size), (value, 0, 0) if mode == "RGB" else value).save(out, "JPEG", quality=95)
    return out.getvalue()


def tiny_files() -> dict[str, bytes]:
    """Return a Tiny-ImageNet of three classes, the first and last of which share a name."""
    files = {
        "wnids.txt": b"n03\nn01\nn02\n",
        "words.txt": b"n01\tcrane, wading bird\nn02\tgoldfish, Carassius auratus\nn03\tcrane\nn04\tcat\n",
        "val/val_annotations.txt": b"val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n",
        "val/images/val_0.JPEG": jpeg(200),
        "val/images/val_1.JPEG": jpeg(100, "L"),
        "test/images/test_0.JPEG": b"not used",
    }
    for k, wnid in enumerate(("n01", "n02", "n03")):
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"x"
        for j in range(2):
            files[f"train/{wnid}/images/{wnid}_{j}.JPEG"] = jpeg(80 * k + 10 * j)
    return files


def write_tiny_folder(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / "tiny-imagenet-200" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def write_tiny_zip(folder: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(folder / "tiny-imagenet-200.zip", "w") as file:
        file.writestr("tiny-imagenet-200/train/", b"")
        for name, content in files.items():
            file.writestr(f"tiny-imagenet-200/{name}", content)
    return folder / "tiny-imagenet-200.zip"


def check_tiny(folder: Path) -> None:
    data = load("tiny-imagenet", folder)
    assert data.classes == ("crane (n01)", "goldfish", "crane (n03)")
    assert data.train.x.shape == (6, 3, 64, 64)
    assert data.train.y.tolist() == [0, 0, 1, 1, 2, 2]
    assert [round(int(v), -1) for v in data.train.x[:, 0, 9, 9]] == [0, 10, 80, 90, 160, 170]
    assert data.test.y.tolist() == [1, 0]
    assert len(data.test.x[1, :, 9, 9].unique()) == 1  # grey
    assert "official set has 100,000 and 10,000" in data.notes[0]


@pytest.mark.parametrize("kind", ["zip", "folder"])
def test_tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    if kind == "zip":
        official(monkeypatch, "FILE", write_tiny_zip(tmp_path, tiny_files()), tiny)
    else:
        write_tiny_folder(tmp_path, tiny_files())
    check_tiny(tmp_path)
    cache = ["tiny-imagenet-200.json", "tiny-imagenet-200.safetensors"]
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file() and p.suffix != ".zip") == cache
    (tmp_path / "other").touch()
    modes = {(tmp_path / name).stat().st_mode for name in (*cache, "other")}
    assert len(modes) == 1, "who may read the folder may read the cache"
    monkeypatch.setattr(tiny, "_decode", None)  # from here on the cache must do
    check_tiny(tmp_path)
    (tmp_path / "tiny-imagenet-200.zip").unlink(missing_ok=True)
    check_tiny(tmp_path)


def test_tiny_cache_of_another_source_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_folder(tmp_path, tiny_files())
    check_tiny(tmp_path)
    write_tiny_folder(tmp_path, {"train/n01/images/n01_9.JPEG": jpeg(255)})
    assert len(load("tiny-imagenet", tmp_path).train) == 7
    monkeypatch.setattr(tiny, "FORMAT", 2)
    write_tiny_folder(tmp_path, {"train/n01/images/n01_9.JPEG": jpeg(30)})  # as many files, other content
    assert round(int(load("tiny-imagenet", tmp_path).train.x[2, 0, 9, 9]), -1) == 30
    official(monkeypatch, "FILE", write_tiny_zip(tmp_path, tiny_files()), tiny)
    check_tiny(tmp_path)


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "no JSON"])
def test_tiny_cache_that_is_damaged_is_written_anew(tmp_path: Path, damage: str) -> None:
    write_tiny_folder(tmp_path, tiny_files())
    check_tiny(tmp_path)
    cache = tmp_path / "tiny-imagenet-200.safetensors"
    data = cache.read_bytes()
    if damage == "no JSON":
        cache.with_suffix(".json").unlink()
    else:
        cache.write_bytes({"empty": b"", "cut": data[:1000], "changed": data[:-1] + bytes([data[-1] ^ 1])}[damage])
    check_tiny(tmp_path)
    assert cache.read_bytes() == data


def test_tiny_in_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_folder(tmp_path, tiny_files())
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "will be decoded again each time" in load("tiny-imagenet", tmp_path).notes[1]
    assert [p.name for p in tmp_path.iterdir()] == ["tiny-imagenet-200"]


def test_tiny_cache_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(tensors: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    write_tiny_folder(tmp_path, tiny_files())
    monkeypatch.setattr("safetensors.torch.save_file", no_room)
    text = message("tiny-imagenet", tmp_path)
    assert f"cannot write '{tmp_path}/tiny-imagenet-200.safetensors.new': I/O error: No space left on device" in text
    assert [p.name for p in tmp_path.iterdir()] == ["tiny-imagenet-200"]


def test_what_a_killed_writer_left_of_a_tiny_cache_is_removed(tmp_path: Path) -> None:
    write_tiny_folder(tmp_path, tiny_files())
    old, new = (tmp_path / f".tiny-imagenet-200.safetensors.{k * 32}.tmp" for k in "01")
    for left in (old, new):
        left.touch()
    os.utime(old, (0, 0))
    check_tiny(tmp_path)
    assert (old.exists(), new.exists()) == (False, True)  # the other may be still at it


def test_tiny_that_is_not_there(tmp_path: Path) -> None:
    text = message("tiny-imagenet", tmp_path)
    assert f"tiny-imagenet-200.zip is not in {tmp_path}: run `edbl data fetch tiny-imagenet --data-dir" in text
    assert "cs231n.stanford.edu" in text


def test_tiny_zip_with_a_wrong_checksum(tmp_path: Path) -> None:
    archive = write_tiny_zip(tmp_path, tiny_files())
    assert f"{archive} is damaged or not the official file" in message("tiny-imagenet", tmp_path)


@pytest.mark.parametrize("damage", ["cut", "flipped", "escaping"])
def test_tiny_zip_that_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    files = tiny_files()
    archive = write_tiny_zip(tmp_path, files | ({"../../out.txt": b"x"} if damage == "escaping" else {}))
    raw = archive.read_bytes()
    if damage == "cut":
        archive.write_bytes(raw[:-40])
    if damage == "flipped":
        content = files["train/n02/images/n02_1.JPEG"]
        archive.write_bytes(raw.replace(content, content[:-9] + bytes(9)))
    official(monkeypatch, "FILE", archive, tiny)
    words = {
        "cut": f"{archive} is damaged or truncated",
        "flipped": f"{archive} is damaged at tiny-imagenet-200/train/n02/images/n02_1.JPEG",
        "escaping": "its member 'tiny-imagenet-200/../../out.txt' leads outside",
    }
    assert words[damage] in message("tiny-imagenet", tmp_path)
    assert list(tmp_path.iterdir()) == [archive]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"train/n01/images/n01_0.JPEG": jpeg(1)[:300]},
            "has a damaged image, tiny-imagenet-200/train/n01/images/n01_0",
        ),
        ({"train/n01/images/n01_0.JPEG": jpeg(1, size=32)}, "has an image that is not 64x64"),
        ({"train/n09/images/n09_0.JPEG": jpeg(1)}, "the class n09, which wnids.txt does not have"),
        ({"val/val_annotations.txt": b"val_0.JPEG\tn09\t0"}, "the class n09, which wnids.txt does not have"),
        ({"val/val_annotations.txt": b"val_7.JPEG\tn01\t0"}, "it has no tiny-imagenet-200/val/images/val_7.JPEG"),
        ({"val/val_annotations.txt": b"\n"}, "has no training or no validation images"),
    ],
)
@pytest.mark.parametrize("kind", ["zip", "folder"])
def test_tiny_with_wrong_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, change: dict[str, bytes], words: str
) -> None:
    if kind == "zip":
        official(monkeypatch, "FILE", write_tiny_zip(tmp_path, tiny_files() | change), tiny)
    else:
        write_tiny_folder(tmp_path, tiny_files() | change)
    text = message("tiny-imagenet", tmp_path)
    assert words in text
    assert f"{tmp_path / 'tiny-imagenet-200'}" in text
    assert f"delete it and run `edbl data fetch tiny-imagenet --data-dir {tmp_path}`" in text


@pytest.mark.parametrize("name", ["wnids.txt", "words.txt", "val/val_annotations.txt"])
def test_tiny_that_lacks_a_list(tmp_path: Path, name: str) -> None:
    files = tiny_files()
    del files[name]
    write_tiny_folder(tmp_path, files)
    assert f"is incomplete: it has no tiny-imagenet-200/{name}" in message("tiny-imagenet", tmp_path)
