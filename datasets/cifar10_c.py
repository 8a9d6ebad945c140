"""CIFAR-10-C: the test images of CIFAR-10 under 19 corruptions."""
from .base import DATASET_REGISTRY
from .cifar10 import NAMES
from .cifar_base import CorruptedCIFAR
from .download.fetch import Source


@DATASET_REGISTRY.register()
class CIFAR10C(CorruptedCIFAR):
    label, display_order = "CIFAR-10-C", 22
    folder = "CIFAR-10-C"
    names = NAMES
    expected_classes = 10
    archives = (Source(
        "CIFAR-10-C.tar", urls=("https://zenodo.org/records/2535967/files/CIFAR-10-C.tar",),
        checksum="md5:56bf5dcef84df0e2308c6dcbcbbd8499", places={folder: "."},
    ),)
