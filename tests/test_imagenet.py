"""ImageNet as folders: a store that is made once, from made-up photos of four classes; a run from it."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from edbl import EdblError, run
from edbl.data import datasets, imagenet
from edbl.data.decoding import Decoded, decode
from edbl.data.far import far, near
from edbl.data.images import Dataset
from edbl.recipe import Recipe
from tests.conftest import Cli, full_disk

CLASSES, SIDE, EACH = 4, 32, 12
Load = Callable[[], Dataset]


def write_photos(root: Path, classes: int = CLASSES, each: int = EACH) -> None:
    """Write photos as ImageNet has them: a shade of their own for each class, some noise."""
    rng = np.random.default_rng(0)
    for split, count in (("train", each), ("val", 3)):
        for k in range(classes):
            (root / split / f"n{k:08}").mkdir(parents=True)
            for number in range(count):
                noise = rng.integers(0, 60, (40, 50, 3))
                pixels = (noise + 180 * np.array([k % 2, k // 2 % 2, k % 3 / 2])).astype(np.uint8)
                Image.fromarray(pixels).save(root / split / f"n{k:08}" / f"photo{number:02}.JPEG")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let a data folder hold photos; pieces of a store are small here."""
    write_photos(tmp_path / "imagenet100")
    monkeypatch.setattr(imagenet, "CHUNK", 8)
    return tmp_path


@pytest.fixture
def load(folder: Path) -> Load:
    return partial(imagenet.load, folder, "imagenet100", CLASSES, SIDE)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Note which files are decoded."""
    found: list[Path] = []

    def noted(path: Path, *how: object) -> Decoded:
        found.append(path)
        return decode(path, *how)  # type: ignore[arg-type]

    monkeypatch.setattr(imagenet, "decode", noted)
    return found


def test_the_store_has_all_pixels_in_order(load: Load, folder: Path) -> None:
    data = load()
    files = sorted((folder / "imagenet100" / "train").rglob("*.JPEG"))
    pixels = [decode(path, SIDE, linear=True).pixels for path in files]
    assert torch.equal(near(data.train.x), torch.from_numpy(np.stack([p for p in pixels if p is not None])))
    assert data.train.y.tolist() == [k for k in range(CLASSES) for _ in range(EACH)]
    assert data.classes == tuple(f"n{k:08}" for k in range(CLASSES))
    assert near(data.test.x).shape == (12, 3, SIDE, SIDE)
    last = decode(folder / "imagenet100/val/n00000003/photo02.JPEG", SIDE, linear=True).pixels
    assert last is not None
    assert torch.equal(near(data.test.x)[-1], torch.from_numpy(last.copy()))


def test_it_is_made_once_and_needs_the_photos_no_more(load: Load, folder: Path, decoded: list[Path]) -> None:
    first = load()
    assert len(decoded) == 60
    again = load()
    shutil.rmtree(folder / "imagenet100")
    alone = load()
    assert len(decoded) == 60
    assert len({one.digest() for data in (first, again, alone) if (one := far(data.train.x))}) == 1


def test_what_is_killed_goes_on(load: Load, folder: Path, decoded: list[Path]) -> None:
    with full_disk(5), pytest.raises(EdblError, match="continues where it was"):  # two syncs for each piece
        load()
    before = len(set(decoded))
    place = folder / f"imagenet100-{SIDE}"
    assert len((place / imagenet.CHUNKS).read_text().splitlines()) in (2, 3)  # the last line may not be on the disk
    assert not (place / "store.json").exists()
    with open(place / imagenet.CHUNKS, "a") as log:
        log.write("5 0123")  # what a kill cuts short counts for nothing
    decoded.clear()
    resumed = near(load().train.x)
    assert before < 60
    assert 60 - 24 <= len(decoded) <= 60 - 16
    shutil.rmtree(place)
    assert torch.equal(resumed, near(load().train.x))


def test_changed_photos_are_decoded_again(load: Load, folder: Path, decoded: list[Path]) -> None:
    before = load()
    digest, kept = far(before.train.x), near(before.train.x)
    changed = folder / "imagenet100/train/n00000001/photo03.JPEG"
    Image.new("RGB", (50, 40), "white").save(changed)
    os.utime(changed, (1, 1))
    decoded.clear()
    after = load()
    assert len(decoded) == 8
    assert (near(after.train.x)[15] > 250).all()
    same = torch.arange(len(kept)) != 15
    assert torch.equal(near(after.train.x)[same], kept[same])
    now = far(after.train.x)
    assert digest is not None
    assert now is not None
    assert digest.digest() != now.digest()


def test_a_photo_that_cannot_be_read_is_named(load: Load, folder: Path) -> None:
    bad = folder / "imagenet100/train/n00000002/photo05.JPEG"
    whole = bad.read_bytes()
    bad.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EdblError, match=r"photo05.JPEG \(([Tt]runcated.*)\)\nput right ones"):
        load()
    bad.write_bytes(whole)
    assert len(load().train) == CLASSES * EACH


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda root: shutil.rmtree(root / "val" / "n00000001"), "has 3 class folders, and 4 are needed"),
        (
            lambda root: (root / "val" / "n00000001").rename(root / "val" / "n1"),
            r"val has no folder of class n00000001",
        ),
        (lambda root: [path.unlink() for path in (root / "train" / "n00000001").iterdir()], "has no image in"),
        (lambda root: shutil.rmtree(root / "val"), "val cannot be read: No such file"),
        (shutil.rmtree, "imagenet100 is not in"),
    ],
)
def test_folders_that_lack_something(load: Load, folder: Path, harm: Callable[[Path], object], message: str) -> None:
    harm(folder / "imagenet100")
    with pytest.raises(EdblError, match=message):
        load()


def test_a_store_that_was_cut_short(load: Load, folder: Path) -> None:
    data = load()
    pixels = folder / f"imagenet100-{SIDE}" / imagenet.PIXELS
    os.truncate(pixels, 100)
    with pytest.raises(EdblError, match="its size has changed"):
        near(data.train.x[:3])
    with pytest.raises(EdblError, match="has 100 bytes"):
        load()


def test_a_disk_that_is_too_small(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(EdblError, match=r"take 0.0 GB .* and 0.0 GB are free\nmake room"):
        load()


def test_of_all_classes_the_usual_hundred(tmp_path: Path) -> None:
    """Hou et al. draw from the sorted names by seed 1993; three of a thousand, written by their own line of code."""
    names = [f"n{k:08}" for k in range(12)]
    for split in ("train", "val"):
        for name in names:
            (tmp_path / "imagenet" / split / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / "imagenet" / split / name / "x.JPEG")
    np.random.seed(1993)
    subset = np.random.choice(names, 3, replace=False)
    assert imagenet.load(tmp_path, "imagenet100", 3, SIDE).classes == tuple(sorted(subset))


def test_a_run_from_the_store(folder: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli, tmp_path: Path) -> None:
    small = partial(imagenet.load, name="imagenet100", classes=CLASSES, side=SIDE)
    source = replace(datasets.DATASETS["imagenet100"], load=lambda path: small(path))
    monkeypatch.setitem(datasets.DATASETS, "imagenet100", source)
    given = ["--set", "data.view=24", "--set", "schedule.epochs=3", "--set", "optim.batch=16", "--tasks", 2]
    more = ["--set", "net.backbone=small", "--preset", "quick", "--memory", "total=8", "--data-dir", folder]
    for on in ("disk", "device"):
        found = cli(
            "run", "icarl", "--data", "imagenet100", *given, *more, "--set", f"data.on={on}", "--out", tmp_path / on
        )
        assert (found.code, found.err) == (0, "")
    from edbl import records

    one, other = (records.read(tmp_path / on) for on in ("disk", "device"))
    assert all((a == b).all() for a, b in zip(one.confusions["cnn"], other.confusions["cnn"], strict=True))
    assert one.losses == other.losses
    assert one.average_incremental_accuracy["nme"] > 0.5


def test_the_settings_are_those_of_the_literature() -> None:
    recipe = Recipe.build("icarl", "imagenet100")
    assert (recipe.net.backbone, recipe.data.view, recipe.data.augment) == ("resnet18-large", 224, "resize-flip")
    assert recipe.stream.number == 10
    assert run is not None
