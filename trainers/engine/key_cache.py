"""A small memory of images that an online method has met: the surest few of each predicted class."""
from __future__ import annotations

import torch
from torch import Tensor


class KeyCache:
    """At most `capacity` image features a class, with their entropies, infinite for empty places, and what each speaks
    for: its own class, or any it is given with where `marked`."""

    def __init__(self, text: Tensor, capacity: int, marked: bool = False) -> None:
        classes, features = text.shape
        self.keys = text.new_zeros(classes, capacity, features)
        self.entropy = text.new_full((classes, capacity), torch.inf)
        self.marks = text.new_zeros(classes, capacity, classes, dtype=torch.bool) if marked else None

    def offer(self, feature: Tensor, entropy: Tensor, label: int, marks: Tensor | None = None) -> None:
        """Takes an image in if there is room or its class holds a less certain one."""
        place = int(self.entropy[label].argmax())
        if entropy < self.entropy[label, place]:
            self.keys[label, place], self.entropy[label, place] = feature, entropy
            if marks is not None:
                self.marks[label, place] = marks

    def votes(self, feature: Tensor, sharpness: float) -> Tensor:
        """Each class's sum (K,) of e^{−β(1−cos)} over the kept images that speak for it."""
        near = (-sharpness * (1 - self.keys @ feature)).exp()
        near = torch.where(self.entropy.isfinite(), near, 0)  # (K, capacity)
        return near.sum(-1) if self.marks is None else near.flatten() @ self.marks.flatten(0, 1).to(near.dtype)

    def tensors(self) -> dict[str, Tensor]:
        """All that it holds, by name."""
        return {name: held for name, held in vars(self).items() if held is not None}
