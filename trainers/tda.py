"""TDA: a training-free cache adapter whose keys are the test images seen so far."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from .config.settings import Range, Setting
from .engine.adapted import Adapted
from .engine.key_cache import KeyCache
from .online import VALUES, VIEWS, Online, show_values
from .registry import TRAINER_REGISTRY

# Images per class in each cache.
POSITIVE = 3
NEGATIVE = 2
# An image enters the negative cache if its entropy over log₂ K is between these. The entropy is in
# nats but the logarithm has base 2, as in the public code: the fraction never exceeds 0.69.
LEAST_UNSURE = 0.2
MOST_UNSURE = 0.5
# α₋ and β₋ of the negative cache, the same for all data sets.
ALPHA = 0.117
BETA = 1.0
# An uncertain image may be of any of its likely classes. Images that resemble it lose logit in all
# classes above this probability of it.
UNLIKELY = 0.03
# Published α and β of the positive cache, tuned on each data set's test accuracy.
PAPER: Mapping[str, Sequence[float]] = {
    "ImageNet": (2, 5),
    "ImageNetA": (2, 5),
    "ImageNetV2": (1, 8),
    "ImageNetR": (1, 8),
    "ImageNetSketch": (2.363, 7.45),
    "Caltech101": (5, 5),
    "DescribableTextures": (2, 3),
    "EuroSAT": (4, 8),
    "FGVCAircraft": (2, 2),
    "Food101": (1, 1),
    "OxfordFlowers": (1, 5),
    "OxfordPets": (2, 7),
    "StanfordCars": (1, 7),
    "SUN397": (2, 3),
    "UCF101": (3, 8),
}


@TRAINER_REGISTRY.register()
class TDA(Online):
    """z + α Σ₊ e^{−β(1−⟨x,x'⟩)} onehot(k') − α₋ Σ₋ e^{−β₋(1−⟨x,x'⟩)} 1[p' > 0.03].

    As published, an image is stored before it is predicted, so it votes for itself with cosine 1.
    (Karmanov et al., TDA, CVPR 2024.)
    """

    label = "TDA"
    colour = "#AA4499"
    marker = "H"
    display_order = 70
    settings: ClassVar = [
        Setting(
            "ALPHA",
            2.0,
            "α, weight of the positive cache; the default is ImageNet's published value",
        ),
        Setting(
            "BETA",
            5.0,
            "β, sharpness of the positive cache",
            allowed=Range(least=0),
        ),
        Setting(
            "VALUES",
            "given",
            "source of ALPHA and BETA: given, these settings; paper, the published values "
            "per data set, tuned on test accuracy",
            allowed=VALUES,
            show=show_values,
        ),
        Setting(
            "VIEWS",
            "plain",
            "views that are used: plain; or confident, the mean of those, as published for "
            "ImageNet-A/V2/R/Sketch",
            allowed=VIEWS,
        ),
    ]
    per_set: ClassVar[Sequence[str]] = ("ALPHA", "BETA")
    paper = PAPER

    @cached_property
    def positive(self) -> KeyCache:
        """Images that vote for the class that they were predicted as."""
        return KeyCache(self.clip.text, POSITIVE)

    @cached_property
    def negative(self) -> KeyCache:
        """Uncertain images, which count against all classes that are likely for them."""
        return KeyCache(self.clip.text, NEGATIVE, masks=True)

    def adapt_image(self, views: Tensor) -> Adapted:
        """Stores the image, then predicts it from text and both caches."""
        features, logits = self.used_views(views, self.clip.text)  # (n, d), (n, K)
        settings = self.method_settings
        x = features.mean(0)  # (d,)
        z = logits.mean(0)  # (K,)
        p = logits.softmax(-1).mean(0)  # (K,)
        h = torch.special.entr(p).sum()  # entropy in nats; 0 where a probability is 0
        k = z.argmax()
        self.positive.offer(x, h, k)

        highest = math.log2(len(p))
        is_unsure = (LEAST_UNSURE * highest < h) & (h < MOST_UNSURE * highest)
        speaks_against = (p > UNLIKELY) & (p < 1)  # (K,)
        self.negative.offer(x, self.negative_order(h), k, is_unsure, speaks_against)

        # The image itself may be in the caches by now, see the class's docstring.
        for_class = self.voters(views).votes(x, settings.BETA)
        against = self.negative.votes(x, BETA)
        z = z + settings.ALPHA * for_class - ALPHA * against
        return Adapted(z[None], self.zero_shot(views))

    def negative_order(self, entropy: Tensor) -> Tensor:
        """The number by which the negative cache keeps images: those of the lowest numbers stay.

        Here it is the entropy, so the most certain of the uncertain images stay.

        Args:
            entropy: Entropy of the image's prediction in nats, ().
        """
        return entropy

    def voters(self, views: Tensor) -> KeyCache:
        """The images that vote for their class.

        Args:
            views: Unit view features of the image that is predicted, (1, V, d).
        """
        return self.positive

    def state_tensors(self) -> dict[str, Tensor]:
        """Both caches."""
        return {**self.positive.tensors("positive_"), **self.negative.tensors("negative_")}
