"""What a request brings: photos as multipart, or JSON; within the limits, and nothing of it under a name of its own."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import TypeVar

from fastapi import Request
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from edbl.serve.limits import MB, Limits
from edbl.serve.refusals import Refused
from edbl.serve.schema import Body
from edbl.text import class_name, shown

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


class _InMemory(MultiPartParser):
    """What a form brings never touches the disk; the bound of all requests covers it."""

    spool_max_size = 0  # which is without end


def is_form(request: Request) -> bool:
    """Tell whether a request brings files."""
    return request.headers.get("content-type", "").lower().startswith("multipart/form-data")


async def form(request: Request, limits: Limits, labelled: bool = False) -> Form:
    """Read files, each with a label where it is to be ``labelled``."""
    most = {"max_files": limits.files, "max_fields": limits.files, "max_part_size": limits.name * 4}
    try:
        found = await _InMemory(request.headers, request.stream(), **most).parse()
    except (MultiPartException, UnicodeDecodeError, ValueError, KeyError) as error:
        why = getattr(error, "message", "") or "it is no multipart form"
        raise Refused(400, f"the request cannot be read: {why}"[: limits.name]) from error
    try:
        if odd := [name for name in found if name not in (("files", "labels") if labelled else ("files",))]:
            raise Refused(422, f"the form has a field '{shown(odd[0])[:40]}'; files go into 'files', and no other")
        files = []
        for one in found.getlist("files"):
            if not isinstance(one, UploadFile):
                raise Refused(422, "'files' is to be files, not text")
            if (one.size or 0) > limits.file_bytes:
                raise Refused(413, f"a photo has at most {limits.file_bytes // MB} MB")
            files.append(File(file_name(one.filename or ""), await one.read()))
        labels = [label(one, limits) for one in found.getlist("labels")]
    finally:
        await found.close()
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
