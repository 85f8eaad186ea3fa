"""The one exception that users are meant to see."""

import difflib
import shlex
from collections.abc import Iterable


class EdblError(Exception):
    """What was wrong, where, and what to do about it, in one or two lines."""


class Diverged(EdblError):
    """Training led nowhere; the same again would too."""


def unknown(kind: str, name: str, known: Iterable[str], short: Iterable[str] = (), listing: str = "") -> EdblError:
    """Return the error for a name that does not exist, naming the nearest right one; ``short`` are other forms.

    If none is near it names all, or says that ``listing``, a command, does.
    """
    names = sorted(known)
    forms = {form.casefold(): form for form in (*short, *names)}
    near = difflib.get_close_matches(name.casefold(), forms, n=1, cutoff=0.5)
    there = f"{listing} names all" if listing else f"known: {', '.join(names)}"
    hint = f"did you mean '{forms[near[0]]}'?" if near else there
    return EdblError(f"unknown {kind} '{name}': {hint}")


def command(*words: object) -> str:
    """Return an `edbl` command as a user can type it, whatever is in the names."""
    return f"`{shlex.join(['edbl', *map(str, words)])}`"
