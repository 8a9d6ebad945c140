"""The losses and penalties of the methods.

`text` is the matrix T of L2-normalised class text features, shape (..., K, d); S = T Tᵀ holds the
cosines s_ij. Leading dimensions are episodes: every function works on one episode or on a batch.
Logits z are (..., n, K), of n views and K classes, and p = softmax(z). Entropies are in nats.
"""
from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LEAST_ENTROPY = 1e-3  # nats; the lower bound of H in the denominator of SoC's `live` scale
COSINES_AT_ONCE = 1 << 24  # 64 MB in fp32, a few times that with intermediate results


def entropy(logits: Tensor) -> Tensor:
    """Softmax entropy H = −Σ_k p_k log p_k over the last dimension.

    Example:
        >>> round(entropy(torch.zeros(2)).item(), 3)     # log 2
        0.693
    """
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def confident_views(logits: Tensor, share: float) -> Tensor:
    """Indices of the `int(V · share)` views of lowest entropy (TPT: Shu et al., NeurIPS 2022).

    The SoC paper prints the indicator as H ≥ τ; the lowest entropies are the ones that count.

    Args:
        logits: (..., V, K).
        share: Share of the views to select, above 0 and at most 1.

    Returns:
        (..., n), the most confident view first.

    Example:
        >>> confident_views(torch.tensor([[0.0, 0.0], [3.0, 0.0], [1.0, 0.0]]), 0.7).tolist()
        [1, 2]
    """
    count = int(logits.shape[-2] * share)
    return entropy(logits).argsort(dim=-1, stable=True)[..., :count]


def marginal_entropy(logits: Tensor) -> Tensor:
    """L_TPT = H(p̄), p̄ the mean of p over the n selected views: (..., n, K) -> (...).

    Shu et al., NeurIPS 2022. Probabilities are averaged by their logarithms, so that saturated ones
    stay finite.

    Example:
        >>> views = torch.tensor([[9.0, 0.0], [0.0, 9.0]])     # both are sure, of different classes
        >>> round(marginal_entropy(views).item(), 3), round(mean_entropy(views).item(), 3)
        (0.693, 0.001)
    """
    log_p = logits.log_softmax(-1)
    mean_log_p = log_p.logsumexp(-2) - torch.log(torch.tensor(float(logits.shape[-2])))
    # A class of probability 0 in all views has −inf, and 0 · (−inf) would be NaN.
    mean_log_p = mean_log_p.clamp(min=torch.finfo(mean_log_p.dtype).min)
    return -(mean_log_p.exp() * mean_log_p).sum(-1)


def mean_entropy(logits: Tensor) -> Tensor:
    """R-TPT's loss (1 / n) Σ_v H(p_v): (..., n, K) -> (...).

    It is the mean of the views' entropies; `marginal_entropy` is the entropy of their mean.

    Example:
        >>> views = torch.tensor([[0.0, 0.0], [9.0, 9.0]])     # both are undecided: log 2
        >>> round(mean_entropy(views).item(), 3)
        0.693
    """
    return entropy(logits).mean(-1)


def leading_range(first: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest and highest logit of the most confident view.

    The public code of Penalty and ZS-Norm calls it the zero-shot range; it is not that of the plain
    view.

    Args:
        first: Logits of views, the most confident one first, (..., n, K).

    Returns:
        The lowest and the highest logit, (..., 1, 1) each.

    Example:
        >>> low, high = leading_range(torch.tensor([[5.0, 1.0, 2.0], [3.0, 0.0, 3.0]]))
        >>> low.item(), high.item()
        (1.0, 5.0)
    """
    leader = first[..., :1, :]
    return leader.amin(-1, keepdim=True), leader.amax(-1, keepdim=True)


def range_excess(logits: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Mean distance of logits from a range: mean of relu(z − high) + relu(low − z).

    (..., n, K) -> (...). Penalty: Murugesan et al., ECCV 2024.

    Args:
        logits: (..., n, K).
        low: Lower end, (..., 1, 1).
        high: Upper end, (..., 1, 1).

    Example:
        >>> logits = torch.tensor([[5.0, 1.0, -1.0, 2.0]])
        >>> range_excess(logits, torch.zeros(1, 1), 3 * torch.ones(1, 1)).item()
        0.75
    """
    return (F.relu(logits - high) + F.relu(low - logits)).mean((-2, -1))


def into_range(logits: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Each view's logits scaled to a range: (z − min z) / (max z − min z) · (high − low) + low.

    ZS-Norm: Murugesan et al., ECCV 2024. A view whose logits are all equal, as with one class, goes
    to the lower end.

    Args:
        logits: (..., n, K).
        low: Lower end, (..., 1, 1).
        high: Upper end, (..., 1, 1).

    Example:
        >>> logits = torch.tensor([[2.0, 4.0, 3.0]])
        >>> into_range(logits, torch.tensor([[0.0]]), torch.tensor([[1.0]])).tolist()
        [[0.0, 1.0, 0.5]]
    """
    bottom = logits.amin(-1, keepdim=True)
    top = logits.amax(-1, keepdim=True)
    span = top - bottom
    return (logits - bottom) / torch.where(span == 0, 1, span) * (high - low) + low


def dispersion(text: Tensor) -> Tensor:
    """(1 / K) Σ_k ‖t_k − t̄‖: mean distance of the classes from their centroid. To be maximised.

    C-TPT: Yoon et al., ICLR 2024. The centroid t̄ = (1 / K) Σ_k t_k is not normalised.

    Example:
        >>> dispersion(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])).item()
        1.0
    """
    centroid = text.mean(-2, keepdim=True)
    return (text - centroid).norm(dim=-1).mean(-1)


def orthogonality(text: Tensor) -> Tensor:
    """O-TPT's penalty (1 / K) Σ_i ‖H_i S_i − e_i‖ in closed form (Sharifdeen et al., CVPR 2025).

    H_i is the Householder reflector that maps row S_i onto ‖S_i‖ e_i, so each term is ‖S_i‖ − 1:
    the same value and gradient without the K × K × K reflectors.

    Example:
        >>> orthogonality(torch.eye(3)).item()     # orthogonal classes
        0.0
    """
    return by_rows(text, lambda rows, _: rows.norm(dim=-1)).mean(-1) - 1


def frobenius_orthogonality(text: Tensor) -> Tensor:
    """‖S − I‖² = Σ_ij (s_ij − [i = j])², O-TPT's penalty as the SoC paper prints it (Sec. 3.2).

    Example:
        >>> text = torch.tensor([[1.0, 0.0], [1.0, 0.0]])  # s_12 = s_21 = 1
        >>> frobenius_orthogonality(text).item()
        2.0
    """
    def squares(rows: Tensor, start: int) -> Tensor:
        return (rows - diagonal_like(rows, start)).square().sum(-1)

    return by_rows(text, squares).sum(-1)


def nearest_angle(text: Tensor, limit: float = 0.99999) -> Tensor:
    """(1 / K) Σ_i arccos max_{j ≠ i} s_ij: mean angle to the nearest class. To be maximised.

    A-TPT: Ahamed et al., ICLR 2026. Cosines are clamped to ±limit, because arccos is steep near ±1:
    two classes of the same name add nothing to the gradient.

    Returns:
        In radians, (...).

    Example:
        >>> round(nearest_angle(torch.eye(2)).item(), 3)     # a right angle
        1.571
    """
    def nearest(rows: Tensor, start: int) -> Tensor:
        # A class's cosine with itself becomes −1
        others = rows - 2 * rows * diagonal_like(rows, start)
        return others.max(-1).values  # one of several equal ones gets the gradient

    return by_rows(text, nearest).clamp(-limit, limit).arccos().mean(-1)


def rescale(similarity: Tensor, low: Tensor, high: Tensor, how: str) -> Tensor:
    """The rescaled cosines s̃ of the SoC paper's Appendix.

    A denominator of zero (all pairs equal, two classes) is replaced by 1: s̃ is 0, never NaN.

    Args:
        similarity: Cosines s of pairs of classes, (..., pairs).
        low: Their minimum, (..., 1).
        high: Their maximum, (..., 1).
        how: `minmax` (s − min) / (max − min), `max` s / max, or `shift` s − min.

    Example:
        >>> similarities = torch.tensor([0.5, 0.75, 1.0])
        >>> rescale(similarities, torch.tensor(0.5), torch.tensor(1.0), "minmax").tolist()
        [0.0, 0.5, 1.0]
    """
    if how == "shift":
        return similarity - low
    if how == "max":
        return similarity / torch.where(high == 0, 1, high)
    span = high - low
    return (similarity - low) / torch.where(span == 0, 1, span)


def huber(similarity: Tensor, delta: Tensor | float) -> Tensor:
    """Huber(s, δ): s² / 2 up to the margin δ, then the line δ (s − δ / 2).

    So the gradient of similar classes is bounded by δ. With m = min(s, δ) both pieces are
    m (s − m / 2).

    Args:
        similarity: Rescaled cosines s, (..., pairs).
        delta: Margin δ, a number or (..., 1).

    Example:
        >>> huber(torch.tensor([0.5, 1.0, 2.0]), 1.0).tolist()
        [0.125, 0.5, 1.5]
    """
    bounded = similarity.clamp(max=delta)
    return bounded * (similarity - bounded / 2)


def semantic_separation(
    text: Tensor, percentile: float, normalisation: str, statistics: str = "detached"
) -> Tensor:
    """L_Huber of SoC: 2 / (K (K − 1)) Σ_{i<j} Huber(s̃_ij, δ), δ the given percentile of s̃ (Sec.
    4).

    Args:
        text: T, (..., K, d). A single class has no pairs: 0.
        percentile: Which percentile of the rescaled cosines, from 0 to 100.
        normalisation: How cosines are rescaled, see `rescale`.
        statistics: Through which of them gradients flow, which the paper does not say: none
            (`detached`), minimum and maximum (`flow`), or δ as well (`flow_delta`).

    Example:
        >>> text = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])     # cosines 0, 0.6 and 0.8
        >>> # Rescaled 0, 0.75 and 1; δ is 0.75.
        >>> round(semantic_separation(text, 50.0, "minmax").item(), 4)
        0.25
    """
    if text.shape[-2] < 2:
        return text.sum((-2, -1)) * 0
    if statistics == "detached" and not fits_at_once(text.shape[-2]):
        # One episode at a time: with so many classes several would not fit into memory.
        episodes = text.reshape(-1, *text.shape[-2:])
        losses = [separation_by_rows(episode, percentile, normalisation) for episode in episodes]
        return torch.stack(losses).view(text.shape[:-2])
    similarity = pair_similarities(text)
    source = similarity.detach() if statistics == "detached" else similarity
    low = source.amin(-1, keepdim=True)
    high = source.amax(-1, keepdim=True)
    similarity = rescale(similarity, low, high, normalisation)
    delta = percentile_of(
        similarity if statistics == "flow_delta" else similarity.detach(), percentile
    )
    return huber(similarity, delta).mean(-1)


def separation_by_rows(text: Tensor, percentile: float, normalisation: str) -> Tensor:
    """`semantic_separation`, detached, of one episode with very many classes.

    Pairs are not stored for the gradient.

    Args:
        text: T, (K, d).
        percentile: Which percentile of the rescaled cosines, from 0 to 100.
        normalisation: How cosines are rescaled, see `rescale`.
    """
    cosines = packed_similarities(text)
    low = cosines.amin()
    high = cosines.amax()
    delta = percentile_of(rescale(cosines, low, high, normalisation), percentile)
    pairs = len(cosines)
    del cosines

    def sums(rows: Tensor, start: int) -> Tensor:
        terms = huber(rescale(rows, low, high, normalisation), delta)
        return (terms * above_diagonal(rows, start)).sum(-1)

    return by_rows(text, sums).sum(-1) / pairs


def percentile_of(values: Tensor, percentile: float) -> Tensor:
    """The percentile (0–100) over the last dimension, with linear interpolation between ranks.

    Returns:
        (..., 1).

    Example:
        >>> percentile_of(torch.tensor([3.0, 1.0, 2.0, 4.0]), 50.0).tolist()
        [2.5]
    """
    rank = percentile / 100 * (values.shape[-1] - 1)
    low = values.kthvalue(int(rank) + 1, dim=-1, keepdim=True).values  # faster than sorting all
    if rank % 1 == 0:
        return low
    high = values.kthvalue(int(rank) + 2, dim=-1, keepdim=True).values
    return torch.lerp(low, high, rank % 1)


def balance(loss: Tensor, penalty: Tensor, scale: str) -> Tensor:
    """SoC's weight w, which keeps the penalty in proportion to the loss.

    Described in the paper's appendix, "Implementation".

    Args:
        loss: H.
        penalty: R.
        scale: `ratio` |R| / |H| as printed; `inverse` |H| / |R|, which makes the term λ |H| on
            every data set; `none` 1. These are detached, and a zero denominator gives 0. `live` is
            the ratio with gradients flowing through it: the gradient of H + λ (R / H) R is
            (1 − λ R² / H²) ∇H + 2 λ (R / H) ∇R, which reverses the entropy term where H < R √λ.
            Below LEAST_ENTROPY the H in its denominator is a constant.

    Example:
        >>> balance(torch.tensor(2.0), torch.tensor(0.5), "inverse").item()
        4.0
    """
    if scale == "live":
        return penalty / loss.clamp(min=LEAST_ENTROPY)
    loss = loss.detach().abs()
    penalty = penalty.detach().abs()
    if scale == "none":
        return torch.ones_like(loss)
    if scale == "ratio":
        above = penalty
        below = loss
    else:
        above = loss
        below = penalty
    return torch.where(below > 0, above / torch.where(below > 0, below, 1), 0)


def class_logits(images: Tensor, text: Tensor, scale: Tensor | float) -> Tensor:
    """CLIP's logits: scale · cosines.

    Args:
        images: Normalised image features, (..., V, d).
        text: Normalised class features, (..., K, d).
        scale: A number, or (K,) with a value for each class.

    Returns:
        (..., V, K).

    Example:
        >>> class_logits(torch.tensor([[1.0, 0.0]]), torch.eye(2), 100.0).tolist()
        [[100.0, 0.0]]
    """
    if isinstance(scale, Tensor) and scale.dim():
        return scale * (images @ text.mT)  # one factor per class: it multiplies columns
    return scale * images @ text.mT  # from left to right, as in CLIP's own code


def unit(features: Tensor) -> Tensor:
    """Features in fp32, normalised to length 1: x / ‖x‖.

    Example:
        >>> [round(value, 3) for value in unit(torch.tensor([3.0, 4.0])).tolist()]
        [0.6, 0.8]
    """
    return F.normalize(features.float(), dim=-1)


# The cosines of all pairs of classes. Up to a few thousand classes S is computed at once. Beyond,
# it is computed in blocks of rows that are reduced and dropped, and computed again for the
# gradient: memory grows with K, not with K².

def rows_at_once(classes: int) -> int:
    """How many rows of S are computed together."""
    return max(1, COSINES_AT_ONCE // classes)


def fits_at_once(classes: int) -> bool:
    """Whether all rows of S are computed together."""
    return rows_at_once(classes) >= classes


def by_rows(text: Tensor, of_rows: Callable[[Tensor, int], Tensor]) -> Tensor:
    """One number per class, (..., K), from blocks of rows of S.

    Args:
        text: T, (..., K, d).
        of_rows: A function of a block (..., rows, K) and the number of its first row; it returns
            (..., rows).
    """
    classes = text.shape[-2]
    if fits_at_once(classes):
        return of_rows(text @ text.mT, 0)

    def block(text: Tensor, start: int, stop: int) -> Tensor:
        return of_rows(text[..., start:stop, :] @ text.mT, start)

    size = rows_at_once(classes)
    parts = []
    for start in range(0, classes, size):
        # Autograd keeps no block: `checkpoint` computes it again in the backward pass.
        parts.append(
            checkpoint(block, text, start, min(start + size, classes), use_reentrant=False)
        )
    return torch.cat(parts, dim=-1)


def diagonal_like(rows: Tensor, start: int) -> Tensor:
    """The rows of the identity matrix that belong to a block of rows of S.

    Args:
        rows: The block, (..., rows, K).
        start: Number of its first row.

    Returns:
        1 on the diagonal of S and 0 elsewhere, (..., rows, K).
    """
    identity = torch.zeros_like(rows)
    identity.diagonal(start, -2, -1).fill_(1)
    return identity


def above_diagonal(rows: Tensor, start: int) -> Tensor:
    """Which entries of a block of rows of S are pairs i < j.

    Args:
        rows: The block, (rows, K).
        start: Number of its first row.
    """
    count, classes = rows.shape
    first = torch.arange(start, start + count, device=rows.device)
    second = torch.arange(classes, device=rows.device)
    return second > first[:, None]


def pair_similarities(text: Tensor) -> Tensor:
    """The cosines s_ij of all pairs i < j: (..., K, d) -> (..., K (K − 1) / 2).

    Example:
        >>> pair_similarities(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])).tolist()
        [0.0, 1.0, 0.0]
    """
    classes = text.shape[-2]
    rows, columns = torch.triu_indices(classes, classes, offset=1, device=text.device)
    return (text @ text.mT).flatten(-2).index_select(-1, rows * classes + columns)


@torch.no_grad()
def packed_similarities(text: Tensor) -> Tensor:
    """`pair_similarities` of one episode (K, d), without gradients, and without K² numbers at once.
    """
    size = rows_at_once(len(text))
    parts = []
    for start in range(0, len(text), size):
        block = text[start : start + size] @ text.mT
        parts.append(block[above_diagonal(block, start)])
    return torch.cat(parts)
