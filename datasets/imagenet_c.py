"""ImageNet-C: ImageNet's validation images, 224 pixels wide, under 19 corruptions. (Hendrycks and
Dietterich, ICLR 2019.) CIFAR's corrupted sets have the same corruptions.
"""
from __future__ import annotations

import logging
from pathlib import Path

from .base import DATASET_REGISTRY, SEVERITIES, Datum
from .download.fetch import Source
from .file_dataset import FileDataset
from .imagenet import ImageNetBase, imagenet_name
from .utils.errors import DataError, first_five

logger = logging.getLogger(__name__)

# The corruptions, by archive of ImageNet-C. `extra` is not part of the fifteen of which published
# averages are made.
GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "extra": ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
}
CHECKSUMS = {  # md5, as published with the archives
    "noise": "e80562d7f6c3f8834afb1ecf27252745",
    "blur": "2d8e81fdd8e07fef67b9334fa635e45c",
    "weather": "33ffea4db4d93fe4a428c40a6ce0c25d",
    "digital": "89157860d7b10d5797849337ca2e5c03",
    "extra": "d492dfba5fc162d8ec2c3cd8ee672984",
}


class CorruptedDataset(FileDataset):
    """A test set under each corruption at each severity.

    Without a corruption the reader takes the first one that is there, and logs which are missing.
    The checks of a data root read it so.
    """

    corruptions = sum(GROUPS.values(), ())
    clean = False
    test_only = True

    def severities(self, corruption: str) -> tuple[int, ...]:
        """The severities of a corruption that are there."""
        raise TypeError(f"{type(self).__name__} must define severities()")

    def check_folders(self) -> None:
        """Refuses a corruption or severity that is not there; chooses one if none is given."""
        super().check_folders()
        if self.corruption:
            present = self.severities(self.corruption)
            if self.severity not in present:
                have = "not there"
                if present:
                    have = f"only at severity {', '.join(map(str, present))}"
                raise DataError(f"{self.name()}: {self.corruption} is {have} in "
                                f"{self.dataset_dir}, and severity {self.severity} is needed; "
                                f"{self.remedy()}")
            return
        missing = []
        missing_severities = []
        for name in self.corruptions:
            present = self.severities(name)
            if not present:
                missing.append(name)
                continue
            if not self.corruption:
                self.corruption = name
                self.severity = present[0]
            for severity in SEVERITIES:
                if severity not in present:
                    missing_severities.append(f"{name} {severity}")
        if not self.corruption:
            raise DataError(f"{self.name()}: {self.dataset_dir} has none of its corruptions; "
                            f"{self.remedy()}")
        missing += missing_severities
        if missing:
            logger.warning("%s: without %s", self.name(), first_five(missing))


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
