"""A data set and its loaders."""
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from .datasets import build_dataset


class Pictures(torch.utils.data.Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        item = self.items[index]
        pixels = np.asarray(Image.open(item.impath).convert("RGB").resize((8, 8))).copy()
        image = torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
        return {"img": image, "label": item.label, "impath": item.impath, "index": index}


class DataManager:
    def __init__(self, cfg):
        self.dataset = data = build_dataset(cfg)
        self.train_loader_x = DataLoader(Pictures(data.train_x), cfg.DATALOADER.TRAIN_X.BATCH_SIZE, shuffle=True)
        self.train_loader_u = None
        self.val_loader = DataLoader(Pictures(data.val), cfg.DATALOADER.TEST.BATCH_SIZE) if data.val else None
        self.test_loader = DataLoader(Pictures(data.test), cfg.DATALOADER.TEST.BATCH_SIZE)
        self.num_classes, self.lab2cname = data.num_classes, data.lab2cname
        self.num_source_domains = len(cfg.DATASET.SOURCE_DOMAINS)
