"""The other methods, slow and plain: one image at a time, loops instead of tensor operations, whole prompts.

They share only OpenAI's model and the plain text tower of `trainers/reference.py` with the package.
`views` are unit features (V, d), `text` (K, d).
"""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from promptcal.trainers.reference import class_logits, encode_prompts, most_confident_views, tokenize_prompts
from promptcal.trainers.vlm.openai_clip import CLIP
from torch import Tensor


def entropy_of(p: Tensor) -> Tensor:
    return -(p * p.log()).sum()


def by_entropy(logits: Tensor) -> list[int]:
    entropies = [entropy_of(row.softmax(0)).item() for row in logits]
    return sorted(range(len(logits)), key=entropies.__getitem__)


def cubic_orthogonality(text: Tensor) -> Tensor:
    """O-TPT's penalty mean_i ‖H_i S_i − e_i‖ with every Householder reflector written out: K×K×K numbers."""
    similarity = text @ text.T
    identity = torch.eye(len(text), dtype=text.dtype)
    normals = similarity - similarity.norm(dim=1, keepdim=True) * identity  # (K, K)
    outer = normals[:, :, None] * normals[:, None, :]
    reflectors = identity - outer * (2 / normals.square().sum(1))[:, None, None]  # (K, K, K)
    reflected = (reflectors @ similarity[:, :, None])[:, :, 0]
    return (reflected - identity).norm(dim=1).mean()


def angles(text: Tensor) -> Tensor:
    """Mean angle between each class and its nearest other one."""
    found = []
    for i, one in enumerate(text):
        cosines = torch.stack([one @ other for j, other in enumerate(text) if j != i])
        found.append(cosines.max().clamp(-0.99999, 0.99999).acos())
    return torch.stack(found).mean()


def loss_of(method: str, logits: Tensor, first: Tensor, text: Tensor, weight: float) -> Tensor:
    """Of the kept views' logits (n, K), most confident first; `first` are those of the first step."""
    low, high = first[0].min(), first[0].max()
    if method == "ZSNorm":
        logits = torch.stack([(z - z.min()) / (z.max() - z.min()) * (high - low) + low for z in logits])
    if method == "RTPT":
        return torch.stack([entropy_of(z.softmax(0)) for z in logits]).mean()
    loss = entropy_of(logits.softmax(1).mean(0))
    if method == "ATPT":
        loss = loss - weight * angles(text)
    if method == "Penalty":
        over = sum((z - high).clamp(min=0) for z in logits.flatten()) / logits.numel()
        under = sum((low - z).clamp(min=0) for z in logits.flatten()) / logits.numel()
        loss = loss + weight * (over + under)
    return loss


def reliable(views: Tensor, logits: Tensor, neighbours: int = 20, temperature: float = 0.01) -> Tensor:
    scores = []
    for i, one in enumerate(views):
        cosines = sorted(((one @ other).item() for j, other in enumerate(views) if j != i), reverse=True)
        nearest = cosines[:neighbours]
        scores.append(sum(nearest) / len(nearest))
    weights = [math.exp((score - max(scores)) / temperature) for score in scores]
    return sum(w * z for w, z in zip(weights, logits, strict=True)) / sum(weights)


def tuned(model: CLIP, classnames: list[str], images: Tensor, method: str, weight: float, steps: int) -> Tensor:
    """Logits (K,) of a method that tunes by gradients: the context or, as TPS does, a shift of the class features.
    `images` are the pixels of the views."""
    tokens = tokenize_prompts(classnames)
    with torch.no_grad():
        views = F.normalize(model.encode_image(images), dim=-1)
        context = model.token_embedding(tokens[0, 1:5])
        initial_text = encode_prompts(model, tokens, context)

    shifts_features = method == "TPS"
    if shifts_features:
        parameter = torch.zeros_like(initial_text).requires_grad_()
    else:
        parameter = context.clone().requires_grad_()
    optimizer = torch.optim.AdamW([parameter], lr=0.005, weight_decay=0.01)

    def features() -> Tensor:
        if shifts_features:
            return F.normalize(initial_text + parameter, dim=-1)
        return encode_prompts(model, tokens, parameter)

    text = features()
    logits = class_logits(model, views, text)
    selected = most_confident_views(logits.detach())
    first = logits[selected]  # in the first step gradients flow through it
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(method, logits[selected], first, text, weight).backward()
        optimizer.step()
        first = first.detach()
        text = features()
        logits = class_logits(model, views, text)
    if method == "RTPT":
        return reliable(views, logits.detach())
    return logits[0].detach()


def votes(logits: Tensor, share: float = 0.3) -> tuple[list[float], float]:
    """ZERO: the votes of each class, and the number of votes."""
    order, classes = by_entropy(logits), logits.shape[1]
    kept = int(len(logits) * share)
    count = [0.0] * classes
    for i in order[:kept]:
        best = [k for k in range(classes) if logits[i, k] == logits[i].max()]
        for k in best:
            count[k] += 1 / len(best)
    tied = [k for k in range(classes) if count[k] == max(count)]
    if len(tied) == 1:
        return count, kept
    for i in [*order[kept:], *order[:kept]]:
        if int(logits[i].argmax()) in tied:
            count[int(logits[i].argmax())] += 1
            return count, kept + 1
    raise AssertionError("a kept view votes for a tied class")


def mode(views: Tensor, logits: Tensor) -> Tensor:
    """MTA's mode."""
    count = len(views)
    near = int(0.3 * (count - 1))
    bandwidths = []
    for i in range(count):
        distances = sorted(((views[i] - views[j]) ** 2).sum().item() for j in range(count) if j != i)
        bandwidths.append(sum(distances[:near]) / near / 2)
    affinity = [[float(logits[i].softmax(0) @ logits[j].softmax(0)) for j in range(count)] for i in range(count)]
    y, m = [1 / count] * count, views[0]

    def density() -> list[float]:
        return [math.exp(-((v - m) ** 2).sum().item() / (2 * h)) for v, h in zip(views, bandwidths, strict=True)]

    for _ in range(5):
        f = density()
        for _ in range(5):
            score = [(f[i] + 4 * sum(a * b for a, b in zip(affinity[i], y, strict=True))) / 0.2 for i in range(count)]
            e = [math.exp(s - max(score)) for s in score]
            new = [x / sum(e) for x in e]
            moved = math.dist(new, y)
            y = new
            if moved < 1e-6:
                break
        for _ in range(5):
            weights = [a * b for a, b in zip(density(), y, strict=True)]
            new = sum(w * v for w, v in zip(weights, views, strict=True)) / sum(weights)
            new = new / new.norm()
            moved = (new - m).norm().item()
            m = new
            if moved < 1e-6:
                break
    return m


def mean_of_confident(views: Tensor, logits: Tensor, share: float = 0.1) -> Tensor:
    """VTE's image feature."""
    kept = by_entropy(logits)[: int(len(views) * share)]
    return sum(views[i] for i in kept) / len(kept)


def keep_lowest(held: list[tuple], new: tuple, most: int) -> None:
    """As the public cache: a new item replaces the last one if its entropy is lower; then all are sorted."""
    if len(held) < most:
        held.append(new)
    elif new[0] < held[-1][0]:
        held[-1] = new
    held.sort(key=lambda item: item[0])


def tda(images: list[Tensor], text: Tensor, scale: float, alpha: float = 2.0, beta: float = 5.0) -> list[Tensor]:
    """TDA over a sequence of images, given as features (d,) or as kept views (n, d), which are averaged."""
    positive: dict[int, list] = {}
    negative: dict[int, list] = {}
    outputs = []
    for image in images:
        views = image if image.dim() == 2 else image[None]
        logits = scale * views @ text.T
        x, z, p = views.mean(0), logits.mean(0), logits.softmax(1).mean(0)
        h, k = entropy_of(p).item(), int(z.argmax())
        keep_lowest(positive.setdefault(k, []), (h, x), 3)
        if len(text) > 1 and 0.2 < h / math.log2(len(text)) < 0.5:
            keep_lowest(negative.setdefault(k, []), (h, x, p), 2)
        z = z.clone()
        for label, held in positive.items():
            for _, key in held:
                z[label] += alpha * math.exp(-beta * (1 - float(x @ key)))
        for held in negative.values():
            for _, key, q in held:
                z -= 0.117 * math.exp(-(1 - float(x @ key))) * ((q > 0.03) & (q < 1)).float()
        outputs.append(z)
    return outputs


def onzeta(images: list[Tensor], text: Tensor, total: int, alpha: float = 1.0, beta: float = 0.4):
    """OnZeta's probabilities over a sequence of images (d,)."""
    dual, vectors = torch.zeros(len(text)), text.clone()
    outputs = []
    for i, x in enumerate(images, start=1):
        t = (x @ text.T / 0.01).softmax(0) * dual.exp()
        t = t / t.sum()
        dual = dual - 20 / math.sqrt(i) * (t - alpha / len(text))
        dual[dual < 0] = 0
        v = (x @ vectors.T / 0.04).softmax(0)
        b = beta * math.sqrt(i / total)
        outputs.append(b * v + (1 - b) * t)
        for k in range(len(text)):
            vectors[k] -= 0.5 / math.sqrt(i) / 0.04 * (v[k] - t[k]) * x
            vectors[k] /= vectors[k].norm()
    return outputs
