"""What the benchmark finds out."""
from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class BaselineComparison:
    """One figure of ours beside the plain way's."""

    part: str  # text side, episode, tower, memory, regulariser, views
    case: str
    backbone: str
    classes: int
    unit: str  # s or MB: less is better; views/s: more is better
    ours: float
    plain: float | None  # None where the plain way did not run
    extrapolated: bool = False  # the plain figure is scaled up from the largest number of classes it ran with

    @property
    def gain(self) -> float | None:
        """How many times better ours is."""
        if self.plain is None:
            return None
        return self.ours / self.plain if self.unit == "views/s" else self.plain / self.ours

    def as_dict(self) -> dict:
        return {**asdict(self), "gain": self.gain}


@dataclass(frozen=True)
class Growth:
    """Seconds an episode's text side takes as one quantity grows."""

    of: str  # classes, views, episodes at once
    backbone: str
    value: int
    seconds: float


@dataclass(frozen=True)
class ScalePoint:
    """What one part takes at one number of classes."""

    part: str  # regulariser, selection, text side
    case: str
    classes: int
    seconds: float
    memory: int | None  # bytes at the peak beyond what was there; None where the system does not tell


@dataclass(frozen=True)
class Goal:
    """A ratio that the project has set itself."""

    what: str
    found: float
    goal: float
    at_most: bool = False  # else at least

    @property
    def reached(self) -> bool:
        return self.found <= self.goal if self.at_most else self.found >= self.goal


@dataclass(frozen=True)
class Limit:
    """A part's time beside what its operations would take."""

    part: str
    backbone: str
    classes: int
    seconds: float
    operations: int  # in products of matrices
    share: float  # of this machine's own peak
    model_seconds: dict[str, float]  # on GPUs, by operations and stated rates: a model, not a measurement
    why: str = ""  # the share is no larger


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of one part. Products of matrices are counted; the rest is a formula where given."""

    part: str
    case: str
    classes: int
    products: int
    elementwise: int | None = None
    published: str | None = None  # MFLOPs as the SoC paper prints them
