"""A user's own pictures: read, classified before and after tuning, and laid out as a table."""
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
from ..vlm.openai_clip import CLIP, WEIGHT_URLS
from ..vlm.openai_weights import SMALL, cache_folder

logger = logging.getLogger(__name__)

PREFERRED = ("ViT-L/14", "ViT-B/16", "ViT-B/32", "RN50")  # of weights that are already on this machine
AT_ONCE = 8  # pictures whose views are in memory together

Top = list[tuple[str, float]]  # class names with their probabilities, most likely first


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes of one picture."""

    path: Path
    before: Top
    after: Top
    with_sals: Top
    failed: bool  # tuning gave no finite number, so `after` is `before`
    logits: tuple[torch.Tensor, ...] = ()  # (K,) each: before, after, with SaLS


def read_classes(path: Path) -> list[str]:
    """Class names from a text file, one a line; empty lines are skipped."""
    try:
        lines = read_regular(path).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise DataError(f"cannot read class names from {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no UTF-8 text; give a text file with one class name a line") from error
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise DataError(f"{path} has no class names; give one a line")
    return names


def given_classes(values: Sequence[str]) -> list[str]:
    """Class names as a command gives them: by name, or one file that lists them."""
    if len(values) > 1:
        return [value.strip() for value in values]
    if not Path(values[0]).exists():
        raise DataError(f"there is no file {values[0]}: give --classes two names or more, or a file with one a line")
    return read_classes(Path(values[0]))


def default_backbone() -> str:
    """The best OpenAI model whose weights are on this machine, else the small one that comes with the project."""
    for name in PREFERRED:
        if (cache_folder() / WEIGHT_URLS[name].rsplit("/", 1)[-1]).is_file():
            return name
    logger.info("no OpenAI weights on this machine, so the small CLIP is used; --backbone ViT-B/16 downloads one")
    return SMALL


def predict(
    paths: Sequence[Path], classnames: Sequence[str], adapter: Adapter, top: int = 3,
) -> Iterator[Prediction]:
    """Each picture on its own, as in an evaluation: the order of the pictures changes nothing."""
    for part in chunks(paths, AT_ONCE):
        adapted = adapter(part)
        before, after = adapted.zero_shot_logits.float().cpu(), adapted.logits.float().cpu()
        rows = zip(part, before, after, sals(after, before), adapted.flagged.tolist(), strict=True)
        for path, *logits, lost in rows:
            yield Prediction(path, *(_top(z, classnames, top) for z in logits), failed=lost, logits=tuple(logits))


def set_up(
    classnames: Sequence[str], trainer: str, model: CLIP | Backbone, views: int = 64, augmix: bool = True,
    seed: int = 0, opts: Sequence = (),
) -> Adapter:
    """A method for these classes, whose views are made as in a run of this seed."""
    own = ["SEED", seed, "TTA.AUGMIX", "on" if augmix else "off"]
    return Adapter(trainer, model, classnames, views, [*own, *opts])


def prediction_table(predictions: Sequence[Prediction], trainer: str) -> str:
    """Class and confidence before tuning, after it, and after SaLS; further lines are the runners-up."""
    name = method_info(trainer).label
    body = []
    for prediction in predictions:
        lines = zip(prediction.before, prediction.after, prediction.with_sals, strict=True)
        for rank, ((old, old_p), (new, new_p), (_, scaled_p)) in enumerate(lines):
            label = f"{prediction.path}{' (tuning failed)' if prediction.failed else ''}" if rank == 0 else ""
            body.append([label, old, f"{100 * old_p:.1f}", new, f"{100 * new_p:.1f}", f"{100 * scaled_p:.1f}"])
    headers = ["picture", "zero-shot", "conf. %", name, "conf. %", "with SaLS"]
    return tabulate(
        body, headers=headers, disable_numparse=True, colalign=("left", "left", "right", "left", "right", "right"),
    )


def _top(logits: torch.Tensor, classnames: Sequence[str], count: int) -> Top:
    """SaLS keeps the order of the classes, so the lists after tuning and after SaLS name the same ones."""
    best = logits.softmax(-1).topk(min(count, len(classnames)))
    return [(classnames[k], p) for p, k in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
