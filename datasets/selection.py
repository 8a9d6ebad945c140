"""Which images of a data set a run uses, and in which order.

Few-shot samples, listed test images, CoOp's base or new half of the classes, long-tailed subsets,
and the order in which an online method sees the test images.
"""
from __future__ import annotations

import json
import logging
import math
import os
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from .base import Dataset, Datum, LazyList
from .checks import read_lines, split_hash
from .utils.errors import ConfigError, DataError, UserError, first_five, one_line, reading
from .utils.files import read_regular, write_text

logger = logging.getLogger(__name__)

Samples = dict[str, list[Datum]]  # the images of "train" and "val"
MOST_SLOTS = 100  # largest number of slots of a correlated order
WINDOW = 64  # number of successive images among which classes are counted


def sample_shots(dataset: Dataset, num_shots: int, seed: int, fewshot_dir: str | Path = "") -> None:
    """Reduces `train` and `val` of a data set to few-shot samples, and checks that their files
    exist.

    A sample that was drawn before is read from its file, as in CoOp, so that all methods and
    machines learn from the same images. Where `val` is the test split, as on ImageNet, it stays
    whole.

    Args:
        dataset: The data set, which is changed.
        num_shots: Number of images per class.
        seed: Seed of the draw.
        fewshot_dir: Folder in which the samples are kept as JSON; "" = with the data.
    """
    has_own_val = dataset.val is not dataset.test
    train = list(dataset.train)
    val: list[Datum] = []
    if has_own_val:
        val = list(dataset.val)
    if not train:
        raise DataError(f"{type(dataset).__name__} has no training images for DATASET.NUM_SHOTS "
                        f"{num_shots}; {dataset.remedy()}")
    if dataset.fewshot_folder is None:
        samples = draw(train, val, num_shots, seed)
    else:
        folder = dataset.fewshot_folder
        if fewshot_dir:
            folder = Path(fewshot_dir).expanduser() / dataset.run_name(dataset.root)
        path = folder / f"shot_{num_shots}-seed_{seed}.json"
        splits = {"train": train, "val": val}
        drawn_from = split_hash({**splits, "test": dataset.test}, str(dataset.image_dir))
        listed_samples = read_samples(path, dataset, splits, drawn_from)
        if listed_samples is not None:
            samples = listed_samples
        else:
            samples = draw(train, val, num_shots, seed)
            write_samples(path, dataset, samples, drawn_from)
    dataset.train = samples["train"]
    dataset.check_files(dataset.train)
    if has_own_val:
        dataset.val = samples["val"]
        dataset.check_files(dataset.val)


def draw(train: Sequence[Datum], val: Sequence[Datum], num_shots: int, seed: int) -> Samples:
    """Draws `num_shots` images per class, and up to four for validation.

    The generator is used in CoOp's order (classes as they appear, train before val), so that on the
    published splits a seed gives the images that CoOp draws after seeding Python's generator with
    it.
    """
    rng = random.Random(seed)
    return {
        "train": draw_split("train", train, num_shots, rng),
        "val": draw_split("val", val, min(num_shots, 4), rng),  # as in CoOp
    }


def draw_split(
    split: str, items: Sequence[Datum], num_shots: int, rng: random.Random,
) -> list[Datum]:
    """Draws images of each class.

    A class with fewer images contributes all of them and uses no random numbers, as in Dassl since
    2021, so the classes after it get the same images as there.
    """
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
        logger.warning("%d classes have fewer than %d %s images, all of which are used: %s",
                       len(short), num_shots, split, first_five(short))
    return chosen


def read_samples(
    path: Path, dataset: Dataset, splits: Samples, drawn_from: str,
) -> Samples | None:
    """Reads the samples that a file lists.

    Returns:
        The images by split; None if there is no file, or if it is damaged or was drawn from another
        split.
    """
    item_of = {item.impath: item for item in (*splits["train"], *splits["val"])}
    try:
        content = json.loads(read_regular(path))
        if content["sampled_from"] != drawn_from:
            logger.warning("%s was drawn from another split; drawing again", path)
            return None
        samples: Samples = {}
        for split in splits:
            paths = [str(dataset.image_dir / entry[0]) for entry in content[split]]
            samples[split] = [item_of[path] for path in paths]
        return samples
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        logger.warning("%s cannot be used (%s: %s); drawing again", path, type(error).__name__,
                       one_line(error, 200))
        return None


def write_samples(path: Path, dataset: Dataset, samples: Samples, drawn_from: str) -> None:
    """Keeps samples as JSON with one image per line.

    Where the folder cannot be written, they are drawn every time; they depend on the seed alone.
    """
    blocks = [f'"sampled_from": {json.dumps(drawn_from)}']
    for split, items in samples.items():
        lines = []
        for item in items:
            image = Path(item.impath).relative_to(dataset.image_dir).as_posix()
            lines.append(json.dumps([image, item.label, item.classname], ensure_ascii=False))
        rows = ",\n  ".join(lines)
        blocks.append(f'"{split}": [\n  {rows}\n]')
    try:
        write_text(path, "{\n" + ",\n".join(blocks) + "\n}\n")
    except UserError as error:
        logger.info("few-shot samples are not kept (%s)", error)
        return
    logger.info("few-shot samples written to %s (set DATASET.FEWSHOT_DIR for another folder)", path)


@reading()
def select_images(dataset: Dataset, image_list: str) -> None:
    """Reduces the test split to the images that a file lists, one per line.

    A line is an image's path below the folder of the images or below the data root. The end of a
    path is enough, such as `<class folder>/<image>`, if no other test image has the same. The file
    is looked for as it is, then in the data root and in the data set's folder.
    """
    path = Path(image_list).expanduser()
    places = (path, dataset.root / path, dataset.image_dir / path)
    list_file = next(filter(Path.is_file, places), None)
    if list_file is None:
        raise DataError(f"DATASET.IMAGE_LIST {image_list} is not a file, nor one in "
                        f"{dataset.image_dir}; RobustBench's 5,000 images of ImageNet are listed "
                        f"in robustbench/data/imagenet_test_image_ids.txt of "
                        f"https://github.com/RobustBench/robustbench")
    lines = [line.removeprefix("./") for line in read_lines(list_file)]
    whole_paths = positions_by_path(dataset)
    by_ending: dict[int, dict[str, list[int]]] = {}  # number of parts -> ending -> positions
    chosen = set()
    missing = []
    ambiguous = []
    for line in dict.fromkeys(lines):
        parts = line.count("/") + 1
        if parts not in by_ending:
            by_ending[parts] = positions_by_ending(dataset.test, parts)
        fitting = by_ending[parts].get(line, [])
        if line in whole_paths:
            chosen.add(whole_paths[line])
        elif len(fitting) == 1:
            chosen.update(fitting)
        elif fitting:
            names = [shortest_path(dataset, dataset.test[position]) for position in fitting]
            ambiguous.append(f"'{line}' may be {first_five(names)}")
        else:
            missing.append(line)
    if missing or not lines:
        example = shortest_path(dataset, dataset.test[0])
        raise DataError(f"{list_file} must list test images of {type(dataset).__name__}, such as "
                        f"{example}, one per line; these are not: "
                        f"{first_five(missing) or 'it is empty'}")
    if ambiguous:
        raise DataError(f"{list_file} has lines that fit several test images; write more of their "
                        f"paths: {first_five(ambiguous)}")
    has_own_val = dataset.val is not dataset.test
    dataset.test = [dataset.test[position] for position in sorted(chosen)]
    if not has_own_val:
        dataset.val = dataset.test


def positions_by_path(dataset: Dataset) -> dict[str, int]:
    """Returns the position of each test image by its path.

    Paths are as they are, relative to the data root, and relative to the folder of the images.
    """
    positions = {}
    for position, item in enumerate(dataset.test):
        path = item.impath.replace(os.sep, "/")
        positions[path] = position
        for folder in (dataset.root, dataset.image_dir):
            positions[path.removeprefix(f"{folder.as_posix()}/")] = position
    return positions


def positions_by_ending(items: Sequence[Datum], parts: int) -> dict[str, list[int]]:
    """Returns the positions of images by the end of their paths.

    Args:
        items: The images.
        parts: Number of names at the end of a path that count.
    """
    positions = defaultdict(list)
    for position, item in enumerate(items):
        ending = "/".join(item.impath.rsplit(os.sep, parts)[-parts:])
        positions[ending].append(position)
    return positions


def shortest_path(dataset: Dataset, item: Datum) -> str:
    """Returns an image's path relative to the folder of the images."""
    return item.impath.replace(os.sep, "/").removeprefix(f"{dataset.image_dir.as_posix()}/")


def select_classes(dataset: Dataset, which: str) -> None:
    """Reduces a data set to half of its classes, as in CoOp, with labels from 0.

    Args:
        dataset: The data set, which is changed.
        which: The half: `base` for the first, rounded up, or `new` for the second.
    """
    half = math.ceil(len(dataset.classnames) / 2)
    start = 0
    stop = half
    if which == "new":
        start = half
        stop = len(dataset.classnames)

    def selected(items: Sequence[Datum]) -> list[Datum]:
        chosen = []
        for item in items:
            if start <= item.label < stop:
                chosen.append(replace(item, label=item.label - start))
        return chosen

    train = dataset.train
    if isinstance(train, LazyList):
        dataset.train = LazyList(lambda: selected(train))
    else:
        dataset.train = selected(train)
    has_own_val = dataset.val is not dataset.test
    dataset.test = selected(dataset.test)
    if has_own_val:
        dataset.val = selected(dataset.val)
    else:
        dataset.val = dataset.test
    dataset.classnames = dataset.classnames[start:stop]


def shuffled(indices: Sequence[int], seed: int) -> list[int]:
    """Shuffles indices. The order depends on the seed and the number of indices alone."""
    rng = np.random.default_rng([seed, len(indices)])
    return rng.permutation(indices).tolist()


def image_order(
    indices: Sequence[int], labels: Sequence[int], order: str, concentration: float, seed: int,
) -> list[int]:
    """Returns the positions of the images in the order in which an online method sees them.

    Args:
        indices: Positions of the images in the split.
        labels: Labels of these images.
        order: Kind of order: `random`; `sorted` by label, with the images of a class shuffled; or
            `correlated`, with neighbours of the same class.
        concentration: Concentration of a correlated order; see `correlated`.
        seed: Seed of the run.
    """
    random_order = shuffled(indices, seed)
    if order == "random":
        return random_order
    if order == "sorted":
        label_of = dict(zip(indices, labels, strict=True))
        return sorted(random_order, key=label_of.__getitem__)
    rng = np.random.default_rng([seed, len(indices)])
    return correlated(np.asarray(indices), np.asarray(labels), concentration, rng)


def correlated(
    indices: np.ndarray, labels: np.ndarray, concentration: float, rng: np.random.Generator,
) -> list[int]:
    """Draws an order in which neighbours are often of one class. (Yuan et al., RoTTA, CVPR 2023.)

    Each class is divided among min(K, 100) slots in shares drawn from a symmetric Dirichlet
    distribution. Slot follows slot. Within a slot the classes come in random order, and the images
    of a class in that of the list. No draw is rejected, so this ends for any concentration.

    Args:
        indices: Positions of the images in the split, shape (N,).
        labels: Labels of these images, shape (N,).
        concentration: RoTTA's γ, above 0; lower is more correlated.
        rng: Source of random numbers.
    """
    classes = np.unique(labels)
    if len(classes) == len(labels):
        raise ConfigError(
            f"TEST.ORDER correlated cannot be drawn: each of the {len(labels)} images has a class "
            f"of its own; use more images (TEST.LIMIT), or TEST.ORDER random or sorted")
    slots = min(len(classes), MOST_SLOTS)
    shares = rng.dirichlet(np.full(slots, concentration), len(classes))  # (K, slots)
    if not np.allclose(shares.sum(1), 1):
        raise ConfigError(f"TEST.CORRELATION {concentration:g} cannot be drawn: use a number such "
                          f"as 0.1")
    pieces = []  # the images of each class by slot
    for label, share in zip(classes, shares, strict=True):
        images = indices[labels == label]
        # Ends of all slots but the last, whose images are the rest.
        ends = (share.cumsum()[:-1] * len(images)).astype(int)
        pieces.append(np.split(images, ends))
    order: list[int] = []
    for slot in range(slots):
        for position in rng.permutation(len(classes)):
            order.extend(pieces[position][slot].tolist())
    return order


def long_tailed(labels: Sequence[int], exponent: float) -> list[int]:
    """Draws images that form a long-tailed set, and returns their positions.

    The class of rank r keeps at most n · r^−exponent of its images and at least one, where n is
    the size of the largest class. Ranks and images are drawn without replacement, so that no image
    counts twice. (LAME, CVPR 2022, draws with replacement.) They do not depend on the seed of the
    run: all seeds of a comparison have the same images.

    Args:
        labels: Labels of all images.
        exponent: TEST.IMBALANCE, above 0; higher is less balanced.
    """
    all_labels = np.asarray(labels)
    rng = np.random.default_rng(len(labels))
    classes, counts = np.unique(all_labels, return_counts=True)
    if counts.max() == 1:
        raise ConfigError(f"TEST.IMBALANCE {exponent:g} cannot be drawn: each of the {len(labels)} "
                          f"images has a class of its own; use 0")
    positions: list[int] = []
    for rank, label in enumerate(rng.permutation(classes), start=1):
        of_class = np.flatnonzero(all_labels == label)
        most = max(1, round(counts.max() * rank ** -exponent))
        chosen = rng.choice(of_class, min(most, len(of_class)), replace=False)
        positions.extend(chosen.tolist())
    return sorted(positions)


def classes_in_window(labels: Sequence[int], window: int = WINDOW) -> float:
    """Returns the mean number of classes among successive images."""
    counts = []
    for start in range(max(1, len(labels) - window + 1)):
        counts.append(len(set(labels[start : start + window])))
    return float(np.mean(counts))
