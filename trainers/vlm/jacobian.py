"""The Jacobian of the text features at the initial context: a constant of the run, shared by all methods and λ.

With it, the first step's backward pass through the text tower is one matrix product. It costs about as much as the
backward passes of a thousand images, so it pays for large sets and for sweeps.
"""
from __future__ import annotations

import torch
from torch import Tensor
from tqdm import tqdm

from .text_encoder import TextEncoder

TOKENS_PER_GROUP = 1024  # bounds the activations that autograd saves
TOKENS_PER_PASS = {"cpu": 2048, "cuda": 32768}  # tokens times gradients that run at once


def jacobian_size(classes: int, features: int, context: Tensor) -> int:
    """Bytes of the (K, d, n_ctx · width) array in fp32."""
    return 4 * classes * features * context.shape[-2] * context.shape[-1]


def break_even(tower: TextEncoder, n_ctx: int, features: int) -> int:
    """The number of images whose gradients cost as much as the Jacobian. It needs one backward pass per feature, in
    each of which start and context run for every class. With several groups of classes, an image's gradient repeats
    the forward pass too, which costs as much as the backward pass."""
    per_image = tower.tokens * (1 if len(tower.towers) == 1 else 2)
    return features * (tower.tokens + len(tower.class_tokens) * (1 + n_ctx)) // per_image


def pays(images: int, even: float, cached: bool) -> bool:
    """Whether the Jacobian, which costs as much as the gradients of `even` images, is worth computing for so many. One
    that is cached also serves later methods on the same classes: then it is enough that this run loses nothing."""
    return images > (even if cached else 2 * even)


def text_jacobian(tower: TextEncoder, context: Tensor) -> Tensor:
    """∂T/∂context as (K, d, n_ctx · width), class by class: each class gets a context of its own."""
    classes, features = len(tower.class_tokens), tower.backbone.features
    per_class = context if context.dim() == 3 else context.expand(classes, -1, -1)  # (K, n_ctx, width)
    jacobian = torch.empty(classes, features, context.shape[-2] * context.shape[-1], device=context.device)
    length = 1 + context.shape[-2] + -(-tower.tokens // classes)
    group = max(1, TOKENS_PER_GROUP // length)
    at_once = max(1, TOKENS_PER_PASS.get(context.device.type, TOKENS_PER_PASS["cuda"]) // (group * length))
    outputs = torch.eye(features, device=context.device)
    with tqdm(total=classes * features, desc="Jacobian", unit="row", unit_scale=True, dynamic_ncols=True) as bar:
        for start in range(0, classes, group):
            some = range(classes)[start : start + group]
            leaf = per_class[some.start : some.stop].clone().requires_grad_()
            with torch.enable_grad():
                text = tower.part(some)(leaf[None])[0]  # (k, d)
            for first in range(0, features, at_once):
                rows = outputs[first : first + at_once]  # (r, d): the same feature of every class
                (slope,) = torch.autograd.grad(
                    text, leaf, rows[:, None].expand(-1, len(text), -1), retain_graph=True, is_grads_batched=True,
                )
                jacobian[some.start : some.stop, first : first + len(rows)] = slope.flatten(2).transpose(0, 1)
                bar.update(len(rows) * len(text))
    return jacobian
