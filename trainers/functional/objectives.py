"""The losses and penalties of the methods.

`text` is the matrix T of L2-normalised class text features, shape (..., K, d); S = T Tᵀ holds the cosines s_ij.
Leading dimensions are episodes: every function works on one episode or on a batch of them.
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
    """Softmax entropy over the last dimension."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def confident_views(logits: Tensor, share: float) -> Tensor:
    """Indices of the `int(V · share)` views of lowest entropy. (TPT, Shu et al., NeurIPS 2022.) The SoC paper prints
    the indicator as H ≥ τ; the lowest entropies are the ones kept."""
    kept = int(logits.shape[-2] * share)
    return entropy(logits).argsort(dim=-1, stable=True)[..., :kept]  # (..., V, K) -> (..., n)


def marginal_entropy(logits: Tensor) -> Tensor:
    """L_TPT: entropy of the class distribution averaged over the n kept views. (..., n, K) -> (...)"""
    log_p = logits.log_softmax(-1)
    mean_log_p = log_p.logsumexp(-2) - torch.log(torch.tensor(float(logits.shape[-2])))
    mean_log_p = mean_log_p.clamp(min=torch.finfo(mean_log_p.dtype).min)
    return -(mean_log_p.exp() * mean_log_p).sum(-1)


def mean_entropy(logits: Tensor) -> Tensor:
    """R-TPT's loss: the mean of the kept views' entropies, not the entropy of their mean. (..., n, K) -> (...)"""
    return entropy(logits).mean(-1)


def leading_range(first: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest and highest logit (..., 1, 1) of the most confident kept view, which is the first of `first` (..., n, K).
    The public code of Penalty and ZS-Norm calls it the zero-shot range; it is not that of the plain view."""
    leader = first[..., :1, :]
    return leader.amin(-1, keepdim=True), leader.amax(-1, keepdim=True)


def range_excess(logits: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Mean distance of logits from a range: mean relu(z − high) + mean relu(low − z). (..., n, K) -> (...) (Penalty:
    Murugesan et al., ECCV 2024.)"""
    return (F.relu(logits - high) + F.relu(low - logits)).mean((-2, -1))


def into_range(logits: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Each view's logits scaled linearly to a range. (ZS-Norm: Murugesan et al., ECCV 2024.) A view whose logits are
    all equal, as with one class, goes to the lower end."""
    bottom, top = logits.amin(-1, keepdim=True), logits.amax(-1, keepdim=True)
    span = top - bottom
    return (logits - bottom) / torch.where(span == 0, 1, span) * (high - low) + low


def dispersion(text: Tensor) -> Tensor:
    """Mean distance of the classes from their centroid, which is not normalised. To be maximised. (C-TPT, Yoon et al.,
    ICLR 2024.)"""
    centroid = text.mean(-2, keepdim=True)
    return (text - centroid).norm(dim=-1).mean(-1)


def orthogonality(text: Tensor) -> Tensor:
    """O-TPT's penalty mean_i ‖H_i S_i − e_i‖ in closed form. (Sharifdeen et al., CVPR 2025.) H_i is the Householder
    reflector that maps row S_i onto ‖S_i‖ e_i, so each term is ‖S_i‖ − 1: the same value and gradient without the K×K×K
    reflectors."""
    return by_rows(text, lambda rows, _: rows.norm(dim=-1)).mean(-1) - 1


def frobenius_orthogonality(text: Tensor) -> Tensor:
    """‖S − I‖², O-TPT's penalty as the SoC paper prints it (Sec. 3.2)."""
    def squares(rows: Tensor, start: int) -> Tensor:
        return (rows - diagonal_like(rows, start)).square().sum(-1)

    return by_rows(text, squares).sum(-1)


def nearest_angle(text: Tensor, limit: float = 0.99999) -> Tensor:
    """Mean angle between each class and the class nearest to it. To be maximised. (A-TPT: Ahamed et al., ICLR 2026.)
    Cosines are clamped to ±limit, where arccos is steep: two classes of the same name add nothing to the gradient."""
    def nearest(rows: Tensor, start: int) -> Tensor:
        others = rows - 2 * rows * diagonal_like(rows, start)  # a class's cosine with itself becomes −1
        return others.max(-1).values  # one of several equal ones gets the gradient

    return by_rows(text, nearest).clamp(-limit, limit).arccos().mean(-1)


def rescale(similarity: Tensor, low: Tensor, high: Tensor, how: str) -> Tensor:
    """s̃ of the SoC paper's Appendix: `minmax` (s−min)/(max−min), `max` s/max, `shift` s−min. A denominator of zero (all
    pairs equal, two classes) is replaced by 1: s̃ is 0, never NaN."""
    if how == "shift":
        return similarity - low
    if how == "max":
        return similarity / torch.where(high == 0, 1, high)
    span = high - low
    return (similarity - low) / torch.where(span == 0, 1, span)


def huber(similarity: Tensor, delta: Tensor | float) -> Tensor:
    """s²/2 up to the margin δ, then the line δ(s − δ/2): the gradient of similar classes is bounded. With m = min(s, δ)
    both pieces are m (s − m/2)."""
    bounded = similarity.clamp(max=delta)
    return bounded * (similarity - bounded / 2)


def semantic_separation(text: Tensor, percentile: float, normalisation: str, statistics: str = "detached") -> Tensor:
    """L_Huber of SoC: mean over pairs i < j of Huber(s̃_ij, δ), δ the given percentile of s̃. (Sec. 4.) The paper does
    not say through which `statistics` gradients flow: none (`detached`), minimum and maximum (`flow`), or δ as well
    (`flow_delta`). A single class has no pairs: 0."""
    if text.shape[-2] < 2:
        return text.sum((-2, -1)) * 0
    if statistics == "detached" and not fits_at_once(text.shape[-2]):
        episodes = text.reshape(-1, *text.shape[-2:])
        each = [separation_by_rows(one, percentile, normalisation) for one in episodes]
        return torch.stack(each).view(text.shape[:-2])
    similarity = pair_similarities(text)
    source = similarity.detach() if statistics == "detached" else similarity
    low, high = source.amin(-1, keepdim=True), source.amax(-1, keepdim=True)
    similarity = rescale(similarity, low, high, normalisation)
    delta = percentile_of(similarity if statistics == "flow_delta" else similarity.detach(), percentile)
    return huber(similarity, delta).mean(-1)


def separation_by_rows(text: Tensor, percentile: float, normalisation: str) -> Tensor:
    """`semantic_separation`, detached, of so many classes (K, d) that not all pairs can be kept for the gradient."""
    cosines = packed_similarities(text)
    low, high = cosines.amin(), cosines.amax()
    delta = percentile_of(rescale(cosines, low, high, normalisation), percentile)
    pairs = len(cosines)
    del cosines

    def sums(rows: Tensor, start: int) -> Tensor:
        return (huber(rescale(rows, low, high, normalisation), delta) * above_diagonal(rows, start)).sum(-1)

    return by_rows(text, sums).sum(-1) / pairs


def percentile_of(values: Tensor, percentile: float) -> Tensor:
    """The percentile (0–100) over the last dimension, kept, with linear interpolation between ranks."""
    rank = percentile / 100 * (values.shape[-1] - 1)
    low = values.kthvalue(int(rank) + 1, dim=-1, keepdim=True).values  # faster than sorting all
    if rank % 1 == 0:
        return low
    high = values.kthvalue(int(rank) + 2, dim=-1, keepdim=True).values
    return torch.lerp(low, high, rank % 1)


def balance(loss: Tensor, penalty: Tensor, scale: str) -> Tensor:
    """SoC's weight w, which keeps the penalty in proportion to the loss. (Appendix, "Implementation".)

    `ratio` |penalty|/|loss| as printed; `inverse` |loss|/|penalty|, which makes the term λ·|loss| on every data set;
    `none` 1. These are detached, and a zero denominator gives 0. `live` is the ratio with gradients flowing through it:
    the gradient of H + λ(R/H)R is (1 − λR²/H²)∇H + 2λ(R/H)∇R, which reverses the entropy term where H < R√λ. Below
    LEAST_ENTROPY the H in its denominator is a constant.
    """
    if scale == "live":
        return penalty / loss.clamp(min=LEAST_ENTROPY)
    loss, penalty = loss.detach().abs(), penalty.detach().abs()
    if scale == "none":
        return torch.ones_like(loss)
    above, below = (penalty, loss) if scale == "ratio" else (loss, penalty)
    return torch.where(below > 0, above / torch.where(below > 0, below, 1), 0)


def class_logits(images: Tensor, text: Tensor, scale: Tensor | float) -> Tensor:
    """CLIP's logits: scaled cosines of normalised image features (..., V, d) and class features (..., K, d). A scale
    (K,) has a value for each class."""
    if isinstance(scale, Tensor) and scale.dim():
        return scale * (images @ text.mT)
    return scale * images @ text.mT


def unit(features: Tensor) -> Tensor:
    """Features in fp32, normalised to length 1."""
    return F.normalize(features.float(), dim=-1)


# The cosines of all pairs of classes. Up to a few thousand classes S is computed at once. Beyond, it is computed in
# blocks of rows that are reduced and dropped, and computed again for the gradient: memory grows with K, not with K².

def rows_at_once(classes: int) -> int:
    return max(1, COSINES_AT_ONCE // classes)


def fits_at_once(classes: int) -> bool:
    return rows_at_once(classes) >= classes


def by_rows(text: Tensor, of_rows: Callable[[Tensor, int], Tensor]) -> Tensor:
    """One number per class, (..., K), by a function of a block of rows of S (..., rows, K) and its first row."""
    classes = text.shape[-2]
    if fits_at_once(classes):
        return of_rows(text @ text.mT, 0)

    def block(text: Tensor, start: int, stop: int) -> Tensor:
        return of_rows(text[..., start:stop, :] @ text.mT, start)

    size = rows_at_once(classes)
    return torch.cat([
        checkpoint(block, text, start, min(start + size, classes), use_reentrant=False)
        for start in range(0, classes, size)
    ], dim=-1)


def diagonal_like(rows: Tensor, start: int) -> Tensor:
    """The same rows of the identity matrix, for a block of rows (..., rows, K)."""
    identity = torch.zeros_like(rows)
    identity.diagonal(start, -2, -1).fill_(1)
    return identity


def above_diagonal(rows: Tensor, start: int) -> Tensor:
    """Which entries of a block of rows (rows, K) are pairs i < j."""
    count, classes = rows.shape
    own = torch.arange(start, start + count, device=rows.device)
    return torch.arange(classes, device=rows.device) > own[:, None]


def pair_similarities(text: Tensor) -> Tensor:
    """The cosines s_ij of all pairs i < j. (..., K, d) -> (..., K(K−1)/2)"""
    classes = text.shape[-2]
    rows, columns = torch.triu_indices(classes, classes, offset=1, device=text.device)
    return (text @ text.mT).flatten(-2).index_select(-1, rows * classes + columns)


@torch.no_grad()
def packed_similarities(text: Tensor) -> Tensor:
    """The same numbers in the same order for one episode (K, d), without gradients, and without K² numbers at once."""
    size = rows_at_once(len(text))
    blocks = ((start, text[start : start + size] @ text.mT) for start in range(0, len(text), size))
    return torch.cat([block[above_diagonal(block, start)] for start, block in blocks])
