"""ImageNet-A: photographs that a ResNet-50 misclassifies, of 200 of ImageNet's classes."""
from .base import DATASET_REGISTRY
from .download.fetch import Source
from .imagenet import ImageNetBase


@DATASET_REGISTRY.register()
class ImageNetA(ImageNetBase):
    """ImageNet-A. Its classes are those that have a folder, with labels from 0."""

    label = "ImageNet-A"
    display_order = 12
    folder = "imagenet-adversarial"
    images = "imagenet-a"
    tpt_images = "imagenet-a"
    subset = True
    expected_classes = 200
    expected_test = 7_500
    archives = (Source(
        "imagenet-a.tar", urls=("https://people.eecs.berkeley.edu/~hendrycks/imagenet-a.tar",),
        checksum="sha256:3bb3632277e6ba6392ea64c02ddbf4dd2266c9caffd6bc09c9656d28f012589e",
        places={images: images},
    ),)
