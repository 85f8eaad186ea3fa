"""Folders of searches, studies and logs that came from somebody else: links, forged journals, files that are none."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

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
    search.work(2, lambda: nullcontext(), lambda _: None)  # type: ignore[arg-type]
    results.write(search)
    return place / "out"


def tune(cli: Cli, place: Path, out: Path, *more: object) -> Any:
    given = [word for key, value in SMALL.items() if "." in key for word in ("--set", f"{key}={json.dumps(value)}")]
    (place / "space.toml").write_text(SEARCH)
    words = ["tune", SMALL["method"], "--preset", "quick", "--set", "checkpoint_seconds=0", *given]
    return cli(*words, "--search", place / "space.toml", "--trials", 3, "--out", out, *more)


LINKED = {
    **{f"search: {name}": ("search", name) for name in ("workers", "journal", "trials", f"journal/{LINES}", "trials/0000")},
    **{f"search: {name}": ("search", name) for name in ("best.toml", "search.html", "trials/wandb")},
    **{f"study: {name}": ("study", name) for name in ("mine", "mine/temperature", "mine/temperature/4-seed0")},
    **{f"reproduce: {name}": ("reproduce", name) for name in ("small", "features.npz")},
    **{f"run: {name}": ("run", name) for name in ("checkpoints", "record.json", "tensorboard", "wandb.jsonl")},
    **{f"model: {name}": ("model", name) for name in ("model.json", "increment", "versions")},
}


@pytest.mark.parametrize("what", LINKED)
def test_nothing_behind_a_link_is_read_written_or_deleted(
    what: str, searched: Path, stopped: Path, study_file: Path, tmp_path: Path, cli: Cli  # noqa: F811
) -> None:
    kind, name = LINKED[what]
    place, own = tmp_path / "place", tmp_path / "own"
    if kind == "search":
        shutil.copytree(searched, place)
    elif kind == "run":
        shutil.copytree(stopped, place)
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
        "study": lambda: cli("study", study_file, "--runs", place, "--results", tmp_path / "results"),
        "reproduce": lambda: cli("reproduce", "tuning", "--scale", "small", "--runs", place, "--dry-run"),
        "run": lambda: cli("resume", place, "--log", "tensorboard"),
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
