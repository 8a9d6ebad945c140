"""The trainers by name, and the one way to make them."""
from __future__ import annotations

from yacs.config import CfgNode

from ..datasets.registry import Registry

TRAINER_REGISTRY = Registry("trainer")


def build_trainer(cfg: CfgNode):
    """The trainer that `cfg.TRAINER.NAME` names."""
    return TRAINER_REGISTRY.get(cfg.TRAINER.NAME)(cfg)
