"""The part of the report page that is about single runs, as plain values for its templates."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....datasets.base import dataset_info
from ...functional import calibration as cal
from ...registry import method_info
from ..arrange import LEARNT
from ..measure import Measured
from ..metrics import METRICS
from ..settings import setting_words, settings_of

CLASS_LINES = 4000  # of all runs together; beyond that each run shows its worst classes only
FEWEST_CLASSES = 20  # that a run shows however many runs there are
MOST_THUMBNAILS = 600  # pictures that a page holds
FACTS = ("data_hash", "device", "precision", "seconds_per_image", "finished")
FILTERS = {"method": "Method", "dataset": "Data set", "backbone": "Backbone", "seed": "Seed"}


def run_views(
    measured: Sequence[Measured], thumbnails: Mapping[str, Mapping[int, str]],
) -> tuple[list[dict], dict[str, str]]:
    """What the page shows of each run, and the pictures that they share, by key."""
    shown: dict[str, str] = {}
    keys: dict[str, str] = {}  # picture -> key
    words = setting_words([m.run for m in measured])
    most = max(FEWEST_CLASSES, CLASS_LINES // max(len(measured), 1))
    views = []
    for number, m in enumerate(measured, start=1):
        own = thumbnails.get(str(m.run.folder), {})
        mistakes = []
        for mistake in m.mistakes:
            picture = own.get(mistake.index, "")
            if picture and picture not in keys and len(shown) < MOST_THUMBNAILS:
                keys[picture] = f"t{len(shown)}"
                shown[keys[picture]] = picture
            mistakes.append({**vars(mistake), "thumbnail": keys.get(picture, "")})
        views.append(_run(m, f"run-{number}", words[m.run.folder], mistakes, most))
    return views, shown


def filter_choices(runs: Sequence[dict]) -> list[dict]:
    """The fields that runs differ in, with their values."""
    choices = []
    for key, label in FILTERS.items():
        values = list(dict.fromkeys(run["filters"][key] for run in runs))
        if len(values) > 1:
            choices.append({"key": key, "label": label, "values": values})
    return choices


def _run(m: Measured, anchor: str, setting: str, mistakes: list[dict], most: int) -> dict:
    run = m.run
    method, dataset = method_info(run.trainer).label, dataset_info(run.dataset).label
    facts = {key: run.results[key] for key in FACTS if key in run.results}
    settings = {"folder": run.folder, **settings_of(run), **facts, **(run.results.get("versions") or {})}
    return {
        "anchor": anchor, "title": f"{method} on {dataset}", "setting": setting, "backbone": run.backbone,
        "seed": run.seed, "images": run.results["n"], "colour": method_info(run.trainer).colour,
        "before": LEARNT if run.settings.get("MODEL.INIT_WEIGHTS") else "Zero-shot",
        "accuracy": METRICS["accuracy"].show(m.metrics["accuracy"].value),
        "ece": METRICS["ece"].show(m.metrics["ece"].value),
        "filters": {
            "method": method, "dataset": dataset, "backbone": run.backbone, "seed": str(run.seed),
            "text": " ".join([method, dataset, run.backbone, setting, str(run.folder)]),
        },
        "diagram": _diagram(m), "metrics": [_metric(m, key) for key in m.metrics], "mistakes": mistakes,
        "classes": m.classes[:most], "settings": settings,
        "class_note": f"{len(m.classes)}" if len(m.classes) <= most
        else f"the {most} most over-confident of {len(m.classes)}",
    }


def _metric(m: Measured, key: str) -> dict:
    metric, interval, before = METRICS[key], m.metrics[key], m.zero_shot_metrics.get(key)
    spread = ""
    if interval.low == interval.low:  # not NaN
        spread = f"{metric.show(interval.low)} to {metric.show(interval.high)}"
    return {
        "label": metric.label, "value": metric.show(interval.value), "spread": spread,
        "before": metric.show(before.value) if before else "",
    }


def _diagram(m: Measured) -> dict:
    """A reliability diagram as rectangles on a square of 200 units, with shares of the images in a strip below."""
    table = cal.reliability(m.tuned.confidence, m.tuned.correct, m.bins)
    width, fullest = 200 / m.bins, table.share.max()
    bins, areas = [], {"over": "", "under": "", "share": ""}  # what a reader points at; and what is only seen, as paths
    for k in table.count.nonzero()[0]:
        accuracy, gap, share = table.accuracy[k], table.gap[k], 30 * table.share[k] / fullest
        x, top = k * width, 200 * (1 - max(accuracy, accuracy + gap))
        areas["over" if gap > 0 else "under"] += _rectangle(x, top, width, 200 * abs(gap))
        areas["share"] += _rectangle(x, 235 - share, width, share)
        bins.append({
            "area": _rectangle(x, 200 * (1 - accuracy), width, 200 * accuracy),
            "words": f"{table.count[k]:,} images, confidence {100 * (accuracy + gap):.1f} %, "
                     f"accuracy {100 * accuracy:.1f} %",
        })
    ece = METRICS["ece"].show(m.metrics["ece"].value)
    return {"bins": bins, "areas": areas, "label": f"Reliability diagram, ECE {ece} %"}


def _rectangle(x: float, top: float, width: float, height: float) -> str:
    """As a piece of an SVG path."""
    return f"M{x:.4g} {top:.4g}h{width:.4g}v{height:.4g}h-{width:.4g}z"
