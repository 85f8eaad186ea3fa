"""A campaign against files from strangers and moments to be stopped at: `make campaign`, or a slice of it in a test.

Each case is a number. A case copies a run, forges or damages one of its files, gives commands, and looks at how they
end: exit code 0 or 2, at most a few lines, no traceback, no signal, no hang, no control character, and nothing outside
of the run changed. The same seed gives the same cases, and what is done already is not done again.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

LONGEST = 60.0  # seconds of a command that reads, or trains a few epochs
ODD: Sequence[Any] = (
    None, True, -1, 0, 1e308, 10**400, 2**63, "", "\x1b[31m", "../../x", "m.py", [], {}, [[]], [None] * 9, {"a": {}},
)  # fmt: skip


def edbl(*arguments: object, stop: float = 0.0) -> tuple[int, str]:
    """Give a command; interrupt it after a while, if it shall be; return its exit code and all that it printed."""
    command = [sys.executable, "-m", "edbl", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        if stop:
            time.sleep(stop)
            process.send_signal(signal.SIGINT)
        return _ended(process)
    finally:
        process.kill()


def _ended(process: "subprocess.Popen[bytes]") -> tuple[int, str]:
    try:
        out, _ = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return -1, "hang"
    return process.returncode, out.decode(errors="replace")


def walk(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the places of all values in JSON."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in walk(item, (*path, key)))]


def odd_value(draw: random.Random, data: bytes) -> bytes:
    """Put something else in the place of one value of JSON; its checksum is left out."""
    stored = json.loads(data)
    if "sha256" in stored and "values" not in stored:
        del stored["sha256"]
    place = draw.choice([one for one in walk(stored) if one])
    holder = stored
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = draw.choice(ODD)
    return json.dumps(stored).encode()


def odd_line(draw: random.Random, data: bytes) -> bytes:
    """Change a value of a recipe."""
    lines = data.decode().splitlines()
    number = draw.choice([k for k, line in enumerate(lines) if "=" in line])
    value = draw.choice(
        ["1e308", "-1", '"\\u001b[31m"', "[" * 2000, "[]", '"m.py"', "9" * 5000, "true", ".".join("a" * 900)]
    )
    lines[number] = f"{lines[number].split('=')[0]}= {value}"
    return "\n".join(lines).encode()


def flipped(draw: random.Random, data: bytes) -> bytes:
    """Flip a bit, or cut the end off."""
    if draw.random() < 0.3:
        return data[: draw.randrange(len(data))]
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def odd_tensor(draw: random.Random, data: bytes) -> bytes:
    """Change shape or type of a tensor in the header of safetensors."""
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    name = draw.choice([key for key in header if key != "__metadata__"])
    header[name][draw.choice(["shape", "dtype"])] = draw.choice([[1], [0], [10**9], "F16", "I64", []])
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


CHANGES: dict[str, list[Callable[[random.Random, bytes], bytes]]] = {
    ".json": [odd_value, flipped],
    ".toml": [odd_line, flipped],
    ".npz": [flipped],
    ".safetensors": [flipped, odd_tensor],
}


def forge(draw: random.Random, folder: Path) -> str:
    """Do something to a file of a run, and return what."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in CHANGES)
    file, how = draw.choice(files), draw.random()
    if how < 0.1:
        file.unlink()
        if draw.random() < 0.5:
            os.mkfifo(file)
            return f"pipe {file.name}"
        file.symlink_to(folder.parent / "outside" / "task-list.json")
        return f"link {file.name}"
    change = draw.choice(CHANGES[file.suffix])
    file.write_bytes(change(draw, file.read_bytes()))
    if change is not flipped and file.parent.name == "checkpoints":
        sign(file.with_suffix(".json"))
    return f"{change.__name__} {file.name}"


def sign(path: Path) -> None:
    """Make the checksums of an entry right again, as a stranger would."""
    stored = json.loads(path.read_bytes())
    tensors = path.with_suffix(".safetensors")
    if isinstance(stored.get("tensors"), str) and stored["tensors"]:
        stored["tensors"] = hashlib.sha256(tensors.read_bytes()).hexdigest()
    said = json.dumps({"tensors": stored.get("tensors"), "values": stored.get("values")}, sort_keys=True)
    stored["sha256"] = hashlib.sha256(said.encode()).hexdigest()
    path.write_text(json.dumps(stored))


def case(number: int, seed: int, base: Path, place: Path) -> dict[str, Any]:
    """Run one case, and return what was done and what is wrong with how it ended."""
    draw = random.Random(f"{seed} {number}")
    shutil.rmtree(place, ignore_errors=True)
    outside = place / "outside"
    outside.mkdir(parents=True)
    (outside / "task-list.json").write_text("precious")
    folder = shutil.copytree(base, place / "run")
    if draw.random() < 0.2:
        stop = draw.uniform(0.3, 5)
        what = f"Ctrl-C after {stop:.2f} s"
        code, out = edbl("resume", folder, stop=stop)
        wrong = faults(code, out, (0, 130))
    else:
        what, command = forge(draw, folder), draw.choice(["resume", "report"])
        code, out = edbl(command, folder)
        what, wrong = f"{command}: {what}", faults(code, out, (0, 2))
    if (outside / "task-list.json").read_text() != "precious" or len(list(outside.iterdir())) != 1:
        wrong.append("a file outside")
    return {"case": number, "what": what, "code": code, "wrong": wrong, "out": out[-2000:] if wrong else ""}


def faults(code: int, out: str, codes: Sequence[int]) -> list[str]:
    """Return what is wrong with how a command ended."""
    found = ["hang"] if out == "hang" else [] if code in codes else [f"exit code {code}"]
    found += ["traceback"] if "Traceback" in out else []
    return found + (["control character"] if any((c < " " and c != "\n") or "\x7f" <= c <= "\x9f" for c in out) else [])


def prepare(folder: Path) -> None:
    """Make the run that all cases begin with: stopped in its second task."""
    script = (
        "import sys; from edbl import Recipe, run; from tests.test_resume import KillIn\n"
        "given = {'stream.phases': 2, 'net.backbone': 'mlp', 'checkpoint_seconds': 0}\n"
        "run(Recipe.build('rkd', 'digits', preset='quick', **given), sys.argv[1], progress=KillIn(1, 'train', 1))"
    )
    subprocess.run([sys.executable, "-c", script, str(folder)], check=False, stderr=subprocess.DEVNULL)


def main() -> None:
    """Run cases that are not done, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/campaign"))
    given = parser.parse_args()
    base, log = given.out / "base", given.out / f"seed-{given.seed}.jsonl"
    if not (base / "record.json").exists():
        prepare(base)
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    with log.open("a") as file:
        for number in range(len(done), given.cases):
            done.append(case(number, given.seed, base, given.out / "case"))
            file.write(json.dumps(done[-1]) + "\n")
            file.flush()
    kinds = Counter((one["what"].split(" after ")[0], fault) for one in done for fault in one["wrong"] or ["well"])
    for (what, fault), count in sorted(kinds.items()):
        print(f"{count:6}  {fault:20}  {what}")
    sys.exit(any(one["wrong"] for one in done))


if __name__ == "__main__":
    main()
