"""ImageNet-C: ImageNet's validation images, 224 pixels wide, under 19 corruptions."""
from pathlib import Path

from .base import DATASET_REGISTRY, SEVERITIES, Datum
from .corrupted import GROUPS, CorruptedDataset
from .download.fetch import Source
from .imagenet_base import ImageNetBase, imagenet_name

CHECKSUMS = {  # md5, as published with the archives
    "noise": "e80562d7f6c3f8834afb1ecf27252745",
    "blur": "2d8e81fdd8e07fef67b9334fa635e45c",
    "weather": "33ffea4db4d93fe4a428c40a6ce0c25d",
    "digital": "89157860d7b10d5797849337ca2e5c03",
    "extra": "d492dfba5fc162d8ec2c3cd8ee672984",
}


def archive(group: str) -> Source:
    """The archive of a group of corruptions."""
    return Source(
        f"{group}.tar",
        urls=(f"https://zenodo.org/records/2235448/files/{group}.tar",),
        checksum=f"md5:{CHECKSUMS[group]}",
        places={name: name for name in GROUPS[group]},
    )


@DATASET_REGISTRY.register()
class ImageNetC(CorruptedDataset, ImageNetBase):
    """All 50,000 images of a corruption, or those that DATASET.IMAGE_LIST names, such as
    RobustBench's 5,000."""

    label = "ImageNet-C"
    display_order = 16
    folder = "ImageNet-C"
    aliases = ("imagenet-c",)
    expected_classes = 1000
    expected_test = 50_000
    archives = tuple(map(archive, GROUPS))

    def class_root(self) -> Path:
        """The folder of the corruption and severity."""
        return self.dataset_dir / self.corruption / str(self.severity)

    def severities(self, corruption: str) -> tuple[int, ...]:
        """The severities of a corruption that have a folder."""
        folder = self.dataset_dir / corruption
        return tuple(severity for severity in SEVERITIES if (folder / str(severity)).is_dir())

    def uncorrupted_name(self, item: Datum) -> str:
        """The name of ImageNet's image."""
        return imagenet_name(item)
