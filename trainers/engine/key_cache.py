"""A memory of image features for online methods: the most certain few of each predicted class."""
from __future__ import annotations

import torch
from torch import Tensor


class KeyCache:
    """At most `capacity` image features per class, with their entropies (infinite in empty slots),
    or with any other numbers of which the lowest are kept. With `masks`, each feature also has the
    classes that it counts for; otherwise it counts for its predicted class.
    """

    def __init__(self, text: Tensor, capacity: int, masks: bool = False) -> None:
        classes, features = text.shape
        self.keys = text.new_zeros(classes, capacity, features)
        self.entropy = text.new_full((classes, capacity), torch.inf)
        self.masks = text.new_zeros(classes, capacity, classes, dtype=torch.bool) if masks else None

    def offer(
        self,
        feature: Tensor,
        entropy: Tensor,
        label: Tensor,
        wanted: Tensor | bool = True,
        mask: Tensor | None = None,
    ) -> None:
        """Stores an image if it is wanted and its class has an empty slot or a less certain image.

        There is no branch on device values: an image that is not stored rewrites what is there.
        """
        least, slot = self.entropy.index_select(0, label[None])[0].max(0)
        taken = (entropy < least) & wanted
        at = (label * self.entropy.shape[1] + slot)[None]
        for stored, new in ((self.keys, feature), (self.entropy, entropy), (self.masks, mask)):
            if stored is not None and new is not None:
                slots = stored.view(-1, *stored.shape[2:])  # (K · capacity, ...), the same memory
                slots.index_copy_(0, at, torch.where(taken, new, slots.index_select(0, at)))

    def near(self, feature: Tensor, sharpness: float) -> Tensor:
        """e^{−β(1−cos)} of each stored image, (K, capacity); 0 in empty slots."""
        near = (-sharpness * (1 - self.keys @ feature)).exp()
        return torch.where(self.entropy.isfinite(), near, 0)

    def votes(self, feature: Tensor, sharpness: float) -> Tensor:
        """For each class the sum (K,) of e^{−β(1−cos)} over the stored images that count for it."""
        near = self.near(feature, sharpness)
        return (
            near.sum(-1)
            if self.masks is None
            else near.flatten() @ self.masks.flatten(0, 1).to(near.dtype)
        )

    def copy(self, capacity: int) -> KeyCache:
        """A copy without masks, with at least as many slots."""
        copy = KeyCache(self.keys[:, 0], capacity)
        copy.keys[:, : self.keys.shape[1]] = self.keys
        copy.entropy[:, : self.keys.shape[1]] = self.entropy
        return copy

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """All that it stores, by name."""
        return {
            f"{prefix}{name}": stored for name, stored in vars(self).items() if stored is not None
        }
