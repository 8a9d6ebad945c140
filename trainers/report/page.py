"""The report as one HTML file that needs no network: verdict, tables, figures, then every run."""
from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ...datasets.base import dataset_info
from ..functional import calibration as cal
from ..registry import backbone_label, method_info
from .comparison import LEARNT, setting_labels
from .figures.style import inline_svg
from .gallery import NamedFigure
from .measure import Measured
from .metrics import METRICS
from .table_model import Table
from .thumbnails import thumbnails
from .verdict import Verdict

TEMPLATES = Path(__file__).parent / "templates"
REM_PER_INCH = 8.6  # size of figures on the page: their text of 8 points then is as large as small print
MAX_CLASSES = 4000  # lines of classes on a page; with more, each run shows its worst classes only
MIN_CLASSES = 20  # lines per run, however many runs there are
MAX_THUMBNAILS = 600
FACTS = ("data_hash", "device", "precision", "seconds_per_image", "finished")  # of results.json
FILTERS = {"method": "Method", "dataset": "Data set", "backbone": "Backbone", "seed": "Seed"}


def render_page(
    verdicts: Sequence[Verdict], tables: Sequence[Table], figures: Sequence[NamedFigure], notes: Sequence[str],
    measured: Sequence[Measured] = (), title: str = "Calibration report", leading: int = 1,
) -> str:
    """The page, with `leading` tables before the figures."""
    runs, shown = _runs(measured)
    values = {key: list(dict.fromkeys(run["filters"][key] for run in runs)) for key in FILTERS}
    choices = [{"key": key, "label": FILTERS[key], "values": found} for key, found in values.items() if len(found) > 1]
    drawn = [{
        "name": item.name, "caption": item.caption, "width": f"{REM_PER_INCH * item.figure.get_figwidth():.1f}",
        "svg": Markup(inline_svg(item.figure, item.name)),
    } for item in figures]
    return render("report.html", title, verdicts=verdicts, tables=tables, figures=drawn, runs=runs, choices=choices,
                  thumbnails=shown, page_notes=notes, leading=leading)


def render(template: str, title: str, **content: object) -> str:
    """A template with the common style and script. Everything in `content` is escaped, except Markup."""
    style, script = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _environment().get_template(template).render(
        title=title, style=Markup(style), script=Markup(script), script_hash=f"sha256-{digest}", **content)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )
    environment.filters["colour"] = lambda name: method_info(name).colour
    return environment


def _runs(measured: Sequence[Measured]) -> tuple[list[dict], dict[str, str]]:
    """What the page shows of each run, and the thumbnails by key, each once however many runs show it."""
    keys: dict[str, str] = {}  # thumbnail -> key
    settings = setting_labels(measured)
    max_classes = max(MIN_CLASSES, MAX_CLASSES // max(len(measured), 1))
    runs = []
    for number, m in enumerate(measured, start=1):
        images, mistakes = thumbnails(m.run, m.mistakes), []
        for mistake in m.mistakes:
            image = images.get(mistake.index, "")
            if image and len(keys) < MAX_THUMBNAILS:
                keys.setdefault(image, f"t{len(keys)}")
            mistakes.append({**vars(mistake), "thumbnail": keys.get(image, "")})
        runs.append(_run(m, f"run-{number}", settings[m.run.folder], mistakes, max_classes))
    return runs, {key: image for image, key in keys.items()}


def _run(m: Measured, anchor: str, setting: str, mistakes: list[dict], max_classes: int) -> dict:
    run, method = m.run, method_info(m.run.trainer)
    dataset, backbone = dataset_info(run.dataset).label, backbone_label(run.backbone)
    facts = {key: run.results[key] for key in FACTS if key in run.results}
    classes, metrics = len(m.classes), []
    for key, found in m.metrics.items():
        show, before = METRICS[key].show, m.zero_shot_metrics.get(key)
        metrics.append({
            "label": METRICS[key].label, "value": show(float(found.value)),
            "spread": "" if np.isnan(found.low) else f"{show(float(found.low))} to {show(float(found.high))}",
            "before": show(float(before.value)) if before else "",
        })
    return {
        "anchor": anchor, "title": f"{method.label} on {dataset}", "setting": setting, "backbone": backbone,
        "seed": run.seed, "images": run.results["n"], "colour": method.colour,
        "before": LEARNT if run.settings.get("MODEL.INIT_WEIGHTS") else "Zero-shot",
        "accuracy": METRICS["accuracy"].show(m.value("accuracy")), "ece": METRICS["ece"].show(m.value("ece")),
        "filters": {
            "method": method.label, "dataset": dataset, "backbone": backbone, "seed": str(run.seed),
            "text": " ".join([method.label, dataset, backbone, setting, str(run.folder)]),
        },
        "diagram": _diagram(m), "metrics": metrics, "mistakes": mistakes,
        "classes": m.classes[:max_classes],
        "class_note": f"{classes}" if classes <= max_classes else f"the {max_classes} most over-confident of {classes}",
        "settings": {"folder": run.folder, **{key: run.settings[key] for key in run.compared}, **facts,
                     **(run.results.get("versions") or {})},
    }


def _diagram(m: Measured) -> dict:
    """A reliability diagram as rectangles on a square of 200 units, with the share of images in a strip below."""
    table = cal.reliability(m.tuned.confidence, m.tuned.correct, m.bins)
    width, fullest = 200 / m.bins, table.share.max()
    bins, areas = [], {"over": "", "under": "", "share": ""}  # with a tooltip per bin; as one path each
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
    return {"bins": bins, "areas": areas, "label": f"Reliability diagram, ECE {METRICS['ece'].show(m.value('ece'))} %"}


def _rectangle(x: float, top: float, width: float, height: float) -> str:
    """A piece of an SVG path."""
    return f"M{x:.4g} {top:.4g}h{width:.4g}v{height:.4g}h-{width:.4g}z"
