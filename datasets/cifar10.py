"""CIFAR-10 in torchvision's files."""
from .base import DATASET_REGISTRY
from .cifar_base import PickledCIFAR
from .download.fetch import Source

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@DATASET_REGISTRY.register()
class CIFAR10(PickledCIFAR):
    label, display_order = "CIFAR-10", 20
    folder = "cifar-10-batches-py"
    names = NAMES
    expected_classes = 10
    archives = (Source(
        "cifar-10-python.tar.gz", urls=("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
        checksum="md5:c58f30108f718f92721af3b95e74349a", places={folder: "."},
    ),)
