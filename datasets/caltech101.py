"""Caltech-101: objects. The published split has 100 classes; two of the archive's 102 folders are
left out.
"""
from .base import DATASET_REGISTRY
from .download.fetch import Source
from .file_dataset import SplitFileDataset


@DATASET_REGISTRY.register()
class Caltech101(SplitFileDataset):
    """Objects of 100 classes."""

    label = "Caltech"
    display_order = 8
    folder = "caltech-101"
    images = "101_ObjectCategories"
    tpt_images = "Caltech101"
    expected_classes = 100
    expected_test = 2_465
    published_test = "a88d02786f77"
    metadata = (Source("split_zhou_Caltech101.json", drive_id="1hyarUivQE36mY6jSomru6Fjd-JzwcCzN"),)
    archives = (Source(
        "caltech-101.zip",
        urls=("https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",),
        checksum="md5:3138e1922a9193bfa496528edbbc45d0",
        inner="caltech-101/101_ObjectCategories.tar.gz", places={images: images},
    ),)
