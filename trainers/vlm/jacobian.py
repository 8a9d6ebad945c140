"""The Jacobian of the text features at the initial context: a constant of the run, shared by all methods and λ.

Once it is made, the first step's backward pass through the text tower is one matrix product. It costs about as much as
the backward passes of a thousand images, so it pays for large sets and for sweeps.
"""
from __future__ import annotations

import torch
from torch import Tensor
from tqdm import tqdm

from .class_towers import ClassTowers

TOKENS_A_GROUP = 1024  # bounds the activations that are kept
TOKENS_A_PASS = {"cpu": 2048, "cuda": 32768}  # tokens times gradients that run at once


def jacobian_size(classes: int, features: int, context: Tensor) -> int:
    """Bytes of the (K, d, n_ctx · width) array in fp32."""
    return 4 * classes * features * context.shape[-2] * context.shape[-1]


def break_even(tower: ClassTowers, n_ctx: int, features: int) -> int:
    """How many images' gradients cost as much as the Jacobian: it needs one backward pass for each output, and in each
    the beginning of the prompt runs for every class. Of so many classes that activations wait in groups, an image
    repeats the forward pass too, which costs as much as the backward pass."""
    an_image = tower.tokens * (1 if len(tower.towers) == 1 else 2)
    return features * (tower.tokens + len(tower.class_tokens) * (1 + n_ctx)) // an_image


def pays(images: int, even: float, kept: bool) -> bool:
    """Whether the Jacobian, which costs as much as `even` images' gradients, is worth making for so many. One that is
    kept serves the next method on the same classes too: then it is enough that this run loses nothing."""
    return images > (even if kept else 2 * even)


def text_jacobian(tower: ClassTowers, context: Tensor) -> Tensor:
    """∂T/∂context as (K, d, n_ctx · width), class by class: each class is given a context of its own."""
    classes, features = len(tower.class_tokens), tower.backbone.features
    per_class = context if context.dim() == 3 else context.expand(classes, -1, -1)  # (K, n_ctx, width)
    jacobian = torch.empty(classes, features, context.shape[-2] * context.shape[-1], device=context.device)
    length = 1 + context.shape[-2] + -(-tower.tokens // classes)
    group = max(1, TOKENS_A_GROUP // length)
    at_once = max(1, TOKENS_A_PASS.get(context.device.type, TOKENS_A_PASS["cuda"]) // (group * length))
    outputs = torch.eye(features, device=context.device)
    with tqdm(total=classes * features, desc="Jacobian", unit="row", unit_scale=True, dynamic_ncols=True) as bar:
        for start in range(0, classes, group):
            some = slice(start, start + group)
            part = tower.backbone.text_tower(tower.class_tokens[some], tower.precision)
            if tower.placement:
                part.placement = tower.placement.of_classes(range(classes)[some])
            leaf = per_class[some].clone().requires_grad_()
            with torch.enable_grad():
                text = part(leaf[None])[0]  # (k, d)
            for first in range(0, features, at_once):
                rows = outputs[first : first + at_once]  # (r, d): the same output of every class
                (slope,) = torch.autograd.grad(
                    text, leaf, rows[:, None].expand(-1, len(text), -1), retain_graph=True, is_grads_batched=True,
                )
                jacobian[some, first : first + len(rows)] = slope.flatten(2).transpose(0, 1)
                bar.update(len(rows) * len(text))
    return jacobian
