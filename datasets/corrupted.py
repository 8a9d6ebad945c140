"""What the benchmarks of common corruptions share (Hendrycks and Dietterich, ICLR 2019)."""
from __future__ import annotations

import logging

from .base import SEVERITIES
from .file_dataset import FileDataset
from .utils.errors import DataError, first_five

logger = logging.getLogger(__name__)

# By archive of ImageNet-C. `extra` is not part of the fifteen of which published averages are made.
GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "extra": ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
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
