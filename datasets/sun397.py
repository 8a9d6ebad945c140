"""SUN397: scenes, indoors and outdoors."""
from .base import DATASET_REGISTRY
from .download.fetch import Source
from .file_dataset import SplitFileDataset


@DATASET_REGISTRY.register()
class SUN397(SplitFileDataset):
    """Scenes of 397 kinds."""

    label = "SUN397"
    display_order = 5
    folder = "sun397"
    images = "SUN397"
    tpt_images = "SUN397"
    expected_classes = 397
    expected_test = 19_850
    metadata = (Source("split_zhou_SUN397.json", drive_id="1y2RD81BYuiyvebdN-JymPfyWYcd8_MUq"),)
    archives = (Source(
        "SUN397.tar.gz",
        checksum="md5:8ca2778205c41d23104230ba66911c7a",
        places={images: images},
    ),)
    parquet_copy = "tanganke/sun397"
    manual = (
        "both known addresses (vision.princeton.edu, groups.csail.mit.edu) are gone; with a copy "
        "of the 37 GB archive, images must be at {folder}/SUN397/a/abbey/sun_aaalbzqrimafwbiv.jpg",
    )
