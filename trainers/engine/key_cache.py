"""A memory of image features for online methods: the most certain few of each predicted class."""
from __future__ import annotations

import torch
from torch import Tensor


class KeyCache:
    """Stores image features by predicted class: for each class those of lowest entropy.

    A method may give other numbers than entropies: features of the lowest numbers stay. The
    tensors have a fixed size, so that the state of a run can be saved and restored.

    Attributes:
        keys: Image features, (K, capacity, d); zeros in empty slots.
        entropy: Entropies of their predictions, (K, capacity); infinite in empty slots.
        masks: The classes that each image counts for, (K, capacity, K); None = its predicted class.
    """

    def __init__(self, text: Tensor, capacity: int, masks: bool = False) -> None:
        """
        Args:
            text: Class features (K, d), for their shape, type and device.
            capacity: Number of slots per class.
            masks: Whether images come with the classes that they count for.
        """
        classes, features = text.shape
        self.keys = text.new_zeros(classes, capacity, features)
        self.entropy = text.new_full((classes, capacity), torch.inf)
        self.masks: Tensor | None = None
        if masks:
            self.masks = text.new_zeros(classes, capacity, classes, dtype=torch.bool)

    def offer(
        self,
        feature: Tensor,
        entropy: Tensor,
        label: Tensor,
        wanted: Tensor | bool = True,
        mask: Tensor | None = None,
    ) -> None:
        """Stores an image if it is wanted and its class has an empty slot or a less certain image.

        An `if` on values of a device would make the host wait for it at every image. So there is
        none: an image that is not stored writes again what is there.

        Args:
            feature: Feature of the image, (d,).
            entropy: Entropy of its prediction, or another number of which the lowest stay, ().
            label: Predicted class of the image, ().
            wanted: Whether the image may be stored, ().
            mask: The classes that the image counts for, (K,).
        """
        # The slot to fill: an empty one, whose entropy is infinite, or that of the least certain.
        highest, slot = self.entropy.index_select(0, label[None])[0].max(0)
        is_stored = (entropy < highest) & wanted
        position = (label * self.entropy.shape[1] + slot)[None]  # among all K · capacity slots
        for stored, new in ((self.keys, feature), (self.entropy, entropy), (self.masks, mask)):
            if stored is not None and new is not None:
                slots = stored.view(-1, *stored.shape[2:])  # (K · capacity, ...), the same memory
                before = slots.index_select(0, position)
                slots.index_copy_(0, position, torch.where(is_stored, new, before))

    def near(self, feature: Tensor, sharpness: float) -> Tensor:
        """Returns e^{−β(1−cos)} of each stored image, (K, capacity); 0 in empty slots.

        Args:
            feature: Unit feature of the image to which the stored ones are compared, (d,).
            sharpness: β.
        """
        near = (-sharpness * (1 - self.keys @ feature)).exp()
        return torch.where(self.entropy.isfinite(), near, 0)

    def votes(self, feature: Tensor, sharpness: float) -> Tensor:
        """Returns for each class the sum (K,) of e^{−β(1−cos)} over the images that count for it.

        Args:
            feature: Unit feature of the image to which the stored ones are compared, (d,).
            sharpness: β.
        """
        near = self.near(feature, sharpness)
        if self.masks is None:
            return near.sum(-1)
        return near.flatten() @ self.masks.flatten(0, 1).to(near.dtype)

    def copy(self, capacity: int) -> KeyCache:
        """Returns a copy without masks.

        Args:
            capacity: Number of slots per class of the copy, at least as many as here.
        """
        copy = KeyCache(self.keys[:, 0], capacity)
        copy.keys[:, : self.keys.shape[1]] = self.keys
        copy.entropy[:, : self.keys.shape[1]] = self.entropy
        return copy

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """Returns all tensors by name, for `state_tensors` of a method.

        Args:
            prefix: The beginning of the names, which differs between the caches of one method.
        """
        tensors = {f"{prefix}keys": self.keys, f"{prefix}entropy": self.entropy}
        if self.masks is not None:
            tensors[f"{prefix}masks"] = self.masks
        return tensors
