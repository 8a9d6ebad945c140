"""Where the class name stands among the tokens of the context: CoOp's CLASS_TOKEN_POSITION.

Towers lay out a prompt as `[start][context][name][.][end]`, which shares its beginning with all other classes. With the
name in the middle or in front it shares nearly nothing, so each class's prompt is laid out whole and its tokens put
into another order.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

END, MIDDLE = "end", "middle"  # the third is front


@dataclass(frozen=True)
class Placement:
    """The order of the tokens of each class's prompt, for a name in the middle or in front."""

    position: str
    names: tuple[int, ...]  # tokens of each class's name, the full stop not counted

    def of_classes(self, classes: Sequence[int]) -> Placement:
        """The same for some of the classes."""
        return Placement(self.position, tuple(self.names[k] for k in classes))

    def order(self, start: int, n_ctx: int, length: int) -> Tensor:
        """(K, length): which token of `[start][context][name][rest]` stands at each place of a class's prompt."""
        before = n_ctx // 2 if self.position == MIDDLE else 0  # context tokens that the name follows
        cut, own = start + before, start + n_ctx
        return torch.tensor([
            [*range(cut), *range(own, own + name), *range(cut, own), *range(own + name, length)] for name in self.names
        ])


def arranged(whole: Tensor, order: Tensor) -> Tensor:
    """Tokens (..., K, length, width), or ids (K, length), each class's in its order."""
    order = order.to(whole.device)
    rows = torch.arange(len(order), device=whole.device)[:, None]
    return whole[rows, order] if whole.dim() == 2 else whole[..., rows, order, :]
