"""The trainers by name, and the one way to make them."""
from __future__ import annotations

from pathlib import Path

from yacs.config import CfgNode

from ..datasets.utils.registry import Registry

TRAINER_REGISTRY = Registry("trainer", Path(__file__).parent, __package__)


def build_trainer(cfg: CfgNode):
    """The trainer that `cfg.TRAINER.NAME` names."""
    return TRAINER_REGISTRY.get(cfg.TRAINER.NAME)(cfg)
