"""Aggregation of many views into one prediction, without gradients.

`views` are unit view features (B, V, d), `logits` those of every view (B, V, K); view 0 is the
plain one.
"""
from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .objectives import entropy, unit

NO_VOTE = 1e-12  # share of a class without votes, so that its logarithm is finite
TIE = 1e-3  # votes that differ by less are equal, such as 3 and nine thirds
LEAST_DISTANCE = 1e-12  # squared distances below it are rounding errors
EXCLUDED = -1e4  # cosine of a view that is not a neighbour


def vote_shares(logits: Tensor, share: float) -> Tensor:
    """Each class's share of the votes of the most confident views.

    A view votes for its best class; classes with exactly equal logits, such as two of the same
    name, share the vote. A tie is broken by the other views in order of entropy: the first whose
    best class is among the tied ones adds a vote for it, which counts in the total. If there is no
    such view, the public code returns some class, even one outside the tie; here the voting views
    then break the tie in the same way.

    Args:
        logits: Logits of all views, (B, V, K).
        share: Share of the views that vote, from 0 to 1: the `int(V · share)` of lowest entropy.

    Returns:
        Fractions that sum to 1 over the classes, (B, K).

    Example:
        >>> views = torch.tensor([[[9.0, 0.0], [8.0, 0.0], [0.0, 7.0], [0.1, 0.0]]])
        >>> [round(share, 2) for share in vote_shares(views, 0.75)[0].tolist()]
        [0.67, 0.33]
    """
    count, classes = logits.shape[-2:]
    voters = int(count * share)
    order = entropy(logits).argsort(dim=-1, stable=True)  # (B, V)
    best = (logits == logits.amax(-1, keepdim=True)).to(logits.dtype)
    ballots = best / best.sum(-1, keepdim=True)
    votes = ballots.take_along_dim(order[:, :voters, None], dim=1).sum(1)  # (B, K)

    # A tie is broken by the first view whose best class is tied. The views that have not voted come
    # first, then the voters, both in order of entropy. All rows are computed alike, and the extra
    # vote of a row without a tie is multiplied by 0: no image depends on its batch.
    tied = votes > votes.amax(-1, keepdim=True) - TIE
    decided = (tied.sum(-1, keepdim=True) == 1).to(votes.dtype)
    others_first = order.roll(-voters, dims=-1)  # (B, V)
    breakers = best.argmax(-1).take_along_dim(others_first, dim=-1)
    first = tied.take_along_dim(breakers, dim=-1).int().argmax(-1, keepdim=True)
    extra = F.one_hot(breakers.take_along_dim(first, dim=-1)[:, 0], classes) * (1 - decided)
    return (votes + extra) / (voters + 1 - decided)


def reliability(
    views: Tensor, neighbours: int, temperature: float, by_index: bool = True
) -> Tensor:
    """R-TPT's weights (B, V): softmax of each view's mean cosine with its nearest other views.

    Args:
        views: (B, V, d).
        neighbours: How many of the nearest views count.
        temperature: Divides the mean cosines.
        by_index: Whether a view is excluded from its own neighbours by its index. False: by a
            cosine of at least 1, as in the public code. That depends on rounding: about every
            second view counts as its own neighbour there.

    Example:
        >>> views = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])  # the last: an outlier
        >>> [round(weight, 2) for weight in reliability(views, 1, 0.5)[0].tolist()]
        [0.47, 0.47, 0.06]
    """
    cosines = views @ views.mT
    if by_index:
        itself = torch.eye(views.shape[-2], dtype=torch.bool, device=views.device)
    else:
        itself = cosines >= 1
    cosines = cosines.masked_fill(itself, EXCLUDED)
    nearest = cosines.topk(max(1, min(neighbours, views.shape[-2] - 1)), dim=-1).values
    return (nearest.mean(-1) / temperature).softmax(-1)


def view_mode(
    views: Tensor, logits: Tensor, near: float = 0.3, affinity: float = 4.0,
    smoothness: float = 0.2, rounds: int = 5,
) -> Tensor:
    """MTA's robust mode (B, d) of the views, of unit length (Zanella and Ben Ayed, CVPR 2024).

    Mean shift from the plain view, which also estimates an inlierness score y of each view.

    Args:
        views: (B, V, d).
        logits: (B, V, K).
        near: A view's bandwidth is half its mean squared distance to this share of the others.
        affinity: How much views of similar predictions support each other's score.
        smoothness: Temperature of the scores.
        rounds: Number of rounds in which scores and mode are updated in turn; also the largest
            number of steps of each update.
    """
    count = views.shape[1]
    if count == 1:
        return views[:, 0]
    distances = squared_distances(views, views).sort(dim=-1).values[..., 1:]
    bandwidth = (
        distances[..., : max(1, int(near * (count - 1)))].mean(-1).clamp(min=LEAST_DISTANCE) / 2
    )  # (B, V)
    p = logits.softmax(-1)
    similarity = p @ p.mT  # (B, V, V)
    inlier = torch.full_like(bandwidth, 1 / count)
    mode = views[:, 0]

    def density(mode: Tensor) -> Tensor:
        """Gaussian kernel between the mode and each view, (B, V)."""
        return (-squared_distances(views, mode[:, None])[..., 0] / (2 * bandwidth)).exp()

    def next_mode(mode: Tensor) -> Tensor:
        """One mean-shift step: the mean of the views, weighted by kernel and score."""
        weight = density(mode) * inlier
        return unit((weight / weight.sum(-1, keepdim=True))[:, None] @ views)[:, 0]

    def next_scores(y: Tensor) -> Tensor:
        """One step of the scores, for the kernel `dense` of the current mode."""
        support = (similarity @ y[..., None])[..., 0]
        return ((dense + affinity * support) / smoothness).softmax(-1)

    for _ in range(rounds):
        dense = density(mode)
        inlier = iterate(next_scores, inlier, rounds)
        mode = iterate(next_mode, mode, rounds)
    return mode


def iterate(
    step: Callable[[Tensor], Tensor], x: Tensor, max_steps: int, tolerance: float = 1e-6
) -> Tensor:
    """Iterates x ← step(x) until each row has converged.

    Each row of x stops separately, when a step moves it by less than the tolerance, so that no
    image depends on the others of its batch.

    Args:
        step: A function from (B, n) to (B, n).
        x: Initial values, (B, n).
        max_steps: Number of steps after which every row stops.
        tolerance: Euclidean length of a step below which a row stops.

    Returns:
        The last x, (B, n).
    """
    moving = torch.ones_like(x[:, :1], dtype=torch.bool)
    for _ in range(max_steps):
        next_x = torch.where(moving, step(x), x)
        moving = moving & ((next_x - x).norm(dim=-1, keepdim=True) >= tolerance)
        x = next_x
    return x


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Squared Euclidean distances of all pairs of rows.

    They are computed from differences: matrix products lose the precision of small distances.

    Args:
        a: (..., n, d).
        b: (..., m, d).

    Returns:
        (..., n, m).
    """
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()
