"""Inputs: files that were forged or damaged, options nobody would give, photos that are none, one after the other."""

import io
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from edbl.cli import terminal
from tests.campaign import bases
from tests.campaign.child import Action, Child, command
from tests.campaign.forging import ESCAPE, OUTSIDE, Draw, damaged, forge, odd_image, odd_line, replaced

BATCH = 20  # inputs of a case, which one process takes
SLOW, LARGE = 10.0, 2**30  # seconds of its processor, and bytes beyond what the process had, that an input may take
OTHERS = (OUTSIDE, "photos", "more", "home")  # folders that are not to be touched
TRAP = "open({!r}, 'w').close()\n"  # what a file would do that must not run


@dataclass(frozen=True)
class Input:
    """What is done to a copy of a base, and what is then given."""

    base: str
    own: str  # the folder in it that is the stranger's
    actions: Sequence[Sequence[object] | Callable[[], object]]
    only: str = "*"  # names of files that are forged


READERS: Sequence[tuple[int, Input]] = (  # how often, and what
    (4, Input("stopped", "run", [["resume", "run"], ["report", "run", "--out", "run.csv"]])),
    (2, Input("done", "run", [["report", "run", "--out", "run.md"], ["resume", "run"]])),
    (1, Input("done", "run", [bases.RUN, ["compare", "run", "run"]])),
    (3, Input("model", "model", [["info", "model"], ["predict", "model", "more"], bases.MORE])),
    (2, Input("model", "model", [["info", "model", "--json"], ["forget", "model", "digit 1"]])),
    (1, Input("model", "model", [["rename", "model", "digit 1", "one"], ["predict", "model", "more", "--csv"]])),
    (3, Input("begun", "model", [["learn", "model"], ["info", "model"]])),
    (2, Input("first", "model", [["learn", "model"], ["learn", "model", "--discard"]])),
    (1, Input("changed", "model", [["undo", "model"], ["history", "model"], ["info", "model"]])),
    (2, Input("searched", "search", [bases.TUNE])),
    (1, Input("searched", "search", [bases.TUNE], "*.jsonl")),
    (1, Input("stopped", "run", [["watch", "run", "--once"]], "pulse.json")),
    (1, Input("logged", "run", [["resume", "run", "--log", "tensorboard"]], "*tfevents*")),
    (2, Input("estimator", "saved", [bases.load_and_predict, bases.load_and_learn])),
)
TEXTS: Sequence[tuple[str, str, Sequence[object]]] = (  # a base, its file that is forged, and what is given
    ("stopped", "run/recipe.toml", ["run", "--recipe", "./own.toml", "--out", "made"]),
    ("stopped", "run/recipe.toml", ["run", "--recipe", "./own.toml", "--out", "made"]),
    ("space", "space.toml", ["tune", "rkd", *bases.SHORT, "--search", "own.toml", "--trials", 1, "--out", "made"]),
    ("asked", "study.toml", ["study", "own.toml", "--dry-run"]),
)
HTML, ONNX = 0.01, 0.01  # shares of inputs that are seen through a page, or a graph, to which that takes seconds


def given(draw: Draw, place: Path) -> tuple[str, bool, Sequence[Sequence[object] | Callable[[], object]]]:
    """Make one input in a folder; return what it is, whether it is a forgery, and what is given to it."""
    kind = draw.random()
    if kind < 0.7:
        one = draw.choices([one for _, one in READERS], [often for often, _ in READERS])[0]
        _copy(place, one.base)
        what, signed = "", True
        for _ in range(draw.choice([1, 1, 1, 2])):
            more, right = forge(draw, place / one.own, place / OUTSIDE, one.only)
            what, signed = f"{what} and {more}" if what else more, signed and right
        actions = list(one.actions)
        if one.own == "run" and draw.random() < HTML:
            actions = [["report", "run"]]
        if one.base == "model" and draw.random() < ONNX:
            actions = [["export", "model", "m.onnx"]]
        return f"{one.own}, {what}", signed, actions
    if kind < 0.85:
        _copy(place, "nothing")
        return "options", True, [_options(draw)]
    if kind < 0.93:
        base, name, words = draw.choice(TEXTS)
        _copy(place, base)
        text = (place / name).read_bytes()
        for _ in range(draw.choice([1, 1, 3])):
            with suppress(UnicodeDecodeError, IndexError):
                text = odd_line(draw, text)
        if draw.random() < 0.2:
            text = damaged(draw, text)
        (place / "own.toml").write_bytes(text)
        return f"recipe, {words[0]}", True, [words]
    _copy(place, "model")
    photos: list[Path] = sorted((place / "more").rglob("*.png"))
    for path in draw.sample(photos, 3):
        if draw.random() < 0.3:
            replaced(draw, path, place / OUTSIDE)
        else:
            path.write_bytes(draw.choice([odd_image, damaged])(draw, path.read_bytes()))
    if draw.random() < 0.3:
        named = place / "more" / draw.choice([ESCAPE, "a\nb", " ", "x" * 250, "-x", "[red]x[bold]"])
        (place / "more" / "digit 3").rename(named)
    skip = ["--skip-bad"] * draw.choice([0, 1])
    return "photos", True, [["predict", "model", "more", *skip], [*bases.MORE, *skip]]


def _copy(place: Path, base: str) -> None:
    shutil.copytree(place.parent.parent / "bases" / base, place, symlinks=True)
    (place / "m.py").write_text(TRAP.format(str(place / OUTSIDE / "ran")))


def _options(draw: Draw) -> Sequence[object]:
    """Return a command with options that nobody would give."""
    from edbl.methods import methods
    from edbl.recipe import Recipe

    method = draw.choice(sorted(methods()))
    keys = sorted(Recipe.keys(method))
    values: Sequence[object] = (
        -1, 0, 1, 2, 0.5, 1e9, 1e30, 1e308, 2**63, "9" * 400, "nan", "inf", "true", "[]", "[1, 2]", '""', "x", ESCAPE,
        "total=0", "per_class=1", "total=1000000000", "none", "[" * 3000, "a.b.c", "/dev/zero", "../outside", "{a = 1}",
    )  # fmt: skip
    short = [f"{key}={draw.choice([1, 2])}" for key in keys if key.endswith("epochs")]
    odd = [f"{draw.choice(keys)}={draw.choice(values)}" for _ in range(draw.choice([1, 1, 2, 3]))]
    odd = [one for one in odd if not one.partition("=")[0].endswith(("epochs", "every"))]
    told = [part for one in [*short, *odd] for part in ("--set", one)]
    more: list[object] = draw.choice([
        [], [], [], ["--order", draw.choice(["1993", "x", "/dev/zero", "-1", ESCAPE])],
        ["--phases", draw.choice([0, 3, 10**9])],
        ["--seed", draw.choice([-1, 2**63, 5])], ["--memory", draw.choice(["total=1", "per_class=1e9", ESCAPE])],
        ["--protocol", draw.choice(["base-half", "base-step", "own", ESCAPE])], ["--device", "cuda"],
    ])  # fmt: skip
    return ["run", method, "--data", "digits", "--preset", "quick", *told, *more, "--out", "made"]


def batch(number: int, seed: int, out: Path, only: int | None = None) -> list[dict[str, Any]]:
    """Take the inputs of a case, and return what was wrong with how each of them ended."""
    found: list[dict[str, Any]] = []
    place = out / f"case-{os.getpid()}"
    first = 0
    while first < BATCH:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        log = place / "log"
        child = Child(partial(_take, number, seed, place, first, only), place / "out")
        end = child.wait(limit=30 * BATCH)
        lines = log.read_text().splitlines() if log.exists() else []
        found += [json.loads(line) for line in lines[: len(lines) - (len(lines) % 2)][1::2]]
        if end.code == 0:
            break
        begun = json.loads(lines[-1])
        why = "hang" if end.hung or end.code == -signal.SIGALRM else f"exit code {end.code}"
        found.append({**begun, "wrong": [why], "out": end.out[-3000:]})
        first = begun["input"] + 1
    shutil.rmtree(place, ignore_errors=True)
    return found


def _take(number: int, seed: int, place: Path, start: int, only: int | None) -> None:
    """Take inputs one after the other: a line of a log says what comes, and one how it ended."""
    with open(place / "log", "a") as log:
        for k in range(start, BATCH) if only is None else [only]:
            draw = random.Random(f"{seed} {number} {k}")
            folder = place / "it"
            shutil.rmtree(folder, ignore_errors=True)
            told = {"kind": "input", "case": number, "input": k, "what": "ended its process"}
            log.write(json.dumps(told) + "\n")
            log.flush()
            what, forged, actions = given(draw, folder)
            log.write(json.dumps({**told, "what": what, **_end(folder, forged, actions)}) + "\n")
            log.flush()


def _end(folder: Path, forged: bool, actions: Sequence[Sequence[object] | Callable[[], object]]) -> dict[str, Any]:
    """Give commands to an input, and return how they ended and what is wrong with that."""
    mine = {name: bases.tree(folder / name) for name in OTHERS}
    said, wrong, codes, most, bases_of = [], [], [], (0.0, 0), folder.parent.parent / "bases"
    show = terminal.show_runs
    for action in actions:
        words = [] if callable(action) else [str(word) for word in action]
        terminal.show_runs = show if words[:1] == ["report"] else say_nothing
        code, out, seconds, memory = _give(folder, action if callable(action) else command(*action))
        codes.append(code)
        most = max(most[0], seconds), max(most[1], memory)
        said.append(out)
        wrong += faults(code, out, (0, 2))
        wrong += [f"{seconds:.0f} s"] if seconds > SLOW else []
        wrong += [f"{memory >> 20} MB"] if memory > LARGE else []
        if words[:1] == ["resume"] and action is actions[0] and code == 0 and not forged:  # it was not done before
            right = bases.result(bases_of / "done" / "run")
            wrong += ["another result"] if bases.result(folder / "run") != right else []
    terminal.show_runs = show
    for page in folder.glob("**/*.html"):
        wrong += ["control character in a page"] if controls(page.read_text()) else []
    wrong += [f"touched {name}" for name, before in mine.items() if bases.tree(folder / name) != before]
    told = "\n---\n".join(said)
    longest, largest = round(most[0], 2), most[1] >> 20
    return {
        "codes": codes,
        "seconds": longest,
        "MB": largest,
        "wrong": sorted(set(wrong)),
        "out": told[-3000:] if wrong else "",
    }


def _give(folder: Path, action: Action) -> tuple[int, str, float, int]:
    """Give one command in this process; return its exit code, what it printed, seconds of work, and bytes."""
    printed = io.BytesIO()
    usual = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = stream = io.TextIOWrapper(printed, encoding="utf-8")
    os.chdir(folder)
    os.environ.update(HOME=str(folder / "home"), TMPDIR=str(folder / "tmp"))
    before, began = _peak(reset=True), time.process_time()
    signal.alarm(120)
    code: object = 0
    try:
        action()
    except SystemExit as ended:
        code = ended.code
    except Exception as error:
        from edbl.errors import EdblError

        if isinstance(error, EdblError | ValueError) and action in (bases.load_and_predict, bases.load_and_learn):
            code = 2 if isinstance(error, EdblError) or action is bases.load_and_learn else 1
        else:
            code = 1
            traceback.print_exc()
    finally:
        signal.alarm(0)
        stream.flush()
        sys.stdout, sys.stderr = usual
    seconds = time.process_time() - began
    out = printed.getvalue().decode(errors="replace")
    return code if isinstance(code, int) else int(bool(code)), out, seconds, max(0, _peak() - before)


def _peak(reset: bool = False) -> int:
    """Return the most memory that this process had, in bytes; from now on, if it is reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def say_nothing(folders: Sequence[Path], page: Path, figure: Path | None = None) -> None:
    """Make no page of runs, which takes seconds: it is an input of its own."""
    print(page)


def faults(code: int, out: str, codes: Sequence[int]) -> list[str]:
    """Return what is wrong with how a command ended."""
    found = [] if code in codes else [f"exit code {code}"]
    found += ["traceback"] if "Traceback" in out else []
    found += ["message of many lines"] if code == 2 and len(out) > 20_000 else []
    return found + (["control character"] if controls(out) else [])


def controls(text: str) -> bool:
    """Tell whether a text would move the cursor of a terminal, or do worse."""
    return any((letter < " " and letter not in "\n\t") or "\x7f" <= letter <= "\x9f" for letter in text)
