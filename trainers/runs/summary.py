"""Makes the metrics of a run in percent, the tables that show them, and facts about the machine."""
from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata

import numpy as np
import torch
from tabulate import tabulate
from yacs.config import CfgNode

from ... import __version__
from ...datasets.base import DATASET_REGISTRY
from ...datasets.utils.cli import counted, plural
from ...datasets.utils.source import is_plugin
from ..config.settings import backbone_name, setting_words, untuned_words
from ..functional.calibration import ace, ece, signed_error, top_class
from ..registry import TRAINER_REGISTRY, ZERO_SHOT, backbone_label, method_info, reset_words
from .record import RunRecord, describe_difference, group_records, value_label

# What parse_test_res.py waits for in the log of a training: CoOp's the first, MaPLe's and KgCoOp's
# the second.
END_OF_TRAINING = ("Finish training", "Finished training")
METRICS = ("accuracy", "ece", "ace", "confidence")
PACKAGES = ("torch", "torchvision", "openai-clip", "numpy", "pillow")
# Named if they were imported: module -> package.
OPTIONAL = {"numba": "numba", "open_clip": "open_clip_torch", "transformers": "transformers"}


def metrics_of(logits: np.ndarray, labels: np.ndarray, bins: int) -> dict[str, float]:
    """Computes accuracy, mean confidence, over-confidence, ECE and ACE in percent.

    Over-confidence is the mean confidence minus the accuracy.

    Args:
        logits: Logits of N images, (N, K).
        labels: Classes of the images, (N,).
        bins: Number of bins of ECE and ACE.
    """
    confidence, correct = top_class(logits, labels)
    return {
        "accuracy": 100 * float(correct.mean()),
        "confidence": 100 * float(confidence.mean()),
        "over_confidence": 100 * signed_error(confidence, correct),
        "ece": 100 * ece(confidence, correct, bins),
        "ace": 100 * ace(confidence, correct, bins),
    }


def metrics(predictions: Mapping[str, np.ndarray], bins: int) -> dict[str, float]:
    """Computes the method's metrics, and with the prefix `zero_shot_` those before adaptation.

    Args:
        predictions: Columns `label` (N,), `logits` and `zero_shot_logits` (N, K).
        bins: Number of bins of ECE and ACE.

    Returns:
        Metrics in percent, and `bins`.
    """
    labels = predictions["label"]
    values = metrics_of(predictions["logits"], labels, bins)
    for name, value in metrics_of(predictions["zero_shot_logits"], labels, bins).items():
        values[f"zero_shot_{name}"] = value
    return {**values, "bins": bins}


def summarise(columns: Mapping[str, np.ndarray], bins: int) -> dict[str, object]:
    """Computes what results.json says of a run's predictions: counts, metrics and times.

    Args:
        columns: The columns of all parts, those of batches included.
        bins: Number of bins of ECE and ACE.

    Returns:
        Metrics in percent, times in seconds, memory in bytes.
    """
    n = len(columns["index"])
    seconds = float(columns["seconds"].sum())
    adapt_seconds = float(columns["adapt_seconds"].sum())  # without reading and encoding images
    summary: dict[str, object] = {
        "n": n,
        **metrics(columns, bins),
        "flagged": int(columns["flagged"].sum()),
        "skipped": columns["bad_reason"].tolist(),
        "seconds": seconds,
        "seconds_per_image": seconds / n,
        "adapt_seconds_per_image": adapt_seconds / n,
    }
    if columns["peak_bytes"].any():  # none are measured on a CPU
        summary["peak_device_bytes"] = int(columns["peak_bytes"].max())
    return summary


def percent_lines(results: Mapping, names: Sequence[str]) -> list[str]:
    """Returns metrics as Dassl prints them and as CoOp's parse_test_res.py finds them.

    Args:
        results: Metrics in percent by name.
        names: Names of the metrics to print.
    """
    return [f"* {name}: {results[name]:.2f}%" for name in names]


def result_block(results: Mapping, trained: bool) -> str:
    """Returns the lines that parse_test_res.py reads in a log.txt, and a readable table.

    Args:
        results: Results of a finished run.
        trained: Whether the run has trained a prompt, or would have.
    """
    correct = round(results["accuracy"] * results["n"] / 100)
    with_error = {**results, "error": 100 - results["accuracy"]}
    lines: list[str] = []
    if trained:
        lines += END_OF_TRAINING
    lines += ["=> result", f"* total: {results['n']:,}", f"* correct: {correct:,}"]
    lines += percent_lines(with_error, ("accuracy", "error", "ece", "ace"))
    lines += ["", result_table([results])]
    return "\n".join(lines)


def baseline_label(results: Mapping) -> str:
    """The label of the predictions before tuning: zero-shot, or the prompt that the run started
    from.
    """
    method = method_info(results["trainer"])
    if not results["init_weights"] or method.trained:
        return method_info(ZERO_SHOT).label
    return untuned_words(names_of(results).get("prompt") or "")


def names_of(results: Mapping) -> Mapping[str, str]:
    """What tables call the method, the data set, the backbone and the prompt of a run."""
    return results.get("record", {}).get("names", {})


def method_label(results: Mapping) -> str:
    """What tables call the method."""
    return names_of(results).get("method") or method_info(results["trainer"]).label


def dataset_label(results: Mapping) -> str:
    """The data set with its corruption, and which part of it was used."""
    name = names_of(results).get("dataset")
    if not name:
        return str(results["dataset"])
    record = record_of(results)
    if record.data.get("corruption"):
        name += f" {record.data['corruption'].replace('_', ' ')} {record.data['severity']}"
    if record.part_words:
        name += f" ({', '.join(record.part_words)})"
    return name


def backbone_name_of(results: Mapping) -> str:
    """The backbone as tables name it: never the path of a file."""
    return names_of(results).get("backbone") or backbone_label(backbone_name(results["backbone"]))


def rows_of(results: Mapping) -> dict[str, str]:
    """Returns the rows that a run adds to a table below the one of zero-shot CLIP.

    Returns:
        For the label of each row the prefix of its metrics in the run's results; {} for a zero-shot
        run, which adds none.
    """
    method = method_info(results["trainer"])
    if method.zero_shot:
        return {}
    label = method_label(results)
    if reset_words(results.get("reset")):
        label += f", {reset_words(results.get('reset'))}"
    return {label: ""}


def seeds_table(runs: Sequence[Mapping]) -> str:
    """Mean ± sample standard deviation over the seeds of one method on the same images.

    Where the runs differ in more than the seed, such as in their prompts, the difference is stated
    in place of a mean.
    """
    first = runs[0]
    differences = seed_differences(runs)
    if differences:
        lines = [f"no mean over these seeds, whose runs differ: {differences}"]
    else:
        body = [mean_cells(baseline_label(first), runs, "zero_shot_")]
        for label, prefix in rows_of(first).items():
            body.append(mean_cells(label, runs, prefix))
        lines = [aligned(body), caption_of(runs, seed_words(runs)) + settings_of(runs)]
    for results in runs:
        lines += failure_lines(results, f"seed {results['seed']}")
    return "\n".join(lines)


def seed_differences(runs: Sequence[Mapping]) -> str:
    """In what the runs of several seeds differ besides the seed, in words; "" if in nothing."""
    groups = group_records(runs, "pool", record_of)
    if len(groups) == 1:
        return ""
    first = record_of(groups[0][0])
    second = record_of(groups[1][0])
    return describe_difference(first.difference(second, "pool"))


def record_of(results: Mapping) -> RunRecord:
    """The record of a run."""
    return RunRecord.from_json(results["record"])


def sweep_table(key: str, values: Sequence[object], runs: Sequence[Mapping]) -> str:
    """Returns a table of the values of one setting, each with the mean over its seeds.

    Args:
        key: The setting.
        values: The value of the setting in each run; runs of one value follow each other.
        runs: The results of the runs.
    """
    runs_by_value: dict[str, list[Mapping]] = {}
    for value, results in zip(values, runs, strict=True):
        runs_by_value.setdefault(setting_words(key, value), []).append(results)
    baselines = []
    rows = []
    for words, runs_of_value in runs_by_value.items():
        differences = seed_differences(runs_of_value)
        if differences:
            return f"no mean over the seeds with {words}, whose runs differ: {differences}"
        first = runs_of_value[0]  # the setting may be the method, the data set or the prompt
        baselines.append(mean_cells(baseline_label(first), runs_of_value, "zero_shot_"))
        for label, prefix in rows_of(first).items():
            if not label.endswith(f", {words}"):  # a label states TTA.RESET by itself
                label += f", {words}"
            rows.append(mean_cells(label, runs_of_value, prefix))
    if all(cells == baselines[0] for cells in baselines):
        del baselines[1:]  # the setting changes nothing before tuning
    else:
        for cells, words in zip(baselines, runs_by_value, strict=True):
            cells[0] += f", {words}"
    # The values may be seeds.
    seeds = dict.fromkeys(seed_words(runs_of_value) for runs_of_value in runs_by_value.values())
    caption = caption_of(runs, ", ".join(seeds)) + settings_of(runs, but=key)
    lines = [aligned([*baselines, *rows]), caption]
    for words, runs_of_value in runs_by_value.items():
        for results in runs_of_value:
            lines += failure_lines(results, f"{words}, seed {results['seed']}")
    return "\n".join(lines)


def seed_words(runs: Sequence[Mapping]) -> str:
    """What a caption says of the seeds of runs that a row is the mean of."""
    if len(runs) == 1:
        return f"seed {runs[0]['seed']}"
    seeds = ", ".join(str(results["seed"]) for results in runs)
    return f"mean ± sample standard deviation over seeds {seeds}"


def mean_cells(label: str, runs: Sequence[Mapping], prefix: str) -> list[str]:
    """Returns a row of means over runs, with standard deviations unless all runs are equal.

    Args:
        label: The first cell.
        runs: The results, one per seed.
        prefix: Prefix of the metrics: `zero_shot_`, or "" for the method's.
    """
    if len(runs) == 1:
        return cells_of(label, runs[0], prefix)
    rows = []
    for results in runs:
        rows.append([results[prefix + metric] for metric in METRICS])
    values = np.array(rows)  # (runs, metrics)
    is_random = bool((values != values[0]).any())  # zero-shot predictions do not depend on the seed
    cells = [label]
    for mean, deviation in zip(values.mean(axis=0), values.std(axis=0, ddof=1), strict=True):
        if is_random:
            cells.append(f"{mean:.2f} ± {deviation:.2f}")
        else:
            cells.append(f"{mean:.2f}")
    return cells


def caption_of(runs: Sequence[Mapping], seeds: str) -> str:
    """Images, classes, backbone and bins of runs. Those of a sweep may differ in any of them.

    Args:
        runs: The results. Where images could not be read, the runs of several seeds may differ in
            their number.
        seeds: Words about the seeds, such as "seed 0".
    """
    first = runs[0]
    datasets = ", ".join(dict.fromkeys(dataset_label(results) for results in runs))
    backbones = ", ".join(dict.fromkeys(backbone_name_of(results) for results in runs))
    splits = " and ".join(dict.fromkeys(results["split"] for results in runs))
    counts = sorted({results["n"] for results in runs})
    images = counted(counts[0], f"{splits} image")
    if len(counts) > 1:
        images = f"{counts[0]:,} to {counts[-1]:,} {splits} images"
    numbers = sorted({results["classes"] for results in runs})
    classes = plural(numbers[0], "class", "classes")
    if len(numbers) > 1:
        classes = f"{numbers[0]:,} to {numbers[-1]:,} classes"
    return (f"{datasets}, {images} of {classes}, {backbones}, {seeds}; percent; "
            f"{first['bins']} bins")


def settings_of(runs: Sequence[Mapping], but: str = "") -> str:
    """Returns the settings that are not defaults and that all runs share, in words, for a caption.

    Args:
        runs: The results.
        but: A setting that the caption does not state, such as the key of a sweep.
    """
    changed = [results.get("record", {}).get("changed", {}) for results in runs]
    words = []
    for key, (_, value) in changed[0].items():
        if key != but and all(key in other and other[key][1] == value for other in changed):
            words.append(setting_words(key, value_label(value)))
    return f"; {', '.join(words)}" if words else ""


def failure_lines(results: Mapping, whose: str = "") -> list[str]:
    """Returns lines below a table about images that have no prediction of the method.

    Args:
        results: The results of a run.
        whose: The name of the run in the lines, where a table has several; "" for the only one.

    Returns:
        Empty if all images have one.
    """
    lines = []
    if results["flagged"]:
        images = plural(results["flagged"], "image has its", "images have their")
        lines.append(f"{whose or method_label(results)}: {images} zero-shot prediction (adaptation "
                     f"gave no finite number)")
    if results["skipped"]:
        start = f"{whose}: " if whose else ""
        lines.append(f"{start}{counted(len(results['skipped']), 'unreadable image')} skipped")
    return lines


def result_table(runs: Sequence[Mapping]) -> str:
    """Returns the table of runs on the same images: the predictions before tuning, then each
    method.
    """
    first = runs[0]
    body = [cells_of(baseline_label(first), first, "zero_shot_")]
    for results in runs:
        for label, prefix in rows_of(results).items():
            body.append(cells_of(label, results, prefix))
    caption = caption_of(runs[:1], f"seed {first['seed']}") + settings_of(runs)
    lines = [aligned(body), caption]
    for results in runs:
        whose = method_label(results) if len(runs) > 1 else ""
        lines += failure_lines(results, whose)
    return "\n".join(lines)


def cells_of(label: str, results: Mapping, prefix: str) -> list[str]:
    """Returns a row of the final table.

    Args:
        label: The first cell.
        results: Results of a run.
        prefix: Prefix of the metrics: `zero_shot_`, or "" for the method's.
    """
    return [label, *(f"{results[prefix + metric]:.2f}" for metric in METRICS)]


def aligned(body: Sequence[Sequence[str]]) -> str:
    """A table of metrics as text, given its rows."""
    headers = ["method", "accuracy", "ECE", "ACE", "confidence"]
    alignment = ("left", *["right"] * len(METRICS))
    return tabulate(body, headers=headers, disable_numparse=True, colalign=alignment)


def environment(device: torch.device, gpu_name: str) -> dict[str, object]:
    """Returns versions and hardware, for results.json.

    Args:
        device: The device that the run computes on.
        gpu_name: The product name of the GPU; "" for a CPU.
    """
    name = gpu_name or platform.processor() or platform.machine()
    packages = list(PACKAGES)
    for module, package in OPTIONAL.items():
        if module in sys.modules:
            packages.append(package)
    versions = {"promptcal": __version__, "python": platform.python_version()}
    for package in packages:
        versions[package] = metadata.version(package)
    return {
        "versions": versions,
        "device": f"{device} ({name})",
        "threads": torch.get_num_threads(),
    }


def plugin_modules(cfg: CfgNode) -> dict[str, str]:
    """Returns the modules outside this package that a run's method and data set come from.

    Returns:
        For each plugin by its name the module, which is what `--plugin` takes.
    """
    modules = {}
    for registry, name in (
        (TRAINER_REGISTRY, cfg.TRAINER.NAME),
        (DATASET_REGISTRY, cfg.DATASET.NAME),
    ):
        if name in registry and is_plugin(registry.get(name)):
            modules[name] = registry.get(name).__module__
    return modules
