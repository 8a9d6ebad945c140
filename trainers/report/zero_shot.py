"""Zero-shot rows made of the zero-shot predictions that tuned runs have."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..registry import ZERO_SHOT, method_info
from ..runs.record import RunRecord, canonical_json
from .measure import Measured

# Settings that zero-shot predictions depend on.
OF_ZERO_SHOT = ("PROMPT.", "INPUT.", "MODEL.", "TRAINER.COOP.CLASS_TOKEN_POSITION")


def zero_shot_parts(runs: Sequence[Measured]) -> list[Measured]:
    """Zero-shot runs made of other runs, for prompts and images that no zero-shot run has.

    Args:
        runs: With the same weights.
    """
    source: Any = None
    covered = set()
    for measured in runs:
        if method_info(measured.run.trainer).zero_shot:
            covered.add(conditions(measured.record))
            source = measured.record.method.get("source")
    parts = []
    for measured in sorted(runs, key=lambda run: not run.has_logits):
        if not measured.run.has_zero_shot or measured.from_tuned_run or is_learnt_and_trained(measured):
            continue
        record = zero_shot_record(measured.record, source)
        if conditions(record) not in covered:
            covered.add(conditions(record))
            parts.append(zero_shot_part(measured, record))
    return parts


def is_learnt_and_trained(measured: Measured) -> bool:
    """Whether it is a trained method that was given its prompt.

    Its zero-shot predictions are of a hand-written prompt that its record does not state.
    """
    is_learnt = measured.record.get("model.prompt.kind") == "learnt"
    return is_learnt and method_info(measured.run.trainer).trained


def conditions(record: RunRecord) -> str:
    """What zero-shot predictions depend on."""
    fields = [record.key("column"), record.key("table"), canonical_json(record.model["prompt"]),
              canonical_json(record.views.get("pixels")), str(record.numerics.get("precision"))]
    return "\n".join(fields)


def zero_shot_record(record: RunRecord, source: Any) -> RunRecord:
    """The record of a run's zero-shot part.

    Args:
        record: Of a tuned or trained run.
        source: Of the zero-shot runs of the same table, whose row it belongs to.
    """
    changed = {}
    for key, values in record.changed.items():
        if key.startswith(OF_ZERO_SHOT):
            changed[key] = values
    names = {**record.names, "method": method_info(ZERO_SHOT).label}
    views = {key: value for key, value in record.views.items() if key not in ("count", "augmix")}
    method = {"trainer": ZERO_SHOT, "settings": {}, "source": source}
    return replace(record, method=method, changed=changed, names=names, views=views)


def zero_shot_part(measured: Measured, record: RunRecord) -> Measured:
    """The zero-shot predictions of a run as a run of their own."""
    return replace(
        measured, record=record, tuned=measured.zero_shot, metrics=measured.zero_shot_metrics,
        sets=measured.zero_shot_sets, flagged=0, from_tuned_run=True,
    )
