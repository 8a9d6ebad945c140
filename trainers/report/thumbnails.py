"""Thumbnails of test images, if the data set is still available."""
from __future__ import annotations

import base64
import io
import logging
from collections.abc import Sequence
from functools import lru_cache

from PIL import Image, ImageOps

from ...datasets import Dataset, build_dataset
from ...datasets.utils.errors import DataError, UserError
from .load import Run
from .measure import Mistake

logger = logging.getLogger(__name__)

SIDE = 128  # pixels of a thumbnail


def thumbnails(run: Run, mistakes: Sequence[Mistake]) -> dict[int, str]:
    """Data URIs of small JPEGs by index; none, with a line in the log, if the data set is not available."""
    try:
        dataset, names = _dataset(run), run.classnames
        if any(names[dataset.test[mistake.index].label] != mistake.truth for mistake in mistakes):
            raise DataError(f"the data below {dataset.root} is not what the run used")
        return {mistake.index: data_uri(square(dataset.read_image(dataset.test[mistake.index])))
                for mistake in mistakes}
    except (UserError, OSError, LookupError) as error:
        _log_once(f"no images of {run.dataset}: {error}")
        return {}


@lru_cache(maxsize=64)
def _log_once(line: str) -> None:
    logger.info("%s", line)


def square(image: Image.Image) -> Image.Image:
    """An image of `SIDE` × `SIDE` pixels."""
    return ImageOps.fit(image.convert("RGB"), (SIDE, SIDE))


def data_uri(image: Image.Image) -> str:
    """A JPEG inside a page."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


@lru_cache(maxsize=4)
def _read(name: str, root: str, classes: str) -> Dataset:
    return build_dataset(name, root, subsample_classes=classes)  # few-shot sampling does not change the test images


def _dataset(run: Run) -> Dataset:
    settings = run.settings
    return _read(
        str(settings.get("DATASET.NAME", run.dataset)), str(settings.get("DATASET.ROOT", "data")),
        str(settings.get("DATASET.SUBSAMPLE_CLASSES", "all")),
    )
