"""What comes from somebody else: a run, a model or an estimator that was made to do harm ends in one message."""

import io
import json
import os
import shutil
import signal
import struct
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

from edbl import EdblError, Recipe, records, resume, run, store
from edbl.app.estimator import EDBLClassifier
from edbl.cli import main, terminal
from edbl.data.folder import load_folder
from edbl.engine.checkpoint import Checkpoints, Reached, Saved
from edbl.engine.progress import Progress
from edbl.methods import find_method
from tests.conftest import Cli
from tests.test_contract import Killed
from tests.test_resume import KillIn

SHORT = {"stream.tasks": 3, "memory": "total=25", "net.backbone": "mlp", "checkpoint_seconds": 0}
MOMENTUM = "optimiser.0.momentum"
STATE, EPOCH = "task-0", "task-1-phase-0-epoch-1"  # checkpoints that the run below has

Tensors = dict[str, Tensor]


def recipe() -> Recipe:
    return Recipe.build("rkd", data="digits", preset="quick", **SHORT)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed inside a phase."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Killed):
        run(recipe(), folder, progress=KillIn(1, "train", 1))
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stopped, tmp_path / "run")


def forge(folder: Path, name: str, change: Callable[[Saved], Saved]) -> None:
    """Write another checkpoint in place of one, with right checksums."""
    checkpoints = Checkpoints(folder / "checkpoints")
    saved = checkpoints.load(name, Reached if "phase" in name else dict[str, object])
    assert saved is not None
    checkpoints.save(name, change(saved))


def with_tensors(**given: Tensor | None) -> Callable[[Saved], Saved]:
    def change(saved: Saved) -> Saved:
        changed = saved.tensors | {key.replace("__", "."): value for key, value in given.items()}
        return replace(saved, tensors={key: value for key, value in changed.items() if value is not None})

    return change


FORGED: dict[str, tuple[str, Callable[[Saved], Saved], str]] = {
    "momentum too small": (EPOCH, with_tensors(**{MOMENTUM: torch.zeros(1)}), r"momentum' is torch.float32 \[1\], not"),
    "momentum of another type": (
        EPOCH,
        lambda saved: with_tensors(**{MOMENTUM: saved.tensors[MOMENTUM].half()})(saved),
        "tensor '0.momentum' is torch.float16",
    ),
    "momentum of no parameter": (EPOCH, with_tensors(**{"optimiser.-1.momentum": torch.zeros(1)}), "'-1.momentum' is"),
    "momentum of no number": (EPOCH, with_tensors(optimiser__x=torch.zeros(1)), "tensor 'x' is unknown"),
    "net lacks a weight": (EPOCH, with_tensors(net__head__weight=None), "tensor 'head.weight' is missing"),
    "epochs of another schedule": (
        EPOCH,
        lambda saved: replace(saved, values=Reached(10**18, {"": [0.1]}, [], 0.0)),
        "1000000000000000000 epochs of",
    ),
    "state lacks weights": (STATE, with_tensors(net__head__weight=torch.zeros(1, 1)), "fewer weights than the net has"),
    "state has more": (STATE, with_tensors(net__more=torch.zeros(9)), "tensor 'more' is unknown"),
    "no statistics": (STATE, with_tensors(learnt__head__weight=torch.zeros(1)), "tensor 'head.weight' is unknown"),
    "memory is missing": (STATE, with_tensors(memory__x=None), "tensor 'memory.x' is"),
    "memory of other images": (
        STATE,
        with_tensors(memory__x=torch.zeros(25, 3, 9, 9, dtype=torch.uint8)),
        "tensor 'memory.x' is torch.uint8",
    ),
    "memory of floats": (STATE, with_tensors(memory__x=torch.zeros(25, 1, 8, 8)), "tensor 'memory.x' is torch.float32"),
    "memory of integers": (
        STATE,
        with_tensors(memory__x=torch.zeros(25, 1, 8, 8, dtype=torch.int64)),
        "tensor 'memory.x' is torch.int64",
    ),
    "memory without labels": (STATE, with_tensors(memory__y=torch.zeros(1, dtype=torch.int64)), r"of \[1\] labels"),
    "memory of other classes": (
        STATE,
        with_tensors(memory__y=torch.full((25,), 9)),
        "tensor 'memory.y' is not the class of each exemplar",
    ),
    "memory in no order": (
        STATE,
        lambda saved: with_tensors(memory__y=saved.tensors["memory.y"].flip(0))(saved),
        "tensor 'memory.y' is not the class of each exemplar",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_checkpoint_that_does_not_fit_is_refused(folder: Path, name: str) -> None:
    checkpoint, change, why = FORGED[name]
    forge(folder, checkpoint, change)
    with pytest.raises(EdblError, match=why) as caught:
        resume(folder)
    assert f"{checkpoint}.json' does not fit" in str(caught.value)


def test_once_it_is_removed_the_run_goes_on(folder: Path) -> None:
    forge(folder, EPOCH, with_tensors(**{MOMENTUM: torch.zeros(1)}))
    with pytest.raises(EdblError, match="remove it, to go on from the checkpoint before it"):
        resume(folder)
    Checkpoints(folder / "checkpoints").forget([EPOCH])
    assert resume(folder).status == "done"


def test_momentum_that_is_missing_counts_as_none(folder: Path) -> None:
    forge(folder, EPOCH, with_tensors(**{MOMENTUM: None}))
    assert resume(folder).status == "done"


@pytest.fixture(scope="module")
def finished(stopped: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, which went on to its end."""
    folder = shutil.copytree(stopped, tmp_path_factory.mktemp("finished") / "run")
    resume(folder)
    return folder


@pytest.mark.parametrize("name", ["checkpoints", "record.json", "recipe.toml", "checkpoints/task-0.json"])
@pytest.mark.parametrize("status", ["stopped", "finished"])
def test_a_run_with_links_out_of_it_touches_nothing_there(
    request: pytest.FixtureRequest, tmp_path: Path, status: str, name: str
) -> None:
    folder, own = shutil.copytree(request.getfixturevalue(status), tmp_path / "run"), tmp_path / "own"
    own.mkdir()
    for file in ("task-list.json", "task-2024.safetensors", f".x.{'0' * 32}.tmp"):
        (own / file).write_bytes(b"precious")
    link = folder / name
    if not link.is_dir():
        link.unlink(missing_ok=True)
    else:
        shutil.rmtree(link)
    link.symlink_to(own if "." not in name else own / "task-list.json")
    with pytest.raises(EdblError, match=f"{name} is a link, and a run, a model or a search keeps its files itself"):
        resume(folder)
    assert {path.read_bytes() for path in own.iterdir()} == {b"precious"}
    assert len(list(own.iterdir())) == 3


def test_a_folder_that_a_link_replaced_meanwhile_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "task-1.json").touch()
    (tmp_path / "link").symlink_to("own")
    with pytest.raises(OSError, match="link"):
        store.remove(tmp_path / "link", "task-1")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "below").symlink_to("../own")
    (tmp_path / "own" / f".x.{'0' * 32}.tmp").touch()
    store.sweep(tmp_path / "run")
    assert len(list((tmp_path / "own").iterdir())) == 2


def test_a_run_whose_own_place_is_a_link_goes_on(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    (tmp_path / "link").symlink_to("run")
    assert resume(tmp_path / "link").status == "done"


TRAP = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"  # beside it, what shows that it ran


@pytest.fixture
def trap(folder: Path) -> Path:
    """A file that would run if the recipe of the run in ``folder`` were believed."""
    file = folder / "m.py"
    file.write_text(TRAP)
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(text.replace('method = "rkd"', f'method = "{file}"'))
    return file


@pytest.mark.parametrize("command", ["resume", "several", "demo", "results", "recipe"])
def test_a_method_file_that_only_a_folder_names_does_not_run(
    trap: Path, tmp_path: Path, cli: Cli, command: str
) -> None:
    out = tmp_path / "out"
    folder = shutil.copytree(trap.parent, out / {"several": "rkd-seed0", "demo": "rkd"}.get(command, "run"))
    settings = [part for key, value in SHORT.items() for part in ("--set", f"{key}={value}")]
    found = cli(
        *{
            "resume": ["resume", folder],
            "several": ["run", "rkd", "finetune", "--data", "digits", "--preset", "quick", *settings, "--out", out],
            "demo": ["demo", "--out", out],
            "results": ["results", tmp_path / "page.md", "--results", out],
            "recipe": ["run", "--recipe", folder / "recipe.toml", "--out", tmp_path / "new"],
        }[command]
    )
    assert not trap.with_name("ran").exists()
    if command == "results":
        return  # such a run is left out
    assert found.code == 2
    assert f"names code, '{trap}', which would run; name it too, if you trust it" in found.err
    if command == "resume":
        assert f"`edbl resume {folder} --method {trap}`" in found.err
    assert cli("resume", folder, "--method", trap).code == 2  # it holds no method
    assert trap.with_name("ran").exists()


@pytest.mark.parametrize(("key", "name"), [("name", "digits"), ("backbone", "mlp")])
def test_nor_does_one_with_data_or_a_backbone(folder: Path, cli: Cli, key: str, name: str) -> None:
    file, option = folder / "m.py", {"name": "--data", "backbone": "--backbone"}[key]
    file.write_text(TRAP)
    named = f"{file}:make"
    for path in (folder / "recipe.toml", folder / "record.json"):
        text = path.read_text().replace(f'{key} = "{name}"', f'{key} = "{named}"')
        path.write_text(text.replace(f'{key}": "{name}"', f'{key}": "{named}"'))
    (folder / "record.json").write_bytes(edited((folder / "record.json").read_bytes()))
    for command in (["resume", folder], ["run", "--recipe", folder / "recipe.toml", "--out", folder.parent / "new"]):
        found = cli(*command)
        assert found.code == 2
        assert f"names code, '{named}', which would run; name it too, if you trust it" in found.err
        assert not (folder / "ran").exists()
    assert f"`edbl resume {folder} {option} {named}`" in cli("resume", folder).err
    assert cli("resume", folder, option, file).code == 2  # it makes nothing
    assert (folder / "ran").exists()


def test_a_method_file_that_only_an_estimator_names_does_not_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    made = EDBLClassifier(epochs=1, device="cpu").fit(rng.normal(size=(20, 4)), np.arange(20) % 2)
    made.save(tmp_path / "saved")
    trap = tmp_path / "m.py"
    trap.write_text(TRAP)
    entry = store.read(tmp_path / "saved", "estimator", dict[str, object]).value
    for place, key in (("parameters", "method"), ("recipe", "method"), ("recipe", "net.backbone")):
        values = json.loads(json.dumps(entry))
        (values["parameters"] if place == "parameters" else values["learnt"]["recipe"])[key] = f"{trap}"
        _, tensors = store.load(tmp_path / "saved", "estimator", dict[str, object])
        (tmp_path / "forged").mkdir(exist_ok=True)
        store.save(tmp_path / "forged", "estimator", values, tensors)
        with pytest.raises(EdblError, match=f"learns by a {key.removeprefix('net.')} of its own"):
            EDBLClassifier.load(tmp_path / "forged").fit(rng.normal(size=(20, 4)), np.arange(20) % 2)
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def soon() -> Iterator[None]:
    """End a test that waits."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError

    usual = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, usual)


PIPES = {
    "record": ["report", "run"],
    "record.json": ["resume", "run"],
    "recipe.toml": ["resume", "run"],
    "confusions.npz": ["report", "run"],
    "--recipe": ["run", "--recipe", "./pipe.toml"],
    "--order": ["run", "rkd", "--data", "digits", "--order", "pipe"],
    "method": ["run", "pipe.py", "--data", "digits"],
    "options": ["list", "options", "pipe.py"],
    "study": ["study", "pipe.toml"],
    "page": ["results", "pipe.md", "--results", "."],
}


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_is_not_waited_for(folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(folder.parent)
    for pipe in ("pipe", "pipe.toml", "pipe.py", "pipe.md"):
        os.mkfifo(pipe)
    if (folder / name).exists():
        (folder / name).unlink()
        os.mkfifo(folder / name)
    found = cli(*PIPES[name])
    assert found.code == (0 if name == "record" else 2)
    assert found.err.count("\n") <= 2


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("part", [".json", ".safetensors"])
def test_a_checkpoint_that_is_a_pipe_does_not_count(folder: Path, part: str) -> None:
    place = folder / "checkpoints" / f"{STATE}{part}"
    place.unlink()
    os.mkfifo(place)
    assert resume(folder).status == "done"


def nested(depth: int, value: Any = 0) -> Any:
    return nested(depth - 1, [value]) if depth else value


def zipped(**arrays: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in arrays.items():
            file.writestr(f"{name}.npy", data)
    return buffer.getvalue()


def header(shape: str) -> bytes:
    text = f"{{'descr':'<i8','fortran_order':False,'shape':{shape}}}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + text.ljust(117) + b"\n"


def flagged(data: bytes, at: int, value: int) -> bytes:
    """Set two bytes of the header of each member of a zip file, both times that it is there."""
    changed = bytearray(data)
    for mark, more in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        start = changed.find(mark)
        while start >= 0:
            changed[start + at + more : start + at + more + 2] = struct.pack("<H", value)
            start = changed.find(mark, start + 1)
    return bytes(changed)


BROKEN: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "nested deep": ("record.json", lambda data: b"[" * 100_000),
    "nested less": ("record.json", lambda data: edited(data, recipe={"a": nested(200)})),
    "lists of other lengths": ("record.json", lambda data: edited(data, accuracy={"cnn": [0.1] * 3, "nme": [0.1]})),
    "whole numbers without end": ("record.json", lambda data: edited(data, seconds=[10**400])),
    "timings without end": ("record.json", lambda data: edited(data, timings=[{"train": 10**400}])),
    "encrypted": ("confusions.npz", lambda data: flagged(data, 6, 1)),
    "compression 1": ("confusions.npz", lambda data: flagged(data, 8, 1)),
    "compression 9": ("confusions.npz", lambda data: flagged(data, 8, 9)),
    "compression 14": ("confusions.npz", lambda data: flagged(data, 8, 14)),
    "large": ("confusions.npz", lambda data: zipped(cnn_0=header("(100000, 100000)"), nme_0=b"")),
    "larger": ("confusions.npz", lambda data: zipped(cnn_0=header(f"({10**21},)"), nme_0=b"")),
    "no header": ("confusions.npz", lambda data: zipped(cnn_0=header("(" * 40), nme_0=b"")),
    "bomb": ("confusions.npz", lambda data: zipped(cnn_0=header("(2,2)") + bytes(10**8), nme_0=b"")),
}


def edited(data: bytes, /, **values: Any) -> bytes:
    """Change a record, as if it were one from before there was a checksum."""
    return json.dumps({key: value for key, value in (json.loads(data) | values).items() if key != "sha256"}).encode()


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("command", ["report", "resume"])
def test_a_broken_record_is_one_message(folder: Path, cli: Cli, command: str, name: str) -> None:
    file, change = BROKEN[name]
    (folder / file).write_bytes(change((folder / file).read_bytes()))
    found = cli(command, folder)
    assert found.code == 2
    assert found.err.startswith(f"error: broken run '{folder}'")
    assert found.err.count("\n") == 1


def test_features_beyond_what_a_map_can_show(finished: Path, tmp_path: Path, cli: Cli) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    records.write_features(folder, np.full((30, 4), 3e38, dtype=np.float32), np.arange(30) % 10)
    assert cli("report", folder).code == 0


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000,
        "a = " + "{a=" * 2000,
        ".".join(["a"] * 20_000) + " = 1",
        "[" + ".".join(['"a"'] * 20_000) + "]",
        "\n".join(f"k{number} = 1" for number in range(60_000)),
        "\n".join(f"[t{number}]\na = 1" for number in range(20_000)),
        "\xff",
        "#" * 2_000_000,
    ],
    ids=range(8),
)
def test_a_recipe_of_any_size_is_one_message(tmp_path: Path, cli: Cli, text: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(text.encode("latin-1"))
    found = cli("run", "--recipe", path)
    assert found.code == 2
    assert f"recipe {path}" in found.err
    assert len(found.err) < 1000


@pytest.mark.parametrize(
    "setting",
    [
        "schedule.lr=1e308",
        "first.task_lr=1e308",
        "options.balance.lr=1e308",
        "optim.backbone_lr=1e308",
        "options.beta=1e308",
        "options.temperature=1e308",
        "options.min_old=9000000000000000000",
        "options.min_old=100000",
        "options.rounds=9223372036854775808",
        "schedule.epochs=9000000000000000000",
        "options.alpha=" + "9" * 500,
        "value=" + "[" * 5000,
    ],
)
def test_numbers_have_bounds(cli: Cli, tmp_path: Path, setting: str) -> None:
    found = cli("run", "edbl", "--data", "digits", "--out", tmp_path / "run", "--set", setting)
    assert found.code == 2
    assert found.err.startswith("error: ")
    assert "at most" in found.err or "not a finite number" in found.err or "unknown key" in found.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("raise BaseException('x')", "BaseException: x"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("import sys\nsys.exit()", "SystemExit"),
        ("from edbl.methods.base import Method\nclass A(Method):\n    name = 'a'\n    Config = 5", "a Config must be"),
        (
            "from dataclasses import dataclass\nfrom edbl.methods.base import Method\n"
            "class A(Method):\n    name = 'a'\n"
            "    @dataclass(frozen=True)\n    class Config:\n        x: 'Nowhere' = 1",
            "cannot be read: name 'Nowhere' is not defined",
        ),
    ],
)
def test_a_method_file_that_is_none(cli: Cli, tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "m.py").write_text(text)
    found = cli("run", tmp_path / "m.py", "--data", "digits", "--out", tmp_path / "run")
    assert found.code == 2
    assert why in found.err


def test_folders_of_photos_that_are_very_deep(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "b").mkdir(parents=True)
    for _ in range(300):
        os.makedirs("photos/a" if Path.cwd() == tmp_path else "a")
        os.chdir("photos/a" if Path.cwd() == tmp_path else "a")
    monkeypatch.chdir(tmp_path)
    for command in (["run", "rkd", "--data", "./photos", "--out", "run"], ["learn", "model", "photos"]):
        found = cli(*command)
        assert found.code == 2
        assert "has folders more than 100 deep" in found.err


ESCAPE = "\x1b]0;owned\x07\x1b[31m\x9b31m\r"


def controls(text: str) -> list[str]:
    return [letter for letter in text if unicodedata.category(letter) == "Cc" and letter != "\n"]


def test_escape_characters_of_a_record_reach_neither_terminal_nor_page(folder: Path, cli: Cli) -> None:
    record = json.loads((folder / "record.json").read_text())
    odd: dict[str, Any] = {
        key: f"{ESCAPE}{record[key]}" for key in ("method", "data", "memory", "order", "device", "started")
    }
    odd |= {"message": ESCAPE, "status": "failed", "notes": [ESCAPE], "classes": [f"{k}{ESCAPE}" for k in range(10)]}
    odd["recipe"] = record["recipe"] | {"optim.batch": ESCAPE, ESCAPE: 1}
    other = shutil.copytree(folder, folder.with_name("other"))
    (folder / "record.json").write_bytes(edited(json.dumps(record).encode(), **odd))
    found = cli("report", folder, other, "--out", folder / "report.html")
    assert found.code == 0, found.err
    assert "owned" in found.out
    assert controls(found.out + found.err + (folder / "report.html").read_text()) == []
    found = cli("resume", folder)
    assert found.code == 2
    assert "owned" in found.err
    assert controls(found.out + found.err) == []


@pytest.mark.parametrize("text", [f'"a{ESCAPE}" = 1', f'memory = "{ESCAPE}"', f'[stream]\nprotocol = "{ESCAPE}"'])
def test_nor_do_those_of_a_recipe(tmp_path: Path, cli: Cli, text: str) -> None:
    (tmp_path / "recipe.toml").write_text(
        text.encode("unicode_escape").decode().replace("\\x", "\\u00").replace("\\n", "\n")
    )
    found = cli("run", "--recipe", tmp_path / "recipe.toml")
    assert found.code == 2
    assert "owned" in found.err
    assert controls(found.err) == []


def test_a_record_has_a_checksum(folder: Path, cli: Cli) -> None:
    text = (folder / "record.json").read_text()
    (folder / "record.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    for command in ("report", "resume"):
        found = cli(command, folder)
        assert found.code == 2
        assert "record.json: its checksum is wrong" in found.err


@pytest.mark.parametrize(
    "values",
    [
        {"accuracy": {"cnn": [], "nme": []}},
        {"accuracy": {}},
        {"seconds": [1.0, 1.0]},
        {"losses": [{}, {}], "timings": [{}, {}]},
        {"status": "done"},
        {"method": "edbl"},
        {"seed": 3},
        {"memory": "total=30"},
        {"phases": 2},
        {"order": "1993"},
        {"data": "cifar10"},
        {"classes": list("9876543210")},
        {"task_sizes": [4, 4, 2]},
    ],
    ids=str,
)
def test_a_record_that_does_not_fit_its_run_is_not_believed(folder: Path, cli: Cli, values: dict[str, Any]) -> None:
    (folder / "record.json").write_bytes(edited((folder / "record.json").read_bytes(), **values))
    found = cli("resume", folder)
    assert found.code == 2
    assert found.err.count("\n") == 1


@pytest.mark.parametrize("change", [lambda x: x[:, 0], lambda x: x.long(), lambda x: torch.cat([x, x, x], 1)])
def test_so_are_the_logits_of_exemplars(tmp_path: Path, change: Callable[[Tensor], Tensor]) -> None:
    class Kill(Progress):
        def learnt(self, task: int) -> None:
            if task == 2:
                raise Killed

    with pytest.raises(Killed):
        run(Recipe.build("der++", data="digits", preset="quick", **SHORT), tmp_path / "run", progress=Kill())
    saved = Checkpoints(tmp_path / "run" / "checkpoints").load("task-1")
    assert saved is not None
    forge(tmp_path / "run", "task-1", with_tensors(memory__extra__logits=change(saved.tensors["memory.extra.logits"])))
    with pytest.raises(EdblError, match=r"memory\.extra\.logits' is"):
        resume(tmp_path / "run")


FALSE = {
    "method": "edbl",
    "data": "cifar10",
    "protocol": "own",
    "phases": 2,
    "memory": "total=30",
    "order": "1993",
    "seed": 3,
    "classes": list("9876543210"),
    "our_reading": True,
    "recipe": {"method": "edbl"},
    "data_fingerprint": "0" * 32,
}


@pytest.mark.parametrize("name", FALSE)
def test_nor_is_one_of_a_finished_run(finished: Path, tmp_path: Path, cli: Cli, name: str) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    assert cli("resume", folder).code == 0
    record = (folder / "record.json").read_bytes()
    (folder / "record.json").write_bytes(edited(record, **{name: FALSE[name]}))
    found = cli("resume", folder)
    assert found.code == 2
    why = ("is not that of its recipe", "not the recipe of the record", "the images of digits are not those of run")
    assert any(text in found.err for text in why), found.err


def test_nor_is_a_finished_recipe_of_another_run(finished: Path, tmp_path: Path, cli: Cli) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(text.replace('memory = "total=25"', 'memory = "total=50"'))
    assert "is not the recipe of the record beside it" in cli("resume", folder).err


STATES: dict[str, tuple[str, Callable[[Tensor], Tensor], str]] = {
    "labels of no class": ("labels", lambda x: x + 100, "tensor 'labels' is not of classes"),
    "fewer means": ("means", lambda x: x[:1], r"tensor 'means' is torch.float64 \[1, 4\]"),
    "a narrow scatter": ("scatter", lambda x: x[:1], r"tensor 'scatter' is torch.float64 \[1\]"),
    "weights of another type": ("weight", lambda x: x.half(), "tensor 'weight' is torch.float16"),
}


@pytest.mark.parametrize("method", ["lda", "ridge"])
@pytest.mark.parametrize("name", STATES)
def test_a_state_that_does_not_fit_its_method_is_refused(tmp_path: Path, method: str, name: str) -> None:
    tensor, change, why = STATES[name]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 4)), np.arange(20) % 2
    made = EDBLClassifier(method=method, backbone="given", device="cpu").fit(x, y)
    made.save(tmp_path)
    assert (EDBLClassifier.load(tmp_path).predict(x) == made.predict(x)).all()
    values, tensors = store.load(tmp_path, "estimator", dict[str, object], 1)
    store.save(tmp_path, "estimator", values, tensors | {f"state.{tensor}": change(tensors[f"state.{tensor}"])}, 1)
    with pytest.raises(EdblError, match=why):
        EDBLClassifier.load(tmp_path)


@pytest.fixture(scope="module", params=["acil", "ranpac", "ewc"])
def keeping(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a method with a state of its own, killed in its second task."""

    class Kill(Progress):
        def learnt(self, task: int) -> None:
            if task == 1:
                raise Killed

    folder = tmp_path_factory.mktemp("keeping") / "run"
    size = {} if request.param == "ewc" else {"options.size": 32}
    with pytest.raises(Killed):
        run(
            Recipe.build(request.param, data="digits", preset="quick", **{**SHORT, "memory": "none"}, **size),
            folder,
            progress=Kill(),
        )
    return folder


SHAPES: dict[str, Callable[[Tensor], Tensor | None]] = {
    "missing": lambda x: None,
    "of no axis": lambda x: torch.zeros((), dtype=x.dtype) if x.ndim else torch.zeros(2).to(x),
    "short": lambda x: x[:-1].clone() if x.ndim else torch.zeros(2).to(x),
    "wide": lambda x: torch.cat([x, x], -1) if x.ndim else torch.zeros(2).to(x),
    "of halves": lambda x: x.half(),
    "of integers": lambda x: x.long(),
    "empty": lambda x: x.new_empty(0),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_each_tensor_of_a_state_is_checked(keeping: Path, tmp_path: Path, shape: str) -> None:
    folder = shutil.copytree(keeping, tmp_path / "run")
    saved = Checkpoints(folder / "checkpoints").load(STATE)
    assert saved is not None
    states = [name for name in saved.tensors if name.startswith("state.")]
    for name in [*states[:3], states[-1]]:
        forge(folder, STATE, with_tensors(**{name: SHAPES[shape](saved.tensors[name])}))
        with pytest.raises(EdblError, match="does not fit") as caught:
            resume(folder)
        assert name.removeprefix("state.") in str(caught.value)
        forge(folder, STATE, with_tensors(**{name: saved.tensors[name]}))
    assert resume(folder).status == "done"


def test_what_is_printed_for_nobody_ends_no_command(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, end = os.pipe()
    os.close(start)
    with open(end, "w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        monkeypatch.setattr("sys.argv", ["edbl", "report", str(finished), "--out", str(finished / "out.csv")])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 0
    assert (finished / "out.csv").exists()


def test_ctrl_c_before_a_command_begins_is_one_word(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("edbl.cli.app", stop)
    found = cli("list", "methods")
    assert (found.code, found.err) == (130, "interrupted\n")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_where_memory_ends_there_is_one_message(
    finished: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(folder: Path) -> None:
        raise error

    monkeypatch.setattr(records, "read", fail)
    found = cli("resume", finished)
    assert found.code == 2
    assert found.err.startswith("error: memory has run out; ")


def test_a_name_as_long_as_file_systems_take(tmp_path: Path) -> None:
    for name in ("x" * 255, "\u00e9" * 127):
        store.write_output(tmp_path / name, b"data")
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"data"}
    assert len(list(tmp_path.iterdir())) == 2


def test_a_method_file_beside_whose_folder_is_another_file(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine.py").write_text("raise RuntimeError")
    (tmp_path / "mine" / "m.py").write_text("import sys\nfrom edbl.methods.rkd import RKD as Base\n\n\n"
        "class Own(Base):\n    name = 'own'\n")  # fmt: skip
    assert find_method(str(tmp_path / "mine" / "m.py")).name == "own"


def write_photos(folder: Path, classes: dict[str, list[int]], side: int = 8) -> Path:
    for name, shades in classes.items():
        (folder / name).mkdir(parents=True)
        for shade in shades:
            Image.new("L", (side, side), shade).save(folder / name / f"{shade}.png")
    return folder


def test_a_pipe_among_photos_is_told(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", {"a": [1, 2, 3], "b": [3, 4, 5]})
    os.mkfifo(photos / "a" / "pipe.png")
    assert "1 pipe or other things that are no files ignored: a/pipe.png" in load_folder(photos).notes


def test_photos_are_not_blown_up(tmp_path: Path, cli: Cli) -> None:
    photos = write_photos(tmp_path / "photos", {"a": [1], "b": [2]}, side=300)
    found = cli("learn", tmp_path / "model", photos, "--backbone", "small", "--image-size", 1024)
    assert (found.code, found.err) == (2, "error: image_size=1024 is more than the photos have; give at most 300\n")
    assert not (tmp_path / "model").exists()


def test_a_narrow_terminal_hides_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(width=44, file=io.StringIO())
    made = terminal.table("class", "images", "exemplars", "held out", "CNN")
    made.add_row("some digit or other", "1,000,000", "1,000", "100", "100.0%")
    console.print(made)
    shown = console.file.getvalue() if isinstance(console.file, io.StringIO) else ""
    assert "\u2026" not in shown
    assert "digit" in shown
