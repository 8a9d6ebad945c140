"""Pre-training of a prompt without images, from the class names alone. (FPP, arXiv 2604.27715.)"""
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from ..vlm.class_towers import ClassTowers

NOISE = 1  # stream of random numbers of the noise, independent of the initial context's, which uses the seed itself


def class_weight(given: float, classes: int) -> float:
    """The weight of the second term: as given, or the public code's 1 + 15/K. (A note on the paper says 0.15.)"""
    return given or 1 + 15 / classes


def flat_loss(text: Tensor, target: Tensor, noisy: Tensor, weight: float) -> Tensor:
    """mean_k ‖f_k − t_k‖² − w · mean cos(f_k, g_k) of unit features f (K, d), those of the hand-written prompt t, and
    those under several noise samples g (N, K, d)."""
    return (text - target).square().sum(-1).mean() - weight * (text * noisy).sum(-1).mean()


def pretrain_prompt(tower: ClassTowers, target: Tensor, start: Tensor, own: CfgNode, seed: int) -> Tensor:
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
