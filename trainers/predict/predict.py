"""A user's own images: finding and classifying them."""
from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ...datasets.file_dataset import files_below
from ...datasets.utils.errors import DataError, reading
from ...datasets.utils.files import read_regular
from ...datasets.views.images import BadImageError, open_image
from ..api import Adapter
from ..functional.calibration import sals
from ..runs.run_dir import batched
from ..vlm.loading import SMALL, cache_folder
from ..vlm.openai_clip import WEIGHT_URLS

logger = logging.getLogger(__name__)

PREFERRED = ("ViT-L/14", "ViT-B/16", "ViT-B/32", "RN50")  # among weights that are on this machine
AT_ONCE = 8  # images whose views are in memory together


@dataclass(frozen=True)
class Prediction:
    """The prediction of one image.

    Attributes:
        path: Path of the image.
        before: Logits before tuning, (K,).
        after: Logits of the method, (K,).
        with_sals: `after`, rescaled by SaLS to the range of `before`, (K,).
        failed: Tuning gave no finite result, so `after` is `before`.
        context: Tuned context (n_ctx, width), of the predicted class if there is one per class;
            None for methods that tune none.
    """

    path: Path
    before: torch.Tensor
    after: torch.Tensor
    with_sals: torch.Tensor
    failed: bool
    context: torch.Tensor | None = None


def class_names(values: Sequence[str]) -> list[str]:
    """Class names from the command line: the names, or one text file with a name per line."""
    if len(values) > 1:
        return [value.strip() for value in values]
    path = Path(values[0])
    try:
        lines = read_regular(path).decode("utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}: give --classes two names or more, or a file "
                        f"with one per line") from error
    except OSError as error:
        raise DataError(f"cannot read class names from {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text; give a text file with one class name per "
                        f"line") from error
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise DataError(f"{path} has no class names; give one per line")
    return names


def find_images(paths: Sequence[Path], recursive: bool = False) -> list[Path]:
    """The given images, and those in the given folders.

    Other files of a folder are skipped with a warning. An image that is given by name must be
    readable.

    Args:
        paths: Images and folders.
        recursive: Whether folders in folders are searched too.
    """
    images: list[Path] = []
    for path in paths:
        if path.is_dir():
            images += images_of_folder(path, recursive)
        else:
            open_image(path)
            images.append(path)
    return images


@reading()
def images_of_folder(folder: Path, recursive: bool) -> list[Path]:
    """The images in a folder, sorted by path.

    Args:
        folder: The folder. Files that are no readable images are skipped with a warning.
        recursive: Whether folders in it are searched too; otherwise they are named in warnings.

    Raises:
        DataError: The folder has no image.
    """
    if recursive:
        entries = [Path(path) for path in files_below(folder)]
    else:
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    images = []
    folders = []
    for entry in entries:
        if entry.is_dir():
            folders.append(entry)
            continue
        try:
            open_image(entry)
        except BadImageError as error:
            logger.warning("skipped: %s", error)
            continue
        images.append(entry)
    for inner in folders:
        logger.warning("skipped: %s is a folder; --recursive reads it too", inner)
    if not images:
        remedy = "give a folder with images"
        if folders:
            remedy = "--recursive searches its folders too"
        raise DataError(f"the folder {folder} has no image; {remedy}")
    return images


def default_backbone() -> str:
    """The best OpenAI model whose weights are on this machine, or the embedded small CLIP."""
    for name in PREFERRED:
        file_name = WEIGHT_URLS[name].rsplit("/", 1)[-1]
        if (cache_folder() / file_name).is_file():
            return name
    logger.info("no OpenAI weights on this machine, so the small CLIP is used; --backbone ViT-B/16 "
                "downloads one")
    return SMALL


def predict(paths: Sequence[Path], adapter: Adapter) -> Iterator[Prediction]:
    """Predictions of the images, as in an evaluation.

    Each is predicted on its own, whatever the order, unless the method is online: then the images
    are its stream.

    Args:
        paths: Paths of the images.
        adapter: The method.
    """
    for batch in batched(paths, AT_ONCE):
        # The index seeds the random views. One index for all: the views of an image do not depend
        # on its place in the list.
        adapted = adapter(batch, index=[0] * len(batch))
        before = adapted.zero_shot_logits.float().cpu()
        after = adapted.logits.float().cpu()
        with_sals = torch.as_tensor(sals(after, before))
        for row, path in enumerate(batch):
            context = None
            if adapted.ctx is not None:
                context = adapted.ctx[row]
                if context.dim() == 3:  # one per class
                    context = context[after[row].argmax()]
            yield Prediction(
                path=path,
                before=before[row],
                after=after[row],
                with_sals=with_sals[row],
                failed=adapted.flagged is not None and bool(adapted.flagged[row]),
                context=context,
            )
