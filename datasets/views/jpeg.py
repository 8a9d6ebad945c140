"""JPEGs that are decoded where the model is (DATALOADER.JPEG device): workers read files and decode what else there is.

A GPU's decoder rounds a little differently, so pixels may differ from Pillow's by some levels; cached features and
results know which decoder it was.
"""
from __future__ import annotations

import io
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image
from torch import Tensor

from ..utils.errors import ConfigError, one_line
from .images import FORMATS, MOST_PIXELS, BadImageError, to_rgb

logger = logging.getLogger(__name__)

END = b"\xff\xd9"  # a JPEG that has been cut short lacks it
told: set[str] = set()  # reasons why pictures were decoded by Pillow after all


@dataclass(frozen=True)
class Undecoded:
    """A JPEG as it lies on the disk."""

    data: bytes
    size: tuple[int, int]  # width, height, as its head says


class UndecodedJpegs:
    """A data set whose JPEGs are read, not decoded. It has the one thing that a loader needs."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def read_image(self, datum: Any) -> Image.Image | Undecoded:
        """The picture behind a datum: undecoded where any decoder would see the same in it, else as the data set reads
        it, complaints and all."""
        path = Path(datum.impath)
        return (plain_jpeg(path) if path.is_file() else None) or self.dataset.read_image(datum)


def plain_jpeg(path: Path) -> Undecoded | None:
    """A whole JPEG of three colours; None for anything else: grey, CMYK, cut short, too large, or no JPEG at all."""
    try:
        data = path.read_bytes()
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            plain = image.format == "JPEG" and image.mode == "RGB" and image.width * image.height <= MOST_PIXELS
            return Undecoded(data, image.size) if plain and data.rstrip(b"\0").endswith(END) else None
    except Exception:  # what is wrong with it, `read_image` will say
        return None


def check_decoder(device: torch.device) -> None:
    """DATALOADER.JPEG device is for GPUs, and for a torchvision that has a decoder: a later one will not."""
    if device.type != "cuda":
        raise ConfigError(f"DATALOADER.JPEG device decodes on a GPU, but this run is on {device.type}: "
                          f"use DATALOADER.JPEG pillow")
    if not hasattr(torchvision.io, "decode_jpeg"):
        raise ConfigError(f"torchvision {torchvision.__version__} decodes no JPEGs: use DATALOADER.JPEG pillow")


def decode_jpeg(data: Tensor, device: torch.device) -> Tensor:
    """By torchvision, uint8 (3, H, W)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # since 0.29; it is the only one that is installed anyway
        return torchvision.io.decode_jpeg(data, mode=torchvision.io.ImageReadMode.RGB, device=device)


def decoded(data: Tensor, size: tuple[int, int], device: torch.device) -> Tensor:
    """A JPEG's bytes (n,) as a picture on `device`, uint8 (H, W, 3). The EXIF orientation is left alone. What the
    device cannot decode Pillow does."""
    try:
        picture = decode_jpeg(data, device).permute(1, 2, 0)
        if (picture.shape[1], picture.shape[0]) == size:
            return picture
        reason = f"found {picture.shape[1]} × {picture.shape[0]} pixels instead of {size[0]} × {size[1]}"
    except RuntimeError as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0]
    if reason not in told:
        told.add(reason)
        logger.warning("%s cannot decode a JPEG (%s), so Pillow does (others like it are not told)", device, reason)
    try:
        with Image.open(io.BytesIO(data.numpy().tobytes()), formats=FORMATS) as image:
            return torch.from_numpy(np.array(to_rgb(image))).to(device, non_blocking=True)
    except Exception as error:
        raise BadImageError(one_line(error, 300) or type(error).__name__) from error
