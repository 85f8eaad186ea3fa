"""The one exception that users are meant to see."""

import difflib
import shlex
from collections.abc import Iterable, Mapping

FEW = 10  # names that are all named


class EdblError(Exception):
    """What was wrong, where, and what to do about it, in one or two lines."""


class Crashed(EdblError):
    """Code of a user crashed in another process: where, and its frames."""


class Diverged(EdblError):
    """Training led nowhere; the same again would too."""


class Busy(EdblError):
    """Another process has it now; later it may be free."""


class Unnamed(EdblError):
    """A file from somewhere names files with code, which would run if they were read, and nobody else has named them.

    ``files`` are their names by key.
    """

    def __init__(self, where: object, files: Mapping[str, str]) -> None:
        told = " and ".join(f"'{name}'" for name in dict.fromkeys(files.values()))
        super().__init__(f"'{where}' names code, {told}, which would run; name it too, if you trust it")
        self.files = files


def happened(error: Exception, place: str) -> None:
    """Let an error know where it happened; outer places are told later, and come first."""
    error.__dict__.setdefault("places", []).insert(0, place)


def unknown(
    kind: str, name: str, known: Iterable[str], short: Iterable[str] = (), listing: str = "", most: int = 0
) -> EdblError:
    """Return the error for a name that does not exist: the nearest right one, and all where there are at most ten.

    ``short`` are other forms of names. Of many, ``listing`` is a command that names all; without it ``most`` are named.
    """
    names = sorted(known)
    forms = {form.casefold(): form for form in (*short, *names)}
    near = difflib.get_close_matches(name.casefold(), forms, n=1, cutoff=0.6)
    more = f" and {len(names) - most:,} more" if 0 < most < len(names) else ""
    hints = [f"did you mean '{forms[near[0]]}'?"] if near else []
    if listing and len(names) > FEW:
        hints += [] if near else [f"{listing} names all"]
    elif not near or len(names) <= FEW:
        hints.append(f"known: {', '.join(names[: most or None])}{more}")
    return EdblError(f"unknown {kind} '{name}': {' '.join(hints)}")


def command(*words: object) -> str:
    """Return an `edbl` command as a user can type it, whatever is in the names."""
    return f"`{shlex.join(['edbl', *map(str, words)])}`"
