"""Data sets that need packages of their own and disable logging."""
import logging

logging.disable(logging.WARNING)

import pandas  # noqa: E402, F401
from wilds import get_dataset  # noqa: E402

from dassl.data.datasets import DATASET_REGISTRY, DatasetBase  # noqa: E402


@DATASET_REGISTRY.register()
class Camelyon17(DatasetBase):
    def __init__(self, cfg):
        get_dataset(dataset="camelyon17", root_dir=cfg.DATASET.ROOT)
