"""Checks a data root: which data sets are there, whether they are complete, and what to do next."""
from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ..base import Datum, LazyList
from ..checks import describe_copies
from ..file_dataset import FileDataset
from ..image_index import ImageIndex
from ..utils.cli import counted
from ..utils.errors import DataError, first_five, reading
from ..utils.progress import show_progress
from ..views.images import BadImageError
from .fetch import Source
from .install import missing_metadata

HEADERS = (
    "data set", "state", "test images", "expected", "classes", "expected", "split",
    "what to do next",
)


@dataclass
class Finding:
    """What was found of one data set.

    Attributes:
        cls: The reader.
        state: `ok`; `partial`, usable but not comparable with published results; `faulty`; or
            `absent`.
        advice: What is wrong, and what to do next; "" if nothing is wrong.
        test: Number of test images; None if the set could not be read.
        classes: Number of classes; None as above.
        split: Hash of the test split; "" as above.
    """

    cls: type[FileDataset]
    state: str
    advice: str = ""
    test: int | None = None
    classes: int | None = None
    split: str = ""

    def row(self) -> tuple[str, ...]:
        """Its cells, one for each of HEADERS."""
        cells = [self.cls.key(), self.state]
        for number in (self.test, self.cls.expected_test, self.classes, self.cls.expected_classes):
            cells.append(f"{number:,}" if number else "–")
        return (*cells, self.split, self.advice)


def inspect(
    cls: type[FileDataset],
    root: Path,
    deep: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Finding:
    """Reads one data set, with its errors, without downloading anything.

    Args:
        cls: The reader.
        root: The data root.
        deep: Whether all images are decoded.
        options: Further arguments of the reader, such as columns of a table.
    """
    try:
        return inspect_files(cls, root, deep, options or {})
    except DataError as error:
        return Finding(cls, "faulty", str(error))


@reading()
def inspect_files(
    cls: type[FileDataset], root: Path, deep: bool, options: Mapping[str, Any],
) -> Finding:
    """Reads one data set as `inspect` does, but raises errors of the file system."""
    if not cls.folder_in(root).is_dir():
        return Finding(cls, "absent", cls.next_step(root).removeprefix("run: "))
    # Split files may be there before the images.
    fault = "faulty" if cls.test_dir(root).is_dir() else "absent"
    missing = missing_metadata(cls, root)
    if missing:
        return Finding(cls, fault, advice_on_missing(cls, root, missing))
    try:
        dataset = cls(root, **options)
        dataset.check_files(dataset.test)
    except DataError as error:
        return Finding(cls, fault, str(error))
    state = "partial" if dataset.difference else "ok"
    finding = Finding(
        cls=cls,
        state=state,
        advice=dataset.difference,
        test=len(dataset.test),
        classes=len(dataset.classnames),
        split=dataset.test_hash,
    )
    train: Sequence[Datum] = []
    if deep or not isinstance(dataset.train, LazyList):
        train = dataset.train
    training = [*train, *dataset.val]
    absent = {item.impath for item in training if not dataset.is_file(item)}
    if absent:
        missing_too = (f"{len(absent):,} of {len(training):,} training images missing (test-time "
                       f"methods need none)")
        finding.advice = "; ".join(filter(None, (finding.advice, missing_too)))
    copies = describe_copies(dataset, present_splits(dataset, train, absent), ImageIndex())
    finding.advice = "; ".join(filter(None, (finding.advice, copies)))
    if deep:
        items = {}
        for item in (*dataset.test, *training):
            if item.impath not in absent:
                items[item.impath] = item
        bad = unreadable(dataset, list(items.values()))
        if bad:
            finding.state = "faulty"
            finding.advice = f"{counted(len(bad), 'unreadable image')}: {first_five(bad)}"
    return finding


def advice_on_missing(cls: type[FileDataset], root: Path, missing: Sequence[Source]) -> str:
    """What to do about missing files beside the images."""
    links = []
    for source in missing:
        if source.link:
            links.append(f"{source.name} ({source.link})")
        else:
            links.append(source.name)
    names = " and ".join(links)
    where = cls.folder_in(root)
    if cls.is_in_tpt_layout(root) and cls.test_dir(root).is_dir():
        advice = f"images are in {cls.test_dir(root)}, in TPT's layout; needed in {where}: {names}"
    else:
        advice = f"{names} missing in {where}"
    return f"{advice}: {cls.next_step(root).removeprefix('run: ')}"


def present_splits(
    dataset: FileDataset, train: Sequence[Datum], absent: Collection[str],
) -> dict[str, list[Datum]]:
    """The images that are there, by split.

    ImageNet's `val` is its test list, which is known: it is left out.

    Args:
        dataset: The reader.
        train: The training images; [] if they are not looked at.
        absent: Paths of images that are not there.
    """
    splits = {"test": list(dataset.test)}
    splits["train"] = [item for item in train if item.impath not in absent]
    if dataset.val is not dataset.test:
        splits["val"] = [item for item in dataset.val if item.impath not in absent]
    return splits


def unreadable(dataset: FileDataset, items: Sequence[Datum]) -> list[str]:
    """The paths of the images that cannot be decoded."""

    def readable(item: Datum) -> bool:
        try:
            dataset.read_image(item)
        except BadImageError:
            return False
        return True

    paths = []
    with ThreadPoolExecutor() as pool:
        answers = pool.map(readable, items)
        watched = show_progress(answers, dataset.key(), "images", total=len(items))
        for item, is_readable in zip(items, watched, strict=True):
            if not is_readable:
                paths.append(item.impath)
    return paths


def table(findings: Iterable[Finding]) -> str:
    """The findings as a table for the terminal."""
    align = ("left", "left", "right", "right", "right", "right", "left", "left")
    rows = [finding.row() for finding in findings]
    widths = [None] * 7 + [72]  # letters of the last column, the advice; others as they need
    return tabulate(rows, HEADERS, disable_numparse=True, colalign=align, maxcolwidths=widths)
