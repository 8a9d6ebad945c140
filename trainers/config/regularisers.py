"""The setting TRAINER.REGULARISERS: terms that are added to a method, such as `ctpt:50,atpt:10`."""
from __future__ import annotations

import math

from ...datasets.utils.errors import ConfigError
from ..registry import method_key


def regulariser_names(setting: object) -> list[str]:
    """Whose terms a setting names, whatever else is wrong with it."""
    return [part.partition(":")[0].strip() for part in str(setting or "").split(",") if part.strip()]


def parse_regularisers(setting: str) -> dict[str, float]:
    """The weight of each term, by the name that was given."""
    found: dict[str, float] = {}
    for part in filter(str.strip, setting.split(",")):
        name, _, number = (piece.strip() for piece in part.partition(":"))
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not name or not 0 <= weight < math.inf:
            raise ConfigError(f"TRAINER.REGULARISERS has {part.strip()!r}; it must be name:weight with a weight of 0 "
                              f"or more, several separated by commas, such as ctpt:50,atpt:10")
        if method_key(name) in map(method_key, found):
            raise ConfigError(f"TRAINER.REGULARISERS names {name!r} twice: give each term one weight")
        found[name] = weight
    return found
