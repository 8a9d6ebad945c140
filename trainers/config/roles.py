"""What version 1.0's fingerprint and report ask about settings, answered from the table.

It goes with the fingerprint: records say what runs have in common.
"""
from __future__ import annotations

from collections.abc import Mapping

from .declared import find_setting, leaves
from .registry import branch_of, method_key
from .setting import Role
from .settings import added_terms, effective_rows
from .table import CLASS_TOKEN_POSITION

__all__ = ["OF_PROMPTS", "compared_settings", "influential_settings", "is_zero_shot", "leaves"]

OF_PROMPTS = CLASS_TOKEN_POSITION


def is_zero_shot(key: str) -> bool:
    """Whether a setting changes the prediction before adaptation."""
    return find_setting(key).role in (Role.MODEL, Role.NUMERICS) or key.startswith("INPUT.")


def influential_settings(settings: Mapping[str, object], trainer: str) -> dict[str, object]:
    """The settings that a trainer's predictions depend on."""
    own = {method_key(branch_of(trainer)), "name", "regularisers", *added_terms(settings)}
    values = {}
    for key in effective_rows(settings, trainer):
        is_method_setting = key.startswith("TRAINER.") and key != OF_PROMPTS
        if not is_method_setting or method_key(key.split(".")[1]) in own:
            values[key] = settings[key]
    return values


def compared_settings(settings: Mapping[str, object], trainer: str) -> dict[str, object]:
    """The settings that define an experiment: the rows of a table may differ in them."""
    values = {}
    for key, value in influential_settings(settings, trainer).items():
        row = find_setting(key)
        if row.role is not Role.DATA and not row.in_path:
            values[key] = value
    return values
