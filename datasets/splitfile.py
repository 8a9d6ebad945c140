"""Data sets whose images are listed in one of CoOp's published split files."""
from __future__ import annotations

import json
import reprlib
from pathlib import Path

from .checks import names_by_label, read_text
from .file_dataset import FileDataset, Splits
from .utils.errors import DataError, first_five
from .utils.files import leads_out

Entry = tuple[str, int, str]  # path below the image folder, label, class name
REMEDY = "delete it, and it will be downloaded again"


def read_split_file(path: Path) -> dict[str, list[Entry]]:
    """`{"train": [[path, label, classname], …], "val": …, "test": …}`; anything else is refused."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not readable JSON ({error}); {REMEDY}") from error
    if not isinstance(content, dict) or not isinstance(content.get("test"), list) or not content["test"]:
        raise DataError(f"{path} is not a split file: it must have a list of images under "
                        f"\"test\"; {REMEDY}")
    splits = {}
    for split in ("train", "val", "test"):
        rows = content.get(split) or []
        bad = [row for row in rows if not is_entry(row)] if isinstance(rows, list) else [rows]
        if bad:
            shown = first_five([reprlib.repr(row) for row in bad])  # it may be nested 1,000 deep
            raise DataError(f"{path}: {split} has entries that are not [path, label, class name]: "
                            f"{shown}")
        outside = [image for image, _, _ in rows if leads_out(image)]
        if outside:
            raise DataError(f"{path}: {split} lists images outside of the data set's folder: "
                            f"{first_five(outside)}; {REMEDY}")
        splits[split] = [(image, label, name) for image, label, name in rows]
    return splits


def is_entry(row: object) -> bool:
    return (isinstance(row, list) and [type(part) for part in row] == [str, int, str] and row[1] >= 0
            and all(part.strip() for part in (row[0], row[2])))


class SplitFileDataset(FileDataset):
    """Images listed in `split_zhou_<name>.json`, the first of the metadata files."""

    def read(self) -> Splits:
        path = self.require(self.metadata[0])
        entries = read_split_file(path)
        classnames = names_by_label(str(path), [entry for rows in entries.values() for entry in rows])
        lists = {split: [self.datum(*entry) for entry in rows] for split, rows in entries.items()}
        return Splits(classnames, **lists)
