"""ImageNet-R: paintings, toys, cartoons and other renditions of 200 of ImageNet's classes."""
from .base import DATASET_REGISTRY
from .download.fetch import Source
from .imagenet import ImageNetBase


@DATASET_REGISTRY.register()
class ImageNetR(ImageNetBase):
    """200 of ImageNet's classes, those that have a folder, with labels from 0.

    (Hendrycks et al., ICCV 2021.)
    """

    label = "ImageNet-R"
    display_order = 14
    folder = "imagenet-rendition"
    images = "imagenet-r"
    tpt_images = "imagenet-r"
    subset = True
    expected_classes = 200
    expected_test = 30_000
    archives = (Source(
        "imagenet-r.tar", urls=("https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar",),
        checksum="sha256:18c6bf493b39a0d975d48e587437f562caab9c52ae6327dcfa9dd8eb54aa1b52",
        places={images: images},
    ),)
