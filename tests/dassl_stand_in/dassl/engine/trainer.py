"""A trainer: builds data, model and evaluator, trains epochs, tests."""
from pathlib import Path

import torch

from dassl.data import DataManager
from dassl.evaluation import build_evaluator
from dassl.utils import load_checkpoint, save_checkpoint


class TrainerX:
    def __init__(self, cfg):
        self.check_cfg(cfg)
        self.cfg, self.device, self.models, self.epoch = cfg, torch.device("cpu"), {}, 0
        self.build_data_loader()
        self.build_model()
        self.evaluator = build_evaluator(cfg, lab2cname=self.lab2cname)

    def check_cfg(self, cfg):
        pass

    def build_data_loader(self):
        self.dm = DataManager(self.cfg)
        for name in ("train_loader_x", "train_loader_u", "val_loader", "test_loader", "num_classes", "lab2cname",
                     "num_source_domains"):
            setattr(self, name, getattr(self.dm, name))

    def register_model(self, name, model, optim, sched):
        self.models[name] = (model, optim, sched)

    def load_model(self, directory, epoch=None):
        for name, (model, _, _) in self.models.items() if directory else ():
            model.load_state_dict(load_checkpoint(Path(directory, name, f"model.pth.tar-{epoch}"))["state_dict"])

    def train(self):
        for epoch in range(self.cfg.OPTIM.MAX_EPOCH):
            self.epoch = epoch
            for batch in self.train_loader_x:
                self.forward_backward(batch)
            for _, _, sched in self.models.values():
                sched.step()
            if self.cfg.TEST.FINAL_MODEL == "best_val":
                self.test(split="val")
        for name, (model, optim, sched) in self.models.items():
            save_checkpoint({
                "state_dict": model.state_dict(), "epoch": self.epoch + 1, "optimizer": optim.state_dict(),
                "scheduler": sched.state_dict(), "val_result": None,
            }, Path(self.cfg.OUTPUT_DIR, name))
        self.after_train()

    def after_train(self):
        print("Finish training")
        self.test()

    @torch.no_grad()
    def test(self, split=None):
        self.evaluator.reset()
        on_val = (split or self.cfg.TEST.SPLIT) == "val" and self.val_loader is not None
        for batch in self.val_loader if on_val else self.test_loader:
            self.evaluator.process(self.model_inference(batch["img"]), batch["label"])
        return next(iter(self.evaluator.evaluate().values()))

    def model_inference(self, images):
        return self.model(images)
