"""Large streams: how fast photos are decoded into a store, and how much memory a stream of 100,000 images takes.

    python benchmarks/large.py decode --out large.json
    python benchmarks/large.py stream --folder DISK --out large.json

`decode` makes JPEG files of ImageNet's usual size, and times the decoder alone, `edbl`'s decoding with crop and
scaling, and the making of a whole store. `stream` writes a store of made-up pixels (20 GB) into a folder of the disk,
and runs `er` through it in ten tasks with `data.on` disk. Its network is made to cost next to nothing, so what is
measured is how images get there; with `--cheap` images are not changed at random, and 32x32 of them are seen, which
leaves reading alone. Each adds what it found to the file; the folder's store is deleted in the end.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from edbl import Recipe, run, store
from edbl.data import imagenet
from edbl.data.decoding import decode

CLASSES, TASKS = 100, 10
SIZE = (500, 375)  # of most of ImageNet's photos
QUALITY = 96  # so that files have about 110 kB, as ImageNet's do


class Tiny(nn.Module):
    """A network that costs next to nothing: means of 16 squares of each colour."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(48, 32)

    def forward(self, x: Tensor) -> Tensor:
        """Return features."""
        means: Tensor = nn.functional.adaptive_avg_pool2d(x, 4)
        features: Tensor = self.layer(means.flatten(1))
        return features


def photo(path: Path, rng: np.random.Generator) -> None:
    """Write a made-up photo: smooth shapes under some noise."""
    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8)).resize(SIZE, Image.Resampling.BICUBIC)
    noise = rng.normal(0, 8, (SIZE[1], SIZE[0], 1))
    Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)).save(path, quality=QUALITY)


def photos(root: Path, classes: int, each: int) -> list[Path]:
    """Write photos as ImageNet has them, a few of each class to test with."""
    rng = np.random.default_rng(0)
    for split, count in (("train", each), ("val", max(1, each // 10))):
        for k in range(classes):
            folder = root / split / f"n{k:08}"
            folder.mkdir(parents=True)
            for number in range(count):
                photo(folder / f"{number}.JPEG", rng)
    return sorted(root.rglob("*.JPEG"))


def timed(work: Callable[[], object], images: int) -> dict[str, float]:
    """Return images/s and processor time of a piece of work, in all threads."""
    wall, cpu = time.monotonic(), time.process_time()
    work()
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    return {"images": images, "per_second": round(images / wall, 1), "per_second_and_core": round(images / cpu, 1)}


def whole(path: Path) -> None:
    """Decode a file and do nothing else."""
    with Image.open(path) as image:
        image.load()


def decoding(count: int) -> dict[str, object]:
    """Time decoding: the decoder alone, ours in one thread, and a store in as many as there are cores."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = photos(folder / "imagenet100", CLASSES, max(1, count // CLASSES))
        sizes = [path.stat().st_size for path in files]
        rounds = [
            {
                "decoder alone": timed(lambda: [whole(path) for path in files], len(files)),
                "decoded, cropped, scaled": timed(
                    lambda: [decode(p, imagenet.SIDE, True, True) for p in files], len(files)
                ),
            }
            for _ in range(3)
        ]
        made = timed(lambda: imagenet.load(folder, "imagenet100", CLASSES), len(files))
        again = timed(lambda: imagenet.load(folder, "imagenet100", CLASSES), len(files))
    return {"kilobytes a file": round(sum(sizes) / len(sizes) / 1e3), "rounds": rounds, "store": made, "again": again}


def write_store(place: Path, each: int, side: int) -> None:
    """Write a store of made-up pixels, those of a class alike."""
    rng, counts = np.random.default_rng(0), ((each,) * CLASSES, (max(1, each // 20),) * CLASSES)
    shades = rng.integers(0, 128, (CLASSES, 3, 1, 1), np.uint8)
    noise = rng.integers(0, 128, (250, 3, side, side), np.uint8)
    place.mkdir(parents=True)
    with open(place / imagenet.PIXELS, "wb") as file:
        for split in counts:
            for count, shade in zip(split, shades, strict=True):
                pixels = noise + shade
                for start in range(0, count, len(noise)):
                    file.write(pixels[: count - start].data)
    kept = imagenet._Store(side, "made up", "made up", tuple(f"class {k}" for k in range(CLASSES)), *counts)
    store.save(place, imagenet.ENTRY, kept, format=imagenet.FORMAT)


def stream(folder: Path, each: int, side: int, memory: str, cheap: bool) -> dict[str, object]:
    """Run through a made-up stream in a process of its own, and return how much memory that took."""
    place = folder / f"imagenet100-{imagenet.SIDE}"
    if place.exists():
        raise SystemExit(f"{place} exists already; name another folder")
    try:
        write_store(place, each, side)
        with tempfile.TemporaryDirectory(dir=folder) as out:
            command = [sys.executable, __file__, "walk", "--folder", str(folder), "--memory", memory, "--run", out]
            command += ["--cheap"] if cheap else []
            return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    finally:
        shutil.rmtree(place)


def walk(folder: Path, memory: str, out: Path, cheap: bool) -> dict[str, object]:
    """Run through the stream."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    values = {"stream.phases": TASKS, "memory": memory, "data.on": "disk", "net.backbone": f"{__file__}:Tiny"}
    values |= {"schedule.epochs": 1, "first.task_epochs": 1, "device": "cpu", "graph": False}
    values |= {"data.view": 32, "data.augment": "none"} if cheap else {}
    record = run(Recipe.build("er", "imagenet100", **values), out / "run", data_dir=folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    parts = [sum(part.values()) for part in record.timings]
    return {
        "images": store_images(folder),
        "tasks": len(record.task_sizes),
        "memory": memory,
        "changed": not cheap,
        "peak MB": round(peak / 1024),
        "before, MB": round(before / 1024),
        "seconds": round(sum(parts)),
        "last accuracy": record.accuracy["nme"][-1],
    }


def store_images(folder: Path) -> int:
    """Return how many images a made-up store has to train with."""
    kept = store.read(folder / f"imagenet100-{imagenet.SIDE}", imagenet.ENTRY, imagenet._Store, imagenet.FORMAT).value
    return sum(kept.train)


def main() -> None:
    """Measure, and add what was found to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("decode", "stream", "walk"))
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--images", type=int, default=0, help="photos, or images of the stream")
    parser.add_argument("--side", type=int, default=imagenet.SIDE)
    parser.add_argument("--memory", default="total=2000")
    parser.add_argument("--cheap", action="store_true", help="do not change images at random")
    parser.add_argument("--run", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "walk":
        print(json.dumps(walk(given.folder, given.memory, given.run, given.cheap)))
        return
    if given.what == "decode":
        found = decoding(given.images or 2000)
    else:
        found = stream(
            given.folder.resolve(), (given.images or 100_000) // CLASSES, given.side, given.memory, given.cheap
        )
    where = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    told = {"torch": torch.__version__, "pillow": Image.__version__, **where, **found}
    print(json.dumps(told, indent=1))
    if given.out:
        before = json.loads(given.out.read_text()) if given.out.exists() else {}
        given.out.write_text(json.dumps(before | {given.what: told}, indent=1) + "\n")


if __name__ == "__main__":
    main()
