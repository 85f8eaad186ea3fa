"""One more photo for a model of 100 classes with 100 photos each: what it takes until answers differ.

    python benchmarks/soon.py --data-dir DATA

The first 100 training images of each class of CIFAR-100 are learnt, by their features of 32 pixels to be quick; the
next ones are taught one by one. `exact` solves all again, as `edbl learn` does; `at once` takes the photo into the last
solution. Answers of both are compared over held-out images. Then `edbl serve` is taught drawn photos of 320 pixels, as
the page does it: one is sent and answered, gets a label by its id, and is asked again; time is that of the client, and
the processor time is that of the server. `--served` does only that, with any other version of the package too.
"""

import argparse
import http.client
import json
import os
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from serve import Server, draw
from torch import Generator, Tensor

from edbl.app.at_once import AtOnce, Given
from edbl.app.description import Settings
from edbl.data import datasets
from edbl.nets import pretrained

CLASSES, EACH, ASKED, TAUGHT = 100, 100, 20, 7
PORT, PATH = 8793, "/v1/models/model"


def settings(method: str, network: pretrained.Pretrained) -> Settings:
    """Return those of a model as `edbl learn` makes it."""
    engine = network.usual_engine()
    own = dict.fromkeys(("validation", "copies"), 0)
    return Settings(
        method, network.name, "head", network.image_size, "none", 0, given={}, backbone_weights=network.digest,
        keep="features", engine=engine, **own,
    )  # fmt: skip


def made(place: Path, method: str, network: pretrained.Pretrained, x: Tensor) -> AtOnce:
    """Return a model of features ``[classes, photos, width]``."""
    model = AtOnce(place)
    given = [one for k in range(CLASSES) for one in lessons(k, x[k, :EACH])]
    model.teach(given, settings(method, network), yes=True)
    return model


def lessons(k: int, x: Tensor) -> list[Given]:
    """Return photos of a class."""
    return [Given(uuid.uuid4().hex, f"class {k}", "a photo", one) for one in x]


def seconds(work: Any) -> float:
    """Return the processor time of work."""
    began = time.process_time()
    assert work().learnt == 1
    return time.process_time() - began


def compare(method: str, network: pretrained.Pretrained, x: Tensor) -> None:
    """Print what one more photo takes, and how near answers are to those of a solution."""
    with tempfile.TemporaryDirectory() as folder:
        model = made(Path(folder, "model"), method, network, x)
        new = [lessons(k, x[k, EACH : EACH + 2]) for k in range(TAUGHT)]
        exact = [seconds(lambda one=one: model.teach(one[:1], yes=True)) for one in new]  # type: ignore[misc]
        quick, far, other = [], [], []
        asked = x[:, -ASKED:].flatten(0, 1)
        for one in new:
            quick.append(seconds(lambda one=one: model.soon(one[1:], yes=True)))  # type: ignore[misc]
            assert model.now is not None
            ours = model.now.answers(asked)[0]
            model.finish()
            theirs = model.now.answers(asked)[0]
            far.append(float((ours - theirs).abs().max()))
            other.append(float((ours.argmax(1) != theirs.argmax(1)).double().mean()))
        last = [seconds(lambda k=k: model.soon(lessons(k, x[k, -1:]), yes=True)) for k in range(4)]  # type: ignore[misc]
    print(f"{method}: processor ms of one more photo, median (range)")
    for name, found in (("exact", exact), ("at once", quick), ("four at once in a row, the last", last[-1:])):
        print(f"  {name}: {1e3 * median(found):.0f} ({1e3 * min(found):.0f} to {1e3 * max(found):.0f})")
    told = f"probabilities differ by at most {max(far):.1e}, the likeliest class of {100 * max(other):.2f}% at most"
    print(f"  over {len(asked):,} photos {told}")


def call(method: str, path: str, data: bytes, kind: str) -> tuple[float, Any]:
    """Return how long an answer takes, and what it says."""
    line = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
    began = time.perf_counter()
    line.request(method, PATH + path, data, {"Content-Type": kind})
    answer = line.getresponse()
    body = answer.read()
    took = time.perf_counter() - began
    assert answer.status == 200, body
    return took, json.loads(body)


def served(place: Path, photos: Sequence[bytes]) -> None:
    """Print what the same takes of a server."""
    server = Server("edbl", ["-m", "edbl", "serve", str(place), "--port", str(PORT)], PORT, PATH)
    try:
        for number, photo in enumerate(photos):
            head = b'--mark\r\nContent-Disposition: form-data; name="files"; filename="a.jpg"\r\n\r\n'
            before = server.processor
            took, first = call(
                "POST", "/predict", head + photo + b"\r\n--mark--\r\n", "multipart/form-data; boundary=mark"
            )
            id = first["predictions"][0]["id"]
            lesson = {"photos": [{"id": id, "label": f"class {number}"}], "yes": True}
            teach, told = call("POST", "/teach", json.dumps(lesson).encode(), "application/json")
            again, then = call("POST", "/predict", json.dumps({"photos": [id]}).encode(), "application/json")
            assert told["learnt"] == 1
            assert then["version"] == first["version"] + 1
            assert then["predictions"][0]["classes"] != first["predictions"][0]["classes"]
            spent = 1e3 * (server.processor - before)
            shown = ", ".join(f"{1e3 * one:.0f}" for one in (took, teach, again))
            print(f"  photo {number + 1}: asked, taught, asked again in {shown} ms; {spent:.0f} ms of the processor")
    finally:
        server.process.terminate()
        server.process.wait()


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--served", action="store_true", help="only the server")
    given = parser.parse_args()
    torch.set_num_threads(1)
    images, network = datasets.load("cifar100", given.data_dir).train, pretrained.find(pretrained.LITE0)
    number = EACH + 2 + ASKED
    rows = torch.cat([(images.y == k).nonzero().squeeze(1)[:number] for k in range(CLASSES)])
    found = network.views(images.x[rows], 0, Generator(), lambda done: None)[:, 0].view(CLASSES, number, -1)
    for method in ("lda", "ridge"):
        print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        if not given.served:
            compare(method, network, found)
        with tempfile.TemporaryDirectory() as folder:
            drawn = Path(folder, "drawn")
            drawn.mkdir()
            draw(320, drawn)
            photos = [np.fromfile(path, np.uint8).tobytes() for path in sorted(drawn.iterdir())[:TAUGHT]]
            made(Path(folder, "model"), method, network, found)
            print(f"{method}, served:")
            served(Path(folder, "model"), photos)


if __name__ == "__main__":
    main()
