"""Checks of lists of images and class names, which readers make before a model is loaded."""
from __future__ import annotations

import codecs
import hashlib
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .base import Dataset, Datum
from .identity import ImageIdentity, content_of, image_name
from .image_index import ImageIndex, read_stamp
from .utils.errors import DataError, first_five, one_line
from .utils.files import is_printable, read_regular

logger = logging.getLogger(__name__)


def read_text(path: Path) -> str:
    """A list or split file as text: UTF-8, or UTF-16 as Excel's "Unicode text" is."""
    content = read_regular(path)
    encoding = "utf-8-sig"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {path} as UTF-8 text: {error}; save it as UTF-8 (in Excel: "
                        f"\"CSV UTF-8\")") from error


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank."""
    lines = [line.strip() for line in read_text(path).splitlines()]
    return [line for line in lines if line]


def names_by_label(source: str, entries: Sequence[tuple[str, int, str]]) -> list[str]:
    """The class names in the order of their labels.

    Refuses labels without images and labels with two names.

    Args:
        source: The list, for messages.
        entries: Path, label and class name of each image.
    """
    names: dict[int, str] = {}
    clashes = []
    for path, label, name in entries:
        if names.setdefault(label, name) != name:
            clashes.append(f"{path} calls label {label} '{name}', elsewhere it is '{names[label]}'")
    if clashes:
        raise DataError(f"{source} has labels with two names: {first_five(clashes)}")
    gaps = [label for label in range(len(names)) if label not in names]
    if gaps:
        raise DataError(f"{source} has gaps in its labels: no image of label {first_five(gaps)}")
    return [names[label] for label in sorted(names)]


def check_classnames(source: str, classnames: Sequence[str]) -> None:
    """Refuses empty and unprintable class names.

    Warns of a single class and of names that several classes share.
    """
    blank = [label for label, name in enumerate(classnames) if not name.strip()]
    if blank:
        raise DataError(f"{source} has no class name for label {first_five(blank)}")
    check_printable(f"{source} has class names", classnames)
    if len(classnames) == 1:
        logger.warning("%s: one class only, '%s': every prediction is that class, with confidence "
                       "1", source, one_line(classnames[0], 100))
    labels = defaultdict(list)
    for label, name in enumerate(classnames):
        labels[name].append(label)
    shared = []
    for name, labels_of_name in labels.items():
        if len(labels_of_name) > 1:
            shared.append(f"'{name}' {tuple(labels_of_name)}")
    if shared:
        level = logging.WARNING
        if len(shared) * 100 <= len(classnames):  # ImageNet's usual list has a few
            level = logging.INFO
        logger.log(level, "%s: %d class names are shared by several labels: %s",
                   source, len(shared), first_five(shared))


def check_items(
    source: str, split: str, items: Sequence[Datum], classnames: Sequence[str], image_dir: str,
) -> None:
    """Refuses unprintable paths, labels that do not fit the class names, and repeated images."""
    paths = [item.impath.removeprefix(image_dir) for item in items]
    check_printable(f"{source} has file names", paths)
    wrong = []
    for item in items:
        is_label = 0 <= item.label < len(classnames)
        if not is_label or item.classname != classnames[item.label]:
            wrong.append(f"{item.impath} (label {item.label}, '{item.classname}')")
    if wrong:
        raise DataError(f"{source}: labels and class names of the {split} split disagree: "
                        f"{first_five(wrong)}")
    times = Counter(item.impath for item in items)
    twice = [path for path, count in times.items() if count > 1]
    if twice:
        raise DataError(f"{source}: the {split} split lists images twice: {first_five(twice)}")


def check_printable(what: str, names: Sequence[str]) -> None:
    """Refuses names with control characters or broken Unicode.

    Args:
        what: What has these names, for the message.
        names: Names of files or classes.
    """
    bad = [repr(name) for name in names if not is_printable(name)]
    if bad:
        raise DataError(f"{what} with control characters or letters that are not UTF-8: "
                        f"{first_five(bad)}; rename them, or set a locale that has these letters, "
                        f"such as LC_ALL=C.UTF-8")


def split_hash(splits: Mapping[str, Sequence[Datum]], image_dir: str) -> str:
    """A hash of paths, labels and class names by split, independent of the root and of the file's
    format.

    Args:
        splits: The images by name of the split.
        image_dir: The folder to which paths are relative.

    Returns:
        12 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for split, items in splits.items():
        for item in items:
            path = item.impath.removeprefix(image_dir).lstrip(os.sep)
            digest.update(f"{split}\t{path}\t{item.label}\t{item.classname}\n".encode())
    return digest.hexdigest()[:12]


def shared_images(first: ImageIdentity, second: ImageIdentity) -> list[int]:
    """Finds images that two splits share, by content.

    Returns:
        Positions in the first split of the images that are in the second one too.
    """
    is_shared = np.isin(content_of(first.digests), content_of(second.digests))
    return np.asarray(first.indices)[is_shared].tolist()


def describe_copies(
    dataset: Dataset, splits: Mapping[str, Sequence[Datum]], index: ImageIndex,
) -> str:
    """Finds pictures that are in more than one split or class, by content.

    Returns:
        What was found, with the first five of each kind; "" if there are none.
    """
    listed: list[tuple[str, Datum]] = []  # each image with its split
    for split, items in splits.items():
        for item in items:
            listed.append((split, item))

    # Files of different sizes differ, so only those whose size occurs twice are read. Images that
    # are no files have no size: all of them are compared.
    sizes: list[int | None] = []
    for _, item in listed:
        stamp = read_stamp(item.impath)
        sizes.append(stamp.size if stamp else None)
    times = Counter(sizes)
    candidates = []
    for entry, size in zip(listed, sizes, strict=True):
        if times[size] > 1:
            candidates.append(entry)
    hashes = dataset.hash_images([item for _, item in candidates], index)
    pictures = defaultdict(list)  # images by content
    for entry, image in zip(candidates, hashes, strict=True):
        pictures[image.digest].append(entry)

    in_splits = []
    in_classes = []
    for copies in pictures.values():
        names = []
        splits_of_copies = set()
        labels = set()
        for split, item in copies:
            names.append(f"{image_name(dataset, item)} ({split})")
            splits_of_copies.add(split)
            labels.add(item.label)
        if len(splits_of_copies) > 1:
            in_splits.append(" = ".join(names))
        if len(labels) > 1:
            in_classes.append(" = ".join(names))
    notes = []
    if in_splits:
        notes.append(f"pictures in several splits, by content: {len(in_splits)}, such as "
                     f"{first_five(in_splits)}")
    if in_classes:
        notes.append(f"pictures in several classes, by content: {len(in_classes)}, such as "
                     f"{first_five(in_classes)}")
    return "; ".join(notes)
