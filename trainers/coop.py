"""CoOp: a context trained on a few labelled images per class, used alone or as the start of
test-time tuning.
"""
from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from yacs.config import CfgNode

from ..datasets import Dataset
from ..datasets.identity import identify
from ..datasets.image_index import ImageIndex
from ..datasets.utils.cli import tool
from ..datasets.utils.errors import ConfigError, DataError
from ..datasets.utils.lock import FolderLock
from .base import BaseTrainer, without_few_shot_sampling
from .config.settings import (
    Check,
    Range,
    Setting,
    backbone_name,
    leaves,
    run_path,
    settings_of_training,
)
from .engine.adapted import Adapted
from .fewshot.training import PromptLearner, Schedule, random_context, run_epochs
from .fewshot.training_images import TrainingImages
from .functional.objectives import class_logits
from .registry import TRAINER_REGISTRY
from .runs.make_record import dataset_of_prompt, hash_of_protocol, training_section
from .runs.record import content_hash
from .runs.run_dir import Results
from .vlm.backbone import check_lengths, initial_context
from .vlm.numerics import fixed_numerics
from .vlm.prompt_files import TrainingState, checkpoint_path, prompt_hash, write_checkpoint
from .vlm.prompt_protocol import coop_epochs
from .vlm.prompted_clip import LoadedModel, PromptedCLIP
from .vlm.prompts import clean_name
from .vlm.text_encoder import TextEncoder

logger = logging.getLogger(__name__)


def default_epochs(settings: Mapping[str, object]) -> int:
    """The epochs of CoOp's scripts for some settings."""
    return coop_epochs(int(str(settings["DATASET.NUM_SHOTS"])), str(settings["DATASET.NAME"]))


def is_start(value: object) -> bool:
    """Whether a context can start from these words; "" = from random numbers."""
    words = str(value)
    if not words:
        return True
    return "{" not in words and bool(clean_name(words))


@TRAINER_REGISTRY.register()
class CoOp(BaseTrainer):
    """min over the context of the cross entropy of labelled images. (Zhou et al., IJCV 2022.)"""

    label = "CoOp"
    colour = "#009E73"
    marker = "P"
    display_order = 900
    tuned = False
    trained = True
    settings: ClassVar = [
        Setting(
            "N_CTX",
            16,
            "number of tokens of a context that starts at random",
            allowed=Range(least=1, text="at least 1"),
        ),
        Setting(
            "CTX_INIT",
            "",
            'words to start from instead, such as "a photo of a"; N_CTX then follows from them',
            allowed=Check(
                is_start,
                "empty (a random start), or have a word, without the class",
                good=("", "a photo of a"),
                bad=(" _ ", "a photo of {}"),
            ),
        ),
        Setting(
            "CSC",
            False,
            "class-specific contexts, one per class",
        ),
        Setting(
            "FIXED_VIEWS",
            False,
            "training on each image's plain view, encoded once, instead of new crops each epoch",
        ),
        Setting(
            "DATALOADER.TRAIN_X.BATCH_SIZE",
            32,
            "number of training images per step",
            allowed=Range(least=1, text="at least 1"),
        ),
        Setting(
            "OPTIM.MOMENTUM",
            0.9,
            "momentum of SGD",
            allowed=Range(least=0, below=1),
        ),
        Setting(
            "OPTIM.MAX_EPOCH",
            0,
            "number of epochs of training",
            allowed=Range(least=0, text="0 (as CoOp has it) or more"),
            auto="as CoOp, 50 for 1 shot and ImageNet, 100 up to 4, 200 above",
            resolve=default_epochs,
        ),
        Setting(
            "OPTIM.WARMUP_EPOCH",
            1,
            "number of first epochs at OPTIM.WARMUP_CONS_LR; a cosine from OPTIM.LR follows",
            allowed=Range(least=0),
        ),
        Setting(
            "OPTIM.WARMUP_CONS_LR",
            1e-5,
            "learning rate in the warm-up",
            allowed=Range(above=0),
        ),
    ]

    @classmethod
    def used_settings(cls, settings: Mapping[str, object]) -> Collection[str]:
        """Those of training; the plain view alone is tested."""
        return ("OPTIM.LR", "OPTIM.WEIGHT_DECAY")

    def __init__(
        self, cfg: CfgNode, dataset: Dataset | None = None, model: LoadedModel | None = None,
        learns: bool = True,
    ) -> None:
        """
        Args:
            cfg: The settings.
            dataset: Used instead of the one that `cfg` names.
            model: CLIP, see `BaseTrainer`.
            learns: False: the prompt of MODEL.INIT_WEIGHTS is tested without training.
        """
        super().__init__(cfg, dataset, model)
        self.learns = learns
        self.training: dict[str, object] = {}  # how the prompt was trained; empty before that

    @property
    def checkpoint(self) -> Path:
        """Where the run saves its prompt."""
        return checkpoint_path(run_path(self.cfg), epochs_of(self.cfg))

    @property
    def num_views(self) -> int:
        """1, the plain one."""
        return 1

    @property
    def has_prompt(self) -> bool:
        """Whether there is a learnt prompt to test."""
        return bool(self.cfg.MODEL.INIT_WEIGHTS or self.training)

    def run(self, train: bool = True, overwrite: bool = False) -> Results:
        """Trains and tests a prompt, or tests the one of MODEL.INIT_WEIGHTS.

        Args:
            train: Train a prompt first. Without it the prompt is only tested, which is another run.
            overwrite: Start again in a folder that holds another run.
        """
        if train or not self.learns:
            return super().run(train, overwrite)
        if not self.has_prompt:
            raise ConfigError("there is no prompt to test: give --model-dir DIR or "
                              "MODEL.INIT_WEIGHTS FILE")
        unused = settings_of_training(self.cfg)
        if unused:
            logger.info(
                "no effect on a prompt that is only tested: %s (the settings of its training "
                "are in the prompt; leave them out)",
                ", ".join(unused),
            )
        # Whether a run trains is part of its record, so a run that only tests is another one, with
        # a folder of its own.
        cfg = without_few_shot_sampling(self.cfg)
        tester = type(self)(cfg, self.given_dataset, self.given_model, learns=False)
        tester.log_name = self.log_name
        return tester.run(train=False, overwrite=overwrite)

    def training_facts(self) -> dict[str, object] | None:
        """What the training depends on, for the run's record; None if the run does not train."""
        if not self.learns:
            return None
        dataset = self.data.dataset
        if not dataset.train:
            raise DataError(
                f"{self.cfg.DATASET.NAME} has no training images; to test a prompt that "
                f"was trained elsewhere: --eval-only --model-dir DIR"
            )
        labels = {item.label for item in dataset.train}
        absent_classes = len(dataset.classnames) - len(labels)
        if absent_classes:
            logger.warning("%d classes have no training image", absent_classes)
        name = self.cfg.DATASET.LABEL or self.cfg.DATASET.NAME
        logger.info("%s: %d training images", name, len(dataset.train))
        images = ""
        if self.dist.is_main:
            images = self.hash_of_training_images()
        return training_section(self.cfg, images)

    def hash_of_training_images(self) -> str:
        """What the training images are now, in their order and with their labels."""
        dataset = self.data.dataset
        index = ImageIndex(self.cfg.CACHE.DIR)
        identity = identify(dataset, dataset.train, range(len(dataset.train)), index)
        if identity.missing:
            dataset.check_files(dataset.train)
        return identity.listing

    def check_training_images(self) -> None:
        """Refuses training images that are no longer those of the run's record."""
        if self.hash_of_training_images() != self.record.method["training"]["images"]:
            raise DataError(
                "training images have changed since this run began: start the run again when "
                "nothing writes to the images any more"
            )

    def make_clip(self, model: LoadedModel) -> PromptedCLIP:
        """Zero-shot predictions are those of PROMPT.CTX_INIT, with class names at the end."""
        clip = super().make_clip(model)
        # Not `clip.encoder`: the learnt prompt may have the class names elsewhere.
        encoder = TextEncoder(
            clip.backbone, clip.encoder.class_tokens, self.numerics.precision, budget=clip.budget)
        words = initial_context(clip.backbone, self.cfg.PROMPT.CTX_INIT)
        hand_written = encoder.text(words[None])[0]  # (K, d)
        return clip.with_zero_shot_text(hand_written)

    def starting_context(self) -> Tensor:
        """MODEL.INIT_WEIGHTS, or the words of CTX_INIT, or random numbers; one per class with CSC.
        """
        settings = self.cfg.TRAINER.COOP
        classes = len(self.clip.classnames)
        if self.cfg.MODEL.INIT_WEIGHTS:
            context = self.clip.context
        elif settings.CTX_INIT:
            context = initial_context(self.clip.backbone, settings.CTX_INIT)
        else:
            shape: tuple[int, ...] = (settings.N_CTX, self.clip.backbone.width)
            if settings.CSC:
                shape = (classes, *shape)  # each class starts from other numbers
            context = random_context(shape, self.cfg.SEED).to(self.numerics.device)
        if settings.CSC and context.dim() == 2:
            context = context.expand(classes, *context.shape)
        check_lengths(self.clip.classnames, self.clip.encoder.class_tokens, context.shape[-2],
                      self.clip.backbone)
        return context

    def train(self) -> None:
        """The main process trains the context; all processes test it."""
        context_and_facts: tuple[Tensor, dict[str, object]] = torch.empty(0), {}
        if self.dist.is_main:
            context_and_facts = self.learn()
        context, self.training = self.dist.broadcast(context_and_facts)
        self.clip = self.clip.with_context(context.to(self.numerics.device))

    def prompt_metadata(self, n_ctx: int) -> dict[str, object]:
        """What the checkpoint says about how the prompt was made.

        Args:
            n_ctx: Number of tokens of the context.
        """
        shots = self.cfg.DATASET.NUM_SHOTS
        # Both are stated below. The number of epochs has another default on ImageNet, where the
        # same way of training would get another hash.
        stated = ("DATASET.NUM_SHOTS", "OPTIM.MAX_EPOCH")
        return {
            "method": type(self).__name__,
            "dataset": dataset_of_prompt(self.cfg, self.record),
            "shots": "all" if shots == -1 else str(shots),
            "seed": str(self.cfg.SEED),
            "epochs": str(epochs_of(self.cfg)),
            "backbone": backbone_name(self.cfg.MODEL.BACKBONE.NAME),
            "n_ctx": str(n_ctx),
            "class_token_position": self.cfg.TRAINER.COOP.CLASS_TOKEN_POSITION,
            "split_hash": self.record.method["training"]["images"],
            "settings": hash_of_protocol(self.record, self.cfg, stated),
        }

    def learn(self) -> tuple[Tensor, dict[str, object]]:
        """Trains the context and saves it as CoOp does.

        Returns:
            The context, and what results.json says about the training.
        """
        cfg = self.cfg
        epochs = epochs_of(cfg)
        schedule = Schedule(
            epochs, cfg.OPTIM.LR, cfg.OPTIM.WARMUP_EPOCH, cfg.OPTIM.WARMUP_CONS_LR)
        learner = PromptLearner(
            self.clip.encoder, self.starting_context(), self.clip.scale, schedule,
            cfg.OPTIM.MOMENTUM, cfg.OPTIM.WEIGHT_DECAY,
        )
        dataset = self.data.dataset
        images = TrainingImages(
            self.clip.backbone, dataset, dataset.train, cfg.TRAINER.COOP.FIXED_VIEWS,
            cfg.DATALOADER.TRAIN_X.BATCH_SIZE, cfg.SEED, self.numerics.precision,
            cfg.DATALOADER.NUM_WORKERS,
        )
        skipped = images.leave_out_unreadable()
        if skipped and cfg.DATALOADER.ON_BAD_IMAGE == "error":
            raise DataError(f"{skipped[0]}; fix the file, or skip such images: "
                            f"DATALOADER.ON_BAD_IMAGE skip")
        # The training state is stored with the parts, and removed with them when the run is done.
        path = self.run_dir.path
        saved_state = self.run_dir.parts / "training.pt"
        identity = content_hash(self.run_dir.record.key("training"))
        run_epochs(
            learner, images, saved_state, identity, path / "tensorboard" / "training",
            self.check_training_images,
        )
        state = TrainingState(epochs, learner.optimizer.state_dict(), learner.scheduler_state())
        write_checkpoint(
            self.checkpoint, learner.context, self.clip.backbone, self.clip.encoder.class_tokens,
            state, self.prompt_metadata(learner.context.shape[-2]),
        )
        logger.info("prompt trained on %d images (%s) in %d epochs: %s", len(images.items),
                    images.views, epochs, self.checkpoint)
        facts = {
            "images": len(images.items),
            "shots": cfg.DATASET.NUM_SHOTS,
            "views": images.views,
            "epochs": epochs,
            **learner.figures,
            "context": list(learner.context.shape),
            "skipped": skipped,
            "checkpoint": self.checkpoint.relative_to(path).as_posix(),
            "prompt_hash": prompt_hash(self.checkpoint),
        }
        return learner.context.cpu(), facts

    def update_metrics(self, results: Results) -> Results:
        """The results of a finished run, as in `BaseTrainer`.

        Its prompt must be the one that it has trained, if it is still there: other runs start from
        the file.
        """
        refusal = ""
        if self.dist.is_main and self.learns and not self.checkpoint.is_file():
            logger.warning(
                "%s was removed: runs that start from this prompt need it; to train it again, give "
                "--overwrite", self.checkpoint)
        elif self.dist.is_main and self.learns:
            trained = results["training"]["prompt_hash"]
            if prompt_hash(self.checkpoint) != trained:
                refusal = (
                    f"{self.checkpoint} is not the prompt that this run has trained: put that "
                    f"one back, or train again with --overwrite"
                )
        refusal = self.dist.broadcast(refusal)
        if refusal:
            raise DataError(refusal)
        return super().update_metrics(results)

    def metadata(self) -> dict[str, object]:
        """What results.json says about the run, with how its prompt was trained."""
        metadata = super().metadata()
        if self.training:
            metadata["training"] = self.training
        return metadata

    @torch.no_grad()
    def adapt(self, views: Tensor) -> Adapted:
        """Logits of the plain view with the learnt prompt; zero-shot ones with PROMPT.CTX_INIT."""
        if not self.has_prompt:
            raise ConfigError(f"CoOp has no prompt yet: train one with {tool('train')} or give "
                              f"MODEL.INIT_WEIGHTS FILE")
        plain = views[:, :1]
        clip = self.clip
        logits = class_logits(plain, clip.text, clip.scale)[:, 0]
        zero_shot_logits = class_logits(plain, clip.zero_shot_text, clip.scale)[:, 0]
        context = clip.context.expand(len(logits), *clip.context.shape)
        return Adapted(logits, zero_shot_logits, context)


def epochs_of(cfg: CfgNode) -> int:
    """OPTIM.MAX_EPOCH, or what CoOp's scripts use for this number of shots."""
    return cfg.OPTIM.MAX_EPOCH or default_epochs(leaves(cfg))


def trained_prompt(cfg: CfgNode, overwrite: bool = False) -> Path:
    """The checkpoint of a CoOp run, which is trained and tested first unless that is done.

    Args:
        cfg: All settings of the run.
        overwrite: Start again in a folder that holds another run.
    """
    trainer = CoOp(cfg)
    trainer.run(overwrite=overwrite)
    # The run may be finished, but its prompt removed.
    if not trainer.dist.broadcast(trainer.checkpoint.is_file()):
        logger.info("the prompt is trained again: %s", trainer.checkpoint)
        with fixed_numerics(), FolderLock(trainer.run_dir.path).held():
            trainer.train()
            trainer.run_dir.remove_parts()
    return trainer.checkpoint
