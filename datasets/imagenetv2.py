"""ImageNet-V2, matched frequency: new photographs for ImageNet's classes."""
from __future__ import annotations

from pathlib import Path

from .base import DATASET_REGISTRY
from .download.sources import Source
from .imagenet_base import ImageNetBase, subfolders
from .utils.errors import DataError, first_five


@DATASET_REGISTRY.register()
class ImageNetV2(ImageNetBase):
    """Its folders are label numbers. In string order 10 comes before 2, which costs nearly all accuracy."""

    label, display_order = "ImageNet-V2", 13
    folder = "imagenetv2"
    images = "imagenetv2-matched-frequency-format-val"
    expected_classes = 1000
    expected_test = 10_000
    archives = (
        Source(
            "imagenetv2-matched-frequency.tar.gz",
            urls=(
                "https://s3-us-west-2.amazonaws.com/imagenetv2public/imagenetv2-matched-frequency.tar.gz",
                "https://huggingface.co/datasets/vaishaal/ImageNetV2/resolve/main/imagenetv2-matched-frequency.tar.gz",
            ),
            checksum="sha256:f0c37fdf925916b19ea1323cd9a2208cdb6959ba2c32eef2a7fc393835c9ca7c",
            places={images: images},
        ),
    )

    def class_folders(self, folder: Path, wnids: list[str]) -> dict[str, Path]:
        numbered = {entry.name: entry for entry in subfolders(folder)}
        wrong = [name for name in numbered if not name.isascii() or not name.isdigit() or int(name) >= len(wnids)]
        if wrong or not numbered:
            raise DataError(f"ImageNetV2: {folder} must have folders named 0 to {len(wnids) - 1}, not "
                            f"{first_five(wrong) or 'none at all'}; {self.remedy()}")
        return {wnids[int(name)]: entry for name, entry in numbered.items()}
