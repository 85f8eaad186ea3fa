"""Honest answers: what leaving photos out tells, against refits without them, and the page that says it."""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from edbl.app import honest, page
from edbl.app.bundle import read
from edbl.app.description import Settings
from edbl.app.exact import Exact
from edbl.app.honest import Left
from edbl.metrics import interval
from edbl.nets import kept
from edbl.nets.closed import Discriminant, Ridge, rooted
from edbl.report.model import Model, Odd, Photo, Row, html, told
from tests.conftest import Cli
from tests.photos import SHORT, write_digits
from tests.test_app import FROZEN, learn, stand_in  # noqa: F401
from tests.vectors import seeded

SETTINGS = Settings("lda", "stand-in", "head", 8, "per_class=20", 0, 0, 0, {}, keep="features")
WIDTH = 8


def samples(counts: list[int], apart: float, seed: int = 0) -> tuple[Tensor, list[str]]:
    y = torch.tensor([k for k, count in enumerate(counts) for _ in range(count)])
    means = apart * torch.randn(len(counts), WIDTH, generator=seeded(seed)) + 3
    x = means[y] + torch.randn(len(y), WIDTH, generator=seeded(seed + 1))
    return x.clamp(min=0), [f"class {k}" for k in y.tolist()]


def solved(x: Tensor, names: list[str], method: str = "lda") -> Left:
    exact = Exact.new(replace(SETTINGS, method=method), WIDTH)
    exact.learn(x, [f"{row:032x}" for row in range(len(x))], names)
    found = honest.left(exact, *exact.solve())
    assert found is not None
    return found


def test_a_class_that_is_left_out_is_told_from_the_others_as_by_a_model_without_it() -> None:
    x, names = samples([6, 5, 7], 1)
    left = solved(x, names)
    rows = (left.y == 1).nonzero().squeeze(1)
    found = left.without(1, rows)
    others = left.kept.forget(1)
    form = Discriminant(others.classes, x[:0].double(), left.y[:0])
    assert isinstance(left.found.form, Discriminant)
    form.mean_value = left.found.form.mean_value  # which is not estimated again
    weight, bias = form.solve(left.found.shrinkage)
    wanted = left.found.factor * (rooted(x[rows].half().double(), unit=True) @ weight.T + bias)
    found = found[:, [0, 2]]
    torch.testing.assert_close(found - found[:, :1], wanted - wanted[:, :1], rtol=1e-6, atol=1e-8)


def test_more_missed_strangers_are_the_price_of_fewer_false_alarms() -> None:
    found = honest.unknowns(solved(*samples([20, 20, 20, 20], 1)))
    assert [one.alarms for one in found] == list(honest.ALARMS)
    missed = [one.missed for one in found]
    assert missed == sorted(missed, reverse=True)
    assert 0 < missed[-1] < missed[0]
    assert all(one.worst_missed >= one.missed for one in found)
    far = honest.unknowns(solved(*samples([20, 20, 20, 20], 12)))
    assert far[2].missed < found[2].missed


def test_two_classes_tell_nothing_of_unknown_ones() -> None:
    assert honest.unknowns(solved(*samples([9, 9], 1))) == []


def test_ridge_tells_the_same_of_unknown_ones_as_a_model_without_them() -> None:
    x, names = samples([9, 8, 9, 7], 1)
    left = solved(x, names, "ridge")
    rows = (left.y == 2).nonzero().squeeze(1)
    others = left.kept.forget(2)
    form = Ridge(others.classes, x[:0].double(), left.y[:0])
    assert isinstance(left.found.form, Ridge)
    form.mean_value = left.found.form.mean_value
    weight, bias = form.solve(left.found.shrinkage)
    wanted = left.found.factor * (rooted(x[rows].half().double(), unit=True) @ weight.T + bias)
    torch.testing.assert_close(left.without(2, rows)[:, [0, 1, 3]], wanted, rtol=1e-6, atol=1e-8)
    found = honest.unknowns(left)
    assert [one.alarms for one in found] == list(honest.ALARMS)
    missed = [one.missed for one in found]
    assert missed == sorted(missed, reverse=True)
    far = honest.unknowns(solved(*samples([20, 20, 20, 20], 12), "ridge"))
    close = honest.unknowns(solved(*samples([20, 20, 20, 20], 1), "ridge"))
    assert far[2].missed < close[2].missed
    quarter, half, whole = honest._mistakes(near := solved(*samples([8, 8, 8], 0.7), "ridge"), 1)
    assert whole == pytest.approx(float(near.wrong[near.y == 1].mean()))
    assert {round(24 * quarter, 6) % 1, round(8 * half, 6) % 1} == {0}


def test_wrong_labels_are_found_and_right_ones_are_not() -> None:
    x, names = samples([20, 20, 20], 4, 10)
    assert honest.suspects(solved(x, names)) == []
    names[3] = "class 1"
    x[30] = torch.tensor([60.0] + [0] * (WIDTH - 1))  # like nothing
    left = solved(x, names)
    found = {one.digest: one for one in honest.suspects(left)}
    assert set(found) == {f"{3:032x}", f"{30:032x}"}
    assert not found[f"{3:032x}"].far
    classes = ["class 0", "class 1", "class 2"]
    assert honest.looks(classes, found[f"{3:032x}"]).startswith("looks like 'class 0' (")
    told_far = honest.looks(classes, found[f"{30:032x}"])
    assert "looks like" in told_far


def test_every_new_photo_is_looked_at_however_few_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    x, names = samples([60] * 6, 4, 10)
    wrong = list(range(7, 360, 30))
    for row in wrong:
        names[row] = f"class {(row // 60 + 1) % 6}"

    def named(digests: list[str]) -> set[str]:
        exact = Exact.new(SETTINGS, WIDTH)
        exact.learn(x, digests, names)
        left = honest.left(exact, *exact.solve())
        assert left is not None
        asked = exact.left_out(x.half(), digests, names)
        assert asked.digests == digests
        few = [asked.digests.index(digest) for digest in left.told.digests]
        torch.testing.assert_close(asked.scores[few], left.told.scores)
        return {one.digest for one in honest.suspects(left, asked)}

    digests = [f"{row:032x}" for row in range(len(x))]
    every = named(digests)
    assert every <= {digests[row] for row in wrong}
    assert len(every) == 10
    monkeypatch.setattr(kept, "JUDGES", 120)  # 20 of a class
    assert named(digests) == every


def test_what_more_photos_bring_is_between_the_curve_and_what_is_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    left = solved(*samples([16] * 10, 0.5))
    monkeypatch.setattr(honest, "_mistakes", lambda left, label: (0.5, 0.4 + label / 1000, 0.3))
    gains = torch.tensor([10 + k / 10 for k in range(10)]).double()
    noise = float((gains - gains.mean()).square().sum().sqrt()) / 10
    curve, usual = 0.75 * float(gains.mean()), 0.2 * 30
    doubts = (0.75 * noise) ** 2 + (0.15 * 30) ** 2 + 0.5**2, (0.1 * 30) ** 2 + 0.5**2
    weight = doubts[1] / sum(doubts)
    found = honest.needs(left)
    assert found
    worst = found[0]
    assert worst.photos == 16
    assert worst.points == pytest.approx(weight * curve + (1 - weight) * usual)
    assert (worst.high - worst.low) / 2 == pytest.approx(1.96 * (1 / (1 / doubts[0] + 1 / doubts[1])) ** 0.5, rel=1e-3)
    assert all(0 < one.low < one.points < one.high for one in found)
    own = {k: 100 * float(left.wrong[left.y == k].mean()) for k in range(10)}
    assert {one.label for one in found} == {k for k, mistakes in own.items() if mistakes >= worst.points}
    monkeypatch.setattr(honest, "_mistakes", lambda left, label: (0.5, 0.1, 0.3))
    assert honest.needs(left) == []  # the curve speaks against it


def test_classes_with_about_as_many_photos_tell_more(monkeypatch: pytest.MonkeyPatch) -> None:
    left = solved(*samples([16] * 6 + [64] * 4, 0.5))
    monkeypatch.setattr(honest, "_mistakes", lambda left, label: (0.6, 0.5, 0.4) if label < 6 else (0.3, 0.2, 0.1))
    points = {one.photos: one.points for one in honest.needs(left)}
    alone = [
        honest.foretold(torch.tensor([[60.0, 50.0, 40.0], [30.0, 20.0, 10.0]]), torch.eye(2)[k])[0] for k in (0, 1)
    ]
    assert alone[1] < points[64] < points[16] < alone[0]


def test_shares_of_mistakes_of_a_quarter_a_half_and_all_are_those_of_fits() -> None:
    x, names = samples([8, 8, 8], 0.7)
    left = solved(x, names)
    quarter, half, whole = honest._mistakes(left, 1)
    assert whole == pytest.approx(float(left.wrong[left.y == 1].mean()))
    assert {round(24 * quarter, 6) % 1, round(8 * half, 6) % 1} == {0}
    assert honest.needs(solved(*samples([16] * 10, 9))) == []  # nothing is wrong
    assert honest.needs(solved(*samples([16] * 4, 0.5))) == []  # too few classes


def test_nothing_can_be_left_out_of_single_photos() -> None:
    exact = Exact.new(SETTINGS, WIDTH)
    exact.learn(samples([1, 1], 1)[0], ["0" * 32, "1" * 32], ["a", "b"])
    assert honest.left(exact, *exact.solve()) is None


def made(photos: list[Photo], names: list[str]) -> str:
    rows = [Row(name, 3) for name in names]
    odd = [Odd(photos[0], "looks like '<x>'")] if photos else []
    return html(Model("m", "made", "how", rows, photos, True, 0.1, odd, "", [("5%", "40%", "b (60%)")]))


def test_a_page_is_whole_and_safe() -> None:
    pixels = torch.randint(256, (3, 200, 200), generator=seeded(0)).byte().numpy()
    photos = [Photo("a" * 32, 0, 1, 0.9, pixels), Photo("b" * 32, 0, 0, 0.8), Photo("c" * 32, 1, 0, 0.7)]
    text = made(photos, ["<script>alert(1)</script>", 'b" onclick="x'])
    assert "<script" not in text
    assert 'onclick="x' not in text
    assert not re.search(r'(src|href)="(?!data:image/jpeg|#)', text)
    assert "default-src 'none'" in text
    cells = set(re.findall(r'href="#(m-\d+-\d+)"', text))
    assert cells == {"m-0-1", "m-1-0"} == set(re.findall(r'id="(m-\d+-\d+)"', text))
    assert text.count("data:image/jpeg") == 2  # the mistake, and the odd one
    assert len(text) < 30_000
    assert "1 of 3 (33.3%" in text
    assert "not measured" in made([], ["a"])


def test_right_answers_are_told_as_numbers() -> None:
    low, high = interval(48, 48)
    assert told(48, 48) == f"48 of 48 (100.0%; 95% interval {low:.0%} to {high:.0%})"


def test_many_classes_have_a_matrix_of_the_worst() -> None:
    photos = [Photo("a" * 32, k, (k + 1) % 60, 0.5) for k in range(20)]
    text = made(photos, [f"class {k}" for k in range(60)])
    assert "39 classes with the fewest mistakes" in text


@pytest.mark.usefixtures("stand_in")
def test_each_increment_has_its_page_and_any_change_removes_it(tmp_path: Path, cli: Cli) -> None:
    model = tmp_path / "model"
    found = learn(cli, model, write_digits(tmp_path / "a", {0: 12, 1: 12, 8: 12}), *FROZEN, "--yes")
    place = model / "report.html"
    assert f"page: {place}" in found.out
    text = place.read_text()
    assert "3 classes, version 1, lda with stand-in (frozen)" in text
    mistakes = len(re.findall(r"not at hand</span>", text))
    assert mistakes == 0  # photos of the increment are there
    again = cli("report", model, "--out", tmp_path / "page.html")
    assert again.code == 0, again.err
    assert sorted(re.findall(r"<td>(\d+ of \d+)</td>", (tmp_path / "page.html").read_text())) == sorted(
        re.findall(r"<td>(\d+ of \d+)</td>", text)
    )
    assert cli("report", model, tmp_path / "a").code == 0
    assert place.read_text() == text
    assert cli("forget", model, "digit 1").code == 0
    assert not place.exists()
    assert cli("report", model, "--out", tmp_path / "x.csv").code == 2


@pytest.mark.usefixtures("stand_in")
def test_mistakes_of_earlier_photos_are_shown_where_they_are_still_there(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model, first = tmp_path / "model", write_digits(tmp_path / "a", {1: 20, 8: 20, 9: 20})
    learn(cli, model, "a", *FROZEN, "--yes")
    mistakes = (model / "report.html").read_text().count("data:image/jpeg")
    assert mistakes > 3
    learn(cli, model, write_digits(tmp_path / "b", {0: 12}), "--yes")
    text = (model / "report.html").read_text()
    assert text.count("data:image/jpeg") >= mistakes
    assert "not at hand" not in text
    assert str(first) not in "".join(path.read_text(errors="ignore") for path in model.rglob("*") if path.is_file())
    for path in sorted(first.rglob("*.png"))[::2]:
        path.write_bytes(sorted((tmp_path / "b").rglob("*.png"))[0].read_bytes())  # another photo by now
    monkeypatch.chdir(tmp_path / "b")
    assert cli("report", model).code == 0
    text = (model / "report.html").read_text()
    assert 0 < text.count("data:image/jpeg") < mistakes
    (noted,) = (Path(os.environ["EDBL_CACHE"]) / "places").glob("*.json")
    assert "digit 0" in noted.read_text()
    assert cli("forget", model, "digit 0").code == cli("prune", model).code == 0
    assert "digit 0" not in noted.read_text()
    assert "digit 8" in noted.read_text()
    assert "not at hand" in text
    monkeypatch.setenv("EDBL_CACHE_MB", "0")
    assert cli("report", model).code == 0
    assert "data:image/jpeg" not in (model / "report.html").read_text()


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("options", [SHORT, [*FROZEN, "--method", "icarl", *SHORT[-4:-2]]], ids=["pixels", "features"])
def test_a_trained_model_has_a_page_of_what_was_held_out(tmp_path: Path, cli: Cli, options: list[str]) -> None:
    model = tmp_path / "model"
    learn(cli, model, write_digits(tmp_path / "a", {0: 10, 1: 10}), *options)
    text = (model / "report.html").read_text()
    assert "Measured with photos that were held out" in text
    assert " of 2 (" in text
    learn(cli, model, write_digits(tmp_path / "b", {2: 10, 1: 10}, 20))
    text = (model / "report.html").read_text()
    assert " of 4 (" in text
    assert page.write(model, read(model), place=tmp_path / "again.html").read_text() == text


@pytest.mark.usefixtures("stand_in")
def test_a_wrong_label_is_named_though_few_photos_are_left_out(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = write_digits(tmp_path / "a", dict.fromkeys(range(6), 60))
    monkeypatch.setattr(kept, "JUDGES", 120)  # 20 of a class
    learn(cli, tmp_path / "model", photos, *FROZEN, "--yes")
    monkeypatch.setattr(honest, "UNLIKELY", 0.2)  # the stand-in's features tell digits less well
    more = write_digits(tmp_path / "b", {0: 12, 4: 6}, 60)
    wrong = [shutil.move(more / "digit 0" / f"{number:03}.png", more / "digit 4") for number in range(66, 71)]
    found = cli("learn", tmp_path / "model", more)
    assert found.code == 2
    assert all(f"{one}, given as 'digit 4', looks like 'digit 0'" in found.err for one in wrong)


@pytest.mark.usefixtures("stand_in")
def test_what_looks_mislabelled_is_not_learnt_unless_it_is_wanted(tmp_path: Path, cli: Cli) -> None:
    model, photos = tmp_path / "model", write_digits(tmp_path / "a", {0: 25, 1: 25, 4: 25})
    wrong = photos / "digit 1" / "wrong.png"
    shutil.move(photos / "digit 0" / "003.png", wrong)
    found = cli("learn", model, photos, *FROZEN)
    assert found.code == 2
    assert f"{wrong}, given as 'digit 1', looks like " in found.err
    assert "like 'digit 0' (" in found.err
    assert "nothing is learnt yet" in found.err
    assert not (model / "model.json").exists()
    assert cli("learn", model).code == 2  # still
    assert learn(cli, model, "--yes").out
    assert "wrong" not in read(model).names
    assert "Suspicious labels" in (model / "report.html").read_text()
    shutil.rmtree(model)
    assert cli("learn", model, photos, *FROZEN).code == 2
    wrong.unlink()
    learn(cli, model, photos, "--discard", *FROZEN)  # begins again without it
    assert page.find([photos], 8).keys() == {d for known in read(model).classes for d in known.digests}
    with Image.open(photos / "digit 0" / "000.png") as image:
        assert image.size == (8, 8)
