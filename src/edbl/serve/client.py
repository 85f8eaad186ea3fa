"""A served model from Python, with the verbs of `edbl.open`; the standard library is all it needs."""

import io
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

from edbl.ending import all_of
from edbl.errors import EdblError

# A file, the bytes of one, or an image of Pillow.
Given = str | PathLike[str] | bytes | Any

PORTION = 16  # photos of a request
PORTION_BYTES = 32 * 2**20
TRIES = 3  # of a request that could not be sent, or that was too much at a time
SECONDS = 300.0


@dataclass(frozen=True)
class Said:
    """What a model says of a photo."""

    file: str
    id: str | None  # by which it can be taught without being sent again
    best: list[tuple[str, float]]  # class and probability
    unknown: bool = False
    bad: str = ""  # why it could not be read


@dataclass(frozen=True)
class Lesson:
    """What became of photos that were taught."""

    learnt: int = 0
    staged: int = 0  # for an update of a trained model
    known: int = 0
    errors: list[tuple[str, str]] = field(default_factory=list)  # file, and why it was not learnt
    suspicious: list[dict[str, Any]] = field(default_factory=list)  # nothing of a portion with these was learnt


def connect(
    url: str,
    token: str | None = None,
    model: str | None = None,
    make: bool = False,
    keep: str | None = None,
    method: str | None = None,
) -> "Connected":
    """Return the model that a server serves; of several, the one named ``model``.

    With ``make`` the server makes that one first; ``keep`` and ``method`` are as for `edbl learn`.
    """
    return Connected(url, token, model, {"keep": keep, "method": method} if make else None)


class Connected:
    """A model on a server."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        model: str | None = None,
        new: Mapping[str, str | None] | None = None,
        seconds: float = SECONDS,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise EdblError(f"'{url}' is no address of a server; give one such as http://127.0.0.1:8000")
        self.url, self._parts, self._token, self._seconds = url, parts, token, seconds
        self._line: HTTPConnection | None = None
        self.name = ""
        try:
            self.name = self._found(model, new)
        except BaseException:
            self.close()
            raise

    def _found(self, model: str | None, new: Mapping[str, str | None] | None) -> str:
        """Return the name of the model that is meant, made first where ``new`` says how."""
        if new is not None:
            return str(self._json("POST", "", {"name": model or "model", **new})["name"])
        there = self.models
        if model is None and len(there) == 1:
            model = there[0]
        if model is None or model not in there:
            what = f"has no model '{model}'" if model else "has several models; name one"
            raise EdblError(f"{self.url} {what}: {', '.join(there[:10]) or 'it has none'}")
        return model

    def __enter__(self) -> Self:
        """Return it, to be closed in the end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        """Return how to connect to it."""
        return f"edbl.connect({self.url!r}, model={self.name!r})"

    @property
    def models(self) -> list[str]:
        """The names of all models of the server."""
        return [one["name"] for one in self._json("GET", "")["models"]]

    @property
    def info(self) -> dict[str, Any]:
        """What the model is."""
        return self._json("GET", "/")

    @property
    def classes(self) -> list[str]:
        """The names of its classes."""
        return [one["name"] for one in self._json("GET", "/classes")["classes"]]

    @property
    def version(self) -> int:
        """The number of the version that it is at."""
        return int(self.info["version"])

    def predict(self, images: Given | Sequence[Given], top: int = 3, unknown: float = 0.05) -> list[Said]:
        """Return the ``top`` classes of images, in order; ``unknown`` is as of `edbl.open`."""
        found = []
        query = urlencode({"top": top, "unknown": unknown})
        for part in _portions(_listed(images)):
            for one in self._form("POST", f"/predict?{query}", part)["predictions"]:
                best = [(likely["name"], likely["probability"]) for likely in one["classes"]]
                found.append(Said(one["file"], one["id"], best, one["unknown"], one.get("error") or ""))
        return found

    def learn(
        self,
        images: Given | Sequence[Given] | Mapping[str, Sequence[Given]],
        labels: str | Sequence[str] | None = None,
        yes: bool = False,
    ) -> Lesson:
        """Learn images: with their labels, one for all or one for each, or a mapping of classes to images.

        With ``yes`` it learns images too that look mislabelled. A trained model stages them, and `update` learns them.
        """
        if isinstance(images, Mapping):
            given = [(one, str(name)) for name, some in images.items() for one in _listed(some)]
        else:
            every = _listed(images)
            names = [labels] * len(every) if isinstance(labels, str) else all_of(labels or [])
            if len(names) != len(every):
                raise EdblError(f"there are {len(every):,} images and {len(names):,} labels; give one for each")
            given = list(zip(every, names, strict=True))
        total, label_of = Lesson(), [name for _, name in given]
        for part in _portions([one for one, _ in given]):
            own, label_of = label_of[: len(part)], label_of[len(part) :]
            total = _added(total, self._form("POST", f"/teach?yes={str(yes).lower()}", part, own))
        return total

    def teach(self, photos: Mapping[str, str], yes: bool = False) -> Lesson:
        """Learn photos that were predicted, by their ids, with the class of each."""
        return self._labelled("/teach", photos, {"yes": yes})

    def relabel(self, photos: Mapping[str, str]) -> Lesson:
        """Give photos, by their ids, another class."""
        return self._labelled("/relabel", photos, {})

    def update(self) -> int:
        """Let a trained model learn what is staged, wait until it has, and return its new version."""
        self._json("POST", "/learn", {})
        news = list(self.events())
        name, values = news[-1] if news else ("", {})
        if name != "done":
            raise EdblError(str(values.get("error", "the server ended before the update did")))
        return int(values["version"])

    def events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what an update comes to: progress, and at last done or error."""
        line = self._open()
        try:
            line.request("GET", self._path("/learn/events"), headers=self._headers())
            answer = line.getresponse()
            if answer.status != 200:
                raise _error(answer.status, answer.read())
            name = ""
            while text := answer.readline().decode():
                if text.startswith("event: "):
                    name = text[7:].strip()
                elif text.startswith("data: "):
                    yield name, json.loads(text[6:])
        except (OSError, HTTPException) as error:
            raise _unreachable(self.url, error) from error
        finally:
            line.close()

    def discard(self) -> None:
        """Drop what is staged, and an unfinished update."""
        self._json("DELETE", "/learn")

    def rename(self, old: str, new: str) -> None:
        """Give a class another name."""
        self._json("POST", "/rename", {"old": old, "new": new})

    def merge(self, classes: Sequence[str], into: str | None = None) -> None:
        """Make one class of several."""
        self._json("POST", "/merge", {"classes": list(classes), "into": into})

    def join(self, model: str) -> None:
        """Take in what another model of the server has learnt."""
        self._json("POST", "/join", {"model": model})

    def forget(self, *classes: str, photos: Sequence[Given] = ()) -> None:
        """Forget classes, or photos, given as files."""
        if bool(classes) == bool(photos):
            raise EdblError("name classes to forget, or photos; one of both")
        if classes:
            self._json("POST", "/forget", {"classes": list(classes)})
        else:
            self._form("POST", "/forget", [_file(one) for one in _listed(photos)])

    def undo(self, to: int | None = None) -> None:
        """Go back to the version before the last change, or to any that is kept."""
        self._json("POST", "/undo", {"to": to, "of": self.version})  # so that none is taken back twice

    def prune(self) -> float:
        """Remove all versions but the model as it is, and return how many MB they had."""
        return float(self._json("POST", "/prune", {})["freed_mb"])

    def history(self) -> list[dict[str, Any]]:
        """Return the versions."""
        return list(self._json("GET", "/history")["history"])

    def mistakes(self) -> list[dict[str, Any]]:
        """Return photos that the model would get wrong if it had not learnt them."""
        return list(self._json("GET", "/mistakes")["mistakes"])

    def suspicious(self) -> list[dict[str, Any]]:
        """Return photos whose class may be wrong."""
        return list(self._json("GET", "/suspicious")["suspicious"])

    def next(self) -> list[dict[str, Any]]:
        """Return photos that were predicted and not taught, the least sure first."""
        return list(self._json("GET", "/next")["photos"])

    def export(self, place: str | PathLike[str]) -> None:
        """Write the model as an ONNX file."""
        from edbl.store import write_output

        write_output(Path(place), self._send("GET", "/export", None, {}))

    def report(self, place: str | PathLike[str]) -> None:
        """Write the page of the model as an HTML file."""
        from edbl.store import write_output

        write_output(Path(place), self._send("GET", "/report", None, {}))

    def photo(self, id: str) -> bytes:
        """Return a small JPEG of a photo, where the server has one."""
        return self._send("GET", f"/photos/{quote(id, safe='')}", None, {})

    def _labelled(self, path: str, photos: Mapping[str, str], more: dict[str, Any]) -> Lesson:
        pairs = [{"id": id, "label": label} for id, label in photos.items()]
        return _added(Lesson(), self._json("POST", path, {"photos": pairs, **more}))

    def _path(self, path: str) -> str:
        """Return the path of a call of the model or, where it is empty, of all models."""
        return f"{self._parts.path.rstrip('/')}/v1/models" + (f"/{quote(self.name, safe='')}{path}" if path else "")

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def _json(self, method: str, path: str, values: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if values is None else json.dumps(values).encode()
        found: dict[str, Any] = json.loads(
            self._send(method, path, data, {"Content-Type": "application/json"} if data else {})
        )
        return found

    def _form(
        self, method: str, path: str, files: Sequence[tuple[str, bytes]], labels: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Send files as multipart."""
        mark = uuid.uuid4().hex
        body = io.BytesIO()
        for label in labels:
            body.write(f'--{mark}\r\nContent-Disposition: form-data; name="labels"\r\n\r\n{label}\r\n'.encode())
        for name, data in files:
            plain = "".join(c if c.isprintable() and c not in '"\\' else "_" for c in name)
            head = f'--{mark}\r\nContent-Disposition: form-data; name="files"; filename="{plain}"\r\n'
            body.write(f"{head}Content-Type: application/octet-stream\r\n\r\n".encode())
            body.write(data)
            body.write(b"\r\n")
        body.write(f"--{mark}--\r\n".encode())
        kind = {"Content-Type": f"multipart/form-data; boundary={mark}"}
        found: dict[str, Any] = json.loads(self._send(method, path, body.getvalue(), kind))
        return found

    def _send(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> bytes:
        """Send a request on the line that is open, and try again where that is known to do no harm."""
        for left in range(TRIES - 1, -1, -1):
            fresh, answer = self._line is None, None
            line = self._line = self._line or self._open()
            try:
                line.request(method, self._path(path), data, {**self._headers(), **headers})
                answer = line.getresponse()
                body = answer.read()
            except (OSError, HTTPException) as error:
                self.close()
                idle = isinstance(error, ConnectionError) and answer is None  # the server has closed the line before
                if fresh or not left or not idle:
                    raise _unreachable(self.url, error) from error
                continue
            if answer.status == 503 and left and answer.headers.get("Retry-After"):
                time.sleep(1)
                continue
            if answer.status >= 400:
                raise _error(answer.status, body)
            return body
        raise AssertionError

    def _open(self) -> HTTPConnection:
        kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
        return kind(self._parts.hostname or "", self._parts.port, timeout=self._seconds)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._line is not None:
            self._line.close()
            self._line = None


def _added(total: Lesson, more: dict[str, Any]) -> Lesson:
    return Lesson(
        total.learnt + more["learnt"],
        total.staged + more["staged"],
        total.known + more["known"],
        total.errors + [(one["file"], one["error"]) for one in more["errors"]],
        total.suspicious + more["suspicious"],
    )


def _listed(images: Any) -> list[Any]:
    single = isinstance(images, str | bytes | PathLike) or hasattr(images, "save")
    return [images] if single else all_of(images)


def _file(given: Any) -> tuple[str, bytes]:
    """Return the name and the bytes of an image."""
    if isinstance(given, bytes):
        return "photo", given
    if isinstance(given, str | PathLike):
        path = Path(given)
        try:
            if path.exists() and not path.is_file():  # a pipe would be waited for
                raise EdblError(f"cannot read {path}: it is not a regular file")
            return path.name, path.read_bytes()
        except OSError as error:
            raise EdblError(f"cannot read {path}: {error.strerror}") from error
    if hasattr(given, "save"):
        buffer = io.BytesIO()
        given.save(buffer, "PNG")
        return "photo.png", buffer.getvalue()
    raise EdblError(f"an image is a file, the bytes of one or an image of Pillow, not {type(given).__name__}")


def _portions(images: Sequence[Any]) -> Iterator[list[tuple[str, bytes]]]:
    """Yield files, as many at a time as a request takes."""
    part: list[tuple[str, bytes]] = []
    for one in map(_file, images):
        if part and (len(part) == PORTION or sum(len(data) for _, data in [*part, one]) > PORTION_BYTES):
            yield part
            part = []
        part.append(one)
    if part:
        yield part


def _error(status: int, body: bytes) -> EdblError:
    try:
        return EdblError(str(json.loads(body)["error"]))
    except (ValueError, KeyError, TypeError):
        return EdblError(f"the server answered with status {status}")


def _unreachable(url: str, error: Exception) -> EdblError:
    return EdblError(f"cannot reach {url}: {getattr(error, 'strerror', None) or error or type(error).__name__}")
