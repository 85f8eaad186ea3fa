"""The server: what each call does, that it does what the command line and `edbl.open` do, and no more."""

import inspect
import re
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch

import edbl
from edbl.app import bundle as disk
from edbl.cli import models as commands
from edbl.nets import engines, pretrained
from edbl.nets.engines import ENGINES
from edbl.presets import PACES
from edbl.serve import api
from edbl.serve.limits import Limits
from tests.backbones import Stand
from tests.conftest import Cli
from tests.photos import write_digits
from tests.serving import NEW, TRAINED, Caller, M, events, lesson, picture, served, taught

pytestmark = pytest.mark.usefixtures("stand_in")


def test_from_an_empty_folder_to_a_right_answer(call: Caller, tmp_path: Path) -> None:
    before = call("GET", "/v1/models").json
    assert (
        before["models"][0] | {"exists": False, "version": 0, "classes": [], "learns": "at once"}
        == (before["models"][0])
    )
    asked = call.form(f"{M}/predict", [picture(1, 20)]).json
    assert asked["version"] == 0
    assert asked["predictions"][0]["unknown"]
    assert asked["predictions"][0]["classes"] == []
    told = taught(call)
    assert (told["version"], told["learnt"], told["known"], told["errors"]) == (1, 18, 0, [])
    assert {one["name"]: one["photos"] for one in told["info"]["classes"]} == {f"digit {k}": 6 for k in range(3)}
    asked = call.form(f"{M}/predict?top=2", [picture(0, 20), ("x.txt", b"no picture"), picture(2, 20)]).json
    first, bad, last = asked["predictions"]
    assert first["classes"][0]["name"] == "digit 0"
    assert len(first["classes"]) == 2
    assert (bad["id"], bad["error"], bad["file"]) == (None, "not an image", "x.txt")
    assert last["classes"][0]["name"] == "digit 2"
    assert taught(call)["known"] == 18
    assert call("GET", M + "/").json["version"] == 1
    assert edbl.open(tmp_path / "m").predict(str(write_digits(tmp_path / "p", {0: 1}, 20)))[0].best[0][0] == "digit 0"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_is_asked_and_taught_by_its_own_engine(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Whatever the one is that would be usual here."""
    monkeypatch.setattr(engines, "fast_int8", lambda: True)
    monkeypatch.setattr(pretrained, "LITES", ("stand-in",))
    monkeypatch.setattr(Stand, "ranges", lambda stand, x: torch.zeros(1, 2), raising=False)
    usual = next(one for one in ENGINES if one != engine)
    monkeypatch.setattr(Stand, "usual_engine", lambda stand, device: usual)
    first, more = write_digits(tmp_path / "a", {0: 9, 1: 9}), write_digits(tmp_path / "b", {2: 9})
    for model in ("m", "n"):
        found = cli("learn", tmp_path / model, first, "--backbone", "stand-in", "--device", "cpu", "--engine", engine)
        assert found.code == 0, found.err
    assert cli("learn", tmp_path / "n", more, "--device", "cpu").code == 0
    with served(tmp_path / "m") as call:
        taught(call, {2: 9})
        asked = [picture(k, 30) for k in range(3)]
        told = call.form(f"{M}/predict?top=3", asked).json["predictions"]
        moved = call("POST", f"{M}/relabel", {"photos": [{"id": told[0]["id"], "label": "digit 1"}]})
        assert moved.status == 200, moved.body
    places = [write_digits(tmp_path / "asked", {k: 1}, 30) / f"digit {k}" / "030.png" for k in range(3)]
    wanted = edbl.open(tmp_path / "n").predict(places)
    for one, other in zip(told, wanted, strict=True):
        ours, theirs = {c["name"]: c["probability"] for c in one["classes"]}, dict(other.best)
        assert ours == pytest.approx(theirs, abs=1e-4)


def test_it_ends_with_the_model_that_the_command_makes(cli: Cli, call: Caller, tmp_path: Path) -> None:
    taught(call, {0: 5, 1: 5})
    taught(call, {1: 7, 2: 4})
    options = ["--backbone", "stand-in", "--device", "cpu", "--yes"]
    cli("learn", tmp_path / "c", write_digits(tmp_path / "one", {0: 5, 1: 5}), *options)
    cli("learn", tmp_path / "c", write_digits(tmp_path / "two", {1: 7, 2: 4}), *options[2:])
    ours, theirs = (disk.load(tmp_path / name) for name in ("m", "c"))
    assert [vars(one) | {"learnt": "", "refreshed": ""} for one in ours.bundle.classes] == (
        [vars(one) | {"learnt": "", "refreshed": ""} for one in theirs.bundle.classes]
    )
    assert all(theirs.tensors[name].allclose(tensor) for name, tensor in ours.tensors.items())
    assert ours.bundle.settings == theirs.bundle.settings
    assert ours.bundle.recipe == theirs.bundle.recipe
    events = [
        [(e.kind, e.classes, e.refreshed, e.images, e.scores) for e in one.bundle.history] for one in (ours, theirs)
    ]
    assert events[0] == events[1]


def test_what_was_asked_is_taught_by_its_id_and_answers_differ(call: Caller) -> None:
    taught(call)
    asked = call.form(f"{M}/predict", [picture(7, k) for k in range(4)]).json["predictions"]
    tray = call("GET", f"{M}/next").json["photos"]
    assert {one["id"] for one in tray} == {one["id"] for one in asked}
    pairs = [{"id": one["id"], "label": "seven"} for one in asked]
    told = call("POST", f"{M}/teach", {"photos": [*pairs, {"id": "0" * 32, "label": "x"}], "yes": True}).json
    assert told["learnt"] == 4
    assert told["errors"] == [{"file": "0" * 32, "error": api.GONE}]
    again = call("POST", f"{M}/predict", {"photos": [asked[0]["id"], "f" * 32]}).json
    assert again["version"] == 2
    assert again["predictions"][0]["classes"][0]["name"] == "seven"
    assert again["predictions"][1]["error"] == api.GONE
    assert call("GET", f"{M}/next").json["photos"] == []
    assert call("GET", f"{M}/photos/{asked[0]['id']}").headers["content-type"] == "image/jpeg"
    assert call("GET", f"{M}/photos/{'0' * 32}").status == 404


def test_a_label_that_looks_wrong_is_learnt_only_if_it_is_wanted(call: Caller) -> None:
    taught(call, {0: 20, 1: 20})
    file = [picture(0, 30)]
    told = call.form(f"{M}/teach", file, ["digit 1"]).json
    assert (told["learnt"], told["version"]) == (0, 1)
    (doubt,) = told["suspicious"]
    assert doubt["looks_like"] == "digit 0"
    wanted = [{"id": doubt["id"], "label": "digit 1"}]
    assert call("POST", f"{M}/teach", {"photos": wanted, "yes": True}).json["learnt"] == 1
    (odd,) = call("GET", f"{M}/suspicious").json["suspicious"]
    assert (odd["id"], odd["label"], odd["thumbnail"]) == (doubt["id"], "digit 1", True)
    wrong = call("GET", f"{M}/mistakes").json["mistakes"]
    assert doubt["id"] in {one["id"] for one in wrong}
    refused = call.form(f"{M}/teach", file, ["digit 0"]).json
    assert "relabel" in refused["errors"][0]["error"]
    moved = call("POST", f"{M}/relabel", {"photos": [{"id": doubt["id"], "label": "digit 0"}]}).json
    assert moved["learnt"] == 1
    assert {one["name"]: one["photos"] for one in moved["info"]["classes"]} == {"digit 0": 21, "digit 1": 20}
    assert call("GET", f"{M}/suspicious").json["suspicious"] == []


def test_relabelling_is_as_if_the_photo_had_come_with_that_label(call: Caller, tmp_path: Path) -> None:
    taught(call, {0: 5, 1: 5})
    shutil.copytree(tmp_path / "m", tmp_path / "before")
    id = call.form(f"{M}/predict", [picture(1, 0)]).json["predictions"][0]["id"]
    call("POST", f"{M}/relabel", {"photos": [{"id": id, "label": "digit 0"}]})
    with served(tmp_path / "x", **NEW) as other:
        files, labels = lesson({0: 5, 1: 5})
        labels[5] = "digit 0"
        other.form("/v1/models/x/teach?yes=true", files, labels)
    ours, theirs = (disk.load(tmp_path / name) for name in ("m", "x"))
    assert [one.photos for one in ours.bundle.classes] == [one.photos for one in theirs.bundle.classes]
    assert all(theirs.tensors[name].allclose(tensor) for name, tensor in ours.tensors.items())
    bare = [{"id": d, "label": "digit 0"} for d in ours.bundle.classes[1].digests]
    assert "would have no photo left" in call("POST", f"{M}/relabel", {"photos": bare}).json["errors"][0]["error"]


def test_names_and_versions(call: Caller) -> None:
    taught(call)
    assert call("POST", f"{M}/rename", {"old": "digit 0", "new": "nought"}).json["version"] == 2
    assert call("POST", f"{M}/merge", {"classes": ["digit 1", "digit 2"], "into": "more"}).json["version"] == 3
    assert [one["name"] for one in call("GET", f"{M}/classes").json["classes"]] == ["nought", "more"]
    assert call("POST", f"{M}/undo", {"to": None}).json["version"] == 2
    now = call("POST", f"{M}/forget", {"classes": ["digit 1"]}).json
    assert [one["name"] for one in now["classes"]] == ["nought", "digit 2"]
    told = call("GET", f"{M}/history").json["history"]
    assert [one["version"] for one in told if one["current"]] == [now["version"]]
    assert [one["what"] for one in told][1] == "renamed digit 0 to nought"
    assert call("POST", f"{M}/undo", {"to": 1}).json["version"] == 1
    assert call("POST", f"{M}/prune", {}).json["freed_mb"] > 0
    assert len(call("GET", f"{M}/history").json["history"]) == 1
    answer = call("POST", f"{M}/undo", {"to": None})
    assert answer.status == 409
    assert answer.json["error"].endswith("there is nothing before it")


def test_photos_are_forgotten_and_can_be_taught_again(call: Caller) -> None:
    taught(call)
    asked = call.form(f"{M}/predict", [picture(0, 0), picture(0, 1)]).json["predictions"]
    info = call.form(f"{M}/forget", [picture(0, 0)]).json
    assert info["photos"] == 17
    assert call("GET", f"{M}/photos/{asked[0]['id']}").status == 404
    assert call("POST", f"{M}/forget", {"photos": [asked[1]["id"]]}).json["photos"] == 16
    assert "has not learnt from" in call.form(f"{M}/forget", [picture(0, 0)]).json["error"]
    assert taught(call)["learnt"] == 2


@pytest.mark.parametrize("keep", ["photos", "nothing"])
def test_what_is_kept_can_be_chosen(keep: str, tmp_path: Path) -> None:
    with served(tmp_path / "m", **NEW) as call:
        assert call("POST", "/v1/models", {"name": "m", "keep": keep}).json["keep"] == keep
        told = taught(call)
        assert told["info"]["keep"] == keep
        assert call("POST", "/v1/models", {"name": "m", "keep": "features"}).status == 409
    with served(tmp_path / "m") as call:
        classes = call("GET", f"{M}/classes").json["classes"]
        assert taught(call, {0: 7})["learnt"] == 1
        if keep == "photos":
            assert call("GET", f"{M}/photos/{classes[0]['photo']}").status == 200
            odd = call("GET", f"{M}/photos/{classes[0]['photo']}").body
            assert odd.startswith(b"\xff\xd8")
            moved = [{"id": classes[0]["photo"], "label": "digit 1"}]
            assert call("POST", f"{M}/relabel", {"photos": moved}).json["learnt"] == 1
        else:
            assert classes[0]["photo"] is None
            assert call("GET", f"{M}/mistakes").json == {"mistakes": []}
            assert call.form(f"{M}/forget", [picture(0, 0)]).json["photos"] == 18
            gone = call("POST", f"{M}/relabel", {"photos": [{"id": "0" * 32, "label": "x"}]}).json
            assert gone["errors"][0]["error"] == api.GONE


def test_a_folder_of_models(tmp_path: Path) -> None:
    for name, counts in (("a", {0: 5, 1: 5}), ("b", {2: 5, 3: 5})):
        with served(tmp_path / "all" / name, **NEW) as call:
            call.form(f"/v1/models/{name}/teach?yes=true", *lesson(counts))
    with served(tmp_path / "all", **NEW) as call:
        told = call("GET", "/v1/models").json
        assert told["several"]
        assert [one["name"] for one in told["models"]] == ["a", "b"]
        assert call("POST", "/v1/models", {"name": "c", "keep": "photos"}).json["keep"] == "photos"
        for name in ("a", "C", "../x", ".x", "a/b", "x" * 65, ""):
            assert call("POST", "/v1/models", {"name": name}).status in (409, 422)
        assert call("POST", "/v1/models", {"name": "d", "method": "nonsense"}).status == 409
        info = call("POST", "/v1/models/a/join", {"model": "b"}).json
        assert [one["name"] for one in info["classes"]] == [f"digit {k}" for k in range(4)]
        answer = call.form("/v1/models/a/predict", [picture(3, 20)]).json
        assert answer["predictions"][0]["classes"][0]["name"] == "digit 3"
        assert call("POST", "/v1/models/a/undo", {}).json["photos"] == 10
        assert call("POST", "/v1/models/a/join", {"model": "a"}).status == 409
        assert call("POST", "/v1/models/a/join", {"model": "z"}).status == 404
        assert call("POST", "/v1/models/a/join", {"model": "c"}).status == 409
        assert call("GET", "/v1/models/z/").status == 404


def test_joining_over_http_is_joining_by_the_command(tmp_path: Path, cli: Cli) -> None:
    for name, counts in (("a", {0: 5, 1: 5}), ("b", {1: 8, 2: 5})):
        with served(tmp_path / "all" / name, **NEW) as call:
            call.form(f"/v1/models/{name}/teach?yes=true", *lesson(counts))
    cli("join", tmp_path / "c", tmp_path / "all" / "a", tmp_path / "all" / "b")
    with served(tmp_path / "all") as call:
        assert call("POST", "/v1/models/a/join", {"model": "b"}).status == 200
    ours, theirs = disk.load(tmp_path / "all" / "a"), disk.load(tmp_path / "c")
    assert [one.photos for one in ours.bundle.classes] == [one.photos for one in theirs.bundle.classes]
    assert all(theirs.tensors[name].allclose(tensor) for name, tensor in ours.tensors.items())


def test_others_may_change_the_model_meanwhile(call: Caller, tmp_path: Path, cli: Cli) -> None:
    taught(call)
    cli("rename", tmp_path / "m", "digit 0", "nought")
    assert call.form(f"{M}/predict", [picture(0, 20)]).json["predictions"][0]["classes"][0]["name"] == "nought"
    cli("learn", tmp_path / "m", write_digits(tmp_path / "p", {3: 6}), "--device", "cpu", "--yes")
    assert taught(call, {4: 6})["version"] == 4
    assert len(call("GET", f"{M}/classes").json["classes"]) == 5
    with disk.locked(tmp_path / "m"):
        answer = call.form(f"{M}/teach", *lesson({5: 1}))
    assert answer.status == 409
    assert "another process is working" in answer.json["error"]
    assert str(tmp_path) not in answer.json["error"]


def test_two_servers_of_one_model_are_two_writers(call: Caller, tmp_path: Path) -> None:
    taught(call)
    with served(tmp_path / "m") as other:
        done: list[int] = []

        def teach(one: Caller, start: int) -> None:
            for k in range(start, start + 8):
                while (answer := one.form(f"{M}/teach?yes=true", [picture(3, k)], ["digit 3"])).status == 409:
                    assert "another process" in answer.json["error"]
                assert answer.json["learnt"] == 1
                done.append(k)

        threads = [threading.Thread(target=teach, args=pair) for pair in ((call, 0), (other, 8))]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert len(done) == 16
        end = time.monotonic() + 30
        while {one("GET", M + "/").json["photos"] for one in (call, other)} != {18 + 16}:  # each learns what it took in
            assert time.monotonic() < end
            time.sleep(0.1)


def test_the_page_of_the_model_and_its_file(call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taught(call)
    page = call("GET", f"{M}/report")
    assert page.status == 200
    assert b"<title>m</title>" in page.body
    assert "sandbox" in page.headers["content-security-policy"]
    made = call("GET", f"{M}/export")
    assert made.headers["content-disposition"] == 'attachment; filename="m.onnx"'
    (tmp_path / "m.onnx").write_bytes(made.body)
    files = [picture(k % 3, 20 + k) for k in range(12)]
    ours = call.form(f"{M}/predict", files).json["predictions"]
    with served(tmp_path / "m.onnx") as other:
        told = other("GET", "/v1/models").json
        assert (told["writable"], told["models"][0]["learns"]) == (False, "never")
        theirs = other.form(f"{M}/predict", files).json["predictions"]
        for one, two in zip(ours, theirs, strict=True):
            assert (one["id"], one["classes"][0]["name"]) == (two["id"], two["classes"][0]["name"])
            assert one["classes"][0]["probability"] == pytest.approx(two["classes"][0]["probability"], abs=1e-3)
        assert other.form(f"{M}/teach", *lesson({0: 1})).status == 409
        assert other("POST", f"{M}/undo", {}).status == 409
        assert other("GET", f"{M}/next").status == 200


# Trained models: photos wait, an update learns them.


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    short = {key: value._replace(least=2, most=2) for key, value in PACES.items()}
    monkeypatch.setattr("edbl.presets.PACES", short)
    return tmp_path / "m"


def test_a_trained_model_stages_photos_and_an_update_learns_them(trained: Path) -> None:
    with served(trained, **TRAINED) as call:
        assert call("POST", f"{M}/learn", {}).status == 409
        told = call.form(f"{M}/teach", *lesson({0: 6, 1: 6})).json
        assert (told["staged"], told["learnt"], told["version"], told["info"]["learns"]) == (12, 0, 0, "by updates")
    with served(trained, **TRAINED) as call:  # what was acknowledged is there
        assert call("GET", M + "/").json["staged"] == 12
        assert call("POST", f"{M}/learn", {}).status == 202
        news = events(call)
        assert news[-1] == ("done", {"version": 1})
        assert {name for name, _ in news[:-1]} == {"progress"}
        info = call("GET", M + "/").json
        assert (info["staged"], info["version"], info["photos"] > 8) == (0, 1, True)
        assert not (trained / disk.STAGED).exists()
        answer = call.form(f"{M}/predict", [picture(0, 20)]).json
        assert answer["version"] == 1
        again = call.form(f"{M}/teach", *lesson({0: 6, 2: 6})).json
        assert again["known"] + again["staged"] == 12
        assert 4 < again["known"] < 7  # of each class one may be held out, and not stay
        assert call("DELETE", f"{M}/learn").json["staged"] == 0
        assert call("GET", f"{M}/mistakes").status == 200
        assert call("POST", f"{M}/merge", {"classes": ["digit 0", "digit 1"]}).status == 409


def test_an_update_is_dropped_or_gone_on_with(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "edbl.presets.PACES", {key: value._replace(least=400, most=400) for key, value in PACES.items()}
    )
    with served(trained, **TRAINED) as call:
        call.form(f"{M}/teach", *lesson({0: 6, 1: 6}))
        call("POST", f"{M}/learn", {})
        assert call("POST", f"{M}/learn", {}).status == 409
        while not disk.begun(trained):
            time.sleep(0.01)
        assert call("GET", M + "/").json["updating"]
    assert disk.begun(trained)
    with served(trained, **TRAINED) as call:  # whose it is nobody knows: it continues when somebody wants it to
        assert not call("GET", M + "/").json["updating"]
        assert call("POST", f"{M}/learn", {}).status == 202
        assert call("GET", M + "/").json["updating"]
        info = call("DELETE", f"{M}/learn").json
        assert (info["updating"], info["staged"], info["exists"]) == (False, 0, False)
        assert not disk.begun(trained)


def test_photos_that_come_during_an_update_wait_for_the_next(trained: Path) -> None:
    with served(trained, **TRAINED) as call:
        call.form(f"{M}/teach", *lesson({0: 6, 1: 6}))
        call("POST", f"{M}/learn", {})
        call.form(f"{M}/teach", *lesson({2: 6}))
        assert events(call)[-1][0] == "done"
        assert call("GET", M + "/").json["staged"] == 6
        call("POST", f"{M}/learn", {})
        assert events(call)[-1] == ("done", {"version": 2})
        assert len(call("GET", f"{M}/classes").json["classes"]) == 3


# What commands do, calls do, and the other way round.

READING = {"predict", "info", "history", "export", "page"}  # commands of models that change nothing; page: `report`


def test_what_changes_a_model_is_a_command_and_a_call() -> None:
    own = {
        name
        for name, member in inspect.getmembers(commands, inspect.isfunction)
        if member.__module__ == commands.__name__ and name[0] != "_"
    }
    changing = {
        tag
        for route in api.router.routes
        for tag in getattr(route, "tags", ())
        if {"POST", "DELETE"} & getattr(route, "methods", set())
    }
    assert changing - {"predict"} == own - READING
    calls = {tag for route in api.router.routes for tag in getattr(route, "tags", ())}
    assert calls == own - {"page"} | {"report"}


def test_the_client_has_every_call(tmp_path: Path) -> None:
    source = inspect.getsource(edbl.connect.__globals__["Connected"])
    calls = {
        (method, getattr(route, "path", "").removeprefix("/v1/models").removeprefix("/{model}").partition("{")[0])
        for route in api.router.routes
        for method in getattr(route, "methods", ())
    }
    assert {("GET", ""), ("POST", ""), ("DELETE", "/learn"), ("GET", "/photos/")} <= calls
    by_method = {(method, path) for method, path in calls if f'"{method}", "{path}"' in source}
    by_path = {(method, path) for method, path in calls if path and f'"{path}' in source}
    assert calls - by_method - by_path == set()


def test_the_client(tmp_path: Path) -> None:
    folder = write_digits(tmp_path / "p", {0: 20, 1: 20})
    by_class = {place.name: sorted(place.iterdir()) for place in sorted(folder.iterdir())}
    with served(tmp_path / "m", **NEW) as call:
        model = edbl.connect(call.url)
        assert model.version == 0
        lesson_ = model.learn(by_class)
        assert (lesson_.learnt, lesson_.errors) == (40, [])
        assert model.classes == ["digit 0", "digit 1"]
        found = model.predict([folder / "digit 1" / "003.png", picture(0, 30)[1], b"nothing"], top=1)
        assert [one.best[0][0] for one in found[:2]] == ["digit 1", "digit 0"]
        assert found[2].bad == "not an image"
        assert model.teach({found[1].id or "": "digit 0"}).learnt == 1
        model.rename("digit 0", "nought")
        model.undo()
        model.forget(photos=[folder / "digit 1" / "003.png"])
        assert model.info["photos"] == 40
        model.merge(["digit 0", "digit 1"], "both")
        model.undo(to=1)
        model.export(tmp_path / "out.onnx")
        assert (tmp_path / "out.onnx").stat().st_size > 1000
        assert model.prune() > 0
        assert len(model.history()) == 1
        assert isinstance(model.mistakes() + model.suspicious() + model.next(), list)
        with pytest.raises(edbl.EdblError, match="unknown class"):
            model.rename("x", "y")
        with pytest.raises(edbl.EdblError, match="has no model 'z'"):
            edbl.connect(call.url, model="z")
        model.close()
    with pytest.raises(edbl.EdblError, match="cannot reach"):
        edbl.connect(call.url)
    with pytest.raises(edbl.EdblError, match="no address"):
        edbl.connect("file:///etc/passwd")


def test_limits_are_told(call: Caller) -> None:
    told, limits = call("GET", "/v1/models").json["limits"], Limits()
    assert told == {"files": limits.files, "file_mb": 24, "request_mb": 96}


def test_what_it_counts(call: Caller) -> None:
    taught(call)
    call.form(f"{M}/predict", [picture(0, 20), picture(0, 21)])
    text = call("GET", "/metrics").body.decode()
    assert 'edbl_requests_total{method="POST",call="/v1/models/{model}/predict",status="200"} 1' in text
    assert "edbl_predictions_total 2" in text
    assert "edbl_photos_taught_total 18" in text
    assert all(re.fullmatch(r"# .*|[a-z_]+(\{.*\})? [-+.e\d]+", line) for line in text.splitlines())


def test_the_api_has_a_page_that_needs_nothing_from_elsewhere(call: Caller) -> None:
    page = call("GET", "/docs").body.decode()
    assert "POST /v1/models/{model}/teach" in page
    assert "script" not in page
    assert not re.search(r"(src|href)=.?https?:", page)
    assert call("GET", "/openapi.json").json["openapi"].startswith("3.")
