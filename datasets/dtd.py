"""Describable Textures (DTD)."""
from .base import DATASET_REGISTRY
from .download.fetch import Source
from .file_dataset import SplitFileDataset


@DATASET_REGISTRY.register()
class DescribableTextures(SplitFileDataset):
    """Textures of 47 kinds."""

    label = "DTD"
    display_order = 2
    folder = "dtd"
    images = "images"
    tpt_images = "DTD/images"
    template = "{} texture."
    expected_classes = 47
    expected_test = 1_692
    published_test = "2eb07303de2b"
    metadata = (Source(
        "split_zhou_DescribableTextures.json", drive_id="1u3_QfB467jqHgNXC00UIzbLZRQCg2S7x",
    ),)
    archives = (Source(
        "dtd-r1.0.1.tar.gz",
        urls=(
            "https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",
            "https://thor.robots.ox.ac.uk/dtd/dtd-r1.0.1.tar.gz",
        ),
        checksum="md5:fff73e5086ae6bdbea199a49dfb8a4c1", places={"dtd/images": "images"},
    ),)
