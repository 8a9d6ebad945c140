"""One look for all figures: colours that colour-blind readers tell apart, type that survives a two-column page."""
from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..names import method_key

COLUMN, PAGE = 3.4, 7.0  # widths of a figure in inches, in a column and across the page

# Okabe and Ito's palette: one fixed colour a method, in every figure and on the page.
COLOURS = {
    "zeroshot": "#767676", "tpt": "#E69F00", "ctpt": "#56B4E9", "otpt": "#D55E00", "soc": "#0072B2", "coop": "#009E73",
}
SPARE = ("#CC79A7", "#8C6D1F", "#3B3B98", "#117733")  # for methods that came later
MARKERS = {"zeroshot": "X", "tpt": "^", "ctpt": "D", "otpt": "s", "soc": "o", "coop": "P"}
INK, FAINT = "#222222", "#C9C9C9"

RC = {
    "font.family": "sans-serif", "font.size": 8, "axes.titlesize": 8.5, "axes.labelsize": 8, "legend.fontsize": 7.5,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "axes.linewidth": 0.6, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "xtick.major.size": 2.5, "ytick.major.size": 2.5, "axes.edgecolor": INK,
    "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "text.color": INK, "axes.spines.top": False,
    "axes.spines.right": False, "axes.axisbelow": True, "grid.color": "#E4E4E4", "grid.linewidth": 0.5,
    "lines.linewidth": 1.4, "patch.linewidth": 0.5, "hatch.linewidth": 0.7, "legend.frameon": False,
    "legend.handlelength": 1.6, "figure.facecolor": "white", "savefig.facecolor": "white", "pdf.fonttype": 42,
    "svg.fonttype": "none", "svg.hashsalt": "promptcal", "figure.dpi": 100,
}


def colour(method: str) -> str:
    """The method's colour; a method the palette does not know always gets the same spare one."""
    key = method_key(method)
    return COLOURS.get(key) or SPARE[sum(key.encode()) % len(SPARE)]


def marker(method: str) -> str:
    return MARKERS.get(method_key(method), "v")


def lighter(rgb: str, amount: float = 0.55) -> str:
    """A hex colour mixed with white."""
    parts = (int(rgb[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * amount):02X}" for part in parts)


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
    with styled():
        if figure.get_layout_engine() is not None:
            figure.draw_without_rendering()  # lays out once, for all kinds of file
            figure.set_layout_engine("none")
        metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    return buffer.getvalue()
