"""Zero-shot next to third parties' logs: right images, mean confidence, bins, and blocks of the
test list."""
import re
from pathlib import Path

import numpy as np
from promptcal.datasets import DATASET_REGISTRY
from promptcal.trainers.experiments.reruns import (
    BINS,
    compare_reruns,
    known_reruns,
    rerun_summary,
    reruns_table,
)

from common import run_tool
from made_runs import compared, make_run

CLASSES = 47


def log(name: str) -> dict:
    return next(rerun for rerun in known_reruns() if rerun["id"] == name)


def logits_of_the_log() -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels on DTD that have the log's bins, mean confidence and running accuracies."""
    bins = log("dtd-zeroshot-b16-bins")
    running = log("dtd-zeroshot-b16-running")["running"]
    n = bins["images"]
    right = np.zeros(n, bool)
    for start, end, before, after in zip(
        [0, *running["seen"]], running["seen"], [0, *running["correct"]], running["correct"],
        strict=False,
    ):
        right[start:end][: after - before] = True
    confidence = np.zeros(n)
    counts, correct = (np.array(bins["bins"][name]) for name in ("count", "correct"))
    confidence[right] = np.repeat((np.arange(BINS) + 0.5) / BINS, correct)
    confidence[~right] = np.repeat((np.arange(BINS) + 0.5) / BINS, counts - correct)
    shift = bins["mean_confidence"] - confidence.mean()
    assert abs(shift) < 0.5 / BINS  # no image changes its bin
    confidence += shift
    label = np.arange(n) * CLASSES // n
    predicted = np.where(right, label, (label + 1) % CLASSES)
    probability = np.repeat((1 - confidence[:, None]) / (CLASSES - 1), CLASSES, axis=1)
    probability[np.arange(n), predicted] = confidence
    return np.log(probability), label


def compare_run(root: Path, logits: np.ndarray, label: np.ndarray, **options) -> dict:
    make_run(root, "ZeroShot", "DescribableTextures", backbone="ViT-B/16", n=len(label), classes=CLASSES, label=label,
             logits=logits, **options)
    return {item.quantity: item for item in compare_reruns(compared(root)[0])}


def test_a_run_like_the_logs_agrees(tmp_path):
    items = compare_run(tmp_path, *logits_of_the_log())
    assert len(items) == 5 and all(item.agrees for item in items.values())
    assert (items["right images"].ours, items["right images"].limit) == (751, 8)
    assert rerun_summary(list(items.values())) == "Zero-shot agrees with third parties' logs on DTD."


def test_what_is_wrong_shows(tmp_path):
    logits, label = logits_of_the_log()
    items = compare_run(tmp_path / "scale", 0.9 * logits, label)
    assert items["right images"].agrees and not items["mean confidence"].agrees
    # Three classes have wrong names, so that nothing is right there.
    wrong = logits.copy()
    for k in (20, 21, 22):
        wrong[label == k] = np.roll(wrong[label == k], 7, axis=1)
    items = compare_run(tmp_path / "names", wrong, label)
    blocks = items["blocks of 200 images with other right images"]
    assert not blocks.agrees
    assert re.search(r"images 801 to 1,000 \(class 22.*\): 60 instead of 88", blocks.where)
    assert "check names, labels and files of these classes" in blocks.where
    table = reruns_table(list(items.values()), "t", "ViT-B/16")
    assert table.notes[0].startswith("Zero-shot differs from them on 1 data set, DTD: find the cause")
    items = compare_run(tmp_path / "order", logits[::-1], label[::-1])
    assert items["right images"].agrees and items["mean confidence"].agrees
    assert "Most blocks differ" in items["blocks of 200 images with other right images"].where


def test_only_runs_of_the_logs_conditions_are_compared(tmp_path):
    logits, label = logits_of_the_log()
    half = {"numerics.precision": "fp16"}
    items = compare_run(tmp_path / "precision", logits, label, changes=half)
    assert items["right images"].limit == 3
    others = (
        {"settings": {"PROMPT.CTX_INIT": "art of a"}},
        {"changes": {"model.weights": "0", "model.backbone": "file"}},
        {"changes": {"data.subset": "base classes"}},
        {"skipped": [3]},
    )
    for number, options in enumerate(others):
        assert compare_run(tmp_path / str(number), logits, label, **options) == {}


def test_the_logs_are_whole():
    for rerun in known_reruns():
        reader = DATASET_REGISTRY.get(rerun["dataset"])
        assert rerun["images"] == reader.expected_test
        assert rerun["commit"] in rerun["link"] and rerun["source"] in rerun["link"]
        if "bins" in rerun:
            assert sum(rerun["bins"]["count"]) == rerun["images"]
            assert sum(rerun["bins"]["correct"]) == rerun["correct"]
        if "running" in rerun:
            ends = (rerun["running"]["seen"][-1], rerun["running"]["correct"][-1])
            assert ends == (rerun["images"], rerun["correct"])


def test_quick_is_zero_shot_alone(tmp_path):
    quick = ("--quick", "--demo", "--limit", 12, "--output-dir", tmp_path, "--set", "DATALOADER.NUM_WORKERS", 0)
    done = run_tool("reproduce.py", "verify", *quick)
    assert done.returncode == 0 and "1 run done now; 1 of 1 outcome written" in done.stdout, done
    refused = run_tool("reproduce.py", "ace", "lambda", "--dry-run", *quick)
    assert refused.returncode == 2 and "zero-shot runs" in refused.stderr
