"""A-TPT: TPT with a penalty on small angles between each class and its nearest one."""
from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from .config.settings import OneOf, Range, Setting
from .functional.objectives import nearest_angle
from .registry import TRAINER_REGISTRY
from .tpt import TPT


@TRAINER_REGISTRY.register()
class ATPT(TPT):
    """L_TPT − λ · mean_i min_j angle(t_i, t_j). (Ahamed et al., A-TPT, ICLR 2026.)

    Each class is pushed away from its nearest one alone, j ≠ i, so that classes spread evenly over
    the sphere.

    The public script for fine-grained sets adds the angle instead of subtracting it, which pulls
    nearest classes together: `SIGN code`.
    """

    label = "A-TPT"
    colour = "#CC79A7"
    marker = "<"
    display_order = 35
    settings: ClassVar = [
        Setting(
            "LAMBDA",
            80.0,
            "λ, weight of the penalty; the public script uses 10 on ImageNet-A/V2/R/Sketch",
            allowed=Range(least=0),
            show="λ {}",
        ),
        Setting(
            "SIGN",
            "paper",
            "sign of the penalty: paper, angles grow; code, they shrink, as in the public "
            "fine-grained script",
            allowed=OneOf(("paper", "code")),
        ),
    ]

    def penalty(self, text: Tensor) -> Tensor:
        """−(mean angle to the nearest class): the loss falls as angles grow. + with SIGN code."""
        angle = nearest_angle(text)
        if self.cfg.TRAINER.ATPT.SIGN == "code":
            return angle
        return -angle

    def weight(self, loss: Tensor, penalty: Tensor) -> float:
        """λ, the same for every image."""
        return self.cfg.TRAINER.ATPT.LAMBDA
