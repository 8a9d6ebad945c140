"""SoC: semantic orthogonal calibration, a Huber penalty on the similarities of class pairs."""
from __future__ import annotations

import logging
from typing import ClassVar

from torch import Tensor

from .config.settings import OneOf, Range, Setting
from .functional.objectives import balance, semantic_separation
from .registry import TRAINER_REGISTRY
from .tpt import TPT
from .vlm.prompted_clip import PromptedCLIP

logger = logging.getLogger(__name__)


@TRAINER_REGISTRY.register()
class SoC(TPT):
    """L_TPT + λ · w · mean_{i<j} Huber(s̃_ij, δ). (Fillioux et al., CVPR 2026.)"""

    label = "SoC"
    colour = "#0072B2"
    marker = "o"
    display_order = 40
    settings: ClassVar = [
        Setting(
            "LAMBDA",
            30.0,
            "λ, weight of the penalty; the paper uses 14 on ImageNet-A/V2/R/Sketch",
            allowed=Range(least=0),
            show="λ {}",
        ),
        Setting(
            "DELTA",
            20.0,
            "margin δ, as a percentile of the normalised similarities",
            allowed=Range(least=0, most=100, text="a percentile from 0 to 100"),
            show="δ at {} %",
        ),
        Setting(
            "NORM",
            "minmax",
            "normalisation s̃ of the similarities s: minmax (s−min)/(max−min), max s/max, "
            "shift s−min",
            allowed=OneOf(("minmax", "max", "shift")),
        ),
        # All but live are detached. live is the ratio with gradients flowing through it, which is
        # the printed formula taken literally.
        Setting(
            "SCALE",
            "inverse",
            "factor w of the penalty: inverse |L_TPT|/|L_Huber|, ratio |L_Huber|/|L_TPT|, none 1; "
            "live: ratio, not detached",
            allowed=OneOf(("inverse", "ratio", "none", "live")),
        ),
        Setting(
            "STATS",
            "detached",
            "gradients through the statistics of s: detached, none; flow, through min and max; "
            "flow_delta, through δ too",
            allowed=OneOf(("detached", "flow", "flow_delta")),
        ),
    ]

    def check_clip(self, clip: PromptedCLIP) -> None:
        """Warns where SoC's term is zero for the classes of a model."""
        if not clip.text.is_meta and not self.penalty(clip.text) > 0:  # meta tensors have no values
            logger.warning(
                "SoC's term is zero for these %d classes, so SoC equals TPT: with two classes, or "
                "where a larger share of the pairs than TRAINER.SOC.DELTA has the lowest cosine, δ "
                "is 0 with %s similarities (use TRAINER.SOC.NORM max)",
                len(clip.classnames), self.cfg.TRAINER.SOC.NORM,
            )

    def penalty(self, text: Tensor) -> Tensor:
        """mean_{i<j} Huber(s̃_ij, δ), from 0."""
        settings = self.cfg.TRAINER.SOC
        return semantic_separation(text, settings.DELTA, settings.NORM, settings.STATS)

    def weight(self, loss: Tensor, penalty: Tensor) -> Tensor:
        """λ · w, where w keeps the penalty in proportion to the loss, see `balance`."""
        settings = self.cfg.TRAINER.SOC
        return settings.LAMBDA * balance(loss, penalty, settings.SCALE)
