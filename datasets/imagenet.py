"""ImageNet (ILSVRC 2012), and what its variants share with it.

All have one folder of images per class, named by WordNet id, and one file of class names.
"""
from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from pathlib import Path

from .base import DATASET_REGISTRY, Datum, LazyList
from .checks import read_lines
from .download.fetch import Source
from .file_dataset import FileDataset, Splits, images_in, subfolders
from .utils.errors import DataError, first_five, reading

logger = logging.getLogger(__name__)

WNID = re.compile(r"n\d{8}")
CLASSNAMES = Source("classnames.txt", drive_id="1-61f_ol79pViBFDG_IDlUQSwoLcn2XXF")
# SHA-256 of the sorted lines `<wnid> <name>` of CoOp's list, with which published results were
# computed.
COOP_NAMES = "51b5b1d8b800502030c5556eb206abaafdd682ef363ff7a7077591ea3c9befa5"


def read_classnames(path: Path) -> dict[str, str]:
    """Class names by WordNet id, sorted by id, which is ImageNet's label order.

    Args:
        path: A file with one `<wnid> <name>` per line.
    """
    names: dict[str, str] = {}
    bad = []
    for line in read_lines(path):
        wnid, _, name = line.partition(" ")
        if not WNID.fullmatch(wnid) or not name.strip() or wnid in names:
            bad.append(f"'{line[:60]}'")
        names[wnid] = name.strip()
    if bad or not names:
        raise DataError(f"{path} must have one new `<wnid> <class name>` per line; these are not: "
                        f"{first_five(bad) or 'it is empty'}")
    return dict(sorted(names.items()))


def is_coops(names: Mapping[str, str]) -> bool:
    """Whether class names by WordNet id are CoOp's."""
    lines = "\n".join(f"{wnid} {name}" for wnid, name in names.items())
    return hashlib.sha256(lines.encode()).hexdigest() == COOP_NAMES


def imagenet_name(item: Datum) -> str:
    """Names an image of ImageNet, or the one that an image of ImageNet-C was made from.

    Such as ImageNet/n01440764/ILSVRC2012_val_00000293.
    """
    path = Path(item.impath)
    return f"ImageNet/{path.parent.name}/{path.stem}"


class ImageNetBase(FileDataset):
    """A test set with one folder per class and ImageNet's class names."""

    metadata = (CLASSNAMES,)
    test_only = True  # NUM_SHOTS refers to the set that the prompt was trained on
    has_val = False  # ImageNet's `val` is its test list, as in CoOp
    subset = False  # True: only classes that have a folder are used, with labels from 0
    numbered = False  # True: folders are named by label, not by WordNet id

    @classmethod
    def locate(cls, root: Path, source: Source) -> Path:
        """The path of a metadata file; ImageNet's class names where a variant has none."""
        path = super().locate(root, source)
        if not path.exists():
            for folder in ("imagenet", "ImageNet"):
                if (root / folder / source.name).is_file():
                    return root / folder / source.name
        return path

    def read(self) -> Splits:
        """Lists the test images of the class folders."""
        path = self.require(CLASSNAMES)
        names = read_classnames(path)
        if not is_coops(names):
            logger.warning("%s: %s, with %d classes, is not CoOp's list of class names; results "
                           "will not be comparable with published ones",
                           self.name(), path, len(names))
        folders = self.class_folders(self.class_root(), list(names))
        if self.subset:
            names = {wnid: names[wnid] for wnid in folders}
        return Splits(list(names.values()), self.list_images(folders, names))

    def class_root(self) -> Path:
        """The folder that holds the class folders of the test images."""
        return self.test_dir(self.root)

    def class_folders(self, folder: Path, wnids: list[str]) -> dict[str, Path]:
        """The folder of each WordNet id that has one."""
        by_name = {entry.name: entry for entry in subfolders(folder)}
        names = wnids
        if self.numbered:
            names = [str(label) for label in range(len(wnids))]
        unknown = sorted(set(by_name) - set(names))
        if unknown or not by_name:
            raise DataError(f"{self.name()}: {folder} must have one folder per class of "
                            f"{CLASSNAMES.name}, named {names[0]} to {names[-1]}, not "
                            f"{first_five(unknown) or 'none at all'}; {self.remedy()}")
        folders = {}
        for wnid, name in zip(wnids, names, strict=True):
            if name in by_name:
                folders[wnid] = by_name[name]
        return folders

    def list_images(self, folders: Mapping[str, Path], names: Mapping[str, str]) -> list[Datum]:
        """The images of every class in label order, by file name within a class."""
        items: list[Datum] = []
        for label, (wnid, name) in enumerate(names.items()):
            if wnid in folders:
                items += images_in(folders[wnid], label, name)
        return items


@DATASET_REGISTRY.register()
class ImageNet(ImageNetBase):
    """ImageNet's 1,000 classes. Its validation images are the test split, as usual.

    Test-time methods need only the folder `val`. The 1.28 million training images are listed when
    they are first used.
    """

    label = "ImageNet"
    display_order = 1
    folder = "imagenet"
    images = "images"
    test_images = "val"
    tpt_images = "ImageNet"
    augmix = False
    test_only = False
    expected_classes = 1000
    expected_test = 50_000
    manual = (
        "with an account at https://image-net.org, fetch ILSVRC2012_devkit_t12.tar.gz (md5 "
        "fa75699e90414af021442c21a62c3abf), ILSVRC2012_img_val.tar (md5 "
        "29b22e2961454d5413ddabcf34fc5622) and, for few-shot training, ILSVRC2012_img_train.tar "
        "(md5 1d675b47d978889d74fa0da5fadfb00e) into {folder}/images",
        "sort them into class folders: pip install scipy && python -c \"from torchvision.datasets "
        "import ImageNet; ImageNet('{folder}/images', 'val')\" (and the same with 'train'), so "
        "that {folder}/images/val/n01440764/ILSVRC2012_val_00000293.JPEG is there",
    )

    def read(self) -> Splits:
        """Lists the test images as for ImageNet's variants, and the training images lazily."""
        splits = super().read()
        # As in CoOp, the validation images are the test images.
        return Splits(splits.classnames, splits.test, LazyList(self.list_train), val=splits.test)

    @reading()
    def list_train(self) -> list[Datum]:
        """All training images; none if a copy for testing has no folder for them."""
        folder = self.image_dir / "train"
        if not folder.is_dir():
            return []
        names = read_classnames(self.require(CLASSNAMES))
        return self.list_images(self.class_folders(folder, list(names)), names)

    def uncorrupted_name(self, item: Datum) -> str:
        """Its own name, which ImageNet-C's images have too."""
        return imagenet_name(item)
