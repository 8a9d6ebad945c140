"""A setting: its default, its meaning, its allowed values, and what it influences."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

Settings = Mapping[str, object]  # every setting of a run by its full key


class Role(Enum):
    """What a setting influences."""

    DATA = "which images are used"
    VIEWS = "which views of an image are made"
    MODEL = "the backbone and its prompt"
    METHOD = "how a method adapts or is trained"
    NUMERICS = "how numbers are computed"
    REPORTING = "how predictions are measured and named"
    PLACE = "where files are read and written"
    NONE = "nothing but speed and memory"


PREDICTION_ROLES = (Role.DATA, Role.VIEWS, Role.MODEL, Role.METHOD, Role.NUMERICS)


@dataclass(frozen=True)
class Range:
    """Numbers between two ends.

    Attributes:
        least: The lowest allowed number.
        above: The exclusive lower end: only larger numbers are allowed.
        most: The highest allowed number.
        below: The exclusive upper end: only smaller numbers are allowed.
        text: Words that complete "it must be …"; "" = made from the ends.
    """

    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf
    text: str = ""

    def accepts(self, value: object) -> bool:
        """Whether a value is a number between the ends."""
        if not isinstance(value, int | float):
            return False
        return self.least <= value <= self.most and self.above < value < self.below

    @property
    def words(self) -> str:
        """Words that complete "it must be …", such as `from 0 to 1`."""
        if self.text:
            return self.text
        upper = ""
        if self.most < math.inf:
            upper = f"at most {self.most:g}"
        elif self.below < math.inf:
            upper = f"below {self.below:g}"
        if self.least > -math.inf:
            if not upper:
                return f"{self.least:g} or more"
            return f"from {self.least:g} to {upper.removeprefix('at most ')}"
        lower = ""
        if self.above > -math.inf:
            lower = f"above {self.above:g}"
        return " and ".join(part for part in (lower, upper) if part)

    def examples(self, default: object) -> tuple[list[object], list[object]]:
        """Values that are accepted and values that are refused, of the type of `default`."""
        number = int if isinstance(default, int) else float
        candidates: list[object] = [default]
        for end in (self.least, self.above, self.most, self.below):
            if math.isfinite(end):
                candidates += [number(end - 1), number(end), number(end + 1)]
        good = [value for value in candidates if self.accepts(value)]
        bad = [value for value in candidates if not self.accepts(value)]
        return good, bad


@dataclass(frozen=True)
class OneOf:
    """One of a few words.

    Attributes:
        choices: The allowed words.
    """

    choices: Sequence[str]

    def accepts(self, value: object) -> bool:
        """Whether a value is one of the words."""
        return value in self.choices

    @property
    def words(self) -> str:
        """Words that complete "it must be …"."""
        return f"one of {', '.join(self.choices)}"

    def examples(self, default: object) -> tuple[list[object], list[object]]:
        """Values that are accepted and values that are refused, for tests and help."""
        return list(self.choices), ["another", ""]


@dataclass(frozen=True)
class Check:
    """Values that a function accepts.

    Attributes:
        test: The function; it returns whether a value is allowed.
        words: Words that complete "it must be …".
        good: Values that are accepted, for tests and help.
        bad: Values that are refused, for tests.
    """

    test: Callable[[object], bool]
    words: str
    good: Sequence[object]
    bad: Sequence[object]

    def accepts(self, value: object) -> bool:
        """Whether the function accepts a value."""
        return self.test(value)

    def examples(self, default: object) -> tuple[list[object], list[object]]:
        """Values that are accepted and values that are refused, for tests and help."""
        return list(self.good), list(self.bad)


Allowed = Range | OneOf | Check


@dataclass(frozen=True)
class Setting:
    """One row of the table of settings.

    Attributes:
        key: The full key, such as `TTA.STEPS`. A method's own settings have keys without a dot,
            which stand for `TRAINER.<NAME>.<key>`.
        default: The default. Its type is the type of the setting.
        help: The meaning in one line, a phrase that begins with the noun that it describes.
        role: What the setting influences.
        allowed: The allowed values; None = all of the default's type.
        alias: A key of CoOp or Dassl that means the same, and our value for each of its values.
        used_by: The methods that read it, in words; "" = all. Which these are, methods say
            themselves (see `used_settings` in base.py).
        effect: A function of all settings and of the method (a `MethodInfo`). It returns "" if the
            setting has an effect, else what to do to give it one. None: it always has one.
        auto: Words for the value that the default stands for; "" if it stands for itself.
        resolve: A function of all settings that returns the value that the default stands for, or
            None if only the model or the data tell. None: there is no such function.
        canonical: A function that returns one spelling for values that mean the same; None = each
            value means something else. Defaults are in this spelling.
        is_limit: Whether all values above what the default stands for mean the same as it.
        names_file: Whether it names a file. Records and labels have the file's name and a hash of
            its content instead of its path.
        names_backbone: Whether it names a backbone, perhaps by a path. Records have the backbone's
            short name instead.
        in_path: Whether it is a folder of its own in a run's path, so that it is not in the tag.
        rounding: Whether it changes predictions by rounding alone. Such a setting makes no other
            row, label or folder.
        show: The words of a value in a row label: text with {} for the value, or a function; "" =
            the key's last part and the value.
        title: The title of a table that compares its values; "" = its key.
    """

    key: str
    default: object
    help: str
    role: Role = Role.METHOD
    allowed: Allowed | None = None
    alias: tuple[str, Mapping[object, object]] | None = None
    used_by: str = ""
    effect: Callable[[Settings, Any], str] | None = None
    auto: str = ""
    resolve: Callable[[Settings], object] | None = None
    canonical: Callable[[object], object] | None = None
    is_limit: bool = False
    names_file: bool = False
    names_backbone: bool = False
    in_path: bool = False
    rounding: bool = False
    show: str | Callable[[object], str] = ""
    title: str = ""

    def problem(self, value: object) -> str:
        """Returns what a value must be, in words, if it is not allowed; "" if it is allowed."""
        if isinstance(value, float) and not math.isfinite(value):
            return "a finite number"
        if self.allowed is not None and not self.allowed.accepts(value):
            return self.allowed.words
        return ""

    @property
    def allowed_words(self) -> str:
        """The allowed values in words: `0 or more`, `on, off or auto`; "" if all are."""
        if self.allowed is None:
            return ""
        return self.allowed.words.removeprefix("one of ")

    def examples(self) -> tuple[list[object], list[object]]:
        """Values that are accepted and values that are refused."""
        if self.allowed is not None:
            good, bad = self.allowed.examples(self.default)
        else:
            good, bad = [self.default], []
        if isinstance(self.default, float):
            bad = [*bad, math.nan, math.inf]
        return good, bad


def undeclared_setting(key: str, default: object = "") -> Setting:
    """Returns a row for a setting that no row declares, such as one of a plugin's method."""
    if key.rpartition(".")[2] == "LAMBDA":
        return Setting(key, default, "λ", allowed=Range(least=0), show="λ {}")
    return Setting(key, default, "")


def plain_number(value: object) -> str:
    """Returns a value as text. Numbers are as short as they can be without changing: 10.0 is 10."""
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)
