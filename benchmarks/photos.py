"""What photos cost before anything is learnt: times of benchmarks/README.md, and the mirroring of docs/models.md.

    python benchmarks/photos.py engines
    python benchmarks/photos.py jpeg
    python benchmarks/photos.py mirror --data-dir DATA

`engines` times each engine on 12 photos in one thread, `jpeg` the decoding of large photos, whole and scaled while they
are read: processor time, medians of three rounds in which the ways take turns. `mirror` tells of draws of some images a
class whether mirrored copies would be left out.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Generator

from edbl.app import mirror
from edbl.data import datasets
from edbl.data.decoding import decode
from edbl.nets import engines, pretrained
from edbl.nets.pretrained import CPU

ROUNDS, PHOTOS = 3, 12
SIZES = ((4000, 3000), (1600, 1200), (500, 375))  # pixels of JPEG files
DRAWS = {"digits": (5, 10, 30, 100), "cifar10": (10, 30), "cifar100": (10, 30), "fashion-mnist": (10, 30)}
SEEDS = (0, 1)


def timed(ways: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median processor time of each way."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _, (name, way) in product(range(ROUNDS + 1), ways.items()):
        began = time.process_time()
        way()
        found[name].append(time.process_time() - began)
    return {name: median(seconds[1:]) for name, seconds in found.items()}  # the first round makes what stays


def of_engines(data_dir: Path | None) -> None:
    """Print milliseconds a photo."""
    there = [one for one in engines.ENGINES if one != engines.INT8 or engines.fast_int8()]
    for name in pretrained.LITES:
        network = pretrained.find(name)
        shape = (PHOTOS, 3, network.image_size, network.image_size)
        x = torch.randint(256, shape, generator=Generator().manual_seed(0)).byte()
        ranges = {one: network.ranges(x) if one == engines.INT8 else None for one in there}
        views = {
            one: partial(network.views, x, 0, Generator(), lambda done: None, CPU, one, ranges[one]) for one in there
        }
        for one, seconds in timed(views).items():
            print(f"{name} by {one}: {1000 * seconds / PHOTOS:.1f} ms a photo", flush=True)


def of_jpeg(data_dir: Path | None) -> None:
    """Print milliseconds to read a photo at 224 pixels."""
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            paths = [Path(folder, f"{k} {size[0]}.jpg") for k in range(2)]
            for path, pixels in zip(paths, load_sample_images().images, strict=True):
                Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(path, quality=90)
            ways = {
                way: partial(lambda draft, some: [decode(path, 224, draft=draft) for path in some], draft, paths)
                for way, draft in (("whole", False), ("scaled while it is read", True))
            }
            for way, seconds in timed(ways).items():
                print(f"{size[0]} x {size[1]}, {way}: {1000 * seconds / 2:.0f} ms", flush=True)


def of_mirror(data_dir: Path | None) -> None:
    """Print in how many draws mirrored copies would be left out."""
    for name, photos in DRAWS.items():
        images = datasets.load(name, data_dir).train
        for number in photos:
            harmed = []
            for seed in SEEDS:
                draw = np.random.RandomState(seed)
                classes = [draw.permutation((images.y == k).nonzero().squeeze(1))[:number] for k in images.y.unique()]
                rows = np.concatenate(classes)
                pixels = images.x[rows].expand(-1, 3, -1, -1).numpy()
                harmed.append(mirror.look(pixels, range(len(rows)), images.y[rows].tolist()).harms)
            print(f"{name}, {number} images a class: left out in {sum(harmed)} of {len(harmed)} draws", flush=True)


def main() -> None:
    """Measure."""
    ways = {"engines": of_engines, "jpeg": of_jpeg, "mirror": of_mirror}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(ways))
    parser.add_argument("--data-dir", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    ways[given.what](given.data_dir)


if __name__ == "__main__":
    main()
