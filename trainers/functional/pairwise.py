"""The cosines of all pairs of classes, a block of rows at a time: memory grows with K, not with K².

Up to a few thousand classes one block holds all. Beyond, a block's cosines are computed, summed up and thrown away, and
computed again when gradients are wanted.
"""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

COSINES_AT_ONCE = 1 << 24  # 64 MB in fp32, a few times that with what is made of them


def rows_at_once(classes: int) -> int:
    return max(1, COSINES_AT_ONCE // classes)


def fits_at_once(classes: int) -> bool:
    return rows_at_once(classes) >= classes


def by_rows(text: Tensor, of_rows: Callable[[Tensor, int], Tensor]) -> Tensor:
    """One number for each class, (..., K), by a function of some rows of S = T Tᵀ (..., rows, K) and of the first one's
    place."""
    classes = text.shape[-2]
    if fits_at_once(classes):
        return of_rows(text @ text.mT, 0)

    def block(all_of_them: Tensor, start: int, stop: int) -> Tensor:
        return of_rows(all_of_them[..., start:stop, :] @ all_of_them.mT, start)

    size = rows_at_once(classes)
    return torch.cat([
        checkpoint(block, text, start, min(start + size, classes), use_reentrant=False)
        for start in range(0, classes, size)
    ], dim=-1)


def above_diagonal(rows: int, classes: int, start: int, device: torch.device) -> Tensor:
    """Which entries of a block of rows are pairs i < j. (rows, K)"""
    own = torch.arange(start, start + rows, device=device)
    return torch.arange(classes, device=device) > own[:, None]


def pair_similarities(text: Tensor) -> Tensor:
    """The cosines s_ij of all pairs i < j. (..., K, d) -> (..., K(K−1)/2)"""
    classes = text.shape[-2]
    rows, columns = torch.triu_indices(classes, classes, offset=1, device=text.device)
    return (text @ text.mT).flatten(-2).index_select(-1, rows * classes + columns)


@torch.no_grad()
def packed_similarities(text: Tensor) -> Tensor:
    """The same numbers in the same order for one episode (K, d), without gradients, and without K² numbers at once."""
    classes, size = len(text), rows_at_once(len(text))
    packed = torch.empty(classes * (classes - 1) // 2, dtype=text.dtype, device=text.device)
    filled = 0
    for start in range(0, classes, size):
        block = text[start : start + size] @ text.mT
        some = block[above_diagonal(len(block), classes, start, text.device)]
        packed[filled : filled + len(some)] = some
        filled += len(some)
    return packed


def pairs_at(text: Tensor, places: Tensor) -> Tensor:
    """The cosines, with gradients, of pairs given by their places (n,) in the packed order."""
    classes = len(text)
    own = torch.arange(classes, device=text.device)
    ends = (own + 1) * (classes - 1) - own * (own + 1) // 2  # pairs up to and with each row
    row = torch.searchsorted(ends, places, right=True)
    before = row * (classes - 1) - row * (row - 1) // 2  # pairs in the rows before
    column = places - before + row + 1
    return (text[row] * text[column]).sum(-1)
