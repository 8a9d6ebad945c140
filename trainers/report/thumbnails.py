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
    settings, names = run.settings, run.classnames
    try:
        dataset = _read(*(str(settings.get(f"DATASET.{key}", default)) for key, default in (
            ("NAME", run.dataset), ("ROOT", "data"), ("SUBSAMPLE_CLASSES", "all"), ("CORRUPTION", ""), ("SEVERITY", 5),
            ("IMAGE_LIST", ""), ("COLUMNS", ""), ("CLASSNAMES", ""))))
        data = {mistake: dataset.test[mistake.index] for mistake in mistakes}
        if any(names[datum.label] != mistake.truth for mistake, datum in data.items()):
            raise DataError(f"the data below {dataset.root} is not what the run used")
        return {mistake.index: data_uri(ImageOps.fit(dataset.read_image(datum).convert("RGB"), (SIDE, SIDE)))
                for mistake, datum in data.items()}
    except (UserError, OSError, LookupError) as error:
        _log_once(f"no images of {run.dataset}: {error}")
        return {}


@lru_cache(maxsize=64)
def _log_once(line: str) -> None:
    logger.info("%s", line)


@lru_cache(maxsize=4)
def _read(
    name: str, root: str, classes: str, corruption: str, severity: str, image_list: str, columns: str, words: str,
) -> Dataset:
    """Few-shot sampling does not change the test images."""
    return build_dataset(name, root, subsample_classes=classes, corruption=corruption, severity=int(severity),
                         image_list=image_list, columns=columns, classnames=words)


def data_uri(image: Image.Image) -> str:
    """A JPEG inside a page."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
