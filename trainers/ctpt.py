"""C-TPT: TPT with a penalty on class features near their centroid."""
from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from .config.settings import Range, Setting
from .functional.objectives import dispersion
from .registry import TRAINER_REGISTRY
from .tpt import TPT


@TRAINER_REGISTRY.register()
class CTPT(TPT):
    """L_TPT − λ · dispersion(T). (Yoon et al., ICLR 2024.)

    T are the class features (K, d). The paper observes that prompts whose class features lie far
    apart are better calibrated.
    """

    label = "C-TPT"
    colour = "#56B4E9"
    marker = "D"
    display_order = 20
    settings: ClassVar = [
        Setting(
            "LAMBDA",
            50.0,
            "λ, weight of the penalty; the public scripts use 20 on ImageNet-A/V2/R/Sketch",
            allowed=Range(least=0),
            show="λ {}",
        ),
    ]

    def penalty(self, text: Tensor) -> Tensor:
        """−dispersion: the loss falls as the classes move away from their centroid."""
        return -dispersion(text)

    def weight(self, loss: Tensor, penalty: Tensor) -> float:
        """λ, the same for every image."""
        return self.cfg.TRAINER.CTPT.LAMBDA
