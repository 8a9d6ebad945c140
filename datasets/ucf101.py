"""UCF101: human actions, the middle frame of each video."""
from .base import DATASET_REGISTRY
from .download.fetch import Source
from .file_dataset import SplitFileDataset


@DATASET_REGISTRY.register()
class UCF101(SplitFileDataset):
    """Middle frames of videos of 101 actions."""

    label = "UCF101"
    display_order = 9
    folder = "ucf101"
    images = "UCF-101-midframes"
    tpt_images = "UCF101"
    template = "a photo of a person doing {}."
    expected_classes = 101
    expected_test = 3_783
    published_test = "acf44e02cba5"
    metadata = (Source("split_zhou_UCF101.json", drive_id="1I0S0q91hJfsV9Gf4xDIjgDq4AqBNJb1y"),)
    archives = (Source(
        "UCF-101-midframes.zip",
        drive_id="10Jqome3vtUA2keJkNanAiFpgbyC9Hc2O",
        places={images: images},
    ),)
