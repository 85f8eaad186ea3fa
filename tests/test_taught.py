"""Models with closed forms: the same in any order, as if what is forgotten had never been there, version by version."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import Generator, Tensor

import edbl
from edbl import store as entries
from edbl.app import bundle as store
from edbl.app import photos
from edbl.app.at_once import AtOnce, Given
from edbl.app.edit import forget, forget_photos, merge
from edbl.app.exact import Exact, LeftOut, answers, digests_of, ids_of
from edbl.app.joining import join, take_in
from edbl.app.opening import load
from edbl.app.versions import prune, undo
from edbl.errors import EdblError
from edbl.nets import kept, pretrained
from edbl.nets.closed import Classes
from edbl.nets.pooled import Pooled
from edbl.nets.pretrained import CPU
from edbl.nets.sure import threshold
from tests.backbones import Pool, StandIn
from tests.conftest import Cli
from tests.photos import rewrite, write_digits
from tests.test_bundle import referenced, writes
from tests.vectors import seeded

OPTIONS = ["--backbone", "stand-in", "--device", "cpu"]


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "find", lambda name: StandIn())


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Folders whose classes are in several of them."""
    counts = [{0: 12, 1: 9}, {2: 15, 1: 6}, {0: 3, 3: 5}, {4: 1}]
    return [write_digits(tmp_path / f"f{k}", some, 30 * k) for k, some in enumerate(counts)]


def learn(cli: Cli, *arguments: object) -> str:
    found = cli("learn", *arguments)
    assert found.code == 0, found.err
    return found.out


def asked() -> Tensor:
    """Return features of photos that no model has learnt."""
    return (2 * torch.rand(40, 16, generator=seeded(3))).half()


def pixels_of(path: Path) -> np.ndarray[Any, Any]:
    pixels = photos.read(path, 8).pixels
    assert pixels is not None
    return pixels


def probabilities(model: Path) -> tuple[Tensor, Tensor]:
    """Return probabilities, by classes in alphabetical order, and sureness."""
    bundle = store.read(model)
    found, sure = answers(load(model, bundle, predict=True))(asked())
    return found[:, np.argsort(bundle.names)], sure


def same(one: Path, other: Path) -> bool:
    ours, theirs = probabilities(one), probabilities(other)
    return all(torch.allclose(a, b, rtol=0, atol=1e-7) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("many", [1000, 10])
@pytest.mark.parametrize("method", ["lda", "ridge"])
def test_any_order_and_split_gives_the_same_and_what_is_forgotten_was_never_there(
    folders: list[Path], tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, method: str, many: int
) -> None:
    monkeypatch.setattr(kept, "MANY", many)  # classes of more are sums, of which the features of 5 are kept
    options = [*OPTIONS, "--method", method]
    learn(cli, tmp_path / "whole", *folders, *options)
    for folder in folders:
        learn(cli, tmp_path / "parts", folder, *options)
    for folder in (folders[3], folders[1], folders[2], folders[0]):
        learn(cli, tmp_path / "other", folder, *options)
    assert same(tmp_path / "whole", tmp_path / "parts")
    assert same(tmp_path / "whole", tmp_path / "other")
    if many == 1000:  # the very files are the same
        of = [{known.name: known.features for known in store.read(tmp_path / m).classes} for m in ("whole", "other")]
        assert of[0] == of[1]
    forget(tmp_path / "other", ["digit 1", "digit 4"])
    gone = [folders[0] / "digit 0" / "004.png", folders[2] / "digit 3" / "060.png"]
    parts = load(tmp_path / "other", store.read(tmp_path / "other")).packs
    keeps = set(digests_of(parts["digit 2"]["ids"]))
    assert len(keeps) == (5 if many == 10 else 15)
    of_two = sorted((folders[1] / "digit 2").iterdir())
    gone += [path for path in of_two if photos.digest(pixels_of(path)) in keeps][:2]  # and of those that are kept
    forget_photos(tmp_path / "other", gone)
    for path in [*gone, *(folder / name for folder in folders for name in ("digit 1", "digit 4"))]:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    learn(cli, tmp_path / "never", *folders[:3], *options)
    assert same(tmp_path / "other", tmp_path / "never")
    ours, theirs = (sorted((k.name, k.photos) for k in store.read(tmp_path / m).classes) for m in ("other", "never"))
    assert ours == theirs
    strange = write_digits(tmp_path / "strange", {7: 1}) / "digit 7" / "000.png"
    with pytest.raises(EdblError, match="has not learnt from"):
        forget_photos(tmp_path / "never", [folders[2] / "digit 0" / "061.png", strange])


def test_where_too_little_is_kept_to_choose_by_that_is_said(
    folders: list[Path], tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MANY", 8)  # the features of 4 are kept, of which 2 choose
    model = tmp_path / "model"
    learn(cli, model, *folders[:2], *OPTIONS)
    keeps = set(digests_of(load(model, store.read(model)).packs["digit 2"]["ids"]))
    own = [path for path in sorted((folders[1] / "digit 2").iterdir()) if photos.digest(pixels_of(path)) in keeps]
    assert "note" not in cli("forget", model, "--photo", own[0], "--photo", own[1]).err
    found = cli("forget", model, "--photo", own[2])
    assert found.code == 0
    assert "so many photos of 'digit 2' were forgotten" in found.err


def test_photos_that_are_given_again_do_not_count_again(folders: list[Path], tmp_path: Path, cli: Cli) -> None:
    model = tmp_path / "model"
    learn(cli, model, folders[0], *OPTIONS)
    assert cli("forget", model, "digit 1").code == 0
    assert "unknown class 'Digit 1': 'digit 1' was forgotten on 20" in cli("forget", model, "Digit 1").err
    found = cli("learn", model, folders[0])
    assert "learnt 1 new class (digit 1) from 9 images" in found.out
    assert "12 images left out: given twice, or in the model already" in found.err
    assert "refreshed" not in found.out
    assert [known.images for known in store.read(model).classes] == [12, 9]
    assert "the model has all these images already" in cli("learn", model, folders[0], "--skip-bad").err


def test_a_photo_gets_another_class_as_if_it_had_always_had_it(folders: list[Path], tmp_path: Path, cli: Cli) -> None:
    model = tmp_path / "model"
    learn(cli, model, *folders[:2], *OPTIONS)
    wrong = folders[0] / "digit 0" / "002.png"
    more = tmp_path / "more" / "digit 2"
    more.mkdir(parents=True)
    wrong.rename(more / "002.png")
    assert "known as 'digit 0'" in cli("learn", model, more.parent).err
    learn(cli, model, more.parent, "--relabel")
    learn(cli, tmp_path / "never", *folders[:2], more.parent, *OPTIONS)
    assert same(model, tmp_path / "never")
    assert cli("undo", model).code == 0
    assert [known.images for known in store.read(model).classes] == [12, 15, 15]


def test_what_is_kept_is_said_and_shown(folders: list[Path], tmp_path: Path, cli: Cli) -> None:
    told = learn(cli, tmp_path / "a", folders[0], *OPTIONS)
    assert "the features of each photo are kept, not the photos" in told
    assert "accuracy with each photo left out in turn: all classes" in told
    assert " of 21; 95% interval " in told
    assert "memory: features of 21 images, " in told
    assert not (tmp_path / "a" / "exemplars").exists()
    told = learn(cli, tmp_path / "b", folders[0], *OPTIONS, "--keep", "photos")
    assert "each photo is kept, scaled to the model's image size" in told
    assert len(list((tmp_path / "b" / "exemplars").iterdir())) == 21
    assert referenced(tmp_path / "b")
    told = learn(cli, tmp_path / "c", folders[0], *OPTIONS, "--keep", "nothing")
    assert "nothing is kept of single photos but a digest to know each by" in told
    assert not (tmp_path / "c" / "features").exists()
    assert "memory: no photo, and no features" in cli("info", tmp_path / "c").out
    assert same(tmp_path / "a", tmp_path / "b")
    values = json.loads(cli("info", tmp_path / "a", "--json").out)
    assert [known["images"] for known in values["classes"]] == [12, 9]
    assert values["bytes"] >= values["exemplar_bytes"] > 0
    assert max(map(len, cli("info", tmp_path / "a").out.replace(str(tmp_path), "").splitlines())) < 120


@pytest.mark.parametrize("option", [["--memory", "total=9"], ["--memory-mb", "1"], ["--validation", "0.1"]])
def test_what_a_closed_form_has_no_use_for(folders: list[Path], tmp_path: Path, cli: Cli, option: list[str]) -> None:
    found = cli("learn", tmp_path / "model", folders[0], *OPTIONS, *option)
    assert found.code == 2
    assert "lda is solved, not trained: it needs no exemplars and holds nothing out" in found.err
    assert not (tmp_path / "model").exists()


def test_settings_that_mean_nothing_to_it(folders: list[Path], tmp_path: Path, cli: Cli) -> None:
    for more, message in (
        (["--set", "schedule.epochs=2"], "does not apply to a closed form"),
        (["--keep", "all"], "unknown value of keep 'all'"),
        (["--keep", "nothing", "--method", "ridge"], "ridge weighs photos by how many its class has in the end"),
        (["--keep", "photos", "--method", "edbl"], "is for lda and ridge on a frozen backbone"),
    ):
        found = cli("learn", tmp_path / "model", folders[0], *OPTIONS, *more)
        assert (found.code, message in found.err) == (2, True), found.err
    learn(cli, tmp_path / "model", folders[0], *OPTIONS, "--set", "options.unit=false")
    assert "which cannot change" in cli("learn", tmp_path / "model", folders[1], "--keep", "photos").err
    assert "has one classifier" in cli("predict", tmp_path / "model", folders[0], "--readout", "nme").err


def test_with_nothing_kept_classes_are_told_the_same_in_any_order(
    folders: list[Path], tmp_path: Path, cli: Cli
) -> None:
    options = [*OPTIONS, "--keep", "nothing"]
    learn(cli, tmp_path / "whole", *folders, *options)
    for folder in (folders[3], folders[1], folders[2], folders[0]):
        learn(cli, tmp_path / "other", folder, *options)
    ours, theirs = (probabilities(tmp_path / model)[0].argmax(1) for model in ("whole", "other"))
    assert torch.equal(ours, theirs)
    photo = folders[0] / "digit 0" / "000.png"
    assert cli("forget", tmp_path / "other", "--photo", photo).code == 0
    photo.unlink()
    learn(cli, tmp_path / "never", *folders, *options)
    ours, theirs = (probabilities(tmp_path / model)[0].argmax(1) for model in ("other", "never"))
    assert torch.equal(ours, theirs)
    assert cli("forget", tmp_path / "other", "digit 2").code == 0
    merge(tmp_path / "other", ["digit 3", "digit 4"])
    assert sorted(store.read(tmp_path / "other").names) == ["digit 0", "digit 1", "digit 3"]
    assert cli("predict", tmp_path / "other", folders[0]).code == 0


def samples(counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return torch.rand(len(y), 5, generator=seeded(1)).double() + y.unsqueeze(1), y


def literal(x: Tensor, y: Tensor) -> Classes:
    groups = [x[y == k] for k in range(int(y.max()) + 1)]
    scatter = sum(((g - g.mean(0)).T @ (g - g.mean(0)) for g in groups), torch.zeros(5, 5).double())
    return Classes(torch.tensor([len(g) for g in groups]).double(), torch.stack([g.mean(0) for g in groups]), scatter)


def test_sums_are_those_of_all_samples_in_any_order() -> None:
    x, y = samples([4, 1, 7])
    order = torch.randperm(12, generator=seeded(2))
    found = Pooled.none(5)
    for part in order.tensor_split([3, 4, 9]):
        found = Pooled.of(found.add(x[part], y[part]).tensors())
    for ours, theirs in zip(found.classes, literal(x, y), strict=True):
        torch.testing.assert_close(ours, theirs)
    stay = [1, 2, 3, 4, *range(6, 12)]
    for ours, theirs in zip(found.drop(x[[0, 5]], y[[0, 5]]), literal(x[stay], y[stay]), strict=True):
        torch.testing.assert_close(ours, theirs)
    merged = torch.tensor([0, 1, 0])[y]
    for ours, theirs in zip(found.merge(2, 0), literal(x, merged), strict=True):
        torch.testing.assert_close(ours, theirs)
    left = found.forget(2)
    torch.testing.assert_close(left.scatter / 3, found.scatter / 9)


def test_digests_and_numbers_are_the_same_thing() -> None:
    digests = [photos.digest(np.full((3, 2, 2), k, np.uint8)) for k in range(9)]
    assert digests_of(ids_of(digests)) == digests
    assert ids_of([]).shape == (0, 2)


@pytest.mark.parametrize("many", [1000, 8])
def test_classes_become_one_as_if_they_had_been_one(
    folders: list[Path], tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    monkeypatch.setattr(kept, "MANY", many)
    model = tmp_path / "model"
    learn(cli, model, *folders, *OPTIONS)
    assert cli("merge", model, "digit 3", "digit 0", "digit 2", "--as", "odd").code == 0
    for folder in folders:
        for number in (0, 2, 3):
            if (own := folder / f"digit {number}").is_dir():
                (folder / "odd").mkdir(exist_ok=True)
                for path in own.iterdir():
                    path.rename(folder / "odd" / f"{number} {path.name}")
                own.rmdir()
    learn(cli, tmp_path / "never", *folders, *OPTIONS)
    assert same(model, tmp_path / "never")
    assert sorted(store.read(model).names) == ["digit 1", "digit 4", "odd"]
    for arguments, message in (
        (["digit 1"], "name two classes or more"),
        (["digit 1", "digit 9"], "unknown class 'digit 9'"),
        (["digit 1", "digit 4", "--as", "odd"], "there is a class of that name already"),
    ):
        assert message in cli("merge", model, *arguments).err


@pytest.mark.parametrize("many", [1000, 5])
def test_models_become_one_as_if_it_had_learnt_all(
    folders: list[Path], tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    monkeypatch.setattr(kept, "MANY", many)
    learn(cli, tmp_path / "a", *folders[:2], *OPTIONS)
    learn(cli, tmp_path / "b", *folders[2:], *([folders[0]] if many == 1000 else []), *OPTIONS)
    learn(cli, tmp_path / "whole", *folders, *OPTIONS)
    assert cli("join", tmp_path / "both", tmp_path / "a", tmp_path / "b").code == 0
    assert same(tmp_path / "both", tmp_path / "whole")
    assert "join" in cli("info", tmp_path / "both").out
    assert "is there already" in cli("join", tmp_path / "both", tmp_path / "a", tmp_path / "b").err
    if many == 1000:
        assert cli("rename", tmp_path / "b", "digit 0", "nil").code == 0
        error = cli("join", tmp_path / "c", tmp_path / "a", tmp_path / "b").err
        assert "the same photo is of class 'digit 0' in one model and of 'nil' in another" in error
    if many == 1000:
        for name in ("a", "b"):
            learn(cli, tmp_path / f"{name} whole", folders[ord(name) - ord("a")], *OPTIONS, "--keep", "photos")
        assert cli("join", tmp_path / "photos", tmp_path / "a whole", tmp_path / "b whole").code == 0
        assert len(list((tmp_path / "photos" / "exemplars").iterdir())) == 42
        assert referenced(tmp_path / "photos")
    learn(cli, tmp_path / "d", folders[3], *OPTIONS, "--method", "ridge")
    with pytest.raises(EdblError, match="they cannot be joined"):
        join(tmp_path / "e", [tmp_path / "a", tmp_path / "d"])


def test_versions(folders: list[Path], tmp_path: Path, cli: Cli) -> None:
    model = tmp_path / "model"
    first, second, third, fourth = folders
    learn(cli, model, first, *OPTIONS)
    before = probabilities(model)[0]
    assert "at its first version" in cli("undo", model).err
    learn(cli, model, second)
    assert cli("rename", model, "digit 2", "two").code == 0
    assert cli("forget", model, "digit 0").code == 0
    assert [store.read(model).version, store.versions(model)] == [4, [1, 2, 3]]
    assert cli("undo", model).out == f"{model} is at version 3 now, with 3 classes\n"
    assert store.read(model).names == ["digit 0", "digit 1", "two"]
    learn(cli, model, third, "--from", "1")
    bundle = store.read(model)
    assert (bundle.version, bundle.parent) == (5, 1)
    assert bundle.names == ["digit 0", "digit 1", "digit 3"]
    rows = json.loads(cli("history", model, "--json").out)
    assert [(row["version"], row["from"], row["kind"], row["current"]) for row in rows] == [
        (1, None, "learn", False),
        (2, 1, "learn", False),
        (3, 2, "rename", False),
        (4, 3, "forget", False),
        (5, 1, "learn", True),
    ]
    table = cli("history", model).out
    assert "renamed digit 2 to two" in table
    assert table.splitlines()[-1].endswith("the model as it is")
    assert cli("undo", model, "--to", "1").code == 0
    assert torch.equal(probabilities(model)[0], before)
    assert "is at version 1 already" in cli("undo", model, "--to", "1").err
    assert "does not keep version 9 (any more); others that it keeps: 2, 3, 4, 5" in cli("undo", model, "--to", "9").err
    assert "has no earlier version 9" in cli("learn", model, fourth, "--from", "9").err
    shared = sum(path.stat().st_size for path in (model / "features").iterdir())
    assert cli("prune", model).code == 0
    assert referenced(model)
    assert sum(path.stat().st_size for path in (model / "features").iterdir()) < shared
    assert len(list((model / "features").iterdir())) == 2
    assert not (model / "sums.json").exists()  # they were of a version that is gone
    assert "does not keep version 2" in cli("undo", model, "--to", "2").err
    learn(cli, model, fourth)
    assert torch.equal(probabilities(model)[0].argmax(1) < 9, torch.ones(40, dtype=torch.bool))


def test_updates_share_the_files_of_classes_that_did_not_change(folders: list[Path], tmp_path: Path, cli: Cli) -> None:
    model = tmp_path / "model"
    learn(cli, model, folders[0], *OPTIONS)
    there = set((model / "features").iterdir())
    learn(cli, model, folders[3])
    assert set((model / "features").iterdir()) > there
    assert len(set((model / "features").iterdir())) == len(there) + 1


def test_what_is_like_no_class_is_unknown(tmp_path: Path, cli: Cli) -> None:
    model, known = tmp_path / "model", write_digits(tmp_path / "a", {0: 60, 1: 60, 4: 60})
    learn(cli, model, known, *OPTIONS)
    test = write_digits(tmp_path / "test", {0: 60, 1: 60, 4: 60}, 80)
    strange = write_digits(tmp_path / "strange", {8: 60, 3: 60})

    def share(folder: Path, *options: object) -> float:
        found = [json.loads(line) for line in cli("predict", model, folder, "--json", *options).out.splitlines()]
        assert all(isinstance(line["unknown"], bool) for line in found)
        return float(np.mean([line["unknown"] for line in found]))

    assert share(known) <= 0.08
    assert share(test) <= 0.2
    assert share(strange) > 0.3
    assert share(strange, "--unknown", 0) == 0
    assert share(test, "--unknown", 0.3) > share(test)
    assert "unknown" in cli("predict", model, strange).out
    assert cli("predict", model, known, "--unknown", 1).code == 2


def test_the_threshold_is_what_so_many_known_ones_are_below() -> None:
    judged = torch.arange(1, 20).double()
    assert [threshold(judged, rate) for rate in (0.05, 0.1, 0.5)] == [1, 2, 10]
    assert threshold(judged, 0.04) == threshold(judged[:0], 0.5) == -torch.inf
    assert threshold(judged, 0.999) == 19


def test_paths_come_in_several_ways(
    folders: list[Path], tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    learn(cli, model, folders[0], *OPTIONS)
    paths = sorted((folders[0] / "digit 0").iterdir())

    def told(*given: object) -> list[str]:
        found = cli("predict", model, *given, "--json")
        assert found.code == 0, found.err
        return [json.loads(line)["image"] for line in found.out.splitlines()]

    assert told(folders[0] / "digit 0" / "00*.png") == [str(path) for path in paths[:10]]
    assert len(told(folders[0] / "**" / "*.png")) == 21

    class Input:
        def read(self) -> str:
            return f"{paths[3]}\n\n{paths[1]}\n"

    monkeypatch.setattr("sys.stdin", Input())
    assert told("-") == [str(paths[3]), str(paths[1])]
    assert "no file is named as" in cli("predict", model, folders[0] / "x*.png").err


@pytest.mark.parametrize("method", ["lda", "ridge"])
def test_onnx_agrees_on_every_image(folders: list[Path], tmp_path: Path, cli: Cli, method: str) -> None:
    model, out = tmp_path / "model", tmp_path / "model.onnx"
    learn(cli, model, *folders, *OPTIONS, "--method", method)
    found = cli("export", model, out, "--unknown", 0.2)
    assert found.code == 0, found.err
    session = onnxruntime.InferenceSession(out.read_bytes())
    about = session.get_modelmeta().custom_metadata_map
    limit = json.loads(about["unknown"])
    assert limit["rate"] == 0.2
    test = write_digits(tmp_path / "test", {0: 9, 1: 9, 2: 9, 5: 9}, 100)
    lines = [json.loads(line) for line in cli("predict", model, test, "--unknown", 0.2, "--json").out.splitlines()]
    pixels = [photos.read(Path(line["image"]), 8).pixels for line in lines]
    x = np.stack([one for one in pixels if one is not None]).transpose(0, 2, 3, 1)
    scores, sure = session.run([about["readout"], "sureness"], {"images": x})
    names = json.loads(about["classes"])
    assert [names[k] for k in scores.argmax(1)] == [line["classes"][0]["class"] for line in lines]
    np.testing.assert_allclose(scores.max(1), [line["classes"][0]["score"] for line in lines], atol=2e-3)
    assert (sure <= limit["at_most"]).tolist() == [line["unknown"] for line in lines]
    assert any(line["unknown"] for line in lines)


def test_responses_want_what_bends_them(folders: list[Path], tmp_path: Path, cli: Cli) -> None:
    model = tmp_path / "model"
    learn(cli, model, *folders, *OPTIONS, "--method", "ridge")
    tensors = entries.tensors_of(model, "model", store.read(model).weights)
    before = probabilities(model)[0]
    rewrite(model / store.MODEL, lambda values: None, {**tensors, "link": torch.ones(3).double()})
    assert "'link' is not that of its method" in cli("predict", model, folders[0]).err
    del tensors["link"]  # as models had none once
    rewrite(model / store.MODEL, lambda values: None, tensors)
    assert torch.equal(probabilities(model)[0].argmax(1), before.argmax(1))
    assert not torch.equal(probabilities(model)[0], before)


def test_what_is_told_apart_with_ease_can_be_exported(tmp_path: Path, cli: Cli) -> None:
    """Sureness of what is like none of the classes is far below 0, and float32 has no more than 7 digits of it."""
    for name, level in (("dark", 60), ("light", 200)):
        (tmp_path / "a" / name).mkdir(parents=True)
        for number in range(10):
            pixels = np.full((8, 8, 3), level, np.uint8)
            pixels[number % 8, number // 8] += 1
            Image.fromarray(pixels).save(tmp_path / "a" / name / f"{number}.png")
    learn(cli, tmp_path / "model", tmp_path / "a", *OPTIONS)
    found = cli("export", tmp_path / "model", tmp_path / "model.onnx")
    assert found.code == 0, found.err
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    x = torch.randint(256, (20, 8, 8, 3), generator=seeded(4)).byte()
    ours, theirs = (
        answers(load(tmp_path / "model", store.read(tmp_path / "model"), predict=True)),
        session.run(["probabilities", "sureness"], {"images": x.numpy()}),
    )
    vectors = Pool()((x.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25)
    for one, other in zip(ours(vectors), theirs, strict=True):
        np.testing.assert_allclose(other, one.numpy(), atol=1e-4, rtol=1e-4)
    assert ours(vectors)[1].min() < -50


def test_photos_that_are_left_out_can_be_looked_at(folders: list[Path], tmp_path: Path, cli: Cli) -> None:
    model = tmp_path / "model"
    learn(cli, model, *folders, *OPTIONS)
    bundle = store.read(model)
    _, left_out = Exact.of(model, load(model, bundle)).solve()
    assert isinstance(left_out, LeftOut)
    assert left_out.scores.shape == (50, 5)  # a class of one photo has none to leave out
    owners = {
        digest: name for name, known in zip(bundle.names, bundle.classes, strict=True) for digest in known.digests
    }
    assert [bundle.names[k] for k in left_out.labels.tolist()] == [owners[digest] for digest in left_out.digests]
    score = bundle.history[-1].total()
    right = int((left_out.scores.argmax(1) == left_out.labels).sum())
    assert (score.images, score.cnn) == (50, right)


def damage(model: Path, how: str) -> None:
    (file,) = sorted((model / "features").iterdir())[:1]
    data = file.read_bytes()
    file.unlink()
    if how == "changed":
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize("how", ["lost", "changed"])
def test_lost_features_and_the_way_out(folders: list[Path], tmp_path: Path, cli: Cli, how: str) -> None:
    model = tmp_path / "model"
    learn(cli, model, *folders, *OPTIONS)
    damage(model, how)
    found = cli("learn", model, write_digits(tmp_path / "more", {7: 3}))
    assert found.code == 2
    assert "the features of class 'digit" in found.err
    name = next(known.name for known in store.read(model).classes if f"'{known.name}'" in found.err)
    assert f"`edbl forget {model} '{name}'`" in found.err
    assert cli("forget", model, name).code == 0
    learn(cli, model, write_digits(tmp_path / "more", {7: 3}))


def test_sums_that_are_lost_are_worked_out_again(folders: list[Path], tmp_path: Path, cli: Cli) -> None:
    learn(cli, tmp_path / "a", *folders[:3], *OPTIONS)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "sums.json").unlink()
    for model in ("a", "b"):
        learn(cli, tmp_path / model, folders[3])
    assert same(tmp_path / "a", tmp_path / "b")


def test_lines_of_any_are_refused_in_words(folders: list[Path], tmp_path: Path, cli: Cli) -> None:
    model = tmp_path / "model"
    learn(cli, model, folders[0], *OPTIONS)
    for arguments, message in (
        (["forget", model], "name classes to forget, or photos"),
        (["forget", model, "digit 0", "--photo", folders[0] / "digit 0" / "000.png"], "one of both"),
        (["forget", model, "--photo", tmp_path / "none.png"], "cannot read"),
        (["forget", model, "--photo", *_photos(folders[0] / "digit 1")], "would have no photo left"),
        (["forget", model, "ping"], "unknown class 'ping': known: digit 0, digit 1"),
        (["prune", tmp_path / "none"], "does not exist"),
        (["undo", tmp_path / "none"], "does not exist"),
        (["history", tmp_path / "none"], "does not exist"),
    ):
        found = cli(*arguments)
        assert (found.code, message in found.err) == (2, True), found.err


def _photos(folder: Path) -> list[Any]:
    paths = sorted(folder.iterdir())
    return [paths[0], *(word for path in paths[1:] for word in ("--photo", path))]


def test_from_python(folders: list[Path], tmp_path: Path, cli: Cli) -> None:
    model = edbl.open(tmp_path / "model", device="cpu")
    model.learn(folders[0], backbone="stand-in")
    assert (model.classes, model.version) == (["digit 0", "digit 1"], 1)
    one, two = sorted((folders[1] / "digit 2").iterdir())[:2]
    assert repr(model) == f"edbl.open('{tmp_path / 'model'}')"
    arrays = [np.asarray(Image.open(path)) for path in sorted((folders[1] / "digit 2").iterdir())]
    model.learn({"digit 2": arrays, "digit 1": [Image.open(p) for p in sorted((folders[1] / "digit 1").iterdir())]})
    model.learn([*sorted((folders[2] / "digit 0").iterdir())], ["digit 0"] * 3)
    learn(cli, tmp_path / "whole", *folders[:2], *OPTIONS)
    model.undo()
    assert same(tmp_path / "model", tmp_path / "whole")
    by_file = model.predict([one, two])
    by_pixels = model.predict([np.asarray(Image.open(one)), Image.open(two)])
    assert [found.best for found in by_file] == [found.best for found in by_pixels]
    assert [str(found.path) for found in by_pixels] == ["0", "1"]
    assert model.predict(str(one), top=1)[0].best[0][0] == "digit 2"
    assert len(model.predict(folders[1])) == 21
    assert len(model.predict(np.stack(arrays))) == 15
    assert len(model.predict(arrays[0])) == 1
    model.forget("digit 1")
    model.forget(photos=[one])
    assert model.classes == ["digit 0", "digit 2"]
    assert {name for name, _ in model.predict(two)[0].best} == {"digit 0", "digit 2"}
    assert cli("undo", tmp_path / "model", "--to", 1).code == 0
    assert {name for name, _ in model.predict(two)[0].best} == {"digit 0", "digit 1"}


def test_many_images_are_computed_together_and_files_once(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = edbl.open(tmp_path / "model", device="cpu")
    model.learn(folders[0], backbone="stand-in")
    files = sorted((folders[1] / "digit 2").iterdir())
    sizes, views = list[int](), StandIn.views

    def counted(self: StandIn, x: Tensor, *rest: Any) -> Tensor:
        sizes.append(len(x))
        return views(self, x, *rest)

    monkeypatch.setattr(StandIn, "views", counted)
    pixels = pixels_of(files[9]).transpose(1, 2, 0)
    mixed: list[Any] = [*files[:6], Image.open(files[7]), Image.open(files[8]), *files[10:12]]
    found = model.predict(mixed)
    assert sizes == [6, 2, 2]
    assert [str(one.path) for one in found] == [*map(str, files[:6]), "6", "7", *map(str, files[10:12])]
    again = model.predict([*files[:6], pixels])
    assert sizes == [6, 2, 2, 1]
    assert [one.best for one in again[:6]] == [one.best for one in found[:6]]
    (tmp_path / "odd" / "digit 5").mkdir(parents=True)
    shutil.copy(files[0], tmp_path / "odd" / "digit 5" / "a.png")
    shutil.copy(files[0], tmp_path / "odd" / "digit 5" / "b.png")
    with pytest.warns(UserWarning, match=r"1 image left out: given twice") as told:
        model.learn(tmp_path / "odd")
    assert told[0].filename == __file__


def test_what_python_gives_is_checked(folders: list[Path], tmp_path: Path) -> None:
    model, grey = edbl.open(tmp_path / "model"), np.zeros((8, 8), np.uint8)
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: model.classes, "does not exist"),
        (lambda: model.learn(folders[0], backbones="stand-in"), "no option backbones"),
        (lambda: model.learn([grey]), "images need labels"),
        (lambda: model.learn([grey], ["a", "b"]), "1 images and 2 labels"),
        (lambda: model.learn([grey], [3]), "label 3 is no name"),  # type: ignore[list-item]
        (lambda: model.learn([grey.astype(float)], ["a"]), "not ndarray of float64"),
        (lambda: model.learn({"a": [grey]}, ["a"]), "leave out labels"),
        (lambda: model.forget(), "one of both"),
    ]
    for call, message in wrong:
        with pytest.raises(EdblError, match=message):
            call()
    assert not (tmp_path / "model").exists()


def test_killed_at_any_moment_a_closed_form_is_the_old_or_the_new_one(
    folders: list[Path], tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    learn(cli, model, folders[0], *OPTIONS)
    old = probabilities(model)[0]
    commands: list[list[object]] = [["learn", folders[1]], ["forget", "digit 0"], ["merge", "digit 0", "digit 1"]]
    for name, *more in commands:
        whole = Path(shutil.copytree(model, tmp_path / f"{name} whole"))
        monkeypatch.setenv("EDBL_CACHE", str(tmp_path / f"{name} cache"))  # empty for each, so all write it
        names = writes(monkeypatch, partial(cli, name, whole, *more))
        commit = names.index(store.MODEL) + 1
        for write in range(1, len(names) + 2):  # before each write; the last time after all of them
            copy = Path(shutil.copytree(model, tmp_path / f"{name} {write}"))
            monkeypatch.setenv("EDBL_CACHE", str(tmp_path / f"{name} {write} cache"))
            stopped(monkeypatch, partial(cli, name, copy, *more), write)
            assert torch.equal(probabilities(copy)[0], old if write <= commit else probabilities(whole)[0]), names
            if write <= commit:
                assert cli(name, copy, *more).code == 0
                assert same(copy, whole)
            assert cli("info", copy).code == 0
            assert referenced(copy)
            assert not (copy / store.WRITING).exists()


class Killed(BaseException):
    """What stands for the end of a process: nothing catches it."""


def stopped(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object], write: int) -> None:
    """Do work, as if the process ended before the given write of a file."""
    numbers, replacing, dead = count(1), entries.replacing, False

    @contextmanager
    def watched(path: Path) -> Iterator[Path]:
        nonlocal dead
        if next(numbers) == write:
            dead = True
            raise Killed
        with replacing(path) as temporary:
            yield temporary

    with monkeypatch.context() as patch:
        patch.setattr(entries, "replacing", watched)
        patch.setattr(store, "discard", lambda folder, own=store.discard: False if dead else own(folder))
        with suppress(Killed):
            work()


def given(place: Path) -> list[Given]:
    """Return the photos of folders as a server teaches them."""
    found = []
    for path in sorted(place.rglob("*.png")):
        pixels = pixels_of(path)
        x = torch.from_numpy(pixels[None].copy())
        features = StandIn().views(x, 0, Generator(), lambda done: None, CPU, "torch", None)[0, 0]
        found.append(Given(photos.digest(pixels), path.parent.name, path.name, features))
    return found


Work = Callable[[Path], object]


@pytest.mark.parametrize("what", ["undo", "join", "take in", "teach"])
def test_killed_at_any_write_other_changes_are_not_there_or_whole(
    folders: list[Path], tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    model, other = tmp_path / "model", tmp_path / "other"
    learn(cli, model, folders[0], *OPTIONS)
    learn(cli, model, folders[1], "--yes")
    learn(cli, other, folders[2], *OPTIONS, "--yes")
    work: Work = {
        "undo": undo,
        "join": lambda folder: join(folder / "joined", [model, other]),
        "take in": lambda folder: take_in(folder, other),
        "teach": lambda folder: AtOnce(folder).teach(given(folders[2]), yes=True),
    }[what]
    inner, old = ("joined" if what == "join" else ""), probabilities(model)[0]
    whole = Path(shutil.copytree(model, tmp_path / "whole"))
    names = writes(monkeypatch, partial(work, whole))
    commit = names.index(store.MODEL) + 1
    for write in range(1, len(names) + 2):
        copy = Path(shutil.copytree(model, tmp_path / f"{write}"))
        stopped(monkeypatch, partial(work, copy), write)
        if write > commit or what != "join":
            wanted = old if write <= commit else probabilities(whole / inner)[0]
            assert torch.equal(probabilities(copy / inner)[0], wanted), names
        if write <= commit:
            work(copy)
            assert same(copy / inner, whole / inner)
        assert cli("info", copy / inner).code == 0
        assert referenced(copy / inner)
        assert not (copy / inner / store.WRITING).exists()


def test_killed_while_it_prunes_the_next_command_removes_the_rest(
    folders: list[Path], tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    learn(cli, model, folders[0], *OPTIONS)
    learn(cli, model, folders[1], "--yes")
    assert cli("forget", model, "digit 1").code == 0
    whole, unlink = Path(shutil.copytree(model, tmp_path / "whole")), os.unlink
    gone: list[str] = []

    def counted(path: Any, *, dir_fd: int | None = None, last: int = 10**6) -> None:
        if len(gone) == last:
            raise Killed
        gone.append(str(path))
        unlink(path, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", counted)
        patch.setattr(os, "supports_dir_fd", {*os.supports_dir_fd, counted})
        prune(whole)
    number = len(gone)
    assert number > 5
    for last in range(number):
        copy = Path(shutil.copytree(model, tmp_path / f"{last}"))
        gone.clear()
        with monkeypatch.context() as patch, suppress(Killed):
            killed = partial(counted, last=last)
            patch.setattr(os, "unlink", killed)
            patch.setattr(os, "supports_dir_fd", {*os.supports_dir_fd, killed})
            prune(copy)
        assert same(copy, whole)
        assert cli("prune", copy).code == 0
        assert referenced(copy)
        assert not (copy / store.WRITING).exists()
        assert cli("undo", copy).code == 2
