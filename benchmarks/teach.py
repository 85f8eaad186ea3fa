"""Classifiers of the features of a frozen network, on photos that come in updates: the table of docs/models.md.

    python benchmarks/teach.py --data-dir DATA

Images become PNG files, are read as `edbl learn` reads photos, and pass the network once; features are kept in the
user's cache (EDBL_CACHE). Every result is a line of results/teach.jsonl, written when it is there; the same command
goes on where it was stopped, and prints the table at the end. All classifiers get the same features (square roots of
length 1) of the same photos: nothing is held out, everything is kept, and there are no changed copies. Only those of
`edbl learn` are taught as the command does by default, which holds photos out, keeps some and learns changed copies.
"""

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

import edbl
from edbl import EDBLClassifier
from edbl.data import datasets
from edbl.data.folder import decode
from edbl.data.images import Images
from edbl.nets import cache, pretrained
from edbl.nets.closed import rooted

# Of each class: photos to learn from, of which a seed draws some, and photos to measure with.
SETS = {"fashion-mnist": (300, 100), "cifar10": (300, 100), "cifar100": (100, 20)}
TITLES = {"fashion-mnist": "Fashion", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
UNEQUAL = "10 to 100"  # photos of a class: as many classes have 10 to 20 as have 50 to 100
PHOTOS, UPDATES, SEEDS = (10, 30, 100, UNEQUAL), (2, 5, 10), (0, 1, 2)
CLOSED = ("lda", "ridge")  # the same however photos are split into updates, so one is enough: tests/test_estimator.py
CS = (1.0, 10.0, 100.0, 1000.0)  # of logistic regression, chosen by three folds
CHUNK = 256  # photos in memory at a time
ONCE = ("nearest means", "k nearest neighbours", "logistic regression")  # learn from all photos together
LEARN, LEARNT = "edbl learn", (("fashion-mnist", 10), ("fashion-mnist", 30), ("cifar10", 10), ("cifar10", 30))
COLUMNS = (*product(CLOSED, (1,)), *product(ONCE[:2], (1,)), *product(("edbl",), UPDATES), (LEARN, 5), (ONCE[2], 1))
KEYS = ("data", "photos", "seed", "method", "updates")
HERE = Path(__file__).parents[1] / "results" / "teach.jsonl"

Line = dict[str, Any]
Photos = int | str

Array = np.ndarray[Any, Any]


def chosen(images: Images, each: int) -> Images:
    """Return the first images of each class."""
    rows = [(images.y == k).nonzero().squeeze(1)[:each] for k in range(int(images.y.max()) + 1)]
    return images[torch.cat(rows)]


def features(images: Images, network: pretrained.Pretrained, size: int, label: str) -> Array:
    """Return the features of images, which are written to files and read as photos are."""
    kept, found, engine = cache.usual(), [], network.usual_engine()
    assert kept is not None, "set EDBL_CACHE_MB to more than 0"
    for start in range(0, len(images), CHUNK):
        x = images.x[start : start + CHUNK].expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
            paths = [Path(folder, f"{k}.png") for k in range(len(x))]
            for path, pixels in zip(paths, x, strict=True):
                Image.fromarray(pixels).save(path)
            photos = list(pool.map(lambda path: decode(path, size, draft=True).pixels, paths))
        pixels = torch.from_numpy(np.stack([photo for photo in photos if photo is not None]))
        found.append(kept.views(network, pixels, lambda done: None, engine=engine)[:, 0])
        print(f"\r{label}: {start + len(x):,} of {len(images):,} photos, by {engine}", end="", flush=True)
    print()
    return rooted(torch.cat(found).float(), unit=True).numpy()


def updated(
    method: str, x: Array, y: Array, order: Array, updates: int, seed: int
) -> tuple[EDBLClassifier, list[float]]:
    """Return a classifier that has learnt classes in updates, and the processor time of each."""
    kept = {"memory": "none"} if method != "edbl" else {"memory": f"total={len(y)}"}
    model = EDBLClassifier(method=method, backbone="given", random_state=seed, device="cpu", **kept)
    # The closed forms take square roots themselves.
    given, seconds = (x if method == "edbl" else np.square(x)), []
    for classes in np.array_split(order, updates):
        rows = np.isin(y, classes)
        began = time.process_time()
        model.partial_fit(given[rows], y[rows])
        seconds.append(time.process_time() - began)
    return model, seconds


def logistic_regression() -> Any:
    """Return what chooses its penalty by three folds."""
    return GridSearchCV(LogisticRegression(max_iter=300), {"C": CS}, cv=3)


def counts(photos: Photos, classes: int, draw: np.random.RandomState) -> Array:
    """Return how many photos each class has."""
    if photos == UNEQUAL:
        return draw.permutation(np.geomspace(10, 100, classes).round().astype(int))
    return np.full(classes, int(photos))


def learnt(images: Images, rows: Array, asked: Images, order: Array, seed: int) -> tuple[Array, list[float]]:
    """Return what `edbl learn --method edbl` says of images, and the processor time of each of five updates."""
    with tempfile.TemporaryDirectory() as place:
        model, seconds = edbl.open(place), []
        for classes in np.array_split(order, 5):
            given = {str(k): [*_pictures(images, rows[images.y.numpy()[rows] == k])] for k in classes}
            began = time.process_time()
            model.learn(given, method="edbl", seed=seed, tune="head") if not seconds else model.learn(given)
            seconds.append(time.process_time() - began)
        found = model.predict([*_pictures(asked, np.arange(len(asked)))], top=1)
        return np.array([int(one.best[0][0]) for one in found]), seconds


def _pictures(images: Images, rows: Array) -> Iterator[Array]:
    for x in images.x[torch.from_numpy(rows)].expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy():
        yield np.ascontiguousarray(x)


def at_once(name: str) -> Any:
    """Return a classifier that learns from all photos together."""
    if name == "nearest means":
        return NearestCentroid()
    return logistic_regression() if name == "logistic regression" else KNeighborsClassifier(5, metric="cosine")


def results(name: str, data: dict[str, Any], done: set[tuple[object, ...]]) -> Iterator[Line]:
    """Yield what is not done yet of a data set, what takes long last."""
    x, y, x_test, y_test = (data[key] for key in ("x", "y", "x_test", "y_test"))
    classes = np.unique(y)
    for (method, updates), photos, seed in product(COLUMNS, PHOTOS, SEEDS):
        cell = dict(zip(KEYS, (name, photos, seed, method, updates), strict=True))
        if tuple(cell.values()) in done or (method == LEARN and (name, photos) not in LEARNT):
            continue
        draw = np.random.RandomState(seed)
        order = draw.permutation(classes)
        each = counts(photos, len(classes), draw)
        drawn = [draw.permutation(np.flatnonzero(y == k))[:n] for k, n in zip(classes, each, strict=True)]
        rows = np.sort(np.concatenate(drawn))
        if method == LEARN:
            said, seconds = learnt(data["images"], rows, data["images_test"], order, seed)
        elif method in ONCE:
            began = time.process_time()
            one = at_once(method).fit(x[rows], y[rows])
            seconds, said = [time.process_time() - began], one.predict(x_test)
        else:
            model, seconds = updated(method, x[rows], y[rows], order, updates, seed)
            said = model.predict(x_test if method == "edbl" else np.square(x_test))
        accuracy = round(100 * float((said == y_test).mean()), 2)
        yield {**cell, "accuracy": accuracy, "seconds": [round(one, 3) for one in seconds]}


def cell(lines: Sequence[Line], name: str, photos: Photos, method: str, updates: int) -> str:
    """Return the mean and standard deviation over seeds, in percent, and how many seeds if they are not all."""
    wanted = (name, photos, method, updates)
    found = [one["accuracy"] for one in lines if tuple(one[key] for key in KEYS if key != "seed") == wanted]
    if len(found) < 2:
        return "-"
    return f"{mean(found):.1f}±{stdev(found):.1f}{'' if len(found) == len(SEEDS) else '*'}"


def table(lines: Sequence[Line]) -> str:
    """Return the table of all results."""
    columns = [*product(CLOSED, (1,)), *product(("edbl",), UPDATES), (LEARN, 5), *product(reversed(ONCE), (1,))]
    heads = [
        "data, photos",
        "`lda`",
        "`ridge`",
        "`edbl`: 2",
        "5",
        "10 updates",
        "`edbl learn`",
        "regression",
        "k nearest",
        "means",
    ]
    rows = [heads, ["---"] * len(heads)]
    for name, photos in product(SETS, PHOTOS):
        head = f"{TITLES[name]}, {photos}" if photos == PHOTOS[0] else str(photos)
        rows.append([head, *(cell(lines, name, photos, *column) for column in columns)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def spread(lines: Sequence[Line], of: Callable[[Line], float]) -> str:
    """Return the median and the most of a number."""
    values = sorted(map(of, lines))
    return f"{values[len(values) // 2]:.2f}, at most {values[-1]:.2f}" if values else "-"


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--backbone", default=pretrained.LITE0)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--features-only", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    network = pretrained.find(given.backbone)
    lines = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    done = {tuple(line[key] for key in KEYS) for line in lines}
    for name in given.sets:
        loaded, (each, test) = datasets.load(name, given.data_dir), SETS[name]
        data: dict[str, Any] = {}
        for kind, images, number in (("", loaded.train, each), ("_test", loaded.test, test)):
            images = chosen(images, number)
            data |= {f"y{kind}": images.y.numpy(), f"images{kind}": images}
            data |= {f"x{kind}": features(images, network, network.image_size, name)}
        if given.features_only:
            continue
        with open(given.out, "a") as file:
            for line in results(name, data, done):
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
                lines.append(line)
                print({key: value for key, value in line.items() if key != "seconds"})
    print(table(lines))
    for name, method in product(SETS, ("lda", "ridge", "edbl", *ONCE)):
        for photos in PHOTOS:
            own = [one for one in lines if (one["data"], one["photos"], one["method"]) == (name, photos, method)]
            if own:
                took = spread(own, lambda line: float(line["seconds"][-1]))
                print(f"{name}, {photos} photos, {method}: processor seconds of the last update {took}")


if __name__ == "__main__":
    main()
