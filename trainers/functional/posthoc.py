"""Post-hoc calibration of a method's logits.

Temperature scaling needs labels. SaLS, CoTS, E-CoTS, replaced confidence and fixed temperatures
need none.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from .arrays import Array, ArrayLike, check_scores, log_softmax, number_array, to_tensor
from .objectives import entropy

TensorOrArray = TypeVar("TensorOrArray", torch.Tensor, Array)
TAU = (0.01, 100.0)  # range of CoTS's temperatures
CELLS = 32  # of log τ at first
PIECES = 4  # that one cell is cut into in each round
ROUNDS = 32  # of cutting; tests show how close to the minimum they get
AT_ONCE = 11  # temperatures per block, to save memory
# Doubles in one block of `StrongViews.temperatures`: as many as a core's cache holds, or a GPU's
# memory without trouble (256 MB).
NUMBERS_ON_CPU = 1 << 19
NUMBERS_ON_GPU = 1 << 25
NEWTON_STEPS = 100  # of fitting a temperature; five to ten are usual
SAME = 1e-12  # misfits whose relative difference is less are equal


def fit_temperature(
    logits: ArrayLike, labels: ArrayLike, bounds: tuple[float, float] = (0.01, 100.0),
) -> float:
    """The temperature T that minimises the NLL of logits / T (Guo et al., ICML 2017).

    The NLL is convex in b = 1/T. Its slope is the mean over images of E_p[z] − z_y, its curvature
    the mean of Var_p[z], with p = softmax(b z). Newton's steps find its minimum; a step that leaves
    the interval known to hold it is replaced by the middle of the interval.

    Args:
        logits: (N, K).
        labels: True class of each image, (N,).
        bounds: Range of T. If the NLL has no minimum, as when every prediction is right, the
            result is the nearer bound.

    Example:
        >>> logits = np.log([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.1, 0.9]])
        >>> round(fit_temperature(logits, [0, 0, 1, 1]), 3)     # 3 of 4 are right
        2.0
    """
    logits, labels = check_scores(logits, labels, "logits")
    z = logits.astype(np.float64)
    z -= z.max(axis=1, keepdims=True)
    true = z[np.arange(len(z)), labels]
    low = 1 / bounds[1]
    high = 1 / bounds[0]
    inverse = 1.0
    for _ in range(NEWTON_STEPS):
        p = np.exp(inverse * z)
        p /= p.sum(axis=1, keepdims=True)
        mean = (p * z).sum(axis=1)
        slope = float((mean - true).mean())
        curvature = float(((p * z * z).sum(axis=1) - mean**2).mean())
        if slope > 0:
            high = min(high, inverse)
        else:
            low = max(low, inverse)
        step = inverse - slope / curvature if curvature > 0 else math.inf
        if not low < step < high:
            step = (low + high) / 2
        if abs(step - inverse) <= 1e-10 * inverse:
            break
        inverse = step
    return float(np.clip(1 / inverse, *bounds))


def cross_fit_temperature(
    logits: ArrayLike, labels: ArrayLike, seed: int = 0,
) -> tuple[Array, tuple[float, float]]:
    """Temperature scaling without a second data set: each half has the T fitted on the other half.

    Unlike test-time tuning it uses labels.

    Args:
        logits: (N, K).
        labels: True class of each image, (N,).
        seed: Seed of the random split into halves.

    Returns:
        The scaled logits, (N, K), and both temperatures.
    """
    logits, labels = check_scores(logits, labels, "logits")
    if len(labels) < 2:
        raise ValueError("Two samples at least are needed, one for each half.")
    first, second = np.array_split(np.random.default_rng(seed).permutation(len(labels)), 2)
    temperatures = (
        fit_temperature(logits[first], labels[first]),
        fit_temperature(logits[second], labels[second]),
    )
    scaled = logits.astype(np.float64)
    scaled[second] /= temperatures[0]
    scaled[first] /= temperatures[1]
    return scaled, temperatures


def sals(logits: TensorOrArray, zero_shot_logits: ArrayLike) -> TensorOrArray:
    """SaLS (Murugesan et al., ECCV 2024): logits rescaled to the range of the zero-shot logits.

    The predicted class never changes. Constant logits become the middle of the zero-shot range.

    Args:
        logits: After tuning, (..., K).
        zero_shot_logits: Logits of the same samples before tuning, (..., K).

    Returns:
        Logits of the same shape, in the input's precision, at least fp32: a tensor for a tensor,
        an array for an array.

    Example:
        >>> sals(np.array([[4.0, 0.0, 2.0]]), [[1.0, 0.0, 0.5]]).tolist()
        [[1.0, 0.0, 0.5]]
    """
    z: torch.Tensor = to_tensor(logits)
    z0: torch.Tensor = to_tensor(zero_shot_logits)
    if z.ndim == 0 or z.shape != z0.shape or z.numel() == 0:
        raise ValueError(
            "Logits and zero-shot logits need one shape (..., K), "
            f"got {(*z.shape,)} and {(*z0.shape,)}.")
    if not (torch.isfinite(z).all() and torch.isfinite(z0).all()):
        raise ValueError("Logits must be finite.")
    dtype = torch.promote_types(z.dtype, torch.float32)
    z = z.double()
    z0 = z0.double()
    low = z.amin(-1, keepdim=True)
    span = z.amax(-1, keepdim=True) - low
    low0 = z0.amin(-1, keepdim=True)
    span0 = z0.amax(-1, keepdim=True) - low0
    tiny = torch.finfo(torch.float64).tiny
    position = torch.where(span > 0, (z - low) / span.clamp_min(tiny), 0.5)  # from 0 to 1
    scaled = (position * span0 + low0).to(dtype)
    # Rounding may merge the two highest logits; then the winner is raised to the next
    # floating-point number.
    winner = z.argmax(-1, keepdim=True)
    top = scaled.amax(-1, keepdim=True)
    above = torch.nextafter(top, torch.full_like(top, torch.inf))
    still_first = scaled.argmax(-1, keepdim=True) == winner
    scaled = scaled.scatter(-1, winner, torch.where(still_first, top, above))
    if isinstance(logits, torch.Tensor):
        return scaled
    return scaled.numpy()


def confidence_at(logits: Tensor, temperature: Tensor) -> Tensor:
    """Top probability of logits at a temperature; it decreases with the temperature.

    Args:
        logits: (..., K).
        temperature: Divides the logits, (...).

    Returns:
        Fractions from 1/K to 1, (...).

    Example:
        >>> logits = torch.tensor([2.0, 0.0])
        >>> [round(confidence_at(logits, torch.tensor(t)).item(), 3) for t in (1.0, 2.0)]
        [0.881, 0.731]
    """
    gap = logits - logits.amax(-1, keepdim=True)
    return 1 / (gap / temperature[..., None]).exp().sum(-1)


def strong_views(logits: Tensor, share: float = 0.1) -> Tensor:
    """Selects the augmented views of lowest entropy, which CoTS calls strong. View 0 is the plain
    one and never among them.

    The paper's Algorithm 1 uses their indices among the others as indices among all.

    Args:
        logits: Logits of all views, (B, V, K).
        share: Share of the views to use, from 0 to 1; at least one view is used.

    Returns:
        Indices of views, (B, n).
    """
    strong = logits[:, 1:]
    count = max(1, int(strong.shape[1] * share))
    by_entropy = entropy(strong).argsort(dim=-1, stable=True)
    return by_entropy[:, :count] + 1


def consistent_temperature(adapted: Tensor, before: Tensor) -> Tensor:
    """CoTS: the τ at which the confidence of adapted views is closest to that before, in mean
    square (Liang et al., 2026, Sec. 3).

    τ is 1 where that fits equally well: a method that changes nothing is not rescaled.

    Args:
        adapted: Logits of the strong views after adaptation, (B, n, K).
        before: Logits of the same views before adaptation, (B, n, K).

    Returns:
        τ (B,) in double precision.
    """
    before = before.double()
    target = confidence_at(before, torch.ones_like(before[..., 0]))
    log_tau, _, _ = least_misfit(adapted.double(), target)
    return log_tau.exp()


def least_misfit(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Minimises the misfit f = mean_i (c_i(τ) − target_i)², where c_i is the confidence of view i.

    Branch and bound (Piyavskii, 1972; Shubert, 1972). Let β = 1/τ, g_k the gap from a view's
    highest logit to its k-th, and p its softmax: c(β) = 1 / Σ e^{−βg} increases, because c' = c m
    with m = Σ p g ≥ 0, and m decreases, because m' = −Var_p(g). So between two temperatures c and m
    stay between their values at both, and so does each term of f and of f' = 2 mean_i (c_i −
    target_i) c_i m_i. Both bound f from below in a cell; where f' has one sign, the bound is f at
    an end. In each round the cell with the lowest bound is cut: no cell that may contain the
    minimum is dropped, and as cells shrink, the bound rises to the least value found.

    Args:
        logits: Logits of the views, (B, n, K).
        target: The confidence that each view should have, (B, n).

    Returns:
        The log τ of the least misfit, f there, and a lower bound of f over all τ, (B,) each.
    """
    gaps = logits.amax(-1, keepdim=True) - logits  # (B, n, K)
    best = torch.zeros_like(gaps[:, 0, 0])  # log τ
    least = (confidence_at(logits, torch.ones_like(target)) - target).square().mean(-1)
    edges = torch.linspace(
        math.log(TAU[0]), math.log(TAU[1]), CELLS + 1, dtype=gaps.dtype, device=gaps.device
    )
    edges = edges.expand(len(gaps), -1)
    cuts = torch.linspace(0, 1, PIECES + 1, dtype=gaps.dtype, device=gaps.device)
    # All cells so far, (B, cells): their ends, and a lower bound of f in each.
    low = gaps.new_empty(len(gaps), 0)
    high = low
    bound = low
    for _ in range(ROUNDS + 1):  # the first one evaluates the whole range, before any cut
        misfit, below = misfit_and_bounds(gaps, target, edges)
        least_at_edges, edge = misfit.min(-1, keepdim=True)
        is_better = least_at_edges[:, 0] < least * (1 - SAME)
        best = torch.where(is_better, edges.gather(1, edge)[:, 0], best)
        least = torch.where(is_better, least_at_edges[:, 0], least)

        low = torch.cat([low, edges[:, :-1]], 1)
        high = torch.cat([high, edges[:, 1:]], 1)
        bound = torch.cat([bound, below], 1)
        lowest, chosen = bound.min(-1, keepdim=True)
        edges = torch.lerp(low.gather(1, chosen), high.gather(1, chosen), cuts)
        bound = bound.scatter(1, chosen, torch.inf)  # its pieces replace it
    return best, least, torch.minimum(lowest[:, 0], least)


def misfit_and_bounds(gaps: Tensor, target: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """The misfit at temperatures, and its lower bounds between them; see `least_misfit`.

    Args:
        gaps: From each view's highest logit to all of its logits, (B, n, K).
        target: The confidence that each view should have, (B, n).
        edges: Increasing log τ, (B, E).

    Returns:
        The misfit at each edge, (B, E), and its lower bound between each two, (B, E − 1).
    """
    inverse = (-edges).exp()  # β (B, E)
    totals = []
    weighted_gaps = []
    for betas in inverse.split(AT_ONCE, dim=1):
        weight = (-gaps[:, :, None] * betas[:, None, :, None]).exp()  # (B, n, e, K)
        totals.append(weight.sum(-1))
        weighted_gaps.append((weight @ gaps[..., None])[..., 0])
    total = torch.cat(totals, -1)  # (B, n, E)
    c = 1 / total
    m = torch.cat(weighted_gaps, -1) / total
    error = c - target[..., None]
    misfit = error.square().mean(1)

    # c decreases and m increases with τ, so that a cell has their extremes at its ends.
    high = error[..., :-1]
    low = error[..., 1:]
    most = c[..., :-1] * m[..., 1:]  # of c m in each cell
    least = c[..., 1:] * m[..., :-1]
    nearest = torch.where(low > 0, low, torch.where(high < 0, high, 0))  # the error closest to 0
    slowest = 2 * (low * torch.where(low > 0, least, most)).mean(1)  # lower bound of f'
    fastest = 2 * (high * torch.where(high > 0, most, least)).mean(1)  # upper bound of f'
    width = inverse[:, :-1] - inverse[:, 1:]
    from_right = misfit[:, 1:] + slowest.clamp(max=0) * width
    from_left = misfit[:, :-1] - fastest.clamp(min=0) * width
    below = torch.stack([nearest.square().mean(1), from_right, from_left]).amax(0)
    return misfit, below


class StrongViews(NamedTuple):
    """Logits (B, n, K) of the strong views of B images, all that CoTS and E-CoTS depend on."""

    before: Tensor
    adapted: Tensor  # the same tensor, if adaptation changed nothing

    @classmethod
    def of(cls, before: Tensor, adapted: Tensor) -> StrongViews | None:
        """Selects the strong views of B images.

        Args:
            before: Logits of all views before adaptation, (B, V, K).
            adapted: Logits after adaptation; the same tensor if it changed nothing.

        Returns:
            The strong views; None if each image has the plain view only.
        """
        if before.shape[1] == 1:
            return None
        chosen = strong_views(adapted)[..., None]
        strong_adapted = adapted.take_along_dim(chosen, dim=1)
        if adapted is before:
            return cls(strong_adapted, strong_adapted)
        return cls(before.take_along_dim(chosen, dim=1), strong_adapted)

    @classmethod
    def join(cls, batches: Sequence[StrongViews]) -> StrongViews:
        """The strong views of several batches as one object."""
        adapted = torch.cat([batch.adapted for batch in batches])
        if all(batch.adapted is batch.before for batch in batches):
            return cls(adapted, adapted)
        return cls(torch.cat([batch.before for batch in batches]), adapted)

    def temperatures(self) -> Tensor:
        """CoTS's τ (B,), in double precision; 1 where adaptation changed nothing.

        The search is two thousand small tensor operations, whatever the number of images. It is
        therefore made for as many images at once as memory allows.
        """
        images, views, classes = self.adapted.shape
        if self.adapted is self.before:
            return torch.ones_like(self.adapted[:, 0, 0])
        numbers = NUMBERS_ON_GPU
        if self.adapted.device.type == "cpu":
            numbers = NUMBERS_ON_CPU
        at_once = max(1, numbers // (views * classes * AT_ONCE))
        temperatures = []
        for start in range(0, images, at_once):
            block = slice(start, start + at_once)
            temperatures.append(consistent_temperature(self.adapted[block], self.before[block]))
        return torch.cat(temperatures)

    def columns(self) -> dict[str, Tensor]:
        """The columns that a run stores: τ (B,), and the logarithm of the mean prediction at τ
        (B, K).

        τ depends on all logits of the strong views. A run solves for it, which takes 4 + 2 K bytes
        per image, instead of storing these logits.
        """
        tau = self.temperatures()
        mean = (self.adapted / tau[:, None, None]).softmax(-1).mean(1)  # (B, K)
        # A probability of 0 is stored as a very small one. 1e-300 itself is 0 in fp32.
        least = max(1e-300, torch.finfo(mean.dtype).tiny)
        return {"cots_tau": tau.float(), "strong_log_p": mean.clamp(min=least).log().half()}


def cots_columns(before: Tensor, adapted: Tensor) -> dict[str, Tensor]:
    """The columns that a run stores for CoTS and E-CoTS.

    Args:
        before: Logits of all views before adaptation, (B, V, K).
        adapted: Logits after it; the same tensor if it changed nothing.

    Returns:
        See `StrongViews.columns`; {} if each image has one view only.
    """
    strong = StrongViews.of(before, adapted)
    if strong is None:
        return {}
    return strong.columns()


def cots(logits: ArrayLike, tau: ArrayLike) -> Array:
    """Logits divided by each image's τ. The predicted class does not change.

    Args:
        logits: (N, K).
        tau: CoTS's temperature of each image, (N,).

    Returns:
        Logits, (N, K).

    Example:
        >>> cots([[2.0, 0.0]], [2.0]).tolist()
        [[1.0, 0.0]]
    """
    return number_array(logits, "logits", ndim=2) / number_array(tau, "tau", ndim=1)[:, None]


def ecots(logits: ArrayLike, tau: ArrayLike, strong_log_p: ArrayLike, text: ArrayLike) -> Array:
    """E-CoTS, as log-probabilities: a p(τ) + (1 − a) · mean of the strong views' p(τ).

    a is the classes' mean cosine. The paper's CLIPs have a of 0.6 to 0.8. Where class features are
    nearly orthogonal, a is small and the strong views dominate. The class features are those before
    adaptation; the paper does not say which.

    Args:
        logits: Logits of the plain view, (N, K).
        tau: CoTS's temperature of each image, (N,).
        strong_log_p: Logarithm of the strong views' mean prediction at τ, (N, K).
        text: Unit class features, (K, d).

    Returns:
        Log-probabilities (N, K).
    """
    weight = mean_cosine(text)
    plain = np.exp(log_softmax(cots(logits, tau)))
    strong = np.exp(number_array(strong_log_p, "strong_log_p", ndim=2).astype(np.float64))
    mixed = weight * plain + (1 - weight) * strong
    return np.log(np.maximum(mixed, np.finfo(np.float64).tiny))


def mean_cosine(text: ArrayLike) -> float:
    """Mean cosine of different classes, clipped to [0, 1]; 1 for a single class.

    Example:
        >>> round(mean_cosine([[1.0, 0.0], [0.6, 0.8]]), 3)
        0.6
    """
    text = number_array(text, "text", ndim=2).astype(np.float64)
    classes = len(text)
    if classes == 1:
        return 1.0
    cosines = text @ text.T
    total = cosines.sum() - np.trace(cosines)  # of different classes
    return float(np.clip(total / (classes * (classes - 1)), 0, 1))


def replaced_confidence(logits: ArrayLike, zero_shot_logits: ArrayLike) -> Array:
    """The method's class with the zero-shot confidence.

    The other classes share the rest of the probability evenly.

    Args:
        logits: Logits of the method, (N, K).
        zero_shot_logits: Zero-shot logits of the same images, (N, K).

    Returns:
        Log-probabilities, (N, K).

    Example:
        >>> np.exp(replaced_confidence([[5.0, 0.0]], [[0.0, 0.0]])).tolist()
        [[0.5, 0.5]]
    """
    logits = number_array(logits, "logits", ndim=2)
    confidence = np.exp(log_softmax(zero_shot_logits)).max(axis=1, keepdims=True)
    others = (1 - confidence) / max(logits.shape[1] - 1, 1)
    is_predicted = np.arange(logits.shape[1]) == logits.argmax(axis=1)[:, None]
    probabilities = np.where(is_predicted, confidence, others)
    return np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))


def fixed_temperature(backbone: str, architecture: str = "") -> float:
    """C-TPT's `tpt_ts`: one temperature for all data sets, 1.16 for transformers and 1.15 for
    ResNets.

    Args:
        backbone: Name of the backbone, which decides if `architecture` is "".
        architecture: "resnet" or "transformer", of the image tower; "" if it is not known.

    Example:
        >>> fixed_temperature("RN50"), fixed_temperature("ViT-B/16")
        (1.15, 1.16)
    """
    if architecture:
        is_resnet = architecture == "resnet"
    else:
        is_resnet = backbone.split(":")[-1].startswith("RN")
    return 1.15 if is_resnet else 1.16
