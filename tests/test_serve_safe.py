"""What the server refuses: who may not ask, what is too much, too slow, odd, or leads elsewhere."""

import asyncio
import io
import os
import random
import re
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from edbl.errors import EdblError
from edbl.serve import guard
from edbl.serve.limits import MB, Limits
from edbl.serve.metrics import Metrics
from edbl.serve.run import Server, Wanted, _token
from tests.serving import NEW, TRAINED, Caller, M, lesson, multipart, picture, png, served, taught

TOKEN = "0123456789abcdef0123"
JSON = {"Content-Type": "application/json"}

pytestmark = pytest.mark.usefixtures("stand_in")


def raw(call: Caller, data: bytes, seconds: float = 20) -> bytes:
    """Send bytes as they are, and return all that is answered."""
    with socket.create_connection((call.host, call.port), timeout=seconds) as line:
        try:
            line.sendall(data)
            return b"".join(iter(lambda: line.recv(65536), b""))
        except ConnectionError:
            return b""


def status(answer: bytes) -> int:
    found = re.match(rb"HTTP/1\.1 (\d{3})", answer)
    return int(found[1]) if found else 0


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (["localhost"], 200),
        (["127.0.0.1:8000"], 200),
        (["[::1]:80"], 200),
        (["Pets.Example:443"], 200),
        (["evil.example"], 403),
        (["localhost.evil.example"], 403),
        ([""], 403),
        ([], 400),
        (["localhost", "evil.example"], 400),
    ],
)
def test_only_own_names_are_answered(tmp_path: Path, hosts: list[str], expected: int) -> None:
    with served(tmp_path / "m", hosts=["pets.example"], **NEW) as call:
        head = "".join(f"Host: {one}\r\n" for one in hosts)
        for path in ("/health", "/v1/models", "/"):
            assert status(raw(call, f"GET {path} HTTP/1.1\r\n{head}Connection: close\r\n\r\n".encode())) == expected


def test_pages_of_others_change_nothing(call: Caller) -> None:
    taught(call)
    own = f"{call.host}:{call.port}"
    for headers, expected in (
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": f"http://{call.host}:1"}, 403),
        ({"Origin": f"ftp://{own}"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
    ):
        for k, wanted in enumerate(("predict", "rename")):
            if wanted == "predict":
                answer = call.form(f"{M}/predict", [picture(0, 20)], headers=headers)
            else:
                answer = call("POST", f"{M}/rename", {"old": f"digit {k}", "new": f"digit {k}"}, headers=headers)
            assert answer.status in ((expected,) if expected == 403 else (200, 409)), headers
        assert call("GET", f"{M}/", headers=headers).status == 200
    assert call("GET", f"{M}/").json["version"] == 1
    # What a form of a page can send without asking first is no JSON.
    plain = {"Content-Type": "text/plain"}
    assert call("POST", f"{M}/undo", data=b"{}", headers=plain).status == 415


def test_every_answer_has_its_headers(call: Caller) -> None:
    taught(call)
    for path in ("/", "/health", "/metrics", "/docs", "/openapi.json", f"{M}/", "/nothing", f"{M}/photos/x"):
        headers = call("GET", path).headers
        assert {name.lower(): headers[name.lower()] for name in guard.HEADERS} == {
            name.lower(): "no-cache" if name == "Cache-Control" and path == "/" else value
            for name, value in guard.HEADERS.items()
        }, path
    scripts = re.search("script-src ([^;]*)", guard.CSP)
    assert scripts
    assert scripts[1] == "'self'"
    assert "sandbox" in call("GET", f"{M}/report").headers["content-security-policy"]
    refused = call("GET", "/health", headers={"Host": "evil.example"})
    assert refused.headers["x-content-type-options"] == "nosniff"
    page = call("GET", "/").body.decode()
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=|https?://", page)


def test_too_much_is_refused_before_it_is_read(tmp_path: Path) -> None:
    small = Limits(body_bytes=MB, text_bytes=1000, file_bytes=20_000, files=3, all_bytes=2 * MB)
    with served(tmp_path / "m", limits=small, **NEW) as call:
        post = f"POST {M}/predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: "
        form, text = "multipart/form-data; boundary=x", "application/json"
        for kind, length in ((form, 2 * MB), (text, 1001), (form, 10**18)):
            told = raw(call, f"{post}{kind}\r\nContent-Length: {length}\r\n\r\n".encode())
            assert status(told) == 413
            assert b"connection: close" in told.lower()
        chunk = b"800\r\n" + b" " * 0x800 + b"\r\n0\r\n\r\n"
        assert status(raw(call, f"{post}{text}\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunk)) == 413
        assert call.form(f"{M}/predict", [picture(0, k) for k in range(3)]).status == 200
        assert call.form(f"{M}/predict", [picture(0, k) for k in range(4)]).status == 422
        large = call.form(f"{M}/predict", [("a.png", bytes(20_001))])
        assert (large.status, "a photo has at most" in large.json["error"]) == (413, True)
        assert call.form(f"{M}/teach", [picture(0, 0)], ["x" * 201]).status in (400, 422)
        waiting = [socket.create_connection((call.host, call.port)) for _ in range(2)]
        for line in waiting:
            line.sendall(f"{post}{form}\r\nContent-Length: {MB}\r\n\r\n".encode())
        end = time.monotonic() + 10
        while (busy := call.form(f"{M}/predict", [picture(0, 1)])).status != 503 and time.monotonic() < end:
            time.sleep(0.05)
        assert (busy.status, busy.headers["retry-after"]) == (503, "1")
        for line in waiting:
            line.close()


def bomb(width: int, height: int) -> bytes:
    """Return a PNG file whose head promises many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def test_files_that_are_no_photos_are_named(call: Caller) -> None:
    frames = [Image.new("L", (8, 8), k) for k in range(3)]
    moving = io.BytesIO()
    frames[0].save(moving, "GIF", save_all=True, append_images=frames[1:])
    files = [
        ("large.png", bomb(50_000, 50_000)),
        ("6k.png", bomb(6_000, 6_000)),
        ("cut.png", bomb(400, 400)),
        ("empty.png", b""),
        ("text.jpg", b"<script>"),
        ("odd.heic", b"\0\0\0\x18ftypheic"),
        ("line.png", png(Image.new("RGB", (20_000, 1), "white"))),
        ("moving.gif", moving.getvalue()),
        ("fine.png", picture(0, 1)[1]),
    ]
    started = time.monotonic()
    told = call.form(f"{M}/predict", files).json["predictions"]
    assert time.monotonic() - started < 30
    errors = {one["file"]: one.get("error") for one in told}
    assert [name for name, why in errors.items() if not why] == ["line.png", "moving.gif", "fine.png"]
    assert "million pixels" in errors["large.png"]
    assert "million pixels" in errors["6k.png"]
    lesson_ = call.form(f"{M}/teach?yes=true", files, ["x"]).json
    assert (lesson_["learnt"], len(lesson_["errors"])) == (3, 6)


QUICK = Limits(head_seconds=0.3, idle_seconds=0.3, body_seconds=0.5, least_rate=10_000)


@pytest.mark.parametrize(
    ("first", "drip"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"X: y\r\n"),
        (b"POST /v1/models/m/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
         b"Content-Length: 100000\r\n\r\n--x\r\n", b"a"),
    ],
    ids=["silent", "slow head", "slow body"],
)  # fmt: skip
def test_slow_clients_are_cut_off(tmp_path: Path, first: bytes, drip: bytes) -> None:
    with served(tmp_path / "m", limits=QUICK, **NEW) as call:
        started = time.monotonic()
        with socket.create_connection((call.host, call.port), timeout=0.05) as line:
            line.sendall(first)
            answer = None
            while time.monotonic() - started < 30 and answer is None:
                try:
                    line.sendall(drip)
                    answer = line.recv(1000)
                except TimeoutError:
                    continue
                except ConnectionError:
                    answer = b""
        assert answer is not None
        assert status(answer) in (0, 400, 408)
        assert call("GET", "/health").status == 200


def test_who_takes_nothing_any_more_is_cut_off() -> None:
    cut: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def never(_: Any) -> None:
        await asyncio.sleep(60)

    metrics = Metrics()
    made = guard.Guard(app, QUICK, metrics, ["x"])
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"x")]}
    asyncio.run(made({**scope, "state": {"cut": lambda: cut.append(True)}}, never, never))  # type: ignore[arg-type]
    assert cut == [True]
    assert "edbl_slow_clients_total 1" in metrics.text([])


def test_there_are_only_so_many_connections_and_requests(tmp_path: Path) -> None:
    with served(tmp_path / "m", limits=Limits(connections=3, requests=2), **NEW) as call:
        lines = [socket.create_connection((call.host, call.port), timeout=20) for _ in range(3)]
        time.sleep(0.2)
        with socket.create_connection((call.host, call.port), timeout=20) as one_more:
            assert raw_line(one_more) == b""
        head = f"POST {M}/undo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2"
        for line in lines[:2]:
            line.sendall(f"{head}\r\n\r\n".encode())
        time.sleep(0.3)
        lines[2].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = lines[2].recv(1000)
        assert status(answer) == 503
        assert b"retry-after: 1" in answer
        for line in lines:
            line.close()


def raw_line(line: socket.socket) -> bytes:
    """Ask on a line that is open, and return what comes."""
    try:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return line.recv(1000)
    except ConnectionError:
        return b""


def test_tokens(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(TOKEN + "\n")
    with served(tmp_path / "m", token_file=file, **NEW) as call:
        for given, expected in (
            (None, 401),
            (f"Bearer {TOKEN}x", 401),
            (f"Basic {TOKEN}", 401),
            ("Bearer", 401),
            (f"Bearer {TOKEN}", 200),
            (f"bearer {TOKEN}", 200),
        ):
            headers = {"Authorization": given} if given else {}
            assert call("GET", "/v1/models", headers=headers).status == expected, given
            assert call("GET", "/metrics", headers=headers).status == expected
            assert call.form(f"{M}/predict", [picture(0, 0)], headers=headers).status == expected
        for path in ("/", "/health", "/openapi.json"):  # which say nothing of the model
            assert call("GET", path).status == 200
        assert call("GET", "/v1/models").headers["www-authenticate"] == "Bearer"


def test_token_files(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for text, mode, why in (
        (TOKEN, 0o644, "others may read"),
        (TOKEN, 0o640, "chmod 600"),
        ("short", 0o600, "must have 16 letters"),
        ("with a space in the midst of it", 0o600, "no space"),
        ("ä" * 20, 0o600, "must have"),
        ("x" * 5000, 0o600, "cannot read the token"),
    ):
        file.unlink(missing_ok=True)
        file.touch(mode)
        file.write_text(text)
        file.chmod(mode)
        with pytest.raises(EdblError, match=why):
            _token(file, "127.0.0.1")
    with pytest.raises(EdblError, match="cannot read the token"):
        _token(tmp_path / "none", "127.0.0.1")


def test_a_token_is_demanded_for_addresses_that_others_reach() -> None:
    assert [_token(None, host) for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3")] == [None] * 4
    made = [_token(None, host) for host in ("0.0.0.0", "::", "192.168.1.2", "pets.example", "")]
    assert all(one and len(one) >= 32 for one in made)
    assert len({*made}) == len(made)


def test_names_lead_nowhere_else(call: Caller, tmp_path: Path) -> None:
    taught(call)
    (tmp_path / "secret.txt").write_text("secret")
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.iterdir())
    for path in (
        "/page/../api.py",
        "/page/%2e%2e%2fapi.py",
        "/page/..%5capi.py",
        "/../secret.txt",
        "//etc/passwd",
        "/v1/models/..%2f..%2fsecret.txt/",
        "/v1/models/../secret.txt/",
        "/v1/models/%2fetc%2fpasswd/",
        f"{M}/photos/..%2f..%2f..%2fsecret.txt",
        f"{M}/photos/" + "g" * 32,
        f"{M}/photos/" + "0" * 33,
        f"{M}/photos/{'0' * 32}.png",
    ):
        answer = raw(call, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert status(answer) in (404, 422), path
        assert b"secret" not in answer.partition(b"\r\n\r\n")[2], path
    odd = ["../../x.png", "/etc/passwd", "C:\\x\\y.png", "<b>.png", "a\x1b[31m.png", "x" * 500, "..", "con.png"]
    told = call.form(f"{M}/predict", [(name, picture(0, 20)[1]) for name in odd]).json["predictions"]
    assert [one["file"] for one in told[:4]] == ["x.png", "passwd", "y.png", "<b>.png"]
    assert all(len(one["file"]) <= 100 and one["file"].isprintable() for one in told)
    label = "../../../x<script>/y"
    assert call.form(f"{M}/teach?yes=true", [picture(3, 0)], [label]).json["learnt"] == 1
    assert label in [one["name"] for one in call("GET", f"{M}/classes").json["classes"]]
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.iterdir()) == before
    files = [path for path in (tmp_path / "m").rglob("*") if path.is_file()]
    assert all(re.fullmatch(r"[\w.-]+", path.name) for path in files)
    for wrong in (
        call("POST", f"{M}/rename", {"old": "nobody", "new": "x"}),
        call.form(f"{M}/forget", [("x.png", b"nothing")]),
    ):
        assert str(tmp_path) not in wrong.body.decode()


def test_links_in_a_model_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.json").symlink_to("/etc/passwd")
    with pytest.raises(EdblError, match="link"):
        Server(Wanted(tmp_path / "m", port=0, device="cpu"))


# Requests that nobody should send.

ODD = [
    *(b"\r\n", b"\0", b"%00", b"../", b'"', b"{}", b"[", b"1e999", b"-1", b"\xff\xfe", b"--", b"NaN", b"9" * 400),
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n", b"Expect: 100-continue\r\n", b"\xf0\x9f\x98\x80"),
]


def requests() -> list[bytes]:
    """Return requests of all kinds that are as they should be."""

    def made(method: str, path: str, kind: str, body: bytes) -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{kind}"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    files, labels = lesson({0: 2}, 30)
    found = []
    for path, texts in (("teach?yes=true", labels), ("predict?top=3&unknown=0.1", []), ("forget", [])):
        data, kind = multipart(files, texts)
        found.append(made("POST", f"{M}/{path}", f"Content-Type: {kind['Content-Type']}\r\n", data))
    for path, text in (
        ("/rename", '{"old": "digit 0", "new": "c"}'),
        ("/merge", '{"classes": ["digit 0", "digit 1"]}'),
        ("/forget", '{"classes": ["digit 2"]}'),
        ("/undo", '{"to": 1, "of": 2}'),
        ("/teach", '{"photos": [{"id": "%s", "label": "x"}], "yes": true}' % ("0" * 32)),
        ("/relabel", '{"photos": [{"id": "%s", "label": "x"}]}' % ("0" * 32)),
        ("/join", '{"model": "x"}'),
        ("/learn", "{}"),
        ("/prune", "{}"),
        ("", '{"name": "m", "keep": "photos"}'),
    ):
        path = f"{M}{path}" if path else "/v1/models"
        found.append(made("POST", path, "Content-Type: application/json\r\n", text.encode()))
    paths = ("/next?top=3&unknown=0.1", "/photos/" + "0" * 32, "/history", "/mistakes", "/suspicious", "/report")
    return found + [made("GET", f"{M}{path}", "", b"") for path in paths]


def changed(data: bytes, draw: random.Random) -> bytes:
    """Return bytes with a few changes, half of them in the head."""
    found = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 5, 20])):
        head = max(found.find(b"\r\n\r\n"), 1)
        at = draw.randrange(len(found) if draw.random() < 0.5 else min(head, len(found)))
        kind = draw.random()
        if kind < 0.4:
            found[at] = draw.randrange(256)
        elif kind < 0.6:
            del found[at : at + draw.randrange(1, 20)]
        elif kind < 0.8:
            found[at:at] = draw.randbytes(draw.randrange(1, 30))
        else:
            found[at:at] = draw.choice(ODD)
        found = found or bytearray(b"\n")
    return bytes(found)


@pytest.mark.parametrize("number", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_malformed_requests_are_refused_and_never_an_error_of_the_program(tmp_path: Path, number: int) -> None:
    draw, told, wrong = random.Random(number), Counter[int](), []
    quick = Limits(body_seconds=0.1, head_seconds=0.1, idle_seconds=0.1)
    with served(tmp_path / "m", limits=quick, **NEW) as call:
        taught(call)
        kinds = requests()
        for _ in range(number):
            data = changed(draw.choice(kinds), draw)
            answer = raw(call, data)
            told[status(answer)] += 1
            if status(answer) >= 500:
                wrong.append((data, answer))
        assert call("GET", "/health").status == 200
        assert call("GET", f"{M}/").status == 200
    assert wrong == []
    assert len(told) > 3, told


@pytest.mark.parametrize("examples", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_the_schema_holds(tmp_path: Path, examples: int) -> None:
    """Run schemathesis: what the OpenAPI schema allows is taken, what it does not is refused, and nothing is a 500."""
    # A form is text alone, so no label is of another type; and no schema can say that there are as many as photos.
    config = tmp_path / "schemathesis.toml"
    config.write_text(
        '[parameters]\nmodel = "m"\n[[operations]]\ninclude-operation-id = "teach"\n'
        "[operations.checks]\nnegative_data_rejection.enabled = false\npositive_data_acceptance.enabled = false\n"
    )
    phases = "coverage,fuzzing" if examples > 2 else "fuzzing"
    with served(tmp_path / "m", **TRAINED) as call:
        command = [Path(sys.executable).with_name("schemathesis"), "--config-file", config, "run"]
        command += [f"{call.url}/openapi.json", "--max-examples", str(examples), "--phases", phases, "--seed", "1"]
        command += ["--continue-on-failure", "--request-timeout", "60", "--suppress-health-check", "all"]
        ended = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "NO_COLOR": "1"}
        )
        assert call("GET", "/health").status == 200
    assert ended.returncode == 0, re.findall("ST20.*|curl .{0,300}|`.error.*|Invalid comp.*", ended.stdout)
