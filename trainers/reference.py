"""Runs the published episode of ZeroShot, TPT, C-TPT, O-TPT and SoC, in code written to be read.

It does what the trainers do, without anything that makes them fast: one image at a time, all 77
tokens of every prompt, gradients by autograd through OpenAI's own text tower, and AdamW from
torch. The tests compare the trainers with it, and the benchmark measures how much faster they
are. So it uses nothing of this package but OpenAI's model and tokenizer.

    from promptcal.trainers import load_clip
    from promptcal.trainers.reference import run_episode

    episode = run_episode(load_clip("ViT-B/16"), ["cat", "dog"], views, method="SoC")
    confidence, predicted_class = episode.logits.softmax(dim=0).max(dim=0)

Shapes: V views of an image, K classes, d features, n_ctx context tokens.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .vlm.openai_clip import CLIP, clip, tokenizer

CONTEXT = "a photo of a"  # the initial prompt; its token embeddings are what is tuned
SELECTED_SHARE = 0.1  # share of the views that are used
LEARNING_RATE = 0.005
WEIGHT_DECAY = 0.01
DELTA_QUANTILE = 0.2  # SoC's margin δ: the 20th percentile

# λ of each method's regulariser, as published for the fine-grained data sets.
LAMBDA = {"ZeroShot": 0.0, "TPT": 0.0, "CTPT": 50.0, "OTPT": 18.0, "SoC": 30.0}


@dataclass
class Episode:
    """The result for one image."""

    logits: Tensor  # logits of the plain view with the tuned prompt, (K,)
    zero_shot_logits: Tensor  # logits of the plain view with the initial prompt, (K,)
    ctx: Tensor  # the tuned context, (n_ctx, width)
    gradients: list[Tensor]  # gradient of the context in each step, (n_ctx, width)


def run_episode(
    model: CLIP,
    classnames: Sequence[str],
    views: Tensor,
    method: str,
    weight: float | None = None,
    steps: int = 1,
) -> Episode:
    """Adapts the prompt to one image and predicts its class.

    Args:
        model: OpenAI's CLIP in fp32, frozen.
        classnames: Names of the K classes; an underscore is read as a space.
        views: Pixels of the image's views, normalised with CLIP's mean and standard deviation,
            shape (V, 3, H, W). View 0 is the plain one: resized and cut from the centre.
        method: ZeroShot, TPT, CTPT, OTPT or SoC.
        weight: λ of the regulariser; None takes the published one.
        steps: Number of optimizer steps. ZeroShot makes none.
    """
    with torch.no_grad():
        image_features = model.encode_image(views)
        image_features = F.normalize(image_features, dim=-1)  # (V, d)
    return tune_prompt(model, classnames, image_features, method, weight, steps)


@torch.enable_grad()
def tune_prompt(
    model: CLIP,
    classnames: Sequence[str],
    image_features: Tensor,
    method: str,
    weight: float | None = None,
    steps: int = 1,
) -> Episode:
    """Runs the part of the episode that follows the image tower.

    Args:
        model: OpenAI's CLIP in fp32, frozen.
        classnames: Names of the K classes.
        image_features: Unit features of the image's views, shape (V, d), view 0 the plain one.
        method: ZeroShot, TPT, CTPT, OTPT or SoC.
        weight: λ of the regulariser; None takes the published one.
        steps: Number of optimizer steps.
    """
    if method not in LAMBDA:
        raise ValueError(f"method is {method!r}; it must be one of {', '.join(LAMBDA)}")
    if weight is None:
        weight = LAMBDA[method]
    if method == "ZeroShot":
        steps = 0

    # The prompt "a photo of a <class name>." for every class. Only the embeddings of the context
    # tokens are tuned. All classes share them, and every image starts from the same ones.
    tokens = tokenize_prompts(classnames).to(image_features.device)  # (K, 77)
    n_ctx = len(tokenizer.encode(CONTEXT))
    with torch.no_grad():
        # Token 0 is the start token.
        context = model.token_embedding(tokens[0, 1 : 1 + n_ctx]).clone()  # (n_ctx, width)
    context.requires_grad_()
    # A new optimizer for every image: no image may influence another.
    optimizer = torch.optim.AdamW([context], lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    # The prediction with the initial prompt decides which views are used, also in later steps.
    text = encode_prompts(model, tokens, context)  # (K, d)
    logits = class_logits(model, image_features, text)  # (V, K)
    zero_shot_logits = logits[0].detach()
    selected = most_confident_views(logits.detach())

    gradients = []
    for _ in range(steps):
        loss = method_loss(method, logits[selected], text, weight)
        optimizer.zero_grad()
        loss.backward()
        gradients.append(context.grad.clone())
        optimizer.step()
        # With the new prompt:
        text = encode_prompts(model, tokens, context)
        logits = class_logits(model, image_features, text)

    # The prediction is that of the plain view alone.
    return Episode(logits[0].detach(), zero_shot_logits, context.detach(), gradients)


def tokenize_prompts(classnames: Sequence[str]) -> Tensor:
    """Returns the tokens (K, 77) of "a photo of a <class name>." with the full stop."""
    prompts = [f"{CONTEXT} {name.replace('_', ' ')}." for name in classnames]
    return clip.tokenize(prompts)


def encode_prompts(model: CLIP, tokens: Tensor, context: Tensor) -> Tensor:
    """Computes text features of prompts whose context is replaced.

    Args:
        model: OpenAI's CLIP.
        tokens: Tokens of the whole prompts, shape (K, 77).
        context: Embeddings that replace those of tokens 1 to n_ctx, shape (n_ctx, width).

    Returns:
        Unit features, shape (K, d).
    """
    classes = len(tokens)
    n_ctx = len(context)
    embeddings = model.token_embedding(tokens)  # (K, 77, width)
    start = embeddings[:, :1]
    name_and_rest = embeddings[:, 1 + n_ctx :]
    x = torch.cat([start, context.expand(classes, -1, -1), name_and_rest], dim=1)
    x = x + model.positional_embedding

    x = x.permute(1, 0, 2)  # (77, K, width), as OpenAI's transformer takes it
    x = model.transformer(x)
    x = x.permute(1, 0, 2)
    x = model.ln_final(x)

    # A prompt's feature is read at its end token, which has the highest number of all tokens.
    end = tokens.argmax(dim=-1)
    features = x[torch.arange(classes), end] @ model.text_projection
    return F.normalize(features, dim=-1)


def class_logits(model: CLIP, image_features: Tensor, text: Tensor) -> Tensor:
    """Computes scaled cosines of images and classes.

    Args:
        model: OpenAI's CLIP, whose scale is used.
        image_features: Unit features of views, shape (V, d).
        text: Unit features of classes, shape (K, d).

    Returns:
        Logits, shape (V, K).
    """
    return model.logit_scale.exp() * image_features @ text.T


def most_confident_views(logits: Tensor) -> Tensor:
    """Returns the indices of the tenth of the views whose predictions have the lowest entropy.

    With 64 views these are 6. The plain view is treated like the others.
    """
    log_p = logits.log_softmax(dim=1)  # (V, K)
    entropies = -(log_p.exp() * log_p).sum(dim=1)  # (V,)
    count = int(len(logits) * SELECTED_SHARE)
    return entropies.argsort(stable=True)[:count]


def method_loss(method: str, logits: Tensor, text: Tensor, weight: float) -> Tensor:
    """Computes the loss of one step.

    Args:
        method: TPT, CTPT, OTPT or SoC.
        logits: Logits of the selected views, shape (n, K).
        text: Class features of the current prompt, which gave the logits, shape (K, d).
        weight: λ.
    """
    loss = marginal_entropy(logits)
    if method == "TPT":
        return loss
    if method == "CTPT":
        return loss - weight * dispersion(text)
    if method == "OTPT":
        return loss + weight * orthogonality(text)
    # SoC:
    penalty = semantic_separation(text)
    return loss + weight * balance(loss, penalty) * penalty


def marginal_entropy(logits: Tensor) -> Tensor:
    """TPT: entropy of the class distribution averaged over the selected views.

    Shu et al., NeurIPS 2022. Computed from logarithms, because a probability may underflow to 0.
    """
    log_p = logits.log_softmax(dim=1)  # (n, K)
    log_mean_p = log_p.logsumexp(dim=0) - torch.tensor(float(len(logits))).log()  # (K,)
    log_mean_p = log_mean_p.clamp(min=torch.finfo(log_mean_p.dtype).min)
    return -(log_mean_p.exp() * log_mean_p).sum()


def dispersion(text: Tensor) -> Tensor:
    """C-TPT: mean distance of the class features from their centroid. To be maximised.

    Yoon et al., ICLR 2024. The centroid is not normalised.
    """
    centroid = text.mean(dim=0)
    distances = (text - centroid).norm(dim=1)
    return distances.mean()


def orthogonality(text: Tensor) -> Tensor:
    """O-TPT: mean over classes of ‖H_i S_i − e_i‖, with S_i a row of the cosines S = T Tᵀ.

    Sharifdeen et al., CVPR 2025. H_i is the Householder matrix that maps S_i onto ‖S_i‖ e_i. So
    each term equals ‖S_i‖ − 1, in value and gradient, and no K×K×K numbers are needed.
    """
    similarities = text @ text.T  # (K, K)
    return similarities.norm(dim=1).mean() - 1


def semantic_separation(text: Tensor) -> Tensor:
    """SoC: mean Huber penalty on the similarities of all pairs of classes.

    Fillioux et al., CVPR 2026. The cosines are normalised to lie from 0 to 1. Up to the margin δ,
    their 20th percentile, the penalty is s²/2. Beyond it is a line, so that classes that are close
    in meaning are not pulled apart more strongly than others. No gradient flows through the
    minimum, the maximum and δ.
    """
    classes = len(text)
    if classes < 2:
        return text.sum() * 0  # there are no pairs
    i, j = torch.triu_indices(classes, classes, offset=1)
    cosines = (text @ text.T)[i, j]  # (K (K − 1) / 2,)

    low = cosines.min().detach()
    high = cosines.max().detach()
    if high == low:
        return cosines.sum() * 0  # two classes, or all pairs equally similar
    s = (cosines - low) / (high - low)

    delta = torch.quantile(s.detach(), DELTA_QUANTILE)
    quadratic = s**2 / 2
    linear = delta * (s - delta / 2)
    return torch.where(s <= delta, quadratic, linear).mean()


def balance(loss: Tensor, penalty: Tensor) -> Tensor:
    """Computes SoC's weight |L_TPT| / |L_Huber|: with it the regulariser is λ times the loss.

    It is a constant of the step: no gradient flows through it.

    Args:
        loss: L_TPT, a number.
        penalty: L_Huber, a number.
    """
    if penalty == 0:
        return torch.zeros_like(penalty)
    return (loss / penalty).detach().abs()
