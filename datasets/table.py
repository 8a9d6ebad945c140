"""A user's own images, listed in a table: csv, tsv or parquet."""
from __future__ import annotations

import csv
import io
import logging
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from .base import DATASET_REGISTRY, Datum
from .checks import read_text
from .columns import (
    ROLES,
    SPLITS,
    BadRows,
    ColumnChoice,
    candidates,
    chosen_column,
    listed,
    missing_column,
    parse_columns,
    sort_key,
    split_of_name,
    split_of_word,
)
from .file_dataset import Splits, files_below
from .own_images import OwnImages, delimiter_of, tables_in
from .parquet import ParquetFile, as_text
from .utils.errors import DataError, first_five
from .utils.files import leads_out
from .views.images import SUFFIXES, is_image_name

logger = logging.getLogger(__name__)


@dataclass
class Sheet:
    """A table in memory.

    Attributes:
        path: Path of the file.
        columns: The cells of each column, as text.
        lines: For each row the line of the file on which it begins; [] for a parquet file.
        class_names: For each column of a ClassLabel its names by label.
    """

    path: Path
    columns: dict[str, list[str]]
    lines: list[int]
    class_names: dict[str, list[str]]

    @property
    def headers(self) -> list[str]:
        """Names of the columns."""
        return list(self.columns)

    @property
    def rows(self) -> int:
        """Number of rows, the header not counted."""
        return len(next(iter(self.columns.values()), []))

    def place(self, row: int) -> str:
        """Where a row is, for messages: its number from 1 without the header, and its line."""
        line = f" (line {self.lines[row]})" if self.lines else ""
        return f"{self.path.name}, row {row + 1}{line}"


@dataclass(frozen=True)
class Entry:
    """A row of a table that has all that is needed.

    Attributes:
        place: File and row, for messages.
        path: Path of the image.
        code: The cell of the label column, which identifies the class.
        name: The cell with the class's name; "" without such a column.
        split: train, val or test.
        group: The cell of the group column, such as the patient; "" without such a column.
    """

    place: str
    path: str
    code: str
    name: str
    split: str
    group: str


@dataclass
class Rows:
    """The rows of all tables.

    Attributes:
        entries: The rows that can be used.
        bad: What is wrong with each of the other rows.
        absent: Images for training that are not there.
    """

    entries: list[Entry] = field(default_factory=list)
    bad: BadRows = field(default_factory=BadRows)
    absent: list[str] = field(default_factory=list)


def read_sheet(path: Path) -> Sheet:
    """Reads a csv, tsv or parquet file into memory. All cells become text."""
    if path.suffix.lower() == ".parquet":
        return read_parquet_sheet(path)
    text = read_text(path)
    delimiter = delimiter_of(path, text)
    skipped_lines = 0
    if text.startswith("sep="):  # Excel's own line, which names the delimiter
        first_line, _, text = text.partition("\n")
        delimiter = first_line.removeprefix("sep=").strip("\r") or delimiter
        skipped_lines = 1
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    headers: list[str] = []
    columns: dict[str, list[str]] = {}
    lines: list[int] = []
    last_line = skipped_lines
    try:
        for row in reader:
            line = last_line + 1
            last_line = skipped_lines + reader.line_num
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if not headers:
                headers = name_columns(cells)
                columns = {header: [] for header in headers}
                if len(columns) < len(headers):
                    raise DataError(f"{path} has two columns of one name: {listed(headers)}")
                continue
            while len(cells) > len(headers) and not cells[-1]:  # delimiters at the end of a line
                cells.pop()
            if len(cells) != len(headers):
                raise DataError(f"{path.name}, row {len(lines) + 1} (line {line}) has {len(cells)} "
                                f"cells for {len(headers)} columns: {listed(headers)}")
            lines.append(line)
            for header, cell in zip(headers, cells, strict=True):
                columns[header].append(cell)
    except csv.Error as error:
        raise DataError(f"{path}, line {last_line}, is not readable: {error}") from error
    if not lines:
        raise DataError(f"{path} has no rows")
    return Sheet(path, columns, lines, {})


def name_columns(headers: Sequence[str]) -> list[str]:
    """Names columns without a header: pandas' index, and empty ones beside a table in Excel."""
    names = []
    for number, header in enumerate(headers, start=1):
        names.append(header or f"column {number}")
    return names


def read_parquet_sheet(path: Path) -> Sheet:
    """The columns of a parquet file that are text or numbers."""
    file = ParquetFile(path)
    columns = {}
    class_names = {}
    for column in file.columns:
        if file.kind(column) == "image":
            raise DataError(f"{path} holds the images themselves, in its column '{column}': use "
                            f"--dataset-config-file parquet")
        columns[column] = as_text(file.read_column(column))
        if file.class_names(column):
            class_names[column] = file.class_names(column)
    if not file.rows:
        raise DataError(f"{path} has no rows")
    return Sheet(path, columns, [], class_names)


class ImageFinder:
    """Finds the images of a table below its folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def by_name(self) -> dict[str, list[str]]:
        """All images below the folder by their names, with and without ending."""
        paths = defaultdict(list)
        for path in files_below(self.root):
            name = os.path.basename(path)  # noqa: PTH119 - there may be a million
            if is_image_name(name):
                paths[name].append(path)
                paths[os.path.splitext(name)[0]].append(path)  # noqa: PTH122
        return paths

    @cached_property
    def by_lower_case(self) -> dict[str, list[str]]:
        """All images below the folder by their paths in lower case, with and without ending."""
        paths = defaultdict(list)
        for path in files_below(self.root):
            if is_image_name(os.path.basename(path)):  # noqa: PTH119
                relative = path.removeprefix(f"{self.root}{os.sep}").lower()
                paths[relative].append(path)
                paths[os.path.splitext(relative)[0]].append(path)  # noqa: PTH122
        return paths

    def find(self, cell: str) -> tuple[str, str]:
        """Finds the image that a cell names.

        A cell may have a path below the folder, with / or \\, in any case, an absolute path into
        the folder, or the name of one image in any folder below, also without its ending.

        Returns:
            The path and "", or "" and what is wrong.
        """
        if not cell:
            return "", "no image"
        absent = f"there is no image '{cell}' in {self.root}"
        name = self.relative(cell)
        # The path as it is, then with the backslashes of Windows as folders.
        for spelling in (name, name.replace("\\", "/")):
            if leads_out(spelling):
                return "", (f"the image '{cell}' is outside of the folder {self.root}: write paths "
                            f"as they are below it")
            relative = os.path.normpath(spelling)
            path = f"{self.root}{os.sep}{relative}"
            for ending in ("", *SUFFIXES):
                if os.path.isfile(path + ending):  # noqa: PTH113 - there may be a million
                    return path + ending, ""
        # Only if there is no such file are all images below the folder listed.
        is_name = "/" not in name.replace("\\", "/")
        paths = self.by_lower_case.get(relative.lower(), [])
        if not paths and is_name:
            paths = self.by_name.get(name, [])
        if len(paths) == 1:
            return paths[0], ""
        if paths:
            return "", f"'{cell}' may be {first_five(paths)}"
        return "", absent

    def relative(self, cell: str) -> str:
        """A cell, as a path below the folder if it is an absolute path into it."""
        if Path(cell).is_absolute():
            for folder in (self.root, self.root.resolve()):
                if Path(cell).is_relative_to(folder):
                    return str(Path(cell).relative_to(folder))
        return cell


@DATASET_REGISTRY.register()
class Table(OwnImages):
    """The images of a table with one row per image.

    The root has the table. A row has an image's path, its label or class name, and optionally its
    split and its group, such as the patient. DATASET.COLUMNS names columns whose headers are not
    usual ones. Without splits all images are used for testing.
    """

    def read(self) -> Splits:
        """Reads the tables and finds their images."""
        choice = parse_columns(self.columns)
        rows = Rows()
        for sheet, columns, split in self.choose_sheets(choice):
            self.read_rows(sheet, columns, split, choice, rows)
        rows.bad.refuse("Table")
        entries = rows.entries
        refuse_repeated_images(entries)
        if rows.absent:
            logger.warning("Table: images for training that are missing are left out: %d, such as "
                           "%s",
                           len(rows.absent), first_five(rows.absent))
        names = self.name_classes(entries)
        labels = {code: label for label, code in enumerate(names)}
        lists: dict[str, list[Datum]] = {split: [] for split in SPLITS}
        for entry in entries:
            datum = Datum(
                entry.path, labels[entry.code], classname=names[entry.code], group=entry.group)
            lists[entry.split].append(datum)
        if not lists["test"]:
            counts = ", ".join(f"{split} {len(items)}" for split, items in lists.items() if items)
            raise DataError(f"Table: {self.root} has no test images (images by split: {counts}); "
                            f"say which rows are, such as DATASET.COLUMNS \"split=fold test=4\"")
        return Splits(list(names.values()), **lists)

    def remedy(self) -> str:
        """What the folder must have."""
        return f"{self.root} must have a csv, tsv or parquet file with a path and a label per image"

    def choose_sheets(self, choice: ColumnChoice) -> list[tuple[Sheet, dict[str, str], str]]:
        """The tables to read.

        Returns:
            For each its columns by role, and the split that it stands for; "" if its rows say the
            split, or if all are test images.
        """
        files = tables_in(self.root)
        if choice.table:
            files = [file for file in files if file.name == choice.table]
        if not files:
            wanted = choice.table or "csv, tsv or parquet file"
            raise DataError(f"Table: there is no {wanted} in {self.root}; give the folder of the "
                            f"table with --root, or use --dataset-config-file image_folder for "
                            f"folders by class, or parquet for parquet files that hold the images")
        sheets = []
        reasons = []
        has_text_table = any(file.suffix.lower() != ".parquet" for file in files)
        for file in files:
            try:
                sheet = read_sheet(file)
            except DataError as error:
                # A parquet file beside a csv may hold the images themselves, or pyarrow may be
                # missing. A csv that cannot be read is never left out: it may have the test images.
                if file.suffix.lower() != ".parquet" or not has_text_table:
                    raise
                reasons.append(error)
                continue
            try:
                sheets.append((sheet, self.choose_columns(sheet, choice)))
            except DataError as error:
                reasons.append(error)
        if not sheets:
            raise reasons[0]
        if reasons:
            logger.info("Table: not read: %s", "; ".join(str(reason) for reason in reasons))
        if len(sheets) == 1:
            sheet, columns = sheets[0]
            return [(sheet, columns, "")]
        has_splits = all("split" in columns for _, columns in sheets)
        if has_splits:
            return [(sheet, columns, "") for sheet, columns in sheets]
        names = [sheet.path.name for sheet, _ in sheets]
        splits = [split_of_name(sheet.path.stem) for sheet, _ in sheets]
        if "" in splits or len(set(splits)) < len(splits):
            raise DataError(f"Table: {self.root} has several tables, {', '.join(names)}: choose "
                            f"one with DATASET.COLUMNS \"table={names[0]}\", or call them "
                            f"train.csv, val.csv and test.csv")
        return [(*sheet, split) for sheet, split in zip(sheets, splits, strict=True)]

    def choose_columns(self, sheet: Sheet, choice: ColumnChoice) -> dict[str, str]:
        """The columns of a table by role: as the user says, otherwise by usual names."""
        headers = sheet.headers
        source = str(sheet.path)
        columns = {}
        # All of the user's columns first, so that no guess takes one of them for another role.
        for role in ROLES:
            column = chosen_column(choice, role, headers, source)
            if column:
                columns[role] = column
        for role in ROLES:
            if role in columns:
                continue
            usual = candidates(role, headers)
            free = [header for header in usual if header not in columns.values()]
            if role == "image":
                free = self.existing_first(sheet, free)
            if role == "split":
                # A column `fold` with numbers of folds says nothing about splits by itself.
                free = [header for header in free if has_split_words(sheet.columns[header])]
            if free:
                columns[role] = free[0]
        if "label" not in columns and "name" in columns:
            columns["label"] = columns.pop("name")
        for role in ("image", "label"):
            if role not in columns:
                raise missing_column(role, headers, source, one_per_class(sheet))
        if "split" not in columns:
            for header in candidates("split", headers)[:1]:
                values = sorted(set(sheet.columns[header]), key=sort_key)
                logger.warning(
                    "Table: the column '%s' is not used: its values (%s) do not say what is for "
                    "testing; say it with DATASET.COLUMNS \"split=%s test=%s\"",
                    header, first_five(values), header,
                    values[0] or "VALUE")
        return columns

    def existing_first(self, sheet: Sheet, headers: Sequence[str]) -> list[str]:
        """The column whose first cell names an image, or all of them if there is none."""
        for header in headers:
            path, _ = self.finder.find(sheet.columns[header][0])
            if path:
                return [header]
        return list(headers)

    @cached_property
    def finder(self) -> ImageFinder:
        """Finds images below the root."""
        return ImageFinder(self.root)

    def read_rows(
        self, sheet: Sheet, columns: dict[str, str], split: str, choice: ColumnChoice, rows: Rows,
    ) -> None:
        """Adds the rows of a table, or what is wrong with them, to `rows`.

        Args:
            sheet: The table.
            columns: Its columns by role.
            split: The split that the table stands for; "" if its rows say it, or if all are test
                images.
            choice: The columns that the user chose in DATASET.COLUMNS.
            rows: The rows of the tables before, to which these are added.
        """
        class_names = sheet.class_names.get(columns["label"], [])
        unknown = ""
        if "split" in columns:
            unknown = unknown_splits(sheet, columns["split"], choice)
        for row in range(sheet.rows):
            cells = {role: sheet.columns[column][row] for role, column in columns.items()}
            row_name = sheet.place(row)
            row_split = split or "test"
            if "split" in cells:
                row_split = choice.split_of(cells["split"])
            code = cells["label"]
            path, reason = self.finder.find(cells["image"])

            bad = ""
            if not row_split:
                bad = unknown
            elif not code:
                bad = f"no label in the column '{columns['label']}'"
            elif class_names and (not code.isdecimal() or int(code) >= len(class_names)):
                bad = f"label {code} of {len(class_names)} classes"
            elif not cells["image"]:
                bad = f"no image in the column '{columns['image']}'"
            elif not path and row_split != "test" and reason.startswith("there is no"):
                rows.absent.append(cells["image"])
                continue
            elif not path:
                bad = reason
            if bad:
                rows.bad.add(row_name, bad)
                continue
            if class_names:
                code = class_names[int(code)]
            rows.entries.append(Entry(
                place=row_name,
                path=path,
                code=code,
                name=cells.get("name", ""),
                split=row_split,
                group=cells.get("group", ""),
            ))

    def name_classes(self, entries: Sequence[Entry]) -> dict[str, str]:
        """The class name of each code, in the order of the labels.

        Codes that are numbers are sorted by value, others as text after them.
        """
        codes = sorted({entry.code for entry in entries}, key=sort_key)
        names = self.names_of_classes(codes)
        bad = BadRows()
        if self.class_words:
            for entry in entries:
                if entry.code not in names:
                    bad.add(entry.place, f"the class '{entry.code}' is not in DATASET.CLASSNAMES")
            bad.refuse("Table")
            return names
        if not any(entry.name for entry in entries):
            return names
        named_by: dict[str, Entry] = {}
        for entry in entries:
            first = named_by.setdefault(entry.code, entry)
            if not entry.name:
                bad.add(entry.place, "no class name")
            elif entry.name != first.name:
                bad.add(entry.place, f"class {entry.code} is called '{entry.name}', but "
                                     f"'{first.name}' in {first.place}")
        bad.refuse("Table")
        return {code: named_by[code].name for code in codes}


def unknown_splits(sheet: Sheet, column: str, choice: ColumnChoice) -> str:
    """What is wrong with a column of splits that has values which mean no split; "" if nothing."""
    values = sorted(set(sheet.columns[column]), key=sort_key)
    unknown = [value for value in values if not choice.split_of(value)]
    if not unknown:
        return ""
    listed_values = first_five([f"'{value}'" for value in unknown])
    subject = f"the value {listed_values} in the column '{column}' is"
    if len(unknown) > 1:
        subject = f"the values {listed_values} in the column '{column}' are"
    return (f"{subject} none of train, val, test; say which values are, such as DATASET.COLUMNS "
            f"\"split={column} test={unknown[0] or 'VALUE'}\"")


def has_split_words(cells: Sequence[str]) -> bool:
    """Whether all cells of a column are usual names of splits."""
    return all(split_of_word(cell) for cell in set(cells))


def one_per_class(sheet: Sheet) -> list[str]:
    """The columns of a table that has a column for each class: 1 in that of a row's class, else 0.

    Such a table is refused with these names. [] for other tables.
    """
    columns = []
    for header, cells in sheet.columns.items():
        if set(cells) <= {"0", "1", "0.0", "1.0"}:
            columns.append(header)
    if len(columns) < 2:
        return []
    for row in range(sheet.rows):
        if sum(float(sheet.columns[header][row]) for header in columns) != 1:
            return []
    return columns


def refuse_repeated_images(entries: Sequence[Entry]) -> None:
    """Refuses images that are listed twice: in one split, or with two labels."""
    bad = BadRows()
    first_entry: dict[str, Entry] = {}
    for entry in entries:
        first = first_entry.setdefault(entry.path, entry)
        if first is entry:
            continue
        if entry.code != first.code:
            bad.add(entry.place, f"'{entry.path}' is of class '{entry.code}', in {first.place} of "
                                 f"class '{first.code}'; an image must have one label")
        elif entry.split == first.split:
            bad.add(entry.place, f"'{entry.path}' is listed twice, also in {first.place}")
    bad.refuse("Table")
