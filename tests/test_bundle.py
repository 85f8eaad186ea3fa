"""The model on disk: whole at every moment, and never trusted."""

import errno
import json
import math
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from edbl import store as entries
from edbl.app import bundle as store
from edbl.app.description import EXEMPLARS, KINDS, VALIDATION
from tests.conftest import Cli
from tests.photos import SHORT, change, held_model, killed_command, rewrite, write_digits


@pytest.fixture(scope="module")
def _server() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        multiprocessing.set_forkserver_preload(["edbl.app.show", "edbl.cli", "torch._dynamo", "tests.photos"])
        forkserver.ensure_running()
        yield


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("photos")
    write_digits(place / "first", {0: 8, 1: 8})
    write_digits(place / "second", {2: 8})
    return place


@pytest.fixture(scope="module")
def _two(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    from typer.testing import CliRunner

    from edbl.cli import app

    folder = tmp_path_factory.mktemp("model") / "model"
    made = CliRunner().invoke(app, ["learn", str(folder), str(photos / "first"), *map(str, SHORT)])
    assert made.exit_code == 0, made.output
    return folder


@pytest.fixture
def model(_two: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(_two, tmp_path / "model"))


def referenced(model: Path) -> bool:
    """Tell whether the files of what is kept of photos are those that a version of the model refers to."""
    every = [store.read(model), *(store.read_version(model, number) for number in store.versions(model))]
    return all(
        {path.name for path in (model / kind).glob("*")} == {file for one in every for file in one.files(kind)}
        for kind in KINDS
    )


def test_what_is_on_disk(model: Path) -> None:
    bundle = store.read(model)
    assert sorted(p.name for p in model.iterdir()) == [
        ".lock",
        "exemplars",
        "model.json",
        "model.safetensors",
        "report.html",
        "validation",
    ]
    assert bundle.names == ["digit 0", "digit 1"]
    assert bundle.sizes == [2]
    assert [len(known.validation) for known in bundle.classes] == [1, 1]
    assert [len(known.exemplars) for known in bundle.classes] == [7, 7]
    assert referenced(model)
    contents = store.load(model, [EXEMPLARS])
    assert set(contents.images) == set(bundle.files(EXEMPLARS))
    assert all(image.shape == (3, 8, 8) for image in contents.images.values())


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize("command", ["info", "predict", "learn", "forget"])
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda s: s.pop("classes"), "'classes' of values is missing"),
        (lambda s: s.update(extra=1), "'extra' of values is unknown"),
        (lambda s: s["classes"][0].pop("learnt"), "'learnt' of classes is missing"),
        (lambda s: s.update(sizes=[3, -1]), "its classes do not fit"),
        (lambda s: s.update(sizes=["2"]), "'sizes' is not a whole number"),
        (lambda s: s.update(increments=-1), "is below 0"),
        (lambda s: s.update(sizes=[3]), "its classes do not fit"),
        (lambda s: s["classes"].append(s["classes"][0]), "its classes do not fit"),
        (lambda s: s["settings"].update(tune="some"), "'tune' is not head or all"),
        (lambda s: s["settings"].update(image_size=100_000), "out of range"),
        (lambda s: s["classes"][0]["exemplars"].append("../../../secret.png"), "is no name of an image"),
        (lambda s: s["history"][0].update(seconds=None), "'seconds' is not a finite number"),
        (lambda s: s["history"][0].update(seconds=True), "'seconds' is not a finite number"),
        (lambda s: s["recipe"].update(method="rkd"), "its recipe has another"),
        (lambda s: s["recipe"].pop("method"), "its recipe has another"),
        (lambda s: s["classes"][0].update(name="another"), "not those that its history ends with"),
        (lambda s: s["settings"].update(tune="head"), "its backbone learns from scratch, and is said to be frozen"),
        (lambda s: s["recipe"].update(method=["rkd"]), "its recipe has another"),
        (lambda s: s["settings"]["given"].update(x={}), "'given' is not a value that settings have"),
        (lambda s: s["recipe"].update(x=nested(400)), "it is nested too deep"),
        (lambda s: s["history"].clear(), "not those that its history ends with"),
        (lambda s: s["history"][-1]["scores"].clear(), "not those that its history ends with"),
    ],
)  # fmt: skip
def test_a_bad_description_is_refused(
    model: Path, photos: Path, cli: Cli, command: str, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    change(model, edit)
    more = {"info": "--json", "forget": "digit 0"}.get(command, str(photos / "second"))
    found = cli(command, model, more)
    assert found.code == 2
    assert message in found.err
    assert len(found.err.splitlines()) <= 2
    assert "Traceback" not in found.err


@pytest.mark.parametrize("command", ["info", "predict", "learn", "forget", "rename"])
def test_a_description_that_was_changed_by_hand(model: Path, photos: Path, cli: Cli, command: str) -> None:
    path = model / store.MODEL
    path.write_text(path.read_text().replace('"image_size": 8', '"image_size": 9'))
    more = {"info": ["--json"], "forget": ["digit 0"], "rename": ["digit 0", "nil"]}
    found = cli(command, model, *more.get(command, [str(photos / "second")]))
    assert found.code == 2
    assert "is damaged: model.json: its checksum is wrong" in found.err


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Write a method in a file of its own that leaves a trace when it is run."""
    path = tmp_path / "evil.py"
    path.write_text("from pathlib import Path\nPath(__file__).with_suffix('.run').touch()")
    return path


@pytest.mark.parametrize("command", ["info", "predict", "learn", "forget", "export"])
@pytest.mark.parametrize(
    "places",
    [["recipe"], ["settings"], ["recipe", "settings"], ["given"], ["recipe net.backbone"], ["given net.backbone"]],
)
def test_opening_a_model_runs_no_code_of_its_own(
    model: Path, photos: Path, cli: Cli, code: Path, command: str, places: list[str]
) -> None:
    def edit(stored: dict[str, Any]) -> None:
        for place in places:
            name, _, key = place.partition(" ")
            (stored["settings"]["given"] if name == "given" else stored[name])[key or "method"] = str(code)

    change(model, edit)
    more = {"info": "--json", "forget": "digit 0", "export": str(model / "a.onnx")}.get(command, str(photos / "second"))
    found = cli(command, model, more)
    assert found.code == 2
    assert "model.json: its method or its net is none of edbl's own, or its recipe has another" in found.err
    assert not code.with_suffix(".run").exists()


@pytest.mark.usefixtures("_server")
@pytest.mark.parametrize("given", [False, True])
def test_going_on_with_an_increment_runs_no_code_of_its_own(
    model: Path, photos: Path, cli: Cli, tmp_path: Path, code: Path, given: bool
) -> None:
    assert kill(["learn", model, photos / "second"], 2, False, tmp_path / "log")

    def edit(stored: dict[str, Any]) -> None:
        (stored["settings"]["given"] if given else stored["settings"])["method"] = str(code)

    rewrite(model / store.INCREMENT / store.BEGUN, edit)
    found = cli("learn", model)
    assert found.code == 2
    assert "is damaged; discard it with" in found.err
    assert not code.with_suffix(".run").exists()


@pytest.mark.parametrize(
    ("format", "message"),
    [("2", "it was written by a newer edbl"), ("0", "its format is 0, not 1"), ('"one"', "'one'")],
)
@pytest.mark.parametrize("command", ["info", "predict", "learn", "forget"])
def test_another_format_is_refused(
    model: Path, photos: Path, cli: Cli, command: str, format: str, message: str
) -> None:
    path = model / store.MODEL
    path.write_text(path.read_text().replace('"format": 1', f'"format": {format}'))
    found = cli(command, model, {"info": "--json", "forget": "digit 0"}.get(command, str(photos / "second")))
    assert found.code == 2
    assert message in found.err
    assert len(found.err.splitlines()) == 2


def test_a_number_that_is_none(model: Path, cli: Cli) -> None:
    stored = json.loads((model / store.MODEL).read_text())
    stored["values"]["history"][0]["seconds"] = math.nan
    stored["sha256"] = entries._sum_of(stored["values"], stored["tensors"])
    (model / store.MODEL).write_text(json.dumps(stored))
    assert "model.json: not valid JSON (a number in it is not finite)" in cli("info", model).err


@pytest.mark.parametrize(
    ("command", "parsed"),
    [
        (["predict", "MODEL", "PHOTOS"], 1),
        (["info", "MODEL"], 1),
        (["info", "MODEL", "--json"], 1),
        (["learn", "MODEL", "PHOTOS"], 1),
        (["rename", "MODEL", "digit 0", "nil"], 1),
        (["forget", "MODEL", "digit 0"], 1),
        (["learn", "NEW", "PHOTOS", *SHORT], 0),
    ],
)
def test_a_command_parses_a_model_once(
    model: Path, photos: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, command: list[object], parsed: int
) -> None:
    paths = {"MODEL": model, "NEW": model.with_name("new"), "PHOTOS": photos / "second"}
    seen, read_json = [], entries.read_json

    def noted(path: Path) -> dict[str, Any]:
        seen.append(path.name)
        return read_json(path)

    monkeypatch.setattr(entries, "read_json", noted)
    assert cli(*(paths.get(str(word), word) for word in command)).code == 0
    assert seen.count(store.MODEL) == parsed


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_description_that_is_no_json(model: Path, cli: Cli, text: bytes) -> None:
    (model / store.MODEL).write_bytes(text)
    found = cli("info", model)
    assert found.code == 2
    assert "is damaged: model.json: not" in found.err


def test_damaged_weights(model: Path, photos: Path, cli: Cli) -> None:
    path = model / store.WEIGHTS
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    found = cli("predict", model, photos / "second")
    assert found.code == 2
    assert "model.safetensors: its checksum is wrong" in found.err
    path.unlink()
    assert "model.safetensors: the file is missing" in cli("learn", model, photos / "second").err


def test_weights_of_another_model(model: Path, photos: Path, cli: Cli) -> None:
    rewrite(model / store.MODEL, lambda values: None, {"net.head.weight": torch.zeros(2, 3)})
    found = cli("predict", model, photos / "second")
    assert found.code == 2
    assert "its weights do not fit this model" in found.err


@pytest.mark.parametrize("key", ["memory.x", "validation.x"])
@pytest.mark.parametrize("command", ["predict", "learn", "forget"])
def test_features_where_images_are_kept(model: Path, photos: Path, cli: Cli, command: str, key: str) -> None:
    tensors = safetensors.torch.load((model / store.WEIGHTS).read_bytes())
    rewrite(model / store.MODEL, lambda values: None, {**tensors, key: torch.zeros(2, 5, 3)})
    found = cli(command, model, "digit 0" if command == "forget" else photos / "second")
    assert found.code == 2
    assert f"is damaged: model.safetensors: {key} should not be there" in found.err


@pytest.mark.parametrize("command", ["predict", "forget"])
def test_a_mean_of_two_channels(model: Path, photos: Path, cli: Cli, command: str) -> None:
    change(model, lambda s: s["recipe"].update({"data.mean": [0.5, 0.5]}))
    found = cli(command, model, "digit 0" if command == "forget" else photos / "second")
    assert found.code == 2
    assert "is damaged: model.json: its recipe: data.mean and data.std need 3 values" in found.err


@pytest.mark.parametrize("kind", [EXEMPLARS, VALIDATION])
def test_a_missing_or_damaged_image_and_the_way_out(model: Path, photos: Path, cli: Cli, kind: str) -> None:
    bundle = store.read(model)
    file = model / kind / bundle.files(kind)[0]
    file.write_bytes(file.read_bytes()[:60])
    found = cli("predict", model, photos / "second")
    assert found.code == 2
    assert "an image of class 'digit 0', is damaged" in found.err
    file.unlink()
    found = cli("predict", model, photos / "second")
    assert f"`edbl forget {model} 'digit 0'`" in found.err
    assert cli("forget", model, "digit 0").code == 0
    assert store.read(model).names == ["digit 1"]
    assert cli("prune", model).code == 0
    assert referenced(model)
    assert cli("predict", model, photos / "second").code == 0


def test_an_image_that_cannot_be_opened_is_not_called_damaged(
    model: Path, photos: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = entries.read_file

    def refuse(path: Path, most: int | None = None, own: bool = False) -> bytes:
        if path.parent.name == EXEMPLARS:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read(path, most, own)

    monkeypatch.setattr("edbl.store.read_file", refuse)
    found = cli("predict", model, photos / "second")
    assert found.code == 2
    assert "an image of the model: Permission denied\nmake it readable" in found.err
    assert "forget" not in found.err


def test_images_of_all_classes_are_lost(model: Path, photos: Path, cli: Cli) -> None:
    for known in store.read(model).classes:
        (model / EXEMPLARS / known.exemplars[0]).unlink()
    for command in (["predict", model, photos / "second"], ["forget", model, "digit 1"]):
        found = cli(*command)
        assert found.code == 2
        assert "or delete the model and learn all its classes again" in found.err


def test_an_image_that_is_not_what_its_name_says(model: Path, photos: Path, cli: Cli) -> None:
    first, second = store.read(model).files(EXEMPLARS)[:2]
    shutil.copy(model / EXEMPLARS / first, model / EXEMPLARS / second)
    assert "is damaged" in cli("predict", model, photos / "second").err


def test_new_weights_that_were_not_put_in_place(model: Path, photos: Path, cli: Cli) -> None:
    (model / store.WEIGHTS).rename(model / store.NEW)
    (model / store.WEIGHTS).write_bytes(b"the weights before")
    with entries.lock(model):
        assert cli("predict", model, photos / "second").code == 0  # a reader changes nothing while another works
        assert (model / store.NEW).exists()
    assert cli("predict", model, photos / "second").code == 0
    assert not (model / store.NEW).exists()
    assert cli("predict", model, photos / "second").code == 0


def test_what_a_killed_writer_left_is_removed(model: Path) -> None:
    weights = (model / store.WEIGHTS).read_bytes()
    (model / store.NEW).write_bytes(b"never committed")
    (model / store.WRITING).touch()
    (model / EXEMPLARS / f"{'0' * 32}.png").write_bytes(b"")
    left = model / f".model.json.{'1' * 32}.tmp"
    left.write_bytes(b"")
    with store.locked(model):
        pass
    assert referenced(model)
    assert not (model / store.NEW).exists()
    assert not left.exists()
    assert (model / store.WEIGHTS).read_bytes() == weights


def test_what_a_user_put_there_stays(model: Path) -> None:
    mine = [model / EXEMPLARS / "my-cat.png", model / ".draft.tmp"]
    for path in mine:
        path.touch()
    with store.locked(model):
        pass
    assert all(path.exists() for path in mine)


@pytest.mark.usefixtures("_server")
def test_a_second_writer_is_refused(model: Path, photos: Path, cli: Cli, tmp_path: Path) -> None:
    started, end = tmp_path / "started", tmp_path / "end"
    process = multiprocessing.get_context("forkserver").Process(target=held_model, args=(model, started, end))
    process.start()
    try:
        while not started.exists():
            assert process.is_alive()
            time.sleep(0.05)
        for command in (["learn", model, photos / "second"], ["forget", model, "digit 0"]):
            found = cli(*command)
            assert found.code == 75
            assert f"another process is working in {model}" in found.err
        assert cli("predict", model, photos / "second").code == 0
        assert cli("info", model).code == 0
    finally:
        end.touch()
        process.join(30)
    assert process.exitcode == 0
    assert cli("forget", model, "digit 0").code == 0


def kill(arguments: list[object], write: int, after: bool, log: Path) -> bool:
    """Run a command that dies at a write; tell whether it did."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=killed_command, args=(arguments, write, after, log))
    process.start()
    process.join(60)
    assert process.exitcode in (0, -9), log.read_text()
    return process.exitcode == -9


def writes(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> list[str]:
    """Return the names of the files that ``work`` writes, in order."""
    names, replacing = [], entries.replacing

    def noted(path: Path) -> AbstractContextManager[Path]:
        names.append(path.name)
        return replacing(path)

    with monkeypatch.context() as patch:
        patch.setattr(entries, "replacing", noted)
        work()
    return names


@pytest.mark.usefixtures("_server")
def test_killed_at_any_moment_it_goes_on_and_ends_the_same(
    model: Path, photos: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [photos / "second", "--set", "checkpoint_seconds=0"]
    whole, old = tmp_path / "whole", store.read(model).weights
    shutil.copytree(model, whole)
    names = writes(monkeypatch, lambda: cli("learn", whole, *options))
    new = store.read(whole).weights
    assert names[0] == "begun.json"
    assert names[-4:-1] == [store.NEW, store.MODEL, store.PAGE]  # and where the photos lie, in the user's cache
    middle = names.index("task-1-phase-1-epoch-1.safetensors.new") + 1  # a checkpoint of the second phase, half written
    images = next(number for number, name in enumerate(names, 1) if name.endswith(".png"))
    last = names.index(store.MODEL) + 1
    moments = [(1, False), (1, True), (3, True), (middle, True), (images, True), (last - 1, False), (last - 1, True)]
    for write, after in [*moments, (last, False), (last, True)]:
        copy = tmp_path / f"{write}-{after}"
        shutil.copytree(model, copy)
        assert kill(["learn", copy, *options], write, after, tmp_path / "log"), (write, after)
        committed = (write, after) == (last, True)
        assert store.read(copy).weights == (new if committed else old)
        store.load(copy, [EXEMPLARS, VALIDATION])
        assert cli("predict", copy, photos / "second").code == 0
        found = cli("learn", copy, *options)
        assert found.code == 0, found.err
        assert ("continuing the update of" in found.err) == ((write, after) != (1, False) and not committed)
        assert ("that update is complete" in found.err) == committed
        assert store.read(copy).weights == new
        assert (copy / store.PAGE).read_bytes() != (model / store.PAGE).read_bytes(), "of the new version"
        assert not (copy / store.INCREMENT).exists()
        assert referenced(copy)


@pytest.mark.usefixtures("_server")
@pytest.mark.parametrize("command", ["info", "predict"])
def test_what_no_version_has_is_removed_though_it_was_killed(
    model: Path, photos: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    known = store.read(model).classes[0]
    gone = [model / EXEMPLARS / name for name in known.exemplars]
    gone += [model / VALIDATION / name for name in known.validation]
    made = writes(monkeypatch, lambda: cli("forget", shutil.copytree(model, tmp_path / "other"), known.name))
    assert made == ["1.json", store.NEW, store.MODEL]
    assert kill(["forget", model, known.name], 3, True, tmp_path / "log")  # right after the commit
    assert store.read(model).names == ["digit 1"]
    arguments = [command, model, *([photos / "second"] if command == "predict" else [])]
    assert cli(*arguments).code == 0
    assert not (model / store.WRITING).exists()
    assert not (model / store.NEW).exists()
    assert all(path.exists() for path in gone)  # the version before has them
    with monkeypatch.context() as patch:  # as if killed while it removes files
        patch.setattr(store, "_tidy", lambda folder, bundle: None)
        assert cli("prune", model).code == 0
    with monkeypatch.context() as patch:
        patch.setattr(entries, "lock", unwritable)
        assert cli(*arguments).code == 0
    assert all(path.exists() for path in gone)
    assert cli(*arguments).code == 0
    assert not any(path.exists() for path in gone)
    assert referenced(model)


def unwritable(folder: Path) -> None:
    raise PermissionError(13, "Permission denied", str(folder / ".lock"))


def test_a_reader_does_not_lock_a_model_in_order(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "lock", lambda folder: pytest.fail("locked"))
    store.settle(model)


@pytest.mark.usefixtures("_server")
def test_a_first_increment_that_was_killed(photos: Path, cli: Cli, tmp_path: Path) -> None:
    model, command = tmp_path / "model", [photos / "first", *SHORT]
    assert kill(["learn", model, *command], 2, False, tmp_path / "log")
    for name, more in (("predict", photos), ("info", "--json"), ("forget", "digit 0")):
        found = cli(name, model, more)
        assert found.code == 2
        assert f"`edbl learn {model}` continues it" in found.err
    found = cli("learn", model, photos / "second")
    assert found.code == 2
    assert "has an unfinished update of" in found.err
    assert f"`edbl learn {model} --discard` discards it" in found.err
    found = cli("learn", model)
    assert found.code == 0
    assert "continuing the update of" in found.err
    assert store.read(model).names == ["digit 0", "digit 1"]


@pytest.mark.usefixtures("_server")
def test_a_first_increment_that_was_killed_before_its_commit_can_be_dropped(
    photos: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, command = tmp_path / "model", [photos / "first", *SHORT]
    made = writes(monkeypatch, lambda: cli("learn", tmp_path / "other", *command))
    assert kill(["learn", model, *command], 1 + made.index(store.MODEL), False, tmp_path / "log")
    assert list((model / EXEMPLARS).iterdir())
    assert cli("learn", model, "--discard").code == 0
    assert [path.name for path in model.iterdir()] == [".lock"]
    assert cli("learn", model, *command).code == 0


@pytest.mark.parametrize("kind", [EXEMPLARS, VALIDATION])
@pytest.mark.parametrize("command", ["info", "predict", "learn", "forget"])
def test_a_model_with_links_out_of_it_touches_nothing_there(
    model: Path, photos: Path, cli: Cli, tmp_path: Path, kind: str, command: str
) -> None:
    own = tmp_path / "own"
    shutil.move(model / kind, own)
    (own / "mine.png").write_bytes(b"precious")
    there = {path: path.read_bytes() for path in own.iterdir()}
    (model / kind).symlink_to(own)
    found = cli(command, model, {"info": "--json", "forget": "digit 0"}.get(command, photos / "second"))
    assert found.code == 2
    assert f"{model / kind} is a link" in found.err
    assert {path: path.read_bytes() for path in own.iterdir()} == there


@pytest.mark.usefixtures("_server")
@pytest.mark.parametrize("kind", ["", "checkpoints"])
@pytest.mark.parametrize("more", [[], ["--discard"]])
def test_nor_does_an_increment_with_links_out_of_it(
    model: Path, photos: Path, cli: Cli, tmp_path: Path, kind: str, more: list[str]
) -> None:
    assert kill(["learn", model, photos / "second", "--set", "checkpoint_seconds=0"], 4, True, tmp_path / "log")
    place, own = model / store.INCREMENT / kind, tmp_path / "own"
    shutil.move(place, own)
    (own / "task-list.json").write_bytes(b"precious")
    there = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    place.symlink_to(own)
    found = cli("learn", model, *more)
    assert found.code == 2
    assert f"{place} is a link" in found.err
    assert {path: path.read_bytes() for path in own.rglob("*") if path.is_file()} == there


def test_a_first_increment_that_is_a_link_is_not_begun(photos: Path, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / store.INCREMENT).symlink_to(tmp_path / "own")
    found = cli("learn", tmp_path / "model", photos / "first", *SHORT)
    assert found.code == 2
    assert "is a link" in found.err
    assert list((tmp_path / "own").iterdir()) == []


def test_a_lock_that_is_a_link_is_not_followed(model: Path, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    (model / ".lock").unlink()
    (model / ".lock").symlink_to(tmp_path / "mine")
    found = cli("forget", model, "digit 0")
    assert found.code == 2
    assert "Traceback" not in found.err
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_first_increment_that_was_killed_while_photos_were_read(photos: Path, cli: Cli, tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / store.INCREMENT).mkdir(parents=True)
    (model / store.INCREMENT / "images.npy").write_bytes(b"")
    (model / ".lock").touch()
    found = cli("info", model)
    assert found.code == 2
    assert f"holds no model: it has no model.json; `edbl learn {model} FOLDER` makes one" in found.err
    for more in ([], ["--discard"]):
        found = cli("learn", model, *more)
        assert found.code == 2
        assert f"there is no model {model} yet; `edbl learn {model} FOLDER` makes one" in found.err
    assert cli("learn", model, photos / "first", *SHORT).code == 0
    assert cli("info", model).code == 0


def test_the_same_command_given_again_learns_nothing_more(model: Path, photos: Path, cli: Cli) -> None:
    assert cli("learn", model, photos / "second", "--memory", "total=9").code == 0
    files = {path: path.read_bytes() for path in model.rglob("*") if path.is_file()}
    found = cli("learn", model, photos / "second", "--memory", "total=9")
    assert found.code == 0
    assert f"that update is complete: `edbl info {model}` shows it" in found.err
    assert {path: path.read_bytes() for path in model.rglob("*") if path.is_file()} == files
    found = cli("learn", model, photos / "second", "--memory", "total=12")  # which is another request
    assert "the model has all these images already" in found.err


@pytest.mark.usefixtures("_server")
def test_a_begun_increment_can_be_dropped(model: Path, photos: Path, cli: Cli, tmp_path: Path) -> None:
    assert kill(["learn", model, photos / "second"], 2, False, tmp_path / "log")
    assert "an update is unfinished" in cli("info", model).out
    assert "--discard` discards it" in cli("forget", model, "digit 0").err
    assert cli("learn", model, "--memory", "total=9").code == 2  # not what was begun
    assert cli("learn", model, "--discard").code == 0
    assert not (model / store.INCREMENT).exists()
    assert store.read(model).names == ["digit 0", "digit 1"]
    found = cli("learn", model)
    assert found.code == 2
    assert "no unfinished update to continue" in found.err
    found = cli("learn", model, "--discard")
    assert found.code == 0
    assert found.err == "there is no unfinished update\n"


@pytest.mark.usefixtures("_server")
def test_a_begun_increment_that_was_changed_by_hand(model: Path, photos: Path, cli: Cli, tmp_path: Path) -> None:
    assert kill(["learn", model, photos / "second"], 2, False, tmp_path / "log")
    path = model / store.INCREMENT / store.BEGUN
    text = path.read_text()
    for changed in (text.replace('"seed": 0', '"seed": 1'), text.replace('"sha256"', '"sum"'), "[]", "[" * 100_000):
        assert changed != text
        path.write_text(changed)
        found = cli("learn", model)
        assert found.code == 2
        assert (
            f"the unfinished update in {model} is damaged; discard it with `edbl learn {model} --discard`" in found.err
        )
    path.write_text(text)
    assert cli("learn", model).code == 0


@pytest.mark.usefixtures("_server")
@pytest.mark.parametrize("file", ["begun.json", "images.npy"])
def test_a_damaged_begun_increment(model: Path, photos: Path, cli: Cli, tmp_path: Path, file: str) -> None:
    assert kill(["learn", model, photos / "second"], 2, False, tmp_path / "log")
    path = model / store.INCREMENT / file
    whole = path.read_bytes()
    path.write_bytes(b"\x93NUMPY\x01\x00\x02\x00(\n")
    assert "is damaged; discard it with" in cli("learn", model).err
    path.write_bytes(whole)
    path.write_bytes(path.read_bytes()[:100] if file == "begun.json" else path.read_bytes()[:-1] + b"\x7f")
    found = cli("learn", model)
    assert found.code == 2
    assert "is damaged; discard it with" in found.err
    assert cli("learn", model, photos / "second", "--discard").code == 0
    assert store.read(model).names == ["digit 0", "digit 1", "digit 2"]
