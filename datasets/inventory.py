"""Looks over a data root: what is there, whether it is whole, and what to do next."""
from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate
from tqdm import tqdm

from .base import Datum
from .benchmark import Benchmark
from .checks import missing_files
from .downloads import missing_metadata
from .errors import DataError, first_five
from .images import BadImageError

logger = logging.getLogger(__name__)

HEADERS = ("data set", "state", "test images", "expected", "classes", "expected", "split", "what to do next")


@dataclass
class Finding:
    """One row of the table. States: ok, partial (usable, figures do not compare), faulty, absent."""

    cls: type[Benchmark]
    state: str
    advice: str = ""
    test: int | None = None
    classes: int | None = None
    split: str = ""

    def row(self) -> tuple[str, ...]:
        found = [f"{count:,}" if count is not None else "–" for count in (self.test, self.classes)]
        expected = [f"{count:,}" if count else "–" for count in (self.cls.expected_test, self.cls.expected_classes)]
        return (self.cls.key(), self.state, found[0], expected[0], found[1], expected[1], self.split, self.advice)


def inspect(cls: type[Benchmark], root: Path, deep: bool = False) -> Finding:
    """Reads one benchmark, downloading nothing; `deep` also decodes each of its images."""
    if not (root / cls.folder).is_dir():
        return Finding(cls, "absent", cls.download_command(root))
    missing = missing_metadata(cls, root)
    if missing:
        links = [f"{source.name} ({source.link})" if source.link else source.name for source in missing]
        return Finding(cls, "faulty", f"{' and '.join(links)} missing in {root / cls.folder}: "
                                      f"{cls.download_command(root)}")
    try:
        dataset = cls(root)
    except DataError as error:
        return Finding(cls, "faulty", str(error))
    finding = Finding(cls, "ok", "", len(dataset.test), len(dataset.classnames), dataset.split_hash)
    whole = (cls.expected_test or finding.test, cls.expected_classes or finding.classes)
    if (finding.test, finding.classes) != whole:
        finding.state, finding.advice = "partial", "figures will not compare with published ones"
    elif cls.published_split and cls.published_split != dataset.split_hash:
        finding.state, finding.advice = "partial", f"not the published split, which is {cls.published_split}"
    training = [*dataset.train, *dataset.val] if deep else [*vars(dataset).get("train", ()), *dataset.val]
    unavailable = set(missing_files(training))
    if unavailable:
        note = f"{len(unavailable):,} of {len(training):,} training images absent (test-time methods do not need them)"
        finding.advice = "; ".join(filter(None, (finding.advice, note)))
    if deep:
        items = {item.impath: item for item in (*dataset.test, *training) if item.impath not in unavailable}
        bad = unreadable(dataset, list(items.values()))
        if bad:
            finding.state, finding.advice = "faulty", f"{len(bad)} unreadable images: {first_five(bad)}"
    return finding


def unreadable(dataset: Benchmark, items: Sequence[Datum]) -> list[str]:
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
