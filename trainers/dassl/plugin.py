"""promptcal's methods as Dassl trainers, in two lines of a checkout's own train.py:

    from promptcal.trainers.dassl import plugin   # before anything of dassl is imported
    plugin.extend_cfg(cfg)                        # at the end of its extend_cfg

Importing this module patches Dassl (`patches`) and registers the evaluator `Calibration`.
`extend_cfg` registers our trainers after the checkout's own, whose names take precedence.

Our keys are added to Dassl's tree with the value None, which means the method's default. Where
Dassl has a key of the same name, its value is used if it means the same. OPTIM does not: CoOp's
yaml files describe there how prompts are trained, so the optimizer at test time has TTA.OPTIM.
"""
from __future__ import annotations

import functools
import importlib
import logging
from typing import Any

import torch
from yacs.config import CfgNode

from ...datasets.utils.cli import log_to_terminal, outcome
from ..base import BaseTrainer
from ..config.build import build_cfg, dataset_file_of
from ..config.dassl_compat import OPTIMIZER
from ..config.settings import get_cfg_default, leaves, run_path
from ..registry import TRAINER_REGISTRY
from ..runs.run_dir import Results, read_predictions
from ..runs.summary import END_OF_TRAINING
from ..vlm.prompt_files import find_prompt
from .patches import apply_patches, explaining_absent_packages

logger = logging.getLogger(__name__)

SHARED = (  # Dassl's keys that mean the same here
    "DATASET.ROOT", "DATASET.SUBSAMPLE_CLASSES", "DATALOADER.NUM_WORKERS", "MODEL.BACKBONE.NAME",
    "MODEL.INIT_WEIGHTS", "OUTPUT_DIR", "TEST.SPLIT",
)
# Keys that do so for methods that are trained.
OF_TRAINING = ("OPTIM.", "DATALOADER.TRAIN_X.", "DATASET.NUM_SHOTS")
# Handled one by one, or not read at all.
SEPARATE = ("SEED", "TAG", "TRAINER.NAME", "DATASET.NAME", "INPUT.SIZE")
AT_TEST_TIME = "TTA."  # prefix of OPTIM.* for the step that adapts to an image
PREFIX = "PromptCal"  # of a method whose name the checkout uses


def prepare_dassl() -> None:
    """Patches Dassl and imports it, which needs packages that may be absent."""
    with explaining_absent_packages():
        apply_patches()
        importlib.import_module("dassl.engine")


log_to_terminal()
status = outcome(prepare_dassl)  # prints one line for a user error
if status:
    raise SystemExit(status)

# Dassl can be imported from here on.
import dassl.config  # noqa: E402
import dassl.engine  # noqa: E402
from dassl.data.datasets import build_dataset  # noqa: E402
from dassl.engine import TRAINER_REGISTRY as DASSL_REGISTRY  # noqa: E402
from dassl.engine import TrainerX  # noqa: E402

from .evaluator import Calibration, DasslDataset  # noqa: E402

__all__ = ["Calibration", "extend_cfg"]


def extend_cfg(cfg: CfgNode) -> None:
    """Adds our settings and trainers.

    Call it before any yaml is merged; repeated calls change nothing.
    """
    register_trainers()
    add_settings(cfg)


def add_settings(cfg: CfgNode) -> None:
    """Adds the settings of all our methods that the config does not have, with the value None."""
    our_keys = list(leaves(get_cfg_default()))
    keys_of_step = [f"{AT_TEST_TIME}{key}" for key in our_keys if key.startswith("OPTIM.")]
    for key in [*our_keys, *keys_of_step]:
        *groups, leaf = key.split(".")
        node = cfg
        for group in groups:
            node = node.setdefault(group, CfgNode())
        node.setdefault(leaf, None)


def our_cfg(theirs: CfgNode, method: str, prompt: str = "", split: str | None = None) -> CfgNode:
    """Our config for a config of Dassl's.

    Args:
        theirs: Dassl's config, with our settings.
        method: The name of the method in our registry.
        prompt: The checkpoint that --model-dir names; "" if none is given.
        split: What is tested; None = what the config says.
    """
    values = leaves(theirs)
    defaults = leaves(dassl.config.cfg_default)
    trained = TRAINER_REGISTRY.get(method).trained
    settings: dict[str, Any] = {}
    # OPTIM.NAME is no setting of ours. It is passed on, because `build_cfg` refuses optimizers that
    # training does not have here.
    for key in [*leaves(get_cfg_default()), OPTIMIZER]:
        their_key = key
        if key.startswith("OPTIM.") and not trained:
            their_key = f"{AT_TEST_TIME}{key}"
        value = values.get(their_key)
        if value in (None, "") or their_key in SEPARATE:
            continue
        if their_key not in defaults or their_key in SHARED:
            # Our key, which `add_settings` has added, or one of Dassl's with the same meaning.
            settings[key] = value
        elif trained and their_key.startswith(OF_TRAINING) and value != defaults[their_key]:
            # A key of Dassl's own, which means the same only for methods that are trained.
            settings[key] = value
    settings["SEED"] = max(theirs.SEED, 0)  # Dassl's negative seed means any
    if not theirs.USE_CUDA:
        settings["DEVICE"] = "cpu"
    if prompt:
        settings["MODEL.INIT_WEIGHTS"] = prompt
    if split:
        settings["TEST.SPLIT"] = split
    pairs: list[Any] = []
    for key, value in settings.items():
        pairs += [key, value]
    name = theirs.DATASET.NAME
    cfg = build_cfg(method, str(dataset_file_of(name) or ""), opts=pairs)
    cfg.defrost()
    cfg.DATASET.NAME = name  # may be a data set of the checkout, which our registry does not know
    cfg.freeze()
    return cfg


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


dassl.engine.build_trainer = connecting_evaluator(dassl.engine.build_trainer)
