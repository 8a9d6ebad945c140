"""What ImageNet and its four shifted versions share: folders by WordNet id and one file of class names."""
from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from .base import Datum
from .checks import Splits, read_lines
from .download.sources import Source
from .file_dataset import FileDataset
from .imagenet_names import differences
from .utils.errors import DataError, first_five
from .views.images import is_image_name

logger = logging.getLogger(__name__)

WNID = re.compile(r"n\d{8}")
CLASSNAMES = Source("classnames.txt", drive_id="1-61f_ol79pViBFDG_IDlUQSwoLcn2XXF")


def read_classnames(path: Path) -> dict[str, str]:
    """Class names by WordNet id, sorted by id: that order is ImageNet's label order. One `<wnid> <name>` a line."""
    names: dict[str, str] = {}
    bad = []
    for line in read_lines(path):
        wnid, _, name = line.partition(" ")
        if not WNID.fullmatch(wnid) or not name.strip() or wnid in names:
            bad.append(f"'{line[:60]}'")
        names[wnid] = name.strip()
    if bad or not names:
        raise DataError(f"{path} must have one new `<wnid> <class name>` a line; these are not: "
                        f"{first_five(bad) or 'it is empty'}")
    return dict(sorted(names.items()))


def subfolders(folder: Path) -> list[Path]:
    """The folders in `folder` by name, hidden ones left out."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}")
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


class ImageNetBase(FileDataset):
    """A set with a folder for each class and ImageNet's class names. Only a test split, unless a subclass adds one."""

    metadata = (CLASSNAMES,)
    subset = False  # True: only the classes that have a folder are prompts, with labels counted anew

    @classmethod
    def locate(cls, root: Path, source: Source) -> Path:
        """The class names are the same for the whole family, so ImageNet's own copy serves too."""
        own = root / cls.folder / source.name
        shared = root / "imagenet" / source.name
        return shared if shared.is_file() and not own.is_file() else own

    def read(self) -> Splits:
        path = self.require(CLASSNAMES)
        names = read_classnames(path)
        if found := differences(names):
            logger.warning("%s: %s is not the list of CoOp: %s; figures will not compare with published ones",
                           self.name(), path, found)
        folders = self.class_folders(self.test_dir(self.root), list(names))
        wnids = [wnid for wnid in names if wnid in folders] if self.subset else list(names)
        classnames = [names[wnid] for wnid in wnids]
        return Splits(classnames, self.list_images(folders, wnids, classnames))

    def class_folders(self, folder: Path, wnids: list[str]) -> dict[str, Path]:
        """The folder of each WordNet id that has one."""
        found = {entry.name: entry for entry in subfolders(folder)}
        unknown = sorted(set(found) - set(wnids))
        if unknown:
            raise DataError(f"{self.name()}: {folder} has folders that {CLASSNAMES.name} does not name: "
                            f"{first_five(unknown)}; {self.remedy()}")
        if not found:
            raise DataError(f"{self.name()}: {folder} has no class folders such as {wnids[0]}; images must be sorted "
                            f"into one folder a class; {self.remedy()}")
        return found

    def list_images(self, folders: dict[str, Path], wnids: list[str], classnames: list[str]) -> list[Datum]:
        """The images of every class in label order, by file name within a class."""
        items = []
        for label, (wnid, classname) in enumerate(zip(wnids, classnames, strict=True)):
            if wnid in folders:
                folder = str(folders[wnid])
                names = sorted(name for name in os.listdir(folder) if is_image_name(name))  # noqa: PTH208
                items += [Datum(f"{folder}{os.sep}{name}", label, classname=classname) for name in names]
        return items

    def sample(self, splits: Splits) -> None:
        """These sets are for testing; a NUM_SHOTS meant for the set the prompt was trained on changes nothing."""
