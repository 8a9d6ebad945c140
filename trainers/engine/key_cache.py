"""A small memory of images that an online method has met: the surest few of each predicted class."""
from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


class KeyCache:
    """At most `capacity` image features a class, with their entropies. Empty places have an infinite one."""

    def __init__(self, classes: int, capacity: int, features: int, device: torch.device) -> None:
        self.keys = torch.zeros(classes, capacity, features, device=device)
        self.entropy = torch.full((classes, capacity), torch.inf, device=device)

    def offer(self, feature: Tensor, entropy: Tensor, label: int) -> int | None:
        """Takes an image in if there is room or its class holds a less certain one; says in which place."""
        place = int(self.entropy[label].argmax())
        if not entropy < self.entropy[label, place]:
            return None
        self.keys[label, place], self.entropy[label, place] = feature, entropy
        return place

    def affinity(self, feature: Tensor, sharpness: float) -> Tensor:
        """e^{−β(1−cos)} of an image with every place (K, capacity); 0 for empty ones."""
        near = (-sharpness * (1 - self.keys @ feature)).exp()
        return torch.where(self.entropy.isfinite(), near, 0)

    def state(self) -> dict[str, np.ndarray]:
        return {"keys": self.keys.cpu().numpy().copy(), "entropy": self.entropy.cpu().numpy().copy()}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        for name in ("keys", "entropy"):
            getattr(self, name).copy_(torch.from_numpy(np.array(state[name])))
