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
    """Reads a split file, `{"train": [[path, label, classname], …], "val": …, "test": …}`.

    Raises:
        DataError: The file has anything else, or paths that lead out of the data set's folder.
    """
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not readable JSON ({error}); {REMEDY}") from error
    test = content.get("test") if isinstance(content, dict) else None
    if not isinstance(test, list) or not test:
        raise DataError(f"{path} is not a split file: it must have a list of images under "
                        f"\"test\"; {REMEDY}")
    splits = {}
    for split in ("train", "val", "test"):
        rows = content.get(split) or []
        bad = [rows]
        if isinstance(rows, list):
            bad = [row for row in rows if not is_entry(row)]
        if bad:
            words = first_five([reprlib.repr(row) for row in bad])  # it may be nested 1,000 deep
            raise DataError(f"{path}: {split} has entries that are not [path, label, class name]: "
                            f"{words}")
        outside = [image for image, _, _ in rows if leads_out(image)]
        if outside:
            raise DataError(f"{path}: {split} lists images outside of the data set's folder: "
                            f"{first_five(outside)}; {REMEDY}")
        splits[split] = [(image, label, name) for image, label, name in rows]
    return splits


def is_entry(row: object) -> bool:
    """Whether a row has a path, a label and a class name."""
    if not isinstance(row, list) or len(row) != 3:
        return False
    path, label, name = row
    if type(path) is not str or type(label) is not int or type(name) is not str:
        return False
    return label >= 0 and bool(path.strip()) and bool(name.strip())


class SplitFileDataset(FileDataset):
    """Images listed in `split_zhou_<name>.json`, the first of the metadata files."""

    def read(self) -> Splits:
        """Lists the images of the split file."""
        path = self.require(self.metadata[0])
        entries = read_split_file(path)
        all_entries = [*entries["train"], *entries["val"], *entries["test"]]
        classnames = names_by_label(str(path), all_entries)
        lists = {}
        for split, rows in entries.items():
            lists[split] = [self.datum(*entry) for entry in rows]
        return Splits(classnames, **lists)
