"""Options that several commands have, and how what they are given is read."""

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edbl.errors import EdblError, Unnamed

if TYPE_CHECKING:
    from edbl.fleet.many import Where


def choice(*names: str, help: str, flags: Sequence[str] = ()) -> Any:
    """Return an option that is one of a few names: shown as such, completed by the shell, checked with the rest."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return typer.Option(*flags, metavar="|".join(names), autocompletion=complete, help=help)


DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder of data sets. Default: $EDBL_DATA, or ~/.cache/edbl.")
]
Device = Annotated[
    str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, mps or xpu; auto takes an NVIDIA or AMD GPU, if any.")
]
Gpus = Annotated[
    int | None,
    typer.Option(
        help="GPUs of one run, each with a process; with --device cpu, number of processes. Default: 1.", min=1
    ),
]
Log = Annotated[list[str] | None, choice("tensorboard", "wandb", "mlflow", help="Where to log; may be repeated.")]
Keep = Annotated[
    str | None,
    choice(
        *("features", "photos", "nothing"),
        help="What lda and ridge keep of photos; cannot be changed later. Default: features.",
    ),
]

# Of experiments. A recipe's own default may depend on the data set; `edbl list options` shows it.
Data = Annotated[
    str | None,
    typer.Option(help="Data set (`edbl list data`), folder of images, or FILE.py:NAME. Default: digits."),
]
RecipeFile = Annotated[
    str | None, typer.Option("--recipe", help="Recipe file, or a name of `edbl list recipes`; other options win.")
]
Protocol = Annotated[
    str | None,
    choice(
        *("base0", "base-half", "base-step", "tasks"),
        help="How classes are split into tasks. Default: base0, equal tasks.",
    ),
]
Tasks = Annotated[
    int | None,
    typer.Option(
        *("--tasks", "--phases"),
        help="Number of tasks; for base-half, of those after the first. Default: by the data set.",
    ),
]
Memory = Annotated[
    str | None, typer.Option(help="Exemplars to keep: total=2000, per_class=20 or none. Default: by the data set.")
]
Preset = Annotated[
    str | None,
    choice(
        *("default", "tuned", "paper", "quick"),
        help="Where values come from that you leave out. Default: default.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting of `edbl list options`; may be repeated."),
]
On = Annotated[
    str | None,
    typer.Option("--on", help="Run on a Ray cluster: auto, HOST:PORT, or local to start one here. Default: none."),
]
Mixed = Annotated[
    bool, typer.Option("--mixed", help="With --on, use nodes with other versions or GPUs too; records note it.")
]
KeepGoing = Annotated[bool, typer.Option("--keep-going/--fail-fast", help="If a run fails, make the others, or stop.")]
Code = Annotated[
    list[str] | None,
    typer.Option("--code", metavar="FILE.py", help="A .py file that may run, as a file names it; may be repeated."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the runs with their state, and run none.")]

FLAGS = {  # settings that messages name, and the options that set them
    "cluster.address": "--on",
    "cluster.mixed": "--mixed",
    "data.name": "--data",
    "data.skip_bad": "--skip-bad",
    "skip_bad": "--skip-bad",
    "stream.protocol": "--protocol",
    "stream.tasks": "--tasks",
    "stream.order": "--order",
}
NAMED = re.compile(rf"(?<![\w.`'])({'|'.join(map(re.escape, FLAGS))})(?![\w.`'=])")


def with_flags(message: str) -> str:
    """Return a message with the option after each setting that has one: below the command line nobody knows them."""

    def with_flag(found: re.Match[str]) -> str:
        flag = FLAGS[found[1]]
        return found[1] if flag in message else f"{found[1]} ({flag})"

    return NAMED.sub(with_flag, message)


def settings(given: list[str] | None) -> dict[str, object]:
    """Return what ``--set`` gives, by key as it is written."""
    pairs = [setting(text) for text in given or []]
    if again := [key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number])]:
        raise EdblError(f"--set gives {again[0]} twice")
    return dict(pairs)


def setting(text: str) -> tuple[str, object]:
    """Read ``KEY=VALUE`` as given to ``--set``; a value that is no TOML is taken as text."""
    from edbl.recipe import toml_of

    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise EdblError(f"--set {text}: write KEY=VALUE, such as schedule.epochs=20")
    try:
        parsed = toml_of(value)
    except ValueError:  # also of a number with thousands of digits
        parsed = None
    # A folder may be named like a date, which TOML has a type for and recipes have not.
    known = isinstance(parsed, bool | int | float | str | list)
    return key.strip(), parsed if known else value.strip()


@contextmanager
def trusting(code: list[str] | None) -> Iterator[None]:
    """Let files run that ``--code`` names, and say how to name others that a search file or a study names."""
    from edbl import users

    for name in code or []:
        if not users.is_file(name):
            raise EdblError(f"--code {name} is no .py file")
        users.trust({users.METHOD: name})
    try:
        yield
    except Unnamed as error:
        again = shlex.join(word for name in dict.fromkeys(error.files.values()) for word in ("--code", name))
        raise EdblError(f"{error}: `{again}`") from error


def where(on: str | None, mixed: bool, keep_going: bool = True) -> "Where":
    """Return where runs are made."""
    from edbl.fleet.many import Where

    if mixed and on is None:
        raise EdblError("--mixed is about the nodes of a cluster; give --on, or leave it out")
    if on is not None and not on.strip():
        raise EdblError("--on is empty; give auto, local, or HOST:PORT")
    return Where(on or "", mixed, keep_going)


def order(text: str | None) -> str | tuple[str, ...] | None:
    """Return what ``--order`` gives: a word, a seed, or the lines of a file."""
    if text is None or text in ("natural", "seed") or text.isdecimal():
        return text
    from edbl.recipe import read_lines

    try:
        lines = read_lines(Path(text))
    except (OSError, UnicodeDecodeError) as error:
        raise EdblError(
            f"--order {text} is neither natural, seed, a number, nor a readable file with a class per line"
        ) from error
    return tuple(line.strip() for line in lines if line.strip())
