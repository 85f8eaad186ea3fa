"""A real server for tests, in a thread, on a free port of this machine."""

import http.client
import io
import json
import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from edbl.serve.run import Server, Wanted
from tests.photos import digits

NEW = {"backbone": "stand-in"}  # what a model is made with that learns at once, and
TRAINED = {"method": "finetune", "backbone": "mlp"}  # one that learns by updates
M = "/v1/models/m"


@dataclass(frozen=True)
class Answer:
    """What a server has answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Caller:
    """A client of a few lines, which may also send what no client should."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.host, self.port = urlsplit(url).hostname or "", urlsplit(url).port or 0

    def __call__(
        self,
        method: str,
        path: str,
        values: object = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        line = http.client.HTTPConnection(self.host, self.port, timeout=60)
        kind = {} if data is not None or values is None else {"Content-Type": "application/json"}
        body = data if values is None else json.dumps(values).encode()
        try:
            line.request(method, path, body, {**kind, **(headers or {})})
            answer = line.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            line.close()

    def form(
        self,
        path: str,
        files: Sequence[tuple[str, bytes]],
        labels: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        data, kind = multipart(files, labels)
        return self("POST", path, data=data, headers={**kind, **(headers or {})})


def multipart(files: Sequence[tuple[str, bytes]], labels: Sequence[str] = ()) -> tuple[bytes, dict[str, str]]:
    mark = uuid.uuid4().hex
    parts = [f'--{mark}\r\nContent-Disposition: form-data; name="labels"\r\n\r\n{one}\r\n'.encode() for one in labels]
    for name, data in files:
        head = f'--{mark}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
        parts.append(head.encode() + data + b"\r\n")
    return b"".join(parts) + f"--{mark}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={mark}"}


@contextmanager
def served(place: Path, **wanted: Any) -> Iterator[Caller]:
    """Serve a place as long as it lasts."""
    server = Server(Wanted(place, **{"port": 0, "device": "cpu", **wanted}))
    thread = threading.Thread(target=server.run)
    thread.start()
    call = Caller(server.address)
    try:
        for _ in range(200):
            try:
                if call("GET", "/health").status:
                    break
            except OSError:
                time.sleep(0.02)
        yield call
    finally:
        server.end()
        thread.join(60)
        assert not thread.is_alive()


def picture(digit: int, number: int, size: int = 8) -> tuple[str, bytes]:
    """Return the file of a picture of a digit."""
    data = digits()
    grey = (data.images[data.target == digit][number] * 15.9).astype(np.uint8)
    image = Image.fromarray(np.stack([grey] * 3, 2))
    return f"{digit}-{number}.png", png(image if size == 8 else image.resize((size, size)))


def png(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def lesson(counts: Mapping[int, int], start: int = 0) -> tuple[list[tuple[str, bytes]], list[str]]:
    """Return pictures of digits, and their labels."""
    pairs = [(digit, start + k) for digit, number in counts.items() for k in range(number)]
    return [picture(digit, k) for digit, k in pairs], [f"digit {digit}" for digit, _ in pairs]


def taught(call: Caller, counts: dict[int, int] | None = None) -> Any:
    """Teach pictures, and return what was answered."""
    answer = call.form(f"{M}/teach?yes=true", *lesson(counts or {0: 6, 1: 6, 2: 6}))
    assert answer.status == 200, answer.body
    return answer.json


def events(call: Caller) -> list[tuple[str, Any]]:
    """Return what an update came to."""
    text = call("GET", f"{M}/learn/events").body.decode()
    return [(name, json.loads(data)) for name, data in re.findall(r"event: (\w+)\ndata: (.*)\n", text)]
