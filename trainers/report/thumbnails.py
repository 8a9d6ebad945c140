"""Thumbnails of test images, from a data root that the user gives.

A report never looks for images below a folder that a run names, and never downloads. An image is
shown if its name is found below the root and its content is that of the run's image.
"""
from __future__ import annotations

import base64
import hashlib
import io
import logging
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageOps

from ...datasets.utils.errors import UserError
from ...datasets.utils.files import leads_out, open_regular
from ...datasets.views.images import open_image
from .measure import Mistake

logger = logging.getLogger(__name__)

SIDE = 128  # pixels of a thumbnail
DIGEST_BYTES = 16
CONTENT_BYTES = 12  # of an image's identity; the others tell copies of a picture apart


def folders_in(parent: Path) -> list[Path]:
    """The folders directly below another."""
    return [path for path in sorted(parent.iterdir()) if path.is_dir()]


class Thumbnails:
    """Small pictures of the images below a data root."""

    def __init__(self, root: Path | None) -> None:
        """
        Args:
            root: The folder of the data sets, or of one of them; None shows no image.
        """
        self.root = root
        self.folders: list[Path] = []
        if root is not None and root.is_dir():
            inner = folders_in(root)
            self.folders = [root, *inner]
            for folder in inner:
                self.folders += folders_in(folder)

    def of(self, mistakes: Sequence[Mistake]) -> dict[int, str]:
        """Data URIs of small JPEGs by the index of the mistake, for images that are found."""
        uris = {}
        for mistake in mistakes:
            path = self.find(mistake)
            if path is not None:
                try:
                    picture = open_image(path).convert("RGB")
                    uris[mistake.index] = data_uri(ImageOps.fit(picture, (SIDE, SIDE)))
                except (UserError, OSError, ValueError) as error:
                    logger.info("no thumbnail of %s: %s", path.name, error)
        return uris

    def find(self, mistake: Mistake) -> Path | None:
        """The file of a mistake's image; None if there is none with the same name and content."""
        if not mistake.filename or not mistake.image or leads_out(mistake.filename):
            return None
        for folder in self.folders:
            path = folder / mistake.filename
            if has_content(path, mistake.image):
                return path
        return None


def has_content(path: Path, identity: bytes) -> bool:
    """Whether a file holds an image with this content.

    Args:
        path: The file.
        identity: Identity of the image, which begins with a digest of its content.
    """
    try:
        with open_regular(path) as file:
            digest = hashlib.file_digest(file, new_hash).digest()  # type: ignore[arg-type]
    except (OSError, ValueError):
        return False
    return digest[:CONTENT_BYTES] == identity[:CONTENT_BYTES]


def new_hash() -> hashlib.blake2b:
    """The hash by which images are identified, see `datasets/image_index.py`."""
    return hashlib.blake2b(digest_size=DIGEST_BYTES)


def data_uri(image: Image.Image) -> str:
    """A JPEG inside a page."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
