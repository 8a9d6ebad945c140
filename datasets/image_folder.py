"""A user's own images, sorted into one folder per class."""
from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

from .base import DATASET_REGISTRY
from .checks import read_lines
from .file_dataset import FileDataset, Splits, images_in, subfolders
from .utils.errors import DataError, first_five

logger = logging.getLogger(__name__)


@DATASET_REGISTRY.register()
class ImageFolder(FileDataset):
    """The root holds `<class>/<image>`, all used for testing, or `test/`, `train/`, `val/` with such folders. Folder
    names are class names (`_` is a space in prompts) unless `classnames.txt` in the root has others: one `<folder>
    <name>` per line, with a tab between the two if folder names have spaces."""

    @classmethod
    def run_name(cls, root: str | Path) -> str:
        """The folder's name and a hash of its path: two folders called `photos` are two data sets. A class derived from
        this one that names its folder below the data root is one data set."""
        if cls.folder:
            return cls.__name__
        path = os.path.realpath(Path(root).expanduser())
        name = "".join(letter if letter.isalnum() or letter in "._+" else "-" for letter in Path(path).name[:40])
        return f"{name.strip('-.') or cls.__name__}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:6]}"

    @classmethod
    def label_of(cls, root: str | Path) -> str:
        """The folder's name. Its path says nothing about the images, which are known by content."""
        if cls.folder or cls.label:
            return super().label_of(root)
        return Path(os.path.realpath(Path(root).expanduser())).name or cls.__name__

    def read(self) -> Splits:
        places = self.split_dirs()
        classes = sorted({folder.name for place in places.values() for folder in subfolders(place)})
        if not classes:
            raise DataError(f"ImageFolder: {places['test']} has no class folders; {self.remedy()}")
        names = self.read_names(classes)
        lists = {split: [item for label, folder in enumerate(classes)
                         for item in images_in(place / folder, label, names[folder])]
                 for split, place in places.items()}
        tested = {item.label for item in lists["test"]}
        untested = [f"'{folder}'" for label, folder in enumerate(classes) if label not in tested]
        if untested:
            logger.warning("ImageFolder: %d classes have no test image: %s", len(untested), first_five(untested))
        return Splits([names[folder] for folder in classes], **lists)

    def remedy(self) -> str:
        return (f"images must be at {self.image_dir}/<class>/<image>, or at "
                f"{self.image_dir}/{{test,train,val}}/<class>/<image>")

    def split_dirs(self) -> dict[str, Path]:
        """The folder of each split; the root is the test split if it has no such folders with class folders in them."""
        places = {split: self.image_dir / split for split in ("train", "val", "test")}
        found = {split: place for split, place in places.items() if place.is_dir() and subfolders(place)}
        if not found:
            return {"test": self.image_dir}
        if "test" not in found:
            raise DataError(f"ImageFolder: beside {' and '.join(found)} the folder {places['test']} is missing or has "
                            f"no class folders; test images must be at {places['test']}/<class>/<image>")
        return found

    def read_names(self, classes: list[str]) -> dict[str, str]:
        """The class name of each folder."""
        names = {folder: folder for folder in classes}
        path = self.dataset_dir / "classnames.txt"
        if not path.is_file():
            return names
        wrong = []
        for line in read_lines(path):
            folder, _, name = line.partition("\t" if "\t" in line else " ")
            if folder not in names or not name.strip():
                wrong.append(f"'{line}'")
            else:
                names[folder] = name.strip()
        if wrong:
            raise DataError(f"{path} must have one `<folder> <class name>` per line, for existing folders (with a tab "
                            f"between the two if the folder's name has spaces); not: {first_five(wrong)}")
        return names
