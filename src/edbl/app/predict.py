"""Predictions: the likeliest classes of photos by a model, with their probabilities, or that it is none of them."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edbl.app import photos
from edbl.app.bundle import damaged, settle
from edbl.app.description import Bundle, Readout
from edbl.app.exact import Answers, answers
from edbl.app.inputs import inputs_of
from edbl.app.measuring import SURE
from edbl.app.model import Model
from edbl.app.opening import load, open_model
from edbl.data.decoding import Decoded
from edbl.data.threads import in_threads
from edbl.engine.environment import pick_device
from edbl.errors import EdblError
from edbl.nets.closed import calibrated
from edbl.nets.sure import threshold
from edbl.text import bar

PART = 64  # photos in memory at a time
UNKNOWN = 0.05  # share of photos of known classes that may be called unknown


@dataclass(frozen=True)
class Prediction:
    """A photo with its likeliest classes, or why there are none."""

    path: Path
    best: list[tuple[str, float]]  # class and probability
    unknown: bool = False  # whether it is likely to be of none
    bad: str = ""


# Returns probabilities, ``[n, classes]``, and how sure it is that one of the classes is right, ``[n]``.
Answer = Callable[[Tensor], tuple[Tensor, Tensor]]


class Predictor:
    """A model that is asked about photos."""

    def __init__(
        self,
        folder: Path,
        readout: Readout | None = None,
        device: str = "auto",
        unknown: float = UNKNOWN,
        keep: bool = False,
    ) -> None:
        """Open a model; ``keep`` the features of photos that it is asked about for another time."""
        self.keep = keep
        if not 0 <= unknown < 1:
            raise EdblError(f"unknown={unknown:g} must be a share of known photos from 0 to below 1")
        bundle = settle(folder)
        self.settings, self.names = bundle.settings, bundle.names
        self.inputs = inputs_of(self.settings)
        self.inputs.check()
        self.device = pick_device(device)
        self.answer: Answer
        if self.settings.keep:
            if readout == "nme":
                raise EdblError(f"{self.settings.method} has one classifier, its own; leave out classifier=nme")
            contents = load(folder, bundle, predict=True)
            exact = answers(contents)
            self.answer, judged = lambda x: exact(x[:, 0]), exact.sure.judged
            self.readout: Readout | None = None
        else:
            contents, model = open_model(folder, device, bundle)
            self.readout = readout or contents.bundle.readout
            self.answer = _by_probability(model) if self.readout == "cnn" else _by_nearness(model)
            own = self.readout == contents.bundle.readout
            judged = contents.tensors.get(SURE, torch.zeros(0)) if own else torch.zeros(0)
        if judged.ndim != 1 or not judged.is_floating_point():
            raise damaged(folder, "model.safetensors", f"{SURE} is no list of numbers")
        self.judged, self.version, self.unknown = judged, bundle.version, unknown
        self.least = threshold(judged, unknown)

    def by(self, exact: Answers, bundle: Bundle) -> "Predictor":
        """Return the same by what a closed form answers now."""
        other = copy.copy(self)
        other.names, other.version = bundle.names, bundle.version
        other.answer, other.judged = lambda x: exact(x[:, 0]), exact.sure.judged
        other.least = threshold(other.judged, self.unknown)
        return other

    def __call__(
        self, paths: Sequence[Path], top: int, say: Callable[[str], None] = lambda _: None, quiet: bool = False
    ) -> Iterator[Prediction]:
        """Yield the ``top`` classes of each photo, in order; what is left aside is said. ``quiet`` shows no bar."""
        files, notes = photos.listed(paths)
        for note in notes:
            say(f"note: {note}")
        size = self.settings.image_size
        with bar("predicting", len(files), quiet) as show:
            for begin in range(0, len(files), PART):
                part = files[begin : begin + PART]
                decoded = in_threads(lambda path: photos.read(path, size), part, "reading images")
                yield from self.told(part, decoded, top)
                show(begin + PART)

    def told(self, names: Sequence[Path], decoded: Sequence[Decoded], top: int) -> Iterator[Prediction]:
        """Yield the ``top`` classes of images that were read, with what they are called."""
        pixels = [found.pixels for found in decoded if found.pixels is not None]
        best = iter(self._best(torch.from_numpy(np.stack(pixels)), top) if pixels else [])
        for path, found in zip(names, decoded, strict=True):
            yield Prediction(path, [], bad=found.bad) if found.pixels is None else Prediction(path, *next(best))

    def _best(self, pixels: Tensor, top: int) -> list[tuple[list[tuple[str, float]], bool]]:
        """Return the ``top`` classes of each image, ``[n, 3, size, size]``, and whether it is likely to be of none."""
        probabilities, sure = self.answer(self.inputs.asked(pixels, self.device, self.keep))
        values, numbers = probabilities.topk(min(top, len(self.names)))
        unknown = (sure <= self.least).tolist()
        pairs = zip(numbers.tolist(), values.tolist(), strict=True)
        best = [[(self.names[k], v) for k, v in zip(*pair, strict=True)] for pair in pairs]
        return list(zip(best, unknown, strict=True))


def _by_probability(model: Model) -> Answer:
    def answer(x: Tensor) -> tuple[Tensor, Tensor]:
        found = model.probabilities(x)
        return found, found.amax(1).double()

    return answer


def _by_nearness(model: Model) -> Answer:
    """Return what makes probabilities of nearness, by the factor that suits the exemplars best."""
    memory, factor = model.memory.images, 1.0
    if len(memory):
        near = model.nearness(memory.x).double()
        _, factor = calibrated(near.clamp(min=-4), memory.y.cpu())

    def answer(x: Tensor) -> tuple[Tensor, Tensor]:
        found = (factor * model.nearness(x).double()).softmax(1)
        return found, found.amax(1)

    return answer
