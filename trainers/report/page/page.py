"""The report as one HTML file that needs no network: verdict, tables, figures, then every run."""
from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ...registry import method_info
from ..figures.svg import inline_svg
from ..gallery import Picture
from ..measure import Measured
from ..table_model import Table
from ..verdict import Verdict
from .runs import filter_choices, run_views

TEMPLATES = Path(__file__).parent / "templates"
REM_PER_INCH = 8.6  # how large a figure is on the page: its type of 8 points then reads as small print does


@dataclass(frozen=True)
class Page:
    """What goes into the file. `thumbnails[folder][index]` are data URIs."""

    verdicts: Sequence[Verdict]
    tables: Sequence[Table]
    pictures: Sequence[Picture]
    measured: Sequence[Measured]
    thumbnails: Mapping[str, Mapping[int, str]]
    notes: Sequence[str]
    title: str = "Calibration report"
    leading: int = 1  # of the tables, above the figures


def render_page(page: Page) -> str:
    runs, thumbnails = run_views(page.measured, page.thumbnails)
    return render(
        "report.html", page.title, verdicts=list(map(_verdict, page.verdicts)), tables=page.tables,
        pictures=[_picture(picture) for picture in page.pictures], runs=runs, choices=filter_choices(runs),
        thumbnails=thumbnails, page_notes=page.notes, leading=page.leading,
    )


def render(template: str, title: str, **content: object) -> str:
    """A template of this folder with the common style and script. Everything in `content` is escaped, but Markup."""
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _environment().get_template(template).render(
        title=title, style=Markup(_asset("page.css")), script=Markup(script), script_hash=f"sha256-{digest}", **content,
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )
    environment.filters["colour"] = lambda name: method_info(name).colour
    return environment


@cache
def _asset(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _verdict(verdict: Verdict) -> dict:
    largest = max(line.ece for line in verdict.lines) or 1
    bars = [
        {
            "label": line.label, "colour": method_info(line.method).colour,
            "best": line.method == verdict.best,
            "width": f"{100 * line.ece / largest:.1f}", "ece": f"{line.ece:.1f}", "accuracy": f"{line.accuracy:.1f}",
            "direction": line.direction,
        }
        for line in verdict.lines
    ]
    return {"sentence": verdict.sentence, "basis": verdict.basis, "bars": bars, "backbone": verdict.backbone}


def _picture(picture: Picture) -> dict:
    return {
        "name": picture.name, "caption": picture.caption,
        "width": f"{REM_PER_INCH * picture.figure.get_figwidth():.1f}",
        "svg": Markup(inline_svg(picture.figure, picture.name)),
    }
