"""Food-101: dishes."""
from .base import DATASET_REGISTRY
from .download.fetch import Source
from .file_dataset import SplitFileDataset


@DATASET_REGISTRY.register()
class Food101(SplitFileDataset):
    """Dishes of 101 kinds."""

    label = "Food101"
    display_order = 4
    folder = "food-101"
    images = "images"
    tpt_images = "Food101/images"
    template = "a photo of {}, a type of food."
    expected_classes = 101
    expected_test = 30_300
    metadata = (Source("split_zhou_Food101.json", drive_id="1QK0tGi096I0Ba6kggatX1ee6dJFIcEJl"),)
    archives = (Source(
        "food-101.tar.gz", urls=("http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz",),
        checksum="md5:85eeb15f3717b99a5da872d97d918f87", places={"food-101/images": "images"},
    ),)
