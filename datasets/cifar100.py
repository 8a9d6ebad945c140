"""CIFAR-100 in torchvision's files, with its 100 fine classes."""
from .base import DATASET_REGISTRY
from .cifar_base import PickledCIFAR
from .download.fetch import Source

NAMES = (
    "apple", "aquarium fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest",
    "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn mower", "leopard", "lion", "lizard",
    "lobster", "man", "maple tree", "motorcycle", "mountain", "mouse", "mushroom", "oak tree", "orange", "orchid",
    "otter", "palm tree", "pear", "pickup truck", "pine tree", "plain", "plate", "poppy", "porcupine", "possum",
    "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper",
    "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet pepper", "table", "tank", "telephone",
    "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow tree", "wolf",
    "woman", "worm",
)


@DATASET_REGISTRY.register()
class CIFAR100(PickledCIFAR):
    label, display_order = "CIFAR-100", 21
    folder = "cifar-100-python"
    label_key, test_file, train_files = "fine_labels", "test", ("train",)
    names = NAMES
    expected_classes = 100
    archives = (Source(
        "cifar-100-python.tar.gz", urls=("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
        checksum="md5:eb9058c3a382ffc7106e4002c42a8d85", places={folder: "."},
    ),)
