"""Data sets by name: three lists of labelled images, and class names taken from the training images."""
from pathlib import Path

from dassl.utils import Registry

DATASET_REGISTRY = Registry("DATASET")


def build_dataset(cfg):
    return DATASET_REGISTRY.get(cfg.DATASET.NAME)(cfg)


class Datum:
    def __init__(self, impath="", label=0, domain=0, classname=""):
        assert Path(impath).is_file()
        self.impath, self.label, self.domain, self.classname = impath, label, domain, classname


class DatasetBase:
    def __init__(self, train_x=None, train_u=None, val=None, test=None):
        self.train_x, self.train_u, self.val, self.test = train_x, train_u, val, test
        self.lab2cname = {item.label: item.classname for item in train_x}
        self.classnames = [self.lab2cname[label] for label in sorted(self.lab2cname)]
        self.num_classes = max(self.lab2cname) + 1


from .dg import *  # noqa: E402, F403
