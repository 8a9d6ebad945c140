"""Which rows of a table state their difference from which other row, as data."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BASELINE = "TPT"  # the method that others are compared with


@dataclass(frozen=True)
class Differences:
    """Which rows state their difference from which other row.

    Attributes:
        baseline: The method that rows are compared with.
        ours: The methods whose rows state the difference; () for all tuned ones.
        only_newer: Whether only methods that are newer than the baseline state it, as in the
            tables of the SoC paper.
        is_default: Whether the baseline was not chosen. Rows from a learnt prompt are then compared
            with this prompt untuned.
    """

    baseline: str = BASELINE
    ours: Sequence[str] = ()
    only_newer: bool = False
    is_default: bool = True


FROM_BASELINE = Differences()  # of a report without further options
