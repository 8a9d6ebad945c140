"""Opens image files of any mode as 8-bit RGB.

Programs, devices and decompression bombs are refused.
"""
from __future__ import annotations

import io
import logging
import os
import stat
import threading
import warnings
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from ..utils.errors import DataError, one_line

logger = logging.getLogger(__name__)

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp")
# Pillow goes by content, not by name. Some of its formats start programs (EPS: Ghostscript) or have
# decoders that are little used. These are plain raster formats.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
# Largest number of pixels of an image; beyond it Pillow warns. Each takes three bytes, and there
# are copies.
MOST_PIXELS = 89_478_485
# Numbers of TIFF tags
BITS_PER_SAMPLE = 258
PHOTOMETRIC = 262  # 0: white is zero
SAMPLE_FORMAT = 339  # 2: signed integers

# Such images are refused here, with their name.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
# The orientation in it is ignored; a file that is damaged elsewhere too is refused.
warnings.filterwarnings("ignore", ".*orrupt EXIF data")

# Set after the first warning of a process, because all images of a data set may be alike.
warned = threading.Event()


class BadImageError(DataError):
    """A file that is not an image, or only part of one."""


def open_image(path: str | Path) -> Image.Image:
    """Opens the image at `path` as RGB.

    Its EXIF orientation is ignored, as in CLIP's code. Of an animation the first frame is taken.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - a path may be text
            raise BadImageError("it is not a regular file")
        with open(path, "rb") as file:  # noqa: PTH123
            return decode(file, path)
    except Exception as error:  # decoders raise anything on a broken file
        raise BadImageError(f"cannot read image {path}: {reason(error)}") from error


def decode_image(content: bytes, name: str) -> Image.Image:
    """Decodes the content of an image file, as `open_image` does.

    Args:
        content: Bytes of the image file.
        name: Name of the image, for messages.
    """
    try:
        return decode(io.BytesIO(content), name)
    except Exception as error:
        raise BadImageError(f"cannot read image {name}: {reason(error)}") from error


def decode(file: BinaryIO, name: str | Path) -> Image.Image:
    """Decodes the image in an open file as RGB.

    Args:
        file: The file, open for reading.
        name: Name of the image, for messages.
    """
    with Image.open(file, formats=FORMATS) as image:
        if image.width * image.height > MOST_PIXELS:
            raise BadImageError(
                f"it has {image.width:,} × {image.height:,} pixels, more than {MOST_PIXELS:,} "
                f"in all: make it smaller"
            )
        return to_rgb(image, name)


def reason(error: Exception) -> str:
    """Returns what is wrong with a file, without the file's name."""
    if isinstance(error, UnidentifiedImageError):
        formats = ", ".join(FORMATS)
        return f"it is empty or damaged, or it is not a {formats} image: convert it to JPEG or PNG"
    if isinstance(error, Image.DecompressionBombError):
        return f"it has more than {MOST_PIXELS:,} pixels: make it smaller"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(error, 300) or type(error).__name__


def to_rgb(image: Image.Image, path: str | Path = "it") -> Image.Image:
    """Converts any of Pillow's modes to RGB. Transparency is dropped, as in plain conversion.

    Args:
        image: A picture of any mode.
        path: Path of the picture's file, for the warning.
    """
    if not isinstance(image, Image.Image):
        raise TypeError(f"a picture must be a PIL image, such as PIL.Image.open gives, not a "
                        f"{type(image).__name__}")
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(as_shown(image, path)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns about the direct way; the colours are the same
    return image.convert("RGB")


def as_shown(image: Image.Image, path: str | Path) -> np.ndarray:
    """Converts grey of more than eight bits as an image viewer does.

    White is the greatest value of the file's bit depth, or 1 for floating point. Plain conversion
    would clip nearly every pixel to white.

    Args:
        image: A picture of the mode I or F, or one of 16 bits.
        path: Path of the picture's file, for the warning.

    Returns:
        Grey levels, uint8 (H, W).
    """
    # A TIFF states its bits; other formats have 16 bits when they have more than 8.
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(BITS_PER_SAMPLE, (16,))[0]
    is_signed = tags.get(SAMPLE_FORMAT, (1,))[0] == 2
    white_is_zero = tags.get(PHOTOMETRIC) == 0
    values = np.asarray(image)
    if image.mode == "F":
        white = 1.0
    elif is_signed:
        white = 2.0 ** (bits - 1) - 1
    else:
        white = 2.0 ** bits - 1
        if values.dtype == np.int32:  # Pillow has no mode for unsigned 32 bits
            values = values.view(np.uint32)

    grey = np.nan_to_num(values.astype(np.float32) / np.float32(white), nan=0.0).clip(0, 1)
    if white_is_zero:
        grey = 1 - grey
    brightest = float(values.max(initial=0))
    if (brightest > white or 0 < brightest <= white / 256) and not warned.is_set():
        warned.set()
        logger.warning(
            "%s: pixels up to %g where %g is white: it shows as nearly white or black (others like "
            "it are not reported)",
            path,
            brightest,
            white,
        )
    return (grey * 255).round().astype(np.uint8)


def is_image_name(name: str) -> bool:
    """Whether a file is named like an image. Hidden files, such as macOS's `._x.jpg`, are not."""
    return not name.startswith(".") and name.lower().endswith(SUFFIXES)
