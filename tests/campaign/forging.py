"""What a stranger, or a bad disk, may do to files: each change takes bytes, or a path, and a source of chance."""

import hashlib
import io
import json
import lzma
import math
import os
import random
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from edbl.store import LOCK

Draw = random.Random
Change = Callable[[Draw, bytes], bytes]

ESCAPE = "\x1b]0;owned\x07\x1b[31m\x9b31m\r"
OUTSIDE = "outside"  # what is somebody else's, beside the folder that is forged
ODD: Sequence[Any] = (
    None, True, False, -1, 0, 1, 2, 7, 10**6, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, 1e-320, math.nan, math.inf, "",
    " ", "\x00", ESCAPE, "\ud800", "../../outside", "/etc/passwd", "m.py", "m.py:make", "x" * 100_000, [], {}, [[]],
    [None] * 9, [0] * 1000, {"a": {}}, {"": 0}, "NaN", "1e999", "given:x", "timm:x", "total=1e99", "per_class=0",
)  # fmt: skip
KINDS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "I8": 1, "BOOL": 1, "F8_E4M3": 1}
EVENTS = ".tfevents"  # in the names of TensorBoard's files
UNREADABLE = (ValueError, LookupError, TypeError, ArithmeticError, RuntimeError, EOFError)
HUGE = 5 * 2**30  # bytes of a file with nothing in it


def nested(draw: Draw) -> Any:
    """Return lists in lists."""
    found: Any = 0
    for _ in range(draw.choice([5, 29, 31, 200, 900])):
        found = [found] if draw.random() < 0.8 else {"a": found}
    return found


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where all values in JSON are."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def odd_value(draw: Draw, data: bytes) -> bytes:
    """Change one to three values of JSON, or what is there."""
    stored = json.loads(data)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        *above, key = draw.choice([place for place in places(stored) if place])
        holder = stored
        for step in above:
            holder = holder[step]
        what = draw.random()
        if what < 0.1:
            del holder[key]
        elif what < 0.2 and isinstance(holder, list):
            holder += [holder[key]] * draw.choice([1, 3, 1000])
        elif what < 0.25 and isinstance(holder, dict):
            holder[draw.choice([ESCAPE, "more", "", "__class__"])] = holder[key]
        elif what < 0.4 and isinstance(holder[key], int | float):
            holder[key] += draw.choice([-1, 1, 0.5, 1000])
        elif what < 0.5 and isinstance(holder[key], list):
            draw.shuffle(holder[key])
        else:
            holder[key] = nested(draw) if draw.random() < 0.1 else draw.choice(ODD)
    return json.dumps(stored).encode()


def odd_json(draw: Draw, data: bytes) -> bytes:
    """Put JSON of another form in the place of some."""
    return draw.choice([b"[" * 100_000, b'{"a":' * 50_000, b"{}", b"[]", b"null", b"9" * 10_000, b'{"format": 1}', b""])


LINES: Sequence[str] = (
    "1e308", "-1", "0", "nan", "inf", '"\\u001b[31m\\u009b"', "[" * 2000, "[]", '"m.py"', '"/etc/passwd"', "9" * 5000,
    "true", ".".join("a" * 900), "1979-05-27", "{a = 1}", '["a", 1]', '""', '"total=1e9"', "2147483648", "1000000",
)  # fmt: skip


def odd_line(draw: Draw, data: bytes) -> bytes:
    """Change a value of a recipe, its key, or the table that it is in."""
    lines = data.decode().splitlines()
    number = draw.choice([k for k, line in enumerate(lines) if "=" in line])
    key, _, value = lines[number].partition(" = ")
    what = draw.random()
    if what < 0.7:
        lines[number] = f"{key} = {draw.choice(LINES)}"
    elif what < 0.8:
        odd = draw.choice(["\\u001b[2J", "", "a" * 10_000])
        lines[number] = f'"{odd}" = {value}'
    elif what < 0.9:
        del lines[number]
    else:
        lines.insert(draw.randrange(len(lines) + 1), draw.choice(["[a]", "[[a]]", f"[{'a.' * 500}a]", lines[number]]))
    return "\n".join(lines).encode()


def damaged(draw: Draw, data: bytes) -> bytes:
    """Flip bits, cut the end off, or put bytes in: a bad disk, and no forgery."""
    if not data or draw.random() < 0.2:
        return data[: draw.randrange(len(data) + 1)]
    at = draw.randrange(len(data))
    if draw.random() < 0.2:
        return data[:at] + draw.randbytes(draw.choice([1, 8, 1000])) + data[at + draw.choice([0, 8]) :]
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def odd_tensor(draw: Draw, data: bytes) -> bytes:
    """Change name, shape, type or numbers of a tensor, so that the file is whole."""
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    parts = {name: [item["dtype"], item["shape"], body[slice(*item["data_offsets"])]] for name, item in header.items()}
    name = draw.choice(sorted(parts))
    what, (kind, shape, content) = draw.random(), parts[name]
    if what < 0.15:
        del parts[name]
    elif what < 0.3:
        parts[draw.choice([f"{name}.more", name[:-1], "net.x", "memory.x", "optimiser.0.momentum", ESCAPE])] = parts[
            name
        ]
    elif what < 0.6:
        kind = draw.choice([kind, *KINDS])
        shape = draw.choice([[], [0], [1], [*shape, 1], shape[1:], shape[::-1], [n + 1 for n in shape], [1000, 3]])
        size = math.prod(shape) * KINDS.get(kind, 1)
        content = draw.choice([bytes(size), draw.randbytes(size)])
        parts[name] = [kind, shape, content]
    else:
        number = draw.choice(
            [b"\xff" * 8, struct.pack("<f", 1e38) * 2, struct.pack("<q", 2**62), struct.pack("<q", -5)]
        )
        parts[name][2] = (number * (len(content) // 8 + 1))[: len(content)]
    described, at = {}, 0
    for name, (kind, shape, content) in parts.items():
        described[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(content)]}
        at += len(content)
    text = json.dumps(described).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(content for _, _, content in parts.values())


def odd_header(draw: Draw, data: bytes) -> bytes:
    """Let the header of tensors say something that its file does not hold."""
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    name = draw.choice(sorted(header))
    header[name][draw.choice(["shape", "dtype", "data_offsets"])] = draw.choice(
        [[10**18], [0, 2**63], "F4", None, [-1]]
    )
    text = json.dumps(header).encode()
    length = draw.choice([len(text), 2**63, 0, len(data) * 2])
    return struct.pack("<Q", length) + text + data[8 + size :]


def npy(draw: Draw, data: bytes = b"") -> bytes:
    """Return an array of odd shape, type or numbers, or a header without one."""
    if draw.random() < 0.4:
        shape = draw.choice(
            ["(100000, 100000)", f"({10**21},)", "(-1,)", "(2,2)", "()", "(0,)", "x", "(" * 500, "(1e9,)"]
        )
        kind = draw.choice(["<i8", "|O", "<f8", "|V1000000000", ">i2", "<U9", "[('a','<i8')]", "<M8[s]"])
        text = f"{{'descr':'{kind}','fortran_order':False,'shape':{shape}}}".encode()
        return (
            b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text + b"\n" + bytes(draw.choice([0, 32, 10**6]))
        )
    shape_of = draw.choice([(2, 2), (4, 4), (10, 10), (0,), (), (3,), (2, 2, 2), (1000, 1000), (355, 4)])
    made = np.full(shape_of, draw.choice([0, -1, 1, 2**62, 3e38, math.nan]))
    buffer = io.BytesIO()
    np.save(buffer, made.astype(draw.choice([made.dtype, np.dtype("<f4"), np.dtype("<U3"), np.dtype(bool)])))
    return buffer.getvalue()


def odd_member(draw: Draw, data: bytes) -> bytes:
    """Change, remove or blow up an array of a zip file."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        arrays = {info.filename: file.read(info) for info in file.infolist()}
    name = draw.choice(sorted(arrays))
    what = draw.random()
    if what < 0.15:
        del arrays[name]
    elif what < 0.3:
        arrays[name] += bytes(draw.choice([1, 10**8]))
    elif what < 0.4:
        arrays[f"../../{OUTSIDE}/{name}"] = arrays[name]
    else:
        arrays[name] = npy(draw)
    buffer = io.BytesIO()
    with zipfile.ZipFile(
        buffer, "w", draw.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_LZMA])
    ) as file:
        for key, content in arrays.items():
            file.writestr(key, content)
    return buffer.getvalue()


def odd_zip(draw: Draw, data: bytes) -> bytes:
    """Say of all members of a zip file that they are encrypted, or compressed in another way."""
    changed, at = bytearray(data), draw.choice([6, 8])
    for mark, more in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        start = changed.find(mark)
        while start >= 0:
            changed[start + at + more : start + at + more + 2] = struct.pack("<H", draw.choice([1, 8, 9, 14, 93, 99]))
            start = changed.find(mark, start + 1)
    return bytes(changed)


def odd_image(draw: Draw, data: bytes) -> bytes:
    """Say of a PNG that it is of another size or kind."""
    sizes = [0, 1, 16, 50_000, 2**31 - 1]
    described = struct.pack(">II", draw.choice(sizes), draw.choice(sizes)) + bytes(
        [draw.choice([1, 8, 16, 3]), draw.choice([0, 2, 3, 6, 9]), 0, 0, draw.choice([0, 1])]
    )
    chunk = b"IHDR" + described
    return data[:12] + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[33:]


def odd_row(draw: Draw, data: bytes) -> bytes:
    """Change a line of JSON, or which lines there are."""
    rows = data.splitlines() or [b"{}"]
    number, what = draw.randrange(len(rows)), draw.random()
    if what < 0.6:
        rows[number] = odd_value(draw, rows[number])
    elif what < 0.8:
        rows[number] = odd_json(draw, rows[number])
    elif what < 0.9:
        del rows[number]
    else:
        rows += draw.choice([[rows[number]] * 3, rows[number:], [rows[number]] * 100_001])
    return b"\n".join(rows) + draw.choice([b"", b"\n"])


def odd_event(draw: Draw, data: bytes) -> bytes:
    """Say of the first event of a log that it is of another length."""
    return struct.pack("<Q", draw.choice([0, 1, 2**20, 2**31, 2**63])) + data[8:]


CHANGES: dict[str, Sequence[Change]] = {
    ".jsonl": [odd_row, odd_row, odd_row, damaged],
    EVENTS: [odd_event, damaged, damaged],
    ".json": [odd_value, odd_value, odd_value, odd_json, damaged],
    ".toml": [odd_line, odd_line, odd_line, damaged],
    ".npz": [odd_member, odd_member, odd_zip, damaged],
    ".npy": [npy, damaged],
    ".safetensors": [odd_tensor, odd_tensor, odd_header, damaged],
    ".png": [odd_image, damaged],
}


def sign(path: Path) -> None:
    """Make the checksums of an entry, or of a record, right again, as a stranger would."""
    tensors = path.with_suffix(".safetensors")
    with suppress(ValueError, OSError, AttributeError, RecursionError, TypeError):
        stored = json.loads(path.read_bytes())
        if "values" not in stored:
            said: Any = {key: value for key, value in stored.items() if key != "sha256"}
        else:
            if isinstance(stored.get("tensors"), str) and stored["tensors"] and tensors.is_file():
                stored["tensors"] = hashlib.sha256(tensors.read_bytes()).hexdigest()
            said = {"tensors": stored.get("tensors"), "values": stored.get("values")}
        stored["sha256"] = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
        path.write_text(json.dumps(stored))


def replaced(draw: Draw, path: Path, outside: Path) -> str:
    """Put something in the place of a file that is none, and return what."""
    what = draw.choice(["pipe", "link", "link", "folder", "huge", "empty", "device", "nothing", "loop"])
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "link":
        ends = [outside / "task-list.json", outside / path.name, outside, Path("/dev/zero"), Path("/dev/stdin")]
        path.symlink_to(draw.choice(ends))
    elif what == "loop":
        path.symlink_to(path.name)
    elif what == "folder":
        path.mkdir()
    elif what == "huge":
        path.touch()
        os.truncate(path, HUGE)
    elif what == "empty":
        path.touch()
    elif what == "device":
        with suppress(OSError):
            os.mknod(path, 0o20666, os.makedev(1, 5))
    return what


def _form(path: Path) -> str:
    """Return the key of what can be done to a file."""
    return EVENTS if EVENTS in path.name else path.suffix


def forge(draw: Draw, folder: Path, outside: Path, only: str = "*") -> tuple[str, bool]:
    """Do something to a folder, and return what, and whether its checksums are right all the same."""
    files = sorted(path for path in folder.rglob(only) if _form(path) in CHANGES and path.is_file())
    if not files:
        return "nothing more", True
    inner = sorted(path for path in folder.rglob("*") if path.is_dir())
    file, how = draw.choice(files), draw.random()
    kind = _form(file)[1:]
    if how < 0.04 and inner:
        place = draw.choice(inner)
        end = outside / f"{place.name} of theirs"
        shutil.rmtree(end, ignore_errors=True)
        shutil.move(place, end)
        place.symlink_to(end)
        return "folder linked", False
    if how < 0.06:
        link = folder / draw.choice([LOCK, ".x.tmp", "views", "z"])
        link.unlink(missing_ok=True)
        link.symlink_to(outside)
        return "link added", False
    if how < 0.16:
        return f"{kind}: {replaced(draw, file, outside)}", False
    change = draw.choice(CHANGES[_form(file)])
    content = file.read_bytes()
    try:
        file.write_bytes(change(draw, content))
    except (*UNREADABLE, struct.error, zipfile.BadZipFile, zlib.error, lzma.LZMAError):
        file.write_bytes(damaged(draw, content))  # it was forged before
    if change is not damaged:
        sign(file.with_suffix(".json"))
    return f"{kind}: {change.__name__}", change is not damaged
