"""Opens image files of any mode as 8-bit RGB. Programs, devices and decompression bombs are refused."""
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
# Pillow goes by content, not by name. Some of its formats start programs (EPS: Ghostscript) or have decoders that are
# little used. These are plain raster formats.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
MARKS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"RIFF")
# What other files are, by their first bytes: offset, bytes, kind.
OTHERS = (
    (0, b"%!PS", "an EPS drawing"), (0, b"\xc5\xd0\xd3\xc6", "an EPS drawing"), (0, b"%PDF", "a PDF"),
    (0, b"<svg", "an SVG drawing"), (0, b"<?xml", "an XML file, such as SVG"), (0, b"<!DOCTYPE", "a web page"),
    (0, b"<html", "a web page"), (4, b"ftypavi", "an AVIF image"), (4, b"ftyp", "a HEIC image or a video"),
    (0, b"\x00\x00\x00\x0cjP", "a JPEG 2000 image"), (0, b"8BPS", "a Photoshop file"), (0, b"DDS ", "a DDS texture"),
)
MOST_PIXELS = 89_478_485  # beyond which Pillow warns; three bytes each, and some copies

# Such images are refused here, with their name.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
# The orientation in it is ignored; a file that is damaged elsewhere too is refused.
warnings.filterwarnings("ignore", ".*orrupt EXIF data")

warned: set[str] = set()


class BadImageError(DataError):
    """A file that is not an image, or only part of one."""


def open_image(path: str | Path) -> Image.Image:
    """The image at `path`, decoded, as RGB. The EXIF orientation is ignored, as in CLIP's own code. Of an animation the
    first frame is taken."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - a path may be text
            raise BadImageError("it is not a regular file")
        with open(path, "rb") as file, Image.open(file, formats=FORMATS) as image:  # noqa: PTH123
            if image.width * image.height > MOST_PIXELS:
                raise BadImageError(f"it has {image.width:,} × {image.height:,} pixels, more than {MOST_PIXELS:,} "
                                    f"in all: make it smaller")
            return to_rgb(image, path)
    except Exception as error:  # decoders raise anything on a broken file
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
    """What is wrong with a file that Pillow does not recognise, by its first bytes."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            head = file.read(16)
    except OSError as error:
        return error.strerror or str(error)
    if not head:
        return "it is empty"
    if head.startswith(MARKS):
        return "it is damaged or cut short"
    kinds = [f"it is {kind}, which is not supported" for start, mark, kind in OTHERS if head[start:].startswith(mark)]
    return f"{(*kinds, 'it is no image of a supported format')[0]}: convert it to JPEG or PNG"


def to_rgb(image: Image.Image, path: str | Path = "it") -> Image.Image:
    """Any of Pillow's modes as RGB. Transparency is dropped, as plain conversion does."""
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(as_shown(image, path)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns about the direct way; the colours are the same
    return image.convert("RGB")


def as_shown(image: Image.Image, path: str | Path) -> np.ndarray:
    """Grey of more than eight bits as a viewer shows it, uint8 (H, W). White is the greatest value of the file's bit
    depth, or 1 for floating point. Plain conversion would clip nearly every pixel to white."""
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
    """Once per process: all images of a data set may be alike."""
    if message not in warned:
        warned.add(message)
        logger.warning(f"{message} (others like it are not reported)", *details)


def is_image_name(name: str) -> bool:
    """Whether a file is named like an image. Hidden files, such as macOS's `._x.jpg`, are not."""
    return not name.startswith(".") and name.lower().endswith(SUFFIXES)
