"""FPP: TPT from a prompt that is pre-trained without images to be robust to noise."""
from __future__ import annotations

import logging
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from .config.fingerprint import run_path
from .config.settings import OneOf, Range, Setting
from .config.table import CLASS_TOKEN_POSITION
from .config.validation import require
from .registry import TRAINER_REGISTRY
from .tpt import TPT
from .vlm.prompt_files import checkpoint_path, write_checkpoint
from .vlm.text_encoder import InitialPrompt, TextEncoder

logger = logging.getLogger(__name__)

NOISE = 1  # random stream of the noise, independent of the initial context's, which uses the seed itself


@TRAINER_REGISTRY.register()
class FPP(TPT):
    """Pre-trains the context for the class list, writes it as a prompt file in CoOp's format, then tunes it as TPT.

    Other methods start from the file with MODEL.INIT_WEIGHTS. (FPP, arXiv 2604.27715, with the noise and the weights of
    its public code.)
    """

    label, colour, marker, display_order = "FPP + TPT", "#661100", "3", 45
    settings: ClassVar = [
        Setting("STEPS", 1000, "of AdamW, once per class list", allowed=Range(least=1, text="at least 1")),
        Setting("LR", 0.01, "learning rate of the first step", allowed=Range(above=0)),
        Setting("LAST_LR", 0.0001, "learning rate at the end of a cosine", allowed=Range(least=0)),
        Setting("START", "random", "initial context: random numbers; words: PROMPT.CTX_INIT",
                allowed=OneOf(("random", "words"))),
        Setting("DEVIATION", 0.141421, "standard deviation of these random numbers",
                allowed=Range(above=0)),
        Setting("NOISE", 0.0707105, "standard deviation of the noise on the context's tokens",
                allowed=Range(least=0)),
        Setting("OTHER_NOISE", 0.141421, "of the noise on all other tokens", allowed=Range(least=0)),
        Setting("NOISES", 4, "noise samples per step", allowed=Range(least=1, text="at least 1")),
        Setting("WEIGHT", 0.0,
                "of robustness; 0 = 1 + 15/K; the public script uses 1.25 on shifted ImageNets",
                allowed=Range(least=0)),
    ]

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        super().validate(cfg)
        require(cfg, cfg.TRAINER.COOP.CLASS_TOKEN_POSITION == "end", CLASS_TOKEN_POSITION,
                "end: FPP's noise depends on token positions")
        require(cfg, not cfg.MODEL.INIT_WEIGHTS, "MODEL.INIT_WEIGHTS",
                "empty: FPP makes its own prompt; to start from a finished one, use another trainer, such as TPT")

    def prepare(self) -> None:
        text = self.prompt.text  # (K, d) of the hand-written prompt, which gives the zero-shot predictions
        context = self.dist.broadcast(self.pretrain().cpu() if self.dist.is_main else torch.empty(0))
        self.prompt = InitialPrompt(self.prompt.tower, context.to(text.device), zero_shot=text)

    def pretrain(self) -> Tensor:
        own, words = self.cfg.TRAINER.FPP, self.prompt.context
        start = words if own.START == "words" else random_start(tuple(words.shape), own.DEVIATION, self.cfg.SEED)
        context = pretrain_prompt(self.prompt.tower, self.prompt.text, start.to(words), own, self.cfg.SEED)
        if self.run_dir is not None:
            path = checkpoint_path(run_path(self.cfg), own.STEPS)
            write_checkpoint(path, own.STEPS, context, self.backbone, self.prompt.tower.class_tokens, {}, {},
                             self.cfg.MODEL.BACKBONE.NAME)
            logger.info("prompt pre-trained without images in %d steps: %s (MODEL.INIT_WEIGHTS)", own.STEPS, path)
        return context


def class_weight(given: float, classes: int) -> float:
    """The weight of the second term: as given, or the public code's 1 + 15/K. (A note on the paper says 0.15.)"""
    return given or 1 + 15 / classes


def flat_loss(text: Tensor, target: Tensor, noisy: Tensor, weight: float) -> Tensor:
    """mean_k ‖f_k − t_k‖² − w · mean cos(f_k, g_k) of unit features f (K, d), those of the hand-written prompt t, and
    those under several noise samples g (N, K, d)."""
    return (text - target).square().sum(-1).mean() - weight * (text * noisy).sum(-1).mean()


def pretrain_prompt(tower: TextEncoder, target: Tensor, start: Tensor, own: CfgNode, seed: int) -> Tensor:
    """The context (n_ctx, width) after STEPS steps of AdamW on `flat_loss`: close to the target's features, and robust
    to noise on its own tokens and, twice as large, on all others. `own` are the method's settings."""
    (state,) = np.random.SeedSequence([seed, NOISE]).generate_state(1)
    generator = torch.Generator().manual_seed(int(state))
    context = start.detach().clone()
    n_ctx, width = context.shape
    first = len(tower.backbone.tokenizer.start)
    size = torch.full((tower.backbone.context_length, 1), own.OTHER_NOISE)
    size[first : first + n_ctx] = own.NOISE
    optimizer = torch.optim.AdamW([context], lr=own.LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, own.STEPS, own.LAST_LR)
    weight = class_weight(own.WEIGHT, len(target))
    for _ in range(own.STEPS):
        noise = size * torch.randn(own.NOISES, len(size), width, generator=generator)  # shared by all classes
        noisy = tower.text(context.expand(own.NOISES, -1, -1), noise.to(context.device))  # (N, K, d)
        text, vjp = tower.with_vjp(context[None])
        with torch.enable_grad():
            leaf = text.detach().requires_grad_()
            (grad_text,) = torch.autograd.grad(flat_loss(leaf[0], target, noisy, weight), leaf)
        context.grad = vjp(grad_text)[0]
        optimizer.step()
        schedule.step()
    return context


def random_start(shape: tuple[int, ...], deviation: float, seed: int) -> Tensor:
    """A random initial context."""
    return deviation * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
