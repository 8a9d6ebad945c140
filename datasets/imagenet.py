"""ImageNet (ILSVRC 2012). Its validation images are the test split, as everybody has it."""
from __future__ import annotations

import logging
from functools import cached_property
from pathlib import Path

from .base import DATASET_REGISTRY, Datum
from .checks import Splits
from .fewshot import select_classes
from .file_dataset import FileDataset
from .imagenet_base import CLASSNAMES, ImageNetBase, read_classnames
from .utils.errors import DataError, reading

logger = logging.getLogger(__name__)


@DATASET_REGISTRY.register()
class ImageNet(ImageNetBase):
    """Test-time methods need only `val`; the 1.28 million training images are listed when somebody asks for them."""

    label, display_order = "ImageNet", 1
    folder = "imagenet"
    images = "images"
    test_images = "val"
    augmix = False
    expected_classes = 1000
    expected_test = 50_000
    manual = (
        "with an account at https://image-net.org, fetch ILSVRC2012_devkit_t12.tar.gz (md5 "
        "fa75699e90414af021442c21a62c3abf), ILSVRC2012_img_val.tar (md5 29b22e2961454d5413ddabcf34fc5622) and, for "
        "few-shot training, ILSVRC2012_img_train.tar (md5 1d675b47d978889d74fa0da5fadfb00e) into {folder}/images",
        "sort them into class folders: pip install scipy && python -c \"from torchvision.datasets import "
        "ImageNet; ImageNet('{folder}/images', 'val')\" (and the same with 'train'), "
        "so that {folder}/images/val/n01440764/ILSVRC2012_val_00000293.JPEG is there",
    )

    def __init__(self, root: str | Path, num_shots: int = -1, seed: int = 0, subsample_classes: str = "all") -> None:
        super().__init__(root, num_shots, seed, subsample_classes)
        self.val = self.test  # as in CoOp: there is no third split

    def read(self) -> Splits:
        splits = super().read()
        splits.train = self.list_train() if self.num_shots > 0 else None
        return splits

    def sample(self, splits: Splits) -> None:
        """CoOp draws from the images in the order in which its machine listed the folders, which nobody else has: the
        same seed cannot give the same images. Here they are listed by name, so they are the same everywhere."""
        logger.info("ImageNet: few-shot images are drawn from names in order; CoOp drew them in the order in which its "
                    "disk listed them, so these cannot be its images")
        FileDataset.sample(self, splits)

    @cached_property
    @reading()
    def train(self) -> list[Datum]:
        """All training images, or none where a copy for testing has no such folder."""
        if not (self.image_dir / "train").is_dir():
            return []
        names = read_classnames(self.require(CLASSNAMES))
        return select_classes(list(names.values()), [self.list_train()], self.subsample_classes)[1][0]

    def list_train(self) -> list[Datum]:
        folder = self.image_dir / "train"
        if not folder.is_dir():
            raise DataError(f"ImageNet: few-shot training needs {folder}, which is not there; "
                            f"{self.download_command(self.root)} says how to get it")
        names = read_classnames(self.require(CLASSNAMES))
        return self.list_images(self.class_folders(folder, list(names)), list(names), list(names.values()))
