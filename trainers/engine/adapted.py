"""Holds a method's predictions for a batch of images, and checks them."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ...datasets.utils.errors import DataError
from ..functional.posthoc import StrongViews


@dataclass
class Adapted:
    """The predictions for B images.

    Softmax of `logits` is the confidence that the method states.

    Attributes:
        logits: Logits after adaptation, (B, K).
        zero_shot_logits: Logits of the plain view with the initial prompt, (B, K).
        ctx: The adapted contexts, (B, n_ctx, width); None for methods that do not tune the context.
        columns: Other values that are stored per image, (B, ...) each, by name in predictions.npz.
        strong_views: The logits of which the columns of CoTS, a temperature per image, are
            computed. That is done for many images at once, so a batch only passes the logits on;
            None if the columns are computed already, or not wanted.
    """

    logits: Tensor
    zero_shot_logits: Tensor
    ctx: Tensor | None = None
    columns: dict[str, Tensor] = field(default_factory=dict)
    strong_views: StrongViews | None = None

    @property
    def loss(self) -> Tensor | None:
        """The loss before the last step, (B,); NaN where no step was taken."""
        return self.columns.get("loss")

    @property
    def penalty(self) -> Tensor | None:
        """The penalty before the last step, (B,); 0 without a regulariser, NaN without a step."""
        return self.columns.get("penalty")

    @property
    def flagged(self) -> Tensor | None:
        """Whether an image has its zero-shot logits because adaptation gave a number that is not
        finite, (B,).
        """
        return self.columns.get("flagged")

    @classmethod
    def join(cls, parts: Sequence[Adapted]) -> Adapted:
        """Joins the predictions of several batches into one."""
        if len(parts) == 1:
            return parts[0]
        logits = torch.cat([part.logits for part in parts])
        zero_shot_logits = torch.cat([part.zero_shot_logits for part in parts])
        columns = {}
        for name in parts[0].columns:
            columns[name] = torch.cat([part.columns[name] for part in parts])
        joined = cls(logits, zero_shot_logits, columns=columns)

        contexts = [part.ctx for part in parts if part.ctx is not None]
        if contexts:
            joined.ctx = torch.cat(contexts)
        strong_views = [part.strong_views for part in parts if part.strong_views is not None]
        if strong_views:
            joined.strong_views = StrongViews.join(strong_views)
        return joined

    def check_shapes(self, method: str, images: int, classes: int, names: Sequence[object]) -> None:
        """Refuses output that does not have one row per image.

        Args:
            method: Name of the method, for the message.
            images: Number of images that were adapted to.
            classes: Number of classes K.
            names: Names of the images, for the message.
        """
        logits = {"logits": self.logits, "zero_shot_logits": self.zero_shot_logits}
        for name, tensor in {**logits, **self.columns}.items():
            fits = len(tensor) == images
            if name in logits:
                fits = tensor.shape == (images, classes)
            if not fits:
                raise DataError(
                    f"{method} returned {name} of shape {tuple(tensor.shape)} for {images} images "
                    f"of {classes} classes, the first of them {names[0]}: fix the method's adapt()"
                )

    def with_equal_logits(self, first_of_name: Sequence[int] | None) -> Adapted:
        """Gives classes of one name the logits of the first of them, so that they have equal bits.

        Args:
            first_of_name: The first class with the same name, for each of the K classes; None where
                all names differ.
        """
        if first_of_name is None:
            return self
        index = torch.tensor(first_of_name, device=self.logits.device)
        return replace(
            self,
            logits=self.logits[:, index],
            zero_shot_logits=self.zero_shot_logits[:, index],
        )

    def with_cots(self) -> Adapted:
        """Adds the columns of CoTS if they were still to be computed."""
        if self.strong_views is None:
            return self
        columns = {**self.columns, **self.strong_views.columns()}
        return replace(self, columns=columns, strong_views=None)

    def with_fallback(self) -> Adapted:
        """Gives images with logits that are not finite their zero-shot prediction, and flags them.
        """
        flagged = ~self.logits.isfinite().all(-1)
        logits = torch.where(flagged[:, None], self.zero_shot_logits, self.logits)
        return replace(self, logits=logits, columns={**self.columns, "flagged": flagged})
