"""O-TPT: TPT with a penalty on class features that are not orthogonal."""
from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from .config.settings import OneOf, Range, Setting
from .functional.objectives import frobenius_orthogonality, orthogonality
from .registry import TRAINER_REGISTRY
from .tpt import TPT

FORMS = {"householder": orthogonality, "frobenius": frobenius_orthogonality}


@TRAINER_REGISTRY.register()
class OTPT(TPT):
    """L_TPT + λ · R(T). (Sharifdeen et al., CVPR 2025.)"""

    label = "O-TPT"
    colour = "#D55E00"
    marker = "s"
    display_order = 30
    settings: ClassVar = [
        Setting(
            "LAMBDA",
            18.0,
            "λ, weight of the penalty; the public script uses 2 on ImageNet-A/V2/R/Sketch",
            allowed=Range(least=0),
            show="λ {}",
        ),
        Setting(
            "FORM",
            "householder",
            "form of the penalty: householder, as in the public code; or frobenius, ‖S − I‖², as "
            "printed in SoC",
            allowed=OneOf(tuple(FORMS)),
        ),
    ]

    def penalty(self, text: Tensor) -> Tensor:
        """R(T): 0 if all class features are orthogonal."""
        return FORMS[self.cfg.TRAINER.OTPT.FORM](text)

    def weight(self, loss: Tensor, penalty: Tensor) -> float:
        """λ, the same for every image."""
        return self.cfg.TRAINER.OTPT.LAMBDA
