"""Stanford Cars: make, model and year."""
from .base import DATASET_REGISTRY
from .download.fetch import Source
from .file_dataset import SplitFileDataset


@DATASET_REGISTRY.register()
class StanfordCars(SplitFileDataset):
    """Cars of 196 models."""

    label = "Cars"
    display_order = 11
    folder = "stanford_cars"
    test_images = "cars_test"
    tpt_images = "StanfordCars"
    expected_classes = 196
    expected_test = 8_041
    published_test = "ea80d3d914f1"
    metadata = (Source(
        "split_zhou_StanfordCars.json", drive_id="1ObCFbaAgVu0I-k_Au-gIUcefirdAuizT",
    ),)
    archives = (
        Source(
            "cars_train.tgz",
            checksum="md5:065e5b463ae28d29e77c1b4b166cfe61",
            places={"cars_train": "cars_train"},
        ),
        Source(
            "cars_test.tgz",
            checksum="md5:4ce7ebf6a94d07f1952d94dd34c4d501",
            places={"cars_test": "cars_test"},
        ),
    )
    parquet_copy = "tanganke/stanford_cars"
    manual = (
        "the authors' host is gone; https://github.com/pytorch/vision/issues/7545 names copies, "
        "for example https://www.kaggle.com/datasets/jessicali9530/stanford-cars-dataset, whose "
        "doubled folders (cars_test/cars_test) must become {folder}/cars_test/00001.jpg and "
        "{folder}/cars_train/00001.jpg",
    )
