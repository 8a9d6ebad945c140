"""ImageNet-V2, matched frequency: new photographs for ImageNet's classes."""
from .base import DATASET_REGISTRY
from .download.fetch import Source
from .imagenet import ImageNetBase


@DATASET_REGISTRY.register()
class ImageNetV2(ImageNetBase):
    """ImageNet-V2. Its folders are named by label numbers and sorted by value.

    Sorted as text, 10 would come before 2, which costs nearly all accuracy.
    """

    label = "ImageNet-V2"
    display_order = 13
    folder = "imagenetv2"
    images = "imagenetv2-matched-frequency-format-val"
    tpt_images = "imagenetv2-matched-frequency-format-val"
    numbered = True
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
