"""One more photo that is answered by at once: as it will be once it is solved, and not lost whatever happens."""

import shutil
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

import edbl
from edbl.app import at_once, lessons, soon
from edbl.app import bundle as disk
from edbl.app.at_once import AtOnce, Doubt, Given
from edbl.app.description import Keep, Settings
from edbl.app.edit import forget
from edbl.app.exact import Answers
from edbl.errors import Busy, EdblError
from edbl.nets import kept, pretrained
from edbl.nets.closed import Changed, Classes, Closed, Discriminant, Form, Ridge, fitted
from edbl.nets.kept import Kept
from edbl.serve import desk
from edbl.serve.run import Wanted
from tests.backbones import StandIn
from tests.conftest import Cli
from tests.photos import write_digits
from tests.serving import NEW, M, picture, served, taught
from tests.test_bundle import writes
from tests.test_serve_ends import until
from tests.test_taught import given, same, stopped
from tests.vectors import seeded


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "find", lambda name: StandIn())


def classes_of(kind: type[Form], x: Tensor, y: Tensor) -> Classes:
    groups = [x[y == k] for k in range(int(y.max()) + 1)]
    counts = torch.tensor([len(g) for g in groups]).double()
    weights = [1 / len(g) if kind.balanced else 1.0 for g in groups]
    scatter = sum(
        (w * (g - g.mean(0)).T @ (g - g.mean(0)) for w, g in zip(weights, groups, strict=True)),
        torch.zeros(x.shape[1], x.shape[1]).double(),
    )
    return Classes(counts, torch.stack([g.mean(0) for g in groups]), scatter)


@pytest.mark.parametrize("more", [[0], [2, 2], [4, 4, 1, 5], [1, 0, 4]])
@pytest.mark.parametrize("kind", [Discriminant, Ridge])
def test_given_shrinkage_and_factor_it_is_what_is_solved_with_the_samples(kind: type[Form], more: list[int]) -> None:
    y = torch.arange(4).repeat_interleave(torch.tensor([6, 1, 9, 5]))
    every = torch.cat([y, torch.tensor(more)])
    x = torch.randn(len(every), 7, generator=seeded(0)).double() + torch.nn.functional.one_hot(every, 7)
    found = fitted(kind, classes_of(kind, x[: len(y)], y), x[: len(y)], y)
    classes = classes_of(kind, x, every)
    wanted = fitted(kind, classes, x, every, [found.shrinkage], found.factor)
    rows = torch.isin(every, torch.tensor(more)) if kind.balanced else torch.arange(len(every)) >= len(y)
    changed = Changed(found.form.seen(x[rows]), every[rows], (torch.arange(len(every)) >= len(y))[rows])
    weight, bias = found.more(classes.counts, changed)
    torch.testing.assert_close(weight, wanted.weight, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(bias, wanted.bias, rtol=1e-9, atol=1e-9)
    assert (weight[:4] - found.weight).abs().max() > 1e-4


def settings(method: str, keep: Keep = "features") -> Settings:
    return Settings(method, "stand-in", "head", 8, "none", 0, 0.0, 0, {}, StandIn().digest, keep)


def photos(tmp_path: Path) -> tuple[list[Given], list[Given]]:
    """Return photos to begin with, and others that come one by one: of known classes, and of a new one."""
    first = given(write_digits(tmp_path / "first", {0: 12, 1: 9, 2: 15}))
    return first, given(write_digits(tmp_path / "more", {0: 2, 2: 1, 3: 2}, 30))


def model_of(folder: Path, first: Sequence[Given], method: str = "lda") -> AtOnce:
    model = AtOnce(folder)
    assert model.teach(first, settings(method), yes=True).learnt == len(first)
    return model


def answers(model: AtOnce) -> tuple[Tensor, Tensor]:
    assert model.now is not None
    return model.now.answers((2 * torch.rand(40, 16, generator=seeded(3))).half())


def as_chosen(exact: AtOnce, quick: AtOnce) -> Closed:
    """Return the solution with all photos, by shrinkage and factor of the last one of another model."""
    solved, last = exact.solved().exact, quick.solved().exact.found
    assert isinstance(solved.kept, Kept)
    assert last is not None
    return fitted(solved.form, solved.kept.classes, *solved.kept.judges(), [last.shrinkage], last.factor)


def assert_close(found: Answers, wanted: Closed) -> None:
    torch.testing.assert_close(found.weight, wanted.weight, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.bias, wanted.bias, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("method", ["lda", "ridge"])
def test_answers_differ_at_once_and_the_bytes_on_disk_are_those_of_the_exact_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(at_once, "now", lambda: "2026-01-01T00:00:00+00:00")
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    first, more = photos(tmp_path)
    exact, quick = (model_of(tmp_path / name, first, method) for name in ("exact", "quick"))
    before = answers(quick)[0]
    for number, one in enumerate(more, 2):
        learnt = quick.soon([one], yes=True)
        assert learnt is not None
        assert learnt.bundle is not None
        assert (learnt.learnt, learnt.bundle.version, learnt.bundle.parent) == (1, number, number - 1)
        assert disk.read(quick.folder).version == 1
        exact.teach([one], yes=True)
        ours, theirs = answers(quick)[0], answers(exact)[0]
        assert quick.now is not None
        assert_close(quick.now.answers, as_chosen(exact, quick))
        # Shrinkage and calibration are those of before, which matters most where photos are as few as here.
        assert float((ours - theirs).abs().mean()) < 0.15
        assert float((ours.argmax(1) == theirs.argmax(1)).double().mean()) >= 0.8
        assert ours.shape != before.shape or (ours - before).abs().max() > 1e-4
        before = ours
        assert learnt.bundle.names == disk.read(exact.folder).names
        assert [known.photos for known in learnt.bundle.classes] == [
            known.photos for known in disk.read(exact.folder).classes
        ]
    assert quick.finish() == len(more)
    files = [sorted(p for p in m.folder.rglob("*") if p.is_file()) for m in (exact, quick)]
    assert [p.relative_to(exact.folder) for p in files[0]] == [p.relative_to(quick.folder) for p in files[1]]
    assert len(files[0]) > 3 * len(more)
    for one, other in zip(*files, strict=True):
        assert one.read_bytes() == other.read_bytes(), one
    assert torch.equal(answers(quick)[0], answers(exact)[0])


def test_what_only_a_solution_takes_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, more = photos(tmp_path)
    model = model_of(tmp_path / "m", first)
    assert model.soon(more[:2]) is None  # several
    assert model.soon([first[0]]) is None  # known
    assert AtOnce(tmp_path / "m").soon(more[:1]) is None  # not in memory
    few = model_of(tmp_path / "few", first[:2] + first[-2:])
    assert few.soon(more[:1]) is None  # solved in the space of the few
    assert not lessons.wait(tmp_path / "m")
    assert not lessons.wait(tmp_path / "few")
    monkeypatch.setattr(kept, "MANY", 10)
    sums = model_of(tmp_path / "sums", first)
    assert sums.soon(more[:1]) is None  # of a class of many
    assert sums.soon(more[3:4], yes=True) is not None
    nothing = AtOnce(tmp_path / "nothing")
    nothing.teach(first, settings("lda", "nothing"), yes=True)
    assert nothing.soon(more[:1], yes=True) is None


def test_after_many_the_first_are_solved_before_more_are_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, more = photos(tmp_path)
    model = model_of(tmp_path / "m", first)
    monkeypatch.setattr(soon, "MOST", 2)
    versions = []
    for one in more:
        assert model.soon([one], yes=True) is not None
        versions.append(disk.read(model.folder).version)
    assert versions == [1, 1, 2, 3, 4]
    assert model.finish() == 2


def test_a_photo_that_looks_mislabelled_is_named_before_it_is_answered_by(tmp_path: Path) -> None:
    first, more = photos(tmp_path)
    model, exact = (model_of(tmp_path / name, first) for name in ("m", "exact"))
    wrong = [Given(one.digest, "digit 1", one.file, one.features) for one in more[:3]]
    found: list[Doubt] = []
    for one in wrong:
        told, wanted = model.soon([one]), exact.teach([one])
        assert told is not None
        # What a solution doubts is doubted; at the edge it may be more, by the shrinkage and calibration of before.
        assert [d.looks_like for d in told.doubts][: len(wanted.doubts)] == [d.looks_like for d in wanted.doubts]
        assert [d.given for d in told.doubts] == [one][: len(told.doubts)]
        found += wanted.doubts
    assert found
    again = Given(found[0].given.digest, "digit 1", "again", found[0].given.features)
    assert AtOnce(model.folder).finish() == model.finish() == 0
    learnt = model.soon([again], yes=True)
    assert learnt is not None
    assert (learnt.learnt, model.finish()) == (1, 1)


def test_killed_at_any_write_what_was_acknowledged_is_learnt_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    first, more = photos(tmp_path)
    model_of(tmp_path / "m", first)
    acknowledged: list[Given] = []

    def work(folder: Path) -> None:
        acknowledged.clear()
        model = AtOnce(folder)
        model.solved()
        for one in more:
            assert model.soon([one], yes=True) is not None
            acknowledged.append(one)
        model.finish()

    whole = Path(shutil.copytree(tmp_path / "m", tmp_path / "whole"))
    names = writes(monkeypatch, partial(work, whole))
    assert names.count(disk.MODEL) == len(more)
    for write in range(1, len(names) + 2):
        copy = Path(shutil.copytree(tmp_path / "m", tmp_path / f"{write}"))
        stopped(monkeypatch, partial(work, copy), write)
        if lessons.wait(copy):
            with pytest.raises(EdblError, match="learning photos that were just taught"):
                forget(copy, ["digit 0"])
            assert cli("learn", copy).code == 0
        learnt = {digest for known in disk.settle(copy).classes for digest in known.digests}
        assert learnt >= {one.digest for one in acknowledged}
        if len(acknowledged) == len(more):
            assert same(copy, whole)
        forget(copy, ["digit 0"])
        assert not any((copy / lessons.PLACE).glob("*.json"))


def test_what_waits_may_come_from_anywhere(tmp_path: Path, cli: Cli) -> None:
    first, more = photos(tmp_path)
    model = model_of(tmp_path / "m", first)
    assert model.soon(more[:1], yes=True) is not None
    place = model.folder / lessons.PLACE
    (entry,) = place.glob("*.json")
    for text in ("{", entry.read_text().replace("digit 0", "digit 1")):
        copy = Path(shutil.copytree(model.folder, tmp_path / f"copy {len(text)}"))
        (copy / lessons.PLACE / entry.name).write_text(text)
        assert AtOnce(copy).finish() == 0
        assert disk.read(copy).version == 1
        forget(copy, ["digit 1"])
    lessons.add(model.folder, lessons.Lesson("0" * 32, "digit 0", "x", "now"), {"features": torch.zeros(9).half()})
    lessons.add(model.folder, lessons.Lesson("../..", "digit 0", "x", "now"), {"features": torch.zeros(16).half()})
    lessons.add(model.folder, lessons.Lesson("0" * 32, " ", "x", "now"), {"features": torch.zeros(16).half()})
    assert AtOnce(model.folder).finish() == 1
    assert not place.exists()
    (tmp_path / "other").mkdir()
    place.symlink_to(tmp_path / "other")
    with pytest.raises(EdblError, match="is a link"):
        lessons.wait(model.folder)
    assert "link" in cli("forget", model.folder, "digit 1").err


def test_another_writer_is_waited_for_and_seen(tmp_path: Path) -> None:
    first, more = photos(tmp_path)
    model = model_of(tmp_path / "m", first)
    with disk.locked(model.folder), pytest.raises(Busy):
        model.soon(more[:1], yes=True)
    assert not lessons.wait(model.folder)
    forget(model.folder, ["digit 1"])
    assert model.now is None
    assert model.soon(more[:1], yes=True) is None
    assert model.teach(more[:1], yes=True).learnt == 1
    part = model.soon(more[1:2], yes=True)
    assert part is not None
    write = model.ahead()
    assert write is not None
    assert AtOnce(model.folder).finish() == 1  # another process that finds the photo
    write()  # does nothing
    assert (model.finish(), disk.read(model.folder).version) == (1, 4)  # and no version of the same photo


def test_the_server_answers_by_a_photo_before_it_is_solved(
    stand_in: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "PAUSE", 0.5)
    place = tmp_path / "m"
    with served(place, **NEW) as call:
        assert taught(call)["version"] == 1
        told = call.form(f"{M}/teach?yes=true", [picture(3, 0)], ["digit 3"]).json
        assert (told["learnt"], told["version"], told["info"]["photos"]) == (1, 2, 19)
        assert disk.read(place).version == 1
        seen = call.form(f"{M}/predict?top=9", [picture(3, 1)]).json
        assert seen["version"] == 2
        assert "digit 3" in {one["name"] for one in seen["predictions"][0]["classes"]}
        assert call("GET", f"{M}/").json["photos"] == 19
        until(lambda: disk.read(place).version == 2)
        until(lambda: not lessons.wait(place))
        assert call.form(f"{M}/predict", [picture(3, 1)]).json["version"] == 2
        call.form(f"{M}/teach?yes=true", [picture(3, 2)], ["digit 3"])
        assert disk.read(place).version == 2
        assert call("POST", f"{M}/undo", {"of": 3}).json["photos"] == 19  # it was made a version first
        assert call("GET", f"{M}/history").json["history"][-1]["version"] == 3
        call.form(f"{M}/teach?yes=true", [picture(3, 3)], ["digit 3"])
        doubted = call.form(f"{M}/teach", [picture(0, 20)], ["digit 1"]).json
        assert (doubted["learnt"], [one["looks_like"] for one in doubted["suspicious"]]) == (0, ["digit 0"])
    assert (disk.read(place).version, lessons.wait(place)) == (4, False)  # its end has learnt it
    model = Wanted(place).model("m", place)
    assert model.info()["photos"] == 20


def test_what_a_killed_server_was_taught_the_next_one_knows(stand_in: None, tmp_path: Path) -> None:
    first, more = photos(tmp_path)
    model = model_of(tmp_path / "m", first)
    assert model.soon(more[:1], yes=True) is not None
    with served(tmp_path / "m") as call:
        assert call("GET", f"{M}/").json["photos"] == len(first) + 1
    assert not lessons.wait(tmp_path / "m")


@pytest.mark.parametrize("keep", ["features", "photos"])
def test_from_python(tmp_path: Path, keep: str) -> None:
    folder = write_digits(tmp_path / "p", {0: 12, 1: 9, 2: 15, 3: 3})
    by_class = {name: sorted((folder / name).iterdir()) for name in ("digit 0", "digit 1", "digit 2")}
    new = sorted((folder / "digit 3").iterdir())
    with edbl.open(tmp_path / "m", device="cpu") as model:
        model.learn(by_class, keep=keep, backbone="stand-in", yes=True)
        model.teach(by_class["digit 0"][0], "digit 0")  # known: nothing happens
        assert model.version == 1
        model.teach(new[0], "digit 3", yes=True)
        assert (model.version, model.classes[-1]) == (2, "digit 3")
        for one, other in pairwise([2, 3, 4]):
            model.teach(new[one - 1], "digit 3", yes=True)
            assert (model.version, disk.read(tmp_path / "m").version) == (other, 2)
            assert "digit 3" in {name for name, _ in model.predict(new[0], top=4)[0].best}
        for image, label, message in (
            (new[0], "digit 1", "relabel it"),
            (folder, "digit 1", "cannot be read"),
            (new[0], " ", "is no name of a class"),
        ):
            with pytest.raises(EdblError, match=message):
                model.teach(image, label)
    assert disk.read(tmp_path / "m").version == 4
    assert (tmp_path / "m" / "exemplars").exists() == (keep == "photos")
    trained = edbl.open(tmp_path / "t", device="cpu")
    trained.learn(by_class, backbone="mlp", image_size=8, given={"schedule.epochs": 2, "data.augment": "none"})
    with pytest.raises(EdblError, match="learns by `learn` alone"):
        trained.teach(new[0], "digit 3")
