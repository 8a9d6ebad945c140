"""A user's own images, classified before and after tuning, and their table."""
from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tabulate import tabulate

from ...datasets.utils.errors import DataError
from ...datasets.utils.files import read_regular, write_text
from ...datasets.views.images import BadImageError, open_image
from ..api import Adapter
from ..functional.calibration import sals
from ..registry import method_info
from ..runs.parts import chunks
from ..vlm.openai import SMALL, cache_folder
from ..vlm.openai_clip import WEIGHT_URLS

logger = logging.getLogger(__name__)

PREFERRED = ("ViT-L/14", "ViT-B/16", "ViT-B/32", "RN50")  # among weights that are on this machine
AT_ONCE = 8  # images whose views are in memory together


@dataclass(frozen=True)
class Prediction:
    """The logits (K,) of one image."""

    path: Path
    before: torch.Tensor
    after: torch.Tensor
    with_sals: torch.Tensor
    failed: bool  # tuning gave no finite result, so `after` is `before`
    context: torch.Tensor | None = None  # (n_ctx, width) after tuning, of the predicted class if there is one per class


def class_names(values: Sequence[str]) -> list[str]:
    """Class names from the command line: the names, or one text file with a name per line."""
    if len(values) > 1:
        return [value.strip() for value in values]
    path = Path(values[0])
    try:
        lines = read_regular(path).decode("utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}: give --classes two names or more, or a file with one per "
                        "line") from error
    except OSError as error:
        raise DataError(f"cannot read class names from {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text; give a text file with one class name per line") from error
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise DataError(f"{path} has no class names; give one per line")
    return names


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The given images, and those directly in the given folders. Other files of a folder are skipped with a warning;
    an image that is given by name must be readable."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            open_image(path)
            found.append(path)
            continue
        try:
            files = sorted(file for file in path.iterdir() if not file.name.startswith("."))
        except OSError as error:
            raise DataError(f"cannot read the folder {path}: {error.strerror}") from error
        before = len(found)
        for file in files:
            try:
                open_image(file)
                found.append(file)
            except BadImageError as error:
                logger.warning("skipped: %s", f"{file} is a folder" if file.is_dir() else error)
        if len(found) == before:
            raise DataError(f"the folder {path} has no image; give a folder with images directly in it")
    return found


def default_backbone() -> str:
    """The best OpenAI model whose weights are on this machine, or the embedded small CLIP."""
    for name in PREFERRED:
        if (cache_folder() / WEIGHT_URLS[name].rsplit("/", 1)[-1]).is_file():
            return name
    logger.info("no OpenAI weights on this machine, so the small CLIP is used; --backbone ViT-B/16 downloads one")
    return SMALL


def predict(paths: Sequence[Path], adapter: Adapter) -> Iterator[Prediction]:
    """Predictions of the images, as in an evaluation.

    Each is predicted on its own, whatever the order, unless the method is online: then the images
    are its stream.
    """
    for part in chunks(paths, AT_ONCE):
        adapted = adapter(part, index=[0] * len(part))
        before, after = adapted.zero_shot_logits.float().cpu(), adapted.logits.float().cpu()
        failed = [False] * len(part) if adapted.flagged is None else adapted.flagged.tolist()
        contexts: Sequence[torch.Tensor | None] = [None] * len(part)
        if adapted.ctx is not None:
            contexts = [own[z.argmax()] if own.dim() == 3 else own for own, z in zip(adapted.ctx, after, strict=True)]
        yield from map(Prediction, part, before, after, torch.as_tensor(sals(after, before)), failed, contexts)


def prediction_table(predictions: Sequence[Prediction], trainer: str, classnames: Sequence[str], top: int) -> str:
    """The top classes with their confidence before tuning, after it, and after SaLS, which keeps their order."""
    body = []
    for one in predictions:
        best = [z.softmax(-1).topk(min(top, len(classnames))) for z in (one.before, one.after, one.with_sals)]
        for line in range(len(best[0].values)):
            label = f"{one.path}{' (tuning failed)' if one.failed else ''}" if line == 0 else ""
            names = [classnames[int(found.indices[line])] for found in best]
            shares = [f"{100 * float(found.values[line]):.1f}" for found in best]
            body.append([label, names[0], shares[0], names[1], *shares[1:]])
    headers = ["image", "zero-shot", "conf. %", method_info(trainer).label, "conf. %", "with SaLS"]
    return tabulate(
        body, headers=headers, disable_numparse=True, colalign=("left", "left", "right", "left", "right", "right"),
    )


def write_csv(path: Path, found: Mapping[str, Sequence[Prediction]], classnames: Sequence[str]) -> None:
    """One row per image: class and confidence (0 to 1) before tuning, after each method, and its confidence after SaLS,
    which keeps the class."""
    first = next(iter(found.values()))
    columns = {"image": [str(one.path) for one in first]}
    columns |= _top("zero_shot", [one.before for one in first], classnames)
    for method, listed in found.items():
        columns |= _top(method, [one.after for one in listed], classnames)
        columns[f"{method}_sals_confidence"] = [f"{float(one.with_sals.softmax(-1).max()):.6f}" for one in listed]
        columns[f"{method}_failed"] = [str(int(one.failed)) for one in listed]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *zip(*columns.values(), strict=True)])
    write_text(path, text.getvalue())


def _top(name: str, logits: Sequence[torch.Tensor], classnames: Sequence[str]) -> dict[str, list[str]]:
    shares = torch.stack(list(logits)).softmax(-1).max(-1)
    return {f"{name}_class": [classnames[k] for k in shares.indices.tolist()],
            f"{name}_confidence": [f"{share:.6f}" for share in shares.values.tolist()]}
