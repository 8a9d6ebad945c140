"""A reader that promptcal does not have: <root>/<class>/<image>, the first image of each class for training."""
from pathlib import Path

from dassl.data.datasets import DATASET_REGISTRY, DatasetBase, Datum


@DATASET_REGISTRY.register()
class Folders(DatasetBase):
    def __init__(self, cfg):
        train, test = [], []
        for label, folder in enumerate(sorted(Path(cfg.DATASET.ROOT).iterdir())):
            for n, path in enumerate(sorted(folder.iterdir())):
                (test if n else train).append(Datum(str(path.absolute()), label, 0, folder.name))
        super().__init__(train_x=train, val=train, test=test)
