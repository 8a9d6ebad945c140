"""One look for all figures: colours that colour-blind readers tell apart, type that survives a two-column page."""
from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

logger = logging.getLogger(__name__)

COLUMN, PAGE = 3.4, 7.0  # widths of a figure in inches, in a column and across the page

INK, GREY, FAINT, GRID = "#222222", "#666666", "#C9C9C9", "#E4E4E4"
OVER, UNDER = "#B2182B", "#1B4F9C"  # too sure of itself, or too modest
# What is drawn on a coloured area, whose colour no theme changes: so these must not follow the page's theme either.
ON_LIGHT, ON_DARK = "#010101", "#FEFEFE"  # one of the two has a contrast of 4.5 with any colour

RC = {
    "font.family": "sans-serif", "font.size": 8, "axes.titlesize": 8.5, "axes.labelsize": 8, "legend.fontsize": 7.5,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "axes.linewidth": 0.6, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "xtick.major.size": 2.5, "ytick.major.size": 2.5, "axes.edgecolor": INK,
    "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "text.color": INK, "axes.spines.top": False,
    "axes.spines.right": False, "axes.axisbelow": True, "grid.color": GRID, "grid.linewidth": 0.5,
    "lines.linewidth": 1.4, "patch.linewidth": 0.5, "hatch.linewidth": 0.7, "legend.frameon": False,
    "legend.handlelength": 1.6, "figure.facecolor": "white", "savefig.facecolor": "white", "pdf.fonttype": 42,
    "text.parse_math": False,  # names of classes and data sets may hold dollars
    "svg.fonttype": "none", "svg.hashsalt": "promptcal", "figure.dpi": 100,
}

MISSING_SIGN = re.compile(r"Glyph (\d+) .*missing from")
told: set[str] = set()  # signs that the font lacks


def lighter(colour: str, amount: float = 0.55) -> str:
    """A colour mixed with white."""
    return to_hex([part + (1 - part) * amount for part in to_rgb(colour)]).upper()


def luminance(colour: str | Sequence[float]) -> float:
    """Relative luminance as WCAG 2 has it, from which contrasts are computed."""
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def short(name: str, most: int = 24) -> str:
    """A name that fits its place."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def styled():
    """A context in which figures are drawn and saved."""
    return rc_context(RC)


def new_figure(width: float, height: float) -> Figure:
    """A figure without pyplot, so that nothing global is kept."""
    return Figure(figsize=(width, height), layout="constrained")


def grid_lines(axes: Axes, axis: str = "y") -> None:
    axes.grid(True, axis=axis)


def save(figure: Figure, stem: Path, kinds: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Writes `stem.png` (300 dpi) and `stem.pdf`; returns the paths."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in kinds:
        path = stem.with_name(f"{stem.name}.{kind}")
        path.write_bytes(encode(figure, kind, dpi=300))
        written.append(path)
    return written


def encode(figure: Figure, kind: str, dpi: int) -> bytes:
    """A figure as a file of this kind. Without dates in it, so that equal results give equal files."""
    buffer = io.BytesIO()
    with styled(), telling_of_missing_signs():
        lay_out(figure)
        figure.set_dpi(dpi)
        # Figure.savefig would draw the figure once more before it draws it, for a layout that is already made.
        if kind == "png":
            FigureCanvasAgg(figure).print_png(buffer)
        elif kind == "pdf":
            FigureCanvasPdf(figure).print_pdf(buffer, metadata={"CreationDate": None})
        else:
            FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    return buffer.getvalue()


def rendered(figure: Figure, dpi: int) -> np.ndarray:
    """The pixels that a png of it would have, uint8 (H, W, 4)."""
    with styled(), telling_of_missing_signs():
        lay_out(figure)
        figure.set_dpi(dpi)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())


@contextmanager
def telling_of_missing_signs() -> Iterator[None]:
    """One line for all the signs that the font lacks, once; matplotlib warns of each in each figure."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield
    signs = set()
    for warning in found:
        number = MISSING_SIGN.match(str(warning.message))
        if number:
            signs.add(chr(int(number[1])))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if signs - told:
        logger.warning("figures have boxes for %s, which the font lacks: name one that has them, sans-serif in "
                       "matplotlib's font settings", " ".join(sorted(signs - told)))
    told.update(signs)


def lay_out(figure: Figure) -> None:
    """Puts everything in its place, once for all kinds of file."""
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        with telling_of_missing_signs():
            engine.execute(figure)
        figure.set_layout_engine("none")


def stamped(figure: Figure, text: str) -> Figure:
    """The figure with a line of small print below it, which cannot be overlooked or cut off by accident."""
    with styled():
        lay_out(figure)  # from here on everything only moves up
        width, height = figure.get_size_inches()
        extra = 0.2
        share = extra / (height + extra)
        boxes = [(axes, axes.get_position()) for axes in figure.axes]
        figure.set_size_inches(width, height + extra)
        for axes, box in boxes:
            axes.set_position([box.x0, share + box.y0 * (1 - share), box.width, box.height * (1 - share)])
        for words in figure.texts:
            words.set_y(share + words.get_position()[1] * (1 - share))
        for legend in figure.legends:
            legend.set_bbox_to_anchor((0, share, 1, 1 - share), transform=figure.transFigure)
        figure.text(0.01, share * 0.3, text, fontsize=6, color=OVER)
        return figure
