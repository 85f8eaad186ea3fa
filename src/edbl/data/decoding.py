"""One image, from a file or from bytes, as a square of 8-bit pixels. Nothing here needs PyTorch."""

import hashlib
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError

HEIC = ("heic", "heif")  # read by a library of their own
EXTENSIONS = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", *HEIC)
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # Pillow's names; its other readers stay shut
MAX_PIXELS = 100_000_000  # that are decoded; Pillow opens no image of more than 178 million
TURNS = {  # by EXIF's orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

Pixels = npt.NDArray[np.uint8]  # [3, size, size]


class _BadImage(Exception):
    """Why a file cannot be used as an image, in a few words."""


@dataclass(frozen=True)
class Decoded:
    """What became of a file: pixels, or why there are none."""

    pixels: Pixels | None
    converted: bool = False
    bad: str = ""  # why there are no pixels


def short_side(path: Path) -> int:
    """Return the shorter side of an image, from its header alone; 0 if there is none to read."""
    if not path.is_file():  # a pipe would be waited for
        return 0
    try:
        with Image.open(path, formats=_formats(path)) as image:
            return min(image.size)
    except Exception:  # as in `decode`, which will say what is wrong
        return 0


def decode(path: Path, size: int, draft: bool = False, linear: bool = False) -> Decoded:
    """Read an image: its centre square, scaled to ``size``.

    With ``draft`` a large JPEG is scaled while it is decoded, to no less than twice the size: several times faster, and
    not quite the same pixels. It is scaled by cubic interpolation, or by ``linear`` one, which takes half the time.
    """
    try:
        if not stat.S_ISREG((found := path.stat()).st_mode):  # a pipe would be waited for
            raise _BadImage("not a regular file")
        if not found.st_size:
            raise _BadImage("empty file")
        with Image.open(path, formats=_formats(path)) as image:
            return _decoded(image, size, draft, MAX_PIXELS, linear)
    except Exception as error:  # Pillow's readers answer damaged files with exceptions of every kind
        return Decoded(None, bad=_reason(error))


def decode_bytes(data: bytes, name: str, size: int, most: int = MAX_PIXELS) -> Decoded:
    """Read an image that was sent, as `decode` with ``draft`` would read a file; ``most`` pixels are decoded."""
    try:
        if not data:
            raise _BadImage("empty file")
        with Image.open(BytesIO(data), formats=_formats(Path(name))) as image:
            if image.width * image.height > MAX_PIXELS:  # a JPEG may need room for all of them, however it is scaled
                raise _BadImage(f"more than {MAX_PIXELS / 1e6:g} million pixels")
            return _decoded(image, size, True, most)
    except Exception as error:  # as in `decode`
        return Decoded(None, bad=_reason(error))


def _decoded(image: Image.Image, size: int, draft: bool, most: int, linear: bool = False) -> Decoded:
    if draft:
        image.draft(None, (2 * size, 2 * size))
    if image.width * image.height > most:
        raise _BadImage(f"more than {most / 1e6:g} million pixels")
    return Decoded(squared(image, size, linear), converted=image.mode != "RGB")


def _formats(path: Path) -> tuple[str, ...]:
    """Return the formats that a file may have; those of phones need a library, which is asked for when one comes."""
    if path.suffix[1:].lower() not in HEIC:
        return FORMATS
    try:
        from pillow_heif import register_heif_opener
    except ImportError as error:
        raise _BadImage("HEIC: run `pip install 'edbl[heic]'`") from error
    register_heif_opener(thumbnails=False)
    return ("HEIF", *FORMATS)  # which may have another name than it should


def squared(image: Image.Image, size: int, linear: bool = False) -> Pixels:
    """Return the pixels of an image as `decode` would: its centre square, scaled to ``size``."""
    return _square(_rgb(_upright(image)), size, Image.Resampling.BILINEAR if linear else Image.Resampling.BICUBIC)


def digest(pixels: npt.NDArray[np.uint8]) -> str:
    """Return the name that an image has by its pixels."""
    return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()[:32]


def digests(images: Iterable[npt.NDArray[np.uint8]]) -> list[str]:
    """Return the name of each image."""
    return [digest(pixels) for pixels in images]


def _upright(image: Image.Image) -> Image.Image:
    """Return an image as it should be seen; `ImageOps.exif_transpose` fails where other tags of it are odd."""
    image.load()  # a TIFF file turns itself
    turn = TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return image if turn is None else image.transpose(turn)


def _reason(error: Exception) -> str:
    if isinstance(error, Image.DecompressionBombError):
        return "more than 178 million pixels"
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if "truncated" in str(error):
        return "truncated"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or type(error).__name__).splitlines()[0]


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise _BadImage("floating-point pixels of unknown range")
    if image.mode.startswith("I"):
        return _eight_bit(image).convert("RGB")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _eight_bit(image: Image.Image) -> Image.Image:
    """Scale 16-bit grey values, white for what is transparent; Pillow's own conversion would clip them at 255."""
    values = np.asarray(image).astype(np.int32)  # [h, w]
    if values.min() < 0 or values.max() > 65535:
        raise _BadImage("32-bit pixels of unknown range")
    values[values == image.info.get("transparency", -1)] = 65535
    return Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))


def _square(image: Image.Image, size: int, how: Image.Resampling) -> Pixels:
    """Scale the centre square: the same as scaling the short side and cropping, without the pixels cut off."""
    short = min(image.size)
    left, top = (image.width - short) // 2, (image.height - short) // 2
    box = (left, top, left + short, top + short)
    scaled = image.resize((size, size), how, box=box)
    return np.asarray(scaled).transpose(2, 0, 1)
