"""Settings of version 1.0 that no longer exist.

The value that is used anyway is accepted, with a line for the log. Any other value is refused, with
what to use instead.
"""
from __future__ import annotations

from ...datasets.utils.errors import ConfigError
from .safe_yaml import plain_value

# Values that have another name now: key -> {old value: new value}.
RENAMED_VALUES = {
    "TRAINER.PENALTY.RANGE": {"flow": "confident"},
    "TRAINER.ZSNORM.RANGE": {"flow": "confident"},
}
# Key -> the only value that is still possible, and what to use instead of another one.
DROPPED = {
    "TEST.SALS": (False, "the report measures SaLS for every run: python tools/report.py FOLDER"),
    "TTA.JACOBIAN_GB": (4.5, "use TTA.JACOBIAN on, which has no limit of memory, or off"),
}
OPTIMIZER = "OPTIM.NAME"


def is_dropped(key: str) -> bool:
    return key in DROPPED or key == OPTIMIZER


def check_dropped(key: str, value: object, source: str, trained: bool) -> str:
    """A line for the log about a setting that no longer exists.

    Args:
        key: One for which `is_dropped` holds.
        value: The given value.
        source: Where it comes from, for messages.
        trained: Whether the method learns from labelled images. It decides the optimizer.

    Raises:
        ConfigError: If the value is not the one that is used anyway.
    """
    if key == OPTIMIZER:
        only_value: object = "sgd" if trained else "adamw"
        instead = f"{only_value} is the only optimizer here: leave it out"
    else:
        only_value, instead = DROPPED[key]
    if plain_value(value) != only_value:
        raise ConfigError(f"{key} {value} in {source} is no longer a setting: {instead}")
    return f"{key} is no longer a setting; {only_value} is what is used"


def rename_value(key: str, value: object) -> tuple[object, str]:
    """The value under its new name, and a line for the log; "" if nothing changes."""
    new_names = RENAMED_VALUES.get(key, {})
    if not isinstance(value, str) or value not in new_names:
        return value, ""
    return new_names[value], f"{key} {value} is {new_names[value]} here"
