"""The slow, obvious version of the whole episode: the reference of the tests and the baseline of the benchmark.

All 77 tokens of every class, one image at a time, `torch.optim.AdamW`, O-TPT with its K×K×K reflectors. It shares only
OpenAI's model with the package.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from promptcal.trainers.vlm.openai_clip import CLIP, clip
from torch import Tensor


@dataclass
class Episode:
    logits: Tensor  # (K,)
    zero_shot_logits: Tensor  # (K,)
    ctx: Tensor  # (n_ctx, width)
    view_logits: Tensor  # (V, K)
    gradients: list[Tensor]  # of the context, one per step


def encode_prompts(model: CLIP, tokens: Tensor, context: Tensor) -> Tensor:
    """Unit features (K, d) of whole prompts whose tokens 1..n_ctx are replaced by `context` (n_ctx, width)."""
    x = model.token_embedding(tokens).type(context.dtype)  # (K, 77, width)
    n_ctx = context.shape[0]
    x = torch.cat([x[:, :1], context.expand(len(tokens), -1, -1), x[:, 1 + n_ctx :]], dim=1)
    x = x + model.positional_embedding
    x = model.transformer(x.permute(1, 0, 2)).permute(1, 0, 2)
    x = model.ln_final(x)
    x = x[torch.arange(len(x)), tokens.argmax(dim=-1)] @ model.text_projection
    return x / x.norm(dim=-1, keepdim=True)


def cubic_orthogonality(text: Tensor) -> Tensor:
    """mean_i ‖H_i S_i − e_i‖ with every Householder reflector written out: K×K×K numbers."""
    similarity = text @ text.T
    identity = torch.eye(len(text), dtype=text.dtype)
    normals = similarity - similarity.norm(dim=1, keepdim=True) * identity  # (K, K)
    outer = normals[:, :, None] * normals[:, None, :]
    reflectors = identity - outer * (2 / normals.square().sum(1))[:, None, None]  # (K, K, K)
    reflected = (reflectors @ similarity[:, :, None])[:, :, 0]
    return (reflected - identity).norm(dim=1).mean()


def soc_penalty(text: Tensor) -> Tensor:
    similarity = (text @ text.T)[torch.ones(len(text), len(text)).triu(1).bool()]
    low, high = similarity.min().detach(), similarity.max().detach()
    scaled = (similarity - low) / (high - low)
    delta = torch.quantile(scaled.detach(), 0.2).item()
    return F.huber_loss(scaled, torch.zeros_like(scaled), delta=delta)


def loss_of(method: str, logits: Tensor, first: Tensor, text: Tensor, weight: float) -> Tensor:
    """Of the kept views' logits (n, K), most confident first; `first` are those of the first step."""
    mean = logits.softmax(1).mean(0)
    loss = -(mean * mean.log()).sum()
    if method == "CTPT":
        return loss - weight * (text - text.mean(0)).norm(dim=1).mean()
    if method == "OTPT":
        return loss + weight * cubic_orthogonality(text)
    if method == "SoC":
        penalty = soc_penalty(text)
        return loss + weight * (loss / penalty).detach().abs() * penalty
    return loss


def run_episode(
    model: CLIP, classnames: list[str], views: Tensor, method: str, weight: float = 0.0, steps: int = 1,
    ctx_init: str = "a photo of a", select: float = 0.1, loss_of: Callable[..., Tensor] = loss_of,
    shifts_features: bool = False,
) -> Episode:
    """One image's normalised views (V, 3, H, W), view 0 the plain one, through the whole published procedure. Tunes the
    context or, as TPS does, a shift of the class features."""
    tokens = clip.tokenize([f"{ctx_init} {name.replace('_', ' ')}." for name in classnames])
    n_ctx = len(clip.clip._tokenizer.encode(ctx_init))
    scale = model.logit_scale.exp()
    with torch.no_grad():
        images = model.encode_image(views)
        images = images / images.norm(dim=-1, keepdim=True)
        context = model.token_embedding(tokens[0, 1 : 1 + n_ctx]).clone()
        initial = encode_prompts(model, tokens, context) if shifts_features else None
    tuned = (context if initial is None else torch.zeros_like(initial)).requires_grad_()
    optimizer = torch.optim.AdamW([tuned], lr=0.005, weight_decay=0.01)
    gradients: list[Tensor] = []
    for step in range(steps + 1):
        text = encode_prompts(model, tokens, tuned) if initial is None else F.normalize(initial + tuned, dim=-1)
        logits = scale * images @ text.T  # (V, K)
        if step == 0:
            first = logits.detach()
            entropies = -(first.softmax(1) * first.log_softmax(1)).sum(1)
            kept = entropies.argsort()[: int(len(views) * select)]
        if step == steps:
            break
        optimizer.zero_grad()
        loss_of(method, logits[kept], (first if step else logits)[kept], text, weight).backward()
        gradients.append(tuned.grad.clone())
        optimizer.step()
    return Episode(logits[0].detach(), first[0], tuned.detach().clone(), logits.detach(), gradients)
