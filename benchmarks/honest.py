"""How true what closed forms say of themselves is, and how long an update takes: the numbers of benchmarks/README.md.

    python benchmarks/honest.py answers --data-dir DATA
    python benchmarks/honest.py needs --data-dir DATA
    python benchmarks/honest.py times --data-dir DATA

`answers` learns 40 classes of CIFAR-100 that come in eights of five alike (people, trees, flowers ...) from 10 or 30
photos each, and asks the rest of the first 300 training images of each class: calibration, unknown classes, labels that
are wrong. Features are those of benchmarks/teach.py, kept in the same cache. `needs` compares what more photos were
said to bring with what they bring, on the draws by which that rule was chosen and on others. `times` makes a model of
100 classes with 100 photos each, whose features are of 32 pixels to be quick, and times updates after the features are
there.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score
from teach import chosen, features
from torch import Tensor
from torch.nn import functional as F

from edbl.app import honest, page, versions
from edbl.app.description import Settings
from edbl.app.exact import Answers, Exact
from edbl.app.learn import increment
from edbl.app.photos import Photo
from edbl.app.settings import Request
from edbl.data import datasets
from edbl.engine.progress import Progress
from edbl.metrics import Z, calibration_error
from edbl.nets import pretrained
from edbl.nets.sure import threshold

ALIKE = (
    *("baby", "boy", "girl", "man", "woman", "maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    *("orchid", "poppy", "rose", "sunflower", "tulip", "bear", "leopard", "lion", "tiger", "wolf"),
    *("hamster", "mouse", "rabbit", "shrew", "squirrel", "crocodile", "dinosaur", "lizard", "snake", "turtle"),
    *("aquarium_fish", "flatfish", "ray", "shark", "trout", "bee", "beetle", "butterfly", "caterpillar", "cockroach"),
)
STRANGE, WRONG = 8, 0.025  # classes that are left out, share of labels that are made wrong
ASKED, EACH = 300, 100  # photos of a class
SEEDS = (0, 1, 2)
# Of each data set: classes, photos of each that are doubled, and how many of each there are to learn and ask.
DOUBLED = {
    "cifar10": (range(10), (8, 16, 32, 64), 300),
    "fashion-mnist": (range(10), (8, 16, 32, 64), 300),
    "cifar100": (range(0, 100, 7), (8, 16, 32), 100),  # by which nothing was chosen
}
Score = dict[str, Tensor]


def solved(method: str, x: Tensor, names: list[str]) -> tuple[Exact, Answers, honest.Left]:
    """Return a model that has learnt features, and what it says of photos that are left out."""
    made = Exact.new(Settings(method, "given", "head", 224, "none", 0, 0, 0, {}, keep="features"), x.shape[1])
    made.learn(x, [f"{k:032x}" for k in range(len(x))], names)
    answers, told = made.solve()
    left = honest.left(made, answers, told)
    assert left is not None
    return made, answers, left


def scores(answers: Answers, x: Tensor) -> Score:
    """Return how sure one may be that photos are of a known class, by several measures; higher is surer."""
    v = answers.vectors(x.double())
    logits = v @ answers.weight.T + answers.bias
    cosine = (F.normalize(v) @ answers.sure.means.T).amax(1)
    return {
        "as used: confidence + cosine": answers.sure(answers.confidence(logits), v),
        "confidence": answers.confidence(logits),
        "largest probability": logits.softmax(1).amax(1),
        "energy": logits.logsumexp(1),
        "cosine with the nearest mean": cosine,
        "distance to the nearest mean": -torch.cdist(v, answers.sure.means).amin(1),
    }


def answered(method: str, photos: int, seed: int, x: Tensor, y: Tensor) -> Iterator[tuple[str, float]]:
    """Yield what was measured with one draw of photos."""
    draw = np.random.RandomState(seed)
    learnt = torch.zeros(len(y), dtype=torch.bool)
    for k in range(len(ALIKE)):
        learnt[draw.permutation(np.flatnonzero(y == k))[:photos]] = True
    names = [ALIKE[k] for k in y[learnt].tolist()]
    made, answers, left = solved(method, x[learnt], names)
    number = torch.tensor([made.names.index(name) for name in ALIKE])[y]
    told, sure = answers(x[~learnt])
    hits = (told.argmax(1) == number[~learnt]).numpy()
    yield "accuracy", 100 * float(hits.mean())
    yield "accuracy by leaving out", 100 * float(1 - left.wrong.mean())
    yield "calibration error", calibration_error(told.amax(1).numpy(), hits)
    bare = _bare(made, answers, x[~learnt]).amax(1).numpy()
    yield "calibration error without the factor", calibration_error(bare, hits)
    most = told.amax(1).numpy()
    yield (
        "calibration error of what is right by chance as often as it says",
        calibration_error(most, draw.rand(len(most)) < most),
    )
    yield "called unknown at 0.05, %", 100 * float((sure <= threshold(answers.sure.judged, 0.05)).double().mean())
    known = torch.from_numpy(~np.isin(y.numpy(), draw.permutation(len(ALIKE))[:STRANGE]))
    _, fewer, _ = solved(method, x[learnt & known], [ALIKE[k] for k in y[learnt & known].tolist()])
    here, away = scores(fewer, x[~learnt & known]), scores(fewer, x[~learnt & ~known])
    for name, values in here.items():
        both = torch.cat([values, away[name]]).numpy()
        yield f"AUROC, {name}", 100 * float(roc_auc_score(np.arange(len(both)) < len(values), both))
    sure = away["as used: confidence + cosine"]
    yield "strangers not noticed at 0.05, %", 100 * float((sure > threshold(fewer.sure.judged, 0.05)).double().mean())
    wrong = draw.permutation(len(names))[: round(WRONG * len(names))]
    for row in wrong:
        names[row] = draw.choice([name for name in ALIKE if name != names[row]])
    _, _, left = solved(method, x[learnt], names)
    rows = {int(one.digest, 16) for one in honest.suspects(left)}
    yield "photos named, of all with their own label, %", 100 * len(rows - {*wrong}) / (len(names) - len(wrong))
    yield "wrong labels named, %", 100 * len(rows & {*wrong}) / len(wrong)


def _bare(made: Exact, answers: Answers, x: Tensor) -> Tensor:
    """Return probabilities by scores as they are."""
    assert made.found is not None
    v = answers.vectors(x.double())
    found: Tensor = ((v @ answers.weight.T + answers.bias) / made.found.factor).softmax(1)
    return found


def answers(data_dir: Path) -> None:
    """Print the table."""
    loaded, network = datasets.load("cifar100", data_dir), pretrained.find(pretrained.LITE0)
    images = chosen(loaded.train, ASKED)
    label = torch.tensor([ALIKE.index(name) if name in ALIKE else -1 for name in loaded.classes])[images.y]
    own = (label >= 0).nonzero().squeeze(1)
    x = torch.from_numpy(np.square(features(images[own], network, network.image_size, "cifar100"))).half()
    y = label[own]
    for method in ("lda", "ridge"):
        for photos in (10, 30):
            draws = [dict(answered(method, photos, seed, x, y)) for seed in SEEDS]
            for name in draws[0]:
                values = [draw[name] for draw in draws]
                digits = 3 if "calibration" in name else 1
                told = ", ".join(f"{value:.{digits}f}" for value in values)
                print(f"{method}, {photos} photos: {name}: {np.mean(values):.{digits}f} ({told})", flush=True)


def needs(data_dir: Path) -> None:
    """Print what more photos were said to bring and what they brought: the mean over classes of points of accuracy."""
    network = pretrained.find(pretrained.LITE0)
    for name, (classes, counts, each) in DOUBLED.items():
        images = chosen(datasets.load(name, data_dir).train, each)
        x = torch.from_numpy(np.square(features(images, network, network.image_size, name))).half()
        inside = []
        for photos, seed in product(counts, SEEDS):
            (points, low, high), brought = _doubled(x, images.y.numpy(), classes, photos, 2 * max(counts), seed)
            inside.append(low <= brought <= high)
            told = f"said {points:.1f} ({low:.1f} to {high:.1f}) points, brought {brought:.1f}"
            print(f"{name}, {photos} photos, draw {seed}: {told}", flush=True)
        print(f"{name}: {sum(inside)} of {len(inside)} within the interval")


def _doubled(
    x: Tensor, y: np.ndarray, classes: Sequence[int], photos: int, learnt: int, seed: int
) -> tuple[tuple[float, float, float], float]:
    """Return what twice the photos of a class were said to bring, and what they brought, on all but ``learnt`` ones."""
    draw = np.random.RandomState(seed)
    rows = {k: draw.permutation(np.flatnonzero(y == k)) for k in classes}
    base = np.concatenate([rows[k][:photos] for k in classes])
    test = np.concatenate([rows[k][learnt:] for k in classes])

    def rates(of: np.ndarray) -> tuple[honest.Left, dict[int, float]]:
        made, answers, left = solved("lda", x[of], [str(k) for k in y[of]])
        hits = np.array([int(made.names[k]) for k in answers(x[test])[0].argmax(1)]) == y[test]
        return left, {k: 100 * float(hits[y[test] == k].mean()) for k in classes}

    left, before = rates(base)
    mistakes = 100 * torch.tensor([honest._mistakes(left, k) for k in range(len(classes))]).double()
    points, error = honest.foretold(mistakes, torch.full((len(classes),), 1 / len(classes)).double())
    brought = [rates(np.concatenate([base, rows[k][photos : 2 * photos]]))[1][k] - before[k] for k in classes]
    return (points, points - Z * error, points + Z * error), float(np.mean(brought))


def times(data_dir: Path) -> None:
    """Print how long updates take."""
    images = datasets.load("cifar100", data_dir).train
    rows = [(images.y == k).nonzero().squeeze(1)[: 2 * EACH] for k in range(100)]

    def arrays(k: int, first: int, number: int) -> list[np.ndarray]:
        return list(images.x[rows[k][first : first + number]].permute(0, 2, 3, 1).numpy())

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        _update(model, {str(k): arrays(k, 0, EACH) for k in range(100)})
        print("an update of 5 new classes with 100 photos each, to 100 classes with 100 photos each:")
        for again in range(3):
            _update(model, {f"new {again} {k}": arrays(20 * again + k, EACH, EACH) for k in range(5)})
            versions.undo(model)
        print("one more photo:")
        for again in range(3):
            _update(model, {"0": arrays(0, EACH + again, 1)})


def _update(model: Path, given: dict[str, list[np.ndarray]]) -> None:
    """Learn arrays, and print what it took."""
    request = Request(image_size=None if model.exists() else 32)
    photos = [Photo(Path(str(k)), name, Image.fromarray(x)) for name, some in given.items() for k, x in enumerate(some)]
    with increment(model, request, device="cpu", yes=True, say=lambda note: None, given=photos) as begun:
        assert begun is not None
        begun.prepare()
        marks = [time.process_time()]
        learnt = begun.learn(Progress())
        marks.append(time.process_time())
        written, page.write = page.write, lambda *arguments: Path()
        try:
            begun.commit(learnt)
        finally:
            page.write = written
        marks.append(time.process_time())
        written(model, learnt.bundle, begun.left)
        marks.append(time.process_time())
    solve, write, shown = np.diff(marks)
    print(f"  processor seconds: learnt {solve:.2f}, written {write:.2f}; page {shown:.2f}", flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["answers", "needs", "times"])
    parser.add_argument("--data-dir", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    {"answers": answers, "needs": needs, "times": times}[given.what](given.data_dir)


if __name__ == "__main__":
    main()
