"""Parquet files: their columns, the features that the library `datasets` describes, single rows."""
from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .utils.errors import DataError, one_line

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
    """The error of a file that is not complete.

    Args:
        path: The file.
        error: What pyarrow raised.
    """
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
        """A column in one row group, as pyarrow's array.

        Args:
            group: Number of the row group.
            column: Name of the column.
        """
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

    def read(self, path: str, row: int) -> bytes:
        """The stored bytes of an image; b"" if there are none.

        Args:
            path: The file.
            row: Number of the row in the file.
        """
        return bytes_of(self.read_cell(path, row))

    def read_cell(self, path: str, row: int) -> Any:
        """A cell as the file has it: bytes, or a dict with `bytes` and `path`.

        Args:
            path: The file.
            row: Number of the row in the file.
        """
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
