"""Opens any picture a benchmark may hold as 8-bit RGB, and nothing else: no programs, no devices, no bombs."""
from __future__ import annotations

import logging
import os
import stat
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from ..utils.errors import DataError, one_line

logger = logging.getLogger(__name__)

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp")
# Pillow goes by content, whatever the name, and some of what it knows starts programs (EPS: Ghostscript) or has
# decoders that few have tried. These are plain grids of pixels.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
MARKS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"RIFF")
# What a file that is none of them may be instead, by its first bytes, and where they stand.
OTHERS = (
    (0, b"%!PS", "an EPS drawing"), (0, b"\xc5\xd0\xd3\xc6", "an EPS drawing"), (0, b"%PDF", "a PDF"),
    (0, b"<svg", "an SVG drawing"), (0, b"<?xml", "an XML file, such as SVG"), (0, b"<!DOCTYPE", "a web page"),
    (0, b"<html", "a web page"), (4, b"ftypavi", "an AVIF picture"), (4, b"ftyp", "a HEIC picture or a video"),
    (0, b"\x00\x00\x00\x0cjP", "a JPEG 2000 picture"), (0, b"8BPS", "a Photoshop file"), (0, b"DDS ", "a DDS texture"),
)
MOST_PIXELS = 89_478_485  # Pillow's bound too, beyond which it warns; three bytes each, and copies of them on the way

# Those pictures are refused here, with their name.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
# The orientation in it is left alone; a file that is damaged elsewhere too is refused.
warnings.filterwarnings("ignore", ".*orrupt EXIF data")


warned: set[str] = set()


class BadImageError(DataError):
    """A file that is no image, or only part of one."""


def open_image(path: str | Path) -> Image.Image:
    """The picture at `path` as RGB, pixels decoded. The EXIF orientation is left alone, as CLIP's own code does; of an
    animation the first frame is the picture."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - a path may be text
            raise BadImageError("it is no regular file")
        with open(path, "rb") as file, Image.open(file, formats=FORMATS) as image:  # noqa: PTH123
            if image.width * image.height > MOST_PIXELS:
                raise BadImageError(f"it has {image.width:,} × {image.height:,} pixels, more than {MOST_PIXELS:,} "
                                    f"in all: make it smaller")
            return to_rgb(image, path)
    except Exception as error:  # decoders raise whatever they come upon in a broken file
        raise BadImageError(f"cannot read image {path}: {reason(error, path)}") from error


def reason(error: Exception, path: str | Path) -> str:
    """What is wrong with a file, without its name."""
    if isinstance(error, UnidentifiedImageError):
        return what_else(path)
    if isinstance(error, Image.DecompressionBombError):
        return f"it has more than {MOST_PIXELS:,} pixels: make it smaller"
    if isinstance(error, MemoryError):
        return "there is not enough memory to decode it"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(error, 300) or type(error).__name__


def what_else(path: str | Path) -> str:
    """What a file is that Pillow knows by none of the formats read here, as far as its beginning tells."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            head = file.read(16)
    except OSError as error:
        return error.strerror
    if not head:
        return "it is empty"
    if head.startswith(MARKS):
        return "it is damaged or cut short"
    kinds = [f"it is {kind}, which is not read" for start, mark, kind in OTHERS if head[start:].startswith(mark)]
    return f"{(*kinds, 'it is no picture of a kind that is read')[0]}: make it a JPEG or PNG"


def to_rgb(image: Image.Image, path: str | Path = "it") -> Image.Image:
    """Any of Pillow's modes as RGB. Transparency is dropped, as plain conversion does."""
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(as_shown(image, path)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns about the direct way; the colours are the same
    return image.convert("RGB")


def as_shown(image: Image.Image, path: str | Path) -> np.ndarray:
    """Grey of more than eight bits as a viewer shows it, uint8 (H, W): the file's depth says what white is, never the
    brightest pixel; plain conversion would clip nearly every pixel to white. White of floating point is 1."""
    tags = getattr(image, "tag_v2", {})  # of a TIFF; other kinds have 16 bits when they have more than 8
    bits, is_signed = tags.get(258, (16,))[0], tags.get(339, (1,))[0] == 2
    values = np.asarray(image)
    if image.mode == "F":
        white = 1.0
    elif is_signed:
        white = 2.0 ** (bits - 1) - 1
    else:
        white = 2.0 ** bits - 1
        values = values.view(np.uint32) if values.dtype == np.int32 else values
    shown = np.nan_to_num(values.astype(np.float32) / np.float32(white), nan=0.0).clip(0, 1)
    if tags.get(262) == 0:  # white is zero
        shown = 1 - shown
    brightest = float(values.max(initial=0))
    if image.mode == "F" and brightest > white:
        warn_once("%s: floating-point pixels up to %g, where everything from %g is white", path, brightest, white)
    elif 0 < brightest <= white / 256:
        warn_once("%s: pixels up to %g where %g is white, which shows as black", path, brightest, white)
    return (shown * 255).round().astype(np.uint8)


def warn_once(message: str, *details: object) -> None:
    """A whole data set may be of one kind: its first picture speaks for all, once in each process."""
    if message not in warned:
        warned.add(message)
        logger.warning(f"{message} (others like it are not told)", *details)


def is_image_name(name: str) -> bool:
    """Whether a file is named like a picture; hidden files, such as macOS's `._x.jpg`, are not."""
    return not name.startswith(".") and name.lower().endswith(SUFFIXES)
