"""The other methods, slow and plain: one image at a time, with whole prompts.

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
    """O-TPT's penalty mean_i ‖H_i S_i − e_i‖ with every Householder reflector written out: K×K×K
    numbers."""
    similarity = text @ text.T
    identity = torch.eye(len(text), dtype=text.dtype)
    normals = similarity - similarity.norm(dim=1, keepdim=True) * identity  # (K, K)
    outer = normals[:, :, None] * normals[:, None, :]
    reflectors = identity - outer * (2 / normals.square().sum(1))[:, None, None]  # (K, K, K)
    reflected = (reflectors @ similarity[:, :, None])[:, :, 0]
    return (reflected - identity).norm(dim=1).mean()


def angles(text: Tensor) -> Tensor:
    """Mean angle between each class and its nearest other one."""
    nearest = []
    for i, feature in enumerate(text):
        others = torch.cat([text[:i], text[i + 1 :]])
        cosine = (others @ feature).max()
        nearest.append(cosine.clamp(-0.99999, 0.99999).acos())
    return torch.stack(nearest).mean()


def loss_of(method: str, logits: Tensor, first: Tensor, text: Tensor, weight: float) -> Tensor:
    """The loss of the selected views.

    Args:
        method: Registered name.
        logits: Of the selected views, the most confident first, shape (n, K).
        first: The same in the first step.
        text: Class features (K, d).
        weight: λ.
    """
    low = first[0].min()
    high = first[0].max()
    if method == "ZSNorm":
        scaled = []
        for z in logits:
            share = (z - z.min()) / (z.max() - z.min())
            scaled.append(share * (high - low) + low)
        logits = torch.stack(scaled)
    if method == "RTPT":
        return torch.stack([entropy_of(z.softmax(0)) for z in logits]).mean()
    loss = entropy_of(logits.softmax(1).mean(0))
    if method == "ATPT":
        loss = loss - weight * angles(text)
    if method == "Penalty":
        over = (logits - high).clamp(min=0).mean()
        under = (low - logits).clamp(min=0).mean()
        loss = loss + weight * (over + under)
    return loss


def weighted_by_reliability(
    views: Tensor, logits: Tensor, neighbours: int = 20, temperature: float = 0.01,
) -> Tensor:
    """R-TPT's prediction: a view counts for more, the closer its nearest neighbours are."""
    scores = []
    for i, view in enumerate(views):
        others = torch.cat([views[:i], views[i + 1 :]])
        cosines = sorted((others @ view).tolist(), reverse=True)
        nearest = cosines[:neighbours]
        scores.append(sum(nearest) / len(nearest))
    weights = [math.exp((score - max(scores)) / temperature) for score in scores]
    return weighted_sum(weights, logits) / sum(weights)


def weighted_sum(weights: list[float], rows: Tensor) -> Tensor:
    total = torch.zeros_like(rows[0])
    for weight, row in zip(weights, rows, strict=True):
        total = total + weight * row
    return total


def tuned(model: CLIP, classnames: list[str], images: Tensor, method: str, weight: float, steps: int) -> Tensor:
    """Logits (K,) of a method that tunes by gradients.

    What is tuned is the context or, as in TPS, a shift of the class features. `images` are the
    pixels of the views.
    """
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
        return weighted_by_reliability(views, logits.detach())
    return logits[0].detach()


def votes(logits: Tensor, share: float = 0.3) -> tuple[list[float], float]:
    """ZERO: the votes of each class, and the number of votes."""
    order = by_entropy(logits)
    voters = int(len(logits) * share)
    votes_of = [0.0] * logits.shape[1]
    for i in order[:voters]:
        best = (logits[i] == logits[i].max()).nonzero().flatten().tolist()
        for k in best:
            votes_of[k] += 1 / len(best)
    most = max(votes_of)
    if votes_of.count(most) == 1:
        return votes_of, voters
    # A tie: the most confident other view whose class is among the tied ones decides.
    for i in [*order[voters:], *order[:voters]]:
        k = int(logits[i].argmax())
        if votes_of[k] == most:
            votes_of[k] += 1
            return votes_of, voters + 1
    raise AssertionError("a voter is for a tied class")


def mode(views: Tensor, logits: Tensor) -> Tensor:
    """MTA's mode."""
    count = len(views)
    neighbours = int(0.3 * (count - 1))
    bandwidths = []
    for i in range(count):
        distances = ((views - views[i]) ** 2).sum(1).tolist()
        del distances[i]
        bandwidths.append(sum(sorted(distances)[:neighbours]) / neighbours / 2)
    p = logits.softmax(1)
    affinity = p @ p.T  # (V, V)
    inlierness = torch.full((count,), 1 / count)
    center = views[0]
    for _ in range(5):
        f = densities(views, center, bandwidths)
        for _ in range(5):
            new = ((f + 4 * affinity @ inlierness) / 0.2).softmax(0)
            moved = (new - inlierness).norm()
            inlierness = new
            if moved < 1e-6:
                break
        for _ in range(5):
            weights = densities(views, center, bandwidths) * inlierness
            new = weights @ views / weights.sum()
            new = new / new.norm()
            moved = (new - center).norm()
            center = new
            if moved < 1e-6:
                break
    return center


def densities(views: Tensor, center: Tensor, bandwidths: list[float]) -> Tensor:
    values = []
    for view, bandwidth in zip(views, bandwidths, strict=True):
        distance = ((view - center) ** 2).sum().item()
        values.append(math.exp(-distance / (2 * bandwidth)))
    return torch.tensor(values)


def mean_of_confident(views: Tensor, logits: Tensor, share: float = 0.1) -> Tensor:
    """VTE's image feature."""
    confident = by_entropy(logits)[: int(len(views) * share)]
    return views[confident].mean(0)


def keep_lowest(entries: list[tuple], entry: tuple, most: int) -> None:
    """As in the public cache: a new entry replaces the last one if its entropy is lower."""
    if len(entries) < most:
        entries.append(entry)
    elif entry[0] < entries[-1][0]:
        entries[-1] = entry
    entries.sort(key=lambda item: item[0])


def tda(images: list[Tensor], text: Tensor, scale: float, alpha: float = 2.0, beta: float = 5.0) -> list[Tensor]:
    """TDA over images given as features (d,), or as views in use (n, d), which are averaged."""
    positive: dict[int, list] = {}
    negative: dict[int, list] = {}
    outputs = []
    for image in images:
        views = torch.atleast_2d(image)
        logits = scale * views @ text.T
        x = views.mean(0)
        z = logits.mean(0)
        p = logits.softmax(1).mean(0)
        h = entropy_of(p).item()
        k = int(z.argmax())
        keep_lowest(positive.setdefault(k, []), (h, x), 3)
        if len(text) > 1 and 0.2 < h / math.log2(len(text)) < 0.5:
            keep_lowest(negative.setdefault(k, []), (h, x, p), 2)
        z = z.clone()
        for label, entries in positive.items():
            for _, key in entries:
                z[label] += alpha * math.exp(-beta * (1 - float(x @ key)))
        for entries in negative.values():
            for _, key, q in entries:
                mask = ((q > 0.03) & (q < 1)).float()
                z -= 0.117 * math.exp(-(1 - float(x @ key))) * mask
        outputs.append(z)
    return outputs


def onzeta(images: list[Tensor], text: Tensor, total: int, alpha: float = 1.0, beta: float = 0.4):
    """OnZeta's probabilities over a sequence of images (d,)."""
    dual = torch.zeros(len(text))
    vectors = text.clone()
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
