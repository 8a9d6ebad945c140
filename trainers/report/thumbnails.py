"""What a report can show only where data and weights are still at hand: pictures of mistakes, similarity of classes."""
from __future__ import annotations

import base64
import io
import logging
from collections.abc import Sequence
from functools import lru_cache

from PIL import Image, ImageOps

from ...datasets import Dataset, build_dataset
from ...datasets.utils.errors import UserError
from ..arrays import Array
from ..config.layers import build_cfg
from ..registry import build_trainer
from ..theory import similarity
from ..vlm.loading import CACHE, WEIGHT_URLS, load_clip
from .measure import Mistake
from .reading import Run

logger = logging.getLogger(__name__)

SIDE = 128  # pixels of a thumbnail


def thumbnails(run: Run, mistakes: Sequence[Mistake]) -> dict[int, str]:
    """Data URIs of small JPEGs by index; empty, with a line in the log, where the images cannot be read."""
    try:
        dataset = _dataset(run)
    except (UserError, OSError) as error:
        logger.info("no thumbnails for %s: %s", run.dataset, error)
        return {}
    names, made = run.classnames, {}
    for mistake in mistakes:
        if mistake.index >= len(dataset.test) or names[dataset.test[mistake.index].label] != mistake.truth:
            logger.info("no thumbnails for %s: the data below %s is not what the run saw", run.dataset, dataset.root)
            return {}
        try:
            made[mistake.index] = data_uri(dataset.read_image(dataset.test[mistake.index]))
        except (UserError, OSError) as error:
            logger.info("no thumbnail: %s", error)
    return made


def data_uri(image: Image.Image) -> str:
    """A square JPEG of `SIDE` pixels that a page can hold."""
    buffer = io.BytesIO()
    ImageOps.fit(image.convert("RGB"), (SIDE, SIDE)).save(buffer, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def text_similarity(run: Run) -> Array | None:
    """K×K cosines of the class prompts under the run's own backbone and initial prompt; None if it is not at hand."""
    try:
        return _text_similarity(run.backbone, run.prompt, tuple(run.classnames))
    except (UserError, OSError) as error:
        logger.info("no class-pair figure for %s: %s", run.backbone, error)
        return None


@lru_cache(maxsize=8)
def _text_similarity(backbone: str, prompt: str, classnames: tuple[str, ...]) -> Array:
    _refuse_download(backbone)
    method = build_trainer(build_cfg("ZeroShot", opts=["DEVICE", "cpu", "PROMPT.CTX_INIT", prompt]))
    method.use_model(load_clip(backbone, "cpu"), classnames)
    return similarity(method.prompt.text)


def _refuse_download(backbone: str) -> None:
    """A report is no reason to fetch a gigabyte of weights."""
    if backbone in WEIGHT_URLS:
        target = CACHE.expanduser() / WEIGHT_URLS[backbone].rsplit("/", 1)[-1]
        if not target.is_file():
            raise UserError(f"its weights are not at {target}")


@lru_cache(maxsize=4)
def _read(name: str, root: str, shots: int, seed: int, classes: str) -> Dataset:
    return build_dataset(name, root, shots, seed, classes)


def _dataset(run: Run) -> Dataset:
    settings = run.settings
    return _read(
        run.dataset, str(settings.get("DATASET.ROOT", "data")), int(settings.get("DATASET.NUM_SHOTS", -1)), run.seed,
        str(settings.get("DATASET.SUBSAMPLE_CLASSES", "all")),
    )
