"""The online methods, slow and plain: lists and loops in double precision, one image at a time.

`images` are the unit features (V, d) of each image's views, view 0 the plain one. `text` (K, d) are
the class features. Each function returns the probabilities (K,) of every image. With `confident`, a
method uses the int(0.1·V) views of lowest entropy instead of view 0.
"""
from __future__ import annotations

import math

import torch
from promptcal.trainers.reference import encode_prompts, tokenize_prompts
from promptcal.trainers.vlm.openai_clip import CLIP
from torch import Tensor

# An image in a queue or cache: its entropy, then its features.
Entry = tuple[float, Tensor]


def softmax(logits: Tensor) -> Tensor:
    exponentials = (logits - logits.max()).exp()
    return exponentials / exponentials.sum()


def entropy(p: Tensor, inside: float = 0.0) -> float:
    """In nats. `inside` is what some public code adds within the logarithm."""
    total = 0.0
    for value in p.tolist():
        if value > 0:
            total -= value * math.log(value + inside)
    return total


def lowest(values: list[float], share: float = 0.1) -> list[int]:
    """The indices of the lowest values, the lowest first."""
    order = sorted(range(len(values)), key=values.__getitem__)
    return order[: int(share * len(values))]


def views_in_use(
    views: Tensor, text: Tensor, confident: bool, scale: float = 100.0,
) -> tuple[list[Tensor], list[Tensor]]:
    """The features of the views that are used, and their logits."""
    logits = [scale * text @ view for view in views]
    indices = [0]
    if confident:
        indices = lowest([entropy(softmax(z)) for z in logits])
    return [views[i] for i in indices], [logits[i] for i in indices]


def mean(rows: list[Tensor]) -> Tensor:
    return sum(rows) / len(rows)


def unit(vector: Tensor) -> Tensor:
    return vector / vector.norm()


def closeness(x: Tensor, key: Tensor, beta: float) -> float:
    return math.exp(-beta * (1 - float(x @ key)))


def keep_lowest(entries: list[Entry], entry: Entry, most: int) -> list[Entry]:
    """The entries of lowest entropy, with a new one among them."""
    return sorted([*entries, entry], key=lambda item: item[0])[:most]


def bca(images: list[Tensor], text: Tensor, confident: bool, count: float = 20000.0) -> list[Tensor]:
    centres = list(text.clone())
    priors = list(torch.eye(len(text), dtype=text.dtype))
    images_of_centre = [count] * len(text)
    images_of_prior = [1.0] * len(text)
    outputs = []
    for views in images:
        features, _ = views_in_use(views, torch.stack(centres), confident)
        x = mean(features)
        likelihood = softmax(100 * torch.stack(centres) @ x)
        p = sum(q * prior for q, prior in zip(likelihood, priors, strict=True))
        outputs.append(p)
        k = int(p.argmax())
        if p[k] > 0.05:
            centres[k] = unit(images_of_centre[k] * centres[k] + x)
            images_of_centre[k] += 1
        if p[k] > 0.65:
            priors[k] = (images_of_prior[k] * priors[k] + p) / (images_of_prior[k] + 1)
            images_of_prior[k] += 1
    return outputs


def dmn(images: list[Tensor], text: Tensor, scale: float, most: int = 50, weight: float = 1.0) -> list[Tensor]:
    memories: list[list[Entry]] = [[] for _ in text]
    outputs = []
    for views in images:
        p = [softmax(scale * text @ view) for view in views]
        confident = lowest([entropy(p_of_view, 1e-6) for p_of_view in p])
        averaged = mean([p[i] for i in confident])
        new = (entropy(averaged, 1e-8), views[0])
        memory = memories[int(averaged.argmax())]
        if len(memory) < most:
            memory.append(new)
        else:
            worst = max(range(most), key=lambda j: memory[j][0])
            if new[0] < memory[worst][0]:
                memory[worst] = new
        vectors = []
        for class_memory, class_feature in zip(memories, text, strict=True):
            vector = closeness(views[0], class_feature, 5.5) * class_feature
            for _, key in class_memory:
                vector = vector + closeness(views[0], key, 5.5) * key
            vectors.append(unit(vector))
        r = softmax(scale * torch.stack(vectors) @ views[0])
        outputs.append((p[0] + weight * r) / (1 + weight))
    return outputs


def boostadapter(
    images: list[Tensor], text: Tensor, confident: bool, alpha: float = 2.0, beta: float = 5.0,
    delta: int = 1, scale: float = 100.0,
) -> list[Tensor]:
    positive: list[list[Entry]] = [[] for _ in text]
    negative: list[list[tuple[Tensor, Tensor]]] = [[] for _ in text]
    outputs = []
    for views in images:
        features, logits = views_in_use(views, text, confident, scale)
        x = mean(features)
        z = mean(logits)
        p = mean([softmax(row) for row in logits])
        h = entropy(p)
        k = int(z.argmax())
        positive[k] = keep_lowest(positive[k], (h, x), most=3)

        # A copy of the cache, for this image alone, which its own confident views join.
        boosted = [list(entries) for entries in positive]
        confident_features, confident_logits = views_in_use(views, text, True, scale)
        for view, row in zip(confident_features, confident_logits, strict=True):
            c = int(row.argmax())
            boosted[c] = keep_lowest(boosted[c], (entropy(softmax(row)), view), most=3 + delta)

        if 0.2 < h / math.log2(len(text)) < 0.5:
            mask = ((p > 0.03) & (p < 1)).to(p.dtype)
            negative[k] = [*negative[k], (x, mask)][-2:]

        out = z.clone()
        for c, entries in enumerate(boosted):
            for _, key in entries:
                out[c] += alpha * closeness(x, key, beta)
        for pairs in negative:
            for key, mask in pairs:
                out -= 0.117 * closeness(x, key, 1.0) * mask
        outputs.append(softmax(out))
    return outputs


def dpe(images: list[Tensor], text: Tensor, confident: bool, predict: bool = False) -> list[Tensor]:
    """With the paper's α 6, β 5, lr 5e-4 and align 0.5.

    With `predict` the views are selected once more, by the adapted text, for the prediction.
    """
    classes = len(text)
    mean_text = text.clone()
    counted = 0
    queues: list[list[Entry]] = [[] for _ in text]
    outputs = []
    for views in images:
        features, logits = views_in_use(views, unit_rows(mean_text), confident)
        x = mean(features)
        k = int(mean(logits).argmax())
        h = entropy(mean([softmax(row) for row in logits]))
        queue = queues[k]
        if len(queue) < 3:
            queue.append((h, x))
        elif h < queue[-1][0]:
            queue[-1] = (h, x)
        queue.sort(key=lambda item: item[0])

        prototypes = {}
        for c, entries in enumerate(queues):
            if entries:
                prototypes[c] = mean([key for _, key in entries])
        text_residual = torch.zeros_like(text).requires_grad_()
        residuals = {c: torch.zeros_like(x).requires_grad_() for c in prototypes}
        t = unit_rows(mean_text + text_residual)
        w = {c: unit(prototypes[c] + residuals[c]) for c in prototypes}

        p = softmax(dpe_logits(features, t, w))
        loss = -(p * p.log()).nan_to_num().sum() - 0.5 * alignment(w, t)
        loss.backward()

        t = dpe_step(mean_text, text_residual)
        w = {c: dpe_step(prototypes[c], residuals[c]) for c in prototypes}
        features, _ = views_in_use(views, t, predict)
        outputs.append(softmax(dpe_logits(features, t, w)))
        if entropy(outputs[-1]) / math.log2(classes) < 0.1:
            counted += 1
            mean_text = (counted * mean_text + t) / (counted + 1)
    return outputs


def unit_rows(rows: Tensor) -> Tensor:
    return torch.stack([unit(row) for row in rows])


def dpe_logits(features: list[Tensor], text: Tensor, prototypes: dict[int, Tensor]) -> Tensor:
    x = mean(features)
    logits = []
    for c, logit in enumerate(mean([100 * text @ view for view in features])):
        if c in prototypes:
            logit = logit + 6 * (-5 * (1 - x @ prototypes[c])).exp()
        logits.append(logit)
    return torch.stack(logits)


def alignment(prototypes: dict[int, Tensor], text: Tensor) -> Tensor:
    """Mean log-probability that a prototype belongs to the text of its class."""
    total = torch.zeros((), dtype=text.dtype)
    for i, prototype in enumerate(prototypes.values()):
        similarities = torch.stack([prototype @ text[c] / 0.01 for c in prototypes])
        total = total + torch.log(softmax(similarities)[i])
    return total / len(prototypes)


def dpe_step(start: Tensor, residual: Tensor) -> Tensor:
    """One step of AdamW on a residual from zero, added to its start, with unit rows."""
    moved = start - 5e-4 * residual.grad / (residual.grad.abs() + 1e-3)
    return moved / moved.norm(dim=-1, keepdim=True)


def dota(
    images: list[Tensor], text: Tensor, confident: bool, eta: float = 0.2, rho: float = 0.005,
) -> list[Tensor]:
    classes, d = text.shape
    identity = torch.eye(d, dtype=text.dtype)
    means = [torch.full_like(text[0], 0.001)] * classes
    covariances = [0.002 * identity] * classes
    counts = [1.0] * classes
    precision = torch.linalg.inv(sum(covariances) / classes)
    outputs = []
    for views in images:
        features, logits = views_in_use(views, text, confident)
        x = mean(features)
        weight = min(rho * sum(counts) / classes / len(features), eta)
        gaussian = torch.stack([m @ precision @ x - m @ precision @ m / 2 for m in means])
        outputs.append(softmax(mean(logits) + weight * gaussian))

        p = [softmax(row) for row in logits]
        for k in range(classes):
            count = counts[k]
            spread = counts[k] * covariances[k]
            total = counts[k] * means[k]
            for p_of_view, feature in zip(p, features, strict=True):
                offset = feature - means[k]
                count += float(p_of_view[k])
                spread = spread + p_of_view[k] * torch.outer(offset, offset)
                total = total + p_of_view[k] * feature
            covariances[k] = spread / count
            means[k] = total / count
            counts[k] = count
        shrunk = (1 - 1e-4) * sum(covariances) / classes + 1e-4 * identity
        precision = torch.linalg.inv(shrunk)
    return outputs


def continual(model: CLIP, classnames: list[str], images: Tensor, every: int = 0) -> list[Tensor]:
    """TPT whose context and optimizer live on from image to image.

    Args:
        model: OpenAI's.
        classnames: K names.
        images: Pixels of the views, shape (B, V, 3, H, W).
        every: Number of images after which both start again; 0 = never.

    Returns:
        The logits (K,) of each image.
    """
    tokens = tokenize_prompts(classnames)
    outputs = []
    for number, views in enumerate(images):
        if number == 0 or (every and number % every == 0):
            context = model.token_embedding(tokens[0, 1:5]).detach().clone().requires_grad_()
            optimizer = torch.optim.AdamW([context], lr=0.005, weight_decay=0.01)
        with torch.no_grad():
            features = torch.nn.functional.normalize(model.encode_image(views), dim=-1)
        rows = prompted_logits(model, features, tokens, context)
        confident = lowest([entropy(softmax(row)) for row in rows.detach()])
        p = rows[confident].softmax(1).mean(0)
        optimizer.zero_grad()
        (-(p * p.log()).sum()).backward()
        optimizer.step()
        outputs.append(prompted_logits(model, features, tokens, context)[0].detach())
    return outputs


def prompted_logits(model: CLIP, features: Tensor, tokens: Tensor, context: Tensor) -> Tensor:
    return model.logit_scale.exp() * features @ encode_prompts(model, tokens, context).T
