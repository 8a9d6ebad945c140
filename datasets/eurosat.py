"""EuroSAT: land use from Sentinel-2, RGB."""
from .base import DATASET_REGISTRY
from .download.fetch import Source
from .file_dataset import SplitFileDataset


@DATASET_REGISTRY.register()
class EuroSAT(SplitFileDataset):
    """Satellite images of ten kinds of land."""

    label = "EuroSAT"
    display_order = 10
    folder = "eurosat"
    images = "2750"
    tpt_images = "eurosat"
    template = "a centered satellite photo of {}."
    expected_classes = 10
    expected_test = 8_100
    published_test = "85571e8a16f8"
    metadata = (Source("split_zhou_EuroSAT.json", drive_id="1Ip7yaCWFi0eaOFUGga0lUdVi_DDQth1o"),)
    archives = (Source(
        "EuroSAT.zip",
        urls=(
            "https://huggingface.co/datasets/torchgeo/eurosat/resolve/"
            "c877bcd43f099cd0196738f714544e355477f3fd/EuroSAT.zip",
        ),
        checksum="md5:c8fa014336c82ac7804f0398fcb19387", places={"2750": "2750"},
        substitute=Source(  # its authors' deposit, in which the folder has another name
            "EuroSAT_RGB.zip", urls=("https://zenodo.org/records/7711810/files/EuroSAT_RGB.zip",),
            checksum="md5:f46e308c4d50d4bf32fedad2d3d62f3b", places={"EuroSAT_RGB": "2750"},
        ),
    ),)
