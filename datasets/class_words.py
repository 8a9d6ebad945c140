"""Words for classes: DATASET.CLASSNAMES, a file or a mapping from codes to words."""
from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .checks import read_lines, read_text
from .utils.errors import DataError

EXAMPLE = "NV=melanocytic nevus; MEL=melanoma"
# AnnualCrop, ApplyEyeMakeup: one word with capitals in it.
CAMEL_CASE = re.compile(r"[A-Z]?[a-z]+([A-Z][a-z]+)+")
# NV, MEL, n01440764, 17: no words.
CODE = re.compile(r"[A-Z]{1,5}[0-9]*|[a-z]?[0-9]+")


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
    """Reads a JSON object of words by code, or a list of words by label.

    Args:
        text: The JSON.
        source: The file or the setting, for messages.
    """
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
    """What separates the cells of a table: a tab in .tsv files, else what the header has most of.

    Args:
        path: The file of the table.
        text: Content of the file.
    """
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
