"""A user's own images, sorted into one folder per class."""
from __future__ import annotations

import logging
from collections import Counter, defaultdict
from pathlib import Path

from .base import DATASET_REGISTRY, Datum
from .checks import read_lines
from .columns import SPLITS, split_of_name
from .file_dataset import Splits, files_below, subfolders
from .own_images import OwnImages, table_nearby, tables_in
from .utils.errors import DataError, first_five
from .views.images import is_image_name

logger = logging.getLogger(__name__)

# A class's folder may hold its pictures in one of these, beside masks and the like.
PICTURE_FOLDERS = ("images", "image", "imgs", "img", "jpg", "png")
# Files that lie beside pictures and are no pictures.
SIDECARS = (".txt", ".md", ".csv", ".tsv", ".json", ".xml", ".html", ".yaml", ".yml", ".db", ".ini")


@DATASET_REGISTRY.register()
class ImageFolder(OwnImages):
    """The images of a folder that has one folder per class.

    The root holds `<class>/<image>` or `<class>/<group>/<image>`, all used for testing, or folders
    of splits (`test/`, `train/`, `val/`, or Kaggle's `Testing/`, `Training/`) with such folders.

    Folder names are class names (`_` is a space in prompts) unless DATASET.CLASSNAMES has others,
    or `classnames.txt` in the root: one `<folder> <name>` per line, with a tab between the two if
    folder names have spaces.
    """

    options = ("classnames",)

    def read(self) -> Splits:
        """Lists the images by split and class, and warns of files that are not read."""
        split_folders = self.split_dirs()
        self.class_parents = list(split_folders.values())
        folder_names: set[str] = set()
        for split_folder in split_folders.values():
            folder_names.update(folder.name for folder in subfolders(split_folder))
        classes = sorted(folder_names)
        if not classes:
            raise DataError(f"ImageFolder: {split_folders['test']} has no class folders; "
                            f"{self.remedy()}{table_nearby(self.root)}")
        self.check_classes(split_folders["test"], classes)
        names = self.read_names(classes)
        lists: dict[str, list[Datum]] = {}
        unread: Counter[str] = Counter()
        examples: dict[str, str] = {}
        for split, split_folder in split_folders.items():
            lists[split] = []
            for label, name in enumerate(classes):
                class_folder = split_folder / name
                lists[split] += read_class(class_folder, label, names[name])
                count_unread(class_folder, unread, examples)
        lists = without_single_group(lists)
        if unread:
            kinds = []
            for kind, count in unread.most_common():
                kinds.append(f"{count} {kind} (such as {examples[kind]})")
            note = (f"files of a kind that is not read: {first_five(kinds)}; convert them to PNG "
                    f"or JPEG")
            if ".parquet" in unread:
                note = (f"{unread['.parquet']} parquet files, such as {examples['.parquet']}: if "
                        f"they hold the images, use --dataset-config-file parquet --root "
                        f"{self.root}")
            if not lists["test"]:
                raise DataError(f"ImageFolder has no test images; {note}")
            logger.warning("ImageFolder: %s", note)
        return Splits([names[folder] for folder in classes], **lists)

    def check_classes(self, folder: Path, classes: list[str]) -> None:
        """Names the right root, or the table with the labels, if folders may be no classes."""
        first = folder / classes[0]
        inner = subfolders(first) if first.is_dir() else []
        if len(classes) == 1 and len(inner) > 1:
            raise DataError(f"ImageFolder: {folder} has one folder only, '{classes[0]}'; if the "
                            f"folders in it are the classes or splits, use --root "
                            f"{first}")
        if len(classes) > 1 and tables_in(self.root):
            logger.warning("ImageFolder: folders are taken for classes%s", table_nearby(self.root))

    def remedy(self) -> str:
        """Where images must be."""
        return (f"images must be at {self.image_dir}/<class>/<image>, or at "
                f"{self.image_dir}/{{test,train,val}}/<class>/<image>")

    def split_dirs(self) -> dict[str, Path]:
        """The folder of each split.

        The root itself is the folder of the test split if it has no folder that is named after a
        split and has class folders in it.
        """
        candidates = defaultdict(list)
        others = []
        for folder in subfolders(self.image_dir):
            split = split_of_name(folder.name)
            inner = without_doubled_folder(folder)
            if split and subfolders(inner):
                candidates[split].append(inner)
            else:
                others.append(folder.name)
        if not candidates:
            return {"test": self.image_dir}
        for split, folders in candidates.items():
            if len(folders) > 1:
                names = " and ".join(str(folder) for folder in folders)
                raise DataError(f"ImageFolder: {names} are both folders of the {split} split; move "
                                f"one away, or rename it")
        if "test" not in candidates:
            test = self.image_dir / "test"
            names = " and ".join(folders[0].name for folders in candidates.values())
            raise DataError(f"ImageFolder: beside {names} the folder {test} is missing or has no "
                            f"class folders; test images must be at {test}/<class>/<image>")
        if others:
            logger.info("ImageFolder: folders beside the splits are not read: %s",
                        first_five(others))
        split_folders = {}
        for split in SPLITS:
            if split in candidates:
                split_folders[split] = candidates[split][0]
        return split_folders

    def read_names(self, classes: list[str]) -> dict[str, str]:
        """The class name of each folder."""
        if self.class_words:
            names = self.names_of_classes(classes)
            nameless = [f"'{folder}'" for folder in classes if folder not in names]
            if nameless:
                raise DataError(f"ImageFolder: DATASET.CLASSNAMES has no words for the folders "
                                f"{first_five(nameless)}")
            return names
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
            raise DataError(f"{path} must have one `<folder> <class name>` per line, for existing "
                            f"folders (with a tab between the two if the folder's name has "
                            f"spaces); not: {first_five(wrong)}")
        return names


def without_doubled_folder(folder: Path) -> Path:
    """`seg_test/seg_test` for `seg_test`, as some archives have it."""
    inner = subfolders(folder)
    if len(inner) == 1 and inner[0].name == folder.name:
        return inner[0]
    return folder


def read_class(folder: Path, label: int, classname: str) -> list[Datum]:
    """The images of a class, sorted by path.

    Images in a folder inside the class's folder, such as that of a patient, are a group. Folders of
    one name are one group, in all classes.
    """
    items = []
    top = picture_folder(folder)
    for path in files_below(top):
        if is_image_name(Path(path).name):
            folders = Path(path).relative_to(top).parent.parts
            group = folders[0] if folders else ""
            items.append(Datum(path, label, classname=classname, group=group))
    return items


def picture_folder(folder: Path) -> Path:
    """The folder that has the pictures of a class.

    It is the class's folder if that has pictures itself, otherwise a folder in it with one of the
    names in PICTURE_FOLDERS, if there is one.
    """
    if not folder.is_dir():
        return folder
    if any(is_image_name(entry.name) for entry in folder.iterdir()):
        return folder
    for inner in subfolders(folder):
        if inner.name.lower() in PICTURE_FOLDERS:
            return inner
    return folder


def count_unread(folder: Path, unread: Counter[str], examples: dict[str, str]) -> None:
    """Counts the files of a class that are neither pictures nor notes.

    Args:
        folder: Folder of the class.
        unread: Numbers of files by their ending, which grow.
        examples: The first file of each ending.
    """
    for path in files_below(folder):
        kind = Path(path).suffix.lower()
        if is_image_name(Path(path).name) or kind in SIDECARS:
            continue
        kind = kind or "without an ending"
        unread[kind] += 1
        examples.setdefault(kind, path)


def without_single_group(lists: dict[str, list[Datum]]) -> dict[str, list[Datum]]:
    """The images by split, without groups if all groups have one name.

    Folders of one name in all classes are not those of patients.
    """
    groups = {item.group for items in lists.values() for item in items} - {""}
    if len(groups) != 1:
        return lists
    plain = {}
    for split, items in lists.items():
        plain[split] = [Datum(item.impath, item.label, classname=item.classname) for item in items]
    return plain
