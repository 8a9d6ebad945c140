"""What a check-up finds, as a table."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tabulate import tabulate

OK, NOTE, FAULT = "ok", "note", "fault"
WIDEST = 52  # letters of a column: a table of some 140, which most terminals show whole


@dataclass(frozen=True)
class Check:
    """One row: what was looked at, what was found, whether that is well, and what to do if not."""

    what: str
    found: str
    state: str = OK
    advice: str = ""


@dataclass(frozen=True)
class Diagnosis:
    findings: Sequence[Check]
    seconds: dict[str, float]  # an image, by part of a run
    bottleneck: str
    verdict: str  # one line

    @property
    def faulty(self) -> bool:
        return any(finding.state == FAULT for finding in self.findings)

    def table(self) -> str:
        rows = [(f.what, f.found, f.state, f.advice) for f in self.findings]
        return tabulate(rows, headers=("", "found", "state", "what to do"), disable_numparse=True,
                        maxcolwidths=[None, WIDEST, None, WIDEST])

    def as_dict(self) -> dict:
        return {"verdict": self.verdict, "bottleneck": self.bottleneck, "seconds_per_image": self.seconds,
                "findings": [asdict(finding) for finding in self.findings]}
