"""Prompt checkpoints as CoOp on Dassl writes them: with live scheduler and optimizer objects in the
pickle."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from promptcal.trainers.vlm.openai_clip import CLIP, clip
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler


def random_prompt(n_ctx: int = 4, classes: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    shape = (classes, n_ctx, 64) if classes else (n_ctx, 64)
    return torch.randn(shape, generator=torch.Generator().manual_seed(n_ctx)).to(dtype)


class PromptLearner(nn.Module):
    """What CoOp saves: the context, and the embeddings before and after it."""

    def __init__(self, model: CLIP, classnames: Sequence[str], context: Tensor) -> None:
        super().__init__()
        n_ctx = context.shape[-2]
        tokens = clip.tokenize(
            [f"{' '.join('X' * n_ctx)} {name.replace('_', ' ')}." for name in classnames]
        )
        embedding = model.token_embedding(tokens).detach().to(context.dtype)
        self.ctx = nn.Parameter(context)
        self.register_buffer("token_prefix", embedding[:, :1])
        self.register_buffer("token_suffix", embedding[:, 1 + n_ctx :])


class ConstantWarmup(LRScheduler):
    """A warm-up that hands over to a successor, which its state then holds as a live object, as
    Dassl's does."""

    def __init__(self, optimizer, successor: LRScheduler, epochs: int, rate: float) -> None:
        self.successor = successor
        self.warmup_epoch = epochs
        self.cons_lr = rate
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        if self.last_epoch >= self.warmup_epoch:
            return self.successor.get_last_lr()
        return [self.cons_lr for _ in self.base_lrs]

    def step(self, epoch=None) -> None:
        if self.last_epoch >= self.warmup_epoch:
            self.successor.step(epoch)
            self._last_lr = self.successor.get_last_lr()
        else:
            super().step(epoch)


def sgd_with_warmup(learner: nn.Module, epochs: int, warmup: int = 1) -> tuple[torch.optim.SGD, LRScheduler]:
    """CoOp's optimizer and, as Dassl builds it, its scheduler."""
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.002, momentum=0.9, weight_decay=5e-4)
    cosine = CosineAnnealingLR(optimizer, float(epochs))
    return optimizer, ConstantWarmup(optimizer, cosine, warmup, 1e-5) if warmup else cosine


def save_as_dassl(
    directory: Path, model: CLIP, classnames: Sequence[str], context: Tensor, epoch: int = 50,
    best: bool = False,
) -> Path:
    """`<directory>/prompt_learner/model.pth.tar-<epoch>` after a step, so that SGD has a momentum
    to save."""
    learner = PromptLearner(model, classnames, context)
    optimizer, scheduler = sgd_with_warmup(learner, epoch)
    learner.ctx.grad = torch.ones_like(learner.ctx)
    before = learner.ctx.detach().clone()
    optimizer.step()
    scheduler.step()
    scheduler.step()
    with torch.no_grad():
        learner.ctx.copy_(before)
    path = (directory / "prompt_learner" / ("model-best.pth.tar" if best else f"model.pth.tar-{epoch}"))
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({
        "state_dict": learner.state_dict(), "epoch": epoch, "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(), "val_result": None,
    }, path)
    return path
