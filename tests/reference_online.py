"""The online methods, slow and plain: lists and loops in double precision, one image at a time.

`images` are the unit features (V, d) of each image's views, view 0 the plain one; `text` is (K, d). Each function
returns the probabilities (K,) of every image. `confident`: the int(0.1·V) views of lowest entropy instead of view 0.
"""
from __future__ import annotations

import math

import torch
from promptcal.trainers.reference import encode_prompts, tokenize_prompts
from promptcal.trainers.vlm.openai_clip import CLIP
from torch import Tensor


def softmax(logits: Tensor) -> Tensor:
    e = (logits - logits.max()).exp()
    return e / e.sum()


def entropy(p: Tensor, inside: float = 0.0) -> float:
    return -sum(v * math.log(v + inside) for v in p.tolist() if v > 0)


def lowest(values: list[float], share: float = 0.1) -> list[int]:
    return sorted(range(len(values)), key=values.__getitem__)[: int(share * len(values))]


def used(views: Tensor, text: Tensor, confident: bool, scale: float = 100.0) -> tuple[list[Tensor], list[Tensor]]:
    """The features that are used, and their logits."""
    logits = [scale * text @ view for view in views]
    chosen = lowest([entropy(softmax(z)) for z in logits]) if confident else [0]
    return [views[i] for i in chosen], [logits[i] for i in chosen]


def mean(rows: list[Tensor]) -> Tensor:
    return sum(rows) / len(rows)


def near(x: Tensor, key: Tensor, beta: float) -> float:
    return math.exp(-beta * (1 - float(x @ key)))


def bca(images: list[Tensor], text: Tensor, confident: bool, count: float = 20000.0) -> list[Tensor]:
    mu, prior = text.clone(), torch.eye(len(text), dtype=text.dtype)
    of_centre, of_prior = [count] * len(text), [1.0] * len(text)
    outputs = []
    for views in images:
        x = mean(used(views, mu, confident)[0])
        p = sum(q * row for q, row in zip(softmax(100 * mu @ x), prior, strict=True))
        outputs.append(p)
        k = int(p.argmax())
        if p[k] > 0.05:
            moved = of_centre[k] * mu[k] + x
            mu = torch.stack([moved / moved.norm() if c == k else m for c, m in enumerate(mu)])
            of_centre[k] += 1
        if p[k] > 0.65:
            prior = torch.stack([(of_prior[k] * row + p) / (of_prior[k] + 1) if c == k else row
                                 for c, row in enumerate(prior)])
            of_prior[k] += 1
    return outputs


def dmn(images: list[Tensor], text: Tensor, scale: float, most: int = 50, weight: float = 1.0) -> list[Tensor]:
    memory: list[list[tuple[float, Tensor]]] = [[] for _ in text]
    outputs = []
    for views in images:
        p = [softmax(scale * text @ view) for view in views]
        averaged = mean([p[i] for i in lowest([entropy(one, 1e-6) for one in p])])
        h, held = entropy(averaged, 1e-8), memory[int(averaged.argmax())]
        if len(held) < most:
            held.append((h, views[0]))
        else:
            worst = max(range(most), key=lambda j: held[j][0])
            if h < held[worst][0]:
                held[worst] = (h, views[0])
        vectors = []
        for own, t in zip(memory, text, strict=True):
            g = sum(near(views[0], row, 5.5) * row for row in [*(key for _, key in own), t])
            vectors.append(g / g.norm())
        r = softmax(scale * torch.stack(vectors) @ views[0])
        outputs.append((p[0] + weight * r) / (1 + weight))
    return outputs


def boostadapter(
    images: list[Tensor], text: Tensor, confident: bool, alpha: float = 2.0, beta: float = 5.0, delta: int = 1,
    scale: float = 100.0,
) -> list[Tensor]:
    positive: list[list[tuple[float, Tensor]]] = [[] for _ in text]
    negative: list[list[tuple[Tensor, Tensor]]] = [[] for _ in text]
    outputs = []
    for views in images:
        features, logits = used(views, text, confident, scale)
        x, z, p = mean(features), mean(logits), mean([softmax(one) for one in logits])
        h, k = entropy(p), int(z.argmax())
        positive[k] = sorted([*positive[k], (h, x)], key=lambda item: item[0])[:3]
        boosted = [list(held) for held in positive]
        for view, own in zip(*used(views, text, True, scale), strict=True):
            c = int(own.argmax())
            boosted[c] = sorted([*boosted[c], (entropy(softmax(own)), view)], key=lambda item: item[0])[: 3 + delta]
        if 0.2 < h / math.log2(len(text)) < 0.5:
            negative[k] = [*negative[k], (x, ((p > 0.03) & (p < 1)).to(p.dtype))][-2:]
        out = z.clone()
        for c, held in enumerate(boosted):
            out[c] += alpha * sum(near(x, key, beta) for _, key in held)
        for key, mask in (item for held in negative for item in held):
            out -= 0.117 * near(x, key, 1.0) * mask
        outputs.append(softmax(out))
    return outputs


def dpe(images: list[Tensor], text: Tensor, confident: bool, predict: bool = False) -> list[Tensor]:
    """With the paper's α 6, β 5, lr 5e-4, align 0.5; `predict`: the views are selected again for the prediction."""
    classes = len(text)
    total, n = text.clone(), 0
    queues: list[list[tuple[float, Tensor]]] = [[] for _ in text]
    outputs = []

    def logits_of(views: list[Tensor], t: Tensor) -> Tensor:
        return mean([100 * t @ view for view in views])

    def with_images(z: Tensor, x: Tensor, w: dict[int, Tensor]) -> Tensor:
        return torch.stack([z[c] + 6 * (-5 * (1 - x @ w[c])).exp() if c in w else z[c] for c in range(classes)])

    for views in images:
        r = torch.zeros_like(text).requires_grad_()
        t = torch.stack([row / row.norm() for row in total + r])
        features, logits = used(views, t.detach(), confident)
        x, k, h = mean(features), int(mean(logits).argmax()), entropy(mean([softmax(one) for one in logits]))
        if len(queues[k]) < 3:
            queues[k].append((h, x))
        elif h < queues[k][-1][0]:
            queues[k][-1] = (h, x)
        queues[k].sort(key=lambda item: item[0])
        q = {c: mean([key for _, key in held]) for c, held in enumerate(queues) if held}
        u = {c: torch.zeros_like(x).requires_grad_() for c in q}
        w = {c: (q[c] + u[c]) / (q[c] + u[c]).norm() for c in q}
        out = with_images(logits_of(features, t), x, w)
        p = softmax(out)
        align = [torch.log(softmax(torch.stack([w[c] @ t[b] / 0.01 for b in w]))[i]) for i, c in enumerate(w)]
        loss = -(p * p.log()).nan_to_num().sum() - 0.5 * sum(align) / len(align)
        loss.backward()

        def stepped(start: Tensor, residual: Tensor) -> Tensor:
            moved = start - 5e-4 * residual.grad / (residual.grad.abs() + 1e-3)
            return moved / moved.norm(dim=-1, keepdim=True)

        t, w = stepped(total, r), {c: stepped(q[c], u[c]) for c in q}
        kept = used(views, t, predict)[0]
        out = with_images(logits_of(kept, t), mean(kept), w)
        outputs.append(softmax(out))
        if entropy(outputs[-1]) / math.log2(classes) < 0.1:
            n += 1
            total = (n * total + t) / (n + 1)
    return outputs


def dota(images: list[Tensor], text: Tensor, confident: bool, eta: float = 0.2, rho: float = 0.005) -> list[Tensor]:
    classes, d = text.shape
    identity = torch.eye(d, dtype=text.dtype)
    mu, sigma, c = [torch.full_like(text[0], 0.001)] * classes, [0.002 * identity] * classes, [1.0] * classes
    inverse = torch.linalg.inv(sum(sigma) / classes)
    outputs = []
    for views in images:
        features, logits = used(views, text, confident)
        x, weight = mean(features), min(rho * sum(c) / classes / len(features), eta)
        gaussian = torch.stack([m @ inverse @ x - m @ inverse @ m / 2 for m in mu])
        outputs.append(softmax(mean(logits) + weight * gaussian))
        p = [softmax(z) for z in logits]
        for k in range(classes):
            new = c[k] + sum(float(one[k]) for one in p)
            spread = sum(one[k] * torch.outer(v - mu[k], v - mu[k]) for one, v in zip(p, features, strict=True))
            sigma[k] = (c[k] * sigma[k] + spread) / new
            mu[k] = (c[k] * mu[k] + sum(one[k] * v for one, v in zip(p, features, strict=True))) / new
            c[k] = new
        inverse = torch.linalg.inv((1 - 1e-4) * sum(sigma) / classes + 1e-4 * identity)
    return outputs


def continual(model: CLIP, classnames: list[str], images: Tensor, every: int = 0) -> list[Tensor]:
    """TPT whose context and optimizer live on from image to image, or `every` so many of them, as logits (K,)."""
    tokens = tokenize_prompts(classnames)
    outputs = []
    for number, views in enumerate(images):
        if number == 0 or (every and number % every == 0):
            context = model.token_embedding(tokens[0, 1:5]).detach().clone().requires_grad_()
            optimizer = torch.optim.AdamW([context], lr=0.005, weight_decay=0.01)
        with torch.no_grad():
            features = torch.nn.functional.normalize(model.encode_image(views), dim=-1)

        def logits(features: Tensor = features, context: Tensor = context) -> Tensor:
            return model.logit_scale.exp() * features @ encode_prompts(model, tokens, context).T

        rows = logits()
        p = torch.stack([rows[i] for i in lowest([entropy(softmax(row)) for row in rows.detach()])]).softmax(1).mean(0)
        optimizer.zero_grad()
        (-(p * p.log()).sum()).backward()
        optimizer.step()
        outputs.append(logits()[0].detach())
    return outputs
