"""Few-shot learning of a context on the shared-prefix text tower. (Zhou et al., CoOp, IJCV 2022.)
"""
from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...datasets.utils.errors import ConfigError, UserError, WeightsError
from ...datasets.utils.files import write_atomically
from ...datasets.utils.progress import progress_bar
from ..functional.objectives import class_logits
from ..runs.tensorboard import ScalarWriter
from ..vlm.budget import retry_on_oom
from ..vlm.checkpoints import read_checkpoint
from ..vlm.text_encoder import TextEncoder
from .training_images import TrainingImages

logger = logging.getLogger(__name__)

IDENTITY = "training"  # key of the saved state: the hash of what the training depends on

START_STD = 0.02  # of random contexts, as in CLIP's own initialisation


@dataclass(frozen=True)
class Schedule:
    """Dassl's learning rates: a constant during the warm-up, then half a cosine from `lr`.

    As in Dassl, the cosine has the length of all epochs although it starts after the warm-up. So
    the last epoch's rate is slightly above zero.

    Attributes:
        epochs: Number of all epochs, the warm-up included.
        lr: Learning rate of the first epoch after the warm-up.
        warmup_epochs: Number of epochs of the warm-up.
        warmup_lr: Learning rate during the warm-up.
    """

    epochs: int
    lr: float
    warmup_epochs: int
    warmup_lr: float

    def __call__(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        if epoch < self.warmup_epochs:
            return self.warmup_lr
        return self.lr * (1 + math.cos(math.pi * (epoch - self.warmup_epochs) / self.epochs)) / 2


def random_context(shape: tuple[int, ...], seed: int) -> Tensor:
    """A random initial context with CLIP's own standard deviation of token embeddings.

    Args:
        shape: (n_ctx, width), or (K, n_ctx, width) if class-specific.
        seed: Seed of the random draw.
    """
    return START_STD * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class EpochSums:
    """Sums over the images of an epoch. They stay on the device, so that no step waits for it."""

    def __init__(self, device: torch.device) -> None:
        self.images = 0
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.correct = torch.zeros((), dtype=torch.long, device=device)

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Adds a batch.

        Args:
            loss: Mean loss of the batch, ().
            logits: (B, K).
            labels: True classes, (B,).
        """
        self.images += len(labels)
        self.loss = self.loss + loss.double() * len(labels)
        self.correct = self.correct + (logits.argmax(-1) == labels).sum()


class PromptLearner:
    """Trains a context on labelled image features by cross entropy.

    The backbone is frozen: only the context and its optimizer, SGD with momentum, have a state.
    Batches and learning rates depend only on the epoch, so a restored learner continues exactly.
    """

    def __init__(
        self, encoder: TextEncoder, context: Tensor, scale: Tensor, schedule: Schedule,
        momentum: float, weight_decay: float,
    ) -> None:
        """
        Args:
            encoder: Text features as a function of the context.
            context: Initial context, (n_ctx, width) or (K, n_ctx, width).
            scale: Factor of the cosines, () or (K,).
            schedule: Learning rates.
            momentum: Momentum of SGD.
            weight_decay: Weight decay of SGD.
        """
        self.encoder = encoder
        self.scale = scale
        self.schedule = schedule
        self.context = context.detach().clone()
        self.optimizer = torch.optim.SGD(
            [self.context], schedule.lr, momentum, weight_decay=weight_decay)
        self.epoch = 0  # epochs finished
        self.sums = EpochSums(self.context.device)  # of the epoch that is running
        self.figures: dict[str, float] = {}  # of the last epoch

    def begin_epoch(self) -> None:
        """Sets the learning rate of the next epoch."""
        self.sums = EpochSums(self.context.device)
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule(self.epoch)

    def step(self, images: Tensor, labels: Tensor) -> None:
        """One step of SGD.

        Args:
            images: Unit image features, (B, d).
            labels: True classes, (B,).
        """
        loss, logits, self.context.grad = retry_on_oom(
            self.encoder.budget.halve_classes, self.gradient, images, labels)
        self.optimizer.step()
        self.sums.add(loss, logits, labels)

    def gradient(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss of a batch and its gradient.

        Args:
            images: Unit image features, (B, d).
            labels: True classes, (B,).

        Returns:
            Cross entropy, logits (B, K), and the gradient of the context, in its shape.
        """
        # In two parts, so that no graph of the text tower stays in memory: the gradient of the text
        # features by autograd, from there to the context by the encoder.
        text, vjp = self.encoder.with_vjp(self.context[None])  # (1, K, d)
        text.requires_grad_()
        with torch.enable_grad():
            logits = class_logits(images, text[0], self.scale)
            loss = F.cross_entropy(logits, labels)
            (grad_text,) = torch.autograd.grad(loss, text)
        return loss.detach(), logits.detach(), vjp(grad_text)[0]

    def end_epoch(self) -> None:
        """Stores loss and accuracy of the epoch; refuses a loss that is not finite."""
        loss = float(self.sums.loss)
        if not math.isfinite(loss):
            raise UserError(f"the loss is not finite in epoch {self.epoch + 1}: lower OPTIM.LR, or "
                            f"use MODEL.PREC fp32")
        self.epoch += 1
        self.figures = {
            "loss": loss / self.sums.images,
            "accuracy": 100 * int(self.sums.correct) / self.sums.images,
        }

    def scheduler_state(self) -> dict[str, Any]:
        """The state of Dassl's scheduler for the same schedule, as plain data."""
        return {
            "last_epoch": self.epoch,
            "base_lrs": [self.schedule.lr],
            "_last_lr": [self.schedule(self.epoch)],
        }

    def save(self, path: Path, identity: str) -> None:
        """Saves the state.

        Args:
            path: Path of the file.
            identity: Hash of all that the training depends on.
        """
        content = {
            IDENTITY: identity,
            "context": self.context, "optimizer": self.optimizer.state_dict(), "epoch": self.epoch,
            "figures": self.figures,
        }
        write_atomically(path, lambda file: torch.save(content, file))

    def restore(self, path: Path, identity: str) -> None:
        """Continues from a saved state if there is one of the same training.

        Args:
            path: Path of the file.
            identity: As in `save`.
        """
        if not path.is_file():
            return
        try:
            content = read_checkpoint(path)
            if not isinstance(content, dict) or content.get(IDENTITY) != identity:
                logger.warning("%s belongs to another training, so training begins again", path)
                return
            epoch = content["epoch"]
            figures = content["figures"]
            self.optimizer.load_state_dict(content["optimizer"])
            self.context.copy_(content["context"])
        except (WeightsError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"cannot continue from {path} ({error}): remove it to train from the "
                              f"start") from error
        self.epoch = epoch
        self.figures = figures
        logger.info("continuing after epoch %d", self.epoch)


def run_epochs(
    learner: PromptLearner, images: TrainingImages, saved: Path, identity: str, tensorboard: Path,
    check_images: Callable[[], None],
) -> None:
    """Trains until the schedule ends.

    Args:
        learner: The context with its optimizer.
        images: The labelled images.
        saved: File of the state after each epoch; a later call continues from it.
        identity: Hash of all that the training depends on. A saved state without it is not used.
        tensorboard: A separate TensorBoard run: here a step is an epoch, in the other curves it is
            a test image.
        check_images: Refuses images that have changed. It is called after each epoch, before its
            state is saved.
    """
    learner.restore(saved, identity)
    start = learner.epoch
    stop = learner.schedule.epochs
    if start == stop:
        return
    with (
        ScalarWriter(tensorboard) as scalars,
        progress_bar(stop, "training", "epoch", initial=start) as bar,
    ):
        for batches in images.epochs(start, stop):
            started = time.perf_counter()
            learner.begin_epoch()
            for features, labels in batches:
                learner.step(features, labels)
            learner.end_epoch()
            check_images()
            learner.save(saved, identity)
            bar.update()
            loss = learner.figures["loss"]
            accuracy = learner.figures["accuracy"]
            bar.set_postfix_str(f"loss {loss:.3f}, acc {accuracy:.1f}")
            scalars.add({
                "training/loss": loss,
                "training/accuracy": accuracy,
                "training/lr": learner.schedule(learner.epoch - 1),
                "training/seconds": time.perf_counter() - started,
            }, learner.epoch)
