"""Checks a data root: which data sets are there, whether they are complete, and what to do next."""
from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate
from tqdm import tqdm

from ..base import Datum, LazyList, missing_files
from ..file_dataset import FileDataset
from ..utils.errors import DataError, first_five, reading
from ..views.images import BadImageError
from .install import missing_metadata

HEADERS = ("data set", "state", "test images", "expected", "classes", "expected", "split", "what to do next")


@dataclass
class Finding:
    """One row of the table. States: ok, partial (usable, figures do not compare), faulty, absent."""

    cls: type[FileDataset]
    state: str
    advice: str = ""
    test: int | None = None
    classes: int | None = None
    split: str = ""

    def row(self) -> tuple[str, ...]:
        found = [f"{count:,}" if count is not None else "–" for count in (self.test, self.classes)]
        expected = [f"{count:,}" if count else "–" for count in (self.cls.expected_test, self.cls.expected_classes)]
        return (self.cls.key(), self.state, found[0], expected[0], found[1], expected[1], self.split, self.advice)


def inspect(cls: type[FileDataset], root: Path, deep: bool = False) -> Finding:
    """Reads one data set without downloading anything; `deep` also decodes all of its images. Warnings of the reader
    become part of the advice, and errors concern this data set alone."""
    with collected_warnings() as messages:
        try:
            finding = inspect_files(cls, root, deep)
        except DataError as error:
            finding = Finding(cls, "faulty", str(error))
    warnings = [message.removeprefix(f"{cls.name()}: ") for message in messages]
    finding.advice = "; ".join(filter(None, (finding.advice, *warnings)))
    return finding


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collects what readers log and does not show it."""
    messages: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        messages.append(record.getMessage())
        return False

    handler = logging.Handler()
    handler.addFilter(collect)
    readers = logging.getLogger(__name__.removesuffix(".download.verify"))
    level, propagate = readers.level, readers.propagate
    readers.addHandler(handler)
    readers.setLevel(logging.INFO)
    readers.propagate = False
    try:
        yield messages
    finally:
        readers.removeHandler(handler)
        readers.setLevel(level)
        readers.propagate = propagate


@reading()
def inspect_files(cls: type[FileDataset], root: Path, deep: bool) -> Finding:
    if not (root / cls.folder).is_dir():
        return Finding(cls, "absent", cls.download_command(root))
    fault = "faulty" if cls.test_dir(root).is_dir() else "absent"  # split files may be there before the images
    missing = missing_metadata(cls, root)
    if missing:
        links = [f"{source.name} ({source.link})" if source.link else source.name for source in missing]
        return Finding(cls, fault, f"{' and '.join(links)} missing in {root / cls.folder}: "
                                   f"{cls.download_command(root)}")
    try:
        dataset = cls(root)
        dataset.check_files(dataset.test)
    except DataError as error:
        return Finding(cls, fault, str(error))
    state = "partial" if dataset.difference else "ok"
    finding = Finding(cls, state, "", len(dataset.test), len(dataset.classnames), dataset.test_hash)
    training = [*dataset.val] if isinstance(dataset.train, LazyList) and not deep else [*dataset.train, *dataset.val]
    absent = set(missing_files(training))
    if absent:
        finding.advice = (f"{len(absent):,} of {len(training):,} training images missing (test-time methods do not "
                          f"need them)")
    if deep:
        items = {item.impath: item for item in (*dataset.test, *training) if item.impath not in absent}
        bad = unreadable(dataset, list(items.values()))
        if bad:
            finding.state, finding.advice = "faulty", f"{len(bad)} unreadable images: {first_five(bad)}"
    return finding


def unreadable(dataset: FileDataset, items: Sequence[Datum]) -> list[str]:
    """The images of `items` that cannot be decoded."""

    def fault(item: Datum) -> str | None:
        try:
            dataset.read_image(item)
        except BadImageError:
            return item.impath
        return None

    with ThreadPoolExecutor() as pool:
        faults = tqdm(pool.map(fault, items), total=len(items), desc=dataset.key(), unit=" images", disable=None)
        return [path for path in faults if path]


def table(findings: Iterable[Finding]) -> str:
    return tabulate(
        [finding.row() for finding in findings], headers=HEADERS, disable_numparse=True,
        colalign=("left", "left", "right", "right", "right", "right", "left", "left"),
        maxcolwidths=[None] * 7 + [72],
    )
