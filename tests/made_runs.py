"""Run folders for tests of the report: a real run, and others that have its files, with other
records and logits."""
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
from promptcal.trainers.functional.arrays import log_softmax
from promptcal.trainers.registry import TRAINER_REGISTRY, method_info
from promptcal.trainers.report.arrange import arrange
from promptcal.trainers.report.core import MeasuredRuns, make_tests, measure, write_report
from promptcal.trainers.report.grid import Grid
from promptcal.trainers.report.layout import Layout, default_layout
from promptcal.trainers.report.load import FinishedRun, find_runs, read_run
from promptcal.trainers.report.table import Entry, Table
from promptcal.trainers.report.verdict import Verdict
from promptcal.trainers.runs.record import RunRecord, content_hash
from promptcal.trainers.runs.run_dir import RunDir
from promptcal.trainers.vlm.openai_clip import WEIGHT_URLS

# How sharp each method's logits are. Labels are drawn at sharpness 1: above it means
# over-confident.
SHARPNESS = {"ZeroShot": 1.1, "TPT": 2.6, "CTPT": 2.0, "OTPT": 1.7, "SoC": 1.3}


@cache
def real_run() -> FinishedRun:
    """A run of tools/train.py on a few tiles, whose files all others are made of."""
    from promptcal.tools import train

    folder = Path(tempfile.mkdtemp()) / "real"
    train.main([
        "--trainer", "SoC", "--dataset-config-file", "configs/datasets/landcover.yaml",
        "--output-dir", str(folder),
        "TEST.LIMIT", "6", "TTA.VIEWS", "10", "DATALOADER.NUM_WORKERS", "0",
    ])
    return read_run(folder)


def simulate(n: int = 400, classes: int = 8, sharpness: float = 1.0, data: int = 0, seed: int = 0):
    """Labels drawn from a softmax, tuned logits, and zero-shot logits that are nearly calibrated.

    Labels and zero-shot logits depend on `data` alone, as the images of a data set do not depend
    on a run's seed.
    """
    rng = np.random.default_rng(data)
    base = rng.gumbel(size=(n, classes)) * 1.6
    p = np.exp(log_softmax(base))
    label = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    noise = np.random.default_rng([data, seed]).normal(size=base.shape) * 0.2
    return label, 20 + base * sharpness + noise, 20 + base * SHARPNESS["ZeroShot"]


def over_confident():
    """An over-confident classifier: logits (N, K), labels, confidence and correctness (N,)."""
    rng = np.random.default_rng(0)
    labels = rng.integers(7, size=500)
    logits = (rng.normal(size=(500, 7)) + 1.5 * np.eye(7)[labels]) * 4
    return logits, labels, *cal.top_class(logits, labels)


def numbered(name: str, count: int, first: int = 0) -> list[str]:
    """`count` names: "name 0", "name 1" and so on."""
    return [f"{name} {number}" for number in range(first, first + count)]


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
    trainer: str = "SoC", dataset: str = "UCF101", seed: int = 0, backbone: str = "ViT-L/14",
    n: int = 400, classnames: Sequence[str] = (), images: str = "", weights: str = "",
    settings: Mapping[str, Any] | None = None, split: str = "test",
    changes: Mapping[str, Any] | None = None,
) -> RunRecord:
    """The record of the real run with other data, method and settings.

    Args:
        images: Identity of the set of images; "" = by data set, split and number.
        weights: Hash of the weights; "" = by the backbone's name.
        settings: Those that differ from the defaults.
        changes: Other values of the record, by their paths, such as `model.prompt.words`.
    """
    settings = dict(settings or {})
    record = real_run().record
    defaults = default_settings(trainer if trainer in TRAINER_REGISTRY else "SoC", dataset)
    method_settings = {}
    for key in record.method["settings"]:
        if not key.startswith("TRAINER.SOC.") or trainer == "SoC":
            method_settings[key] = defaults[key]
    for key, value in defaults.items():
        if key.startswith(f"TRAINER.{trainer.upper()}."):
            method_settings[key] = value
    changed = {}
    for key, value in settings.items():
        if value != defaults.get(key):
            changed[key] = [defaults.get(key), value]
        if key in method_settings or key.startswith("TRAINER."):
            method_settings[key] = value

    content = record.to_json()
    content["seed"] = seed
    content["changed"] = changed
    content["method"]["trainer"] = trainer
    content["method"]["settings"] = method_settings
    if method_info(trainer).online:
        content["method"]["stream"] = {"order": settings.get("TEST.ORDER", "random")}
    content["views"]["count"] = settings.get("TTA.VIEWS", 64)
    content["model"]["backbone"] = backbone
    content["model"]["weights"] = weights or weights_of(backbone)
    content["model"]["prompt"]["words"] = settings.get("PROMPT.CTX_INIT", "a photo of a")
    content["data"] = {
        "dataset": dataset,
        "split": split,
        "n": n,
        "images": images or f"{dataset} {split} {n}",
        "listing": f"listing of {dataset} {split} {n}",
        "classes": f"{len(classnames)}:{content_hash(list(classnames))}",
        "corruption": "",
        "severity": 0,
        "subset": "",
    }
    content["names"] = {
        "method": method_info(trainer).label,
        "dataset": dataset_info(dataset).label,
        "backbone": "small CLIP" if backbone == "small" else backbone,
        "prompt": "",
    }
    for path, value in (changes or {}).items():
        *groups, leaf = path.split(".")
        section = content
        for group in groups:
            section = section[group]
        section[leaf] = value
    return RunRecord.from_json(content)


def make_run(
    root: Path, trainer: str = "SoC", dataset: str = "UCF101", seed: int = 0,
    backbone: str = "ViT-L/14", n: int = 400, classes: int = 8, bins: int = 20, images: str = "",
    weights: str = "", settings: dict | None = None, classnames=None,
    sharpness: float | None = None, folder: str = "", index=None, label=None, split: str = "test",
    changes: dict | None = None, skipped: Sequence[int] = (), flagged: int = 0,
    names: Sequence[str] = (), clusters: Sequence[str] = (), logits=None, text=None,
    facts: dict | None = None,
) -> Path:
    """Writes a finished run below `root` and returns its folder.

    Runs on the same data set, split and number of images have the same images.

    Args:
        trainer: And other arguments of `make_record`.
        sharpness: Of the logits, see `SHARPNESS`.
        folder: Below `root`; "" = a name made of the settings.
        skipped: Numbers of images that could not be read.
        flagged: How many images, the first ones, fell back to zero-shot.
        names: Of the images; they decide their identity.
        clusters: Names of the images' clusters.
        logits: (n, classes) instead of drawn ones.
        facts: More entries of results.json.
    """
    settings = settings or {}
    if sharpness is None:
        sharpness = SHARPNESS.get(trainer, 1.5)
    data = 100 * len(dataset)
    if split == "val":
        data += 7
    drawn_label, tuned, zero_shot = simulate(n, classes, sharpness, data, seed)
    if label is None:
        label = drawn_label
    if logits is not None:
        tuned = np.asarray(logits)
    elif trainer == "ZeroShot":
        tuned = zero_shot
    tuned[:flagged] = zero_shot[:flagged]
    if index is None:
        index = np.arange(n)
    if not classnames:
        classnames = numbered("class", classes)
    if not names:
        names = numbered(f"{dataset} {split}", n)
    columns = {
        "index": np.asarray(index),
        "label": np.asarray(label),
        "logits": tuned.astype(np.float32),
        "zero_shot_logits": zero_shot.astype(np.float32),
        "flagged": np.arange(n) < flagged,
        "image": identities(list(names)),
        "cluster": identities(list(clusters or names)),
        "filename": np.array(list(names)),
    }
    readable = np.setdiff1d(np.arange(n), np.asarray(skipped, dtype=int))
    for name, column in columns.items():
        columns[name] = column[readable]

    record = make_record(
        trainer, dataset, seed, backbone, n, list(classnames), images, weights, settings, split,
        changes)
    if not folder:
        backbone_folder = backbone.replace("/", "-")
        folder = f"{dataset}/{trainer}/{backbone_folder}/{content_hash(settings)}/seed{seed}"
    path = root / folder
    path.mkdir(parents=True, exist_ok=True)
    write_run(path, record, columns, list(classnames), bins, text, facts)
    return path


def write_run(
    path: Path, record: RunRecord, columns: dict[str, np.ndarray], classnames: list[str],
    bins: int = 20, text=None, facts: dict | None = None,
) -> None:
    """Writes the files of a finished run by the functions that a run uses."""
    run_dir = RunDir(path, record)
    image_columns = {}
    for name in ("image", "cluster", "filename"):
        image_columns[name] = columns.pop(name)
    indices = columns["index"].tolist()
    columns["seconds"] = np.full(1, 0.1)
    columns["adapt_seconds"] = np.full(1, 0.1)
    columns["peak_bytes"] = np.zeros(1, dtype=np.int64)
    columns["bad_index"] = np.array([], dtype=int)
    columns["bad_reason"] = np.array([], dtype="U1")
    run_dir.write_part(indices, columns)
    if text is None:
        text = np.eye(len(classnames), 16)
    run_dir.merge([indices], {"index": columns["index"], **image_columns}, text)

    results = {
        "trainer": record.method["trainer"],
        "dataset": record.data["dataset"],
        "backbone": record.model["backbone"],
        "seed": record.seed,
        "n": len(indices),
        "classes": len(classnames),
        "bins": bins,
        "split": record.data["split"],
        "classnames": classnames,
        "flagged": 0,
        "skipped": [],
        "versions": {"promptcal": "1.1.0"},
    }
    for prefix, name in (("", "logits"), ("zero_shot_", "zero_shot_logits")):
        confidence, correct = cal.top_class(columns[name], columns["label"])
        results[f"{prefix}accuracy"] = 100 * float(correct.mean())
        results[f"{prefix}ece"] = 100 * cal.ece(confidence, correct, bins)
        results[f"{prefix}ace"] = 100 * cal.ace(confidence, correct, bins)
    results.update(facts or {})
    config = (real_run().folder / "config.yaml").read_text(encoding="utf-8")
    (path / "config.yaml").write_text(config, encoding="utf-8")
    run_dir.finish(results, config)


def rewrite_predictions(folder: Path, change) -> None:
    """Changes the arrays of a run by `change(arrays)`. Its files still belong together."""
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
    for table_block in table.blocks:
        if table_block.label.startswith(block):
            break
    else:
        raise LookupError(f"no block {block}")
    for table_row in table_block.rows:
        if table_row.label == row:
            return table_row.entries[table.columns.index(column)]
    raise LookupError(f"no row {row}")


def verdict_of(grid: Grid) -> Verdict:
    return make_tests([grid], default_layout())[0].verdict


def labels(grid: Grid) -> list[str]:
    return [row.label for row in grid.rows]


def cells_of(table: Table) -> list[Entry]:
    """All cells that have a value."""
    cells = []
    for block in table.blocks:
        for row in block.rows:
            for cell in row.entries:
                if cell is not None:
                    cells.append(cell)
    return cells


def row_labels(table: Table) -> list[str]:
    """Of the table's first block."""
    return [row.label for row in table.blocks[0].rows]


def by_label(figure_data):
    """The data of a figure, by the label of each method."""
    return {method.label: data for method, data in figure_data.items()}


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
