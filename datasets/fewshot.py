"""Few-shot samples of a training split, and CoOp's halves of the classes."""
from __future__ import annotations

import json
import logging
import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .base import Datum
from .utils.errors import UserError, first_five, one_line
from .utils.files import write_text

logger = logging.getLogger(__name__)

VAL_SHOTS = 4  # CoOp validates on at most four images a class

Samples = dict[str, list[Datum]]  # "train" and "val"


def draw(train: Sequence[Datum], val: Sequence[Datum], num_shots: int, seed: int) -> Samples:
    """`num_shots` images of each class, and up to four for validation, the same for the same seed.

    The generator is used in CoOp's order (classes as they appear, train before val), so that on the published splits
    a seed stands for the images CoOp would draw after seeding Python's generator with it.
    """
    rng = random.Random(seed)
    return {
        "train": draw_split("train", train, num_shots, rng),
        "val": draw_split("val", val, min(num_shots, VAL_SHOTS), rng),
    }


def draw_split(split: str, items: Sequence[Datum], num_shots: int, rng: random.Random) -> list[Datum]:
    """Equally many images of each class. One that has fewer gives what it has and uses up no random numbers, as in
    Dassl since 2021: so the classes after it get the same images there and here. It is reported."""
    by_label: dict[int, list[Datum]] = defaultdict(list)
    for item in items:
        by_label[item.label].append(item)
    chosen: list[Datum] = []
    short = []
    for candidates in by_label.values():
        if len(candidates) < num_shots:
            short.append(f"'{candidates[0].classname}' ({len(candidates)})")
            chosen.extend(candidates)
        else:
            chosen.extend(rng.sample(candidates, num_shots))
    if short:
        logger.warning("%d classes have fewer than %d %s images, of which all are taken: %s",
                       len(short), num_shots, split, first_five(short))
    return chosen


def kept_samples(
    path: Path, image_dir: Path, split_hash: str, train: Sequence[Datum], val: Sequence[Datum],
    num_shots: int, seed: int,
) -> Samples:
    """The samples written at `path`, or new ones, written there for people to read and share.

    A file made from another split (its hash says so) or damaged is replaced. Where the folder cannot be written the
    samples are simply drawn again each time: the seed decides, so they are the same.
    """
    known = {item.impath: item for item in (*train, *val)}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["sampled_from"] == split_hash:
            kept = {split: [known[str(image_dir / entry[0])] for entry in content[split]] for split in ("train", "val")}
            if all(len(set(items)) == len(items) for items in kept.values()):
                return kept
            logger.warning("%s repeats images, as version 0.1 did where a class had too few; drawing again", path)
        else:
            logger.warning("%s was drawn from another split; drawing again", path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        logger.warning("%s cannot be used (%s: %s); drawing again", path, type(error).__name__, one_line(error, 200))
    samples = draw(train, val, num_shots, seed)
    write_samples(path, image_dir, split_hash, samples)
    return samples


def write_samples(path: Path, image_dir: Path, split_hash: str, samples: Samples) -> None:
    """Writes the file whole or not at all: several processes may build the same data set at once."""
    lines = [f'"sampled_from": {json.dumps(split_hash)}']
    for split, items in samples.items():
        entries = [[Path(item.impath).relative_to(image_dir).as_posix(), item.label, item.classname] for item in items]
        rows = ",\n  ".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
        lines.append(f'"{split}": [\n  {rows}\n]')
    try:
        write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")
    except UserError as error:
        logger.info("few-shot samples are not kept (%s)", error)
    else:
        logger.info("few-shot samples written to %s (DATASET.FEWSHOT_DIR puts them elsewhere)", path)


def select_classes(
    classnames: Sequence[str], splits: Sequence[Sequence[Datum]], which: str,
) -> tuple[list[str], list[list[Datum]]]:
    """CoOp's `base` (first half, rounded up) or `new` (second half) of the classes, labels counted from 0 again."""
    if which == "all":
        return list(classnames), [list(items) for items in splits]
    half = math.ceil(len(classnames) / 2)
    start, stop = (0, half) if which == "base" else (half, len(classnames))
    chosen = [
        [replace(item, label=item.label - start) for item in items if start <= item.label < stop] for items in splits
    ]
    return list(classnames[start:stop]), chosen
