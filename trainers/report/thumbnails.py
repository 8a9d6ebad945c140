"""What a report can show only where the data are still at hand: pictures of mistakes."""
from __future__ import annotations

import base64
import io
import logging
from collections.abc import Sequence
from functools import lru_cache

from PIL import Image, ImageOps

from ...datasets import Dataset, build_dataset
from ...datasets.utils.errors import UserError
from .measure import Mistake
from .reading import Run

logger = logging.getLogger(__name__)

SIDE = 128  # pixels of a thumbnail


def thumbnails(run: Run, mistakes: Sequence[Mistake]) -> dict[int, str]:
    """Data URIs of small JPEGs by index; empty, with a line in the log, where the images cannot be read."""
    try:
        dataset = _dataset(run)
    except (UserError, OSError) as error:
        _tell(f"no pictures of {run.dataset}: {error}")
        return {}
    names, made = run.classnames, {}
    for mistake in mistakes:
        if mistake.index >= len(dataset.test) or names[dataset.test[mistake.index].label] != mistake.truth:
            _tell(f"no pictures of {run.dataset}: the data below {dataset.root} is not what the run saw")
            return {}
        try:
            made[mistake.index] = data_uri(square(dataset.read_image(dataset.test[mistake.index])))
        except (UserError, OSError) as error:
            _tell(f"no picture: {error}")
    return made


def read_picture(run: Run, index: int) -> Image.Image | None:
    """A small square of one test image; None where the data are not at hand or not what the run saw."""
    try:
        dataset = _dataset(run)
        names = run.classnames
        item = dataset.test[index]
        return square(dataset.read_image(item)) if names[item.label] == dataset.classnames[item.label] else None
    except (UserError, OSError, LookupError) as error:
        _tell(f"no pictures of {run.dataset}: {error}")
        return None


@lru_cache(maxsize=64)
def _tell(line: str) -> None:
    """Once, however many runs it is true of."""
    logger.info("%s", line)


def square(image: Image.Image) -> Image.Image:
    """A picture of `SIDE` pixels."""
    return ImageOps.fit(image.convert("RGB"), (SIDE, SIDE))


def data_uri(image: Image.Image) -> str:
    """A JPEG that a page can hold."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


@lru_cache(maxsize=4)
def _read(name: str, root: str, classes: str) -> Dataset:
    return build_dataset(name, root, subsample_classes=classes)  # no shots: the test images are the same without


def _dataset(run: Run) -> Dataset:
    settings = run.settings
    return _read(
        str(settings.get("DATASET.NAME", run.dataset)), str(settings.get("DATASET.ROOT", "data")),
        str(settings.get("DATASET.SUBSAMPLE_CLASSES", "all")),
    )
