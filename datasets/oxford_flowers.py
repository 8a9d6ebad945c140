"""Oxford Flowers 102."""
from .base import DATASET_REGISTRY
from .download.fetch import Source
from .file_dataset import SplitFileDataset


@DATASET_REGISTRY.register()
class OxfordFlowers(SplitFileDataset):
    """Flowers of 102 kinds."""

    label = "Flowers"
    display_order = 3
    folder = "oxford_flowers"
    images = "jpg"
    tpt_images = "Flower102/jpg"
    template = "a photo of a {}, a type of flower."
    expected_classes = 102
    expected_test = 2_463
    published_test = "6b60297970b5"
    metadata = (Source(
        "split_zhou_OxfordFlowers.json", drive_id="1Pp0sRXzZFZq15zVOzKjKBu4A9i01nozT",
    ),)
    archives = (Source(
        "102flowers.tgz",
        urls=(
            "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/102flowers.tgz",
            "https://thor.robots.ox.ac.uk/flowers/102/102flowers.tgz",
        ),
        checksum="md5:52808999861908f626f3c1f4e79d11fa", places={"jpg": "jpg"},
    ),)
