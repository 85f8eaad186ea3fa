"""What a request brings: photos as multipart, or JSON; within the limits, and nothing of it under a name of its own."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError
from python_multipart.multipart import MultipartParser, parse_options_header

from edbl.serve.limits import MB, Limits
from edbl.serve.refusals import Refused
from edbl.serve.schema import Body
from edbl.text import class_name, shown

CALLS = "part_begin", "header_field", "header_value", "header_end", "part_data", "part_end", "end"  # of its parser

Kind = TypeVar("Kind", bound=Body)


@dataclass(frozen=True)
class File:
    """A file that was sent."""

    name: str  # without folders; it is shown, and never opened
    data: bytes


@dataclass(frozen=True)
class Form:
    """Files, and texts that go with them."""

    files: Sequence[File]
    labels: Sequence[str]


class _Parts:
    """The parts of a form, in memory: nothing that is sent touches the disk, and the limit of all requests holds."""

    def __init__(self, boundary: bytes) -> None:
        self.found: list[tuple[str, str | None, bytes]] = []  # name, file name, content
        self.whole = False
        self._head: dict[bytes, bytes] = {}
        self._field = self._value = b""
        self._data: list[bytes] = []
        told: Any = {f"on_{name}": getattr(self, f"_{name}") for name in CALLS}
        self.parser = MultipartParser(boundary, told)

    def _part_begin(self) -> None:
        self._head, self._data = {}, []

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._head[self._field.lower()] = self._value
        self._field = self._value = b""

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        self._data.append(data[start:end])

    def _part_end(self) -> None:
        kind, told = parse_options_header(self._head.get(b"content-disposition", b""))
        if kind != b"form-data" or b"name" not in told:
            raise ValueError("a part of it has no name")
        file = told.get(b"filename")
        self.found.append((told[b"name"].decode(), None if file is None else file.decode(), b"".join(self._data)))

    def _end(self) -> None:
        self.whole = True


def _parts(kind: str, data: bytes) -> list[tuple[str, str | None, bytes]]:
    """Return name, file name and content of what a form has."""
    boundary = parse_options_header(kind)[1].get(b"boundary")
    if not boundary:
        raise ValueError("it has no boundary")
    parts = _Parts(boundary)
    parts.parser.write(data)
    parts.parser.finalize()
    if not parts.whole:
        raise ValueError("it ends before its last boundary")
    return parts.found


def is_form(request: Request) -> bool:
    """Tell whether a request brings files."""
    return request.headers.get("content-type", "").lower().startswith("multipart/form-data")


async def form(request: Request, limits: Limits, labelled: bool = False) -> Form:
    """Read files, each with a label where it is to be ``labelled``."""
    data = await request.body()
    try:
        parts = _parts(request.headers["content-type"], data)
    except ValueError as error:  # as are those of the parser, and of text that is none
        raise Refused(400, f"the form cannot be read: {shown(str(error))}"[: limits.name]) from error
    if odd := [name for name, *_ in parts if name not in (("files", "labels") if labelled else ("files",))]:
        raise Refused(422, f"the form has a field '{shown(odd[0])[:40]}'; files go into 'files', and no other")
    if any(file is None for name, file, _ in parts if name == "files"):
        raise Refused(422, "'files' is to be files, not text")
    files = [File(file_name(file or ""), content) for name, file, content in parts if name == "files"]
    if len(files) > limits.files:
        raise Refused(422, f"a request has at most {limits.files} photos; send them in several")
    if any(len(one.data) > limits.file_bytes for one in files):
        raise Refused(413, f"a photo has at most {limits.file_bytes // MB} MB")
    try:
        labels = [label(content.decode(), limits) for name, _, content in parts if name == "labels"]
    except UnicodeDecodeError as error:
        raise Refused(400, "a label is no text in UTF-8") from error
    if not files:
        raise Refused(422, "the form has no photo; send them as 'files'")
    if labelled and len(labels) not in (1, len(files)):
        raise Refused(422, f"there are {len(files)} photos and {len(labels)} labels; give one for each, or one for all")
    return Form(files, labels if len(labels) == len(files) else labels * len(files))


async def body(request: Request, kind: type[Kind]) -> Kind:
    """Read JSON."""
    if not request.headers.get("content-type", "").lower().startswith("application/json"):
        raise Refused(415, "send JSON with Content-Type: application/json, or photos as multipart/form-data")
    try:
        values = json.loads(await request.body())
        json.dumps(values, ensure_ascii=False, allow_nan=False).encode()  # what is no text could not be answered
        return kind.model_validate(values)
    except ValidationError as error:
        raise Refused(422, invalid(error.errors(include_input=False, include_url=False))) from error
    except (ValueError, RecursionError) as error:
        raise Refused(400, "the request is no valid JSON") from error


def invalid(errors: Sequence[object]) -> str:
    """Return what is wrong with values, in words; what the client wrote is not repeated."""
    told = []
    for one in errors[:3]:
        assert isinstance(one, dict)
        where = ".".join(str(part) for part in one.get("loc", ()) if part != "body")[:80]
        told.append(f"{shown(where) or 'the request'}: {one.get('msg', 'is wrong')}")
    return "; ".join(told)


def file_name(name: str) -> str:
    """Return what a file is called, without folders and within bounds."""
    plain = PureWindowsPath(PurePosixPath(name).name).name
    return shown(plain)[:100] or "photo"


def label(text: object, limits: Limits) -> str:
    """Return the name of a class."""
    if not isinstance(text, str):
        raise Refused(422, "a label is text")
    name = class_name(text)
    if not name.strip() or len(name) > limits.name:
        raise Refused(422, f"the name of a class has 1 to {limits.name} characters")
    return name
