"""One style for all figures, for print in two columns, and the ways to save a figure: PNG, PDF, SVG
for a page.
"""
from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ....datasets.utils.files import write_bytes

# Widths of a figure in inches, in a column and across the page
COLUMN = 3.4
PAGE = 7.0
INK = "#222222"
GREY = "#666666"
FAINT = "#C9C9C9"
GRID = "#E4E4E4"
OVER = "#B2182B"  # over-confidence
UNDER = "#1B4F9C"  # under-confidence
ON_LIGHT = "#010101"  # black on coloured areas, which look the same in every theme
# Colours that follow the theme of a page. Colours of methods are the same in every theme.
THEMED = {
    INK: "--ink",
    GREY: "--soft",
    GRID: "--line",
    FAINT: "--line",
    "#ffffff": "--paper",
    OVER: "--over",
    UNDER: "--under",
}
RC: Any = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "legend.fontsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
    "patch.linewidth": 0.5,
    "hatch.linewidth": 0.7,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "pdf.fonttype": 42,  # TrueType, which publishers require; the default is Type 3
    "text.parse_math": False,  # names may contain dollar signs
    "svg.fonttype": "none",  # text stays text, in the fonts of the page
    "svg.hashsalt": "promptcal",  # the same figure has the same ids each time
    "figure.dpi": 100,
}


def lighter(colour: str, amount: float = 0.55) -> str:
    """A colour mixed with white.

    Args:
        colour: A colour as matplotlib takes it.
        amount: Share of white, from 0 to 1.
    """
    red, green, blue = (part + (1 - part) * amount for part in to_rgb(colour))
    return to_hex((red, green, blue)).upper()


def wrapped(label: str, width: int = 24) -> str:
    """A row's label in lines of at most `width` letters.

    Only a label of more than four such lines is shortened: the settings at its end may be all that
    tells two rows apart.

    Args:
        width: Letters per line.
    """
    return "\n".join(textwrap.wrap(short(label, 4 * width), width))


def legend_columns(labels: Iterable[str], width: float) -> int:
    """As many columns of a legend as fit into `width` inches.

    Args:
        labels: Labels, each of which may have several lines.
        width: Width of the legend in inches.
    """
    longest = 0
    for label in labels:
        for line in label.splitlines():
            longest = max(longest, len(line))
    # In inches: the handle of an entry takes 0.5, a letter about 0.062.
    return max(1, int(width / max(0.9, 0.5 + 0.062 * longest)))


def short(name: str, most: int = 24) -> str:
    """A name of at most `most` letters. Its middle is left out: names often differ at the end."""
    if len(name) <= most:
        return name
    tail = most // 3
    return f"{name[: most - 1 - tail]}…{name[-tail:]}"


def styled() -> AbstractContextManager[None]:
    """The context in which figures are drawn and saved."""
    return rc_context(RC)


def new_figure(width: float, height: float, **layout: Any) -> Figure:
    """A figure without pyplot and its global state.

    Args:
        layout: Paddings of the constrained layout.
    """
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(**layout))


def save(figure: Figure, stem: Path) -> list[Path]:
    """Writes `stem.png` (300 dpi) and `stem.pdf`; returns the paths."""
    paths = {kind: stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf")}
    for kind, path in paths.items():
        write_bytes(path, encode(figure, kind, dpi=300))
    return list(paths.values())


def encode(figure: Figure, kind: str, dpi: int) -> bytes:
    """A figure as a file of this kind. It holds no date: equal results give equal files.

    Args:
        kind: png, pdf or svg.
        dpi: Dots per inch of a png.
    """
    buffer = io.BytesIO()
    with styled(), warnings.catch_warnings():
        # The warning holds the letter, which may be an escape of a foreign run's name.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        lay_out(figure)
        figure.set_dpi(dpi)
        # Figure.savefig would draw twice, for a layout that is already computed.
        if kind == "png":
            FigureCanvasAgg(figure).print_png(buffer)
        elif kind == "pdf":
            FigureCanvasPdf(figure).print_pdf(buffer, metadata={"CreationDate": None})
        else:
            FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    return buffer.getvalue()


def lay_out(figure: Figure) -> None:
    """Computes the layout once, for all kinds of file."""
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.execute(figure)
        figure.set_layout_engine("none")


def inline_svg(figure: Figure, name: str) -> str:
    """A figure as SVG for a page, in the page's colours.

    Ids begin with `name`, since several figures share a page.
    """
    text = encode(figure, "svg", dpi=100).decode()
    text = text[text.index("<svg") :]
    # A style element would apply to the whole page.
    text = re.sub(
        r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", text, flags=re.DOTALL
    )
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))

    def with_name(attribute: re.Match) -> str:
        """An id that something refers to is renamed; others go."""
        if attribute[1] in used:
            return f' id="{name}-{attribute[1]}"'
        return ""

    text = re.sub(r' id="([^"]*)"', with_name, text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    for colour, variable in THEMED.items():
        text = re.sub(rf"{colour}\b", f"var({variable}, {colour})", text, flags=re.IGNORECASE)

    def shortened(tag: re.Match) -> str:
        """Half the characters: the page sets the font, and two decimals are enough."""
        short = re.sub(r' ?font-family: [^;"]*;?| transform="rotate\(-?0 [^)]*\)"', "", tag[0])
        return re.sub(r"\d+\.\d{3,}", two_decimals, short)

    return re.sub(r"\s*\n\s*", "\n", re.sub(r"<[^>]*>", shortened, text))


def two_decimals(number: re.Match) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def stamped(figure: Figure, text: str) -> Figure:
    """The figure with a line of small print below it.

    Args:
        figure: Changed in place.
    """
    with styled():
        lay_out(figure)  # everything in it moves up
        width, height = figure.get_size_inches()
        share = 0.2 / (height + 0.2)
        figure.set_size_inches(width, height + 0.2)
        for axes in figure.axes:
            box = axes.get_position()
            axes.set_position(
                (box.x0, share + box.y0 * (1 - share), box.width, box.height * (1 - share))
            )
        for words in figure.texts:
            words.set_y(share + words.get_position()[1] * (1 - share))
        for legend in figure.legends:
            legend.set_bbox_to_anchor((0, share, 1, 1 - share), transform=figure.transFigure)
        figure.text(0.01, share * 0.3, text, fontsize=6, color=OVER)
        return figure


@dataclass(frozen=True)
class NamedFigure:
    """A figure with its file name and caption."""

    name: str
    caption: str
    figure: Figure
