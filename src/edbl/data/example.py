"""Photos to try things with: scikit-learn's digits as small image files, in a folder for each class."""

from pathlib import Path

import numpy as np
from PIL import Image

from edbl.errors import EdblError
from edbl.text import count

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIDE = 64  # pixels
MOST = 170  # photos of each class


def photos(folder: Path, classes: int = len(NAMES), each: int = 40, first: int = 0) -> dict[str, list[Path]]:
    """Write ``each`` photos of the first ``classes`` digits, from number ``first`` on, and return them by class."""
    from sklearn.datasets import load_digits  # here, because it takes a second that few commands need

    if not 1 <= classes <= len(NAMES):
        raise EdblError(f"there are {count(NAMES, 'class')} of digits, not {classes}")
    if not (each >= 1 and first >= 0 and first + each <= MOST):
        raise EdblError(f"there are {MOST} photos of each digit, so not number {first} to {first + each - 1}")
    digits = load_digits()
    written: dict[str, list[Path]] = {}
    for label, name in enumerate(NAMES[:classes]):
        place = folder / name
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EdblError(f"cannot make the folder '{place}': {error.strerror}") from error
        # Writers stand one after the other in the data; mixed, any part of them is like any other.
        mixed = np.random.default_rng(label).permutation(np.flatnonzero(digits.target == label))
        for number in sorted(mixed[first : first + each]):
            image = Image.fromarray((255 - digits.images[number] * 15.9).astype(np.uint8)).convert("RGB")
            path = place / f"{number:04}.png"
            image.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path)
            written.setdefault(name, []).append(path)
    return written
