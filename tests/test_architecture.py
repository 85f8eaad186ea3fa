"""The shape of the package: data flows one way, there is one training loop, and nothing grows without end."""

import ast
import importlib
import inspect
import re
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import edbl
from edbl.methods import methods
from edbl.methods.base import Method
from edbl.methods.edbl import EDBL

ROOT = Path(edbl.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
DESIGN = ROOT.parents[1] / "docs" / "design.md"

# What a part, a file or folder of the package, imports of it beside itself and `errors`. Nothing flows back.
# `docs/design.md` has the same tables.
LAYERS = {
    "errors": [],
    "ending": [],
    "seeds": [],
    "text": [],
    "group": [],
    "losses": [],
    "metrics": [],
    "config": [],
    "rule": [],
    "store": ["config"],
    "scratch": ["store"],
    "users": ["store"],
    "pulse": ["config", "store"],
    "schedule": ["config"],
    "data": ["ending", "seeds", "store", "text", "users"],
    "nets": ["data", "group", "store", "users"],
    "memory": ["data"],
    "methods": ["config", "data", "losses", "memory", "nets", "schedule", "store", "users"],
    "presets": ["config", "rule", "schedule"],
    "training": ["config", "data", "memory", "methods", "nets", "presets", "rule", "schedule", "users"],
    "recipe": ["config", "data", "memory", "methods", "presets", "store", "training", "users"],
    "records": ["config", "metrics", "store"],
    "engine": [
        "data",
        "group",
        "memory",
        "methods",
        "nets",
        "pulse",
        "recipe",
        "records",
        "rule",
        "schedule",
        "seeds",
        "store",
        "training",
        "users",
    ],
    "logs": ["config", "engine", "store"],
    "fleet": [
        "config",
        "data",
        "engine",
        "group",
        "logs",
        "methods",
        "pulse",
        "recipe",
        "records",
        "scratch",
        "store",
        "text",
        "users",
    ],
    "report": ["metrics", "pulse", "recipe", "records", "store", "text", "users"],
    "studies": [
        "app",
        "config",
        "data",
        "engine",
        "fleet",
        "memory",
        "metrics",
        "nets",
        "recipe",
        "records",
        "report",
        "rule",
        "store",
        "text",
        "users",
    ],
    "tuning": ["config", "engine", "fleet", "logs", "methods", "recipe", "records", "report", "store", "text", "users"],
    "bench": ["data", "engine", "fleet", "memory", "methods", "nets", "schedule"],
    "app": [
        "config",
        "data",
        "ending",
        "engine",
        "memory",
        "methods",
        "metrics",
        "nets",
        "presets",
        "recipe",
        "report",
        "schedule",
        "seeds",
        "store",
        "text",
        "training",
        "users",
    ],
    "serve": ["app", "data", "ending", "engine", "metrics", "nets", "scratch", "store", "text"],
    "cli": ["group"],
    "__init__": [],
    "__main__": [],
}
# What it imports only once it is asked for, or for types, so that `edbl --help` waits for nothing.
LATER = {
    "cli": [
        "app",
        "bench",
        "config",
        "data",
        "engine",
        "fleet",
        "logs",
        "methods",
        "presets",
        "recipe",
        "records",
        "report",
        "scratch",
        "serve",
        "store",
        "studies",
        "text",
        "tuning",
        "users",
    ],
    "__init__": ["app", "engine", "recipe", "records", "report", "serve", "users"],
    "__main__": ["cli"],
}
# Files that import another one later, where it is used or for its types, though that one imports them.
BACK = {("nets.backbones", "nets.fused"), ("nets.efficientnet", "nets.backbones"), ("data.kernels", "data.augment")}

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
MOST_LINES = 450  # of a file
MOST_LINES_OF_FUNCTION = 60
DEEPEST = 3  # classes, one below the other
# What is over the limits: two programs for a GPU.
LONG_FUNCTIONS = {"nets/fused.py: backward", "nets/kernels.py: weight_kernel"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module(path): path for path in FILES}


def named(node: ast.AST) -> Iterator[str]:
    """Yield the modules of this package that a statement imports; `edbl` alone, for the version, is none."""
    if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("edbl."):
        place = (node.module or "").removeprefix("edbl").removeprefix(".")
        for alias in node.names:
            inner = f"{place}.{alias.name}".removeprefix(".")
            if inner in MODULES or place:
                yield inner if inner in MODULES else place
    elif isinstance(node, ast.Import):
        yield from (alias.name.removeprefix("edbl.") for alias in node.names if alias.name.startswith("edbl."))


def imported(path: Path, later: bool) -> set[str]:
    """Return the modules that a file imports when it is loaded, or ``later``: within functions, or for types."""
    found: dict[bool, set[str]] = {False: set(), True: set()}

    def walk(node: ast.AST, inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            deeper = inside or types or isinstance(child, FUNCTION | ast.Lambda)
            found[deeper] |= set(named(child))
            walk(child, deeper)

    walk(ast.parse(path.read_text()), inside=False)
    return found[later]


def parts(modules: set[str]) -> set[str]:
    return {name.split(".")[0] for name in modules}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_follow_the_line(path: Path) -> None:
    own = part(path)
    assert parts(imported(path, later=False)) <= {*LAYERS[own], own, "errors"}
    assert parts(imported(path, later=True)) <= {*LAYERS[own], *LATER.get(own, []), own, "errors"}


def test_every_part_has_its_place_and_imports_all_that_it_may() -> None:
    assert {part(path) for path in FILES} == LAYERS.keys()
    used: dict[str, set[str]] = {own: set() for own in LAYERS}
    for path in FILES:
        used[part(path)] |= parts(imported(path, later=False) | imported(path, later=True))
    for own, allowed in LAYERS.items():
        assert {*allowed, *LATER.get(own, [])} == used[own] - {own, "errors"}, own


def test_no_part_imports_one_that_imports_it() -> None:
    assert not LAYERS["errors"]
    allowed = {own: {*LAYERS[own], *LATER.get(own, [])} for own in LAYERS}
    TopologicalSorter(allowed).prepare()  # raises if there is a cycle


def test_no_file_imports_one_that_imports_it() -> None:
    at_once = {(name, other) for name, path in MODULES.items() for other in imported(path, later=False)}
    later = {(name, other) for name, path in MODULES.items() for other in imported(path, later=True)}
    files: TopologicalSorter[str] = TopologicalSorter()
    for name, other in at_once | (later - BACK):
        files.add(name, other)
    files.prepare()
    assert later >= BACK
    assert not BACK & at_once


def test_the_design_has_the_same_tables() -> None:
    section = DESIGN.read_text().partition("## What may import what")[2].partition("\n## ")[0]
    at_once = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]*) \|$", section, re.MULTILINE)
    assert at_once == [(own, ", ".join(LAYERS[own]) or "-") for own in LAYERS if own[0] != "_"]
    later = re.findall(r"^\| `(\w+)` \| ([^|]*) \|$", section, re.MULTILINE)
    assert later == [(own, ", ".join(LATER[own])) for own in LATER]


def test_the_design_names_files_that_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)`", DESIGN.read_text())
    assert [name for name in named if not (ROOT / name).is_file() and not (DESIGN.parents[1] / name).is_file()] == []
    assert "engine/checkpoint.py" in named


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != "kernels"], ids=name_of)
def test_a_file_can_be_read_at_one_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, FUNCTION)]
    long = [one.name for one in functions if (one.end_lineno or 0) - one.lineno >= MOST_LINES_OF_FUNCTION]
    assert {f"{name_of(path)}: {name}" for name in long} <= LONG_FUNCTIONS


def chain(kind: type) -> int:
    """Return how many classes of this package stand below each other, down to this one."""
    return 1 + max((chain(base) for base in kind.__bases__ if base.__module__.startswith("edbl.")), default=0)


@pytest.mark.parametrize("name", [name for name in MODULES if name.split(".")[-1] not in ("kernels", "__main__")])
def test_what_a_class_does_is_found_in_few_places(name: str) -> None:
    loaded = importlib.import_module(f"edbl.{name}".removesuffix(".__init__"))
    own = [kind for _, kind in inspect.getmembers(loaded, inspect.isclass) if kind.__module__ == loaded.__name__]
    assert {kind.__name__ for kind in own if chain(kind) > DEEPEST} == set()


def texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts in an expression, but those of a command to type, which has options."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value
        elif not (isinstance(child, ast.Call) and ast.unparse(child.func) == "command"):
            yield from texts(child)


@pytest.mark.parametrize("path", [path for path in FILES if part(path) != "cli"], ids=name_of)
def test_messages_below_the_command_line_name_no_options(path: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    errors = [call for call in calls if ast.unparse(call.func) in ("EdblError", "Diverged", "unknown")]
    found = [text for error in errors for text in texts(error) if re.search(r"(?<![\w-])--[a-z]", text)]
    assert not found


SHARED = {"base", "options"}  # of the methods, for all of them
METHODS = [p for p in FILES if part(p) == "methods" and p.stem not in {*SHARED, "__init__"}]


@pytest.mark.parametrize("path", METHODS, ids=lambda p: p.name)
def test_a_method_imports_another_one_to_be_a_variant_of_it_and_for_nothing_else(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    borrowed = {
        alias.name
        for node in imports
        for alias in node.names
        if (node.module or "").startswith("edbl.methods") and (node.module or "").split(".")[-1] not in SHARED
    }
    bases = {ast.unparse(base) for node in tree.body if isinstance(node, ast.ClassDef) for base in node.bases}
    assert borrowed <= bases


def steps_below_method(kind: type) -> int:
    return 0 if kind is Method else 1 + max(steps_below_method(k) for k in kind.__bases__ if issubclass(k, Method))


@pytest.mark.parametrize("name", sorted(methods()))
def test_what_a_method_does_is_found_within_two_steps(name: str) -> None:
    assert steps_below_method(methods()[name]) <= 2
    assert chain(methods()[name].Config) <= DEEPEST


def test_edbl_is_one_class_on_one_page() -> None:
    assert EDBL.__bases__ == (Method,)
    assert len((ROOT / "methods" / "edbl.py").read_text().splitlines()) <= 120


# Lines that say something of methods that others may port: without blanks, comments and docstrings.
SHORT = {"acil": 30, "der_pp": 50, "ewc": 45, "foster": 85, "ranpac": 30}


@pytest.mark.parametrize("name", SHORT)
def test_a_method_is_short(name: str) -> None:
    text = (ROOT / "methods" / f"{name}.py").read_text()
    without = re.sub(r'^ *""".*?"""$', "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in without.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(lines) <= SHORT[name]


EQUATIONS = {1, 2, 3, 6, 7, *range(11, 17)}  # of the paper: what is computed, or taken apart
ALGORITHM = ("losses.py", "data/mixing.py", "data/resampling.py", "methods/edbl.py")


def test_every_equation_of_the_algorithm_is_named_where_it_is_computed() -> None:
    named = set()
    for name in ALGORITHM:
        for found in re.findall(r"Eq\. (\d+(?:(?:, | and | to )\d+)*)", (ROOT / name).read_text()):
            first, *_, last = numbers = [int(number) for number in re.findall(r"\d+", f"{found} {found}")]
            named |= set(range(first, last + 1)) if " to " in found else set(numbers)
    assert named >= EQUATIONS


def test_there_is_one_training_loop() -> None:
    loops = [p.name for p in FILES if ".backward(" in p.read_text()]
    assert loops == ["step.py", "fit.py"]  # and the one that it is measured against


@pytest.mark.parametrize("path", [p for p in FILES if part(p) in ("methods", "losses")], ids=lambda p: p.name)
def test_methods_and_losses_never_wait_for_the_device(path: Path) -> None:
    assert not re.search(r"\.(item|cpu|tolist|numpy|nonzero)\(", path.read_text())


@pytest.mark.parametrize("path", [p for p in FILES if part(p) in ("methods", "losses")], ids=lambda p: p.name)
def test_methods_and_losses_know_nothing_of_how_a_step_is_computed(path: Path) -> None:
    assert not re.search(r"autocast|bfloat16|bf16|fused|cuda|triton|Stream\(", path.read_text())


# Published weights come as a pickle. They are read in one place, as tensors only and once their checksum is right.
UNPICKLES = {"nets/pretrained.py": "torch.load(io.BytesIO(data), weights_only=True)"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_is_unpickled(path: Path) -> None:
    text = path.read_text()
    allowed = UNPICKLES.get(path.relative_to(ROOT).as_posix())
    if allowed:
        before, call, after = text.partition(allowed)
        function = before.rpartition("\ndef ")[2]
        assert function.count("if found != published.sha256:\n        raise") == 1
        assert call
        text = before + after
    assert not re.search(r"import pickle|(?<!safetensors\.)torch\.load|allow_pickle=True", text)


@pytest.mark.parametrize("path", [p for p in FILES if part(p) == "app"], ids=lambda p: p.name)
def test_messages_name_settings_not_flags(path: Path) -> None:
    """A Python caller has no flags; commands that can be pasted are made by `command`, and have theirs apart."""
    texts = [n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)]
    flags = [text for text in texts if isinstance(text, str) and re.search(r"(^|[ (])--[a-z]", text)]
    assert [text for text in flags if text not in ("--discard", "--yes") and "`pip install" not in text] == []


def test_every_dependency_is_imported() -> None:
    wanted = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[<>=!~\[ ;]", line)[0].lower() for line in wanted}
    modules = {"scikit-learn": "sklearn", "pillow": "PIL"}
    told = "\n".join(path.read_text() for path in FILES)
    assert {n for n in names if not re.search(rf"^\s*(import|from) {modules.get(n, n)}\b", told, re.MULTILINE)} == set()
