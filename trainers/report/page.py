"""The report as one HTML file that needs no network: verdict, tables, figures, then every run.

Thumbnails of test images are from a data root that the user gives. A report never looks for images
below a folder that a run names, and never downloads. An image is shown if its name is found below
the root and its content is that of the run's image.
"""
from __future__ import annotations

import base64
import hashlib
import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image, ImageOps

from ...datasets.utils.cli import counted
from ...datasets.utils.errors import UserError
from ...datasets.utils.files import leads_out, open_regular
from ...datasets.views.images import open_image
from ..config.settings import untuned_words
from ..functional import calibration as cal
from ..registry import method_info
from .figures.style import NamedFigure, inline_svg
from .measure import Measured, Mistake
from .metrics import METRICS
from .table import Table
from .verdict import Verdict
from .words import (
    backbone_words,
    changed_words,
    column_words,
    method_name,
    prompt_words,
    starts_from_prompt,
)

logger = logging.getLogger(__name__)
SIDE = 128  # pixels of a thumbnail
DIGEST_BYTES = 16
CONTENT_BYTES = 12  # of an image's identity; the others tell copies of a picture apart
TEMPLATES = Path(__file__).parent / "templates"
# Size of figures on the page: their text of 8 points then is as large as small print
REM_PER_INCH = 8.6
MAX_CLASSES = 4000  # lines of classes on a page; with more, each run shows its worst classes only
MIN_CLASSES = 20  # lines per run, however many runs there are
MAX_THUMBNAILS = 600
FACTS = ("device", "precision", "seconds_per_image", "finished")  # of results.json
FILTERS = {"method": "Method", "dataset": "Data set", "backbone": "Backbone", "seed": "Seed"}


@dataclass(frozen=True)
class PageContent:
    """What a page shows.

    Attributes:
        title: Title of the page.
        verdicts: First.
        tables: The first `leading` of them before the figures.
        figures: Figures, in the order of the page.
        notes: On the whole page.
        runs: Each with its details.
        leading: Number of tables before the figures.
        thumbnails: Where images of mistakes are looked for.
    """

    title: str
    verdicts: Sequence[Verdict]
    tables: Sequence[Table]
    figures: Sequence[NamedFigure]
    notes: Sequence[str]
    runs: Sequence[Measured] = ()
    leading: int = 1
    thumbnails: Thumbnails = field(default_factory=lambda: Thumbnails(None))


def render_page(content: PageContent) -> str:
    """The page as HTML."""
    runs, pictures = describe_runs(content.runs, content.thumbnails)
    choices = []
    for key, label in FILTERS.items():
        values = list(dict.fromkeys(run["filters"][key] for run in runs))
        if len(values) > 1:
            choices.append({"key": key, "label": label, "values": values})
    drawn = []
    for item in content.figures:
        drawn.append({
            "name": item.name, "caption": item.caption,
            "width": f"{REM_PER_INCH * item.figure.get_figwidth():.1f}",
            "svg": Markup(inline_svg(item.figure, item.name)),
        })
    return render(
        "report.html",
        content.title,
        verdicts=content.verdicts,
        tables=content.tables,
        figures=drawn,
        runs=runs,
        choices=choices,
        thumbnails=pictures,
        page_notes=content.notes,
        leading=content.leading,
    )


def render(template: str, title: str, **content: object) -> str:
    """Renders a template with the common style and script.

    Args:
        template: File name of the template.
        content: Variables of the template. Everything in them is escaped, except Markup.

    Returns:
        The page as HTML.
    """
    style = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        environment()
        .get_template(template)
        .render(
            title=title,
            style=Markup(style),
            script=Markup(script),
            script_hash=f"sha256-{digest}",
            **content,
        )
    )


@cache
def environment() -> Environment:
    """The environment of the templates, made once. It escapes all that a run may contain."""
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )
    templates.filters["colour"] = lambda name: method_info(name).colour
    return templates


def describe_runs(
    runs: Sequence[Measured], thumbnails: Thumbnails,
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """What the page shows of each run, and the thumbnails by key, each once for all runs.

    Args:
        thumbnails: Makes small pictures of the mistakes.
    """
    keys: dict[str, str] = {}  # thumbnail -> key
    max_classes = max(MIN_CLASSES, MAX_CLASSES // max(len(runs), 1))
    described = []
    for number, measured in enumerate(runs, start=1):
        images = thumbnails.of(measured.mistakes)
        mistakes = []
        for mistake in measured.mistakes:
            image = images.get(mistake.index, "")
            if image and len(keys) < MAX_THUMBNAILS:
                keys.setdefault(image, f"t{len(keys)}")
            mistakes.append({
                "index": mistake.index, "truth": mistake.truth, "before": mistake.before,
                "after": mistake.after, "thumbnail": keys.get(image, ""),
            })
        described.append(describe_run(measured, f"run-{number}", mistakes, max_classes))
    return described, {key: image for image, key in keys.items()}


def describe_run(
    measured: Measured, anchor: str, mistakes: list[dict[str, Any]], max_classes: int,
) -> dict[str, Any]:
    """One run for the template.

    Args:
        mistakes: Mistakes as the template takes them.
    """
    run = measured.run
    record = measured.record
    method = method_name(record)
    dataset = column_words(record)
    backbone = backbone_words(record)
    settings = changed_words(record)
    if starts_from_prompt(record):
        settings.insert(0, prompt_words(record))
    setting = ", ".join(settings)
    before = "Zero-shot"
    if starts_from_prompt(record):
        before = untuned_words(prompt_words(record))
    class_note = f"{len(measured.classes)}"
    if len(measured.classes) > max_classes:
        class_note = f"the {max_classes} most over-confident of {len(measured.classes)}"
    return {
        "anchor": anchor,
        "title": f"{method} on {dataset}",
        "setting": setting,
        "backbone": backbone,
        "seed": run.seed,
        "images": run.results["n"],
        "colour": method_info(run.trainer).colour,
        "before": before,
        "accuracy": METRICS["accuracy"].show(measured.value("accuracy")),
        "ece": METRICS["ece"].show(measured.value("ece")),
        "filters": {
            "method": method,
            "dataset": dataset,
            "backbone": backbone,
            "seed": str(run.seed),
            "text": " ".join([method, dataset, backbone, setting, run.name]),
        },
        "diagram": reliability_diagram(measured),
        "metrics": metric_lines(measured),
        "mistakes": mistakes,
        "classes": measured.classes[:max_classes],
        "class_note": class_note,
        "settings": run_settings(measured),
    }


def metric_lines(measured: Measured) -> list[dict[str, str]]:
    """The metrics of a run with their intervals, next to those before adaptation."""
    lines = []
    for name, interval in measured.metrics.items():
        show = METRICS[name].show
        before = measured.zero_shot_metrics.get(name)
        spread = ""
        if not np.isnan(interval.low):
            spread = f"{show(float(interval.low))} to {show(float(interval.high))}"
        lines.append({
            "label": METRICS[name].heading, "value": show(float(interval.value)), "spread": spread,
            "before": "" if before is None else show(float(before.value)),
        })
    return lines


def run_settings(measured: Measured) -> dict[str, Any]:
    """Settings and facts of a run. They hold no path but the run folder's name."""
    run = measured.run
    record = measured.record
    settings: dict[str, Any] = {"folder": run.name}
    sections: Mapping[str, Mapping[str, Any]] = {
        "data": record.data, "views": record.views, "prompt": record.model["prompt"],
        "numerics": record.numerics,
    }
    for section, values in sections.items():
        for key, value in values.items():
            if value not in (None, ""):
                settings[f"{section}.{key}"] = value
    settings["weights"] = record.model["weights"]
    settings |= dict(record.method["settings"])
    for fact in FACTS:
        if fact in run.results:
            settings[fact] = run.results[fact]
    settings |= run.results.get("versions") or {}
    return settings


def reliability_diagram(measured: Measured) -> dict[str, Any]:
    """Rectangles on a square of 200 units, with the share of images in a strip below."""
    table = cal.reliability(*measured.tuned, measured.bins)
    width = 200 / measured.bins
    fullest = table.share.max()
    bins = []  # with a tooltip each
    areas = {"over": "", "under": "", "share": ""}  # as one path each
    for k in table.count.nonzero()[0]:
        accuracy = table.accuracy[k]
        gap = table.gap[k]
        share = 30 * table.share[k] / fullest
        x = k * width
        top = 200 * (1 - max(accuracy, accuracy + gap))
        areas["over" if gap > 0 else "under"] += rectangle(x, top, width, 200 * abs(gap))
        areas["share"] += rectangle(x, 235 - share, width, share)
        area = rectangle(x, 200 * (1 - accuracy), width, 200 * accuracy)
        words = (
            f"{counted(int(table.count[k]), 'image')}, confidence {100 * (accuracy + gap):.1f} %, "
            f"accuracy {100 * accuracy:.1f} %"
        )
        bins.append({"area": area, "words": words})
    label = f"Reliability diagram, ECE {METRICS['ece'].show(measured.value('ece'))} %"
    return {"bins": bins, "areas": areas, "label": label}


def rectangle(x: float, top: float, width: float, height: float) -> str:
    """A piece of an SVG path."""
    return f"M{x:.4g} {top:.4g}h{width:.4g}v{height:.4g}h-{width:.4g}z"


def folders_in(parent: Path) -> list[Path]:
    """The folders directly below another."""
    return [path for path in sorted(parent.iterdir()) if path.is_dir()]


class Thumbnails:
    """Small pictures of the images below a data root."""

    def __init__(self, root: Path | None) -> None:
        """
        Args:
            root: The folder of the data sets, or of one of them; None shows no image.
        """
        self.root = root
        self.folders: list[Path] = []
        if root is not None and root.is_dir():
            inner = folders_in(root)
            self.folders = [root, *inner]
            for folder in inner:
                self.folders += folders_in(folder)

    def of(self, mistakes: Sequence[Mistake]) -> dict[int, str]:
        """Data URIs of small JPEGs by the index of the mistake, for images that are found."""
        uris = {}
        for mistake in mistakes:
            path = self.find(mistake)
            if path is not None:
                try:
                    picture = open_image(path).convert("RGB")
                    uris[mistake.index] = data_uri(ImageOps.fit(picture, (SIDE, SIDE)))
                except (UserError, OSError, ValueError) as error:
                    logger.info("no thumbnail of %s: %s", path.name, error)
        return uris

    def find(self, mistake: Mistake) -> Path | None:
        """The file of a mistake's image; None if there is none with the same name and content."""
        if not mistake.filename or not mistake.image or leads_out(mistake.filename):
            return None
        for folder in self.folders:
            path = folder / mistake.filename
            if has_content(path, mistake.image):
                return path
        return None


def has_content(path: Path, identity: bytes) -> bool:
    """Whether a file holds an image with this content.

    Args:
        identity: Identity of the image, which begins with a digest of its content.
    """
    try:
        with open_regular(path) as file:
            digest = hashlib.file_digest(file, new_hash).digest()  # type: ignore[arg-type]
    except (OSError, ValueError):
        return False
    return digest[:CONTENT_BYTES] == identity[:CONTENT_BYTES]


def new_hash() -> hashlib.blake2b:
    """The hash by which images are identified, see `datasets/image_index.py`."""
    return hashlib.blake2b(digest_size=DIGEST_BYTES)


def data_uri(image: Image.Image) -> str:
    """A JPEG inside a page."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
