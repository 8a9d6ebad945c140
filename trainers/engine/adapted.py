"""What adapting to some images leaves behind."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ...datasets.utils.errors import DataError


@dataclass
class Adapted:
    """The predictions for B images. Softmax of `logits` is the confidence that the method states."""

    logits: Tensor  # (B, K) with the adapted prompt
    zero_shot_logits: Tensor  # (B, K) of the plain view with the initial prompt
    ctx: Tensor | None = None  # (B, n_ctx, width), the adapted contexts, where a method has some
    columns: dict[str, Tensor] = field(default_factory=dict)  # (B, ...) each: what else is kept of every image

    @property
    def loss(self) -> Tensor | None:
        """(B,) before the last step; NaN where no step was taken."""
        return self.columns.get("loss")

    @property
    def penalty(self) -> Tensor | None:
        """(B,) before the last step; 0 where the method has no regulariser, NaN without a step."""
        return self.columns.get("penalty")

    @property
    def flagged(self) -> Tensor | None:
        """(B,) whether `logits` are the zero-shot ones because a number was lost."""
        return self.columns.get("flagged")

    @classmethod
    def join(cls, parts: Sequence[Adapted]) -> Adapted:
        return cls(
            torch.cat([part.logits for part in parts]), torch.cat([part.zero_shot_logits for part in parts]),
            None if parts[0].ctx is None else torch.cat([part.ctx for part in parts]),
            {name: torch.cat([part.columns[name] for part in parts]) for name in parts[0].columns},
        )

    def checked(self, method: str, images: int, classes: int, names: Sequence[object]) -> Adapted:
        """Refuses what a method must not return, by the method's name: a shape that is not one row an image."""
        for name, tensor in {"logits": self.logits, "zero_shot_logits": self.zero_shot_logits}.items():
            if tuple(tensor.shape) != (images, classes):
                raise DataError(f"{method} returned {name} of shape {tuple(tensor.shape)} for {images} images of "
                                f"{classes} classes, the first of them {names[0]}: mend the method's adapt()")
        for name, column in self.columns.items():
            if len(column) != images:
                raise DataError(f"{method} returned {len(column)} rows of '{name}' for {images} images, the first of "
                                f"them {names[0]}: mend the method's adapt()")
        return self

    def with_fallback(self) -> Adapted:
        """Where a number is lost, the image keeps its zero-shot prediction and is flagged."""
        flagged = ~self.logits.isfinite().all(-1)
        logits = torch.where(flagged[:, None], self.zero_shot_logits, self.logits)
        return replace(self, logits=logits, columns={**self.columns, "flagged": flagged})


def refuse_lost(logits: np.ndarray, names: Sequence[object]) -> None:
    """Refuses images whose zero-shot prediction (B, K) is no number either. `names` tells them apart. It looks at
    numbers, so they must be at hand."""
    lost = ~np.isfinite(logits).all(-1)
    if lost.any():
        raise DataError(f"CLIP's features of {names[int(lost.argmax())]} are not finite: try MODEL.PREC fp32")
