"""Data sets whose images are listed in one of CoOp's published split files."""
from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from .checks import names_by_label, read_text
from .file_dataset import FileDataset, Splits
from .utils.errors import DataError, first_five
from .utils.files import leads_out

logger = logging.getLogger(__name__)

Entry = tuple[str, int, str]  # path below the image folder, label, class name
REMEDY = "delete it, and it will be downloaded again"


def read_split_file(path: Path) -> dict[str, list[Entry]]:
    """`{"train": [[path, label, classname], …], "val": …, "test": …}`; anything else is refused."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not readable JSON ({error}); {REMEDY}") from error
    if not isinstance(content, dict) or not isinstance(content.get("test"), list) or not content["test"]:
        raise DataError(f"{path} is not a split file: it must have a list of images under \"test\"; {REMEDY}")
    splits: dict[str, list[Entry]] = {}
    for split in ("train", "val", "test"):
        rows = content.get(split) or []
        bad = [row for row in rows if not is_entry(row)] if isinstance(rows, list) else [rows]
        if bad:
            shown = [*map(quoted, bad[:5]), *bad[5:]]
            raise DataError(f"{path}: {split} has entries that are not [path, label, class name]: {first_five(shown)}")
        outside = [image for image, _, _ in rows if leads_out(image)]
        if outside:
            raise DataError(f"{path}: {split} lists images outside of the data set's folder: {first_five(outside)}; "
                            f"{REMEDY}")
        splits[split] = [(image, label, name) for image, label, name in rows]
    return splits


def is_entry(row: object) -> bool:
    return (
        isinstance(row, list) and [type(part) for part in row] == [str, int, str] and row[1] >= 0
        and all(part.strip() for part in (row[0], row[2]))
    )


def quoted(row: object) -> str:
    try:
        return json.dumps(row)
    except RecursionError:
        return "[[[…"


class SplitFileDataset(FileDataset):
    """Images listed in `split_zhou_<name>.json`, the first of the metadata files."""

    dropped: tuple[str, ...] = ()  # folders of the archive that are not in the published split
    renamed: Mapping[str, str] = {}  # published names of classes by the archive's names

    def published_name(self, name: str) -> str:
        """The published name of a class that the archive calls `name`; a published name stays as it is."""
        return self.renamed.get(name, name)

    def read(self) -> Splits:
        path = self.require(self.metadata[0])
        entries = read_split_file(path)
        everything = [entry for rows in entries.values() for entry in rows]
        self.check_dropped(path, everything)
        raw = names_by_label(str(path), everything)
        classnames = [self.published_name(name) for name in raw]
        renamed = [f"'{a}' → '{b}'" for a, b in zip(raw, classnames, strict=True) if a != b]
        if renamed:
            logger.warning("%s has the archive's class names; using the published ones: %s", path, first_five(renamed))
        lists = {
            split: [self.datum(image, label, classnames[label]) for image, label, _ in rows]
            for split, rows in entries.items()
        }
        return Splits(classnames, **lists)

    def check_dropped(self, path: Path, entries: list[Entry]) -> None:
        folders = tuple(f"{folder}/" for folder in self.dropped)
        wrong = [image for image, _, _ in entries if folders and image.startswith(folders)]
        if wrong:
            raise DataError(f"{path} lists images of {' and '.join(self.dropped)}, which are not in the published "
                            f"split: {first_five(wrong)}; {REMEDY}")
