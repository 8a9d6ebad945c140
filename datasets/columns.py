"""Which columns of a table hold the image, the label, the split and the group of a row."""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .utils.cli import counted
from .utils.errors import ConfigError, DataError, first_five
from .utils.registry import nearest

ROLES = ("image", "label", "name", "split", "group")
SPLITS = ("train", "val", "test")
KEYS = ("table", *ROLES, *SPLITS)
EXAMPLE = "image=path label=diagnosis split=fold"
# A key begins a pair where nothing, a space or a comma is before it: names of columns may have
# spaces.
KEY = re.compile(rf"(?:^|(?<=[\s,]))({'|'.join(KEYS)})\s*=")

# Usual headers without case, spaces and punctuation. The first that a table has is taken.
USUAL_HEADERS: Mapping[str, Sequence[str]] = {
    "image": ("imagepath", "imgpath", "filepath", "path", "image", "img", "file", "filename",
              "imagefile", "imagefilename", "imagename", "imageid", "imgid", "isicid",
              "imageindex"),
    "label": ("label", "class", "category", "target", "diagnosis", "dx", "finding", "disease",
              "species", "labelid", "classid", "y"),
    "name": ("classname", "labelname", "categoryname"),
    "split": ("split", "set", "subset", "partition", "phase", "usage", "fold"),
    "group": ("group", "groupid", "patient", "patientid", "subject", "subjectid", "participant",
              "participantid", "lesion", "lesionid", "case", "caseid", "video", "videoid"),
}
SPLIT_WORDS: Mapping[str, Sequence[str]] = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}


@dataclass(frozen=True)
class ColumnChoice:
    """What DATASET.COLUMNS says.

    Attributes:
        table: The file to read; "" if the folder has only one that fits.
        columns: Names of columns by role.
        splits: For `train`, `val` and `test` the values in the column of the split that mean it,
            or the names of a hub's splits.
    """

    table: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def split_of(self, value: str) -> str:
        """The split that a value means; "" if it means none."""
        for split, values in self.splits.items():
            if value in values:
                return split
        if self.splits:
            # `test=4` of five folds leaves the others for training.
            if "train" not in self.splits and "test" in self.splits:
                return "train"
            return ""
        return split_of_word(value)


class BadRows:
    """Collects what is wrong with rows of a table, so that an error names each reason once."""

    def __init__(self) -> None:
        self.places: dict[str, list[str]] = {}

    def add(self, place: str, reason: str) -> None:
        """Adds a row."""
        self.places.setdefault(reason, []).append(place)

    def refuse(self, source: str) -> None:
        """Raises a DataError if there are bad rows."""
        problems = []
        for reason, places in self.places.items():
            others = ""
            if len(places) > 1:
                others = f" (and in {counted(len(places) - 1, 'more row')})"
            problems.append(f"{places[0]}: {reason}{others}")
        if problems:
            raise DataError(f"{source}: {first_five(problems)}")


def split_of_word(word: str) -> str:
    """`train`, `val` or `test` for a usual name of a split in any case; "" for other words."""
    for split, words in SPLIT_WORDS.items():
        if word.strip().lower() in words:
            return split
    return ""


def split_of_name(name: str) -> str:
    """The split that a file or folder is named after, as `Training`, `seg_test`; "" if none."""
    # At most two words: a folder such as `test_strips_of_paper` is a class.
    words = [word for word in re.split(r"[^a-z]+", name.lower()) if word]
    splits = {split_of_word(word) for word in words} - {""}
    if len(splits) == 1 and len(words) <= 2:
        return splits.pop()
    return ""


def parse_columns(setting: str) -> ColumnChoice:
    """Reads DATASET.COLUMNS, such as `image=path label=diagnosis split=fold test=4,5`."""
    matches = list(KEY.finditer(setting))
    before_first_key = setting
    if matches:
        before_first_key = setting[: matches[0].start()]
    if before_first_key.strip(" ,"):
        raise ConfigError(f"DATASET.COLUMNS is {setting!r}; it must be pairs such as {EXAMPLE}, "
                          f"with the keys {', '.join(KEYS)}")
    pairs: dict[str, str] = {}
    for number, match in enumerate(matches):
        end = len(setting)
        if number + 1 < len(matches):
            end = matches[number + 1].start()
        key = match.group(1)
        value = setting[match.end() : end].strip(" ,\t\n").strip("'\"")
        if not value or key in pairs:
            raise ConfigError(f"DATASET.COLUMNS is {setting!r}; each of its keys must have one "
                              f"value, as in {EXAMPLE}: {key} does not")
        pairs[key] = value
    splits = {}
    for split in SPLITS:
        if split in pairs:
            splits[split] = [value.strip() for value in pairs[split].split(",")]
    columns = {role: pairs[role] for role in ROLES if role in pairs}
    return ColumnChoice(pairs.get("table", ""), columns, splits)


def is_column_choice(setting: object) -> bool:
    """Whether `parse_columns` accepts a setting."""
    try:
        parse_columns(str(setting))
    except ConfigError:
        return False
    return True


def canonical_columns(setting: object) -> str:
    """DATASET.COLUMNS with its pairs in one order."""
    choice = parse_columns(str(setting))
    pairs = {"table": choice.table, **choice.columns}
    for split, values in choice.splits.items():
        pairs[split] = ",".join(values)
    return " ".join(f"{key}={pairs[key]}" for key in KEYS if pairs.get(key))


def plain(header: str) -> str:
    """A header without case, spaces and punctuation."""
    return re.sub(r"[^a-z0-9]", "", header.lower())


def sort_key(code: str) -> tuple[int, int, str]:
    """Sorts whole numbers by value, before other codes."""
    if code.isdecimal():
        return 0, int(code), code
    return 1, 0, code


def candidates(role: str, headers: Sequence[str]) -> list[str]:
    """The headers that are usual for a role, the likeliest first."""
    by_plain: dict[str, str] = {}
    for header in headers:
        by_plain.setdefault(plain(header), header)
    return [by_plain[usual] for usual in USUAL_HEADERS[role] if usual in by_plain]


def chosen_column(choice: ColumnChoice, role: str, headers: Sequence[str], source: str) -> str:
    """The column that a user names for a role.

    Returns:
        A header; "" if none is named.

    Raises:
        DataError: If the table has no such column. It lists those that it has.
    """
    name = choice.columns.get(role, "")
    if not name or name in headers:
        return name
    for header in headers:
        if header.strip().lower() == name.lower():
            return header
    raise DataError(f"{source} has no column '{name}' (DATASET.COLUMNS {role}={name}); its columns "
                    f"are: {listed(headers)}.{nearest(name, headers)}")


def listed(headers: Sequence[str]) -> str:
    """Names of columns for a message."""
    names = []
    for header in headers:
        is_plain = bool(header) and header == header.strip()
        names.append(header if is_plain else repr(header))
    if len(names) > 40:
        return first_five(names)
    return ", ".join(names)


def missing_column(
    role: str, headers: Sequence[str], source: str, one_per_class: Sequence[str] = (),
) -> DataError:
    """The error of a table in which no usual header stands for a role.

    Args:
        role: `image` or `label`.
        headers: Headers of the table.
        source: The table, for the message.
        one_per_class: Columns that stand for one class each, which are not read.
    """
    if role == "label" and one_per_class:
        return DataError(f"{source} has one column per class ({first_five(one_per_class)}): write "
                         f"one column with the label of each row instead")
    words = {"image": "the images' paths", "label": "the labels"}
    example = {"image": "path", "label": "diagnosis"}
    if role == "label":
        example["image"] = next(iter(candidates("image", headers)), "path")
    return DataError(f"{source}: no column of {words[role]} is recognised among its columns: "
                     f"{listed(headers)}; name them, such as DATASET.COLUMNS "
                     f"\"image={example['image']} label={example['label']}\"")
