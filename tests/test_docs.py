"""The docs: what they tell users to type works, and nothing that users can choose is missing from them."""

import inspect
import multiprocessing
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, chdir, suppress
from dataclasses import fields
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import typer.core
import typer.main
from fastapi.routing import APIRoute

import edbl
from edbl import metrics, resume, run
from edbl.cli import app
from edbl.cli.options import FLAGS
from edbl.data.datasets import DATASETS
from edbl.methods import methods
from edbl.nets.backbones import BACKBONES
from edbl.recipe import Recipe
from edbl.records import Record
from edbl.serve import api
from edbl.serve.limits import Limits
from edbl.serve.run import Wanted
from edbl.serve.server import NOW, application
from edbl.serve.shelf import Shelf
from tests import reference as made_of_code
from tests.test_contract import Killed, Killer, last_state

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]
    if "generated" not in path.parts
}
METHODS = sorted(methods())
TAGS = [f"A{number}" for number in range(1, 23)]
SOURCE = "https://github.com/edbl/edbl/"  # in links that an index of packages shows too
PATIENCE = 120.0  # seconds for one command
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.(?:py|toml))$")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
MADE = re.compile(r"(?ms)^<!-- ([\w-]+)[\w ]* -->$.*?^<!-- end of \1 -->$")  # by programs, with wide tables
LAB = "docs/calibration.md"  # a notebook
MOST_WORDS = 35_500  # that people have to read: code and what programs make is not counted
ROW = re.compile(r"^\| `([\w./-]+)` \|(.*)\|$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: its language, what else its first line says, and what is in it."""

    language: str
    info: str
    text: str

    @property
    def runs(self) -> bool:
        return self.language in ("console", "sh", "python") and "no-run" not in self.info

    @property
    def commands(self) -> list[str]:
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "sh":  # to be copied whole
            return lines
        return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def blocks(page: str) -> list[Block]:
    return [Block(language, info, text) for language, info, text in FENCE.findall(PAGES[page])]


def prose(page: str) -> str:
    return FENCE.sub("", PAGES[page])


def missing(page: str, words: list[str]) -> list[str]:
    """Return the words that a page does not have in code quotes."""
    return [word for word in words if f"`{word}`" not in PAGES[page]]


# Commands run as processes of their own: forked from a server that has the slow imports behind it, because a docs page
# with ten commands would wait half a minute for PyTorch alone.


@pytest.fixture(scope="module")
def _server() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        slow = ["edbl.engine.run", "edbl.report.page", "sklearn.datasets", "sklearn.manifold", "torch._dynamo"]
        multiprocessing.set_forkserver_preload([*slow, "pytest", "tests.test_docs"])
        forkserver.ensure_running()
        yield


def command_line(arguments: list[str], folder: Path) -> None:
    """Be the command ``edbl`` in ``folder``; this is the whole life of a process."""
    os.chdir(folder)
    os.environ["EDBL_DATA"] = str(folder / "data")
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    sys.argv = ["edbl", *arguments]
    from edbl.cli import main

    main()


def execute(command: str, folder: Path) -> None:
    """Run a line as a user would, and fail if it fails."""
    first, *rest = shlex.split(command)
    if first == "make":  # which runs the tests
        return
    if first != "edbl":
        subprocess.run(command, shell=True, cwd=folder, check=True, timeout=PATIENCE)
        return
    process = multiprocessing.get_context("forkserver").Process(target=command_line, args=(rest, folder))
    process.start()
    process.join(PATIENCE)
    process.kill()
    process.join()
    assert process.exitcode == 0, f"$ {command}\n{(folder / 'log').read_text()}"


class Served:
    """The server of a page: one at a time, at a port that is free instead of the page's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.process: BaseProcess | None = None

    def start(self, command: str) -> None:
        """Start what a line says, in place of the server before."""
        self.end()
        words = shlex.split(command)[1:]
        self.process = multiprocessing.get_context("forkserver").Process(target=command_line, args=(words, self.folder))
        self.process.start()
        end = time.monotonic() + PATIENCE
        while True:
            with suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health").close()
                return
            assert self.process.is_alive(), (self.folder / "log").read_text()
            assert time.monotonic() < end, command
            time.sleep(0.1)

    def end(self) -> None:
        """End it as a service manager does."""
        if self.process is not None:
            self.process.terminate()
            self.process.join(PATIENCE)
            assert self.process.exitcode == 0, (self.folder / "log").read_text()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.usefixtures("_server")
@pytest.mark.parametrize("page", [page for page in PAGES if any(block.runs for block in blocks(page))])
def test_what_a_page_tells_to_type_works(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, object] = {"__name__": page}
    (tmp_path / ".curlrc").write_text("fail\n")  # an error that is answered is one
    monkeypatch.setenv("CURL_HOME", str(tmp_path))
    served = Served(tmp_path)
    with ExitStack() as stack:
        stack.callback(served.end)
        for block in blocks(page):
            text = re.sub(r"(0\.1:|port )8000\b", rf"\g<1>{served.port}", block.text)
            block = block._replace(text=text)
            named = FILE.match(text.partition("\n")[0])
            if named:
                (tmp_path / named[1]).write_text(text)
            elif block.runs and block.language == "python":
                with chdir(tmp_path):
                    exec(compile(text, page, "exec"), names)
            elif block.runs:
                for command in block.commands:
                    served.start(command) if command.startswith("edbl serve") else execute(command, tmp_path)


METHOD_FILES = {
    named[1]: block.text
    for page in PAGES
    for block in blocks(page)
    if (named := FILE.match(block.text.partition("\n")[0])) and "edbl.methods" in block.text
}


@pytest.mark.parametrize("file", METHOD_FILES)
@pytest.mark.parametrize("at", [20, 50])
def test_methods_of_the_docs_go_on_with_the_same_bits(file: str, at: int, tmp_path: Path) -> None:
    (tmp_path / file).write_text(METHOD_FILES[file])
    short = {"stream.tasks": 3, "net.backbone": "mlp", "schedule.epochs": 2, "checkpoint_seconds": 0}
    recipe = Recipe.build(str(tmp_path / file), "digits", preset="quick", **short)
    whole = run(recipe, tmp_path / "whole")
    killed = whole
    with suppress(Killed):  # a method without phases may end before
        killed = run(recipe, tmp_path / "killed", progress=Killer(at))
    assert killed is whole or file == "ridge.py"
    killed = resume(tmp_path / "killed")
    states = [last_state(tmp_path / name, record).tensors for name, record in (("whole", whole), ("killed", killed))]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(v.nan_to_num(7), states[1][k].nan_to_num(7)) for k, v in states[0].items())
    assert killed.losses == whole.losses


def test_the_module_is_the_command() -> None:
    shown = subprocess.run([sys.executable, "-m", "edbl", "--help"], capture_output=True, text=True, check=True)
    assert "resume" in shown.stdout


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_of_a_known_kind(page: str) -> None:
    for block in blocks(page):
        assert block.language in ("console", "sh", "python", "toml", "text"), block
        assert block.info in ("", " no-run"), block
        if block.language == "console":
            assert block.commands, block


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in LINK.findall(prose(page)):
        path, _, anchor = target.partition("#")
        place = (ROOT / page).parent / path if path else ROOT / page
        if path.startswith(SOURCE):
            place = ROOT / re.sub(r"^(blob|raw)/main/|^issues$", "", path.removeprefix(SOURCE))
        elif re.match(r"\w+:", path):
            continue
        assert place.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", FENCE.sub("", place.read_text()), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles]


def test_the_readme_is_one_page_that_an_index_of_packages_can_show() -> None:
    words = [word for word in PAGES["README.md"].split() if re.search(r"\w", word)]
    assert len(words) <= 700
    assert "$" not in PAGES["README.md"]
    assert all(re.match("https?:", target) for target in LINK.findall(prose("README.md")))
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"] + "/" == SOURCE


def test_twenty_questions_are_answered_within_two_clicks() -> None:
    asked = re.findall(r"^\| ([^|]+\?) \| (.+) \|$", PAGES["docs/questions.md"], re.MULTILINE)
    assert len(asked) == 20
    assert all(LINK.search(answer) for _, answer in asked)
    assert f"{SOURCE}blob/main/docs/questions.md" in LINK.findall(PAGES["README.md"])


@pytest.mark.parametrize("page", PAGES)
def test_lines_fit(page: str) -> None:
    lines = MADE.sub("", PAGES[page]).splitlines()
    assert [line for line in lines if len(line) > 120 and line[:1] != "|"] == []  # rows cannot be wrapped


def test_the_docs_are_short() -> None:
    written = [FENCE.sub("", MADE.sub("", text)) for page, text in PAGES.items() if page not in ("README.md", LAB)]
    assert sum(bool(re.search(r"\w", word)) for text in written for word in text.split()) <= MOST_WORDS


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs")])
def test_every_page_is_in_an_index(page: str) -> None:
    index = "docs/methods/README.md" if page.startswith("docs/methods/") else "docs/README.md"
    assert page in ("docs/README.md", index) or f"]({Path(page).name})" in PAGES[index]


def commands(command: object, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command below ``command`` by its full name, with its options."""
    if isinstance(command, typer.core.TyperGroup):
        for word, inner in command.commands.items():
            yield from commands(inner, f"{name} {word}")
    if isinstance(command, typer.core.TyperCommand | typer.core.TyperGroup):
        options = [param for param in command.params if isinstance(param, typer.core.TyperOption)]
        yield name, [flag for option in options for flag in (*option.opts, *option.secondary_opts)]


COMMANDS = dict(commands(typer.main.get_command(app), "edbl"))


def test_there_are_commands() -> None:
    assert {"edbl", "edbl run", "edbl data fetch"} <= COMMANDS.keys()
    assert "--set" in COMMANDS["edbl run"]


def test_options_that_messages_name_exist() -> None:
    assert set(FLAGS.values()) <= {flag for flags in COMMANDS.values() for flag in flags}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_described(name: str) -> None:
    if any(other.startswith(f"{name} ") for other in COMMANDS):  # a group of commands
        assert [flag for flag in COMMANDS[name] if flag not in PAGES["docs/commands.md"]] == []
    else:
        assert missing("docs/commands.md", [name]) == []
        assert [flag for flag in COMMANDS[name] if f"`{flag}`" not in sections("docs/commands.md")[name]] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs")])
def test_what_is_made_of_the_code_is_as_the_code_is(page: str) -> None:
    assert made_of_code.filled(ROOT / page) == PAGES[page], "python -m tests.reference writes it anew"


def sections(page: str) -> dict[str, str]:
    """Return the parts of a page by their title."""
    return {part.partition("\n")[0]: part for part in prose(page).split("\n## ")}


def rows(page: str, section: str) -> dict[str, list[str]]:
    """Return the cells of each table row whose first cell is a key."""
    return {key: [cell.strip() for cell in rest.split("|")] for key, rest in ROW.findall(sections(page)[section])}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_page_with_its_options(method: str) -> None:
    assert f"[{method}]({method}.md)" in PAGES["docs/methods/README.md"]
    found = rows(f"docs/methods/{method}.md", "Options") if "options." in str(list(Recipe.keys(method))) else {}
    assert {f"options.{key}" for key in found} == {key for key in Recipe.keys(method) if "options." in key}
    shown = [command for block in blocks(f"docs/methods/{method}.md") for command in block.commands]
    assert any(f"edbl run {method}" in command for command in shown)


def members(kind: type) -> set[str]:
    """Return the public members of a class, those that its objects are given when they are made included."""
    given = re.findall(r"self\.(\w+)(?:,| =|:)", inspect.getsource(kind))
    own = {*vars(kind), *inspect.get_annotations(kind), *given}
    return {name for name in own if name[0] != "_"}


@pytest.mark.parametrize("kind", made_of_code.CONTRACT)
def test_the_contract_is_described_whole_and_as_it_is(kind: type) -> None:
    section = sections("docs/contract.md")[kind.__name__]
    assert [name for name in sorted(members(kind)) if not re.search(rf"`{name}[`(]", section)] == []
    for name, arguments in re.findall(r"`(\w+)\(([\w, ]*)\)`", section):
        member = getattr(kind, name, None)
        if inspect.isfunction(member) or inspect.ismethod(member):
            expected = [word for word in inspect.signature(member).parameters if word != "self"]
            assert [word for word in arguments.split(", ") if word] == expected, name


def test_every_key_of_a_recipe_is_described() -> None:
    assert Recipe.keys("finetune").keys() == rows("docs/recipes.md", "Keys").keys()


def test_presets_are_described() -> None:
    presets = list(Recipe.keys("rkd")["preset"].kind.__args__)
    assert missing("docs/recipes.md", presets) == []


def test_shipped_recipes_and_backbones_are_described() -> None:
    shipped = [path.stem for path in (Path(edbl.__file__).parent / "recipes").glob("*.toml")]
    assert missing("docs/recipes.md", [*shipped, *BACKBONES]) == []


def test_data_sets_and_their_files_are_described() -> None:
    files = [remote for source in DATASETS.values() for remote in source.files]
    words = [*DATASETS, *(Path(remote.name).name for remote in files), *(remote.md5 for remote in files)]
    assert missing("docs/data.md", words) == []
    for remote in files:
        assert f"{remote.size:,}" in PAGES["docs/data.md"]


def test_metrics_are_described() -> None:
    functions = inspect.getmembers(metrics, inspect.isfunction)
    public = [name for name, function in functions if function.__module__ == metrics.__name__ and name[0] != "_"]
    assert missing("docs/metrics.md", public) == []


def test_record_keys_are_described() -> None:
    own = {field.name for field in fields(Record) if field.name != "confusions"}
    assert rows("docs/file-formats.md", "record.json").keys() == {
        "format",
        "accuracy",
        "average_incremental_accuracy",
        "sha256",
        *own,
    }


@pytest.mark.parametrize("tag", TAGS)
def test_every_ambiguity_is_described(tag: str) -> None:
    page = PAGES["docs/ambiguities.md"]
    assert f"| [{tag}](#{tag.lower()}) |" in page
    assert f"\n## {tag}\n" in page


def test_every_tag_in_the_settings_exists() -> None:
    helps = [leaf.help for method in METHODS for leaf in Recipe.keys(method).values()]
    assert set(re.findall(r"\bA\d+", " ".join(helps))) <= set(TAGS)


def test_the_calls_limits_and_metrics_of_the_server_are_described(tmp_path: Path) -> None:
    page = "docs/serving.md"
    routes = [route for route in api.router.routes if isinstance(route, APIRoute) and route.include_in_schema]
    calls = {f"{method} {route.path}" for route in routes for method in route.methods or ()}
    assert set(re.findall(r"^\| `([A-Z]+ /v1\S+)` \|", PAGES[page], re.MULTILINE)) == calls
    shell = "".join(command for block in blocks(page) for command in block.commands)
    ends = {path.partition("{model}")[2].partition("{")[0] for path in (route.path for route in routes)}
    assert [end for end in sorted(ends) if not re.search(rf"/v1/models/\w+{re.escape(end)}|-X DELETE", shell)] == []
    units = {"MB": 2**20, "KB": 2**10, "": 1}
    found = {}
    for name, (size, _) in rows(page, "Limits").items():
        number, _, unit = size.partition(" ")
        found[name] = float(number) * units[unit]
    assert found == {field.name: getattr(Limits(), field.name) for field in fields(Limits)}
    (tmp_path / "m").mkdir()
    _, desk = application(Shelf(tmp_path / "m", Wanted(tmp_path / "m").model, Limits()), ["x"])
    for name in ("batches", "predictions", "photos_taught", "changes", "slow_clients"):
        desk.metrics.add(name)
    told = {*re.findall(r"# TYPE (\w+)", desk.metrics.text([]))} | {f"edbl_{name}" for name in NOW}
    assert {*re.findall(r"`(edbl_\w+)`", sections(page)["Metrics"])} == told
    statuses = {*re.findall(r"`(\d{3})`", sections(page)["Calls"])}
    source = "".join(path.read_text() for path in (ROOT / "src/edbl/serve").glob("*.py"))
    assert {*re.findall(r"Refused\(\s*(4\d\d|50[37])", source)} <= statuses
