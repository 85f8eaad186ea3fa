"""What is answered where a request cannot be done: a status, and one or two sentences without a path of the server."""

import errno
import re
from collections.abc import Mapping

from edbl.errors import EdblError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PLACE = re.compile(r"(?<![\w:/.])/[^\s'\"`,;:()]+/[^\s'\"`,;:()]+")  # what looks like a path of a disk
MOST = 600  # characters


class Refused(Exception):
    """A request that cannot be done, and why."""

    def __init__(self, status: int, why: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(why)
        self.status, self.why, self.headers = status, why, dict(headers or {})


def refusal(error: EdblError | OSError, places: Mapping[str, str]) -> Refused:
    """Return what is answered to an error; ``places`` are folders of the server, and what they are called."""
    reason: BaseException | None = error
    while reason is not None and not isinstance(reason, OSError):
        reason = reason.__cause__
    if isinstance(reason, OSError) and reason.errno in FULL:
        return Refused(507, "the disk of the server is full; nothing was changed")
    if isinstance(error, OSError):
        return Refused(503, "the server cannot read or write the files of the model; its log says more")
    return Refused(409, without_places(str(error), places))


def without_places(text: str, places: Mapping[str, str]) -> str:
    """Return a message without the paths of folders of the server."""
    for place in sorted(places, key=len, reverse=True):
        text = text.replace(place, places[place])
    return PLACE.sub("(a path)", text)[:MOST]
