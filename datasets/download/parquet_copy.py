"""Matches a hub's copy of a benchmark, in parquet files, with CoOp's split file."""
from __future__ import annotations

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base import Datum
from ..file_dataset import SplitEntry
from ..parquet import ROW, Parquet
from ..utils.errors import DataError, first_five
from ..utils.progress import show_progress

logger = logging.getLogger(__name__)


class QuietParquet(Parquet):
    """A set that is only copied: nothing is hashed, and no run depends on its class names."""

    def warn(self) -> None:
        """Nothing: the copy is compared with the published set instead."""
        pass

    def stored_name(self, item: Datum) -> str:
        """The file name that is stored with an image; "" if there is none."""
        path, _, row = item.impath.rpartition(ROW)
        cell = self.cells.read_cell(path, int(row))
        if not isinstance(cell, dict) or not isinstance(cell.get("path"), str):
            return ""
        return cell["path"].replace("\\", "/").rpartition("/")[2]


@dataclass
class MatchedCopy:
    """The images of a copy with the paths that the split file has for them."""

    dataset: QuietParquet
    paths: list[tuple[Datum, str]]

    def write(self, folder: Path) -> None:
        """Writes the images as they are stored."""
        total = len(self.paths)
        for item, path in show_progress(self.paths, "writing images", "files", total=total):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.dataset.stored_bytes(item))


def match_copy(folder: Path, entries: Mapping[str, Sequence[SplitEntry]]) -> MatchedCopy:
    """Finds a path for each image of a copy.

    Args:
        folder: The folder of the parquet files.
        entries: The split file. Its `train` and `val` are the copy's training images.

    Raises:
        DataError: If classes, or the number of images of a class, differ.
    """
    dataset = QuietParquet(folder)
    published = {"test": list(entries["test"]), "train": [*entries["train"], *entries["val"]]}
    copied = {"test": list(dataset.test), "train": [*dataset.train, *dataset.val]}
    published_names: set[str] = set()
    for rows in published.values():
        published_names.update(name for _, _, name in rows)
    names = match_names(dataset.classnames, published_names, folder)
    if not copied["train"]:  # a copy for testing
        del copied["train"]
    for split, items in copied.items():
        counts = Counter(names[item.classname] for item in items)
        compare_counts(split, counts, Counter(name for _, _, name in published[split]), folder)
    paths = []
    for split, items in copied.items():
        paths += match_split(dataset, items, published[split], names)
    return MatchedCopy(dataset, paths)


def match_names(copied: Sequence[str], published: set[str], folder: Path) -> dict[str, str]:
    """CoOp's name of each class of the copy.

    Words may have another order: `Acura RL Sedan 2012` is `2012 Acura RL Sedan`.

    Args:
        copied: Class names of the copy.
        published: Class names of the split file.
        folder: Folder of the copy, for the message.
    """
    by_words = {words_of(name): name for name in published}
    names = {}
    unknown = []
    for name in copied:
        if words_of(name) in by_words:
            names[name] = by_words[words_of(name)]
        else:
            unknown.append(f"'{name}'")
    absent = sorted(published - set(names.values()))
    if unknown or absent or len(set(names.values())) < len(names):
        raise DataError(f"{folder} is not the published set: it has {len(copied)} classes and the "
                        f"split file {len(published)}; only in the copy: "
                        f"{first_five(unknown) or 'none'}; only in the split file: "
                        f"{first_five(absent) or 'none'}")
    return names


def words_of(name: str) -> tuple[str, ...]:
    """The words of a name in alphabetical order."""
    return tuple(sorted(re.findall(r"[a-z0-9]+", name.lower())))


def compare_counts(split: str, copied: Counter[str], published: Counter[str], folder: Path) -> None:
    """Refuses a copy with other numbers of images, with both numbers.

    Args:
        split: `train` or `test`, for the message.
        copied: Images of the copy by class.
        published: Images of the split file by class.
        folder: Folder of the copy, for the message.
    """
    differences = []
    for name in sorted(published | copied):
        if copied[name] != published[name]:
            differences.append(f"'{name}' {copied[name]} and {published[name]}")
    if differences:
        raise DataError(
            f"{folder} is not the published set: it has {copied.total():,} {split} "
            f"images, the split file {published.total():,}; images by class there and in "
            f"the split file: {first_five(differences)}; read it with "
            f"--dataset-config-file parquet instead"
        )


def match_split(
    dataset: QuietParquet,
    items: Sequence[Datum],
    published: Sequence[SplitEntry],
    names: Mapping[str, str],
) -> list[tuple[Datum, str]]:
    """The path of each image of a split: by its stored file name, else in the order of its class.

    Args:
        dataset: The copy.
        items: The images of the split.
        published: The split file's images of the split.
        names: CoOp's name of each class of the copy.
    """
    by_name = {(path.rpartition("/")[2], name): path for path, _, name in published}
    paths = []
    for item in items:
        path = by_name.get((dataset.stored_name(item), names[item.classname]))
        if path is not None:
            paths.append((item, path))
    if len(paths) == len(items) and len({path for _, path in paths}) == len(items):
        return paths

    logger.info(
        "the copy has no file names: images of a class get the names of its images in their "
        "order, so few-shot samples are not CoOp's"
    )
    waiting = defaultdict(list)
    for path, _, name in reversed(published):
        waiting[name].append(path)
    paths = []
    for item in items:
        paths.append((item, waiting[names[item.classname]].pop()))
    return paths
