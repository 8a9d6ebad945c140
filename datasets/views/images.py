"""Opens any picture a benchmark may hold as 8-bit RGB."""
from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from ..utils.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp")

# What Pillow raises on files that are no image, or only part of one.
DECODING_ERRORS = (
    OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error, Image.DecompressionBombError,
)


class BadImageError(DataError):
    """A file that is no image, or only part of one."""


def open_image(path: str | Path) -> Image.Image:
    """The picture at `path` as RGB, pixels decoded. The EXIF orientation is left alone, as CLIP's own code does."""
    try:
        with Image.open(path) as image:
            return to_rgb(image)
    except DECODING_ERRORS as error:
        reason = " ".join(str(error).replace(str(path), "it").split()) or type(error).__name__
        raise BadImageError(f"cannot read image {path}: {reason}") from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Any of Pillow's modes as RGB. Transparency is dropped, as plain conversion does."""
    if image.mode.startswith("I"):  # 16 bit grey: plain conversion would clip nearly every pixel to white
        values = np.asarray(image)
        if values.max(initial=0) > 255:
            values = values >> 8
        return Image.fromarray(values.clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns about the direct way; the colours are the same
    return image.convert("RGB")


def is_image_name(name: str) -> bool:
    """Whether a file is named like a picture; hidden files, such as macOS's `._x.jpg`, are not."""
    return not name.startswith(".") and name.lower().endswith(SUFFIXES)
