"""Confidence mended after the method. Temperature scaling, the classic reference, needs labels; CoTS, E-CoTS, replaced
confidence and the papers' fixed temperatures need none, nor does SaLS, which is in `calibration`."""
from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .arrays import Array, ArrayLike, check_scores, log_softmax, number_array
from .objectives import entropy

TAU = (0.01, 100.0)  # temperatures that CoTS looks among
GRID = 64  # cells between the views' own temperatures
AT_ONCE = 13  # of them, so that memory stays small
HALVINGS = 30
GOLDEN = (math.sqrt(5) - 1) / 2


def fit_temperature(logits: ArrayLike, labels: ArrayLike, bounds: tuple[float, float] = (0.01, 100.0)) -> float:
    """The temperature T that minimises the NLL of logits / T (Guo et al., ICML 2017), within `bounds`.

    The NLL is convex in 1/T, so L-BFGS finds its one minimum; where there is none, as when every prediction is right,
    the nearer bound is taken.
    """
    logits, labels = check_scores(logits, labels, "logits")
    z, target = torch.from_numpy(logits.astype(np.float64)), torch.from_numpy(labels.astype(np.int64))
    inverse = torch.ones((), dtype=torch.float64, requires_grad=True)  # 1/T
    optimizer = torch.optim.LBFGS([inverse], max_iter=100, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def nll() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(z * inverse, target)
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(nll)
    return float(np.clip(1 / max(inverse.item(), 1 / bounds[1]), *bounds))


def cross_fit_temperature(logits: ArrayLike, labels: ArrayLike, seed: int = 0) -> tuple[Array, tuple[float, float]]:
    """Temperature scaling without a second data set: each half is divided by the T fitted on the other half.

    Returns the scaled logits and both temperatures. It sees labels, which test-time tuning never does: a reference.
    """
    logits, labels = check_scores(logits, labels, "logits")
    if len(labels) < 2:
        raise ValueError("Two samples at least are needed, one for each half.")
    half = np.array_split(np.random.default_rng(seed).permutation(len(labels)), 2)
    temperatures = tuple(fit_temperature(logits[part], labels[part]) for part in half)
    scaled = logits.astype(np.float64)
    for part, temperature in zip(half, reversed(temperatures), strict=True):
        scaled[part] /= temperature
    return scaled, temperatures


def confidence_at(logits: Tensor, temperature: Tensor) -> Tensor:
    """Top probability of logits (..., K) divided by a temperature (...). It falls as the temperature grows."""
    gap = logits - logits.amax(-1, keepdim=True)
    return 1 / (gap / temperature[..., None]).exp().sum(-1)


def strong_views(logits: Tensor, share: float = 0.1) -> Tensor:
    """The views that CoTS looks at: the tenth of lowest entropy among all but the plain one, which is view 0.

    (B, V, K) -> (B, n). The paper's Algorithm 1 takes their places among the others for places among all.
    """
    strong = logits[:, 1:]
    return entropy(strong).argsort(dim=-1, stable=True)[:, : max(1, int(strong.shape[1] * share))] + 1


def consistent_temperature(adapted: Tensor, before: Tensor) -> Tensor:
    """CoTS: the τ (B,) at which adapted views (B, n, K) are as sure as they were before, in the mean square.

    (Liang et al., 2026, Sec. 3.) A view's term falls up to the view's own τ, found by bisection, and rises after it, so
    the minimum lies between the least and the greatest of these. There a grid finds the valley, and golden sections
    its bottom. Where 1 does as well, it is 1: a method that changes nothing is not rescaled.
    """
    adapted, before = adapted.double(), before.double()
    target = confidence_at(before, torch.ones_like(before[..., 0]))  # (B, n)

    def misfit(log_t: Tensor) -> Tensor:  # (..., B) -> (..., B)
        tau = log_t.exp()[..., None].expand(*log_t.shape, target.shape[-1])
        return (confidence_at(adapted, tau) - target).square().mean(-1)

    low = torch.full_like(target, math.log(TAU[0]))
    high = torch.full_like(target, math.log(TAU[1]))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        surer = confidence_at(adapted, middle.exp()) > target
        low, high = torch.where(surer, middle, low), torch.where(surer, high, middle)
    first, last = low.amin(-1), high.amax(-1)  # (B,)
    step = (last - first) / GRID
    places = torch.arange(GRID + 1, device=step.device)[:, None]
    grid = torch.cat([misfit(first + some * step) for some in places.split(AT_ONCE)])  # (G + 1, B)
    best = first + grid.argmin(0) * step
    low, high = torch.maximum(best - step, first), torch.minimum(best + step, last)
    for _ in range(HALVINGS):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        falls = misfit(left) > misfit(right)
        low, high = torch.where(falls, left, low), torch.where(falls, high, right)
    best = torch.where(misfit((low + high) / 2) <= grid.amin(0), (low + high) / 2, best)
    return torch.where(misfit(torch.zeros_like(best)) <= misfit(best), 0, best).exp()


def strong_columns(before: Tensor, adapted: Tensor) -> dict[str, Tensor]:
    """What CoTS and E-CoTS need of an image's views, given their logits (B, V, K) before and after adaptation.

    Two confidences of each strong view would not do: τ depends on how the rest is spread, so it is solved here, where
    all logits are, and kept with the mean prediction of the strong views at τ: 4 + 2 K bytes an image.
    """
    if before.shape[1] == 1:
        return {}
    chosen = strong_views(adapted)[..., None]
    adapted, before = (logits.take_along_dim(chosen, dim=1) for logits in (adapted, before))
    tau = consistent_temperature(adapted, before)
    mean = (adapted / tau[:, None, None]).softmax(-1).mean(1)  # (B, K)
    return {"cots_tau": tau.float(), "strong_log_p": mean.clamp(min=1e-300).log().half()}


def cots(logits: ArrayLike, tau: ArrayLike) -> Array:
    """Logits over each image's own τ: the predicted class stays."""
    return number_array(logits, "logits", ndim=2) / number_array(tau, "tau", ndim=1)[:, None]


def ecots(logits: ArrayLike, tau: ArrayLike, strong_log_p: ArrayLike, text: ArrayLike) -> Array:
    """E-CoTS, as log-probabilities: a · p(τ) + (1 − a) · mean of the strong views' p(τ), a the classes' mean cosine.

    Where class features are nearly orthogonal a is small, and the strong views decide alone: see the paper's CLIPs,
    whose a is 0.6 to 0.8. The class features are those before adaptation, on which the paper is silent.
    """
    weight = mean_cosine(text)
    plain = np.exp(log_softmax(cots(logits, tau)))
    strong = np.exp(number_array(strong_log_p, "strong_log_p", ndim=2).astype(np.float64))
    return np.log(np.maximum(weight * plain + (1 - weight) * strong, np.finfo(np.float64).tiny))


def mean_cosine(text: ArrayLike) -> float:
    """Mean cosine of different classes, within 0 and 1; 1 for a single class."""
    text = number_array(text, "text", ndim=2).astype(np.float64)
    classes = len(text)
    if classes == 1:
        return 1.0
    cosines = text @ text.T
    return float(np.clip((cosines.sum() - np.trace(cosines)) / (classes * (classes - 1)), 0, 1))


def replaced_confidence(logits: ArrayLike, zero_shot_logits: ArrayLike) -> Array:
    """The method's class with the zero-shot confidence, as log-probabilities; all other classes share the rest."""
    logits = number_array(logits, "logits", ndim=2)
    confidence = np.exp(log_softmax(zero_shot_logits)).max(axis=1, keepdims=True)
    others = (1 - confidence) / max(logits.shape[1] - 1, 1)
    chosen = np.arange(logits.shape[1]) == logits.argmax(axis=1)[:, None]
    return np.log(np.maximum(np.where(chosen, confidence, others), np.finfo(np.float64).tiny))


def fixed_temperature(backbone: str) -> float:
    """C-TPT's `tpt_ts`: one temperature for all data sets, 1.16 for transformers and 1.15 for ResNets."""
    return 1.15 if backbone.startswith("RN") else 1.16
