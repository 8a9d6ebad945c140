"""Zero-shot rows made of the zero-shot predictions that tuned runs have."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..registry import ZERO_SHOT, method_info
from ..runs.record import RunRecord, canonical_json
from .make_grid import OF_ZERO_SHOT
from .measure import Measured
from .sentences import is_untuned_prompt, starts_from_prompt


def zero_shot_parts(runs: Sequence[Measured]) -> list[Measured]:
    """Zero-shot runs made of other runs, for prompts and images that no zero-shot run has.

    Args:
        runs: Runs with the same weights.
    """
    source: Any = None
    covered = set()
    for measured in runs:
        if method_info(measured.run.trainer).zero_shot:
            covered.add(conditions(measured.record))
            source = measured.record.method.get("source")
    parts = []
    # Runs with logits first: a part that is made of one has all metrics. Then those with most
    # images.
    for measured in sorted(runs, key=lambda run: (not run.has_logits, run.skipped)):
        if (
            not measured.run.has_zero_shot
            or measured.from_tuned_run
            or is_learnt_and_trained(measured)
        ):
            continue
        record = zero_shot_record(measured.record, source)
        if conditions(record) not in covered:
            covered.add(conditions(record))
            parts.append(zero_shot_part(measured, record))
    return parts


def untuned_prompts(runs: Sequence[Measured], known: Sequence[Measured]) -> list[Measured]:
    """The learnt prompts that some runs start from, without tuning.

    Args:
        runs: Runs of a table.
        known: All runs with the same weights, which may have tested these prompts without tuning.
    """
    prompts = set()
    for measured in runs:
        if starts_from_prompt(measured.record):
            prompts.add(conditions(zero_shot_record(measured.record, None)))
    present = set(runs)
    untuned = []
    for measured in [*known, *zero_shot_parts(known)]:
        if measured in present or not is_untuned_prompt(measured.record):
            continue
        if conditions(measured.record) in prompts:
            untuned.append(measured)
    return untuned


def is_learnt_and_trained(measured: Measured) -> bool:
    """Whether it is a trained method that was given its prompt.

    Its zero-shot predictions are of a hand-written prompt that its record does not state.
    """
    return starts_from_prompt(measured.record) and method_info(measured.run.trainer).trained


def conditions(record: RunRecord) -> str:
    """All that zero-shot predictions depend on, as text: equal for runs that share them."""
    fields = [record.key("column"), record.key("table"), canonical_json(record.model["prompt"]),
              canonical_json(record.views.get("pixels")), str(record.numerics.get("precision"))]
    return "\n".join(fields)


def zero_shot_record(record: RunRecord, source: Any) -> RunRecord:
    """The record of a run's zero-shot part.

    Args:
        record: Record of a tuned or trained run.
        source: `method.source` of the zero-shot runs of the same table, whose row it joins.
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
    """The zero-shot predictions of a run as a run of their own.

    Args:
        measured: A run of a method that tunes.
        record: The record that a zero-shot run under the same conditions would have.
    """
    return replace(
        measured, record=record, tuned=measured.zero_shot, metrics=measured.zero_shot_metrics,
        sets=measured.zero_shot_sets, flagged=0, from_tuned_run=True,
    )
