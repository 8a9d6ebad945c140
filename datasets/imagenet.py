"""ImageNet (ILSVRC 2012). Its validation images are the test split, as usual."""
from __future__ import annotations

from .base import DATASET_REGISTRY, Datum, LazyList
from .file_dataset import Splits
from .imagenet_base import CLASSNAMES, ImageNetBase, imagenet_name, read_classnames
from .utils.errors import reading


@DATASET_REGISTRY.register()
class ImageNet(ImageNetBase):
    """ImageNet's 1,000 classes.

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
