"""A figure as SVG inside a page, in the page's own colours, so that it follows a dark theme."""
from __future__ import annotations

import re

from matplotlib.figure import Figure

from .style import FAINT, GREY, GRID, INK, OVER, UNDER, encode

# Colours of type, lines and ground become the page's; colours of methods stay what they are everywhere.
THEMED = {INK: "--ink", GREY: "--soft", GRID: "--line", FAINT: "--line", "#ffffff": "--paper", OVER: "--over",
          UNDER: "--under"}


def inline_svg(figure: Figure, name: str) -> str:
    """The drawing alone, without prologue. Ids begin with `name`, since several figures share one page."""
    text = encode(figure, "svg", dpi=100).decode()
    text = text[text.index("<svg") :]
    # A style inside the drawing would hold for the whole page, whose own has the same rule.
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", text, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    for colour, variable in THEMED.items():
        text = re.sub(rf"{colour}\b", f"var({variable}, {colour})", text, flags=re.IGNORECASE)
    return _shortened(text)


def _shortened(text: str) -> str:
    """The same drawing in half the characters: the type is the page's own, a hundredth of a point is never seen."""
    def tag(found: re.Match) -> str:  # what stands between tags is words and stays as it is
        short = re.sub(r' ?font-family: [^;"]*;?| transform="rotate\(-?0 [^)]*\)"', "", found[0])
        return re.sub(r"\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), short)

    return re.sub(r"\s*\n\s*", "\n", re.sub(r"<[^>]*>", tag, text))
