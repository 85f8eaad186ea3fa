"""Folders of searches, studies and logs that came from somebody else: links, forged journals, files that are none."""

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import edbl
from edbl import EdblError
from edbl.cli import main
from edbl.pulse import PULSE, Pulse
from edbl.store import refuse_links
from edbl.tuning import results
from edbl.tuning.search import Plan, Searcher
from edbl.tuning.storage import LINES
from tests.conftest import Cli
from tests.test_strangers import finished, folder, stopped  # noqa: F401
from tests.test_studies import study_file  # noqa: F401
from tests.test_tuning import SMALL

SEARCH = '[space]\noptim.warmup = { low = 0, high = 2 }\noptim.kind = ["sgd"]\n'


def plan(place: Path) -> Plan:
    file = place / "space.toml"
    file.write_text(SEARCH)
    return Plan.of(SMALL, None, file)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a search of two trials."""
    place = tmp_path_factory.mktemp("searched")
    search = Searcher(plan(place), place / "out")
    search.work(2, lambda: nullcontext(), lambda _: None)
    results.write(search)
    return place / "out"


def tune(cli: Cli, place: Path, out: Path, *more: object) -> Any:
    given = [word for key, value in SMALL.items() if "." in key for word in ("--set", f"{key}={json.dumps(value)}")]
    (place / "space.toml").write_text(SEARCH)
    words = ["tune", SMALL["method"], "--preset", "quick", "--set", "checkpoint_seconds=0", *given]
    return cli(*words, "--search", place / "space.toml", "--trials", 3, "--out", out, *more)


LINKED = {
    **{
        f"search: {name}": ("search", name)
        for name in ("workers", "journal", "trials", f"journal/{LINES}", "trials/0000")
    },
    **{f"search: {name}": ("search", name) for name in ("best.toml", "search.html", "trials/wandb")},
    **{f"study: {name}": ("study", name) for name in ("mine", "mine/temperature", "mine/temperature/4-seed0")},
    **{f"reproduce: {name}": ("reproduce", name) for name in ("small", "features.npz")},
    **{f"run: {name}": ("run", name) for name in ("checkpoints", "record.json", "tensorboard", "wandb.jsonl")},
    **{f"runs: {name}": ("runs", name) for name in ("rkd-seed0", "finetune-seed0", "recipe.toml", "other/checkpoints")},
    **{f"model: {name}": ("model", name) for name in ("model.json", "increment", "versions")},
}


@pytest.mark.parametrize("what", LINKED)
def test_nothing_behind_a_link_is_read_written_or_deleted(
    what: str, searched: Path, request: pytest.FixtureRequest, tmp_path: Path, cli: Cli
) -> None:
    kind, name = LINKED[what]
    place, own = tmp_path / "place", tmp_path / "own"
    if kind == "search":
        shutil.copytree(searched, place)
    elif kind == "run":
        shutil.copytree(request.getfixturevalue("stopped"), place)
    (own / "inner").mkdir(parents=True)
    for file in ("notes.txt", ".lock", "inner/task-list.json", "record.json"):
        (own / file).write_text("precious, without an end of line")
    link = place / name
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.symlink_to(own / "notes.txt" if "." in name else own)
    seen(own)
    before = seen(own)
    commands: dict[str, Callable[[], Any]] = {
        "search": lambda: tune(cli, tmp_path, place),
        "study": lambda: cli(
            "study", request.getfixturevalue("study_file"), "--runs", place, "--results", tmp_path / "results"
        ),
        "reproduce": lambda: cli("reproduce", "tuning", "--scale", "small", "--runs", place, "--dry-run"),
        "run": lambda: cli("resume", place, "--log", "tensorboard"),
        "runs": lambda: cli("run", "rkd", "finetune", "--data", "digits", "--out", place),
        "model": lambda: cli("learn", place, own),
    }
    done = commands[kind]()
    assert (done.code, "is a link, and" in done.err) == (2, True), done.err
    assert len(done.err.splitlines()) <= 2
    assert seen(own) == before


def seen(own: Path) -> dict[str, Any]:
    """Return what is in a folder, when each file was changed, and when it was read since this was called last."""
    found = {}
    for path in sorted(own.rglob("*")):
        stat = path.stat()
        found[str(path)] = (stat.st_mtime_ns, path.is_dir() or (stat.st_atime_ns, path.read_text()))
        os.utime(path, ns=(0, stat.st_mtime_ns))
    return found


def test_what_wandb_links_in_its_logs_is_left_to_it(searched: Path, tmp_path: Path, cli: Cli) -> None:
    out = shutil.copytree(searched, tmp_path / "out")
    logs = out / "trials" / "wandb" / "offline-run-1" / "logs"
    logs.mkdir(parents=True)
    (logs / "debug-core.log").symlink_to(tmp_path)
    refuse_links(out, but="logs")
    assert tune(cli, tmp_path, out).code == 0


TRAP = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\ndef make(*given):\n    return []\n"
NAMING = {
    "settings: backbone": '[settings]\nnet.backbone = "{}:make"\n',
    "settings: data": '[settings]\ndata.name = "{}:make"\n',
    "settings: stream": '[settings]\nstream.protocol = "own"\nstream.given = "{}:make"\n',
    "space": '[space]\nnet.backbone = ["mlp", "{}:make"]\n',
}


@pytest.mark.parametrize("text", NAMING.values(), ids=NAMING)
def test_a_search_file_runs_no_code_that_nobody_else_names(text: str, tmp_path: Path, cli: Cli) -> None:
    trap, file = tmp_path / "m.py", tmp_path / "s.toml"
    trap.write_text(TRAP)
    file.write_text(text.format(trap))
    words = ["tune", "rkd", "--preset", "quick", "--search", file, "--trials", 1, "--out", tmp_path / "out"]
    done = cli(*words)
    assert (done.code, (tmp_path / "ran").exists()) == (2, False)
    assert "names code" in done.err
    assert "name it too, if you trust it: `--code" in done.err
    done = cli(*words, "--code", trap)
    assert (tmp_path / "ran").exists(), done.err
    assert cli(*words, "--code", tmp_path).code == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('method = "rkd"', 'method = "{}"'),
        ('method = "vanilla-mkd"', 'method = "{}"'),
        ("options.temperature = 4.0", 'net.backbone = "{}:make"'),
        ("settings.seed = 3", 'settings.data.name = "{}:make"'),
        ("stream.tasks = 2", 'stream.protocol = "own"\nstream.given = "{}:make"'),
    ],
)
def test_nor_does_a_study(old: str, new: str, study_file: Path, tmp_path: Path, cli: Cli) -> None:  # noqa: F811
    trap = tmp_path / "m.py"
    trap.write_text(TRAP)
    study_file.write_text(study_file.read_text().replace(old, new.format(trap)).replace('data.name = "digits"\n', ""))
    words = ["study", study_file, "--runs", tmp_path / "runs", "--results", tmp_path / "results", "--dry-run"]
    done = cli(*words)
    assert (done.code, (tmp_path / "ran").exists(), "names code" in done.err) == (2, False, True), done.err
    assert "names code" not in cli(*words, "--code", trap).err


FORGED: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "nested": lambda _: "[" * 100_000,
    "nested line": lambda lines: json.dumps(lines[0]) + "\n" + '{"op_code":' * 50_000,
    "nested in an attribute": lambda lines: put(lines, 0, directions=[nested(500)]),
    "no object": lambda _: "5",
    "an unknown kind": lambda _: {"op_code": 99, "worker_id": "x"},
    "a study deleted": lambda lines: [*lines, {"op_code": 1, "worker_id": "x", "study_id": 0}],
    "no kind": lambda _: {},
    "directions": lambda lines: put(lines, 0, directions=[9]),
    "a study too many": lambda lines: put(lines, 4, study_id=2**70),
    "a time": lambda lines: put(lines, 4, datetime_start="yesterday"),
    "no bytes of a text": lambda _: b"\xff\xfe",
    "a distribution": lambda lines: put(lines, 5, distribution="[" * 100_000),
    "an unknown distribution": lambda lines: put(lines, 5, distribution='{"name": "X", "attributes": {}}'),
    "an unknown parameter": lambda lines: put(lines, 5, param_name="optim.lr"),
    "a parameter beyond": lambda lines: put(lines, 5, param_value_internal=1e300),
    "a parameter of text": lambda lines: put(lines, 5, param_value_internal="1"),
    "identity nested": lambda lines: put(lines, 2, user_attr={"edbl:search": "[" * 100_000}),
    "identity a number": lambda lines: put(lines, 2, user_attr={"edbl:search": 5}),
    "identity a list": lambda lines: put(lines, 2, user_attr={"edbl:search": [1]}),
    "identity text of a list": lambda lines: put(lines, 2, user_attr={"edbl:search": "[1]"}),
    "a value of text": lambda lines: put(lines, 6, values=["0.5"]),
    "a value that is null": lambda lines: put(lines, 6, values=[None]),
    "no value": lambda lines: put(lines, 6, values=None),
    "two values": lambda lines: put(lines, 6, values=[0.5, 0.5]),
    "a huge value": lambda lines: put(lines, 6, values=[1e308]),
    "a value that is none": lambda lines: put(lines, 6, values=[float("nan")]),
    "a state": lambda lines: put(lines, 6, state=77),
    "a step of text": lambda lines: put(lines, 7, step="one"),
    "a worker that is a list": lambda lines: put(lines, 8, user_attr={"edbl:worker": []}),
    "a key more": lambda lines: put(lines, 4, state=1),
    "200,000 trials": lambda lines: [*lines, *[next(one for one in lines if one["op_code"] == 4)] * 200_000],
}


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else []


def put(lines: list[dict[str, Any]], kind: int, **values: object) -> list[dict[str, Any]]:
    return [{**line, **values} if line["op_code"] == kind else line for line in lines]


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_journal_is_one_message(what: str, searched: Path, tmp_path: Path, cli: Cli) -> None:
    out = shutil.copytree(searched, tmp_path / "out")
    journal = out / "journal" / LINES
    made: Any = FORGED[what]([json.loads(line) for line in journal.read_bytes().splitlines()])
    made = "\n".join(map(json.dumps, made)) if isinstance(made, list) else made
    made = json.dumps(made) if isinstance(made, dict) else made
    journal.write_bytes((made.encode() if isinstance(made, str) else made) + b"\n")
    done = tune(cli, tmp_path, out)
    assert done.code == 2, done.err
    assert len(done.err.splitlines()) <= 2
    assert len(done.err) < 1000
    with pytest.raises(EdblError):
        Searcher(plan(tmp_path), out).trials()


@pytest.mark.parametrize("name", [f"journal/{LINES}", "journal/.lock", ".lock"])
def test_a_pipe_in_a_search_is_not_waited_for(name: str, searched: Path, tmp_path: Path, cli: Cli) -> None:
    out = shutil.copytree(searched, tmp_path / "out")
    (out / name).unlink()
    os.mkfifo(out / name)
    done = tune(cli, tmp_path, out)
    assert (done.code, len(done.err.splitlines())) in ((2, 1), (0, 0)), done.err


def test_trials_beyond_those_that_are_wanted_are_left(searched: Path, tmp_path: Path, cli: Cli) -> None:
    out = shutil.copytree(searched, tmp_path / "out")
    journal = out / "journal" / LINES
    lines = [json.loads(line) for line in journal.read_bytes().splitlines()]
    begun = next(line for line in lines if line["op_code"] == 4)
    journal.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *[begun] * 20_000]))
    assert tune(cli, tmp_path, out).code == 0
    assert sorted(path.name for path in (out / "trials").iterdir()) == ["0000", "0001", "0002"]


def file(name: str, data: bytes) -> Callable[[Path], object]:
    def made(run: Path) -> None:
        (run / name).resolve().parent.mkdir(exist_ok=True)
        (run / name).resolve().write_bytes(data)

    return made


def pipe(name: str) -> Callable[[Path], object]:
    def made(run: Path) -> None:
        (run / name).resolve().parent.mkdir(exist_ok=True)
        os.mkfifo((run / name).resolve())

    return made


EVENTS, ROWS = "tensorboard/events.out.tfevents.1", "wandb.jsonl"
BROKEN_LOGS: dict[str, tuple[str, Callable[[Path], object], int]] = {
    "events: a pipe": ("tensorboard", pipe(EVENTS), 2),
    "events: a folder": ("tensorboard", lambda run: (run / EVENTS).mkdir(parents=True), 2),
    "events: no folder": ("tensorboard", file("tensorboard", b"x"), 2),
    "events: no events": ("tensorboard", file(EVENTS, b"\xff" * 1000), 0),
    "events: no event": ("tensorboard", file(EVENTS, (9).to_bytes(8, "little") + b"\xff" * 1000), 0),
    "events: a length": ("tensorboard", file(EVENTS, (2**40).to_bytes(8, "little") + bytes(100)), 0),
    "rows: a pipe": ("wandb", pipe(ROWS), 2),
    "rows: nested": ("wandb", file(ROWS, b"[" * 100_000), 0),
    "rows: a number": ("wandb", file(ROWS, b"5\n"), 0),
    "rows: an order": ("wandb", file(ROWS, json.dumps([10**300, {"a": 1.0}]).encode()), 0),
    "rows: no number": ("wandb", file(ROWS, b'[5, {"a": NaN}]\n'), 0),
    "store: no database": ("mlflow", file("../mlflow.db", b"junk" * 1000), 2),
    "store: half a database": ("mlflow", file("../mlflow.db", b"SQLite format 3\0" + b"junk" * 1000), 2),
    "store: a pipe": ("mlflow", pipe("../mlflow.db"), 2),
}


@pytest.mark.parametrize("what", BROKEN_LOGS)
def test_a_log_that_is_none_is_one_message(what: str, folder: Path, cli: Cli) -> None:  # noqa: F811
    name, make, code = BROKEN_LOGS[what]
    pytest.importorskip(name)
    make(folder)
    done = cli("resume", folder, "--log", name)
    assert done.code == code, done.err
    assert len(done.err.splitlines()) <= 2 * (code == 2), done.err


PULSES: dict[str, dict[str, object]] = {
    "losses of 15 MB": {"losses": [1.5] * 3_000_000},
    "losses without end": {"losses": [-1e308, 1e308]},
    "losses that are none": {"losses": ["x"]},
    "a title of 15 MB": {"title": "x" * 15_000_000},
    "huge numbers": {"left": 1e308, "speed": 1e308, "share": 1e308, "at": 1e308, "pid": 10**300, "epochs": 10**300},
    "small numbers": {"left": -1e308, "speed": -1e308, "task": -5, "tasks": -5, "pid": -1, "at": -1e308},
}


@pytest.mark.parametrize("what", PULSES)
def test_a_forged_pulse_is_drawn_or_left_out(what: str, folder: Path, cli: Cli) -> None:  # noqa: F811
    forged = {**asdict(Pulse("running", "rkd on digits", tasks=3, phase="train")), **PULSES[what]}
    (folder / PULSE).write_text(json.dumps(forged))
    began = time.monotonic()
    done = cli("watch", folder, "--once")
    assert (done.code, done.err) == (0, "")
    assert time.monotonic() - began < 5


BODIES = {
    "sys.exit()": "import sys; sys.exit()",
    "GeneratorExit": "raise GeneratorExit",
    "BaseException": "raise BaseException('x')",
    "later": "yield [0]; raise SystemExit",
    "no end": "while True: yield [1]",
}


@pytest.mark.parametrize("what", BODIES)
def test_a_stream_of_a_users_that_ends_the_process_or_never_ends(what: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "s.py").write_text(f"def make(y):\n    {BODIES[what]}\n")
    words = ["finetune", "--data", "digits", "--preset", "quick", "--set", "net.backbone=mlp", "--protocol", "own"]
    words += ["--set", f"stream.given={tmp_path / 's.py'}:make"]
    for command in (["run"], ["tune", "--trials", "9"]):
        done = cli(command[0], *words, *command[1:], "--out", tmp_path / command[0])
        assert done.code == 2, (done.out, done.err)
        assert ("no end" if what == "no end" else "ends the process") in done.err
        assert len(done.err.splitlines()) <= 2


@pytest.mark.parametrize(("body", "what"), [("sys.exit()", "SystemExit"), ("raise GeneratorExit", "GeneratorExit")])
@pytest.mark.parametrize("kind", ["data", "backbone", "method"])
def test_nor_do_data_a_backbone_or_a_method(kind: str, body: str, what: str, tmp_path: Path, cli: Cli) -> None:
    text = f"import sys\ndef make(*a):\n    {body}\n"
    if kind == "method":
        text = "import sys\nfrom edbl.methods.finetune import Finetune\nclass Mine(Finetune):\n    name = 'mine'\n"
        text += f"    def begin(self, *a):\n        {body}\n"
    (tmp_path / "m.py").write_text(text)
    given = {"method": "finetune", "data": "digits", "backbone": "mlp", kind: f"{tmp_path / 'm.py'}:make"}
    words = ["--data", given["data"], "--preset", "quick", "--set", f"net.backbone={given['backbone']}"]
    done = cli("run", given["method"].removesuffix(":make"), *words, "--out", tmp_path / "run")
    assert done.code in (1, 2), (done.out, done.err)
    assert what in done.err
    assert "/edbl/" not in done.err.replace(str(tmp_path), "")


@pytest.mark.parametrize("words", [["doctor", "--json"], ["info", "{}", "--json"], ["history", "{}", "--json"]])
def test_what_programs_read_may_have_no_reader(
    words: list[str], model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    start, end = os.pipe()
    os.close(start)
    with open(end, "w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        monkeypatch.setattr("sys.argv", ["edbl", *(word.format(model) for word in words)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert (ended.value.code, capfd.readouterr().err) == (0, "")


@pytest.mark.parametrize("form", ["--csv", "--json"])
def test_nor_need_predictions(
    form: str, model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    test_what_programs_read_may_have_no_reader(
        ["predict", "{}", str(model.parent / "photos"), form], model, monkeypatch, capfd
    )


def test_commands_print_in_one_way() -> None:
    for path in (Path(edbl.__file__).parent / "cli").glob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert "print" not in [call.id for call in calls if isinstance(call, ast.Name)], path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two classes, beside the photos that it was taught."""
    place = tmp_path_factory.mktemp("taught")
    for number, name in enumerate(("dark", "light")):
        (place / "photos" / name).mkdir(parents=True)
        for k in range(6):
            pixels = np.random.default_rng(k).integers(120 * number, 120 * number + 120, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).save(place / "photos" / name / f"{k}.png")
    words = ["learn", place / "model", place / "photos", "--backbone", "mlp", "--image-size", "16"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["edbl", *map(str, words)])
        with pytest.raises(SystemExit):
            main()
    return place / "model"


SWALLOWED = """
import os, signal, sys
from edbl import __main__, cli
class Gone:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
def main():
    kept = Gone()
    del kept
    print("continues")
cli.main = main
__main__.start()
"""


def test_ctrl_c_that_python_would_forget_ends_a_command_too() -> None:
    ended = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")
