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
from ..vlm.backbone import Backbone
from ..vlm.openai import SMALL, cache_folder
from ..vlm.openai_clip import CLIP, WEIGHT_URLS

logger = logging.getLogger(__name__)

PREFERRED = ("ViT-L/14", "ViT-B/16", "ViT-B/32", "RN50")  # among weights that are on this machine
AT_ONCE = 8  # images whose views are in memory together

Top = list[tuple[str, float]]  # class names with their probabilities, most likely first


@dataclass(frozen=True)
class Prediction:
    """The most likely classes of one image."""

    path: Path
    before: Top
    after: Top
    with_sals: Top
    failed: bool  # tuning gave no finite result, so `after` is `before`
    logits: tuple[torch.Tensor, ...] = ()  # (K,) each: before, after, with SaLS


def read_classes(path: Path) -> list[str]:
    """Class names from a text file, one per line; empty lines are skipped."""
    try:
        lines = read_regular(path).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise DataError(f"cannot read class names from {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text; give a text file with one class name per line") from error
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise DataError(f"{path} has no class names; give one per line")
    return names


def class_names(values: Sequence[str]) -> list[str]:
    """Class names from the command line: the names, or one file that lists them."""
    if len(values) > 1:
        return [value.strip() for value in values]
    if not Path(values[0]).exists():
        raise DataError(f"there is no file {values[0]}: give --classes two names or more, or a file with one per line")
    return read_classes(Path(values[0]))


def default_backbone() -> str:
    """The best OpenAI model whose weights are on this machine, or the embedded small CLIP."""
    for name in PREFERRED:
        if (cache_folder() / WEIGHT_URLS[name].rsplit("/", 1)[-1]).is_file():
            return name
    logger.info("no OpenAI weights on this machine, so the small CLIP is used; --backbone ViT-B/16 downloads one")
    return SMALL


def predict(
    paths: Sequence[Path], classnames: Sequence[str], adapter: Adapter, top: int = 3,
) -> Iterator[Prediction]:
    """Predictions of each image on its own, as in an evaluation: the order of the images has no influence."""
    for part in chunks(paths, AT_ONCE):
        adapted = adapter(part, index=[0] * len(part))
        before, after = adapted.zero_shot_logits.float().cpu(), adapted.logits.float().cpu()
        scaled = torch.as_tensor(sals(after, before))
        flagged = [False] * len(part) if adapted.flagged is None else adapted.flagged.tolist()
        for at, path in enumerate(part):
            logits = (before[at], after[at], scaled[at])
            tops = [_top(z, classnames, top) for z in logits]
            yield Prediction(path, tops[0], tops[1], tops[2], flagged[at], logits)


def make_adapter(
    classnames: Sequence[str], trainer: str, model: CLIP | Backbone, num_views: int = 64, augmix: bool = True,
    seed: int = 0, opts: Sequence = (),
) -> Adapter:
    """A method for these classes, with views as in a run with this seed."""
    own = ["SEED", seed, "TTA.AUGMIX", "on" if augmix else "off"]
    return Adapter(trainer, model, classnames, num_views, [*own, *opts])


def prediction_table(predictions: Sequence[Prediction], trainer: str) -> str:
    """The top classes with their confidence before tuning, after it, and after SaLS."""
    name = method_info(trainer).label
    body = []
    for prediction in predictions:
        lines = zip(prediction.before, prediction.after, prediction.with_sals, strict=True)
        for line, ((old, old_p), (new, new_p), (_, scaled_p)) in enumerate(lines):
            label = f"{prediction.path}{' (tuning failed)' if prediction.failed else ''}" if line == 0 else ""
            body.append([label, old, f"{100 * old_p:.1f}", new, f"{100 * new_p:.1f}", f"{100 * scaled_p:.1f}"])
    headers = ["image", "zero-shot", "conf. %", name, "conf. %", "with SaLS"]
    return tabulate(
        body, headers=headers, disable_numparse=True, colalign=("left", "left", "right", "left", "right", "right"),
    )


def _top(logits: torch.Tensor, classnames: Sequence[str], count: int) -> Top:
    """The most likely classes. SaLS keeps their order: the lists after tuning and after SaLS name the same classes."""
    best = logits.softmax(-1).topk(min(count, len(classnames)))
    return [(classnames[k], p) for p, k in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
