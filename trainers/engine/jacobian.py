"""Computes the Jacobian of the text features at the initial context, and decides when to use it.

It is computed once, and kept on disk for later runs.
"""
from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import NoReturn

import torch
from torch import Tensor
from yacs.config import CfgNode

from ...datasets.utils.errors import UserError
from ...datasets.utils.progress import progress_bar
from ..runs.dist import Distributed
from ..vlm.budget import classes_within_memory, per_device, retry_on_oom
from ..vlm.prompted_clip import PromptedCLIP
from ..vlm.text_encoder import TextEncoder, gradients_of_one
from .cache import ArrayCache

# Bytes of the largest Jacobian that `auto` uses. That of ViT-B/16 for ImageNet's 1000 classes takes
# 4.2e9.
LARGEST_AUTO = 4.5e9
TOKENS_PER_GROUP = 1024  # bounds the activations that autograd saves
NAME = "jacobian"  # of the file in its folder of the cache, and of the array in it
TOKENS_PER_PASS = {"cpu": 2048, "gpu": 32768}  # tokens times gradients that run at once


@dataclass(frozen=True)
class TextShape:
    """The sizes that decide whether a Jacobian is used."""

    classes: int  # number of classes K
    features: int  # numbers of a feature, d
    n_ctx: int  # tokens of the context
    width: int  # numbers of a token embedding
    tokens: int  # tokens after the context, of all classes together
    groups: int  # number of groups of classes that run one after the other

    @classmethod
    def of(cls, encoder: TextEncoder, context: Tensor) -> TextShape:
        """Returns the sizes, from counts alone.

        Tokens and groups are those before memory runs out, which may not happen again when a run is
        continued.

        Args:
            encoder: The text features as a function of the context.
            context: The context, (..., n_ctx, width).
        """
        classes = len(encoder.class_tokens)
        at_once = classes_within_memory(encoder.backbone, classes, encoder.saved_bytes)
        return cls(
            classes=classes,
            features=encoder.backbone.features,
            n_ctx=context.shape[-2],
            width=context.shape[-1],
            tokens=encoder.tokens,
            groups=ceil(classes / at_once),
        )

    @property
    def jacobian_bytes(self) -> int:
        """Size of the (K, d, n_ctx · width) array in fp32."""
        return 4 * self.classes * self.features * self.n_ctx * self.width


def decide_jacobian(cfg: CfgNode, shape: TextShape, num_images: int) -> bool:
    """Decides whether a run uses the Jacobian.

    Predictions with it differ in the last digits from those without. So this depends on settings
    and counts alone, never on what a cache holds or on free memory: a run that is killed and
    continued, or repeated beside a full cache, decides the same.

    Args:
        cfg: The settings; TTA.JACOBIAN is `auto`, `on` or `off`.
        shape: The sizes of text tower, classes and context.
        num_images: Number of test images of the run.
    """
    if cfg.TTA.JACOBIAN != "auto":
        return cfg.TTA.JACOBIAN == "on"
    return shape.jacobian_bytes <= LARGEST_AUTO and jacobian_pays_off(shape, num_images)


def jacobian_pays_off(shape: TextShape, num_images: int) -> bool:
    """Whether the gradients of so many images cost at least twice as much as the Jacobian.

    Args:
        shape: The sizes of text tower, classes and context.
        num_images: Number of test images of the run.
    """
    return num_images > 2 * break_even_images(shape)


def break_even_images(shape: TextShape) -> int:
    """Returns the number of images whose gradients cost as much as the Jacobian.

    The cost is counted in tokens that run backward. The Jacobian needs one backward pass per
    feature, in each of which start and context run for every class. An image needs one pass, in
    which classes share start and context. With several groups of classes, an image's gradient
    repeats the forward pass too, which costs as much as the backward pass.
    """
    per_image = shape.tokens
    if shape.groups > 1:
        per_image = 2 * shape.tokens
    return shape.features * (shape.tokens + shape.classes * (1 + shape.n_ctx)) // per_image


def text_jacobian(encoder: TextEncoder, context: Tensor) -> Tensor:
    """Computes ∂T/∂context, class by class: each class gets a context of its own.

    It is a constant of the run, shared by all methods and λ. With it, the first step's backward
    pass through the text tower is one matrix product. It costs about as much as the backward passes
    of a thousand images.

    Args:
        encoder: The text features as a function of the context.
        context: The initial context, (n_ctx, width), or (K, n_ctx, width) if class-specific.

    Returns:
        The Jacobian, (K, d, n_ctx · width).
    """
    classes = len(encoder.class_tokens)
    features = encoder.backbone.features
    n_ctx, width = context.shape[-2:]
    device = context.device
    per_class = context
    if context.dim() == 2:
        per_class = context.expand(classes, -1, -1)  # (K, n_ctx, width)
    jacobian = torch.empty(classes, features, n_ctx * width, device=device)
    length = 1 + n_ctx + ceil(encoder.tokens / classes)  # tokens of a prompt, on average
    group = max(1, TOKENS_PER_GROUP // length)  # classes in one forward pass
    tokens_per_pass = per_device(TOKENS_PER_PASS, encoder.backbone)
    at_once = max(1, tokens_per_pass // (group * length))  # features in one backward pass
    outputs = torch.eye(features, device=device)  # row f is the gradient of feature f at the output
    total = classes * features
    with progress_bar(total, "Jacobian", "row") as bar:
        for start in range(0, classes, group):
            stop = min(start + group, classes)
            leaf = per_class[start:stop].clone().requires_grad_()
            with torch.enable_grad():
                text = encoder.part(range(start, stop))(leaf[None])[0]  # (k, d)
            for first in range(0, features, at_once):
                rows = outputs[first : first + at_once]  # (r, d): the same feature of every class
                rows = rows[:, None].expand(-1, len(text), -1)
                slope = gradients_of_one(text, leaf, rows)  # (r, k, n_ctx, width)
                jacobian[start:stop, first : first + len(rows)] = slope.flatten(2).transpose(0, 1)
                bar.update(len(rows) * len(text))
    return jacobian


def build_jacobian(
    clip: PromptedCLIP, cache_dir: str, key: Mapping[str, object], dist: Distributed,
) -> Tensor:
    """Returns the Jacobian of the initial prompt, read from the cache or computed.

    Args:
        clip: Model, classes and context.
        cache_dir: The folder of all caches, CACHE.DIR; "" = none.
        key: Everything that the numbers depend on besides the context, as JSON values.
        dist: The processes of the run. The main one fills the cache, from which the others read.

    Returns:
        An array (K, d, n_ctx · width) on the model's device.
    """
    if not cache_dir:
        return compute_jacobian(clip)
    context = hashlib.sha256(clip.context.cpu().numpy().tobytes()).hexdigest()
    cache = ArrayCache(cache_dir, NAME, {**key, "context": context})
    if dist.is_main:
        jacobian = read_or_compute(clip, cache)
        dist.barrier()
        return jacobian
    dist.barrier()  # waits until the main process has filled the cache
    return read_or_compute(clip, cache)


def read_or_compute(clip: PromptedCLIP, cache: ArrayCache) -> Tensor:
    """Reads the Jacobian from the cache, or computes it and writes it there.

    Args:
        clip: Model, classes and context.
        cache: The cache of this context's Jacobian alone.
    """
    cached = cache.read(NAME, NAME)
    if cached is not None:
        return torch.from_numpy(cached[NAME]).to(clip.context.device)
    shape = TextShape.of(clip.encoder, clip.context)
    cache.reserve(shape.jacobian_bytes, "the Jacobian's numbers")
    jacobian = compute_jacobian(clip)
    cache.write(NAME, jacobian=jacobian.cpu().numpy())
    return jacobian


def compute_jacobian(clip: PromptedCLIP) -> Tensor:
    """Computes the Jacobian (K, d, n_ctx · width).

    Predictions with it and without it differ by rounding. So a run that has decided to use it stops
    if memory runs out, and does not go on without it.
    """
    return retry_on_oom(refuse, text_jacobian, clip.encoder, clip.context)


def refuse() -> NoReturn:
    """Ends the run where memory runs out."""
    raise UserError("out of memory while the Jacobian is computed: use TTA.JACOBIAN off")
