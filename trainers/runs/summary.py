"""The figures of a run, in percent, from its predictions alone."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tabulate import tabulate

from ..functional.calibration import ace, ece, sals, top_class
from ..registry import method_info, zero_shot_name

# What parse_test_res.py waits for in the log of a training: CoOp's the first, MaPLe's and KgCoOp's the second.
END_OF_TRAINING = ("Finish training", "Finished training")


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


def percent_lines(results: Mapping, names: Sequence[str]) -> list[str]:
    """Figures in the form in which Dassl prints them and CoOp's parse_test_res.py finds them."""
    return [f"* {name}: {results[name]:.2f}%" for name in names]


def result_block(results: Mapping, trained: bool) -> str:
    """What parse_test_res.py reads in a log.txt, after the line that it waits for, and the table for people."""
    correct = round(results["accuracy"] * results["n"] / 100)
    return "\n".join([
        *(END_OF_TRAINING if trained else ()), "=> result", f"* total: {results['n']:,}", f"* correct: {correct:,}",
        *percent_lines({**results, "error": 100 - results["accuracy"]}, ("accuracy", "error", "ece", "ace")), "",
        result_table([results]),
    ])


def seeds_table(runs: Sequence[Mapping]) -> str:
    """Mean ± standard deviation over the seeds of one method on the same images."""
    first, keys = runs[0], ("accuracy", "ece", "ace", "confidence")
    prefixes = {zero_shot_name(): "zero_shot_", first["trainer"]: ""}
    if "sals_ece" in first:
        prefixes[f"{first['trainer']} + SaLS"] = "sals_"
    body = []
    for name, prefix in prefixes.items():
        values = np.array([[results[prefix + key] for key in keys] for results in runs])  # (seeds, 4)
        spread = zip(values.mean(axis=0), values.std(axis=0, ddof=1), strict=True)
        body.append([method_info(name).label, *(f"{mean:.2f} ± {std:.2f}" for mean, std in spread)])
    table = tabulate(body, headers=["method", "accuracy", "ECE", "ACE", "confidence"], disable_numparse=True,
                     colalign=("left", *["right"] * len(keys)))
    seeds = ", ".join(str(results["seed"]) for results in runs)
    return f"{table}\n{first['dataset']}, {first['backbone']}, mean ± standard deviation over seeds {seeds}; percent"


def result_table(runs: Sequence[Mapping]) -> str:
    """The final table of runs on the same images: the zero-shot figures, then each method's."""
    first = runs[0]
    rows = [(zero_shot_name(), first, "zero_shot_")]
    for results in runs:
        if not method_info(results["trainer"]).zero_shot:
            rows.append((results["trainer"], results, ""))
        if "sals_ece" in results:
            rows.append((f"{results['trainer']} + SaLS", results, "sals_"))
    body = [
        [method_info(name).label, *(f"{results[prefix + key]:.2f}" for key in ("accuracy", "ece", "ace", "confidence"))]
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
            notes.append(f"{method_info(results['trainer']).label}: {results['flagged']} images fell back to their "
                         f"zero-shot prediction (not a number)")
    if first["skipped"]:
        notes.append(f"{len(first['skipped'])} unreadable images left out")
    return "\n".join([table, *notes])
