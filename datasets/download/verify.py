"""Looks over a data root: what is there, whether it is whole, and what to do next."""
from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate
from tqdm import tqdm

from ..base import Datum
from ..checks import missing_files
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
    """Reads one benchmark, downloading nothing; `deep` also decodes each of its images. What its reader remarks goes
    with the advice, and a folder that cannot be read is that set's fault alone."""
    with readers_remarks() as remarks:
        try:
            finding = look_over(cls, root, deep)
        except DataError as error:
            finding = Finding(cls, "faulty", str(error))
    said = [remark.removeprefix(f"{cls.name()}: ") for remark in remarks]
    finding.advice = "; ".join(filter(None, (finding.advice, *said)))
    return finding


@contextmanager
def readers_remarks() -> Iterator[list[str]]:
    """Collects what readers log instead of letting it through."""
    remarks: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: remarks.append(record.getMessage())
    readers = logging.getLogger(__package__.rpartition(".")[0])
    level, propagate = readers.level, readers.propagate
    readers.addHandler(handler)
    readers.setLevel(logging.INFO)
    readers.propagate = False
    try:
        yield remarks
    finally:
        readers.removeHandler(handler)
        readers.setLevel(level)
        readers.propagate = propagate


@reading()
def look_over(cls: type[FileDataset], root: Path, deep: bool) -> Finding:
    """What there is of one benchmark."""
    if not (root / cls.folder).is_dir():
        return Finding(cls, "absent", cls.download_command(root))
    fault = "faulty" if cls.test_dir(root).is_dir() else "absent"  # split files may have been fetched ahead of images
    missing = missing_metadata(cls, root)
    if missing:
        links = [f"{source.name} ({source.link})" if source.link else source.name for source in missing]
        return Finding(cls, fault, f"{' and '.join(links)} missing in {root / cls.folder}: "
                                   f"{cls.download_command(root)}")
    try:
        dataset = cls(root)
    except DataError as error:
        return Finding(cls, fault, str(error))
    state = "partial" if dataset.difference else "ok"
    finding = Finding(cls, state, "", len(dataset.test), len(dataset.classnames), dataset.test_hash)
    training = [*dataset.train, *dataset.val] if deep else [*vars(dataset).get("train", ()), *dataset.val]
    unavailable = set(missing_files(training))
    if unavailable:
        finding.advice = (f"{len(unavailable):,} of {len(training):,} training images absent (test-time methods do "
                          f"not need them)")
    if deep:
        items = {item.impath: item for item in (*dataset.test, *training) if item.impath not in unavailable}
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
