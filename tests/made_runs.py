"""Run folders for tests of the report: a real run, and others with its files but other records and logits."""
from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from promptcal.datasets.base import dataset_info
from promptcal.trainers.config.layers import default_settings
from promptcal.trainers.functional import calibration as cal
from promptcal.trainers.registry import TRAINER_REGISTRY, method_info
from promptcal.trainers.report.arrange import arrange
from promptcal.trainers.report.core import MeasuredRuns, measure, write_report
from promptcal.trainers.report.grid import Grid
from promptcal.trainers.report.layout import Layout, default_layout
from promptcal.trainers.report.load import FinishedRun, find_runs, read_run
from promptcal.trainers.report.table_model import Entry, Table
from promptcal.trainers.runs.record import RunRecord, content_hash
from promptcal.trainers.runs.run_dir import RunDir
from promptcal.trainers.vlm.openai_clip import WEIGHT_URLS

# How sharp each method's logits are: above 1 means over-confident, since labels are drawn at sharpness 1.
SHARPNESS = {"ZeroShot": 1.1, "TPT": 2.6, "CTPT": 2.0, "OTPT": 1.7, "SoC": 1.3}


@cache
def real_run() -> FinishedRun:
    """A run of tools/train.py on a few tiles, whose files all others are made of."""
    from promptcal.tools import train

    folder = Path(tempfile.mkdtemp()) / "real"
    train.main(["--trainer", "SoC", "--dataset-config-file", "configs/datasets/landcover.yaml",
                "--output-dir", str(folder), "TEST.LIMIT", "6", "TTA.VIEWS", "10", "DATALOADER.NUM_WORKERS", "0"])
    return read_run(folder)


def simulate(n: int = 400, classes: int = 8, sharpness: float = 1.0, data: int = 0, seed: int = 0):
    """Labels drawn from a softmax, zero-shot logits that are nearly calibrated, and tuned logits that are sharper.

    Labels and zero-shot logits depend on `data` alone, as the images of a data set do not depend on a run's seed.
    """
    rng = np.random.default_rng(data)
    base = rng.gumbel(size=(n, classes)) * 1.6
    p = np.exp(cal.log_softmax(base))
    label = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    noise = np.random.default_rng([data, seed]).normal(size=base.shape) * 0.2
    return label, 20 + base * sharpness + noise, 20 + base * SHARPNESS["ZeroShot"]


def over_confident():
    """Logits (N, K) of an over-confident classifier, its labels, and its confidence and correctness."""
    rng = np.random.default_rng(0)
    labels = rng.integers(7, size=500)
    logits = (rng.normal(size=(500, 7)) + 1.5 * np.eye(7)[labels]) * 4
    return logits, labels, *cal.top_class(logits, labels)


def identities(names: Sequence[str]) -> np.ndarray:
    """Identities of images, (N, 16) bytes, the same for equal names."""
    digests = [hashlib.blake2b(name.encode(), digest_size=16).digest() for name in names]
    return np.array([list(digest) for digest in digests], dtype=np.uint8)


def weights_of(backbone: str) -> str:
    """The hash of a backbone's weights; OpenAI's by their names."""
    if backbone in WEIGHT_URLS:
        return WEIGHT_URLS[backbone].split("/")[-2][:16]
    return content_hash(backbone)


def make_record(
    trainer: str = "SoC", dataset: str = "UCF101", seed: int = 0, backbone: str = "ViT-L/14", n: int = 400,
    classnames: Sequence[str] = (), images: str = "", weights: str = "", settings: Mapping[str, Any] | None = None,
    split: str = "test", changes: Mapping[str, Any] | None = None,
) -> RunRecord:
    """The record of the real run with other data, method and settings.

    `settings` are those that differ from the defaults, `changes` values of the record by path.
    """
    settings = dict(settings or {})
    record = real_run().record
    known = trainer if trainer in TRAINER_REGISTRY else "SoC"
    defaults = default_settings(known, dataset)
    own = {}
    for key in record.method["settings"]:
        if not key.startswith("TRAINER.SOC.") or trainer == "SoC":
            own[key] = defaults[key]
    prefix = f"TRAINER.{trainer.upper()}."
    for key, value in defaults.items():
        if key.startswith(prefix):
            own[key] = value
    changed = {}
    for key, value in settings.items():
        if value != defaults.get(key):
            changed[key] = [defaults.get(key), value]
        if key in own or key.startswith("TRAINER."):
            own[key] = value
    method: dict[str, Any] = {**record.method, "trainer": trainer, "settings": own}
    if method_info(trainer).online:
        method["stream"] = {"order": settings.get("TEST.ORDER", "random")}
    prompt = {**record.model["prompt"], "words": settings.get("PROMPT.CTX_INIT", "a photo of a")}
    content = {
        **record.to_json(),
        "data": {"dataset": dataset, "split": split, "n": n, "images": images or f"{dataset} {split} {n}",
                 "listing": f"listing of {dataset} {split} {n}", "classes": content_hash(list(classnames)),
                 "corruption": "", "severity": 0, "subset": ""},
        "views": {**record.views, "count": settings.get("TTA.VIEWS", 64)},
        "model": {"backbone": backbone, "weights": weights or weights_of(backbone), "prompt": prompt},
        "method": method, "seed": seed, "changed": changed,
        "names": {"method": method_info(trainer).label, "dataset": dataset_info(dataset).label,
                  "backbone": "small CLIP" if backbone == "small" else backbone, "prompt": ""},
    }
    for path, value in (changes or {}).items():
        *groups, leaf = path.split(".")
        section = content
        for group in groups:
            section = section[group]
        section[leaf] = value
    return RunRecord.from_json(content)


def make_run(
    root: Path, trainer: str = "SoC", dataset: str = "UCF101", seed: int = 0, backbone: str = "ViT-L/14", n: int = 400,
    classes: int = 8, bins: int = 20, images: str = "", weights: str = "", settings: dict | None = None,
    classnames=None, sharpness: float | None = None, folder: str = "", index=None, label=None, split: str = "test",
    changes: dict | None = None, skipped: Sequence[int] = (), flagged: int = 0, names: Sequence[str] = (),
    clusters: Sequence[str] = (), logits=None, text=None, facts: dict | None = None,
) -> Path:
    """Writes one finished run below `root` and returns its folder.

    Runs on the same data set, split and number of images have the same images. `names` are other
    names of the images, which decide their identity, `clusters` those of their clusters. Images at
    `skipped` are left out; the first `flagged` ones fell back to zero-shot.
    """
    settings = settings or {}
    sharp = SHARPNESS.get(trainer, 1.5) if sharpness is None else sharpness
    drawn, tuned, zero = simulate(n, classes, sharp, 100 * len(dataset) + (7 if split == "val" else 0), seed)
    label = drawn if label is None else np.asarray(label)
    tuned = tuned if logits is None else np.asarray(logits)
    if trainer == "ZeroShot" and logits is None:
        tuned = zero
    tuned[:flagged] = zero[:flagged]
    classnames = list(classnames or [f"class {k}" for k in range(classes)])
    index = np.arange(n) if index is None else np.asarray(index)
    image_names = list(names) or [f"{dataset} {split} {number}" for number in range(n)]
    record = make_record(trainer, dataset, seed, backbone, n, classnames, images, weights, settings, split, changes)
    folder = folder or f"{dataset}/{trainer}/{backbone.replace('/', '-')}/{content_hash(settings)}/seed{seed}"
    path = root / folder
    path.mkdir(parents=True, exist_ok=True)
    kept = np.setdiff1d(np.arange(n), np.asarray(skipped, dtype=int))
    write_run(path, record, {
        "index": index[kept], "label": label[kept], "logits": tuned[kept].astype(np.float32),
        "zero_shot_logits": zero[kept].astype(np.float32), "flagged": kept < flagged,
        "image": identities(image_names)[kept], "cluster": identities(list(clusters) or image_names)[kept],
        "filename": np.array(image_names)[kept],
    }, classnames, bins, text, facts)
    return path


def write_run(
    path: Path, record: RunRecord, columns: dict[str, np.ndarray], classnames: list[str], bins: int = 20, text=None,
    facts: dict | None = None,
) -> None:
    """Writes the files of a finished run by the functions that a run uses."""
    run_dir = RunDir(path, record)
    images = {name: columns.pop(name) for name in ("image", "cluster", "filename")}
    indices = columns["index"].tolist()
    n = len(indices)
    for name in ("seconds", "adapt_seconds"):
        columns[name] = np.full(1, 0.1)
    columns["bad_index"] = np.array([], dtype=int)
    columns["bad_reason"] = np.array([], dtype="U1")
    run_dir.write_part(indices, columns)
    if text is None:
        text = np.eye(len(classnames), 16)
    run_dir.merge([indices], {"index": columns["index"], **images}, text)
    figures = {}
    for prefix, name in (("", "logits"), ("zero_shot_", "zero_shot_logits")):
        confidence, correct = cal.top_class(columns[name], columns["label"])
        figures[f"{prefix}accuracy"] = 100 * float(correct.mean())
        figures[f"{prefix}ece"] = 100 * cal.ece(confidence, correct, bins)
        figures[f"{prefix}ace"] = 100 * cal.ace(confidence, correct, bins)
    config = (real_run().folder / "config.yaml").read_text(encoding="utf-8")
    (path / "config.yaml").write_text(config, encoding="utf-8")
    run_dir.finish({
        "trainer": record.method["trainer"], "dataset": record.data["dataset"], "backbone": record.model["backbone"],
        "seed": record.seed, "n": n, "classes": len(classnames), "bins": bins, "split": record.data["split"],
        **figures, "classnames": classnames, "flagged": 0, "skipped": [], "versions": {"promptcal": "1.1.0"},
        **(facts or {}),
    }, config)


def rewrite_predictions(folder: Path, change) -> None:
    """Changes the arrays of a run by `change(arrays)` and finishes the run again: its files still agree."""
    run = read_run(folder)
    with np.load(folder / "predictions.npz") as stored:
        arrays = dict(stored)
    change(arrays)
    np.savez(folder / "predictions.npz", **arrays)
    RunDir(folder, run.record).write_results(run.results)


def measured_runs(root: Path, **options) -> MeasuredRuns:
    """All runs below `root`, measured."""
    runs, _ = find_runs([root])
    return measure(runs, default_layout(**options))


def compared(root: Path, **options) -> list[Grid]:
    """What the report compares of all runs below `root`."""
    return arrange(measured_runs(root, **options).test)


def report_on(root: Path, **options):
    """The report on all runs below `root`, without figures unless asked for."""
    demo = options.pop("demo", False)
    options.setdefault("with_figures", False)
    layout: Layout = default_layout(**options)
    return write_report([root], root / "report", layout, demo)


def entry(table: Table, block: str, row: str, column: str) -> Entry | None:
    """The cell of a table by the names of its block, row and column."""
    rows = next(b.rows for b in table.blocks if b.label.startswith(block))
    return next(r for r in rows if r.label == row).entries[table.columns.index(column)]


def labels(grid: Grid) -> list[str]:
    return [row.label for row in grid.rows]


def by_label(shown):
    """The data of a figure, by the label of each method."""
    return {method.label: data for method, data in shown.items()}


def make_benchmark(root: Path) -> Path:
    """Four methods on two data sets with two seeds, and one data set that only O-TPT has."""
    for trainer in ("TPT", "CTPT", "OTPT", "SoC"):
        for dataset in ("UCF101", "EuroSAT"):
            for seed in (0, 1):
                make_run(root, trainer, dataset, seed)
    make_run(root, "OTPT", "OxfordPets")
    return root


def renamed(record: RunRecord, **names: str) -> RunRecord:
    return replace(record, names={**record.names, **names})
