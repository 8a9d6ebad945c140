"""Run folders of random numbers in the format of a run, for tests of the report."""
import json
from pathlib import Path

import numpy as np
import yaml
from promptcal.trainers.functional import calibration as cal
from promptcal.trainers.report.comparison import compare, default_settings
from promptcal.trainers.report.load import find_runs
from promptcal.trainers.report.measure import measure

# How sharp each method's logits are: above 1 means over-confident, since labels are drawn at sharpness 1.
SHARPNESS = {"ZeroShot": 1.1, "TPT": 2.6, "CTPT": 2.0, "OTPT": 1.7, "SoC": 1.3}


def simulate(n: int = 400, classes: int = 8, sharpness: float = 1.0, seed: int = 0):
    """Labels drawn from a softmax, zero-shot logits that are nearly calibrated, and tuned logits that are sharper."""
    rng = np.random.default_rng(seed)
    base = rng.gumbel(size=(n, classes)) * 1.6
    p = np.exp(cal.log_softmax(base))
    label = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    tuned = base * sharpness + rng.normal(size=base.shape) * 0.2
    return label, 20 + tuned, 20 + base * SHARPNESS["ZeroShot"]


def over_confident():
    """Logits (N, K) of an over-confident classifier, its labels, and its confidence and correctness."""
    rng = np.random.default_rng(0)
    labels = rng.integers(7, size=500)
    logits = (rng.normal(size=(500, 7)) + 1.5 * np.eye(7)[labels]) * 4
    return logits, labels, *cal.top_class(logits, labels)


def make_run(
    root: Path, trainer: str = "SoC", dataset: str = "UCF101", seed: int = 0, backbone: str = "ViT-L/14", n: int = 400,
    classes: int = 8, bins: int = 20, data_hash: str = "d0", weights_hash: str = "w0", settings: dict | None = None,
    classnames=None, sharpness: float | None = None, folder: str = "", data_root: str = "data", index=None, label=None,
    split: str = "test",
) -> Path:
    """Writes one finished run below `root` and returns its folder."""
    settings = settings or {}
    sharp = SHARPNESS.get(trainer, 1.5) if sharpness is None else sharpness
    drawn, logits, zero = simulate(n, classes, sharp, seed + 100 * len(dataset))
    label = drawn if label is None else np.asarray(label)
    logits = zero if trainer == "ZeroShot" else logits
    folder = root / (folder or f"{dataset}/{trainer}/{backbone.replace('/', '-')}/{len(settings)}/seed{seed}")
    folder.mkdir(parents=True, exist_ok=True)
    index = np.arange(n) if index is None else np.asarray(index)
    np.savez(
        folder / "predictions.npz", index=index, label=label, logits=logits.astype(np.float32),
        zero_shot_logits=zero.astype(np.float32), flagged=np.zeros(n, bool),
    )
    figures = {}
    for prefix, z in (("", logits), ("zero_shot_", zero)):
        confidence, correct = cal.top_class(z.astype(np.float32), label)
        figures[f"{prefix}accuracy"] = 100 * float(correct.mean())
        figures[f"{prefix}ece"] = 100 * cal.ece(confidence, correct, bins)
        figures[f"{prefix}ace"] = 100 * cal.ace(confidence, correct, bins)
    names = classnames or [f"class {k}" for k in range(classes)]
    results = {
        "trainer": trainer, "dataset": dataset, "backbone": backbone, "seed": seed, "n": n, "classes": classes,
        "bins": bins, "split": split, **figures, "data_hash": data_hash, "weights_hash": weights_hash,
        "classnames": names,
        "flagged": 0, "versions": {"promptcal": "1.0.0"}, "fingerprint": settings, "complete": True,
    }
    defaults = default_settings(trainer, dataset) or default_settings("SoC", dataset)
    tree: dict = {
        "SEED": seed,
        "TRAINER": {
            "NAME": trainer,
            **{method: {"LAMBDA": defaults[f"TRAINER.{method}.LAMBDA"]} for method in ("CTPT", "OTPT", "SOC")},
        },
        "DATASET": {"NAME": dataset, "ROOT": data_root},
        "MODEL": {"BACKBONE": {"NAME": backbone}}, "TTA": {"STEPS": defaults["TTA.STEPS"]},
        "PROMPT": {"CTX_INIT": "a photo of a"},
        "TEST": {"BINS": bins, "SPLIT": split},
    }
    for key, value in settings.items():
        node = tree
        *groups, leaf = key.split(".")
        for group in groups:
            node = node.setdefault(group, {})
        node[leaf] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    return folder


def compared(root, **kwargs):
    """What the report compares of all runs below `root`."""
    runs, _ = find_runs([root])
    return compare([measure(run, **kwargs) for run in runs])


def entry(table, block, row, column):
    """The cell of a table by the names of its block, row and column."""
    rows = next(b.rows for b in table.blocks if b.label.startswith(block))
    return next(r for r in rows if r.label == row).entries[table.columns.index(column)]


def by_label(shown):
    """The data of a figure, by the label of each method."""
    return {method.label: data for method, data in shown.items()}


def make_benchmark(root: Path) -> Path:
    """Four methods on two data sets with two seeds, and one data set that only O-TPT has."""
    for trainer in ("TPT", "CTPT", "OTPT", "SoC"):
        for dataset in ("UCF101", "EuroSAT"):
            for seed in (0, 1):
                make_run(root, trainer, dataset, seed, data_hash=dataset)
    make_run(root, "OTPT", "OxfordPets", data_hash="pets")
    return root
