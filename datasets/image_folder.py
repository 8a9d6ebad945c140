"""Anybody's own images, sorted into one folder a class."""
from __future__ import annotations

import os
from pathlib import Path

from .base import DATASET_REGISTRY, Datum
from .benchmark import Benchmark
from .checks import Splits, read_lines
from .errors import DataError, first_five
from .imagenet_family import subfolders
from .images import is_image_name

NAMES_FILE = "classnames.txt"


@DATASET_REGISTRY.register()
class ImageFolder(Benchmark):
    """The root itself holds `<class>/<image>`, all for testing, or `test/`, `train/`, `val/` that each do.

    Folder names are class names (`_` is a space in prompts) unless `classnames.txt` in the root gives better ones, one
    `<folder> <name>` a line; a tab may part the two where folder names have spaces.
    """

    def read(self) -> Splits:
        places = self.split_dirs()
        classes = sorted({folder.name for place in places.values() for folder in subfolders(place)})
        if not classes:
            raise DataError(f"ImageFolder: {places['test']} has no class folders; "
                            f"images must lie as {places['test']}/<class>/<image>")
        names = self.read_names(classes)
        lists = {
            split: [item for label, folder in enumerate(classes)
                    for item in list_class(place / folder, label, names[folder])]
            for split, place in places.items()
        }
        return Splits([names[folder] for folder in classes], **lists)

    def split_dirs(self) -> dict[str, Path]:
        """The folder of each split: by those names if `test` holds folders itself, else the root is the test split."""
        test = self.image_dir / "test"
        if not test.is_dir() or not subfolders(test):
            return {"test": self.image_dir}
        return {split: test.with_name(split) for split in ("train", "val", "test") if test.with_name(split).is_dir()}

    def read_names(self, classes: list[str]) -> dict[str, str]:
        """The class name of each folder."""
        names = {folder: folder for folder in classes}
        path = self.dataset_dir / NAMES_FILE
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
            raise DataError(f"{path} must have `<folder> <class name>` a line, for folders that are there; "
                            f"not: {first_five(wrong)}")
        return names


def list_class(folder: Path, label: int, classname: str) -> list[Datum]:
    """The images directly in a class's folder, by name. A class may have none in one of the splits."""
    names = sorted(name for name in os.listdir(folder) if is_image_name(name)) if folder.is_dir() else []  # noqa: PTH208
    return [Datum(str(folder / name), label, classname=classname) for name in names]
