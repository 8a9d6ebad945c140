"""The base class of the readers of a user's own images, with what they share: names of runs,
classes in words, and warnings.
"""
from __future__ import annotations

import hashlib
import logging
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from .base import SEVERITIES, Datum
from .checks import describe_copies
from .class_words import look_like_identifiers, read_class_words
from .file_dataset import FileDataset, Splits
from .image_index import ImageIndex
from .utils.cli import IS_MAIN
from .utils.errors import DataError, first_five

logger = logging.getLogger(__name__)

TABLES = (".csv", ".tsv", ".parquet")


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
