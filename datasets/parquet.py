"""Images inside parquet files, as image-classification sets of the Hugging Face hub have them."""
from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .base import DATASET_REGISTRY, Datum
from .benchmarks import log_comparison
from .columns import (
    SPLITS,
    BadRows,
    ColumnChoice,
    candidates,
    chosen_column,
    listed,
    missing_column,
    parse_columns,
    sort_key,
    split_of_word,
)
from .file_dataset import Splits
from .image_index import (
    SETTLED_NS,
    ImageHash,
    ImageIndex,
    Stamp,
    add_to_index,
    new_hash,
    read_index,
    read_stamp,
    unreadable,
)
from .own_images import OwnImages
from .utils.errors import DataError, first_five, one_line, reading
from .views.images import BadImageError, decode_image

logger = logging.getLogger(__name__)

ROW = "::"  # between a file and a row in the name of an image
# test-00000-of-00002.parquet; the name of a split may have any letters.
SHARD = re.compile(r"(?P<split>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})")
NEEDS_PYARROW = "reading parquet files needs pyarrow: pip install 'promptcal[parquet]'"
MOST_BYTES = 1 << 30  # of the row groups in memory


@contextmanager
def reading_parquet(path: Path) -> Iterator[None]:
    """Turns what pyarrow raises on a damaged file into one line."""
    try:
        yield
    except ImportError as error:
        raise DataError(NEEDS_PYARROW) from error
    except DataError:
        raise
    except OSError as error:
        if error.errno:  # the system's, such as a missing file; pyarrow's own errors have no number
            raise
        raise damaged(path, error) from error
    except Exception as error:  # a damaged file can cause any
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> DataError:
    """The error of a file that is not complete."""
    return DataError(f"{path} is not a complete parquet file ({one_line(error, 200)}): download it "
                     f"again")


class ParquetFile:
    """One parquet file. Row groups are read when they are needed."""

    def __init__(self, path: Path) -> None:
        """
        Args:
            path: The file, of which only the metadata is read here.
        """
        self.path = path
        with reading_parquet(path):
            from pyarrow import parquet  # an extra: readers of other files work without it

            self.file = parquet.ParquetFile(path)
            schema = self.file.schema_arrow
            self.types = {name: schema.field(name).type for name in schema.names}
            self.features = read_features(schema.metadata or {})
            metadata = self.file.metadata
            sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        # First row of each group, and the number of all rows.
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.starts[-1])

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.types)

    def kind(self, column: str) -> str:
        """What a column holds: `image` (bytes), `integer`, `text` or `other`."""
        import pyarrow

        column_type = self.types[column]
        if pyarrow.types.is_struct(column_type):
            fields = {column_type.field(number).name for number in range(column_type.num_fields)}
            return "image" if "bytes" in fields else "other"
        if pyarrow.types.is_binary(column_type) or pyarrow.types.is_large_binary(column_type):
            return "image"
        if pyarrow.types.is_integer(column_type):
            return "integer"
        if pyarrow.types.is_string(column_type) or pyarrow.types.is_large_string(column_type):
            return "text"
        return "other"

    def class_names(self, column: str) -> list[str]:
        """The names of a ClassLabel; none for other columns."""
        feature = self.features.get(column)
        if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
            return []
        names = feature.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return []
        return names

    def read_column(self, column: str) -> list[Any]:
        """All cells of a column."""
        with reading_parquet(self.path):
            return self.file.read(columns=[column])[column].to_pylist()

    def read_group(self, group: int, column: str) -> Any:
        """A column in one row group, as pyarrow's array."""
        with reading_parquet(self.path):
            return self.file.read_row_group(group, columns=[column])[column].combine_chunks()

    def group_of(self, row: int) -> int:
        """Number of the row group that holds a row."""
        return int(np.searchsorted(self.starts, row, side="right")) - 1


def read_features(metadata: dict[bytes, bytes]) -> dict[str, Any]:
    """What the library `datasets` says of the columns; nothing if something else wrote the file."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    if isinstance(features, dict):
        return features
    return {}


def bytes_of(cell: Any) -> bytes:
    """The bytes of an image in a cell; b"" if it has none."""
    if isinstance(cell, dict):
        cell = cell.get("bytes")
    if isinstance(cell, bytes):
        return cell
    return b""


class ImageCells:
    """The images of some files, by file and row. The row groups used last stay in memory.

    Several threads may read at once.
    """

    def __init__(self, column: str) -> None:
        """
        Args:
            column: Name of the column that holds the images; "" until it is known.
        """
        self.column = column
        self.files: dict[str, ParquetFile] = {}
        self.groups: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self.lock = threading.Lock()

    def add(self, file: ParquetFile) -> None:
        """Adds a file, whose images can be read then."""
        self.files[str(file.path)] = file

    def read_cell(self, path: str, row: int) -> Any:
        """A cell as the file has it: bytes, or a dict with `bytes` and `path`."""
        file = self.files[path]
        group = file.group_of(row)
        with self.lock:
            key = (path, group)
            if key not in self.groups:
                self.groups[key] = file.read_group(group, self.column)
                self.forget()
            self.groups.move_to_end(key)
            cells = self.groups[key]
        return cells[row - int(file.starts[group])].as_py()

    def forget(self) -> None:
        """Drops the row groups that were used longest ago."""
        size = sum(cells.nbytes for cells in self.groups.values())
        while len(self.groups) > 1 and size > MOST_BYTES:
            _, cells = self.groups.popitem(last=False)
            size -= cells.nbytes


def as_text(cells: Sequence[Any]) -> list[str]:
    """Cells as a csv file would have them.

    A float such as 3.0 becomes `3`: pandas stores whole numbers in a column with gaps as floats.
    """
    texts = []
    for cell in cells:
        if cell is None or cell != cell:  # a gap, or NaN
            texts.append("")
        elif isinstance(cell, float) and cell.is_integer():
            texts.append(str(int(cell)))
        else:
            texts.append(str(cell).strip())
    return texts


def parquet_files_in(root: Path) -> list[Path]:
    """The parquet files below a folder, by path; not the hub's own cache, which is hidden."""
    files = []
    for path in sorted(root.rglob("*.parquet")):
        if not any(part.startswith(".") for part in path.relative_to(root).parts):
            files.append(path)
    return files


def files_by_split(root: Path) -> dict[str, list[Path]]:
    """The files of each split by the hub's name of it, such as `validation`.

    Files are called test-00000-of-00002.parquet or test.parquet, or test/0000.parquet as the hub's
    own conversion has them.

    Raises:
        DataError: If a part of a split is missing, or several configurations have the same split.
    """
    groups: dict[tuple[str, Path], list[Path]] = defaultdict(list)
    counts: dict[tuple[str, Path], int] = {}
    for path in parquet_files_in(root):
        folder = path.parent
        split = path.stem
        shard = SHARD.fullmatch(path.stem)
        if shard:
            split = shard["split"]
            counts[split, folder] = int(shard["count"])
        elif path.stem.isdecimal():
            split = folder.name
            folder = folder.parent
        groups[split, folder].append(path)

    for (split, folder), count in counts.items():
        files = groups[split, folder]
        if len(files) != count:
            raise DataError(f"Parquet: {folder} has {len(files)} of the {count} files of the split "
                            f"'{split}': download the others too")
    by_split: dict[str, list[Path]] = {}
    folder_of: dict[str, Path] = {}
    for (split, folder), files in groups.items():
        if split in by_split:
            raise DataError(f"Parquet: the split '{split}' is in several folders, "
                            f"{folder_of[split]} and {folder}: give one of them as --root")
        by_split[split] = files
        folder_of[split] = folder
    return by_split


def choose_splits(names: Sequence[str], choice: ColumnChoice, root: Path) -> dict[str, list[str]]:
    """The hub's splits that are used for training, validation and testing.

    Args:
        names: All splits of the set, as the hub calls them.
        choice: What DATASET.COLUMNS says, such as `test=validation`.
        root: The folder, for messages.
    """
    chosen: dict[str, list[str]] = {}
    if choice.splits:
        for split, wanted in choice.splits.items():
            unknown = [name for name in wanted if name not in names]
            if unknown:
                raise DataError(f"Parquet: {root} has no split '{unknown[0]}' (DATASET.COLUMNS "
                                f"{split}={','.join(wanted)}); it has: {', '.join(names)}")
            chosen[split] = list(wanted)
        return chosen
    for name in names:
        split = split_of_word(name)
        if split:
            chosen.setdefault(split, []).append(name)
    if "test" not in chosen and len(names) == 1:
        logger.warning("Parquet: the only split, '%s', is used for testing", names[0])
        return {"test": list(names)}
    if "test" not in chosen:
        raise DataError(f"Parquet: {root} has no split 'test' but {', '.join(names)}; say which "
                        f"one has the test images, such as DATASET.COLUMNS \"test={names[-1]}\"")
    unused = [name for name in names if not split_of_word(name)]
    if unused:
        logger.info("Parquet: splits that are not read: %s", ", ".join(unused))
    return chosen


@DATASET_REGISTRY.register()
class Parquet(OwnImages):
    """The images in the parquet files of a data set from the Hugging Face hub.

    The root holds what `hf download NAME --repo-type dataset` has made: parquet files with the
    images' bytes, and labels whose names are in the files. An image is identified by its stored
    bytes.
    """

    def read(self) -> Splits:
        """Lists the images of the splits that are used."""
        choice = parse_columns(self.columns)
        by_split = files_by_split(self.root)
        if not by_split:
            remedy = self.remedy()
            if next(self.root.rglob("*.arrow"), None):
                remedy = ("it holds Arrow files of the library `datasets`: write each split with "
                          "`to_parquet`")
            raise DataError(f"Parquet: there is no parquet file in {self.root}; {remedy}")
        self.hub_splits = choose_splits(list(by_split), choice, self.root)
        lists: dict[str, list[tuple[str, str, str]]] = {split: [] for split in SPLITS}
        self.cells = ImageCells("")
        self.label_names: list[str] | None = None  # of the first file; [] if it has none
        for split, names in self.hub_splits.items():
            for name in names:
                for path in by_split[name]:
                    lists[split] += self.read_file(ParquetFile(path), choice)

        codes: list[str] = self.label_names or []
        if not codes:
            codes = sorted({code for rows in lists.values() for _, code, _ in rows}, key=sort_key)
        names_by_code = self.names_of_classes(codes)
        nameless = [f"'{code}'" for code in codes if code not in names_by_code]
        if nameless:
            raise DataError(f"Parquet: DATASET.CLASSNAMES has no words for {first_five(nameless)}")
        labels = {code: label for label, code in enumerate(codes)}
        items: dict[str, list[Datum]] = {}
        for split, rows in lists.items():
            items[split] = []
            for image, code, group in rows:
                datum = Datum(image, labels[code], classname=names_by_code[code], group=group)
                items[split].append(datum)
        return Splits([names_by_code[code] for code in codes], **items)

    def remedy(self) -> str:
        """How to get such a folder."""
        return ("give the folder of `hf download NAME --repo-type dataset --local-dir FOLDER` with "
                "--root")

    def read_file(self, file: ParquetFile, choice: ColumnChoice) -> list[tuple[str, str, str]]:
        """The rows of a file.

        Returns:
            For each row the name of the image, its class and its group.
        """
        source = str(file.path)
        image_column = self.image_column(file, choice)
        label_column = self.label_column(file, choice, image_column)
        group_column = chosen_column(choice, "group", file.columns, source)
        if not group_column:
            group_column = next(iter(candidates("group", file.columns)), "")
        if self.cells.column not in ("", image_column):
            raise DataError(f"{source} has its images in the column '{image_column}', other files "
                            f"in '{self.cells.column}': they are of different data sets")
        self.cells.column = image_column
        self.cells.add(file)

        names = file.class_names(label_column)
        if self.label_names not in (None, names):
            raise DataError(f"{source} has other class names than the files before it: they are of "
                            f"different data sets")
        self.label_names = names
        codes = as_text(file.read_column(label_column))
        groups = [""] * file.rows
        if group_column:
            groups = as_text(file.read_column(group_column))
        rows = []
        bad = BadRows()
        for row, code in enumerate(codes):
            row_name = f"{file.path.name}, row {row + 1}"
            if names and not (code.isdecimal() and int(code) < len(names)):
                bad.add(row_name, f"label {code or 'missing'}, of {len(names)} classes (hubs hide "
                                  f"the labels of some test splits)")
                continue
            if not code:
                bad.add(row_name, f"no label in the column '{label_column}'")
                continue
            if names:
                code = names[int(code)]
            rows.append((f"{file.path}{ROW}{row}", code, groups[row]))
        bad.refuse("Parquet")
        return rows

    def image_column(self, file: ParquetFile, choice: ColumnChoice) -> str:
        """The column of the images: the user's, else the only one."""
        column = chosen_column(choice, "image", file.columns, str(file.path))
        if column and file.kind(column) == "image":
            return column
        image_columns = [name for name in file.columns if file.kind(name) == "image"]
        if column or not image_columns:
            raise DataError(f"{file.path} has no images in its columns ({listed(file.columns)}); a "
                            f"table of paths is read with --dataset-config-file table")
        if len(image_columns) > 1:
            raise DataError(f"{file.path} has several columns of images: choose one of "
                            f"{listed(image_columns)}, such as DATASET.COLUMNS "
                            f"image={image_columns[0]}")
        return image_columns[0]

    def label_column(self, file: ParquetFile, choice: ColumnChoice, image_column: str) -> str:
        """The column of the labels: the user's, else the only ClassLabel, else by its name."""
        column = chosen_column(choice, "label", file.columns, str(file.path))
        if column:
            return column
        labelled = [name for name in file.columns if file.class_names(name)]
        if len(labelled) > 1:
            raise DataError(f"{file.path} has several columns of labels: choose one of "
                            f"{listed(labelled)}, such as DATASET.COLUMNS label={labelled[0]}")
        others = [name for name in file.columns if name != image_column]
        usual = [*candidates("label", others), *candidates("name", others)]
        usual = [name for name in usual if file.kind(name) in ("integer", "text")]
        if not labelled and not usual:
            raise missing_column("label", file.columns, str(file.path))
        return (labelled or usual)[0]

    def warn(self) -> None:
        """Warns as for any user's images; also logs how the set compares with a benchmark."""
        super().warn()
        hub_names = ", ".join(f"'{name}'" for name in self.hub_splits["test"])
        log_comparison(self.root, hub_names, len(self.test), self.classnames)

    def splits_to_compare(self) -> Mapping[str, Sequence[Datum]]:
        """The test images alone: the others may be gigabytes, which would be read only for this."""
        return {"test": self.test}

    def stored_cell(self, item: Datum) -> Any:
        """The cell of an image: bytes, or a dict with `bytes` and `path`."""
        path, _, row = item.impath.rpartition(ROW)
        return self.cells.read_cell(path, int(row))

    def stored_bytes(self, item: Datum) -> bytes:
        """The bytes of an image's file, as they are in the parquet file."""
        content = bytes_of(self.stored_cell(item))
        if not content:
            raise BadImageError(f"cannot read image {item.impath}: the file has no bytes for it")
        return content

    def read_image(self, datum: Datum) -> Image.Image:
        """Decodes the stored bytes of an image."""
        return decode_image(self.stored_bytes(datum), datum.impath)

    def is_file(self, item: Datum) -> bool:
        """Whether the parquet file that holds the image is there."""
        return Path(item.impath.rpartition(ROW)[0]).is_file()

    @reading()
    def hash_images(self, items: Sequence[Datum], index: ImageIndex) -> list[ImageHash]:
        """Digests of the stored bytes, which are those of the same image as a file.

        They are stored in the index by file and row, with the size and times of the file.
        """
        index_file = index.file_for(self.image_dir)
        known = read_index(index_file)
        stamps: dict[str, Stamp | None] = {}
        hashes = []
        new: dict[str, ImageHash] = {}
        for item in items:
            path, _, row = item.impath.rpartition(ROW)
            if path not in stamps:
                stamps[path] = read_stamp(path)
            key = f"{os.path.realpath(path)}{ROW}{row}"
            image = known.get(key)
            if image is None or image.stamp != stamps[path]:
                try:
                    image = ImageHash(new_hash(self.stored_bytes(item)).digest(), stamps[path])
                    new[key] = image
                except BadImageError as error:
                    image = unreadable(item.impath, error)
            hashes.append(image)
        # A file that has just changed may change again within the resolution of its times, without
        # a difference in them. Its digests are not stored.
        now = time.time_ns()
        settled = {}
        for key, image in new.items():
            if image.stamp is not None and now - image.stamp.last_change_ns >= SETTLED_NS:
                settled[key] = image
        if settled:
            add_to_index(index_file, settled)
        return hashes
