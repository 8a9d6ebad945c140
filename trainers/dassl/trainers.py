"""Our methods as trainers of Dassl's: their data, their commands and their result lines around our engine."""
from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from dassl.data.datasets import build_dataset
from dassl.engine import TRAINER_REGISTRY as THEIRS
from dassl.engine import TrainerX
from yacs.config import CfgNode

from ..registry import TRAINER_REGISTRY
from ..runs.summary import END_OF_TRAINING
from ..vlm.prompt_files import find_prompt
from .data import TheirData
from .evaluator import Calibration
from .keys import our_cfg

logger = logging.getLogger(__name__)

TAKEN = "PromptCal"  # before a name that the checkout uses itself


class EngineTrainer(TrainerX):
    """Dassl's life of a trainer. The model is loaded when it is known which prompt to start from, just before testing;
    views follow from seed and image, so that there are no loaders of Dassl's."""

    method = ""  # the name in our registry

    def build_data_loader(self) -> None:
        self.theirs = build_dataset(self.cfg)
        self.train_loader_x = self.train_loader_u = self.val_loader = self.test_loader = None
        self.num_classes, self.lab2cname = self.theirs.num_classes, self.theirs.lab2cname
        self.num_source_domains = len(self.cfg.DATASET.SOURCE_DOMAINS)

    def build_model(self) -> None:
        """Refuses settings that cannot work while nothing has been computed."""
        self.data = TheirData(self.theirs, self.cfg)
        self.prompt = ""
        our_cfg(self.cfg, self.method)
        if self.cfg.SEED < 0:
            logger.info("SEED is %d, which leaves it open: views are those of seed 0", self.cfg.SEED)
        if not TRAINER_REGISTRY.get(self.method).trained:
            logger.info("%s adapts to each test image: OPTIM.* is not used, TTA.OPTIM.* is its step", self.method)

    def load_model(self, directory: str, epoch: int | None = None) -> None:
        """A prompt of CoOp's to start from, read as data."""
        if directory:
            self.prompt = str(find_prompt(directory, epoch))
        else:
            print("no --model-dir: the prompt is PROMPT.CTX_INIT")

    def train(self) -> None:
        learns = TRAINER_REGISTRY.get(self.method).trained
        results = self.run_engine(train=learns)
        print("\n".join(END_OF_TRAINING))
        self.show(results)

    def test(self, split: str | None = None) -> float:
        return self.show(self.run_engine(train=False, split=split))

    def run_engine(self, train: bool, split: str | None = None) -> Any:
        """Our whole run: cache, resume and ranks as in tools/train.py."""
        cfg = our_cfg(self.cfg, self.method, self.prompt)
        if split:
            cfg.defrost()
            cfg.TEST.SPLIT = split
            cfg.freeze()
        self.engine = TRAINER_REGISTRY.get(self.method)(cfg, self.data)
        self.engine.log_name = ""  # Dassl writes log.txt, our lines included
        results = self.engine.run(train=train)
        if self.engine.dist.is_main:
            from ..report.tensorboard_figures import write_tensorboard_figures  # matplotlib is not part of a run

            write_tensorboard_figures(self.engine.run_dir.path)
        return results

    def show(self, results: dict) -> float:
        """Dassl's evaluator, whichever was asked for, says the result."""
        if not self.runs.dist.is_main:
            return results["accuracy"]
        predictions = self.engine.run_dir.predictions()
        self.evaluator.writes = False
        self.evaluator.reset()
        self.evaluator.process(torch.from_numpy(predictions["logits"]), torch.from_numpy(predictions["label"]))
        return next(iter(self.evaluator.evaluate().values()))


def register_trainers() -> dict[str, str]:
    """Adds our methods to Dassl's registry, once; the name of each there."""
    taken = set(THEIRS.registered_names())
    names = {}
    for method in TRAINER_REGISTRY:
        ours = {name for name in taken if getattr(THEIRS.get(name), "method", None) == method}
        if ours:
            names[method] = ours.pop()
            continue
        names[method] = f"{TAKEN}{method}" if method in taken else method
        if method in taken:
            logger.info("%s is a trainer of this checkout; ours is --trainer %s", method, names[method])
        THEIRS.register(type(names[method], (EngineTrainer,), {"method": method}))
    return names


def introducing(build_trainer: Any) -> Any:
    """Dassl's `build_trainer`, after which the evaluator knows whose outputs it gets, and of which split, and the log
    of a training has the line that the checkout's parse_test_res.py waits for, whichever Dassl that was made for."""
    @functools.wraps(build_trainer)
    def build(cfg: CfgNode) -> Any:
        trainer = build_trainer(cfg)
        evaluator = getattr(trainer, "evaluator", None)
        if isinstance(evaluator, Calibration):
            introduce(evaluator, trainer)
        return trainer
    return build


def introduce(evaluator: Calibration, trainer: Any) -> None:
    test, after_train = trainer.test, trainer.after_train
    evaluator.trainer = trainer

    @functools.wraps(test)
    def told(split: str | None = None, *args: Any, **kwargs: Any) -> Any:
        wanted = split or trainer.cfg.TEST.SPLIT
        evaluator.split = "val" if wanted == "val" and trainer.val_loader is not None else "test"  # as Dassl has it
        return test(split, *args, **kwargs)

    @functools.wraps(after_train)
    def ended() -> None:
        print("\n".join(END_OF_TRAINING))
        after_train()

    trainer.test, trainer.after_train = told, ended
