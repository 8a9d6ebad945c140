"""Oxford-IIIT Pets: breeds of cats and dogs."""
from .base import DATASET_REGISTRY
from .download.fetch import Source
from .file_dataset import SplitFileDataset


@DATASET_REGISTRY.register()
class OxfordPets(SplitFileDataset):
    """Pets of 37 breeds."""

    label = "Pets"
    display_order = 7
    folder = "oxford_pets"
    images = "images"
    tpt_images = "OxfordPets"
    template = "a photo of a {}, a type of pet."
    expected_classes = 37
    expected_test = 3_669
    published_test = "efa245f65bdc"
    metadata = (Source("split_zhou_OxfordPets.json", drive_id="1501r8Ber4nNKvmlFVQZ8SeUHTcdTTEqs"),)
    archives = (Source(
        "images.tar.gz",
        urls=(
            "https://www.robots.ox.ac.uk/~vgg/data/pets/data/images.tar.gz",
            "https://thor.robots.ox.ac.uk/pets/images.tar.gz",
        ),
        checksum="md5:5c4f3ee8e5d25df40f4fd59a7f44e54c", places={"images": "images"},
    ),)
