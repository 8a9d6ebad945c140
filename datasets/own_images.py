"""The base class of the readers of a user's own images, with what they share: names of runs, words
for classes (DATASET.CLASSNAMES), and warnings.
"""
from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .base import SEVERITIES, Datum
from .checks import describe_copies, read_lines, read_text
from .file_dataset import FileDataset, Splits
from .image_index import ImageIndex
from .utils.cli import IS_MAIN
from .utils.errors import DataError, first_five

logger = logging.getLogger(__name__)

TABLES = (".csv", ".tsv", ".parquet")
EXAMPLE = "NV=melanocytic nevus; MEL=melanoma"
# AnnualCrop, ApplyEyeMakeup: one word with capitals in it.
CAMEL_CASE = re.compile(r"[A-Z]?[a-z]+([A-Z][a-z]+)+")
# NV, MEL, n01440764, 17: no words.
CODE = re.compile(r"[A-Z]{1,5}[0-9]*|[a-z]?[0-9]+")


class OwnImages(FileDataset):
    """A set of a user's own images. Its folder is the data root itself."""

    options: Sequence[str] = ("columns", "classnames")

    def __init__(
        self, root: str | Path, corruption: str = "", severity: int = SEVERITIES[-1],
        columns: str = "", classnames: str = "",
    ) -> None:
        """
        Args:
            root: The folder of the images.
            corruption: Must be "".
            severity: Has no meaning here.
            columns: DATASET.COLUMNS.
            classnames: DATASET.CLASSNAMES.
        """
        self.columns = columns
        self.class_words = classnames
        super().__init__(root, corruption, severity)
        self.warn()

    @classmethod
    def run_name(cls, root: str | Path) -> str:
        """The folder's name and a hash of its path: two folders called `photos` are two data sets.

        A subclass that names its folder below the data root is one data set, called after itself.
        """
        if cls.folder:
            return cls.__name__
        path = os.path.realpath(Path(root).expanduser())
        letters = []
        for letter in Path(path).name[:40]:
            letters.append(letter if letter.isalnum() or letter in "._+" else "-")
        name = "".join(letters).strip("-.") or cls.__name__
        return f"{name}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:6]}"

    @classmethod
    def label_of(cls, root: str | Path) -> str:
        """The folder's name. Its path says nothing about the images, which are known by content."""
        if cls.folder or cls.label:
            return super().label_of(root)
        return Path(os.path.realpath(Path(root).expanduser())).name or cls.__name__

    def names_of_classes(self, codes: Sequence[str]) -> dict[str, str]:
        """The words of each class that DATASET.CLASSNAMES has; the code itself if it is not set."""
        if not self.class_words:
            return {code: code for code in codes}
        class_words = read_class_words(self.class_words, self.root)
        words = class_words.find(codes)
        unused = sorted(set(class_words.words) - set(codes))
        if words and unused and not class_words.names:
            logger.info("%s: %s has words for classes that are not here: %s", self.name(),
                        class_words.source, first_five(unused))
        return words

    def check(self, splits: Splits) -> None:
        """Checks the splits as those of any set.

        It also refuses a single class, and warns of classes without a test image.
        """
        if splits.test and len(splits.classnames) == 1:
            raise DataError(f"{self.name()}: {self.root} has one class only, "
                            f"'{splits.classnames[0]}': every prediction would be right; "
                            f"{self.remedy()}{table_nearby(self.root)}")
        super().check(splits)
        tested = {item.label for item in splits.test}
        untested = []
        for label, name in enumerate(splits.classnames):
            if label not in tested:
                untested.append(f"'{name}'")
        if untested:
            verb = "class has" if len(untested) == 1 else "classes have"
            logger.warning("%s: %d %s no test image: %s", self.name(), len(untested), verb,
                           first_five(untested))

    def warn(self) -> None:
        """Warns of what would make results wrong: copies, groups in two splits, codes as names."""
        splits = {"test": self.test, "train": self.train, "val": self.val}
        shared = groups_in_two_splits(splits)
        if shared:
            verb = "group is" if len(shared) == 1 else "groups are"
            logger.warning("%s: %d %s in two splits, so test images are not independent of the "
                           "others: %s", self.name(), len(shared), verb, first_five(shared))
        identifiers = look_like_identifiers(self.classnames)
        if identifiers:
            logger.warning("%s: class names look like identifiers, not words, and are used in "
                           "prompts as they are: %s; give words with DATASET.CLASSNAMES",
                           self.name(),
                           first_five(identifiers))
        if IS_MAIN:  # one process reads the files
            copies = describe_copies(self, self.splits_to_compare(), ImageIndex())
            if copies:
                logger.warning("%s: %s", self.name(), copies)

    def splits_to_compare(self) -> Mapping[str, Sequence[Datum]]:
        """The images among which copies are looked for."""
        return {"test": self.test, "train": self.train, "val": self.val}


def groups_in_two_splits(splits: Mapping[str, Sequence[Datum]]) -> list[str]:
    """The groups, such as patients, whose images are in several splits, each with those splits."""
    splits_of: dict[str, dict[str, None]] = defaultdict(dict)  # of each group, in order
    for split, items in splits.items():
        for item in items:
            if item.group:
                splits_of[item.group][split] = None
    shared = []
    for group, names in splits_of.items():
        if len(names) > 1:
            shared.append(f"'{group}' ({', '.join(names)})")
    return shared


def table_nearby(folder: Path) -> str:
    """How to read a table in a folder of images, or in the folder above; "" if there is none."""
    for searched in (folder, folder.resolve().parent):
        for file in tables_in(searched):
            kind = "table"
            if file.suffix.lower() == ".parquet":
                kind = "parquet"
            return (f"; {file} is a table: if it has the labels, use --dataset-config-file {kind} "
                    f"--root {searched}")
    return ""


def tables_in(folder: Path) -> list[Path]:
    """The csv, tsv and parquet files in a folder, by name."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    tables = []
    for entry in entries:
        is_table = entry.suffix.lower() in TABLES and not entry.name.startswith(".")
        if is_table and entry.is_file():
            tables.append(entry)
    return tables


@dataclass
class ClassWords:
    """What DATASET.CLASSNAMES says.

    Attributes:
        source: The file or the setting, for messages.
        words: Words by code.
        names: Words by label, of a list without codes.
    """

    source: str
    words: dict[str, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    def find(self, codes: Sequence[str]) -> dict[str, str]:
        """The words of each code that has some, whatever its case.

        Names without codes are taken by label if the codes are the labels 0, 1, 2, …
        """
        by_lower = {code.lower(): words for code, words in self.words.items()}
        words = {}
        for code in codes:
            if code in self.words:
                words[code] = self.words[code]
            elif code.lower() in by_lower:
                words[code] = by_lower[code.lower()]
        if not words and self.names and is_counted(codes) and len(codes) <= len(self.names):
            return {code: self.names[int(code)] for code in codes}
        return words


def is_counted(codes: Sequence[str]) -> bool:
    """Whether codes are the numbers from 0 on, in any order."""
    return {str(label) for label in range(len(codes))} == set(codes)


def read_class_words(setting: str, root: Path) -> ClassWords:
    """Reads DATASET.CLASSNAMES.

    Args:
        setting: A file (json, csv, tsv or text), or a mapping such as `NV=melanocytic nevus;
            MEL=melanoma`.
        root: The folder of the data, where a file is looked for too.
    """
    text = setting.strip()
    if text.startswith("{"):
        return from_json(text, "DATASET.CLASSNAMES")
    path = Path(setting).expanduser()
    for candidate in (path, root / path):
        if is_file(candidate):
            return read_words_file(candidate)
    if "=" not in text:
        raise DataError(f"DATASET.CLASSNAMES {setting} is not a file, neither as it is nor in "
                        f"{root}, nor a mapping such as {EXAMPLE}")
    words = ClassWords("DATASET.CLASSNAMES")
    separator = ";" if ";" in text else ","
    for pair in text.split(separator):
        code, equals, name = pair.partition("=")
        if not equals or not code.strip() or not name.strip():
            raise DataError(f"DATASET.CLASSNAMES has '{pair.strip()}'; it must be a mapping such "
                            f"as {EXAMPLE} (with ; between classes if names have commas), or a "
                            f"file")
        words.words[code.strip()] = name.strip()
    return words


def is_file(path: Path) -> bool:
    """Whether a setting is a file's path."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a mapping may be too long for a path
        return False


def read_words_file(path: Path) -> ClassWords:
    """Reads a file of codes and words.

    A csv or tsv file has the code in the first column and the words in the second. A text file has
    a code and words, or words alone, per line.
    """
    suffix = path.suffix.lower()
    if suffix == ".json":
        return from_json(read_text(path), str(path))
    words = ClassWords(str(path))
    if suffix in (".csv", ".tsv"):
        text = read_text(path)
        for cells in csv.reader(io.StringIO(text), delimiter=delimiter_of(path, text)):
            cells = [cell.strip() for cell in cells]
            if not any(cells):
                continue
            if len(cells) < 2 or not cells[0] or not cells[1]:
                raise DataError(f"{path} must have a code and the class's words in each row, not "
                                f"'{','.join(cells)}'")
            words.words.setdefault(cells[0], cells[1])
        return words
    for line in read_lines(path):
        words.names.append(line)
        for separator in ("\t", "=", " "):
            code, _, name = line.partition(separator)
            if name.strip():
                words.words.setdefault(code.strip(), name.strip())
                break
    return words


def from_json(text: str, source: str) -> ClassWords:
    """Reads a JSON object of words by code, or a list of words by label."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source} is not readable JSON: {error}") from error
    words = ClassWords(source)
    if isinstance(content, list) and all(isinstance(name, str) for name in content):
        words.names = content
        return words
    if not isinstance(content, dict):
        raise DataError(f"{source} must be a JSON object such as {{\"NV\": \"melanocytic nevus\"}}")
    for code, name in content.items():
        if not isinstance(name, str) or not name.strip():
            raise DataError(f"{source}: the words of '{code}' are {name!r}; they must be text")
        words.words[code] = name.strip()
    return words


def delimiter_of(path: Path, text: str) -> str:
    """What separates a table's cells: a tab in .tsv files, else what the header has most of."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    header = text.partition("\n")[0]
    return max((",", ";", "\t", "|"), key=header.count)


def look_like_identifiers(names: Sequence[str]) -> list[str]:
    """The class names that are no words, such as AnnualCrop, or NV where most are codes."""
    camel_case = [name for name in names if CAMEL_CASE.fullmatch(name)]
    codes = [name for name in names if CODE.fullmatch(name)]
    if 2 * len(codes) >= len(names):
        return [*camel_case, *codes]
    return camel_case
