"""BCA: Bayesian adaptation of class centres and of the class distribution of each centre."""
from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from .config.settings import Range, Setting
from .engine.adapted import Adapted
from .functional.objectives import unit
from .online import SCALE_SETTING, VIEWS, Online, log_probability
from .registry import TRAINER_REGISTRY


@TRAINER_REGISTRY.register()
class BCA(Online):
    """p = softmax(100 x μᵀ) P, with centres μ = T and P = I at first.

    (Zhou et al., BCA, CVPR 2025.)

    P has a row P(class | centre) for each centre. p is a weighted mean of rows, so it is mostly
    less confident than the softmax. After the prediction, the image is added to the running mean
    that is the predicted class's centre, and p to the one that is its row. Formulas and constants
    are those of two third-party implementations; the authors' code is not available, and their
    values per data set are not known.
    """

    label = "BCA"
    colour = "#00BCD4"
    marker = "x"
    display_order = 78
    settings: ClassVar = [
        Setting(
            "TAU_CENTRE",
            0.05,
            "confidence above which an image moves its class's centre",
        ),
        Setting(
            "COUNT_CENTRE",
            20000.0,
            "number of images that a class's initial centre counts as; with 100, centres collapse",
            allowed=Range(least=0),
        ),
        Setting(
            "TAU_PRIOR",
            0.65,
            "confidence above which an image's prediction enters its class's row of P",
        ),
        Setting(
            "COUNT_PRIOR",
            1.0,
            "number of predictions that the initial row of P counts as",
            allowed=Range(least=0),
        ),
        Setting(
            "VIEWS",
            "confident",
            "views that are used: confident, selected with the current centres; or plain",
            allowed=VIEWS,
        ),
        SCALE_SETTING,
    ]

    # The state, as it is before the first image.

    @cached_property
    def centres(self) -> Tensor:
        """μ, (K, d)."""
        return self.clip.text.clone()

    @cached_property
    def prior(self) -> Tensor:
        """P, (K, K): row j is the distribution of classes among the images near centre j."""
        return torch.eye(len(self.clip.text), device=self.clip.text.device)

    @cached_property
    def centre_counts(self) -> Tensor:
        """Images that each centre counts as, (K,)."""
        return torch.full_like(self.clip.text[:, 0], self.method_settings.COUNT_CENTRE)

    @cached_property
    def prior_counts(self) -> Tensor:
        """Predictions that each row of P counts as, (K,)."""
        return torch.full_like(self.clip.text[:, 0], self.method_settings.COUNT_PRIOR)

    def adapt_image(self, views: Tensor) -> Adapted:
        """Predicts with the centres and rows so far, then moves them."""
        features, logits = self.used_views(views, self.centres)
        p = logits.mean(0).softmax(-1) @ self.prior
        self.learn(features.mean(0), p)
        return Adapted(log_probability(p)[None], self.zero_shot(views))

    def learn(self, x: Tensor, p: Tensor) -> None:
        """Moves the centre and the row of the predicted class towards an image.

        Args:
            x: Feature of the image, the mean of the views that are used, (d,).
            p: Prediction for the image, a posterior over the classes, (K,).
        """
        settings = self.method_settings
        # k and the conditions stay on the device: reading them, as an `if` does, would make the
        # host wait for a GPU at every image.
        k = self.clip.equal_names(p).argmax(-1, keepdim=True)  # (1,)
        moves_centre = p[k] > settings.TAU_CENTRE
        moves_prior = p[k] > settings.TAU_PRIOR

        # Each running mean of n images takes one more. A centre keeps unit length.
        n = self.centre_counts[k].clone()
        centre = unit(n * self.centres[k] + x)
        self.centres[k] = torch.where(moves_centre, centre, self.centres[k])
        self.centre_counts[k] = n + moves_centre

        m = self.prior_counts[k].clone()
        row = (m * self.prior[k] + p) / (m + 1)
        self.prior[k] = torch.where(moves_prior, row, self.prior[k])
        self.prior_counts[k] = m + moves_prior

    def state_tensors(self) -> dict[str, Tensor]:
        """Centres and rows, with the counts of their running means."""
        return {
            "centres": self.centres,
            "prior": self.prior,
            "centre_counts": self.centre_counts,
            "prior_counts": self.prior_counts,
        }
