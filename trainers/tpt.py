"""TPT: test-time prompt tuning by the entropy of confident views, and the base of the calibrated methods."""
from __future__ import annotations

import hashlib

import torch
from torch import Tensor
from yacs.config import CfgNode

from ..datasets.utils.errors import ConfigError
from .base import BaseTrainer
from .config.fingerprint import ENGINE
from .config.validation import require_one_of
from .engine.cache import ArrayCache
from .engine.episodes import Adapted, EpisodeSettings, run_episodes
from .engine.memory import within_memory
from .registry import TRAINER_REGISTRY
from .vlm.jacobian import break_even, cached_jacobian, jacobian_size


@TRAINER_REGISTRY.register()
class TPT(BaseTrainer):
    """min over the context of L_TPT. (Shu et al., NeurIPS 2022.)

    Methods that add a regulariser override `penalty` and `weight`: their loss is L_TPT + weight · penalty.
    """

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        require_one_of(cfg, "OPTIM.NAME", "adamw")

    def penalty(self, text: Tensor) -> Tensor | None:
        return None

    def weight(self, loss: Tensor, penalty: Tensor) -> Tensor | float:
        return 1.0

    def build_model(self) -> None:
        super().build_model()
        if self.cfg.TTA.STEPS:
            self.prompt.jacobian = self.find_jacobian()

    def find_jacobian(self) -> Tensor | None:
        """The Jacobian of the initial prompt, if it is wanted, fits into memory, and pays or is there already."""
        cfg, prompt = self.cfg, self.prompt
        if cfg.TTA.JACOBIAN == "off":
            return None
        features = prompt.text.shape[1]
        size = jacobian_size(len(prompt.text), features, prompt.context) / 1e9
        fits = size <= cfg.TTA.JACOBIAN_GB
        if cfg.TTA.JACOBIAN == "on" and not fits:
            raise ConfigError(f"the Jacobian takes {size:.1f} GB: raise TTA.JACOBIAN_GB ({cfg.TTA.JACOBIAN_GB:g}), or "
                              f"use TTA.JACOBIAN off")
        cache = ArrayCache(cfg.CACHE.DIR, "jacobian", {
            "weights": self.fingerprint["weights"], "classnames": self.dataset.classnames, "precision": self.precision,
            "context": hashlib.sha256(prompt.context.cpu().numpy().tobytes()).hexdigest(), "engine": ENGINE,
        }) if cfg.CACHE.DIR else None
        there = cache is not None and cache.read("jacobian") is not None
        pays = len(self.indices) > 2 * break_even(prompt.tower, prompt.context.shape[-2], features)
        if not self.ranks.agree(cfg.TTA.JACOBIAN == "on" or (fits and (pays or there))):
            return None
        if cache is None or self.ranks.first:
            jacobian = cached_jacobian(prompt.tower, prompt.context, cache)
        self.ranks.meet()  # the first rank makes it for all
        if cache is not None and not self.ranks.first:
            jacobian = cached_jacobian(prompt.tower, prompt.context, cache)
        return jacobian

    @torch.no_grad()
    def adapt(self, views: Tensor) -> Adapted:
        cfg = self.cfg
        how = EpisodeSettings(cfg.TTA.SELECT, cfg.TTA.STEPS, cfg.OPTIM.LR, cfg.OPTIM.WEIGHT_DECAY)
        return within_memory(
            lambda some: run_episodes(self.prompt, some, self.scale, self, how), views, self.prompt,
        )
