"""`edbl serve` beside a plain FastAPI endpoint around the same ONNX file: the table of benchmarks/README.md.

    edbl export pets pets.onnx && python benchmarks/serve.py pets.onnx --side 1280 --memory

Both servers are up the whole time and take turns, round by round, so that whatever else the machine does meets both.
The load comes from a process of its own: so many clients, each of which sends a photo when it has the answer to the
last. Photos are drawn here, of all the same size. Processor time is that of the server alone.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import urlopen

import numpy as np
from PIL import Image

PLAIN = 8791  # the port of the plain endpoint
PHOTOS = 16
MANY = 200  # clients, none of whom may be lost
MARK = "photo-photo-photo"


def plain(file: str) -> None:
    """Be the endpoint that one writes in a quarter of an hour."""
    import onnxruntime
    import uvicorn
    from fastapi import FastAPI, UploadFile

    app, session = FastAPI(), onnxruntime.InferenceSession(file)
    about = session.get_modelmeta().custom_metadata_map
    names, size = json.loads(about["classes"]), json.loads(about["input"])["height"]
    least = json.loads(about["unknown"])["at_most"]

    @app.post("/predict")
    def predict(files: UploadFile) -> Any:
        image = Image.open(files.file).convert("RGB")
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        box = (left, top, left + side, top + side)
        x = np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box))[None]
        scores, sure = session.run([about["readout"], "sureness"], {"images": x})
        best = [{"name": names[k], "probability": float(scores[0][k])} for k in scores[0].argsort()[::-1][:3]]
        return {"classes": best, "unknown": least is not None and bool(sure[0] <= least)}

    uvicorn.run(app, host="127.0.0.1", port=PLAIN, log_level="error")


def draw(side: int, folder: Path) -> None:
    """Write JPEG files of this width, which have detail as photos have."""
    rng = np.random.default_rng(0)
    for number in range(PHOTOS):
        size, image = 4, np.zeros((side * 3 // 4, side, 3))
        while size < side:
            noise = Image.fromarray(rng.integers(0, 255, (size * 3 // 4, size, 3), np.uint8))
            image += np.asarray(noise.resize((side, side * 3 // 4), Image.Resampling.BICUBIC)) / size**0.5
            size *= 4
        Image.fromarray((image * 255 / image.max()).astype(np.uint8)).save(folder / f"{number}.jpg", quality=85)


async def load(port: int, path: str, clients: int, seconds: float, files: Sequence[bytes]) -> dict[str, Any]:
    """Send photos from so many clients, and return how long each answer took, and how many did not come."""
    times: list[float] = []
    lost, end = 0, time.monotonic() + seconds
    requests = []
    for file in files:
        head = f'--{MARK}\r\nContent-Disposition: form-data; name="files"; filename="photo.jpg"\r\n\r\n'.encode()
        body = head + file + f"\r\n--{MARK}--\r\n".encode()
        kind = f"Content-Type: multipart/form-data; boundary={MARK}\r\nContent-Length: {len(body)}"
        requests.append(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n\r\n".encode() + body)

    async def client(number: int) -> None:
        nonlocal lost
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < end:
            started = time.monotonic()
            try:
                writer.write(requests[number % len(requests)])
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
                length = re.search(rb"content-length: (\d+)", head.lower())
                await reader.readexactly(int(length[1]) if length else 0)
                good = head.startswith(b"HTTP/1.1 200")
            except (OSError, EOFError, TimeoutError):
                good = False
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            times.append(time.monotonic() - started)
            lost += not good
            number += clients
        writer.close()

    began = time.monotonic()
    await asyncio.gather(*(client(k) for k in range(clients)))
    return {"times": sorted(times), "lost": lost, "seconds": time.monotonic() - began}


class Server:
    """A server in a process of its own."""

    def __init__(self, name: str, command: Sequence[str], port: int, path: str) -> None:
        self.name, self.port, self.path = name, port, path
        self.process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
        self.rounds: list[dict[str, float]] = []
        address = f"http://127.0.0.1:{port}/openapi.json"
        for _ in range(600):
            try:
                urlopen(address).close()
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit(f"{name} does not start")

    @property
    def processor(self) -> float:
        """The processor time of it so far, in seconds."""
        told = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory(self) -> float:
        """Its resident memory, in MB."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6

    def round(self, clients: int, seconds: float, folder: str) -> dict[str, float]:
        """Let a process of its own send photos, and return what that came to."""
        told = [str(one) for one in (__file__, "--load", self.port, self.path, clients, seconds, folder)]
        before = self.processor
        found = json.loads(subprocess.run([sys.executable, *told], capture_output=True, check=True).stdout)
        times = found["times"]
        return {
            "number": len(times),
            "a second": len(times) / found["seconds"],
            "median ms": 1e3 * median(times),
            "p99 ms": 1e3 * times[int(0.99 * len(times))],
            "lost": found["lost"],
            "processor ms": 1e3 * (self.processor - before) / len(times),
        }


def compare(servers: Sequence[Server], given: argparse.Namespace) -> None:
    """Let the servers take turns, and print what they came to."""
    for server in servers:
        server.round(given.clients, 2, given.folder)
    for _ in range(given.rounds):
        for server in servers:
            server.rounds.append(server.round(given.clients, given.seconds, given.folder))
            print(server.name, {key: round(value, 1) for key, value in server.rounds[-1].items()}, flush=True)
    ours, theirs = ([one["a second"] for one in server.rounds] for server in servers)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    print(f"predictions/s beside the plain endpoint: {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    tails = [one["p99 ms"] / one["median ms"] for one in servers[0].rounds]
    print(f"p99 over median: {median(tails):.2f} ({min(tails):.2f} to {max(tails):.2f})")
    many = servers[0].round(MANY, given.seconds, given.folder)
    print(f"{MANY} clients: {many['lost']:.0f} of {many['number']:,} lost, p99 {many['p99 ms'] / 1e3:.1f} s")


def grow(server: Server, given: argparse.Namespace) -> None:
    """Print how memory grows over requests."""
    number = 0
    while number < 10_000:
        number += int(server.round(given.clients, 10, given.folder)["number"])
        print(f"after {number:,} more: {server.memory:.0f} MB", flush=True)


def main() -> None:
    """Compare, and print."""
    if sys.argv[1] == "--plain":
        return plain(sys.argv[2])
    if sys.argv[1] == "--load":
        port, path, clients, seconds, folder = sys.argv[2:]
        files = [path.read_bytes() for path in sorted(Path(folder).iterdir())]
        told = asyncio.run(load(int(port), path, int(clients), float(seconds), files))
        return print(json.dumps(told))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a file that `edbl export` has written")
    parser.add_argument("--side", type=int, default=1280, help="width of the photos")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--memory", action="store_true", help="send 10,000 requests more, and look at the memory")
    given = parser.parse_args()
    drawn = tempfile.TemporaryDirectory()
    given.folder = drawn.name
    draw(given.side, Path(drawn.name))
    ours = ["-m", "edbl", "serve", str(given.model), "--port", str(PLAIN + 1)]
    servers = [
        Server("edbl", ours, PLAIN + 1, f"/v1/models/{given.model.stem}/predict"),
        Server("plain", [__file__, "--plain", str(given.model)], PLAIN, "/predict"),
    ]
    try:
        print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {given.side} pixels wide")
        compare(servers, given)
        if given.memory:
            grow(servers[0], given)
    finally:
        for server in servers:
            server.process.terminate()
            server.process.wait()
        drawn.cleanup()


if __name__ == "__main__":
    main()
