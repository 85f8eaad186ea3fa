"""Features of photos for models: by the engine that a model names, once for each photo; what mirror images do."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from torch import Tensor

from edbl.app import bundle, mirror, photos
from edbl.nets import cache, pretrained
from edbl.nets.engines import INT8, ONNX, TORCH
from edbl.nets.pretrained import Pretrained
from tests.conftest import Cli
from tests.photos import change, digits, write_digits
from tests.test_efficientnet import fresh
from tests.test_engines import network, with_int8, with_onnx

FROZEN = ["--backbone", "efficientnet-lite0", "--tune", "head", "--device", "cpu"]


@pytest.fixture(scope="module")
def lite() -> Pretrained:
    return network(fresh())


@pytest.fixture
def asked(lite: Pretrained, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return the engine and the number of photos of each time that a network computes features."""
    calls: list[tuple[str, int]] = []
    views = Pretrained.views

    def watched(self: Pretrained, x: Tensor, *given: Any, **named: Any) -> Tensor:
        calls.append((named.get("engine") or (given[4] if len(given) > 4 else TORCH), len(x)))
        return views(self, x, *given, **named)

    monkeypatch.setattr(Pretrained, "views", watched)
    monkeypatch.setattr(pretrained, "find", lambda name: lite)
    return calls


@with_onnx
def test_a_model_is_taught_and_asked_by_the_engine_that_it_names(
    asked: list[tuple[str, int]], tmp_path: Path, cli: Cli
) -> None:
    folder, test = write_digits(tmp_path / "a", {0: 5, 1: 5}), write_digits(tmp_path / "test", {0: 3}, 50)
    for engine, options in ((ONNX, []), (TORCH, ["--engine", "torch"])):
        asked.clear()
        model = tmp_path / engine
        assert cli("learn", model, folder, *FROZEN, *options).code == 0
        assert cli("predict", model, test).code == 0
        assert {name for name, _ in asked} == {engine}
        assert bundle.read(model).settings.engine == engine
        assert f"features by {engine}" in cli("info", model).out
        assert cli("predict", model, folder, test).code == 0
    assert sum(number for _, number in asked) == 13  # of each photo once, for whichever command
    found = cli("learn", tmp_path / ONNX, folder, "--engine", "torch")
    assert "engine=torch: this model uses onnxruntime, which cannot change" in found.err
    change(tmp_path / ONNX, lambda values: values["settings"].update(engine="abacus"))
    assert "its engine is none" in cli("predict", tmp_path / ONNX, test).err


@with_onnx
def test_features_of_what_was_forgotten_go_with_its_last_version(
    asked: list[tuple[str, int]], tmp_path: Path, cli: Cli
) -> None:
    folder = write_digits(tmp_path / "a", {0: 5, 1: 5, 2: 5})
    assert cli("learn", tmp_path / "model", folder, *FROZEN).code == 0
    kept = cache.usual()
    assert kept is not None
    for command, number in ((["forget", tmp_path / "model", "digit 1"], 15), (["prune", tmp_path / "model"], 10)):
        assert cli(*command).code == 0
        found = [entry for place in kept._places() for entry in kept._listed(place).values()]
        assert sum(len(entry.value.photos) for entry in found) == number


@with_int8
@pytest.mark.parametrize("method", ["lda", "rkd"])
def test_eight_bits_from_photos_to_a_file(asked: list[tuple[str, int]], tmp_path: Path, cli: Cli, method: str) -> None:
    model, out = tmp_path / "model", tmp_path / "model.onnx"
    first, second = write_digits(tmp_path / "a", {0: 9, 1: 9}), write_digits(tmp_path / "b", {2: 9}, 20)
    short = [] if method == "lda" else ["--set", "schedule.epochs=2"]
    assert cli("learn", model, first, *FROZEN, "--engine", INT8, "--method", method, *short).code == 0
    ranges = bundle.read(model).settings.ranges
    assert len(ranges) > 50
    assert cli("learn", model, second).code == 0
    assert bundle.read(model).settings.ranges == ranges
    assert {name for name, _ in asked} == {INT8}
    found = cli("export", model, out)
    assert found.code == 0, found.err
    session = onnxruntime.InferenceSession(out.read_bytes())
    about = session.get_modelmeta().custom_metadata_map
    names, size = json.loads(about["classes"]), json.loads(about["input"])["height"]
    test = write_digits(tmp_path / "test", {0: 9, 1: 9, 2: 9}, 100)
    for line in map(json.loads, cli("predict", model, test, "--json").out.splitlines()):
        pixels = photos.read(Path(line["image"]), size).pixels
        assert pixels is not None
        (scores,) = session.run([about["readout"]], {"images": pixels.transpose(1, 2, 0)[None]})
        for one in line["classes"]:
            assert abs(scores[0][names.index(one["class"])] - one["score"]) < 2e-3
    change(model, lambda values: values["settings"].update(ranges=[]))
    assert "the ranges of its engine are none" in cli("predict", model, test).err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "abacus", *FROZEN], "unknown engine 'abacus': there are torch, onnxruntime"),
        (["--engine", "torch", "--backbone", "mlp"], "is what computes the features of a frozen backbone"),
        (["--no-mirror", *FROZEN], "lda learns from photos as they are"),
        (["--mirror", "--backbone", "mlp", "--set", "data.augment=crop"], "mirror and data.augment both say"),
    ],
)
def test_options_that_mean_nothing(
    asked: list[tuple[str, int]], tmp_path: Path, cli: Cli, options: list[str], message: str
) -> None:
    found = cli("learn", tmp_path / "model", write_digits(tmp_path / "a", {0: 2, 1: 2}), *options)
    assert (found.code, message in found.err) == (2, True), found.err
    assert not (tmp_path / "model").exists()


def pixels(flip: bool, number: int = 200) -> tuple[photos.Array, list[int], list[int]]:
    """Return pictures of digits, and whether each of them is ``flip``ped hangs on chance."""
    data = digits()
    grey = (data.images[:number] * 15.9).astype(np.uint8)
    if flip:
        turned = np.random.default_rng(0).random(number) < 0.5
        grey[turned] = grey[turned][:, :, ::-1]
    return np.repeat(grey[:, None], 3, 1), list(range(number)), data.target[:number].tolist()


def test_mirror_images_of_digits_do_harm_and_of_what_comes_both_ways_they_do_not() -> None:
    found = mirror.look(*pixels(flip=False, number=400))
    assert found.harms
    assert found.photos == 400
    assert found.plain > found.mirrored
    assert not mirror.look(*pixels(flip=True, number=400)).harms


@pytest.mark.parametrize("number", [0, 1, mirror.LEAST - 1])
def test_few_photos_say_nothing_of_mirror_images(number: int) -> None:
    assert mirror.look(*pixels(flip=False, number=number)) == mirror.Found(number, 0, 0)


def test_whether_photos_are_mirrored_is_decided_or_said(tmp_path: Path, cli: Cli) -> None:
    folder = write_digits(tmp_path / "a", {2: 40, 3: 40, 5: 40, 7: 40})
    short = ["--backbone", "mlp", "--image-size", 8, "--set", "schedule.epochs=1", "--set", "options.balance.epochs=1"]
    for name, options, mirrored in (("own", [], False), ("yes", ["--mirror"], True), ("no", ["--no-mirror"], False)):
        found = cli("learn", tmp_path / name, folder, *short, *options)
        assert found.code == 0, found.err
        made = bundle.read(tmp_path / name)
        assert made.settings.mirror == mirrored
        assert made.recipe["data.augment"] == ("crop-flip" if mirrored else "crop")
        assert ("no mirrored copies are learnt (mirror=true does)" in found.err) == (name == "own")
