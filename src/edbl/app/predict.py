"""Predictions: the likeliest classes of photos by a model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edbl.app import photos
from edbl.app.bundle import Readout
from edbl.app.inputs import inputs_of
from edbl.app.opening import open_model
from edbl.data.threads import in_threads
from edbl.text import bar

PART = 64  # photos in memory at a time


@dataclass(frozen=True)
class Prediction:
    """A photo with its likeliest classes, or why there are none."""

    path: Path
    best: list[tuple[str, float]]  # class and score: a probability, or the cosine with the class's mean
    bad: str = ""


class Predictor:
    """A model that is asked about photos."""

    def __init__(self, folder: Path, readout: Readout | None = None, device: str = "auto") -> None:
        contents, self.model = open_model(folder, device)
        self.settings = contents.bundle.settings
        self.inputs = inputs_of(self.settings)
        self.inputs.check()
        self.readout: Readout = readout or contents.bundle.readout

    def __call__(
        self, paths: Sequence[Path], top: int, say: Callable[[str], None] = lambda _: None, quiet: bool = False
    ) -> Iterator[Prediction]:
        """Yield the ``top`` classes of each photo, in order; what is left aside is said. ``quiet`` shows no bar."""
        files, notes = photos.listed(paths)
        for note in notes:
            say(f"note: {note}")
        with bar("predicting", len(files), quiet) as show:
            for begin in range(0, len(files), PART):
                yield from self._part(files[begin : begin + PART], top)
                show(begin + PART)

    def _part(self, files: Sequence[Path], top: int) -> Iterator[Prediction]:
        size = self.settings.image_size
        decoded = in_threads(lambda path: photos.read(path, size), files, "reading images")
        pixels = [found.pixels for found in decoded if found.pixels is not None]
        best = iter(self._best(torch.from_numpy(np.stack(pixels)), top) if pixels else [])
        for path, found in zip(files, decoded, strict=True):
            yield Prediction(path, [] if found.pixels is None else next(best), found.bad)

    def _best(self, pixels: Tensor, top: int) -> list[list[tuple[str, float]]]:
        """Return the ``top`` classes of each image, ``[n, 3, size, size]``, with their scores."""
        model = self.model
        x = self.inputs.asked(pixels, model.learner.device)
        # Of unit vectors the distance gives the cosine.
        scores = model.probabilities(x) if self.readout == "cnn" else (1 + model.nearness(x) / 2).clamp(-1, 1)
        values, numbers = scores.topk(min(top, len(model.names)))
        pairs = zip(numbers.tolist(), values.tolist(), strict=True)
        return [[(model.names[k], v) for k, v in zip(*pair, strict=True)] for pair in pairs]
