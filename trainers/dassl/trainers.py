"""promptcal's methods as Dassl trainers: Dassl's data, commands and result lines around our runs.
"""
from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from dassl.data.datasets import build_dataset
from dassl.engine import TRAINER_REGISTRY as DASSL_REGISTRY
from dassl.engine import TrainerX
from yacs.config import CfgNode

from ..base import BaseTrainer
from ..config.settings import run_path
from ..registry import TRAINER_REGISTRY
from ..runs.run_dir import Results, read_predictions
from ..runs.summary import END_OF_TRAINING
from ..vlm.prompt_files import find_prompt
from .convert import DasslDataset, our_cfg
from .evaluator import Calibration

logger = logging.getLogger(__name__)

PREFIX = "PromptCal"  # of a method whose name the checkout uses


class PromptCalTrainer(TrainerX):
    """A method as a Dassl trainer.

    The model is loaded just before testing, when the initial prompt is known. Views follow from
    seed and image, so Dassl's data loaders are not used.

    Attributes:
        method: The name in our registry, set by each class of `register_trainers`.
        engine: Our trainer, of the last run.
        prompt: Checkpoint to start from; "" = the prompt is the settings' own.
    """

    method = ""
    engine: BaseTrainer
    prompt = ""

    def build_data_loader(self) -> None:
        """Reads the data set with Dassl's reader and makes no data loaders."""
        self.source = build_dataset(self.cfg)
        self.train_loader_x = None
        self.train_loader_u = None
        self.val_loader = None
        self.test_loader = None
        self.num_classes = self.source.num_classes
        self.lab2cname = self.source.lab2cname
        self.num_source_domains = len(self.cfg.DATASET.SOURCE_DOMAINS)

    def build_model(self) -> None:
        """Refuses settings that cannot work before anything is computed."""
        self.data = DasslDataset(self.source, self.cfg)
        our_cfg(self.cfg, self.method)
        if not TRAINER_REGISTRY.get(self.method).trained:
            logger.info(
                "%s adapts to each test image: OPTIM.* is not used, TTA.OPTIM.* is its step",
                self.method,
            )

    def load_model(self, directory: str, epoch: int | None = None) -> None:
        """Finds the prompt of a CoOp run to start from.

        Args:
            directory: Folder of the run; "" = none, and the prompt is that of the settings.
            epoch: Epoch of the checkpoint; None = the best one if CoOp wrote it, else the last.
        """
        self.prompt = ""
        if directory:
            self.prompt = str(find_prompt(directory, epoch))

    def train(self) -> None:
        """A whole run, with the lines that Dassl prints at the end of a training."""
        results = self.run_engine(train=TRAINER_REGISTRY.get(self.method).trained)
        print("\n".join(END_OF_TRAINING))
        self.evaluate(results)

    def test(self, split: str | None = None) -> float:
        """A whole run without training.

        Args:
            split: `val` or `test`; None = what the config says.

        Returns:
            The accuracy in percent.
        """
        return self.evaluate(self.run_engine(train=False, split=split))

    def run_engine(self, train: bool, split: str | None = None) -> Results:
        """A whole run, with cache, resume and several processes as in tools/train.py.

        Args:
            train: Train a prompt first, where the method does.
            split: `val` or `test`; None = what the config says.
        """
        cfg = our_cfg(self.cfg, self.method, self.prompt, split)
        self.engine = TRAINER_REGISTRY.get(self.method)(cfg, self.data)
        self.engine.log_name = ""  # Dassl writes log.txt, our lines included
        results = self.engine.run(train=train)
        if self.engine.dist.is_main:
            # Matplotlib is not part of a run.
            from ..report.tensorboard_figures import write_tensorboard_figures

            write_tensorboard_figures(run_path(self.engine.cfg))
        return results

    def evaluate(self, results: Results) -> float:
        """Prints the result through Dassl's evaluator.

        Args:
            results: The content of results.json.

        Returns:
            The accuracy in percent.
        """
        if not self.engine.dist.is_main:
            return results["accuracy"]
        predictions = read_predictions(run_path(self.engine.cfg))
        self.evaluator.writes = False  # our run folder has been written
        self.evaluator.reset()
        logits = torch.from_numpy(predictions["logits"])
        labels = torch.from_numpy(predictions["label"])
        self.evaluator.process(logits, labels)
        metrics = self.evaluator.evaluate()
        return next(iter(metrics.values()))  # of Dassl's metrics the accuracy is the first


def register_trainers() -> None:
    """Adds our methods to Dassl's registry, once."""
    names_in_use = set(DASSL_REGISTRY.registered_names())
    registered_methods = set()
    for name in names_in_use:
        cls = DASSL_REGISTRY.get(name)
        if issubclass(cls, PromptCalTrainer):
            registered_methods.add(cls.method)
    for method in sorted(set(TRAINER_REGISTRY) - registered_methods):
        name = method
        if method in names_in_use:
            name = f"{PREFIX}{method}"
            logger.info("%s is a trainer of this checkout; ours is --trainer %s", method, name)
        DASSL_REGISTRY.register(type(name, (PromptCalTrainer,), {"method": method}))


def connecting_evaluator(build_trainer: Any) -> Any:
    """Wraps Dassl's `build_trainer` so that our evaluator learns whose outputs it gets.

    The evaluator `Calibration` writes a run folder, which names the trainer and the split.

    Args:
        build_trainer: The function of Dassl.

    Returns:
        A function with the same arguments and the same result.
    """
    @functools.wraps(build_trainer)
    def build(cfg: CfgNode) -> Any:
        trainer = build_trainer(cfg)
        evaluator = getattr(trainer, "evaluator", None)
        test = trainer.test
        if not isinstance(evaluator, Calibration):
            return trainer
        evaluator.trainer = trainer

        @functools.wraps(test)
        def test_split(split: str | None = None, *args: Any, **kwargs: Any) -> Any:
            # Dassl tests on the test images if there are no validation images.
            on_val = (split or cfg.TEST.SPLIT) == "val" and trainer.val_loader is not None
            evaluator.split = "val" if on_val else "test"
            return test(split, *args, **kwargs)

        trainer.test = test_split
        return trainer
    return build
