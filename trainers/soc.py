"""SoC: semantic orthogonal calibration, which pushes close classes apart no harder than a margin allows."""
from __future__ import annotations

from torch import Tensor
from yacs.config import CfgNode

from .config.validation import require, require_one_of
from .objectives import balance, semantic_separation
from .registry import TRAINER_REGISTRY
from .tpt import TPT


@TRAINER_REGISTRY.register()
class SoC(TPT):
    """L_TPT + λ · w · mean_{i<j} Huber(s̃_ij, δ). (Fillioux et al., CVPR 2026.)"""

    label, colour, marker, rank = "SoC", "#0072B2", "o", 40

    @classmethod
    def extend_defaults(cls, cfg: CfgNode) -> None:
        cfg.TRAINER.SOC = CfgNode()
        cfg.TRAINER.SOC.LAMBDA = 30.0  # λ; the paper uses 14 on ImageNet-A/V2/R/Sketch
        cfg.TRAINER.SOC.DELTA = 20.0  # margin δ, as a percentile (0–100) of the normalised similarities
        cfg.TRAINER.SOC.NORM = "minmax"  # s̃: minmax (s−min)/(max−min), max s/max, shift s−min
        cfg.TRAINER.SOC.SCALE = "inverse"  # w: inverse |L_TPT|/|L_Huber|, ratio |L_Huber|/|L_TPT|, none 1

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        super().validate(cfg)
        require(cfg, cfg.TRAINER.SOC.LAMBDA >= 0, "TRAINER.SOC.LAMBDA", "0 or more")
        require(cfg, 0 <= cfg.TRAINER.SOC.DELTA <= 100, "TRAINER.SOC.DELTA", "a percentile from 0 to 100")
        require_one_of(cfg, "TRAINER.SOC.NORM", "minmax", "max", "shift")
        require_one_of(cfg, "TRAINER.SOC.SCALE", "inverse", "ratio", "none")

    def penalty(self, text: Tensor) -> Tensor:
        return semantic_separation(text, self.cfg.TRAINER.SOC.DELTA, self.cfg.TRAINER.SOC.NORM)

    def weight(self, loss: Tensor, penalty: Tensor) -> Tensor:
        return self.cfg.TRAINER.SOC.LAMBDA * balance(loss, penalty, self.cfg.TRAINER.SOC.SCALE)
