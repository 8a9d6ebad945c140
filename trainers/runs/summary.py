"""The figures of a run, in percent, from its predictions alone."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tabulate import tabulate

from ..calibration import ace, ece, sals, top_class
from ..registry import is_zero_shot, method_label, zero_shot_name


def figures(logits: np.ndarray, labels: np.ndarray, bins: int) -> dict[str, float]:
    """Accuracy, mean confidence, ECE and ACE in percent."""
    confidence, correct = top_class(logits, labels)
    return {
        "accuracy": 100 * float(correct.mean()),
        "confidence": 100 * float(confidence.mean()),
        "ece": 100 * ece(confidence, correct, bins),
        "ace": 100 * ace(confidence, correct, bins),
    }


def summarise(predictions: Mapping[str, np.ndarray], bins: int, with_sals: bool) -> dict[str, float]:
    """The method's figures, the zero-shot ones of the same images, and on demand those of SaLS-scaled logits."""
    labels = predictions["label"]
    tuned = figures(predictions["logits"], labels, bins)
    before = figures(predictions["zero_shot_logits"], labels, bins)
    summary = {**tuned, **{f"zero_shot_{name}": value for name, value in before.items()}}
    if with_sals:
        scaled = figures(sals(predictions["logits"], predictions["zero_shot_logits"]), labels, bins)
        summary.update({f"sals_{name}": value for name, value in scaled.items()})
    return summary


def result_table(runs: Sequence[Mapping]) -> str:
    """The final table of runs on the same images: the zero-shot figures, then each method's."""
    first = runs[0]
    rows = [(zero_shot_name(), first, "zero_shot_")]
    for results in runs:
        if not is_zero_shot(results["trainer"]):
            rows.append((results["trainer"], results, ""))
        if "sals_ece" in results:
            rows.append((f"{results['trainer']} + SaLS", results, "sals_"))
    body = [
        [method_label(name), *(f"{results[prefix + key]:.2f}" for key in ("accuracy", "ece", "ace", "confidence"))]
        for name, results, prefix in rows
    ]
    table = tabulate(body, headers=["method", "accuracy", "ECE", "ACE", "confidence"], disable_numparse=True,
                     colalign=("left", "right", "right", "right", "right"))
    notes = [
        f"{first['dataset']}, {first['n']} {first['split']} images of {first['classes']} classes, {first['backbone']}, "
        f"seed {first['seed']}; percent; {first['bins']} bins"
    ]
    for results in runs:
        if results["flagged"]:
            notes.append(f"{method_label(results['trainer'])}: {results['flagged']} images fell back to their "
                         f"zero-shot prediction (not a number)")
    if first["skipped"]:
        notes.append(f"{len(first['skipped'])} unreadable images left out")
    return "\n".join([table, *notes])
