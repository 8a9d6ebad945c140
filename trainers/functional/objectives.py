"""The formulas of the methods, as pure functions.

`text` is the matrix T of L2-normalised class text features, shape (..., K, d); S = T Tᵀ holds the cosines s_ij.
Leading dimensions are episodes: every function works on one episode or on a batch of them.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .pairwise import above_diagonal, by_rows, fits_at_once, packed_similarities, pair_similarities, pairs_at

LEAST_ENTROPY = 1e-3  # nats; below it an episode has nothing left to be made sure of


def entropy(logits: Tensor) -> Tensor:
    """Softmax entropy over the last dimension."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def confident_views(logits: Tensor, share: float) -> Tensor:
    """Indices of the `int(V · share)` views of lowest entropy. (TPT, Shu et al., NeurIPS 2022.)

    The SoC paper prints the indicator as H ≥ τ; the lowest entropies are the ones kept.
    """
    kept = int(logits.shape[-2] * share)
    return entropy(logits).argsort(dim=-1, stable=True)[..., :kept]  # (..., V, K) -> (..., n)


def marginal_entropy(logits: Tensor) -> Tensor:
    """L_TPT: entropy of the class distribution averaged over the n kept views. (..., n, K) -> (...)"""
    log_p = logits.log_softmax(-1)
    mean_log_p = log_p.logsumexp(-2) - torch.log(torch.tensor(float(logits.shape[-2])))
    mean_log_p = mean_log_p.clamp(min=torch.finfo(mean_log_p.dtype).min)
    return -(mean_log_p.exp() * mean_log_p).sum(-1)


def mean_entropy(logits: Tensor) -> Tensor:
    """R-TPT's loss: each kept view's own entropy, averaged; not the entropy of their average. (..., n, K) -> (...)"""
    return entropy(logits).mean(-1)


def leading_range(first: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest and highest logit (..., 1, 1) of the most confident kept view, which is the first of `first` (..., n, K).

    The public code of Penalty and ZS-Norm calls it the zero-shot range; it is not that of the plain view.
    """
    leader = first[..., :1, :]
    return leader.amin(-1, keepdim=True), leader.amax(-1, keepdim=True)


def range_excess(logits: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """How far logits leave a range, on average: mean relu(z − high) + mean relu(low − z). (..., n, K) -> (...)

    (Penalty: Murugesan et al., ECCV 2024.)
    """
    return (F.relu(logits - high) + F.relu(low - logits)).mean((-2, -1))


def into_range(logits: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Each view's logits stretched linearly to a range. (ZS-Norm: Murugesan et al., ECCV 2024.)

    A view whose logits are all alike, as with one class, goes to the lower end.
    """
    bottom, top = logits.amin(-1, keepdim=True), logits.amax(-1, keepdim=True)
    span = top - bottom
    return (logits - bottom) / torch.where(span == 0, 1, span) * (high - low) + low


def dispersion(text: Tensor) -> Tensor:
    """Mean distance of the classes from their centroid, which is not normalised again. (C-TPT, Yoon et al., ICLR 2024.)

    To be maximised.
    """
    centroid = text.mean(-2, keepdim=True)
    return (text - centroid).norm(dim=-1).mean(-1)


def orthogonality(text: Tensor) -> Tensor:
    """O-TPT's penalty mean_i ‖H_i S_i − e_i‖ in closed form. (Sharifdeen et al., CVPR 2025.)

    H_i is the Householder reflector that maps row S_i onto ‖S_i‖ e_i, so each term is ‖S_i‖ − 1: the same value and
    gradient without the K×K×K reflectors.
    """
    return by_rows(text, lambda rows, _: rows.norm(dim=-1)).mean(-1) - 1


def frobenius_orthogonality(text: Tensor) -> Tensor:
    """‖S − I‖², O-TPT's penalty as the SoC paper prints it (Sec. 3.2)."""
    def squares(rows: Tensor, start: int) -> Tensor:
        identity = torch.zeros_like(rows)
        identity.diagonal(start, -2, -1).fill_(1)
        return (rows - identity).square().sum(-1)

    return by_rows(text, squares).sum(-1)


def nearest_angle(text: Tensor, limit: float = 0.99999) -> Tensor:
    """Mean angle between each class and the class nearest to it. To be maximised. (A-TPT: Ahamed et al., ICLR 2026.)

    Cosines are clamped to ±limit, where arccos is steep: two classes of one name add nothing to the gradient.
    """
    def nearest(rows: Tensor, start: int) -> Tensor:
        own = torch.zeros_like(rows)
        own.diagonal(start, -2, -1).fill_(1)
        others = rows - 2 * rows * own  # a class's own cosine becomes −1
        return others.max(-1).values  # one of several equal ones gets the gradient

    return by_rows(text, nearest).clamp(-limit, limit).arccos().mean(-1)


def normalise(similarity: Tensor, how: str, flow: bool = False) -> Tensor:
    """s̃ of the SoC paper's Appendix: `minmax` (s−min)/(max−min), `max` s/max, `shift` s−min.

    The minimum and the maximum are detached, unless gradients shall `flow` through them too. Where a denominator
    vanishes (all pairs alike, two classes) the difference itself is kept: s̃ is 0, never NaN.
    """
    source = similarity if flow else similarity.detach()
    return rescale(similarity, source.amin(-1, keepdim=True), source.amax(-1, keepdim=True), how)


def rescale(similarity: Tensor, low: Tensor, high: Tensor, how: str) -> Tensor:
    """`normalise`, given the lowest and the highest similarity."""
    if how == "shift":
        return similarity - low
    if how == "max":
        return similarity / torch.where(high == 0, 1, high)
    span = high - low
    return (similarity - low) / torch.where(span == 0, 1, span)


def huber(similarity: Tensor, delta: Tensor | float) -> Tensor:
    """s²/2 up to the margin δ, then the line δ(s − δ/2): repulsion stops growing for classes that are close.

    With m = min(s, δ) both pieces are m (s − m/2).
    """
    bounded = similarity.clamp(max=delta)
    return bounded * (similarity - bounded / 2)


def semantic_separation(text: Tensor, percentile: float, normalisation: str, statistics: str = "detached") -> Tensor:
    """L_Huber of SoC: mean over pairs i < j of Huber(s̃_ij, δ), δ the given percentile of s̃. (Sec. 4.)

    What the paper leaves open is through which `statistics` gradients run: through none (`detached`), through minimum
    and maximum (`flow`), or through δ as well (`flow_delta`). A single class has no pairs: 0.
    """
    if text.shape[-2] < 2:
        return text.sum((-2, -1)) * 0
    if not fits_at_once(text.shape[-2]):
        episodes = text.reshape(-1, *text.shape[-2:])
        each = [separation_by_rows(one, percentile, normalisation, statistics) for one in episodes]
        return torch.stack(each).view(text.shape[:-2])
    similarity = normalise(pair_similarities(text), normalisation, flow=statistics != "detached")
    delta = percentile_of(similarity if statistics == "flow_delta" else similarity.detach(), percentile)
    return huber(similarity, delta).mean(-1)


def separation_by_rows(text: Tensor, percentile: float, normalisation: str, statistics: str) -> Tensor:
    """`semantic_separation` of so many classes (K, d) that not all pairs can be kept for the gradient. The statistics
    are found first; where gradients flow through one, it is computed anew from the pairs that it is."""
    cosines = packed_similarities(text)
    low, high = cosines.amin(), cosines.amax()
    lowest, highest = (torch.nonzero(cosines == extreme)[:, 0] for extreme in (low, high))
    cosines = rescale(cosines, low, high, normalisation)
    pairs = len(cosines)
    below, share = rank_of(percentile, pairs)
    around = [cosines.kthvalue(min(below + k, pairs)) for k in (1, 2)]
    del cosines
    delta = torch.lerp(*(found.values for found in around), share)
    if statistics != "detached":  # the gradient of an extreme that several pairs share is shared out evenly
        low, high = pairs_at(text, lowest).mean(), pairs_at(text, highest).mean()
    if statistics == "flow_delta":
        values = rescale(pairs_at(text, torch.stack([found.indices for found in around])), low, high, normalisation)
        delta = torch.lerp(*values, share)

    def sums(rows: Tensor, start: int) -> Tensor:
        above = above_diagonal(*rows.shape, start, rows.device)
        return (huber(rescale(rows, low, high, normalisation), delta) * above).sum(-1)

    return by_rows(text, sums).sum(-1) / pairs


def percentile_of(values: Tensor, percentile: float) -> Tensor:
    """The percentile (0–100) over the last dimension, kept, with linear interpolation between ranks."""
    below, share = rank_of(percentile, values.shape[-1])
    low = values.kthvalue(below + 1, dim=-1, keepdim=True).values  # finds one rank in less time than sorting all
    if share == 0:
        return low
    high = values.kthvalue(below + 2, dim=-1, keepdim=True).values
    return torch.lerp(low, high, share)


def rank_of(percentile: float, count: int) -> tuple[int, float]:
    """The rank, from 0, below a percentile of so many numbers, and how far it lies towards the next."""
    rank = percentile / 100 * (count - 1)
    return int(rank), rank % 1


def balance(loss: Tensor, penalty: Tensor, scale: str) -> Tensor:
    """SoC's weight w, which keeps the penalty in proportion to the loss. (Appendix, "Implementation".)

    `ratio` |penalty|/|loss| as printed; `inverse` |loss|/|penalty|, which makes the term λ·|loss| on every data set;
    `none` 1. These are detached, and a vanishing denominator gives 0. `live` is the ratio with gradients running
    through it: the gradient of H + λ(R/H)R is (1 − λR²/H²)∇H + 2λ(R/H)∇R, which reverses the entropy term where
    H < R√λ. Below LEAST_ENTROPY the H in its denominator is a constant.
    """
    if scale == "live":
        return penalty / loss.clamp(min=LEAST_ENTROPY)
    loss, penalty = loss.detach().abs(), penalty.detach().abs()
    if scale == "none":
        return torch.ones_like(loss)
    above, below = (penalty, loss) if scale == "ratio" else (loss, penalty)
    return torch.where(below > 0, above / torch.where(below > 0, below, 1), 0)


def class_logits(images: Tensor, text: Tensor, scale: Tensor | float) -> Tensor:
    """CLIP's logits: scaled cosines of normalised image features (..., V, d) and class features (..., K, d)."""
    return scale * images @ text.mT


def unit(features: Tensor) -> Tensor:
    return F.normalize(features.float(), dim=-1)
