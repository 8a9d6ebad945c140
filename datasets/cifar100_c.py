"""CIFAR-100-C: the test images of CIFAR-100 under 19 corruptions."""
from .base import DATASET_REGISTRY
from .cifar100 import NAMES
from .cifar_base import CorruptedCIFAR
from .download.fetch import Source


@DATASET_REGISTRY.register()
class CIFAR100C(CorruptedCIFAR):
    label, display_order = "CIFAR-100-C", 23
    folder = "CIFAR-100-C"
    names = NAMES
    expected_classes = 100
    archives = (Source(
        "CIFAR-100-C.tar", urls=("https://zenodo.org/records/3555552/files/CIFAR-100-C.tar",),
        checksum="md5:11f0ed0f1191edbf9fa23466ae6021d3", places={folder: "."},
    ),)
