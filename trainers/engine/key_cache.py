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

    def offer(
        self, feature: Tensor, entropy: Tensor, label: Tensor, wanted: Tensor, marks: Tensor | None = None,
    ) -> None:
        """Takes an image in if it is wanted and there is room, or its class holds a less certain one. Nothing waits for
        the device: where it is not taken in, what is there is written again."""
        least, place = self.entropy.index_select(0, label[None])[0].max(0)
        taken = wanted & (entropy < least)
        at = label * self.entropy.shape[1] + place
        for held, new in ((self.keys, feature), (self.entropy, entropy), (self.marks, marks)):
            if held is not None:
                places = held.view(-1, *held.shape[2:])  # (K · capacity, ...), the same memory
                places.index_copy_(0, at[None], torch.where(taken, new, places.index_select(0, at[None])))

    def votes(self, feature: Tensor, sharpness: float) -> Tensor:
        """Each class's sum (K,) of e^{−β(1−cos)} over the kept images that speak for it."""
        near = (-sharpness * (1 - self.keys @ feature)).exp()
        near = torch.where(self.entropy.isfinite(), near, 0)  # (K, capacity)
        return near.sum(-1) if self.marks is None else near.flatten() @ self.marks.flatten(0, 1).to(near.dtype)

    def tensors(self) -> dict[str, Tensor]:
        """All that it holds, by name."""
        return {name: held for name, held in vars(self).items() if held is not None}
