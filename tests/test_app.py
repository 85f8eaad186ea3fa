"""Learning from one's own images: the commands on folders of real pictures."""

import csv
import errno
import io
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Generator, Tensor
from torch.nn import functional as F

from edbl.app import bundle as store
from edbl.app import description, photos, settings, show
from edbl.app.description import EXEMPLARS, VALIDATION, Event, Known, Score
from edbl.app.inputs import trained_on
from edbl.app.learn import HELD_KEPT, increment
from edbl.app.measuring import FACTOR, factor_of, measure
from edbl.app.opening import held_out, open_model
from edbl.app.settings import Request
from edbl.engine.progress import Progress
from edbl.errors import EdblError
from edbl.nets import pretrained
from edbl.presets import PACES
from edbl.store import lock
from tests import backbones
from tests.conftest import Cli, Finished
from tests.crossings import Crossings
from tests.photos import QUICK, SHORT, change, rewrite, write_digits
from tests.test_bundle import referenced


@dataclass(frozen=True)
class StandIn(backbones.StandIn):
    """The same, with changed copies: noise on the vector."""

    def views(
        self,
        x: Tensor,
        copies: int,
        generator: Generator,
        say: Callable[[int], None],
        device: torch.device,
        engine: str,
        ranges: Tensor | None,
        mirror: bool = True,
    ) -> Tensor:
        assert engine == "torch"
        vectors = F.adaptive_avg_pool2d(x.float().mean(1, keepdim=True), 4).flatten(1) / 64  # [n, 16]
        noise = 0.05 * torch.randn(len(x), copies, self.width, generator=generator)
        say(len(x))
        return torch.cat([vectors.unsqueeze(1), vectors.unsqueeze(1) * (1 + noise)], 1).half()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "find", lambda name: StandIn())


FROZEN = ["--backbone", "stand-in", "--device", "cpu"]
EDBL = [*FROZEN, "--method", "edbl"]


def save(path: Path, mode: str = "RGB", size: tuple[int, int] = (16, 16), **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(str(path))).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(path, **options)
    return path


def learn(cli: Cli, *arguments: object) -> Finished:
    found = cli("learn", *arguments)
    assert found.code == 0, found.err
    return found


def refused(cli: Cli, *arguments: object) -> str:
    found = cli(*arguments)
    assert found.code == 2, found.out
    assert "Traceback" not in found.err
    assert len(found.err.splitlines()) <= 2
    return found.err


def answers(cli: Cli, model: Path, *arguments: object) -> dict[str, str]:
    """Return the first answer for each picture."""
    found = cli("predict", model, *arguments, "--json")
    assert found.code == 0, found.err
    lines = [json.loads(line) for line in found.out.splitlines()]
    return {line["image"]: line["classes"][0]["class"] for line in lines}


def accuracy(found: dict[str, str]) -> float:
    return sum(Path(path).parent.name == name for path, name in found.items()) / len(found)


def test_three_increments_prediction_and_forgetting(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    model, test = tmp_path / "model", write_digits(tmp_path / "test", {0: 20, 1: 20, 2: 20, 3: 20, 4: 20}, 100)
    found = learn(cli, model, write_digits(tmp_path / "a", {0: 40, 1: 40}), *QUICK, "--memory", "per_class=10")
    assert "learnt 2 new classes (digit 0, digit 1) from 72 images" in found.out
    assert "all classes 100.0%" in found.out
    assert "before" not in found.out
    found = learn(cli, model, write_digits(tmp_path / "b", {2: 40, 3: 40}))
    assert "known classes on the same 8 images" in found.out
    assert "memory: 40 images" in found.out
    found = learn(cli, model, write_digits(tmp_path / "c", {4: 40, 0: 20}, 40))
    assert "learnt 1 new class (digit 4)" in found.out
    assert "refreshed 1 known class (digit 0)" in found.out
    bundle = store.read(model)
    assert bundle.names == [f"digit {k}" for k in range(5)]
    assert bundle.sizes == [2, 2, 1]
    assert [len(known.exemplars) for known in bundle.classes] == [10] * 5
    assert [len(known.validation) for known in bundle.classes] == [6, 4, 4, 4, 4]
    assert [known.images for known in bundle.classes] == [54, 36, 36, 36, 36]
    assert bundle.classes[0].refreshed
    assert not bundle.classes[1].refreshed
    assert referenced(model)
    whole = answers(cli, model, test)
    assert len(whole) == 100
    assert accuracy(whole) > 0.8
    assert accuracy(answers(cli, model, test, "--readout", "nme")) > 0.8

    gone = set(bundle.classes[1].exemplars + bundle.classes[1].validation)
    monkeypatch.setattr("edbl.cli.terminal.console", Console(width=20))
    found = cli("forget", model, "digit 1")
    assert found.code == 0
    assert "forgot digit 1; 4 classes left; memory: 40 images" in found.out
    assert f"earlier versions still have it: `edbl prune {model}` removes them" in found.err

    def there() -> set[str]:
        return {path.name for kind in ("exemplars", "validation") for path in (model / kind).iterdir()}

    assert there() >= gone
    assert "MB freed" in cli("prune", model).out
    assert not there() & gone
    assert store.versions(model) == []
    assert referenced(model)
    assert "digit 1" not in set(answers(cli, model, test).values())
    remaining = {path: name for path, name in answers(cli, model, test).items() if "digit 1" not in path}
    assert accuracy(remaining) > 0.8
    assert "unknown class 'digit 1'" in refused(cli, "forget", model, "digit 1")
    assert f"these are all classes of {model}" in refused(cli, "forget", model, *store.read(model).names)
    info = json.loads(cli("info", model, "--json").out)
    assert [event["kind"] for event in info["history"]] == ["learn", "learn", "learn", "forget"]
    assert info["exemplars"] == 40
    assert info["exemplar_bytes"] == sum(p.stat().st_size for p in (model / "exemplars").iterdir())
    shown = cli("info", model).out
    assert "4 classes, edbl with mlp, images of 8 x 8" in shown
    assert "forgot (digit 1)" in shown
    assert (info["history"][2]["classes"], info["history"][2]["refreshed"]) == (["digit 4"], ["digit 0"])
    learn(cli, model, tmp_path / "a")  # once more
    assert store.read(model).names[-1] == "digit 1"


def test_forgetting_tells_how_well_the_rest_was_known_before(tmp_path: Path, cli: Cli) -> None:
    poor = ["--set", "schedule.epochs=1", "--set", "schedule.lr=0.0001", "--method", "rkd", "--memory", "per_class=1"]
    folder = write_digits(tmp_path / "a", {1: 60, 8: 60, 9: 60, 3: 60, 5: 60})
    learn(cli, tmp_path / "model", folder, *QUICK, *poor, "--validation", 0.2)
    contents, made = open_model(tmp_path / "model", "cpu")
    known = measure(made, *held_out(trained_on(contents.bundle.settings), contents))
    assert cli("forget", tmp_path / "model", "digit 3").code == 0
    forgot = store.read(tmp_path / "model").history[-1]
    assert forgot.before == {name: score for name, score in known.items() if name != "digit 3"}
    assert sum(score.nme for score in forgot.before.values()) < sum(score.nme for score in forgot.after.values())


@pytest.mark.usefixtures("stand_in")
def test_a_frozen_backbone(tmp_path: Path, cli: Cli) -> None:
    model, test = tmp_path / "model", write_digits(tmp_path / "test", {0: 10, 1: 10, 2: 10}, 100)
    options = [*EDBL, "--memory", "per_class=5", "--validation", 0.5]
    learn(cli, model, write_digits(tmp_path / "a", {0: 30, 1: 30}), *options)
    assert store.read(model).settings.tune == "head"
    learn(cli, model, write_digits(tmp_path / "b", {2: 30, 1: 10}, 30))
    contents = store.load(model)
    copies = contents.bundle.settings.copies
    assert copies > 0
    assert contents.tensors["memory.x"].shape == (15, 1 + copies, 16)
    assert contents.tensors["memory.x"].dtype == torch.float16
    assert contents.tensors["validation.x"].shape == (3 * HELD_KEPT, 1, 16)  # of 15 that were held out, or 20
    assert referenced(model)
    assert cli("prune", model).code == 0
    kept = [path.stat().st_size for path in (model / "exemplars").iterdir()]
    size = sum(kept) + contents.tensors["memory.x"].nbytes
    assert len(kept) == 15
    assert json.loads(cli("info", model, "--json").out)["exemplar_bytes"] == size
    assert f"memory: 15 images, {size / 1e6:.2f} MB with their features (per_class=5); " in cli("info", model).out
    # Features on disk are those of the pictures beside them.
    whole = store.load(model, [EXEMPLARS, VALIDATION])
    for key, kind in (("memory.x", EXEMPLARS), ("validation.x", VALIDATION)):
        again = StandIn().views(
            whole.pixels(kind), 0, Generator(), lambda done: None, torch.device("cpu"), "torch", None
        )
        roots = again.float().sqrt().half()  # which a trained method learns from
        assert torch.equal(roots, contents.tensors[key][:, :1])
    assert accuracy(answers(cli, model, test)) > 0.8
    assert cli("forget", model, "digit 1").code == 0
    assert store.load(model).tensors["memory.x"].shape == (10, 1 + copies, 16)
    assert store.load(model).tensors["validation.x"].shape == (2 * HELD_KEPT, 1, 16)
    assert "edbl with stand-in (frozen)" in cli("info", model).out


@pytest.mark.usefixtures("stand_in")
def test_features_of_other_images(tmp_path: Path, cli: Cli) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 9, 1: 9})
    learn(cli, model, folder, *EDBL)
    tensors = store.load(model).tensors
    for key in ("memory.x", "validation.x"):
        for damage in (tensors[key][1:].clone(), torch.zeros(2), None):
            changed = (
                {**tensors, key: damage} if damage is not None else {k: tensors[k] for k in tensors.keys() - {key}}
            )
            rewrite(model / store.MODEL, lambda values: None, changed)
            assert f"is damaged: model.safetensors: {key}" in refused(cli, "predict", model, folder)


@pytest.mark.usefixtures("stand_in")
def test_a_frozen_backbone_that_forgets_a_class_whose_files_are_gone(tmp_path: Path, cli: Cli) -> None:
    model = tmp_path / "model"
    learn(cli, model, write_digits(tmp_path / "a", {0: 9, 1: 9}), *EDBL)
    (model / "exemplars" / store.read(model).classes[0].exemplars[0]).unlink()
    assert "is missing" in refused(cli, "predict", model, tmp_path / "a")
    assert cli("forget", model, "digit 0").code == 0
    assert set(answers(cli, model, tmp_path / "a").values()) == {"digit 1"}


def test_a_frozen_backbone_with_other_weights_is_refused(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = "a" * 64
    monkeypatch.setattr(pretrained, "find", lambda name: StandIn(digest=weights))
    model, more = tmp_path / "model", write_digits(tmp_path / "b", {2: 9})
    learn(cli, model, write_digits(tmp_path / "a", {0: 9, 1: 9, 3: 9}), *EDBL)
    assert store.read(model).settings.backbone_weights == weights
    with monkeypatch.context() as patch:
        patch.setattr("edbl.app.model.Model.learn", interrupt)
        assert cli("learn", model, more).code == 130
    weights = "b" * 64
    going_on = (["learn", model], ["predict", model, more], ["export", model, tmp_path / "a.onnx"])
    for command in (*going_on, ["learn", model, more, "--discard"]):
        found = cli(*command)
        assert found.code == 2
        assert "the weights of stand-in here are not those that the model has learnt with" in found.err
        assert "begins with bbbbbbbbbbbb, not aaaaaaaaaaaa" in found.err
    assert "has an unfinished update" in refused(cli, "forget", model, "digit 3")  # nothing was dropped
    assert cli("learn", model, "--discard").code == 0
    assert cli("forget", model, "digit 3").code == 0
    assert "the weights of stand-in here are not those" in refused(cli, "learn", model, more)


def test_features_are_not_computed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Counting(StandIn):
        def views(self, x: Tensor, *arguments: Any) -> Tensor:
            seen.append(len(x))
            return super().views(x, *arguments)

    monkeypatch.setattr(pretrained, "find", lambda name: Counting())
    folder = write_digits(tmp_path / "a", {0: 50, 1: 50})
    request = Request(folders=[str(folder)], backbone="stand-in", tune="head", method="edbl")
    with increment(tmp_path / "model", request, device="cpu", say=lambda line: None) as begun:
        assert begun is not None
        begun.prepare()
        first = begun.train
    assert seen == [64, 26, 10]
    place = tmp_path / "model" / "increment" / "views"
    (place / "train-64.safetensors").write_bytes(b"damaged")
    whole = (place / "held-0.safetensors").read_bytes()
    (place / "held-0.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with increment(tmp_path / "model", request, device="cpu", say=lambda line: None) as begun:
        assert begun is not None
        begun.prepare()
        assert torch.equal(begun.train, first)
    assert seen == [64, 26, 10, 26]  # that of photos as they are is kept for all models


def test_few_images_and_a_lone_class(tmp_path: Path, cli: Cli) -> None:
    model = tmp_path / "model"
    found = learn(cli, model, write_digits(tmp_path / "a", {0: 3}), *SHORT)
    assert "a model of one class always answers with it" in found.out
    assert "no image was held out" in found.out
    assert set(answers(cli, model, tmp_path / "a").values()) == {"digit 0"}
    found = learn(cli, model, write_digits(tmp_path / "b", {1: 3}))
    learn(cli, model, write_digits(tmp_path / "c", {2: 1}))
    bundle = store.read(model)
    assert [len(known.exemplars) for known in bundle.classes] == [3, 3, 1]
    assert bundle.files(VALIDATION) == []
    assert "digit 1" in cli("info", model).out
    assert json.loads(cli("info", model, "--json").out)["history"][0]["accuracy"] == {"cnn": None, "nme": None}
    cli("forget", model, "digit 0", "digit 1")
    assert store.read(model).names == ["digit 2"]
    assert "is the only class" in refused(cli, "forget", model, "digit 2")


def test_classes_of_one_name_are_joined(tmp_path: Path, cli: Cli) -> None:
    first = write_digits(tmp_path / "a", {0: 6, 1: 6})
    second = write_digits(tmp_path / "b", {1: 6, 2: 6}, 10)
    learn(cli, tmp_path / "model", first, second, *SHORT, "--validation", 0)
    assert [(k.name, k.images) for k in store.read(tmp_path / "model").classes] == [
        ("digit 0", 6),
        ("digit 1", 12),
        ("digit 2", 6),
    ]


def test_a_name_is_one_however_its_accents_are_written(tmp_path: Path) -> None:
    save(tmp_path / "a" / "caf\u00e9" / "x.png")
    save(tmp_path / "b" / "cafe\u0301" / "y.png")
    found, notes = photos.find([tmp_path / "a", tmp_path / "b"])
    assert {photo.name for photo in found} == {"caf\u00e9"}
    assert notes == []


def test_a_class_is_forgotten_however_its_accents_are_written(tmp_path: Path, cli: Cli) -> None:
    folder = write_digits(tmp_path / "a", {0: 3, 1: 3})
    (folder / "digit 0").rename(folder / "caf\u00e9")
    learn(cli, tmp_path / "model", folder, *SHORT)
    assert cli("forget", tmp_path / "model", "cafe\u0301").code == 0
    assert store.read(tmp_path / "model").names == ["digit 1"]


def test_an_image_that_was_held_out_is_never_learnt_from(tmp_path: Path, cli: Cli) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 30, 1: 30})
    learn(cli, model, folder, *SHORT, "--validation", 0.5, "--memory", "per_class=4")
    before = store.read(model)
    assert [len(known.validation) for known in before.classes] == [HELD_KEPT] * 2
    assert before.history[0].total().images == 30  # measured with all that were held out
    assert cli("info", model).out.splitlines()[-1].split()[-3] == "15"
    again = Path(shutil.copytree(folder, tmp_path / "renamed"))
    for number, path in enumerate(sorted(again.rglob("*.png"))):
        path.rename(path.with_name(f"{97 * number % 60}.png"))
    write_digits(again, {0: 6, 1: 6}, 100)
    found = learn(cli, model, again)
    assert "50 images left out: given twice, or in the model already" in found.err
    after = store.read(model)
    assert not set(after.files(EXEMPLARS)) & set(before.files(VALIDATION))
    assert before.files(VALIDATION) == after.files(VALIDATION)


def split(model: Path, folder: Path, **options: Any) -> tuple[set[str], set[str]]:
    """Learn, and return the digests of the images that were learnt from and of those that were held out."""
    request = Request(folders=[str(folder)], **options)
    with increment(model, request, device="cpu", say=lambda line: None) as begun:
        assert begun is not None
        begun.prepare()
        begun.commit(begun.learn(Progress()))
        rows = begun.begun.train, begun.begun.held
    train, held = ({begun.begun.digests[row] for row in some} for some in rows)
    return train, held


def test_an_image_that_was_learnt_from_is_never_held_out(tmp_path: Path) -> None:
    given = {"data.augment": "none", "schedule.epochs": 1, "options.balance.epochs": 1}
    made: dict[str, Any] = {"backbone": "mlp", "image_size": 8, "memory": "per_class=2", "given": given}
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 40, 1: 40})
    train, held = split(model, folder, validation=0.4, **made)
    assert (len(train), len(held)) == (48, 32)
    with pytest.raises(EdblError, match="the model has all these images already"):
        split(model, folder)

    def more(number: int) -> Path:
        return write_digits(tmp_path / f"b{number}", {0: 60 + 20 * number, 1: 60 + 20 * number}, 20)

    for number, share in enumerate((0.4, 0.5, 0.1, 0.5)):
        new_train, new_held = split(model, more(number), validation=share)
        assert new_held
        assert not new_held & train
        train |= new_train
    assert split(model, write_digits(tmp_path / "d", {0: 9}, 160), seed=1)[1] == set()  # whose order says nothing of it
    assert split(model, write_digits(tmp_path / "e", {0: 9}, 169), seed=0)[1] == set()
    assert split(model, write_digits(tmp_path / "c", {2: 40}))[1]


def test_an_exemplar_that_gets_another_class_is_not_held_out(tmp_path: Path, cli: Cli) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 40, 1: 9})
    learn(cli, model, folder, *SHORT, "--validation", 0.5)
    zero = store.read(model).classes[0]
    more = write_digits(tmp_path / "b", {2: 40}) / "new"
    more.mkdir()
    for path in sorted((folder / "digit 0").iterdir()):
        file = f"{photos.digest(photos.read(path, 8).pixels)}.png"  # type: ignore[arg-type]
        if file in zero.exemplars[:15] + zero.validation[:2]:
            path.rename(more / path.name)
    request = Request(folders=[str(more.parent)], relabel=True)
    with increment(model, request, device="cpu", say=lambda _: None) as made:
        assert made is not None
        given = made.begun
        held = {given.digests[row] for row in given.held if given.names[given.labels[row]] == "new"}
    assert held == {file.removesuffix(".png") for file in zero.validation[:2]}


def test_an_image_that_the_model_keeps_under_another_name(tmp_path: Path, cli: Cli) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 6, 1: 6})
    learn(cli, model, folder, *SHORT)
    renamed = write_digits(tmp_path / "b", {0: 6, 2: 6})
    (renamed / "digit 0").rename(renamed / "zero")
    error = refused(cli, "learn", model, renamed)
    assert f"{renamed}/zero/000.png, given as 'zero', known as 'digit 0'" in error
    assert "and 1 more" in error
    assert f"`edbl rename {model} 'digit 0' zero` first" in error
    assert store.read(model).names == ["digit 0", "digit 1"]
    assert cli("rename", model, "digit 0", "zero").code == 0
    learn(cli, model, renamed)
    assert [(k.name, k.images) for k in store.read(model).classes] == [("zero", 5), ("digit 1", 5), ("digit 2", 5)]


def test_an_image_in_two_classes_is_refused(tmp_path: Path, cli: Cli) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 3, 1: 3})
    shutil.copy(folder / "digit 0" / "000.png", folder / "digit 1" / "same.png")
    said = refused(cli, "learn", model, folder, *SHORT)
    assert "same.png as 'digit 1' and" in said
    assert "000.png as 'digit 0'\nremove it from one of them" in said
    assert not model.exists()


def test_a_model_among_the_photos_is_refused(tmp_path: Path, cli: Cli) -> None:
    folder = write_digits(tmp_path / "a", {0: 3, 1: 3})
    assert "lies among the photos" in refused(cli, "learn", folder / "model", folder, *SHORT)
    assert not (folder / "model").exists()


def test_a_first_increment_that_is_under_way_is_left_alone(tmp_path: Path, cli: Cli) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 3, 1: 3})
    (model / "increment").mkdir(parents=True)
    (model / "increment" / "images.npy").touch()
    with lock(model):  # as by a process that still reads its photos
        found = cli("learn", model, folder, *SHORT)
        assert (found.code, "another process" in found.err) == (75, True)
        assert (model / "increment" / "images.npy").exists()
        assert (model / ".lock").exists()


def test_a_smaller_memory_is_kept_to_when_no_new_class_comes(tmp_path: Path, cli: Cli) -> None:
    model = tmp_path / "model"
    learn(cli, model, write_digits(tmp_path / "a", {0: 8, 1: 8}), *SHORT, "--memory", "per_class=6")
    more = write_digits(tmp_path / "b", {0: 12})
    shutil.rmtree(tmp_path / "a")
    learn(cli, model, more, "--memory", "per_class=2")
    assert [len(known.exemplars) for known in store.read(model).classes] == [2, 2]


def test_a_class_that_learns_nothing_is_not_refreshed(tmp_path: Path, cli: Cli) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 3, 1: 3})
    learn(cli, model, folder, *SHORT)
    assert cli("forget", model, "digit 0").code == 0
    learn(cli, model, folder)
    event = store.read(model).history[-1]
    assert (event.classes, event.refreshed) == (["digit 0"], [])


@pytest.mark.parametrize("given", ["[0.5,0.5]", "[0.5,0.5,0.5,0.5]"])
def test_channels_that_photos_do_not_have(tmp_path: Path, cli: Cli, given: str) -> None:
    folder = write_digits(tmp_path / "a", {0: 3, 1: 3})
    (folder / "digit 0" / "bad.png").touch()  # photos, which may be many, are not read before
    said = refused(cli, "learn", tmp_path / "model", folder, *SHORT, "--set", f"data.mean={given}")
    assert "data.mean and data.std need 3 values" in said
    assert not (tmp_path / "model").exists()


def test_what_is_known_already_is_not_learnt(tmp_path: Path, cli: Cli) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 4, 1: 4})
    learn(cli, model, folder, *SHORT)
    assert "the model has all these images already" in refused(cli, "learn", model, folder)
    assert store.read(model).increments == 1
    assert not (model / "increment" / "begun.json").exists()


def test_the_same_command_makes_the_same_model(tmp_path: Path, cli: Cli) -> None:
    folder = write_digits(tmp_path / "a", {0: 8, 1: 8})
    weights = []
    for name, seed in (("x", 0), ("y", 0), ("z", 1)):
        learn(cli, tmp_path / name, folder, *SHORT, "--seed", seed)
        weights.append(store.read(tmp_path / name).weights)
    assert weights[0] == weights[1] != weights[2]


KINDS: dict[str, Callable[[Path], object]] = {
    "grey.png": lambda path: save(path, "L"),
    "alpha.png": lambda path: save(path, "RGBA"),
    "palette.gif": lambda path: save(path, "P"),
    "cmyk.jpg": lambda path: save(path, "CMYK"),
    "bits.png": lambda path: save(path, "1"),
    "wide.jpg": lambda path: save(path, size=(90, 11)),
    "tall.webp": lambda path: save(path, size=(5, 300)),
    "pixel.bmp": lambda path: save(path, size=(1, 1)),
    "moving.gif": lambda path: save(path, "P", save_all=True, append_images=[Image.new("P", (16, 16), 3)]),
    "deep.tiff": lambda path: Image.fromarray(np.arange(256, dtype=np.uint16).reshape(16, 16) * 200).save(path),
}


def test_every_kind_of_picture(tmp_path: Path, cli: Cli) -> None:
    folder = write_digits(tmp_path / "a", {0: 3, 1: 3})
    for name, make in KINDS.items():
        make(folder / "digit 0" / name)
    found = learn(cli, tmp_path / "model", folder, *SHORT)
    assert "7 images were not RGB and were converted" in found.err
    assert store.read(tmp_path / "model").classes[0].images + 1 == 3 + len(KINDS)
    assert len(answers(cli, tmp_path / "model", folder)) == 6 + len(KINDS)


def test_a_turned_photo_is_turned_back_and_a_large_one_is_read_the_same(tmp_path: Path) -> None:
    left = Image.new("RGB", (400, 400))
    left.paste((255, 255, 255), (0, 0, 200, 400))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it rotated by 90 degrees
    left.save(tmp_path / "turned.jpg", exif=exif)
    left.save(tmp_path / "plain.jpg")
    turned, plain = (photos.read(tmp_path / f"{name}.jpg", 8).pixels for name in ("turned", "plain"))
    assert turned is not None
    assert plain is not None
    assert turned[0, 0].min() > 250
    assert turned[0, -1].max() < 5
    assert plain[0, :, 0].min() > 250


BAD: dict[str, Callable[[Path], object]] = {
    "empty.jpg": lambda path: path.write_bytes(b""),
    "text.png": lambda path: path.write_text("no image"),
    "cut.png": lambda path: path.write_bytes(save(path).read_bytes()[:200]),
    "page.gif": lambda path: path.write_bytes(b"<html>"),
    "link.png": lambda path: path.symlink_to("nowhere.png"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named_and_can_be_skipped(tmp_path: Path, cli: Cli, name: str) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 3, 1: 3})
    BAD[name](folder / "digit 0" / name)
    error = refused(cli, "learn", model, folder, *SHORT)
    assert f"digit 0/{name} (" in error
    assert "--skip-bad" in error
    assert not model.exists()
    found = learn(cli, model, folder, *SHORT, "--skip-bad")
    assert f"1 image left out: {folder}/digit 0/{name} (" in found.err
    found = cli("predict", model, folder, "--csv")
    assert found.code == 2
    assert f"1 image of 7 cannot be used:\n{folder}/digit 0/{name} (" in found.err
    rows = list(csv.reader(io.StringIO(found.out)))
    assert len(rows) == 8
    assert {len(row) for row in rows} == {7}
    (bad,) = (row for row in rows[1:] if row[6])
    assert bad[0] == f"{folder}/digit 0/{name}"
    assert bad[1:6] == [""] * 5
    assert f"{bad[0]} ({bad[6]})" in found.err
    found = cli("predict", model, folder, "--csv", "--skip-bad")
    assert found.code == 0
    assert name in found.err


def test_predictions_name_every_bad_file(tmp_path: Path, cli: Cli) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 3, 1: 3})
    learn(cli, model, folder, *SHORT)
    for number in range(7):
        (folder / f"bad {number}.png").write_text("no image")
    lines = [f"{folder}/bad {number}.png (not an image)" for number in range(7)]
    for options in ([], ["--csv"], ["--json"], ["--skip-bad"]):
        said = cli("predict", model, folder, *options).err.splitlines()
        assert said[0].endswith("7 images of 13 cannot be used:")
        assert said[1:] == lines


def test_folders_that_cannot_be_learnt(tmp_path: Path, cli: Cli) -> None:
    model = tmp_path / "model"
    assert "does not exist" in refused(cli, "learn", model, tmp_path / "none")
    save(tmp_path / "loose" / "x.png")
    assert "has no class folder" in refused(cli, "learn", model, tmp_path / "loose")
    assert "is a file" in refused(cli, "learn", model, tmp_path / "loose" / "x.png")
    (tmp_path / "hollow" / "cat").mkdir(parents=True)
    save(tmp_path / "hollow" / "loose.png")
    said = refused(cli, "learn", model, tmp_path / "hollow")
    assert "class 'cat' has no image" in said
    assert "(1 image outside of class folders left out: loose.png)" in said
    (tmp_path / "hollow" / "cat" / "x.png").write_text("no image")
    error = refused(cli, "learn", model, tmp_path / "hollow", "--skip-bad", *SHORT)
    assert "class 'cat' has no image that can be read" in error
    assert f"there is no model {model} yet" in refused(cli, "learn", model)
    assert not model.exists()
    assert "holds other things than a model" in refused(cli, "learn", tmp_path / "loose", tmp_path / "hollow")
    assert "is a file" in refused(cli, "learn", tmp_path / "loose" / "x.png", tmp_path / "hollow")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "cat").symlink_to(tmp_path / "hollow" / "cat")
    error = refused(cli, "learn", model, tmp_path / "links")
    assert f"has no class folder (1 link out of {tmp_path / 'links'} not followed)" in error
    for command in (["predict", model, tmp_path], ["info", model], ["forget", model, "cat"]):
        assert f"{model} does not exist; `edbl learn {model} FOLDER` makes one" in refused(cli, *command)
    assert "holds no model" in refused(cli, "info", tmp_path / "loose")


@pytest.mark.parametrize("file", ["cat/x.png", "views/x.png", "checkpoints/task-0.png", "images.npy.png"])
def test_a_folder_increment_that_is_not_a_models_is_left_alone(tmp_path: Path, cli: Cli, file: str) -> None:
    own, photos = tmp_path / "own", write_digits(tmp_path / "a", {0: 3, 1: 3})
    mine = save(own / "increment" / file)
    for command in ([own, own / "increment"], [own, photos, *SHORT], [own, photos, *SHORT, "--discard"]):
        error = refused(cli, "learn", *command)
        assert f"{own} holds other things than a model, such as {own / 'increment'}/" in error
    assert [path.name for path in own.iterdir()] == ["increment"]
    learn(cli, tmp_path / "model", photos, *SHORT)
    (own / "increment").rename(tmp_path / "model" / "increment")
    for more in ([photos], ["--discard"], []):
        assert "holds other things than a model" in refused(cli, "learn", tmp_path / "model", *more)
    assert (tmp_path / "model" / mine.relative_to(own)).exists()


def test_a_folder_with_an_empty_folder_increment_is_no_model(tmp_path: Path, cli: Cli) -> None:
    save(tmp_path / "own" / "x.png")
    (tmp_path / "own" / "increment").mkdir()
    error = refused(cli, "learn", tmp_path / "own", write_digits(tmp_path / "a", {0: 3, 1: 3}), *SHORT)
    assert f"{tmp_path / 'own'} holds other things than a model, such as {tmp_path / 'own' / 'x.png'}" in error


def test_photos_that_lie_in_the_model(tmp_path: Path, cli: Cli) -> None:
    model = tmp_path / "model"
    learn(cli, model, write_digits(tmp_path / "a", {0: 3, 1: 3}), *SHORT)
    photos = write_digits(model / "more", {2: 3})
    for folder in (model, photos):
        assert f"{folder} lies in the model {model}" in refused(cli, "learn", model, folder)
    assert len(list(photos.rglob("*.png"))) == 3


@pytest.mark.parametrize("command", [["info"], ["forget", "digit 0"], ["learn", "nowhere"]])
def test_copies_of_photos_that_were_read_for_nothing_do_not_stay(tmp_path: Path, cli: Cli, command: list[str]) -> None:
    model, more = tmp_path / "model", write_digits(tmp_path / "b", {2: 3})
    learn(cli, model, write_digits(tmp_path / "a", {0: 3, 1: 3}), *SHORT)
    (more / "digit 2" / "bad.png").write_text("no picture")
    refused(cli, "learn", model, more)
    assert not (model / "increment").exists()
    (model / "increment").mkdir()
    (model / "increment" / "images.npy").touch()  # as if killed
    cli(command[0], model, *command[1:])
    assert not (model / "increment").exists()


def test_an_empty_folder_of_the_users_stays(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "model").mkdir()
    refused(cli, "learn", tmp_path / "model", tmp_path / "nowhere")
    assert list((tmp_path / "model").iterdir()) == []


def test_class_folders_whose_names_are_no_text_stay_apart(tmp_path: Path, cli: Cli) -> None:
    write_digits(tmp_path / "a", {0: 3, 1: 3})
    try:
        for digit, name in ((0, b"b\xe4r"), (1, b"b\xf6r")):
            os.rename(os.fsencode(tmp_path / "a" / f"digit {digit}"), os.fsencode(tmp_path / "a") + b"/" + name)
    except OSError:
        pytest.skip("this file system wants names to be text")
    learn(cli, tmp_path / "model", tmp_path / "a", *SHORT)
    assert store.read(tmp_path / "model").names == ["b\\udce4r", "b\\udcf6r"]


def test_names_that_a_terminal_cannot_show(tmp_path: Path, cli: Cli) -> None:
    folder = write_digits(tmp_path / "a", {0: 3, 1: 3})
    (folder / "digit 0").rename(folder / "零")
    learn(cli, tmp_path / "model", folder, *SHORT)
    command = [sys.executable, "-m", "edbl", "info", str(tmp_path / "model")]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=ascii_only)
    assert (found.returncode, found.stderr) == (0, "")
    assert "\\u96f6" in found.stdout


@pytest.mark.parametrize(("call", "below"), [("listdir", ""), ("stat", "/.")])
def test_a_folder_that_may_not_be_read_is_named(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, call: str, below: str
) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 3, 1: 3})
    learn(cli, model, folder, *SHORT)
    shut, able = write_digits(folder / "digit 0", {2: 3}) / "digit 2", getattr(os, call)

    def refuse(path: Any, *given: Any, **more: Any) -> Any:
        if os.fspath(path) == f"{shut}{below}":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return able(path, *given, **more)

    monkeypatch.setattr(os, call, refuse)
    for command in ("predict", "learn"):
        assert f"folder {shut} cannot be read: Permission denied" in refused(cli, command, model, folder)
    said = refused(cli, "run", "finetune", "--data", folder, "--out", tmp_path / "run")
    assert f"folder {shut} cannot be read: Permission denied" in said


def test_links_that_are_not_followed_are_told_of(tmp_path: Path, cli: Cli) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 3, 1: 3})
    learn(cli, model, folder, *SHORT)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1.png").symlink_to(folder / "digit 0" / "000.png")
    assert "(1 link out of" in refused(cli, "predict", model, tmp_path / "b")
    shutil.copy(folder / "digit 0" / "000.png", tmp_path / "b" / "2.png")
    found = cli("predict", model, tmp_path / "b", "--csv")
    assert found.code == 0
    assert found.err.startswith("note: in ")
    assert "1 link out of" in found.err
    assert len(found.out.splitlines()) == 2


def test_dropping_takes_no_other_options(tmp_path: Path, cli: Cli) -> None:
    learn(cli, tmp_path / "model", write_digits(tmp_path / "a", {0: 3, 1: 3}), *SHORT)
    assert "discard alone" in refused(cli, "learn", tmp_path / "model", "--discard", "--memory", "total=1")


def test_a_full_disk(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, start: int, size: int) -> None:
        assert size == 128 + 6 * 3 * 8 * 8  # a header and the images
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    model = tmp_path / "model"
    error = refused(cli, "learn", model, write_digits(tmp_path / "a", {0: 3, 1: 3}), *SHORT)
    assert f"cannot write '{model}/increment/images.npy': No space left on device" in error
    assert not model.exists()


def test_an_increment_whose_answers_are_no_numbers_is_dropped(tmp_path: Path, cli: Cli) -> None:
    model, test = tmp_path / "model", write_digits(tmp_path / "test", {0: 5, 1: 5}, 50)
    options = [*QUICK, "--method", "rkd", "--set", "schedule.epochs=5"]
    learn(cli, model, write_digits(tmp_path / "a", {0: 20, 1: 20}), *options)
    before = store.read(model), answers(cli, model, test)
    far = ["--set", "schedule.epochs=1", "--set", "schedule.lr=1e12"]
    error = refused(cli, "learn", model, write_digits(tmp_path / "b", {2: 20}), *far)
    assert "the network's outputs are NaN after training; lower the learning rate" in error
    assert "the model unchanged" in error
    assert (store.read(model), answers(cli, model, test)) == before
    assert not store.begun(model)


def test_a_data_set_with_train_and_test(tmp_path: Path, cli: Cli) -> None:
    write_digits(tmp_path / "a" / "train", {0: 3, 1: 3})
    write_digits(tmp_path / "a" / "test", {0: 3, 1: 3}, 9)
    write_digits(tmp_path / "a" / "val", {0: 3, 1: 3}, 12)
    save(tmp_path / "a" / "train" / "stray.png")
    save(tmp_path / "a" / "cover.png")
    (tmp_path / "a" / "labels.csv").write_text("no image")
    found = learn(cli, tmp_path / "model", tmp_path / "a", *SHORT)
    assert "only images in" in found.err
    assert "folder val left out: there is a folder test" in found.err
    assert "2 images outside of class folders left out: cover.png, train/stray.png" in found.err
    assert "1 file without an image extension ignored: labels.csv" in found.err
    assert store.read(tmp_path / "model").seen_images == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "joint"], "keeps all images ever seen"),
        (["--method", "own.py"], "a model must need nothing but its folder"),
        (["--method", "edlb"], "did you mean 'edbl'?"),
        (["--backbone", "reznet32"], "from scratch mlp, resnet18, resnet18-large, resnet32, small"),
        (["--backbone", "given"], "unknown pretrained network"),
        (["--backbone", "mlp", "--tune", "head"], "nothing to freeze"),
        (["--tune", "tail"], "unknown value of tune"),
        (["--memory", "many"], "memory 'many' is not understood"),
        (["--memory", "total=1"], "smaller than one image for each of 2 classes"),
        (["--memory", "total=9", "--memory-mb", "1"], "give one of them"),
        (["--memory-mb", "0"], "must be a number above 0"),
        (["--memory-mb", "inf"], "must be a number above 0"),
        (["--memory-mb", "0.0001"], "holds no image"),
        (["--image-size", "4"], "must be 8 to 1024"),
        (["--validation", "0.9"], "must be a share"),
        (["--seed", "-1"], "must be 0 or more"),
        (["--method", "rkd", "--set", "gamma=3"], "it is an option of edbl, ib, iib, iib-kd, not of rkd"),
        (["--set", "net.backbone=mlp"], "it has the setting backbone"),
        (["--set", "stream.tasks=3"], "a model has no such setting"),
        (["--set", "nonsense"], "write KEY=VALUE"),
        (["--set", "schedule.epoch=3"], "did you mean"),
        (["--set", "epochs=1", "--set", "epochs=2"], "--set gives epochs twice"),
        (["--set", "batch=4", "--set", "optim.batch=5"], "optim.batch is given twice"),
    ],
)
def test_bad_options(tmp_path: Path, cli: Cli, options: list[str], message: str) -> None:
    folder = write_digits(tmp_path / "a", {0: 3, 1: 3})
    more = [] if "--backbone" in options else ["--backbone", "mlp"]
    assert message in refused(cli, "learn", tmp_path / "model", folder, *options, *more)
    assert not (tmp_path / "model").exists()


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("method", ["mnemonics", "podnet"])
def test_methods_that_a_frozen_backbone_does_not_suit(tmp_path: Path, cli: Cli, method: str) -> None:
    folder = write_digits(tmp_path / "a", {0: 3, 1: 3})
    error = refused(cli, "learn", tmp_path / "model", folder, "--backbone", "stand-in", "--method", method)
    assert "which a frozen backbone does not give it" in error


@pytest.mark.usefixtures("stand_in")
def test_settings_that_a_frozen_backbone_has_no_use_for(tmp_path: Path, cli: Cli) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 3, 1: 3})
    options = [*EDBL, "--tune", "head", "--set", "schedule.epochs=1"]
    for given in ("data.augment=crop", "pad=2", "data.mean=[0.5]", "backbone_lr=0.1", "optim.fixed_norm=true"):
        error = refused(cli, "learn", model, folder, *options, "--set", given)
        assert "does not apply to a frozen backbone; leave it out, or use tune=all" in error
    learn(cli, model, folder, *options, "--set", "optim.batch=4")
    more = write_digits(tmp_path / "b", {2: 3})
    assert "data.cutout does not apply" in refused(cli, "learn", model, more, "--set", "data.cutout=2")
    change(model, lambda s: s["settings"]["given"].update({"data.augment": "crop"}))  # of an earlier edbl
    learn(cli, model, more)


@pytest.mark.usefixtures("stand_in")
def test_a_method_that_looks_into_its_net_does_not_suit_one_of_timm(tmp_path: Path, cli: Cli) -> None:
    folder, net = write_digits(tmp_path / "a", {0: 3, 1: 3}), ("--backbone", "timm:net", "--tune", "all")
    error = refused(cli, "learn", tmp_path / "model", folder, *net, "--method", "podnet")
    assert "podnet reads inner layers, which networks of timm do not expose" in error


def test_what_is_fixed_and_what_may_change(tmp_path: Path, cli: Cli) -> None:
    model, second = tmp_path / "model", write_digits(tmp_path / "b", {2: 6})
    learn(cli, model, write_digits(tmp_path / "a", {0: 6, 1: 6}), *SHORT)
    for options in (["--method", "rkd"], ["--backbone", "small"], ["--image-size", 16], ["--tune", "head"]):
        assert "cannot change" in refused(cli, "learn", model, second, *options)
    assert "create another model" in refused(cli, "learn", model, second, "--set", "data.mean=[0.1]")
    learn(cli, model, second, "--image-size", 8, "--memory", "total=6", "--seed", 3, "--set", "optim.batch=4")
    bundle = store.read(model)
    assert [len(known.exemplars) for known in bundle.classes] == [2, 2, 2]
    assert bundle.settings.seed == 3
    assert bundle.settings.given["optim.batch"] == 4
    assert bundle.settings.given["schedule.epochs"] == 4  # as it was


@pytest.mark.parametrize("method", ["rkd", "er", "icarl", "der-net", "lwf"])
def test_other_methods(tmp_path: Path, cli: Cli, method: str) -> None:
    model = tmp_path / "model"
    options = [*QUICK, "--method", method, "--set", "schedule.epochs=2"]
    learn(cli, model, write_digits(tmp_path / "a", {0: 6, 1: 6}), *options)
    learn(cli, model, write_digits(tmp_path / "b", {2: 6}))
    assert store.read(model).names == ["digit 0", "digit 1", "digit 2"]
    assert referenced(model)
    assert len(answers(cli, model, tmp_path / "b")) == 6


def test_exemplars_that_a_method_has_changed_are_kept_as_they_are(tmp_path: Path, cli: Cli) -> None:
    model, first = tmp_path / "model", write_digits(tmp_path / "a", {0: 8, 1: 8})
    options = ["--backbone", "small", "--image-size", 8, "--device", "cpu", "--method", "mnemonics"]
    short = [word for key in ("schedule", "options.exemplars") for word in ("--set", f"{key}.epochs=2")]
    far = ["--set", "options.exemplars.lr=100"]  # so that bytes change
    learn(cli, model, first, *options, *short, *far, "--memory", "per_class=3")
    learn(cli, model, write_digits(tmp_path / "b", {2: 8}))
    bundle = store.read(model)
    assert referenced(model)
    given = {photos.digest(cast(Any, photos.read(path, 8).pixels)) for path in tmp_path.glob("[ab]/*/*.png")}
    kept = {file.removesuffix(".png") for file in bundle.files(EXEMPLARS)}
    assert len(kept) == 9
    assert not kept <= given  # pixels that no photo has
    contents, made = open_model(model, "cpu")
    assert torch.equal(made.memory.images.x, contents.pixels(EXEMPLARS))
    assert len(answers(cli, model, first)) == 16


def test_predictions_in_three_formats(tmp_path: Path, cli: Cli) -> None:
    model = tmp_path / "model"
    folder = write_digits(tmp_path / "a, b", {0: 5, 1: 5})
    learn(cli, model, folder, *SHORT)
    table = cli("predict", model, folder / "digit 0" / "000.png")
    assert table.code == 0
    assert "probability" in table.out
    rows = list(csv.reader(io.StringIO(cli("predict", model, folder, "--csv", "--top", 9, "--readout", "cnn").out)))
    assert rows[0] == ["image", "class_1", "score_1", "class_2", "score_2", "unknown", "error"]
    assert len(rows) == 11
    assert all(len(row) == 7 and row[5] in ("true", "false") for row in rows[1:])
    assert not any(row[6] for row in rows[1:])
    assert all(math.isclose(float(row[2]) + float(row[4]), 1, abs_tol=1e-5) for row in rows[1:])
    line = json.loads(cli("predict", model, folder / "digit 0" / "000.png", "--json", "--readout", "nme").out)
    assert line["readout"] == "nme"
    assert line["unknown"] is False
    assert sum(one["score"] for one in line["classes"]) == pytest.approx(1, abs=1e-5)
    (tmp_path / "bad.png").write_bytes(b"none")
    bad, good = map(json.loads, cli("predict", model, tmp_path / "bad.png", folder, "--json").out.splitlines()[:2])
    assert (bad["unknown"], bad["error"], good["unknown"]) == (False, "not an image", False)
    assert "two formats" in refused(cli, "predict", model, folder, "--json", "--csv")
    (tmp_path / "hollow").mkdir()
    assert "holds no image" in refused(cli, "predict", model, tmp_path / "hollow")
    assert cli("predict", model, folder, "--device", "gpu").code == 2
    error = refused(cli, "predict", model, tmp_path / "none.png")
    assert "none.png (No such file or directory)" in error
    assert cli("predict", model, tmp_path / "none.png").out == ""


def test_probabilities_are_calibrated_by_images_that_were_held_out(tmp_path: Path, cli: Cli) -> None:
    model, few = tmp_path / "model", tmp_path / "few"
    folder = write_digits(tmp_path / "a", dict.fromkeys(range(5), 40))
    learn(cli, model, folder, *SHORT, "--validation", "0.3")
    learn(cli, few, folder, *SHORT, "--validation", "0.1")
    contents, opened = open_model(model, "cpu")
    assert float(contents.tensors[FACTOR]) == opened.factor != 1
    assert open_model(few, "cpu")[1].factor == 1  # 20 images tell too little
    x, labels = held_out(trained_on(contents.bundle.settings), contents)
    y = torch.tensor([opened.names.index(name) for name in labels])
    found, factor = opened.probabilities(x), opened.factor
    opened.factor = 1.0
    bare = opened.probabilities(x)
    torch.testing.assert_close(found, (bare.double().log() * factor).softmax(1).float(), rtol=1e-4, atol=1e-6)
    assert F.nll_loss(found.log(), y) < F.nll_loss(bare.log(), y)
    said = [json.loads(line) for line in cli("predict", model, folder / "digit 0", "--json").out.splitlines()]
    assert cli("export", model, tmp_path / "m.onnx").code == 0  # which compares it with the model
    place, scores = sorted((folder / "digit 0").iterdir())[0], dict.fromkeys(opened.names, 0.0)
    scores |= {one["class"]: one["score"] for one in said[0]["classes"]}
    pixels = photos.read(place, 8).pixels
    assert pixels is not None
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    cnn = session.run(["cnn"], {"images": pixels.transpose(1, 2, 0)[None]})[0][0]
    best = max(scores, key=scores.__getitem__)
    assert cnn[opened.names.index(best)] == pytest.approx(scores[best], abs=1e-5)
    for value in (torch.tensor(-1.0), torch.tensor([1.0, 2.0]), torch.tensor(float("nan"))):
        with pytest.raises(ValueError, match="no positive number"):
            factor_of({FACTOR: value})


def test_the_read_out_that_was_better_is_used(tmp_path: Path, cli: Cli) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 6, 1: 6})
    learn(cli, model, folder, *SHORT)
    for readout in ("cnn", "nme"):
        change(model, partial(dict.update, readout=readout))
        assert json.loads(cli("predict", model, folder, "--json").out.splitlines()[0])["readout"] == readout
        assert f"({readout.upper()})" in cli("info", model).out


def test_memory_in_megabytes(tmp_path: Path, cli: Cli) -> None:
    learn(cli, tmp_path / "model", write_digits(tmp_path / "a", {0: 9, 1: 9}), *SHORT, "--memory-mb", 0.002)
    bundle = store.read(tmp_path / "model")
    assert bundle.settings.memory == f"total={2000 // (3 * 64)}"
    assert len(bundle.files(EXEMPLARS)) == 10


def test_the_image_size_is_that_of_most_pictures(tmp_path: Path) -> None:
    small = [photos.Photo(save(tmp_path / f"{k}.png", size=(40, 60)), "a") for k in range(3)]
    large = [photos.Photo(save(tmp_path / f"large-{k}.png", size=(90, 60)), "a") for k in range(4)]
    bad = photos.Photo(tmp_path / "none.png", "a")
    assert photos.usual_size([*small, bad]) == 32
    assert photos.usual_size([*small, *large, bad]) == 64
    assert photos.usual_size([bad]) == 32


def test_the_backbone_that_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures, cpu = [photos.Photo(save(tmp_path / "x.png"), "a")], torch.device("cpu")
    monkeypatch.setattr(pretrained, "default", lambda: None)
    made = settings.choose(Request(), pictures, cpu)
    assert (made.backbone, made.tune, made.image_size, made.copies) == ("small", "all", 32, 0)
    assert [trained_on(replace(made, image_size=side)).training(9).data.pad for side in (32, 1024)] == [4, 64]
    monkeypatch.setattr(pretrained, "default", lambda: "stand-in")
    monkeypatch.setattr(pretrained, "find", lambda name: StandIn())
    made = settings.choose(Request(), pictures, cpu)
    assert (made.backbone, made.tune, made.image_size) == ("stand-in", "head", 8)
    assert (made.method, made.keep, made.memory, made.validation, made.copies) == ("lda", "features", "none", 0, 0)
    trained = settings.choose(Request(method="edbl"), pictures, cpu)
    assert (trained.keep, trained.root, trained.memory) == (None, True, settings.MEMORY)
    assert trained.copies > 0
    tuned = settings.choose(Request(tune="all"), pictures, cpu)
    assert (tuned.method, tuned.copies, tuned.keep) == ("edbl", 0, None)


@pytest.mark.parametrize("images", [3, 50, 500, 50_000])
def test_schedules_suit_the_number_of_images(images: int) -> None:
    chosen = description.Settings("edbl", "mlp", "all", 8, "per_class=20", 0, 0.1, 0, {})
    made = trained_on(chosen).training(images)
    least, most, _ = PACES["photos-scratch"]
    assert least <= made.schedule.epochs <= most
    assert made.optim.batch <= max(2, images)
    assert made.schedule.epochs == least or images < 5000


@pytest.mark.parametrize(
    ("without", "said"),
    [
        (0, "20 more classes: 20 of no worse accuracy"),
        (5, "20 more classes: 15 of no worse accuracy and 5 without held-out images"),
        (60, "20 more classes: 20 without held-out images"),
    ],
)
def test_many_classes_are_shown_worst_first(without: int, said: str) -> None:
    classes = [Known(f"c{k}", "2030-01-01") for k in range(60)]
    scores = {f"c{k}": Score(0, 0, 0) if k < without else Score(10, 10 - k % 7, 10) for k in range(60)}
    event = Event("learn", "2030-01-01", [], [], 1, 1, 1.0, scores, {}, {})
    chosen = description.Settings("edbl", "mlp", "all", 8, "per_class=20", 0, 0.1, 0, {})
    made = description.Bundle(chosen, {}, classes, [60], 1, 1, [event], "cnn")
    table, more = show.by_class(made, event)
    assert more == f"and {said}"
    assert getattr(table, "row_count") == 40  # noqa: B009


def interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_command_says_how_to_go_on(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, model = write_digits(tmp_path / "a", {0: 3, 1: 3}), tmp_path / "model"
    with monkeypatch.context() as patch:
        patch.setattr("edbl.app.model.Model.learn", interrupt)
        found = cli("learn", model, folder, *SHORT)
    assert found.code == 130
    assert f"`edbl learn {model}` continues where it stopped" in found.err
    assert "continuing" in learn(cli, model).err


def test_a_command_that_was_interrupted_while_photos_were_read_starts_again(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = write_digits(tmp_path / "a", {0: 3, 1: 3}), tmp_path / "model"
    command = [model, folder, *SHORT]
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(photos, "read_into", interrupt)
            found = cli("learn", *command)
        assert found.code == 130
        assert found.err == "interrupted; the same command starts again\n"
        learn(cli, *command)
        command = [model, write_digits(tmp_path / "b", {2: 3})]


def test_a_request_is_checked_from_python_too(tmp_path: Path) -> None:
    with pytest.raises(EdblError, match="value of tune"), increment(tmp_path / "m", Request(tune="tail")):
        pass


def test_a_class_gets_another_name(tmp_path: Path, cli: Cli) -> None:
    model, folder = tmp_path / "a model", write_digits(tmp_path / "a", {0: 6, 1: 6, 2: 6})
    learn(cli, model, folder, *SHORT)
    before = [json.loads(line)["classes"] for line in cli("predict", model, folder, "--json").out.splitlines()]
    assert cli("forget", model, "digit 1").code == 0
    assert cli("rename", model, "digit 2", "digit 1").out == "'digit 2' is 'digit 1' now\n"
    found = store.read(model)
    assert found.names == ["digit 0", "digit 1"]
    learnt, forgot, renamed = found.history
    assert (renamed.kind, renamed.classes) == ("rename", ["digit 2", "digit 1"])
    assert learnt.classes == ["digit 0", "digit 1", "digit 2"]  # the class that had the name once keeps its past
    assert list(learnt.scores) == ["digit 0", "digit 1", "digit 2"]
    assert (forgot.classes, list(forgot.scores)) == (["digit 1"], ["digit 0", "digit 1"])
    assert referenced(model)
    assert cli("rename", model, "digit 1", "deux").code == 0
    assert list(store.read(model).history[-1].scores) == ["digit 0", "deux"]
    after = [json.loads(line)["classes"] for line in cli("predict", model, folder, "--json").out.splitlines()]
    assert len(after) == len(before)
    assert {entry["class"] for entry in after[0]} == {"digit 0", "deux"}
    learn(cli, model, write_digits(tmp_path / "b", {3: 6}))
    assert store.read(model).names == ["digit 0", "deux", "digit 3"]
    for old, new, message in (
        ("Deux", "two", "unknown class 'Deux': did you mean 'deux'?"),
        ("deux", "digit 0", "there is a class of that name already"),
        ("deux", "deux", "there is a class of that name already"),
        ("deux", " ", "a class needs a name"),
    ):
        assert message in refused(cli, "rename", model, old, new)
    assert "holds no model" in refused(cli, "rename", tmp_path, "a", "b")


def test_a_class_is_not_renamed_while_an_increment_is_begun(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, more = tmp_path / "a model", write_digits(tmp_path / "b", {2: 6})
    learn(cli, model, write_digits(tmp_path / "a", {0: 6, 1: 6}), *SHORT)
    monkeypatch.setattr("edbl.app.model.Model.learn", interrupt)
    assert cli("learn", model, more).code == 130
    said = refused(cli, "rename", model, "digit 0", "zero")
    assert f"`edbl learn '{model}'` continues it; `edbl learn '{model}' --discard` discards it" in said


def test_what_was_begun_is_not_dropped_for_a_mistake(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    model, more = tmp_path / "model", write_digits(tmp_path / "b", {2: 6})
    learn(cli, model, write_digits(tmp_path / "a", {0: 6, 1: 6}), *SHORT)
    with monkeypatch.context() as patch:
        patch.setattr("edbl.app.model.Model.learn", interrupt)
        assert cli("learn", model, more).code == 130
    for mistake in ([tmp_path / "none"], [more, "--set", "schedule.lr=no"], [more, "--image-size", 9]):
        assert "dropped" not in refused(cli, "learn", model, *mistake, "--discard")
        assert store.begun(model)
    assert "the unfinished update is discarded" in learn(cli, model, more, "--discard").err
    assert store.read(model).names == ["digit 0", "digit 1", "digit 2"]


@pytest.mark.parametrize("old", [False, True])
def test_what_leads_nowhere_is_dropped(tmp_path: Path, cli: Cli, old: bool) -> None:
    model, more = tmp_path / "model", write_digits(tmp_path / "b", {2: 9, 3: 9})
    if old:
        learn(cli, model, write_digits(tmp_path / "a", {0: 6, 1: 6}), *SHORT)
    options = [] if old else SHORT
    said = refused(cli, "learn", model, more, *options, "--set", "schedule.lr=1e30")
    assert "the update is discarded, and the model unchanged" in said
    assert model.exists() == old
    learn(cli, model, more, *options, "--set", "schedule.lr=0.01")
    assert store.read(model).names[-2:] == ["digit 2", "digit 3"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_device_that_is_not_there_begins_nothing(tmp_path: Path, cli: Cli) -> None:
    model, more = tmp_path / "model", write_digits(tmp_path / "b", {2: 6})
    learn(cli, model, write_digits(tmp_path / "a", {0: 6, 1: 6}), *SHORT)
    assert "cuda" in refused(cli, "learn", model, more, "--device", "cuda")
    assert not store.begun(model)


def test_a_model_without_exemplars(tmp_path: Path, cli: Cli) -> None:
    model = tmp_path / "model"
    learn(cli, model, write_digits(tmp_path / "a", {0: 9, 1: 9, 2: 9}), *QUICK, "--method", "er", "--memory", "total=3")
    full = [known.name for known in store.read(model).classes if known.exemplars]
    assert len(full) < 3
    assert cli("forget", model, *full).code == 0
    assert cli("predict", model, tmp_path / "a").code == 0


def test_images_of_several_classes_are_lost(tmp_path: Path, cli: Cli) -> None:
    model, folder = tmp_path / "a model", write_digits(tmp_path / "a", {0: 6, 1: 6, 2: 6})
    learn(cli, model, folder, *SHORT)
    first, second, _ = store.read(model).classes
    (model / EXEMPLARS / first.exemplars[0]).unlink()
    (model / EXEMPLARS / second.exemplars[0]).write_bytes(b"no image")
    for command in (["predict", model, folder], ["forget", model, "digit 1"]):
        said = refused(cli, *command)
        assert "is missing" in said
    assert "and so is 1 more" in refused(cli, "predict", model, folder)
    assert f"`edbl forget '{model}' 'digit 0' 'digit 1'`" in refused(cli, "predict", model, folder)
    assert f"`edbl forget '{model}' 'digit 1' 'digit 0'`" in said
    assert cli("forget", model, "digit 0", "digit 1").code == 0


def test_names_that_are_alike(tmp_path: Path, cli: Cli) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 6, 1: 6})
    (folder / "digit 0").rename(folder / "Cat")
    (folder / "digit 1").rename(folder / "cat ")
    found = learn(cli, model, folder, *SHORT)
    assert "'Cat' and 'cat' are 2 classes" in found.err
    assert f"made the model {model}: learnt 2 new classes (Cat, cat)" in found.out
    more = write_digits(tmp_path / "b", {2: 6}) / "digit 2"
    more.rename(more.with_name("CAT"))
    found = learn(cli, model, tmp_path / "b")
    assert "'Cat' and 'cat' and 'CAT' are 3 classes" in found.err
    assert "made the model" not in found.out


def test_folders_that_are_not_meant(tmp_path: Path, cli: Cli) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "photos" / "may", {0: 6, 1: 6})
    write_digits(tmp_path / "photos" / "june", {2: 6})
    found = learn(cli, model, tmp_path / "photos", *SHORT)
    assert f"class 'may' has all its images in folders below {folder}; if those are the classes" in found.err
    assert "is a model; give a folder" in refused(cli, "learn", tmp_path / "other", model)
    (folder / "digit 0" / "pet.xcf").touch()
    assert "1 file without an image extension ignored: digit 0/pet.xcf" in cli("predict", model, folder).err
    assert "is a file; give the folder of a model" in refused(cli, "info", model / store.MODEL)


def test_long_names_are_whole(tmp_path: Path, cli: Cli) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 6, 1: 6})
    names = [f"{'Felis_catus_' * 9}{kind}" for kind in ("tabby", "black")]
    for number, name in enumerate(names):
        (folder / f"digit {number}").rename(folder / name)
    for found in (learn(cli, model, folder, *SHORT), cli("info", model), cli("predict", model, folder)):
        assert all(name in found.out for name in names)


@pytest.mark.parametrize("form", ["--json", "--csv", "--top=1"])
def test_an_output_that_is_closed(tmp_path: Path, cli: Cli, form: str) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 3, 1: 3})
    learn(cli, model, folder, *SHORT)
    command = shlex.join([sys.executable, "-m", "edbl", "predict", str(model), str(folder), form])
    found = subprocess.run(f"{command} >&-", shell=True, stderr=subprocess.PIPE, text=True)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("form", ["--json", "--csv"])
def test_a_bar_leaves_the_output_alone(tmp_path: Path, cli: Cli, form: str) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 6, 1: 6})
    learn(cli, model, folder, *SHORT)
    watcher, terminal = os.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "edbl", "predict", model, folder, form],
        stdout=subprocess.PIPE,
        stderr=terminal,
        env=os.environ | {"TERM": "xterm"},
        text=True,
        check=True,
    )
    os.close(terminal)
    os.close(watcher)
    assert len(done.stdout.splitlines()) == 12 + (form == "--csv")


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("stopped", [False, True])
def test_an_image_gets_another_class(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, frozen: bool, stopped: bool
) -> None:
    monkeypatch.setattr(pretrained, "find", lambda name: StandIn())
    options = EDBL if frozen else SHORT
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 9, 1: 9})
    learn(cli, model, folder, *options)
    first, second = store.read(model).classes
    more = write_digits(tmp_path / "b", {1: 9})
    for number in range(4):
        (folder / "digit 0" / f"{number:03}.png").rename(more / "digit 1" / f"wrong {number}.png")
    error = refused(cli, "learn", model, more)
    assert "known as 'digit 0'" in error
    assert error.endswith("with relabel=true\n"), "the new name is that of another class"
    command = ["learn", model, more, "--relabel"]
    if stopped:
        with monkeypatch.context() as patch:
            patch.setattr("edbl.app.model.Model.learn", interrupt)
            assert cli(*command).code == 130
        assert store.read(model).classes == [first, second]
        command = ["learn", model]
    assert cli(*command).code == 0
    zero, one = store.read(model).classes
    assert 0 < len(zero.exemplars) < len(first.exemplars)
    moved = set(first.exemplars + first.validation) - set(zero.exemplars + zero.validation)
    assert len(moved) == 4
    assert moved <= set(one.exemplars + one.validation)
    assert one.images > second.images
    assert referenced(model)
    assert cli("predict", model, more).code == 0


def test_images_that_cannot_be_removed(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model"
    learn(cli, model, write_digits(tmp_path / "a", {0: 3, 1: 3, 2: 3}), *SHORT)

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".png":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        if not missing_ok or path.exists():
            os.unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "supports_dir_fd", set())  # as on Windows
        patch.setattr(Path, "unlink", refuse)
        assert cli("forget", model, "digit 1").code == 0
        said = refused(cli, "prune", model)
        assert "which the model does not keep any more, cannot be removed: Permission denied" in said
        assert "3 files that the model does not keep any more could not be removed" in cli("info", model).out
    assert store.read(model).names == ["digit 0", "digit 2"]
    assert "could not be removed" not in cli("info", model).out
    assert referenced(model)


def test_a_class_does_not_lose_its_last_image(tmp_path: Path, cli: Cli) -> None:
    model, folder = tmp_path / "model", write_digits(tmp_path / "a", {0: 3, 1: 3, 2: 3})
    learn(cli, model, folder, *SHORT)
    (folder / "digit 0").rename(folder / "zero")
    (folder / "zero").rename(folder / "digit 1" / "more")
    said = refused(cli, "learn", model, folder, "--relabel")
    assert "class 'digit 0' would keep no image" in said
    assert f"`edbl forget {model} 'digit 0'` first" in said
    assert not store.begun(model)


def test_commands_cross_few_files(cli: Cli, tmp_path: Path) -> None:
    """A reader who follows an increment of two steps, or a prediction, turns the page so often."""
    model, short = tmp_path / "model", ["--set", "schedule.epochs=1", "--set", "balance.epochs=1"]
    first, second = write_digits(tmp_path / "a", {0: 3, 1: 3}), write_digits(tmp_path / "b", {2: 3, 3: 3})
    learn(cli, model, first, *QUICK, *short)  # untraced, as it loads all modules
    with Crossings() as learning:
        learn(cli, model, second, "--device", "cpu", *short)
    assert 200 < learning.total <= 427
    assert len(learning.files) <= 61
    asked = ["predict", model, next(first.rglob("*.png")), "--device", "cpu"]
    assert cli(*asked).code == 0
    with Crossings() as predicting:
        assert cli(*asked).code == 0
    assert 50 < predicting.total <= 139
    assert len(predicting.files) <= 35


@pytest.mark.usefixtures("stand_in")
def test_a_closed_form_crosses_fewer(cli: Cli, tmp_path: Path) -> None:
    model = tmp_path / "model"
    first, second = write_digits(tmp_path / "a", {0: 3, 1: 3}), write_digits(tmp_path / "b", {2: 3, 3: 3})
    learn(cli, model, first, *FROZEN)  # untraced, as it loads all modules
    with Crossings() as learning:
        learn(cli, model, second, "--device", "cpu")
    assert 100 < learning.total <= 305
    assert len(learning.files) <= 46
    asked = ["predict", model, next(first.rglob("*.png")), "--device", "cpu"]
    assert cli(*asked).code == 0
    with Crossings() as predicting:
        assert cli(*asked).code == 0
    assert 30 < predicting.total <= 69
    assert len(predicting.files) <= 27
