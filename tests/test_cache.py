"""Features that were computed once: by pixels, network and engine; damaged or forged files are computed again."""

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from edbl import store
from edbl.data.decoding import digest
from edbl.errors import EdblError
from edbl.nets import cache
from edbl.nets.backbones import Foreign
from edbl.nets.cache import Cache
from edbl.nets.pretrained import Pretrained
from tests.conftest import full_disk
from tests.vectors import seeded

SIZE, WIDTH = 4, 48
CPU = torch.device("cpu")


class Counting(nn.Module):
    """The pixels themselves as features, and how many images came by."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.images = 0

    def forward(self, x: Tensor) -> Tensor:
        self.images += len(x)
        return x.flatten(1) * self.scale


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
def network(counting: Counting) -> Pretrained:
    return Pretrained("counting", WIDTH, SIZE, (0.0,) * 3, (1.0,) * 3, lambda: Foreign(counting, WIDTH))


@pytest.fixture
def kept(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "features", 10**6)


def noise(n: int, seed: int = 0) -> Tensor:
    return torch.randint(256, (n, 3, SIZE, SIZE), dtype=torch.uint8, generator=seeded(seed))


def views(kept: Cache, network: Pretrained, x: Tensor, say: Callable[[int], None] = lambda done: None) -> Tensor:
    found = kept.views(network, x, say)
    assert torch.equal(found, network.views(x, 0, seeded(), lambda done: None))
    return found


def files(kept: Cache, ending: str = "*.json") -> list[Path]:
    return sorted(kept.folder.glob(f"*/{ending}"))


def again(kept: Cache) -> Cache:
    """Return the cache as another process sees it."""
    return Cache(kept.folder, kept.most)


def computed(kept: Cache, network: Pretrained, counting: Counting, x: Tensor) -> int:
    """Return how many images had to be computed."""
    before = counting.images
    kept.views(network, x, lambda done: None)
    return counting.images - before


def test_features_are_computed_once(kept: Cache, network: Pretrained, counting: Counting) -> None:
    x = noise(5)
    assert computed(kept, network, counting, x[:3]) == 3
    assert computed(kept, network, counting, x.flip(0)) == 2
    assert computed(kept, network, counting, x) == 0
    assert computed(again(kept), network, counting, x) == 0
    assert views(again(kept), network, x).shape == (5, 1, WIDTH)


def test_a_photo_that_comes_twice_is_computed_once(kept: Cache, network: Pretrained, counting: Counting) -> None:
    x = noise(2)[[0, 1, 0, 0]]
    assert computed(kept, network, counting, x) == 2
    assert torch.equal(views(kept, network, x)[0], views(kept, network, x)[2])


def test_no_photos(kept: Cache, network: Pretrained) -> None:
    assert kept.views(network, noise(0), lambda done: None).shape == (0, 1, WIDTH)
    assert not kept.folder.exists()


def test_it_says_how_many_are_done(kept: Cache, network: Pretrained, monkeypatch: pytest.MonkeyPatch) -> None:
    views(kept, network, noise(3))
    monkeypatch.setattr(cache, "PART", 4)
    said: list[int] = []
    kept.views(network, noise(12), said.append)
    assert said[0] == 3
    assert said == sorted(said)
    assert said[-1] == 12


def test_what_is_done_stays_where_the_rest_is_stopped(
    kept: Cache, network: Pretrained, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "PART", 2)

    def stop(done: int) -> None:
        if done > 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.views(network, noise(8), stop)
    assert computed(again(kept), network, counting, noise(8)) == 4


def test_other_weights_scales_names_and_engines_are_others(
    kept: Cache, network: Pretrained, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = noise(2)
    views(kept, network, x)
    others = [replace(network, std=(2.0,) * 3), replace(network, name="another")]
    nn.init.constant_(counting.scale, 2)
    others.append(replace(network))  # whose weights are read again
    for other in others:
        assert computed(kept, other, counting, x) == 2
    keys = {
        cache._key(network, device, engine, ranges)
        for device, engine, ranges in (
            (CPU, "torch", None),
            (torch.device("cuda"), "torch", None),
            (CPU, "onnxruntime", None),
            (CPU, "onnxruntime-int8", torch.zeros(2, 2)),
            (CPU, "onnxruntime-int8", torch.ones(2, 2)),
        )
    }
    assert len(keys) == 5
    cuda = torch.device("cuda")  # onnxruntime does not use it
    assert cache._key(network, cuda, "onnxruntime", None) == cache._key(network, CPU, "onnxruntime", None)


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "json", "link"])
def test_damaged_features_are_computed_again(kept: Cache, network: Pretrained, counting: Counting, damage: str) -> None:
    x = noise(3)
    views(kept, network, x)
    (entry,), (tensors,) = files(kept), files(kept, "*.safetensors")
    data = tensors.read_bytes()
    if damage == "missing":
        tensors.unlink()
    elif damage == "json":
        entry.write_text(entry.read_text()[:-5])
    elif damage == "link":
        tensors.rename(tensors.with_name("elsewhere"))
        tensors.symlink_to("elsewhere")
    else:
        tensors.write_bytes(data[:-4] if damage == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    assert computed(again(kept), network, counting, x) == 3
    assert computed(again(kept), network, counting, x) == 0
    assert not entry.exists()


@pytest.mark.parametrize(
    "forged",
    [
        {"features": torch.zeros(3, WIDTH + 1, dtype=torch.float16)},
        {"features": torch.zeros(2, WIDTH, dtype=torch.float16)},
        {"features": torch.zeros(3, WIDTH)},
        {"features": torch.full((3, WIDTH), float("nan"), dtype=torch.float16)},
        {"features": torch.zeros(3, WIDTH, dtype=torch.float16), "more": torch.zeros(1)},
        {"features": torch.zeros(1_000_000, dtype=torch.float16)},
        {},
    ],
)
def test_forged_features_are_computed_again(
    kept: Cache, network: Pretrained, counting: Counting, forged: dict[str, Tensor]
) -> None:
    x = noise(3)
    views(kept, network, x)
    (entry,) = files(kept)
    names = json.loads(entry.read_text())["values"]
    store.save(entry.parent, entry.stem, names, forged)
    assert computed(again(kept), network, counting, x) == 3
    views(again(kept), network, x)


@pytest.mark.parametrize("values", [{"photos": [[], 2]}, {"photos": "all"}, {}, {"photos": [], "more": 1}])
def test_forged_names_are_no_names(kept: Cache, network: Pretrained, values: object) -> None:
    views(kept, network, noise(3))
    (entry,) = files(kept)
    store.save(entry.parent, entry.stem, values, safetensors.torch.load(entry.with_suffix(".safetensors").read_bytes()))
    views(again(kept), network, noise(3))
    assert not entry.exists()


def test_what_a_newer_edbl_has_written_is_left_alone(kept: Cache, network: Pretrained, counting: Counting) -> None:
    views(kept, network, noise(3))
    (entry,) = files(kept)
    store.save(entry.parent, entry.stem, {"other": 1}, {}, format=9)
    assert computed(again(kept), network, counting, noise(3)) == 3
    assert entry.exists()


def test_many_small_files_become_one(
    kept: Cache, network: Pretrained, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MANY", 5)
    monkeypatch.setattr(cache, "LARGE", 8)
    x = noise(30)
    other = again(kept)
    for k in range(30):
        views(kept, network, x[k : k + 1])
    assert len(files(kept)) < 10
    assert computed(kept, network, counting, x) == 0
    assert computed(other, network, counting, x) == 0
    assert sum(len(json.loads(path.read_text())["values"]["photos"]) for path in files(kept)) == 30


def test_it_takes_no_more_room_than_it_may(network: Pretrained, counting: Counting, tmp_path: Path) -> None:
    kept = Cache(tmp_path / "features", 4000)
    for k in range(12):
        for path in files(kept):
            older = path.stat().st_mtime - 60
            os.utime(path, (older, older))
        views(again(kept), network, noise(4, 0))  # which is of use every time
        views(kept, network, noise(4, k))
    sizes = [path.stat().st_size for path in files(kept, "*")]
    assert sum(sizes) <= 4000
    assert computed(again(kept), network, counting, noise(4, 0)) == 0
    assert computed(again(kept), network, counting, noise(4, 1)) == 4


def test_several_writers(kept: Cache, network: Pretrained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MANY", 3)
    x, wrong = noise(40), []
    expected = network.views(x, 0, seeded(), lambda done: None)

    def work(number: int) -> None:
        mine = again(kept)
        for start in range(0, 40, 4):
            rows = (torch.arange(4) + start + 4 * number) % 40
            if not torch.equal(mine.views(network, x[rows], lambda done: None), expected[rows]):
                wrong.append(start)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("after", range(4))
def test_a_full_disk_is_no_hindrance(kept: Cache, network: Pretrained, after: int) -> None:
    with full_disk(after):
        views(kept, network, noise(3))
    views(again(kept), network, noise(3))


def test_a_folder_that_takes_no_files_is_no_hindrance(kept: Cache, network: Pretrained) -> None:
    kept.folder.write_text("a file where the folder should be")
    views(kept, network, noise(3))


def test_photos_are_dropped(kept: Cache, network: Pretrained, counting: Counting) -> None:
    x = noise(4)
    kept.drop(["0" * 32])  # before there is anything
    views(kept, network, x[:2])
    views(kept, network, x[2:])
    kept.drop([digest(x[1].numpy()), digest(x[3].numpy())])
    assert [len(json.loads(path.read_text())["values"]["photos"]) for path in files(kept)] == [1, 1]
    assert computed(again(kept), network, counting, x) == 2


def test_where_it_is_and_how_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDBL_CACHE", raising=False)
    monkeypatch.delenv("EDBL_CACHE_MB", raising=False)
    monkeypatch.setenv("EDBL_DATA", str(tmp_path))
    found = cache.usual()
    assert found is not None
    assert (found.folder, found.most) == (tmp_path / "features", 10**9)
    assert cache.usual() is found
    monkeypatch.setenv("EDBL_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("EDBL_CACHE_MB", "3")
    found = cache.usual()
    assert found is not None
    assert (found.folder, found.most) == (tmp_path / "own", 3_000_000)
    monkeypatch.setenv("EDBL_CACHE_MB", "0")
    assert cache.usual() is None
    for bad in ("many", "-1", "1.5"):
        monkeypatch.setenv("EDBL_CACHE_MB", bad)
        with pytest.raises(EdblError, match=f"EDBL_CACHE_MB is '{bad}': give a whole number of MB"):
            cache.usual()
