"""The trainers by name. Plugins register themselves here; the code is in config/registry.py."""
from .config.registry import (
    LAST,
    SPARE_COLOURS,
    TRAINER_REGISTRY,
    ZERO_SHOT,
    Method,
    MethodInfo,
    backbone_label,
    branch_of,
    build_trainer,
    find_method,
    method_info,
    method_key,
    registered_name,
)
from .config.table import EVERY_IMAGE, reset_words

__all__ = [
    "EVERY_IMAGE", "LAST", "SPARE_COLOURS", "TRAINER_REGISTRY", "ZERO_SHOT", "Method", "MethodInfo",
    "backbone_label", "branch_of", "build_trainer", "find_method", "method_info", "method_key",
    "registered_name", "reset_words",
]
