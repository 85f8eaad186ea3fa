"""Options that several commands have, and how what they are given is read."""

import re
from pathlib import Path
from typing import Annotated

import typer

from edbl.errors import EdblError

Gpus = Annotated[
    int | None,
    typer.Option(help="How many GPUs one run has, each with a process; of --device cpu, how many processes.", min=1),
]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Where data sets lie. Default: $EDBL_DATA, or ~/.cache/edbl.")
]
Device = Annotated[
    str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, mps or xpu; auto takes a GPU (cuda) if any.")
]
Log = Annotated[
    list[str] | None, typer.Option(help="Log to tensorboard, wandb or mlflow; may be given more than once.")
]

FLAGS = {  # settings that messages name, and the options that set them
    "data.name": "--data",
    "data.skip_bad": "--skip-bad",
    "skip_bad": "--skip-bad",
    "stream.protocol": "--protocol",
    "stream.phases": "--phases",
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
