"""What must hold before a model is loaded: labels without gaps, one name a label, every image there, once."""
from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path

from .base import Datum
from .download.sources import LARGEST_LIST
from .utils.errors import DataError, first_five, one_line, reading
from .utils.files import read_regular
from .utils.names import is_writable

logger = logging.getLogger(__name__)


@dataclass
class Splits:
    """What a reader returns. `train` is None where it is read only on demand."""

    classnames: list[str]
    test: list[Datum]
    train: list[Datum] | None = field(default_factory=list)
    val: list[Datum] = field(default_factory=list)

    def named(self) -> list[tuple[str, list[Datum]]]:
        return [("train", self.train or []), ("val", self.val), ("test", self.test)]


def read_text(path: Path) -> str:
    """A list or split file as text, unless it is far larger than any is."""
    if path.stat().st_size > LARGEST_LIST:
        raise DataError(f"{path} has {path.stat().st_size:,} bytes, as no list of images has; put the right file there")
    try:
        return read_regular(path).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {path} as UTF-8 text: {error}") from error


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank."""
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]


def names_by_label(source: str, entries: Sequence[tuple[str, int, str]]) -> list[str]:
    """The class names in the order of their labels. A gap in the labels or a label with two names is an error."""
    names: dict[int, str] = {}
    clashes = []
    for path, label, name in entries:
        if names.setdefault(label, name) != name:
            clashes.append(f"{path} calls label {label} '{name}', elsewhere it is '{names[label]}'")
    if clashes:
        raise DataError(f"{source} has labels with two names: {first_five(clashes)}")
    highest = max(names, default=-1)
    if highest >= len(names):  # of a million or of 10³⁰ labels only the first gaps are of interest
        gaps = list(islice((label for label in count() if label not in names), min(highest + 1 - len(names), 5)))
        more = f" and {highest - 4 - len(names):,} more" if highest - 4 > len(names) else ""
        raise DataError(f"{source} has gaps in its labels: no image of label {first_five(gaps)}{more}")
    return [names[label] for label in sorted(names)]


UNWRITABLE = "with control characters or letters that are no UTF-8"
RENAME = "rename them, or set a locale that has their letters, such as LC_ALL=C.UTF-8"


def check_splits(source: str, splits: Splits, remedy: str, folder: str = "") -> None:
    """Refuses splits that cannot be evaluated; reports what is odd but usable, such as names that occur twice. Only the
    part of a path below `folder` is the data's own."""
    if not splits.test:
        raise DataError(f"{source} has no test images; {remedy}")
    blank = [label for label, name in enumerate(splits.classnames) if not name.strip()]
    if blank:
        raise DataError(f"{source} has no class name for label {first_five(blank)}")
    unwritable = [repr(name) for name in splits.classnames if not is_writable(name)]
    if unwritable:
        raise DataError(f"{source} has class names {UNWRITABLE}: {first_five(unwritable)}; {RENAME}")
    for split, items in splits.named():
        unwritable = [repr(item.impath) for item in items if not is_writable(item.impath.removeprefix(folder))]
        if unwritable:
            raise DataError(f"{source} has file names {UNWRITABLE}: {first_five(unwritable)}; {RENAME}")
        wrong = [
            f"{item.impath} (label {item.label}, '{item.classname}')" for item in items
            if not 0 <= item.label < len(splits.classnames) or item.classname != splits.classnames[item.label]
        ]
        if wrong:
            raise DataError(f"{source}: labels and class names of the {split} split disagree: {first_five(wrong)}")
        twice = [path for path, times in Counter(item.impath for item in items).items() if times > 1]
        if twice:
            raise DataError(f"{source}: the {split} split lists images twice: {first_five(twice)}")
    leaked = {item.impath for item in splits.test} & {item.impath for item in splits.train or []}
    if leaked:
        logger.warning("%s: %d test images are training images too: %s",
                       source, len(leaked), first_five(sorted(leaked)))
    report_names(source, splits.classnames)


def report_names(source: str, classnames: Sequence[str]) -> None:
    """Remarks on a class list that works but means something else than it seems to: the model cannot tell classes of
    one name apart, and of one class alone it is always certain."""
    if len(classnames) == 1:
        logger.warning("%s: one class only, '%s': every prediction is that class, with confidence 1", source,
                       one_line(classnames[0], 100))
    labels = defaultdict(list)
    for label, name in enumerate(classnames):
        labels[name].append(label)
    shared = [f"'{name}' {tuple(which)}" for name, which in labels.items() if len(which) > 1]
    if shared:  # a few of ImageNet's thousand do, in everybody's list
        logger.log(logging.INFO if len(shared) * 100 <= len(classnames) else logging.WARNING,
                   "%s: %d class names stand for several labels: %s", source, len(shared), first_five(shared))


@reading()
def missing_files(items: Sequence[Datum]) -> list[str]:
    """The images of `items` that are not there. Lists each folder once, which network disks answer far faster."""
    present: dict[str, set[str]] = {}
    missing = []
    for item in items:
        folder, name = os.path.split(item.impath)
        if folder not in present:
            try:
                present[folder] = set(os.listdir(folder))  # noqa: PTH208 - names are wanted, not paths
            except (FileNotFoundError, NotADirectoryError):
                present[folder] = set()
        if name not in present[folder]:
            missing.append(item.impath)
    return missing


def split_hash(splits: Sequence[tuple[str, Sequence[Datum]]], image_dir: str) -> str:
    """A hash of which image has which label and name in which split, whatever the file's formatting or the root."""
    digest = hashlib.sha256()
    for split, items in splits:
        for item in items:
            path = item.impath.removeprefix(image_dir).lstrip(os.sep)
            digest.update(f"{split}\t{path}\t{item.label}\t{item.classname}\n".encode())
    return digest.hexdigest()[:12]
