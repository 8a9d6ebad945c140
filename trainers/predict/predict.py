"""A user's own images, classified before and after tuning, and their table."""
from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tabulate import tabulate

from ...datasets.utils.errors import DataError
from ...datasets.utils.files import read_regular
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


def default_backbone() -> str:
    """The best OpenAI model whose weights are on this machine, or the embedded small CLIP."""
    for name in PREFERRED:
        if (cache_folder() / WEIGHT_URLS[name].rsplit("/", 1)[-1]).is_file():
            return name
    logger.info("no OpenAI weights on this machine, so the small CLIP is used; --backbone ViT-B/16 downloads one")
    return SMALL


def predict(paths: Sequence[Path], adapter: Adapter) -> Iterator[Prediction]:
    """Predictions of each image on its own, as in an evaluation: the order of the images has no influence."""
    for part in chunks(paths, AT_ONCE):
        adapted = adapter(part, index=[0] * len(part))
        before, after = adapted.zero_shot_logits.float().cpu(), adapted.logits.float().cpu()
        failed = [False] * len(part) if adapted.flagged is None else adapted.flagged.tolist()
        yield from map(Prediction, part, before, after, torch.as_tensor(sals(after, before)), failed)


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
