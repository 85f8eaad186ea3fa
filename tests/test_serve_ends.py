"""What the server does where something ends: the disk, the process, memory, a client that leaves."""

import http.client
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch import Generator, Tensor

import edbl
from edbl.app import bundle as disk
from edbl.app import learn
from edbl.app.photos import Photo
from edbl.data.decoding import Decoded
from edbl.errors import EdblError
from edbl.nets import pretrained
from edbl.presets import PACES
from edbl.serve import client, updates
from edbl.serve.limits import Limits
from edbl.serve.run import Server, Wanted
from edbl.serve.taught import New, Taught
from tests.backbones import Stand
from tests.serving import NEW, TRAINED, Caller, M, events, lesson, multipart, picture, served, taught
from tests.test_bundle import writes
from tests.test_taught import stopped

pytestmark = pytest.mark.usefixtures("stand_in")


def first(place: Path) -> Callable[[], Any]:
    """Return what teaches a new model in this folder."""
    model = Taught(place.name, place, Limits(), New(backbone="stand-in"), "cpu")
    files, labels = lesson({0: 3, 1: 3})
    shown = [model.read(data, name) for name, data in files]
    return lambda: model.teach(list(zip(shown, labels, strict=True)), True, False)  # type: ignore[arg-type]


def test_a_first_write_that_is_killed_at_any_moment_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = writes(monkeypatch, first(tmp_path / "whole"))
    assert len(names) > 2
    for write in range(1, len(names) + 1):
        place = tmp_path / f"{write}" / "m"
        stopped(monkeypatch, first(place), write)
        with served(place, **NEW) as call:  # as one model, and as one of several
            assert call("GET", f"{M}/").json["exists"] == (write > names.index(disk.MODEL) + 1)
            assert taught(call, {0: 3, 1: 3})["info"]["photos"] == 6
        assert not (place / disk.WRITING).exists()
        kept = [sorted(path.name for path in (one / "features").iterdir()) for one in (place, tmp_path / "whole")]
        assert kept[0] == kept[1]


def test_a_killed_first_write_blocks_no_name_of_a_folder_of_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(monkeypatch, first(tmp_path / "all" / "m"), 2)
    (tmp_path / "all" / "n").mkdir()
    (tmp_path / "all" / "n" / ".lock").touch()  # of a writer that was killed before it wrote
    with served(tmp_path / "all", **NEW) as call:
        assert [one["name"] for one in call("GET", "/v1/models").json["models"]] == ["m"]
        assert taught(call, {0: 3})["info"]["photos"] == 3
        assert call("POST", "/v1/models", {"name": "n"}).status == 200


@contextmanager
def full_disk() -> Iterator[None]:
    """Let every write to a file fail in this process, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def large(number: int) -> tuple[str, bytes]:
    """Return a picture of more than 1 MB."""
    name, data = picture(1, number)
    return name, data + bytes(2**20 + 1)


def test_a_full_disk_changes_nothing(call: Caller) -> None:
    taught(call)
    files = [large(k) for k in range(20, 23)]
    before = call("GET", f"{M}/").json
    with full_disk():
        told = call.form(f"{M}/predict", files)  # which needs no disk
        answers = [
            call.form(f"{M}/teach?yes=true", files, ["digit 1"]),
            call("POST", f"{M}/rename", {"old": "digit 1", "new": "one"}),
            call("GET", f"{M}/export"),
            call("GET", f"{M}/report"),
        ]
    assert (told.status, len(told.json["predictions"])) == (200, 3)
    assert [one.status for one in answers] == [507] * 4, [one.body for one in answers]
    assert answers[0].json == {"error": "the disk of the server is full; nothing was changed"}
    assert call("GET", f"{M}/").json == before
    assert call.form(f"{M}/teach?yes=true", files, ["digit 1"]).json["learnt"] == 3
    assert call("GET", f"{M}/report").status == 200


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    long = {key: value._replace(least=300, most=300) for key, value in PACES.items()}
    monkeypatch.setattr("edbl.presets.PACES", long)
    return tmp_path / "m"


def test_a_full_disk_stages_nothing(trained: Path) -> None:
    with served(trained, **TRAINED) as call:
        call.form(f"{M}/teach", *lesson({0: 2}))
        with full_disk():
            assert call.form(f"{M}/teach", *lesson({1: 2})).status == 507
        assert call("GET", f"{M}/").json["staged"] == 2
        assert call.form(f"{M}/teach", *lesson({1: 2})).json["staged"] == 2


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"keep": "all"}, "keep"),
        ({"method": "nonsense"}, "unknown method"),
        ({"method": "finetune", "keep": "photos", "backbone": "mlp"}, "keep"),
        ({"device": "abacus"}, "device"),
    ],
)
def test_a_model_that_cannot_be_made_is_refused_at_the_start(tmp_path: Path, wanted: Any, why: str) -> None:
    with pytest.raises(EdblError, match=why):
        Server(Wanted(tmp_path / "m", port=0, **{"device": "cpu", **NEW, **wanted}))
    assert not (tmp_path / "m").exists()


def test_an_unknown_backbone_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(EdblError, match="nonsense"):
        Server(Wanted(tmp_path / "m", port=0, device="cpu", backbone="nonsense"))


def test_places_that_hold_no_model(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    (tmp_path / "file").touch()
    first(tmp_path / "m")()
    for wanted, why in (
        (Wanted(tmp_path / "gone.onnx", port=0), "does not exist; `edbl export MODEL gone.onnx`"),
        (Wanted(tmp_path / "other", port=0), "notes.txt"),
        (Wanted(tmp_path / "file", port=0), "does not end in .onnx"),
        (Wanted(tmp_path / "m", port=0, several=True), "is one model, not several"),
    ):
        with pytest.raises(EdblError, match=why):
            Server(wanted)
    assert not (tmp_path / "gone.onnx").exists()


def test_several_models_from_an_empty_folder_by_the_client(tmp_path: Path) -> None:
    with served(tmp_path / "all", several=True, **NEW) as call:
        assert call("GET", "/v1/models").json == call("GET", "/v1/models").json | {"models": [], "several": True}
        with pytest.raises(EdblError, match="it has none"):
            edbl.connect(call.url)
        with edbl.connect(call.url, model="pets", make=True, keep="photos") as pets:
            assert (pets.name, pets.info["keep"], pets.models) == ("pets", "photos", ["pets"])
            said = pets.predict([picture(0, 0)[1]])[0]
            pets.learn({"nought": [picture(0, 0)[1]], "one": [picture(1, 0)[1]]})
            assert pets.photo(said.id or "").startswith(b"\xff\xd8")
            pets.report(tmp_path / "pets.html")
            assert b"<title>pets</title>" in (tmp_path / "pets.html").read_bytes()
        with pytest.raises(EdblError, match="already"):
            edbl.connect(call.url, model="pets", make=True)
    assert (tmp_path / "all" / "pets" / disk.MODEL).exists()


class Line:
    """A connection that the server has closed, or that never answers."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def request(self, *_: object) -> None:
        raise self.error

    def close(self) -> None:
        """Do nothing."""


def test_the_client_repeats_nothing_that_may_have_been_done(call: Caller) -> None:
    taught(call)
    model = edbl.connect(call.url)
    model.close()
    model._line = Line(http.client.RemoteDisconnected("idle for long"))  # type: ignore[assignment]
    model.rename("digit 0", "nought")
    assert model.classes == ["nought", "digit 1", "digit 2"]
    model.close()
    model._line = Line(TimeoutError("timed out"))  # type: ignore[assignment]
    with pytest.raises(EdblError, match="cannot reach"):
        model.rename("nought", "zero")
    assert model.classes == ["nought", "digit 1", "digit 2"]
    model.undo()
    answer = call("POST", f"{M}/undo", {"of": 2})
    assert answer.json == {"error": "the model is at version 1, not 2; nothing was undone"}
    assert client.TRIES > 1
    model.close()


def test_models_share_what_is_held_in_memory(tmp_path: Path) -> None:
    with served(tmp_path / "all", several=True, limits=Limits(held=3, ready=1), **NEW) as call:
        for name in ("a", "b"):
            call("POST", "/v1/models", {"name": name})
            answer = call.form(f"/v1/models/{name}/teach?yes=true", *lesson({0: 3, 1: 3}))
            assert answer.json["learnt"] == 6
        assert "edbl_photos_held 3" in call("GET", "/metrics").body.decode()
        told = call.form("/v1/models/a/predict", [picture(0, 20), picture(1, 20)]).json
        assert "edbl_photos_held 3" in call("GET", "/metrics").body.decode()
        assert [one["classes"][0]["name"] for one in told["predictions"]] == ["digit 0", "digit 1"]
        assert len(call("GET", "/v1/models/a/next").json["photos"]) == 2
        assert call("GET", "/v1/models/b/next").json["photos"] == []


def test_models_that_were_not_used_for_long_let_go_of_tensors(tmp_path: Path) -> None:
    for name in ("a", "b"):
        first(tmp_path / "all" / name)()
    server = Server(Wanted(tmp_path / "all", port=0, device="cpu", limits=Limits(ready=1)))
    shelf = server._desk.shelf
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        call = Caller(server.address)
        assert len(call("GET", "/v1/models").json["models"]) == 2
        a, b = shelf.get("a"), shelf.get("b")
        assert isinstance(a, Taught)
        assert isinstance(b, Taught)

        def ready() -> list[bool]:
            return [one._asked is not None for one in (a, b)]

        assert ready() == [False, False]  # a list needs no tensors
        call.form("/v1/models/a/predict", [picture(0, 20)])
        assert ready() == [True, False]
        call.form("/v1/models/b/predict", [picture(0, 20)])
        until(lambda: ready() == [False, True])
        assert call.form("/v1/models/a/predict", [picture(1, 20)]).json["predictions"][0]["classes"]
    finally:
        server.end()
        thread.join(60)


def until(what: Callable[[], object]) -> None:
    """Wait for something."""
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_it_ends_at_once_after_a_change_and_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with served(tmp_path / "m", **NEW) as call:
        taught(call)
    assert "Traceback" not in capfd.readouterr().err


def test_answers_are_of_the_old_model_until_the_new_one_is_there(trained: Path) -> None:
    with served(trained, **TRAINED) as call:
        call.form(f"{M}/teach", *lesson({0: 6, 1: 6}))
        assert call("POST", f"{M}/learn", {}).json["updating"]
        assert events(call)[-1] == ("done", {"version": 1})
        call.form(f"{M}/teach", *lesson({2: 6}))
        call("POST", f"{M}/learn", {})
        until(lambda: disk.begun(trained))
        during = call.form(f"{M}/predict?top=9", [picture(2, 20)]).json
        assert call("GET", f"{M}/").json["updating"]
        assert (during["version"], len(during["predictions"][0]["classes"])) == (1, 2)
        assert call("POST", f"{M}/rename", {"old": "digit 0", "new": "x"}).status == 409
        assert events(call)[-1] == ("done", {"version": 2})
        assert len(call.form(f"{M}/predict?top=9", [picture(2, 20)]).json["predictions"][0]["classes"]) == 3


def listening(call: Caller) -> http.client.HTTPConnection:
    line = http.client.HTTPConnection(call.host, call.port, timeout=60)
    line.request("GET", f"{M}/learn/events")
    return line


def test_who_listens_may_leave_and_only_so_many_do(trained: Path) -> None:
    with served(trained, limits=Limits(streams=2), **TRAINED) as call:
        call.form(f"{M}/teach", *lesson({0: 6, 1: 6}))
        call("POST", f"{M}/learn", {})
        until(lambda: disk.begun(trained))
        lines = [listening(call) for _ in range(2)]
        assert [line.getresponse().readline() for line in lines] == [b"event: progress\n"] * 2
        refused = call("GET", f"{M}/learn/events")
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        for line in lines:
            line.close()

        def free() -> bool:
            line = listening(call)
            status = line.getresponse().status
            line.close()
            return status == 200

        until(free)
        call("DELETE", f"{M}/learn")


def test_only_so_many_photos_wait(trained: Path) -> None:
    with served(trained, limits=Limits(staged=5), **TRAINED) as call:
        assert call.form(f"{M}/teach", *lesson({0: 4})).json["staged"] == 4
        answer = call.form(f"{M}/teach", *lesson({1: 2}))
        assert (answer.status, answer.json["error"]) == (413, "at most 5 photos wait for an update; start one")
        assert call("GET", f"{M}/").json["staged"] == 4


@pytest.mark.parametrize("how", ["discard", "end"])
def test_an_update_ends_before_its_first_step_too(trained: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    there, on = threading.Event(), threading.Event()
    increment = learn.increment

    @contextmanager
    def slow(*given: Any, **more: Any) -> Iterator[Any]:
        with increment(*given, **more) as update:
            assert update
            prepare = update.prepare

            def prepared() -> None:
                prepare()
                there.set()
                on.wait(60)

            monkeypatch.setattr(update, "prepare", prepared)
            yield update

    monkeypatch.setattr(updates, "increment", slow)
    with served(trained, **TRAINED) as call:
        call.form(f"{M}/teach", *lesson({0: 6, 1: 6}))
        call("POST", f"{M}/learn", {})
        assert there.wait(60)
        threading.Timer(0.2, on.set).start()
        if how == "discard":
            info = call("DELETE", f"{M}/learn").json
            assert (info["staged"], info["updating"], info["exists"]) == (0, False, False)
    assert disk.begun(trained) == (how == "end")


class Slow(Stand):
    """Computes the features of one photo after the other, and takes its time."""

    def views(self, x: Tensor, copies: int, generator: Generator, say: Callable[[int], None], *more: Any) -> Tensor:
        for number in range(len(x)):
            time.sleep(0.1)
            say(number + 1)
        return self.at_once(x, copies, generator, say, *more)

    def at_once(self, x: Tensor, copies: int, *more: Any) -> Tensor:
        return super().views(x, copies, *more).expand(-1, 1 + copies, -1)


@pytest.mark.parametrize("what", ["reads photos", "computes features"])
@pytest.mark.parametrize("how", ["discard", "end"])
def test_an_update_stops_within_a_second_while_it(
    trained: Path, monkeypatch: pytest.MonkeyPatch, how: str, what: str
) -> None:
    frozen, read = {"method": "finetune", "backbone": "stand-in"}, Photo.read

    def slowly(photo: Photo, size: int) -> Decoded:
        time.sleep(0.2)
        return read(photo, size)

    monkeypatch.setattr(pretrained, "find", lambda name: Slow())
    with monkeypatch.context() as patch, served(trained, **frozen) as call:
        if what == "reads photos":
            patch.setattr(Photo, "read", slowly)
        assert call.form(f"{M}/teach", *lesson({0: 30, 1: 30})).json["staged"] == 60
        call("POST", f"{M}/learn", {})
        until(lambda: (trained / disk.INCREMENT / (disk.IMAGES if what == "reads photos" else disk.VIEWS)).exists())
        started = time.monotonic()
        if how == "discard":
            assert call("DELETE", f"{M}/learn").json["staged"] == 0
            assert time.monotonic() - started < 1.5
            assert not (trained / disk.INCREMENT).exists()
            return
    assert time.monotonic() - started < 2.5  # with the end of the server itself
    assert disk.begun(trained) == (what == "computes features")
    monkeypatch.setattr(Slow, "views", Slow.at_once)
    with served(trained, **frozen) as call:
        assert call("GET", f"{M}/").json["staged"] == 60
        call("POST", f"{M}/learn", {})
        assert events(call)[-1] == ("done", {"version": 1})
        assert call("GET", f"{M}/").json["staged"] == 0


def test_balancers_may_ask_for_the_head_of_health(call: Caller) -> None:
    answer = call("HEAD", "/health")
    assert (answer.status, answer.body) == (200, b"")


def test_a_photo_of_an_exported_model_is_shown(call: Caller, tmp_path: Path) -> None:
    taught(call)
    (tmp_path / "m.onnx").write_bytes(call("GET", f"{M}/export").body)
    with served(tmp_path / "m.onnx") as other:
        id = other.form(f"{M}/predict", [picture(0, 20)]).json["predictions"][0]["id"]
        shown = other("GET", f"{M}/photos/{id}")
        assert (shown.status, shown.headers["content-type"]) == (200, "image/jpeg")
        assert other("GET", f"{M}/photos/{'0' * 32}").status == 404


def test_a_form_is_held_in_memory_alone(call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.TemporaryFile", None)  # what a spooled file turns to
    monkeypatch.setattr("tempfile.SpooledTemporaryFile", None)
    data, kind = multipart([large(k) for k in range(4)])
    assert call("POST", f"{M}/predict", data=data, headers=kind).status == 200
    cut = call("POST", f"{M}/predict", data=data[:-9], headers=kind)
    assert (cut.status, cut.json["error"]) == (400, "the form cannot be read: it ends before its last boundary")
    bare = call("POST", f"{M}/predict", data=data, headers={"Content-Type": "multipart/form-data"})
    assert bare.json["error"] == "the form cannot be read: it has no boundary"
