"""ImageNet-Sketch: black and white drawings of ImageNet's classes."""
from .base import DATASET_REGISTRY
from .download.fetch import Source
from .imagenet import ImageNetBase


@DATASET_REGISTRY.register()
class ImageNetSketch(ImageNetBase):
    """Sketches of all 1,000 classes."""

    label = "ImageNet-Sketch"
    display_order = 15
    folder = "imagenet-sketch"
    images = "images"
    tpt_images = "ImageNet-Sketch"
    expected_classes = 1000
    expected_test = 50_889
    archives = (Source(
        "ImageNet-Sketch.zip", drive_id="1Mj0i5HBthqH1p_yeXzsg22gZduvgoNeA",
        checksum="sha256:4d3ce6b82a7c48aabf14aeac105eb533e75707f152cc858f55bfc022031a72ed",
        places={"sketch": "images"},
    ),)
