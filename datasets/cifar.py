"""CIFAR-10, CIFAR-100, and their test images under 19 corruptions.

Class names are torchvision's, with spaces.
"""
from .base import DATASET_REGISTRY
from .cifar_base import CorruptedCIFAR, PickledCIFAR
from .download.fetch import Source

TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
HUNDRED = (
    "apple", "aquarium fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle",
    "bottle", "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar",
    "cattle", "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile",
    "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster",
    "house", "kangaroo", "keyboard", "lamp", "lawn mower", "leopard", "lion", "lizard", "lobster",
    "man", "maple tree", "motorcycle", "mountain", "mouse", "mushroom", "oak tree", "orange",
    "orchid", "otter", "palm tree", "pear", "pickup truck", "pine tree", "plain", "plate", "poppy",
    "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal",
    "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar",
    "sunflower", "sweet pepper", "table", "tank", "telephone", "television", "tiger", "tractor",
    "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow tree", "wolf", "woman",
    "worm",
)


def source(url: str, folder: str, md5: str) -> tuple[Source, ...]:
    """The archives of a set, of which there is one.

    Args:
        url: Address of the archive.
        folder: The folder in the archive that holds the files.
        md5: MD5 sum of the archive.
    """
    file_name = url.rpartition("/")[2]
    return (Source(file_name, urls=(url,), checksum=f"md5:{md5}", places={folder: "."}),)


@DATASET_REGISTRY.register()
class CIFAR10(PickledCIFAR):
    """The ten classes, from torchvision's pickles."""

    label = "CIFAR-10"
    display_order = 20
    names = TEN
    expected_classes = 10
    family = "CIFAR-10"
    folder = "cifar-10-batches-py"
    archives = source("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", folder,
                      "c58f30108f718f92721af3b95e74349a")


@DATASET_REGISTRY.register()
class CIFAR100(PickledCIFAR):
    """The hundred fine classes, from torchvision's pickles."""

    label = "CIFAR-100"
    display_order = 21
    names = HUNDRED
    expected_classes = 100
    family = "CIFAR-100"
    folder = "cifar-100-python"
    label_key = "fine_labels"
    test_file = "test"
    train_files = ("train",)
    archives = source("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", folder,
                      "eb9058c3a382ffc7106e4002c42a8d85")


@DATASET_REGISTRY.register()
class CIFAR10C(CorruptedCIFAR):
    """CIFAR-10's test images under 19 corruptions."""

    label = "CIFAR-10-C"
    display_order = 22
    names = TEN
    expected_classes = 10
    family = "CIFAR-10"
    folder = "CIFAR-10-C"
    archives = source("https://zenodo.org/records/2535967/files/CIFAR-10-C.tar", folder,
                      "56bf5dcef84df0e2308c6dcbcbbd8499")


@DATASET_REGISTRY.register()
class CIFAR100C(CorruptedCIFAR):
    """CIFAR-100's test images under 19 corruptions."""

    label = "CIFAR-100-C"
    display_order = 23
    names = HUNDRED
    expected_classes = 100
    family = "CIFAR-100"
    folder = "CIFAR-100-C"
    archives = source("https://zenodo.org/records/3555552/files/CIFAR-100-C.tar", folder,
                      "11f0ed0f1191edbf9fa23466ae6021d3")
