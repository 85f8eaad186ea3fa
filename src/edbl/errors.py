"""The one exception that users are meant to see."""

import difflib
from collections.abc import Iterable


class EdblError(Exception):
    """What was wrong, where, and what to do about it, in one or two lines."""


def unknown(kind: str, name: str, known: Iterable[str], short: Iterable[str] = ()) -> EdblError:
    """Return the error for a name that does not exist, naming the nearest right one; ``short`` are other forms."""
    names = sorted(known)
    near = difflib.get_close_matches(name, [*names, *short], n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}"
    return EdblError(f"unknown {kind} '{name}': {hint}")
